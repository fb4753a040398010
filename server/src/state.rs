//! State of the server that all requests share.

use crate::api_error::ApiError;
use crate::body_budget::BodyBudget;
use crate::futures::FutureTable;
use crate::ids::printable;
use crate::model_handle::ModelHandle;
use crate::options::ServerOptions;
use crate::samplers::SamplerRegistry;
use crate::sessions::SessionTable;
use minds_core::hosting::HostedService;
use minds_core::lora::LoraSpec;
use minds_core::service::{BackendError, SamplingBackend, ServiceInfo};
use minds_http::AccessGuard;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OnceCell, watch};

/// State that the handlers of all requests share.
pub(crate) struct ServerState {
    pub(crate) service: Arc<dyn HostedService>,
    /// Base model and limits of the service.
    pub(crate) info: ServiceInfo,
    pub(crate) futures: Arc<FutureTable>,
    pub(crate) sessions: SessionTable,
    pub(crate) models: ModelTable,
    pub(crate) samplers: SamplerRegistry,
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
        Arc::new(Self {
            models: ModelTable::new(service.clone(), options.adapter_bytes),
            info: service.info(),
            service,
            futures: FutureTable::new(&options),
            sessions: SessionTable::new(&options),
            samplers: SamplerRegistry::new(options.sampler_bytes, options.max_samplers),
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

/// The models in training, bounded in bytes.
pub(crate) struct ModelTable {
    service: Arc<dyn HostedService>,
    most: usize,
    used: Arc<AtomicUsize>,
    handles: Mutex<HashMap<String, Arc<ModelHandle>>>,
}

/// Memory reserved for one adapter. The task of the model holds it, and dropping it frees the memory.
#[derive(Debug)]
pub(crate) struct AdapterReservation {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Drop for AdapterReservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl ModelTable {
    fn new(service: Arc<dyn HostedService>, most: usize) -> Self {
        Self { service, most, used: Arc::default(), handles: Mutex::default() }
    }

    /// Reserves memory for an adapter; an error if the limit would be exceeded.
    pub(crate) fn reserve(&self, spec: &LoraSpec) -> Result<AdapterReservation, ApiError> {
        let bytes = self.service.training_bytes(spec);
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.most);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(AdapterReservation { bytes, used: self.used.clone() }),
            // Models that are being unloaded will free enough memory.
            Err(_) if self.kept_bytes() + bytes <= self.most => Err(ApiError::too_many_requests(
                "an unloaded model is still in use; its slot is free after that",
            )),
            Err(used) => Err(ApiError::bad_request(format!(
                "models in training take {used} bytes, this one would take {bytes}, and {} are there: finish a \
                 session, or give the server more room for adapters",
                self.most
            ))),
        }
    }

    /// Bytes of the models that are not being unloaded.
    fn kept_bytes(&self) -> usize {
        let handles = self.lock();
        let kept = handles.values().filter(|handle| !handle.is_unloading());
        kept.map(|handle| self.service.training_bytes(handle.spec())).sum()
    }

    pub(crate) fn put(&self, handle: Arc<ModelHandle>) {
        self.lock().insert(handle.id().into(), handle);
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<ModelHandle>> {
        self.lock().get(id).cloned()
    }

    /// Removes a model; returns whether it existed.
    pub(crate) fn close(&self, id: &str) -> bool {
        self.lock().remove(id).is_some()
    }

    fn end_session(&self, session: &str) {
        self.lock().retain(|_, handle| handle.session() != session);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<ModelHandle>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
