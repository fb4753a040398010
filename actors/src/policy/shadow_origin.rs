//! The weights that a shadow starts from, and the checkpoints on the service that hold them.
//!
//! A version's weights are saved after its step, in the order of the adapter in training, so a shadow that loads them
//! is a copy of the weights that sampled. A checkpoint saved for shadows alone belongs to [`ShadowCheckpoints`], which
//! deletes it after the last rollout that could request it has been scored, or when the run ends. Checkpoints of the
//! run stay.

use crate::policy::AnswerCache;
use futures::FutureExt;
use futures::future::Shared;
use minds_core::ids::Token;
use minds_core::service::{BackendError, Pending, SamplingBackend, Service};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::debug;

/// The prefix of the probe, and the tokens whose logprobs are summed.
pub(crate) type ProbeText = (Arc<[Token]>, Arc<[Token]>);

/// The path of a checkpoint that may still be being saved. All waiters get the same result.
pub type SharedPath = Shared<Pending<String>>;

/// Weights with the checkpoint that holds them. The probe's logprob under them is measured once.
pub struct ShadowOrigin {
    state: SharedPath,
    pub(crate) sampler: Arc<dyn SamplingBackend>,
    pub(crate) before: AnswerCache<ProbeText, f64>,
    /// Its index among the shadow checkpoints, if only shadows need the checkpoint.
    index: Option<(Arc<ShadowCheckpoints>, u64)>,
}

impl ShadowOrigin {
    /// From a checkpoint that has other uses too.
    #[must_use]
    pub fn new(state: SharedPath, sampler: Arc<dyn SamplingBackend>) -> Arc<Self> {
        Arc::new(Self { state, sampler, before: AnswerCache::default(), index: None })
    }

    /// From a checkpoint that is kept under a path.
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

/// Checkpoints that were saved for shadows alone.
pub struct ShadowCheckpoints {
    service: Arc<dyn Service>,
    next_index: AtomicU64,
    content: Mutex<StoredCheckpoints>,
    /// Held while checkpoints are being deleted, so that the end waits for a sweep under way.
    sweep_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct StoredCheckpoints {
    states: BTreeMap<u64, SharedPath>,
    released: Vec<u64>,
}

impl ShadowCheckpoints {
    /// Holds no checkpoints of `service` yet.
    #[must_use]
    pub fn new(service: Arc<dyn Service>) -> Arc<Self> {
        Arc::new(Self {
            service,
            next_index: AtomicU64::new(0),
            content: Mutex::default(),
            sweep_lock: Default::default(),
        })
    }

    /// Weights whose checkpoint is deleted when they are dropped.
    #[must_use]
    pub fn keep(
        self: &Arc<Self>,
        state: Pending<String>,
        sampler: Arc<dyn SamplingBackend>,
    ) -> Arc<ShadowOrigin> {
        let state = state.shared();
        let index = self.next_index.fetch_add(1, Relaxed);
        self.lock().states.insert(index, state.clone());
        Arc::new(ShadowOrigin {
            state,
            sampler,
            before: AnswerCache::default(),
            index: Some((self.clone(), index)),
        })
    }

    /// Deletes the checkpoints that no measurement can request any more.
    pub async fn sweep(&self) {
        let _sweeping = self.sweep_lock.lock().await;
        let states: Vec<SharedPath> = {
            let content = &mut *self.lock();
            content.released.drain(..).filter_map(|index| content.states.remove(&index)).collect()
        };
        self.forget(states).await;
    }

    /// Deletes all checkpoints. For the end of the run, when no requests remain.
    pub async fn clear(&self) {
        let _sweeping = self.sweep_lock.lock().await;
        let states = std::mem::take(&mut self.lock().states).into_values().collect();
        self.forget(states).await;
    }

    async fn forget(&self, states: Vec<SharedPath>) {
        for state in states {
            // A failed save leaves nothing to delete; a failed deletion costs only storage.
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
