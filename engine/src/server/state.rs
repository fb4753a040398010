//! State of the server that all requests share.

use super::api_error::ApiError;
use super::body_budget::BodyBudget;
use super::futures::FutureTable;
use super::ids::printable;
use super::model_handle::ModelHandle;
use super::options::ServerOptions;
use super::samplers::SamplerRegistry;
use super::sessions::SessionTable;
use crate::adapter;
use crate::embedded::EmbeddedService;
use minds_core::architecture::Architecture;
use minds_core::lora::LoraSpec;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// State that the handlers of all requests share.
pub(super) struct ServerState {
    pub(super) service: EmbeddedService,
    pub(super) futures: Arc<FutureTable>,
    pub(super) sessions: SessionTable,
    pub(super) models: ModelTable,
    pub(super) samplers: SamplerRegistry,
    /// Becomes true when the shutdown starts.
    pub(super) closing: watch::Sender<bool>,
    pub(super) body_budget: Arc<BodyBudget>,
    /// Address that the server listens on.
    pub(super) address: SocketAddr,
    options: ServerOptions,
}

impl ServerState {
    pub(super) fn new(service: EmbeddedService, options: ServerOptions, address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            models: ModelTable::new(service.architecture().clone(), options.adapter_bytes),
            service,
            futures: FutureTable::new(&options),
            sessions: SessionTable::new(&options),
            samplers: SamplerRegistry::new(options.sampler_bytes, options.max_samplers),
            closing: watch::channel(false).0,
            body_budget: BodyBudget::new(options.reading_bytes),
            address,
            options,
        })
    }

    pub(super) fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// Handle of a model; also resets the idle time of its session.
    pub(super) fn model(&self, id: &str) -> Result<Arc<ModelHandle>, ApiError> {
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
    pub(super) fn end_session(&self, id: &str) -> bool {
        // First: models and samplers are created within sessions, so no new ones can appear after this.
        let was_there = self.sessions.end(id);
        self.models.end_session(id);
        self.samplers.end_session(id);
        was_there
    }

    /// Removes expired results and ends idle sessions.
    pub(super) fn sweep(&self) {
        self.futures.sweep();
        for session in self.sessions.sweep() {
            tracing::info!(session, "ended a session that gave no sign of life");
            self.end_session(&session);
        }
    }
}

/// The models in training, bounded in bytes.
#[derive(Debug)]
pub(super) struct ModelTable {
    architecture: Architecture,
    most: usize,
    used: Arc<AtomicUsize>,
    handles: Mutex<HashMap<String, Arc<ModelHandle>>>,
}

/// Memory reserved for one adapter. The task of the model holds it, and dropping it frees the memory.
#[derive(Debug)]
pub(super) struct AdapterReservation {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Drop for AdapterReservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl ModelTable {
    fn new(architecture: Architecture, most: usize) -> Self {
        Self { architecture, most, used: Arc::default(), handles: Mutex::default() }
    }

    /// Reserves memory for an adapter; an error if the limit would be exceeded.
    pub(super) fn reserve(&self, spec: &LoraSpec) -> Result<AdapterReservation, ApiError> {
        let bytes = adapter::training_bytes(&self.architecture, spec);
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
        kept.map(|handle| adapter::training_bytes(&self.architecture, handle.spec())).sum()
    }

    pub(super) fn put(&self, handle: Arc<ModelHandle>) {
        self.lock().insert(handle.id().into(), handle);
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<ModelHandle>> {
        self.lock().get(id).cloned()
    }

    /// Removes a model; returns whether it existed.
    pub(super) fn close(&self, id: &str) -> bool {
        self.lock().remove(id).is_some()
    }

    fn end_session(&self, session: &str) {
        self.lock().retain(|_, handle| handle.session() != session);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<ModelHandle>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
