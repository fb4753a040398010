//! Everything that requests share.

use super::desk::Desk;
use super::futures::Futures;
use super::ids::shown;
use super::options::ServerOptions;
use super::reading::Reading;
use super::refusal::Refusal;
use super::samplers::Samplers;
use super::sessions::Sessions;
use crate::adapter;
use crate::local::LocalService;
use minds_core::architecture::Architecture;
use minds_core::lora::LoraSpec;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The server behind all requests.
pub(super) struct Server {
    pub(super) service: LocalService,
    pub(super) futures: Arc<Futures>,
    pub(super) sessions: Sessions,
    pub(super) models: Models,
    pub(super) samplers: Samplers,
    /// Becomes true when the server is to stop.
    pub(super) closing: watch::Sender<bool>,
    pub(super) reading: Arc<Reading>,
    /// Address that the server listens on.
    pub(super) address: SocketAddr,
    options: ServerOptions,
}

impl Server {
    pub(super) fn new(service: LocalService, options: ServerOptions, address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            models: Models::new(service.architecture().clone(), options.adapter_bytes),
            service,
            futures: Futures::new(&options),
            sessions: Sessions::new(&options),
            samplers: Samplers::new(options.sampler_bytes, options.max_samplers),
            closing: watch::channel(false).0,
            reading: Reading::new(options.reading_bytes),
            address,
            options,
        })
    }

    pub(super) fn options(&self) -> &ServerOptions {
        &self.options
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
        // First, for models and samplers are made within sessions: what is not there by now will never be.
        let was_there = self.sessions.end(id);
        self.models.end_session(id);
        self.samplers.end_session(id);
        was_there
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

/// The models in training, bounded in bytes.
#[derive(Debug)]
pub(super) struct Models {
    architecture: Architecture,
    most: usize,
    used: Arc<AtomicUsize>,
    desks: Mutex<HashMap<String, Arc<Desk>>>,
}

/// The room of one adapter. It is free again when this is dropped, which is when nobody works on the adapter any more.
#[derive(Debug)]
pub(super) struct Seat {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Models {
    fn new(architecture: Architecture, most: usize) -> Self {
        Self { architecture, most, used: Arc::default(), desks: Mutex::default() }
    }

    /// Room for an adapter, if there is some.
    pub(super) fn seat(&self, spec: &LoraSpec) -> Result<Seat, Refusal> {
        let bytes = adapter::training_bytes(&self.architecture, spec);
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.most);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Seat { bytes, used: self.used.clone() }),
            // What others have given up and is still worked on will be free.
            Err(_) if self.kept_bytes() + bytes <= self.most => Err(Refusal::full(
                "a model that was given up is still worked on, its room is free after that",
            )),
            Err(used) => Err(Refusal::bad(format!(
                "models in training take {used} bytes, this one would take {bytes}, and {} are there: finish a \
                 session, or give the server more room for adapters",
                self.most
            ))),
        }
    }

    /// Bytes of the models that are not being unloaded.
    fn kept_bytes(&self) -> usize {
        let desks = self.lock();
        let kept = desks.values().filter(|desk| !desk.is_leaving());
        kept.map(|desk| adapter::training_bytes(&self.architecture, desk.spec())).sum()
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
