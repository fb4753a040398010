//! The weights that a shadow starts from, and the states on the service that hold them.
//!
//! A version's weights are saved behind its step, in the order of the adapter in training, so a shadow that loads them
//! is a copy of what played. A state that was saved for nobody but the shadows stands on the shelf: it is deleted once
//! the last episode that could ask for it has been judged, or when the run ends. A state that is a checkpoint stays.

use crate::memory::Memory;
use futures::FutureExt;
use futures::future::Shared;
use minds_core::backend::{BackendError, Pending, SamplingBackend, Service};
use minds_core::ids::Token;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::debug;

/// What stands before the probe, and the tokens whose log-probs are summed.
pub(super) type Probe = (Arc<[Token]>, Arc<[Token]>);

/// The path of a state that may still be on its way to the service. Whoever waits gets the same answer.
pub type State = Shared<Pending<String>>;

/// Weights with the state that holds them. What a probe is worth under them is measured once.
pub struct Origin {
    state: State,
    pub(super) sampler: Arc<dyn SamplingBackend>,
    pub(super) before: Memory<Probe, f64>,
    /// Where it stands on the shelf, if nobody else needs the state.
    place: Option<(Arc<Shelf>, u64)>,
}

impl Origin {
    /// Over a state that is kept for others too.
    #[must_use]
    pub fn new(state: State, sampler: Arc<dyn SamplingBackend>) -> Arc<Self> {
        Arc::new(Self { state, sampler, before: Memory::default(), place: None })
    }

    /// Over a state that is kept under a path.
    #[must_use]
    pub fn kept(path: String, sampler: Arc<dyn SamplingBackend>) -> Arc<Self> {
        Self::new(std::future::ready(Ok(path)).boxed().shared(), sampler)
    }

    pub(super) async fn path(&self) -> Result<String, BackendError> {
        self.state.clone().await
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if let Some((shelf, place)) = &self.place {
            shelf.lock().released.push(*place);
        }
    }
}

/// States that were saved for shadows alone.
pub struct Shelf {
    service: Arc<dyn Service>,
    places: AtomicU64,
    content: Mutex<Content>,
    /// Held while states are being deleted, so that the end waits for a sweep under way.
    broom: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Content {
    states: BTreeMap<u64, State>,
    released: Vec<u64>,
}

impl Shelf {
    /// An empty one.
    #[must_use]
    pub fn new(service: Arc<dyn Service>) -> Arc<Self> {
        Arc::new(Self {
            service,
            places: AtomicU64::new(0),
            content: Mutex::default(),
            broom: Default::default(),
        })
    }

    /// Weights whose state is deleted when they are dropped.
    #[must_use]
    pub fn keep(self: &Arc<Self>, state: Pending<String>, sampler: Arc<dyn SamplingBackend>) -> Arc<Origin> {
        let (state, place) = (state.shared(), self.places.fetch_add(1, Relaxed));
        self.lock().states.insert(place, state.clone());
        Arc::new(Origin { state, sampler, before: Memory::default(), place: Some((self.clone(), place)) })
    }

    /// Deletes the states that nobody can ask for any more.
    pub async fn sweep(&self) {
        let _broom = self.broom.lock().await;
        let states: Vec<State> = {
            let content = &mut *self.lock();
            content.released.drain(..).filter_map(|place| content.states.remove(&place)).collect()
        };
        self.forget(states).await;
    }

    /// Deletes all states. For the end, when nobody asks any more.
    pub async fn clear(&self) {
        let _broom = self.broom.lock().await;
        let states = std::mem::take(&mut self.lock().states).into_values().collect();
        self.forget(states).await;
    }

    async fn forget(&self, states: Vec<State>) {
        for state in states {
            // What was never saved need not be deleted; what cannot be deleted costs room and nothing else.
            let Ok(path) = state.await else { continue };
            if let Err(error) = self.service.forget(&path).await {
                debug!(path, %error, "a shadow's state stays");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
