//! State that the samplers and adapters of a service share: clock, random draws, capacities, counts and saved weights.

use crate::latency::SimulatedLatency;
use crate::options::{FaultWindow, SimulatedFault, SimulationOptions};
use crate::request::{RequestProgress, ServiceRequest};
use futures::future::join_all;
use minds_core::ids::Token;
use minds_core::random::seeded_rng;
use minds_core::service::BackendError;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};

/// Purpose of a random draw. Each kind has its own random stream.
#[derive(Clone, Copy)]
pub enum DrawKind {
    Sample,
    SampleFault,
    Query,
    QueryFault,
    Pass,
    Step,
    Export,
    Save,
    Tokens,
}

/// Counts of a service's requests and results since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceCounts {
    /// Sample requests that arrived.
    pub sample_requests: usize,
    /// Samples drawn so far.
    pub samples: u64,
    /// Logprob queries that arrived.
    pub queries: usize,
    /// Requests to adapters that arrived.
    pub adapter_requests: usize,
    /// Total time in which adapters were busy, in seconds.
    pub training_s: f64,
    /// Adapters created so far.
    pub adapters: usize,
    /// Adapters that exist now.
    pub live_adapters: usize,
    /// Most adapters that existed at once.
    pub most_adapters: usize,
    /// Requests that failed because of a fault.
    pub failed: u64,
    /// Requests that got no response because of a fault.
    pub hung: u64,
    /// Samples with a logprob of NaN.
    pub not_finite: u64,
}

impl ServiceCounts {
    /// Requests of every kind that arrived.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.sample_requests + self.queries + self.adapter_requests
    }
}

pub struct SimulationState {
    pub options: SimulationOptions,
    pub counts: watch::Sender<ServiceCounts>,
    pub passes: watch::Sender<bool>,
    started: Instant,
    slots: Option<Semaphore>,
    /// Number of sample requests so far, by key.
    attempts: Mutex<HashMap<u64, u64>>,
    /// Number of optimizer steps of saved weights, by path.
    saved: Mutex<BTreeMap<String, u64>>,
}

impl SimulationState {
    pub fn new(options: SimulationOptions) -> Self {
        let slots = options.sampling_slots.map(|slots| slots.get().min(Semaphore::MAX_PERMITS));
        Self {
            counts: watch::Sender::default(),
            passes: watch::Sender::new(options.answers_passes),
            started: Instant::now(),
            slots: slots.map(Semaphore::new),
            attempts: Mutex::default(),
            saved: Mutex::default(),
            options,
        }
    }

    /// Logprob of every token under weights after `version` optimizer steps.
    pub fn logprob(version: u64) -> f32 {
        -1.0 / (version + 1) as f32
    }

    pub fn saved(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of optimizer steps of the weights under a path.
    pub fn find(&self, path: &str) -> Result<u64, BackendError> {
        let found = self.saved().get(path).copied();
        found.ok_or_else(|| BackendError::Rejected(format!("nothing is kept under {path}")))
    }

    /// Saves weights of a version under an unused address.
    pub fn keep(&self, address: Result<String, BackendError>, version: u64) -> Result<String, BackendError> {
        let address = address?;
        let mut saved = self.saved();
        if saved.contains_key(&address) {
            return Err(BackendError::Rejected(format!("{address} is taken")));
        }
        saved.insert(address.clone(), version);
        Ok(address)
    }

    /// Rejects tokens outside the vocabulary, and sequences longer than the context.
    pub fn check_tokens(&self, tokens: &[Token]) -> Result<(), BackendError> {
        let info = &self.options.info;
        if tokens.len() > info.context {
            let problem = format!("{} tokens exceed the context of {}", tokens.len(), info.context);
            return Err(BackendError::Rejected(problem));
        }
        match tokens.iter().find(|token| **token as usize >= info.vocab) {
            Some(token) => Err(BackendError::Rejected(format!("there is no token {token}"))),
            None => Ok(()),
        }
    }

    /// Changes the counts and returns the result of `change`.
    pub fn count<T>(&self, change: impl FnOnce(&mut ServiceCounts) -> T) -> T {
        let mut result = None;
        self.counts.send_modify(|counts| result = Some(change(counts)));
        result.expect("`send_modify` calls its argument")
    }

    /// Counts and reports a request that has arrived. Returns the number of earlier requests of its kind.
    pub fn arrived(&self, request: ServiceRequest<'_>) -> usize {
        let before = self.count(|counts| {
            let number = match request {
                ServiceRequest::Sample(..) => &mut counts.sample_requests,
                ServiceRequest::Logprobs(..) => &mut counts.queries,
                ServiceRequest::Adapter(..) => &mut counts.adapter_requests,
            };
            *number += 1;
            *number - 1
        });
        self.report(request, RequestProgress::Arrived);
        before
    }

    pub fn report(&self, request: ServiceRequest<'_>, progress: RequestProgress) {
        (self.options.observer)(request, progress);
    }

    /// Counts and reports a request that fails because of a fault.
    pub fn fail<T>(&self, request: ServiceRequest<'_>) -> Result<T, BackendError> {
        self.count(|counts| counts.failed += 1);
        self.report(request, RequestProgress::Failed);
        Err(BackendError::Unavailable("scripted to fail".into()))
    }

    /// Key of a sample request, and the number of earlier requests with this key.
    pub fn attempt(&self, prompt: &[Token], seed: Option<u64>) -> (u64, u64) {
        // FNV-1a gives the same hash in every process.
        let words = prompt.iter().copied().map(u64::from).chain(seed);
        let key =
            words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| (hash ^ word).wrapping_mul(0x100_0000_01b3));
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let attempts = attempts.entry(key).or_default();
        *attempts += 1;
        (key, *attempts - 1)
    }

    fn key(&self, kind: DrawKind, case: [u64; 2]) -> [u64; 4] {
        [self.options.seed, kind as u64, case[0], case[1]]
    }

    /// The random stream for a kind and a case.
    pub fn chance(&self, kind: DrawKind, case: [u64; 2]) -> impl rand::Rng + use<> {
        seeded_rng(self.key(kind, case))
    }

    /// Draws a latency in seconds, multiplied by [`Self::slowness`].
    pub fn draw(&self, latency: &SimulatedLatency, kind: DrawKind, case: [u64; 2]) -> f64 {
        self.slowness() * latency.draw(self.key(kind, case))
    }

    /// Factor by which requests that start now take longer; 1 without a fault.
    pub fn slowness(&self) -> f64 {
        match self.fault() {
            Some((SimulatedFault::Slow(factor), _)) => factor,
            _ => 1.0,
        }
    }

    /// The current fault and its remaining time.
    fn fault(&self) -> Option<(SimulatedFault, Duration)> {
        let now = self.started.elapsed();
        let covers = |window: &&FaultWindow| (window.at..window.until).contains(&now);
        let window = self.options.faults.iter().find(covers)?;
        Some((window.fault, window.until - now))
    }

    /// Waits until no [`SimulatedFault::Away`] window is active.
    pub async fn until_back(&self) {
        while let Some((SimulatedFault::Away, left)) = self.fault() {
            sleep(left).await;
        }
    }

    /// Occupies one sampling slot for each of these times, and waits for all of them. Returns when each was drawn.
    pub async fn occupy(&self, times: impl Iterator<Item = Duration>) -> Vec<DrawTime> {
        let now = |time| DrawTime { begun: Instant::now(), time };
        let Some(slots) = &self.slots else {
            let drawn: Vec<DrawTime> = times.map(now).collect();
            wait(drawn.iter().map(|drawn| drawn.time).max().unwrap_or_default()).await;
            return drawn;
        };
        join_all(times.map(async |time| {
            let _slot = slots.acquire().await.expect("the slots are never closed");
            let drawn = now(time);
            wait(time).await;
            drawn
        }))
        .await
    }
}

/// When a sample was drawn.
#[derive(Clone, Copy)]
pub struct DrawTime {
    begun: Instant,
    time: Duration,
}

impl DrawTime {
    /// When one of `count` tokens was drawn.
    pub fn at(&self, token: usize, count: usize) -> Instant {
        self.begun + self.time.mul_f64(token as f64 / count as f64)
    }

    /// How many tokens are drawn at this rate.
    pub fn tokens(&self, per_second: f64) -> usize {
        (self.time.as_secs_f64() * per_second).round() as usize
    }
}

/// Waits for this time. Returns immediately for zero, which a timer would round up to a millisecond.
pub async fn wait(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}
