//! Samplers and the weights behind them.
//!
//! A sampler is a name for weights that do not change. Weights in memory are bounded in bytes, and the least recently
//! used go first: those that were saved under a name come back from disk when they are asked for, the others are lost
//! and say so.

use super::api_error::ApiError;
use crate::embedded::EmbeddedSampler;
use minds_core::service::BackendError;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// Requests of a sampler whose repetition is recognised.
const REMEMBERED: usize = 4096;

/// What a sampler samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SamplerSource {
    /// The base model.
    Base,
    /// Weights on disk.
    Saved(String),
    /// Weights that only this sampler has.
    Exported,
}

/// All samplers.
pub(super) struct SamplerRegistry {
    table: Mutex<SamplerTable>,
    max_bytes: usize,
    max_samplers: usize,
}

#[derive(Default)]
struct SamplerTable {
    samplers: HashMap<String, SamplerEntry>,
    /// By path, or by the sampler that alone has them.
    weights: HashMap<String, CachedWeights>,
    bytes: usize,
}

struct SamplerEntry {
    session: String,
    source: SamplerSource,
    seen: BTreeMap<i64, String>,
}

struct CachedWeights {
    /// Empty while they are being loaded.
    weights: Arc<OnceCell<EmbeddedSampler>>,
    bytes: usize,
    used: Instant,
}

impl SamplerRegistry {
    pub(super) fn new(max_bytes: usize, max_samplers: usize) -> Self {
        Self { table: Mutex::default(), max_bytes, max_samplers }
    }

    /// Names a sampler. Doing so again changes nothing; a name that stands for another one already is refused.
    pub(super) fn add(&self, id: &str, session: &str, source: SamplerSource) -> Result<(), BackendError> {
        let mut table = self.lock();
        match table.samplers.get(id) {
            Some(known) if known.source == source => Ok(()),
            Some(_) => Err(taken(id)),
            None => table.add(id, session, source, self.max_samplers),
        }
    }

    /// Names a sampler over weights that are nowhere else.
    pub(super) fn add_exported(
        &self,
        id: &str,
        session: &str,
        weights: EmbeddedSampler,
    ) -> Result<(), BackendError> {
        let mut table = self.lock();
        if table.samplers.contains_key(id) {
            return Err(taken(id));
        }
        table.add(id, session, SamplerSource::Exported, self.max_samplers)?;
        table.cache_weights(id, Arc::new(OnceCell::new_with(Some(weights))), self.max_bytes);
        Ok(())
    }

    /// Keeps weights at hand, and lets others go for them.
    pub(super) fn cache_weights(&self, key: &str, weights: EmbeddedSampler) {
        let cell = Arc::new(OnceCell::new_with(Some(weights)));
        self.lock().cache_weights(key, cell, self.max_bytes);
    }

    /// What a sampler samples.
    pub(super) fn source(&self, id: &str) -> Option<SamplerSource> {
        Some(self.lock().samplers.get(id)?.source.clone())
    }

    /// The session that a sampler belongs to.
    pub(super) fn session(&self, id: &str) -> Option<String> {
        Some(self.lock().samplers.get(id)?.session.clone())
    }

    /// The request with this number, if it was made already; otherwise makes it.
    pub(super) fn once(
        &self,
        id: &str,
        number: i64,
        make: impl FnOnce() -> Result<String, ApiError>,
    ) -> Result<String, ApiError> {
        let mut table = self.lock();
        let Some(sampler) = table.samplers.get_mut(id) else { return make() };
        if let Some(request) = sampler.seen.get(&number) {
            return Ok(request.clone());
        }
        let request = make()?;
        sampler.seen.insert(number, request.clone());
        if sampler.seen.len() > REMEMBERED {
            sampler.seen.pop_first();
        }
        Ok(request)
    }

    /// The weights at hand under a sampler's own name.
    pub(super) fn exported(&self, id: &str) -> Option<EmbeddedSampler> {
        let mut table = self.lock();
        let cached = table.weights.get_mut(id)?;
        cached.used = Instant::now();
        cached.weights.get().cloned()
    }

    /// The weights at a path; `load` gets them where they are not at hand, once for all who ask meanwhile.
    pub(super) async fn saved<F>(
        &self,
        path: &str,
        load: impl FnOnce() -> F,
    ) -> Result<EmbeddedSampler, BackendError>
    where
        F: Future<Output = Result<EmbeddedSampler, BackendError>>,
    {
        let cell = {
            let mut table = self.lock();
            let cached = table.weights.entry(path.into()).or_insert_with(|| CachedWeights {
                weights: Arc::default(),
                bytes: 0,
                used: Instant::now(),
            });
            cached.used = Instant::now();
            cached.weights.clone()
        };
        let loaded = cell.get_or_try_init(load).await.cloned();
        let mut table = self.lock();
        // Weights that were forgotten meanwhile are those of before: whoever asks next loads anew.
        if table.weights.get(path).is_some_and(|cached| Arc::ptr_eq(&cached.weights, &cell)) {
            match &loaded {
                Ok(_) => table.cache_weights(path, cell, self.max_bytes),
                Err(_) => table.drop_weights(path),
            }
        }
        loaded
    }

    /// Forgets weights that are not on disk any more, or not those.
    pub(super) fn forget(&self, path: &str) {
        self.lock().drop_weights(path);
    }

    /// Ends the samplers of a session.
    pub(super) fn end_session(&self, session: &str) {
        let mut table = self.lock();
        let ended: Vec<String> =
            table.samplers.iter().filter(|(_, s)| s.session == session).map(|(id, _)| id.clone()).collect();
        for id in ended {
            table.samplers.remove(&id);
            table.drop_weights(&id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, SamplerTable> {
        // Nothing panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn taken(id: &str) -> BackendError {
    BackendError::Rejected(format!("the number is taken: `{id}` is another sampler already"))
}

impl SamplerTable {
    fn add(
        &mut self,
        id: &str,
        session: &str,
        source: SamplerSource,
        most: usize,
    ) -> Result<(), BackendError> {
        if self.samplers.len() >= most {
            return Err(BackendError::Rejected(format!("there are {most} samplers already")));
        }
        self.samplers
            .insert(id.into(), SamplerEntry { session: session.into(), source, seen: BTreeMap::new() });
        Ok(())
    }

    fn cache_weights(&mut self, key: &str, weights: Arc<OnceCell<EmbeddedSampler>>, max_bytes: usize) {
        let bytes = weights.get().map_or(0, EmbeddedSampler::bytes);
        self.drop_weights(key);
        self.bytes += bytes;
        self.weights.insert(key.into(), CachedWeights { weights, bytes, used: Instant::now() });
        while self.bytes > max_bytes {
            // The newest stays, however large.
            let others = self.weights.iter().filter(|(k, cached)| *k != key && cached.bytes > 0);
            let Some(oldest) = others.min_by_key(|(_, cached)| cached.used).map(|(k, _)| k.clone()) else {
                break;
            };
            self.drop_weights(&oldest);
        }
    }

    fn drop_weights(&mut self, key: &str) {
        if let Some(cached) = self.weights.remove(key) {
            self.bytes -= cached.bytes;
        }
    }
}
