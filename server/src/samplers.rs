//! Samplers and the weights behind them.
//!
//! A sampler is an id for weights that do not change, except those of in-flight samplers: all of one model share weights
//! that each in-flight save replaces, also for samples in progress. Weights in memory are bounded in
//! bytes, and the least recently used are evicted first. Weights that were saved under a name are reloaded from disk on
//! demand; exported ones are lost, and requests for them fail.

use crate::api_error::ApiError;
use minds_core::service::{BackendError, SamplingBackend};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// Number of recent requests per sampler whose repetition is recognized.
const REMEMBERED: usize = 4096;

/// What a sampler samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SamplerSource {
    /// Weights of the base model, without an adapter.
    Base,
    /// Weights of a checkpoint, by its `tinker://` path.
    Saved(String),
    /// Exported weights, which only this sampler has and which are not on disk.
    Exported,
    /// The newest in-flight weights of this model, which are not on disk.
    InFlight(String),
}

/// All samplers, and the weights of theirs that are in memory.
pub(crate) struct SamplerRegistry {
    table: Mutex<SamplerTable>,
    max_bytes: usize,
    max_samplers: usize,
}

#[derive(Default)]
struct SamplerTable {
    samplers: HashMap<String, SamplerEntry>,
    /// By the path of the checkpoint, by the id of the sampler for exported ones, and by the id of the model for
    /// in-flight ones.
    weights: HashMap<String, CachedWeights>,
    bytes: usize,
}

struct SamplerEntry {
    session: String,
    source: SamplerSource,
    seen: BTreeMap<i64, String>,
}

struct CachedWeights {
    /// Empty while the weights are being loaded.
    weights: Arc<OnceCell<Arc<dyn SamplingBackend>>>,
    bytes: usize,
    used: Instant,
}

impl SamplerRegistry {
    pub(crate) fn new(max_bytes: usize, max_samplers: usize) -> Self {
        Self { table: Mutex::default(), max_bytes, max_samplers }
    }

    /// Adds a sampler. Adding it again changes nothing; an id that is in use for another source is refused.
    pub(crate) fn add(&self, id: &str, session: &str, source: SamplerSource) -> Result<(), BackendError> {
        let mut table = self.table.lock();
        match table.samplers.get(id) {
            Some(known) if known.source == source => Ok(()),
            Some(_) => Err(taken(id)),
            None => table.add(id, session, source, self.max_samplers),
        }
    }

    /// Refuses an id that is in use.
    pub(crate) fn check_free(&self, id: &str) -> Result<(), BackendError> {
        if self.table.lock().samplers.contains_key(id) { Err(taken(id)) } else { Ok(()) }
    }

    /// Adds a sampler with exported weights, which are not on disk.
    pub(crate) fn add_exported(
        &self,
        id: &str,
        session: &str,
        weights: Arc<dyn SamplingBackend>,
    ) -> Result<(), BackendError> {
        let mut table = self.table.lock();
        if table.samplers.contains_key(id) {
            return Err(taken(id));
        }
        table.add(id, session, SamplerSource::Exported, self.max_samplers)?;
        table.cache_weights(id, Arc::new(OnceCell::new_with(Some(weights))), self.max_bytes);
        Ok(())
    }

    /// Adds a sampler over the in-flight weights of a model, and replaces these weights.
    pub(crate) fn add_in_flight(
        &self,
        id: &str,
        session: &str,
        model: &str,
        weights: Arc<dyn SamplingBackend>,
    ) -> Result<(), BackendError> {
        let mut table = self.table.lock();
        if table.samplers.contains_key(id) {
            return Err(taken(id));
        }
        table.add(id, session, SamplerSource::InFlight(model.into()), self.max_samplers)?;
        table.cache_weights(model, Arc::new(OnceCell::new_with(Some(weights))), self.max_bytes);
        Ok(())
    }

    /// Keeps weights in memory, and evicts others if the limit is exceeded.
    pub(crate) fn cache_weights(&self, key: &str, weights: Arc<dyn SamplingBackend>) {
        let cell = Arc::new(OnceCell::new_with(Some(weights)));
        self.table.lock().cache_weights(key, cell, self.max_bytes);
    }

    /// What a sampler samples.
    pub(crate) fn source(&self, id: &str) -> Option<SamplerSource> {
        Some(self.table.lock().samplers.get(id)?.source.clone())
    }

    /// Id of the session that the sampler belongs to.
    pub(crate) fn session(&self, id: &str) -> Option<String> {
        Some(self.table.lock().samplers.get(id)?.session.clone())
    }

    /// Id of the request with this number: of the earlier one if it is known, otherwise of the one that `make` starts.
    pub(crate) fn once(
        &self,
        id: &str,
        number: i64,
        make: impl FnOnce() -> Result<String, ApiError>,
    ) -> Result<String, ApiError> {
        let mut table = self.table.lock();
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

    /// Exported weights by the id of their sampler, or in-flight ones by that of their model; `None` if they were evicted.
    pub(crate) fn exported(&self, id: &str) -> Option<Arc<dyn SamplingBackend>> {
        let mut table = self.table.lock();
        let cached = table.weights.get_mut(id)?;
        cached.used = Instant::now();
        cached.weights.get().cloned()
    }

    /// Weights of a checkpoint. If they are not in memory, `load` loads them, once for all concurrent callers.
    pub(crate) async fn saved<F>(
        &self,
        path: &str,
        load: impl FnOnce() -> F,
    ) -> Result<Arc<dyn SamplingBackend>, BackendError>
    where
        F: Future<Output = Result<Arc<dyn SamplingBackend>, BackendError>>,
    {
        let cell = {
            let mut table = self.table.lock();
            let cached = table.weights.entry(path.into()).or_insert_with(|| CachedWeights {
                weights: Arc::default(),
                bytes: 0,
                used: Instant::now(),
            });
            cached.used = Instant::now();
            cached.weights.clone()
        };
        let loaded = cell.get_or_try_init(load).await.cloned();
        let mut table = self.table.lock();
        // If the entry was dropped meanwhile, these weights may be outdated: the next caller loads them again.
        if table.weights.get(path).is_some_and(|cached| Arc::ptr_eq(&cached.weights, &cell)) {
            match &loaded {
                Ok(_) => table.cache_weights(path, cell, self.max_bytes),
                Err(_) => table.drop_weights(path),
            }
        }
        loaded
    }

    /// Drops cached weights whose checkpoint was deleted or overwritten.
    pub(crate) fn forget(&self, path: &str) {
        self.table.lock().drop_weights(path);
    }

    /// Removes the samplers of a session and their exported weights.
    pub(crate) fn end_session(&self, session: &str) {
        let mut table = self.table.lock();
        let ended: Vec<String> =
            table.samplers.iter().filter(|(_, s)| s.session == session).map(|(id, _)| id.clone()).collect();
        for id in ended {
            let source = table.samplers.remove(&id).map(|sampler| sampler.source);
            table.drop_weights(&id);
            // A model and its in-flight samplers belong to one session.
            if let Some(SamplerSource::InFlight(model)) = source {
                table.drop_weights(&model);
            }
        }
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

    fn cache_weights(
        &mut self,
        key: &str,
        weights: Arc<OnceCell<Arc<dyn SamplingBackend>>>,
        max_bytes: usize,
    ) {
        let bytes = weights.get().map_or(0, |weights| weights.weight_bytes());
        self.drop_weights(key);
        self.bytes += bytes;
        self.weights.insert(key.into(), CachedWeights { weights, bytes, used: Instant::now() });
        while self.bytes > max_bytes {
            // The newest weights stay, regardless of their size.
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
