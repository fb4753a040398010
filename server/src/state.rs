//! State of the server that all requests share.

use crate::api_error::ApiError;
use crate::body_budget::BodyBudget;
use crate::futures::FutureTable;
use crate::ids::printable;
use crate::models::{ModelHandle, ModelTable};
use crate::options::ServerOptions;
use crate::samplers::SamplerRegistry;
use crate::sessions::SessionTable;
use minds_core::hosting::HostedService;
use minds_core::service::{BackendError, SamplingBackend, ServiceInfo};
use minds_http::AccessGuard;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{OnceCell, watch};

/// State that the handlers of all requests share.
pub(crate) struct ServerState {
    pub(crate) service: Arc<dyn HostedService>,
    /// Base model and limits of the service.
    pub(crate) info: ServiceInfo,
    pub(crate) futures: Arc<FutureTable>,
    pub(crate) sessions: Arc<SessionTable>,
    pub(crate) models: Arc<ModelTable>,
    pub(crate) samplers: Arc<SamplerRegistry>,
    /// Becomes true when the shutdown starts.
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) body_budget: Arc<BodyBudget>,
    pub(crate) guard: AccessGuard,
    base: OnceCell<Arc<dyn SamplingBackend>>,
    options: ServerOptions,
}

impl ServerState {
    pub(crate) fn new(
        service: Arc<dyn HostedService>,
        options: ServerOptions,
        address: SocketAddr,
    ) -> Arc<Self> {
        let sessions = Arc::new(SessionTable::new(&options));
        let samplers = Arc::new(SamplerRegistry::new(options.sampler_bytes, options.max_samplers));
        Arc::new(Self {
            models: ModelTable::new(service.clone(), sessions.clone(), samplers.clone(), &options),
            info: service.info(),
            service,
            futures: FutureTable::new(&options),
            sessions,
            samplers,
            closing: watch::channel(false).0,
            body_budget: BodyBudget::new(options.reading_bytes),
            guard: AccessGuard::new(address, options.api_key.clone()),
            base: OnceCell::new(),
            options,
        })
    }

    pub(crate) fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// The sampler over the base model, which all sessions share.
    pub(crate) async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        self.base.get_or_try_init(|| self.service.base_sampler()).await.cloned()
    }

    /// Handle of a model; also resets the idle time of its session.
    pub(crate) fn model(&self, id: &str) -> Result<Arc<ModelHandle>, ApiError> {
        let handle = self.models.get(id).ok_or_else(|| {
            ApiError::not_found(format!(
                "there is no model `{}`: it was unloaded, its session has ended, or the server was restarted",
                printable(id)
            ))
        })?;
        self.sessions.touch(handle.session());
        Ok(handle)
    }

    /// Ends a session with everything that belongs to it. Checkpoints stay.
    pub(crate) fn end_session(&self, id: &str) -> bool {
        // First: models and samplers are created within sessions, so no new ones can appear after this.
        let was_there = self.sessions.end(id);
        self.models.end_session(id);
        self.samplers.end_session(id);
        was_there
    }

    /// Removes expired results and ends idle sessions.
    pub(crate) fn sweep(&self) {
        self.futures.sweep();
        for session in self.sessions.sweep() {
            tracing::info!(session, "ended a session that gave no sign of life");
            self.end_session(&session);
        }
    }
}
