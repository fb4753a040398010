//! Everything that requests share.

use super::desk::Desk;
use super::futures::Futures;
use super::ids::shown;
use super::options::ServerOptions;
use super::refusal::Refusal;
use super::samplers::Samplers;
use super::sessions::Sessions;
use crate::adapter;
use crate::local::LocalService;
use minds_core::architecture::Architecture;
use minds_core::lora::LoraSpec;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// Bytes per permit of the room for bodies: permits are counted in 32 bits.
const READING_UNIT: usize = 1024;

/// The server behind all requests.
pub(super) struct Server {
    pub(super) service: LocalService,
    pub(super) futures: Arc<Futures>,
    pub(super) sessions: Sessions,
    pub(super) models: Models,
    pub(super) samplers: Samplers,
    /// Becomes true when the server is to stop.
    pub(super) closing: watch::Sender<bool>,
    options: ServerOptions,
    reading: Semaphore,
}

impl Server {
    pub(super) fn new(service: LocalService, options: ServerOptions) -> Arc<Self> {
        Arc::new(Self {
            models: Models::new(service.architecture().clone(), options.adapter_bytes),
            service,
            futures: Futures::new(&options),
            sessions: Sessions::new(&options),
            samplers: Samplers::new(options.sampler_bytes, options.max_samplers),
            closing: watch::channel(false).0,
            reading: Semaphore::new(units(options.reading_bytes) as usize),
            options,
        })
    }

    pub(super) fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// Waits for room to read a body.
    pub(super) async fn reading_room(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let most = self.options.max_body_bytes.min(self.options.reading_bytes);
        self.reading.acquire_many(units(bytes.min(most))).await.ok()
    }

    /// A model, with a sign of life of its session.
    pub(super) fn model(&self, id: &str) -> Result<Arc<Desk>, Refusal> {
        let desk = self.models.get(id).ok_or_else(|| {
            Refusal::missing(format!(
                "there is no model `{}`: it was unloaded, its session has ended, or the server was started anew",
                shown(id)
            ))
        })?;
        self.sessions.touch(desk.session());
        Ok(desk)
    }

    /// Ends a session with everything that belongs to it. Checkpoints stay.
    pub(super) fn end_session(&self, id: &str) -> bool {
        self.models.end_session(id);
        self.samplers.end_session(id);
        self.sessions.end(id)
    }

    /// Forgets what has had its time.
    pub(super) fn sweep(&self) {
        self.futures.sweep();
        for session in self.sessions.sweep() {
            tracing::info!(session, "ended a session that gave no sign of life");
            self.end_session(&session);
        }
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(READING_UNIT)).unwrap_or(u32::MAX).max(1)
}

/// The models in training, bounded in bytes.
#[derive(Debug)]
pub(super) struct Models {
    architecture: Architecture,
    most: usize,
    desks: Mutex<HashMap<String, Arc<Desk>>>,
}

impl Models {
    fn new(architecture: Architecture, most: usize) -> Self {
        Self { architecture, most, desks: Mutex::default() }
    }

    /// Refuses an adapter that there is no room for.
    pub(super) fn check_room(&self, spec: &LoraSpec) -> Result<(), Refusal> {
        let desks = self.lock();
        let bytes = |spec: &LoraSpec| adapter::training_bytes(&self.architecture, spec);
        let used: usize = desks.values().map(|desk| bytes(desk.spec())).sum();
        if used + bytes(spec) <= self.most {
            return Ok(());
        }
        Err(Refusal::bad(format!(
            "{} models in training take {used} bytes, this one would take {}, and {} are there: finish a session, or \
             give the server more room for adapters",
            desks.len(),
            bytes(spec),
            self.most
        )))
    }

    pub(super) fn put(&self, desk: Arc<Desk>) {
        self.lock().insert(desk.id().into(), desk);
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Desk>> {
        self.lock().get(id).cloned()
    }

    /// Gives a model up.
    pub(super) fn close(&self, id: &str) -> bool {
        self.lock().remove(id).is_some()
    }

    fn end_session(&self, session: &str) {
        self.lock().retain(|_, desk| desk.session() != session);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Desk>>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
