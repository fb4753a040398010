//! Samplers and the weights behind them.
//!
//! A sampler is a name for weights that do not change. Weights in memory are bounded in bytes, and the least recently
//! used go first: those that were saved under a name come back from disk when they are asked for, the others are lost
//! and say so.

use super::refusal::Refusal;
use crate::local::LocalSampler;
use minds_core::backend::BackendError;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// Requests of a sampler whose repetition is recognised.
const REMEMBERED: usize = 4096;

/// What a sampler samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The base model.
    Base,
    /// Weights on disk.
    Saved(String),
    /// Weights that only this sampler has.
    Exported,
}

/// All samplers.
pub(super) struct Samplers {
    table: Mutex<Table>,
    max_bytes: usize,
    max_samplers: usize,
}

#[derive(Default)]
struct Table {
    samplers: HashMap<String, Sampler>,
    /// By path, or by the sampler that alone has them.
    weights: HashMap<String, Held>,
    bytes: usize,
}

struct Sampler {
    session: String,
    source: Source,
    seen: BTreeMap<i64, String>,
}

struct Held {
    /// Empty while they are being loaded.
    weights: Arc<OnceCell<LocalSampler>>,
    bytes: usize,
    used: Instant,
}

impl Samplers {
    pub(super) fn new(max_bytes: usize, max_samplers: usize) -> Self {
        Self { table: Mutex::default(), max_bytes, max_samplers }
    }

    /// Names a sampler. Doing so again changes nothing; a name that stands for another one already is refused.
    pub(super) fn add(&self, id: &str, session: &str, source: Source) -> Result<(), BackendError> {
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
        weights: LocalSampler,
    ) -> Result<(), BackendError> {
        let mut table = self.lock();
        if table.samplers.contains_key(id) {
            return Err(taken(id));
        }
        table.add(id, session, Source::Exported, self.max_samplers)?;
        table.hold(id, Arc::new(OnceCell::new_with(Some(weights))), self.max_bytes);
        Ok(())
    }

    /// Keeps weights at hand, and lets others go for them.
    pub(super) fn hold(&self, key: &str, weights: LocalSampler) {
        let cell = Arc::new(OnceCell::new_with(Some(weights)));
        self.lock().hold(key, cell, self.max_bytes);
    }

    /// What a sampler samples.
    pub(super) fn source(&self, id: &str) -> Option<Source> {
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
        make: impl FnOnce() -> Result<String, Refusal>,
    ) -> Result<String, Refusal> {
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
    pub(super) fn exported(&self, id: &str) -> Option<LocalSampler> {
        let mut table = self.lock();
        let held = table.weights.get_mut(id)?;
        held.used = Instant::now();
        held.weights.get().cloned()
    }

    /// The weights at a path; `load` gets them where they are not at hand, once for all who ask meanwhile.
    pub(super) async fn saved<F>(
        &self,
        path: &str,
        load: impl FnOnce() -> F,
    ) -> Result<LocalSampler, BackendError>
    where
        F: Future<Output = Result<LocalSampler, BackendError>>,
    {
        let cell = {
            let mut table = self.lock();
            let held = table.weights.entry(path.into()).or_insert_with(|| Held {
                weights: Arc::default(),
                bytes: 0,
                used: Instant::now(),
            });
            held.used = Instant::now();
            held.weights.clone()
        };
        let loaded = cell.get_or_try_init(load).await.cloned();
        let mut table = self.lock();
        // Weights that were forgotten meanwhile are those of before: whoever asks next loads anew.
        if table.weights.get(path).is_some_and(|held| Arc::ptr_eq(&held.weights, &cell)) {
            match &loaded {
                Ok(_) => table.hold(path, cell, self.max_bytes),
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

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn taken(id: &str) -> BackendError {
    BackendError::Rejected(format!("the number is taken: `{id}` is another sampler already"))
}

impl Table {
    fn add(&mut self, id: &str, session: &str, source: Source, most: usize) -> Result<(), BackendError> {
        if self.samplers.len() >= most {
            return Err(BackendError::Rejected(format!("there are {most} samplers already")));
        }
        self.samplers.insert(id.into(), Sampler { session: session.into(), source, seen: BTreeMap::new() });
        Ok(())
    }

    fn hold(&mut self, key: &str, weights: Arc<OnceCell<LocalSampler>>, max_bytes: usize) {
        let bytes = weights.get().map_or(0, LocalSampler::bytes);
        self.drop_weights(key);
        self.bytes += bytes;
        self.weights.insert(key.into(), Held { weights, bytes, used: Instant::now() });
        while self.bytes > max_bytes {
            // The newest stays, however large.
            let others = self.weights.iter().filter(|(k, held)| *k != key && held.bytes > 0);
            let Some(oldest) = others.min_by_key(|(_, held)| held.used).map(|(k, _)| k.clone()) else {
                break;
            };
            self.drop_weights(&oldest);
        }
    }

    fn drop_weights(&mut self, key: &str) {
        if let Some(held) = self.weights.remove(key) {
            self.bytes -= held.bytes;
        }
    }
}
