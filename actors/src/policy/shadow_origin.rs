//! The weights that a shadow starts from, and the states on the service that hold them.
//!
//! A version's weights are saved behind its step, in the order of the adapter in training, so a shadow that loads them
//! is a copy of what played. A state that was saved for shadows alone belongs to [`ShadowCheckpoints`], which deletes it once
//! the last rollout that could ask for it has been judged, or when the run ends. A state that is a checkpoint stays.

use crate::policy::AnswerCache;
use futures::FutureExt;
use futures::future::Shared;
use minds_core::ids::Token;
use minds_core::service::{BackendError, Pending, SamplingBackend, Service};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::debug;

/// What stands before the probe, and the tokens whose log-probs are summed.
pub(crate) type ProbeText = (Arc<[Token]>, Arc<[Token]>);

/// The path of a state that may still be on its way to the service. Whoever waits gets the same answer.
pub type SharedPath = Shared<Pending<String>>;

/// Weights with the state that holds them. What a probe is worth under them is measured once.
pub struct ShadowOrigin {
    state: SharedPath,
    pub(crate) sampler: Arc<dyn SamplingBackend>,
    pub(crate) before: AnswerCache<ProbeText, f64>,
    /// Its index among the shadow checkpoints, if only shadows need the state.
    index: Option<(Arc<ShadowCheckpoints>, u64)>,
}

impl ShadowOrigin {
    /// Over a state that is kept for others too.
    #[must_use]
    pub fn new(state: SharedPath, sampler: Arc<dyn SamplingBackend>) -> Arc<Self> {
        Arc::new(Self { state, sampler, before: AnswerCache::default(), index: None })
    }

    /// Over a state that is kept under a path.
    #[must_use]
    pub fn kept(path: String, sampler: Arc<dyn SamplingBackend>) -> Arc<Self> {
        Self::new(std::future::ready(Ok(path)).boxed().shared(), sampler)
    }

    pub(crate) async fn path(&self) -> Result<String, BackendError> {
        self.state.clone().await
    }
}

impl Drop for ShadowOrigin {
    fn drop(&mut self) {
        if let Some((shadow_checkpoints, index)) = &self.index {
            shadow_checkpoints.lock().released.push(*index);
        }
    }
}

/// States that were saved for shadows alone.
pub struct ShadowCheckpoints {
    service: Arc<dyn Service>,
    next_index: AtomicU64,
    content: Mutex<StoredCheckpoints>,
    /// Held while states are being deleted, so that the end waits for a sweep under way.
    sweep_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct StoredCheckpoints {
    states: BTreeMap<u64, SharedPath>,
    released: Vec<u64>,
}

impl ShadowCheckpoints {
    /// An empty one.
    #[must_use]
    pub fn new(service: Arc<dyn Service>) -> Arc<Self> {
        Arc::new(Self {
            service,
            next_index: AtomicU64::new(0),
            content: Mutex::default(),
            sweep_lock: Default::default(),
        })
    }

    /// Weights whose state is deleted when they are dropped.
    #[must_use]
    pub fn keep(
        self: &Arc<Self>,
        state: Pending<String>,
        sampler: Arc<dyn SamplingBackend>,
    ) -> Arc<ShadowOrigin> {
        let (state, index) = (state.shared(), self.next_index.fetch_add(1, Relaxed));
        self.lock().states.insert(index, state.clone());
        Arc::new(ShadowOrigin {
            state,
            sampler,
            before: AnswerCache::default(),
            index: Some((self.clone(), index)),
        })
    }

    /// Deletes the states that nobody can ask for any more.
    pub async fn sweep(&self) {
        let _sweeping = self.sweep_lock.lock().await;
        let states: Vec<SharedPath> = {
            let content = &mut *self.lock();
            content.released.drain(..).filter_map(|index| content.states.remove(&index)).collect()
        };
        self.forget(states).await;
    }

    /// Deletes all states. For the end, when nobody asks any more.
    pub async fn clear(&self) {
        let _sweeping = self.sweep_lock.lock().await;
        let states = std::mem::take(&mut self.lock().states).into_values().collect();
        self.forget(states).await;
    }

    async fn forget(&self, states: Vec<SharedPath>) {
        for state in states {
            // What was never saved need not be deleted; what cannot be deleted costs room and nothing else.
            let Ok(path) = state.await else { continue };
            if let Err(error) = self.service.delete(&path).await {
                debug!(path, %error, "a shadow's state stays");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, StoredCheckpoints> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
