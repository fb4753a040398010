//! State that the samplers and adapters of a service share: clock, random draws, capacities, counts and saved weights.

use crate::latency::SimulatedLatency;
use crate::numbered::{SampleNumbers, SampleRecord};
use crate::options::{FaultWindow, SimulatedFault, SimulationOptions};
use crate::request::{RequestProgress, ServiceRequest};
use crate::saved::SavedWeights;
use futures::future::join_all;
use minds_core::ids::Token;
use minds_core::random::seeded_rng;
use minds_core::sampling::Stop;
use minds_core::service::BackendError;
use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep};

/// Longest time that a request takes, in seconds: 30 years. Factors and tails could make times that no clock has.
pub const LONGEST: f64 = 1e9;

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
    /// Held by the adapter that works, if only one may.
    one_queue: Option<Semaphore>,
    /// Number of samples requested so far, by key.
    requested: Mutex<HashMap<u64, u64>>,
    pub numbers: SampleNumbers,
    /// What is known of each numbered sample.
    records: Mutex<Vec<SampleRecord>>,
    /// Saved weights, by path.
    saved: Mutex<BTreeMap<String, SavedWeights>>,
}

impl SimulationState {
    pub fn new(options: SimulationOptions) -> Self {
        let slots = options.sampling_slots.map(|slots| slots.get().min(Semaphore::MAX_PERMITS));
        Self {
            counts: watch::Sender::default(),
            passes: watch::Sender::new(options.answers_passes),
            started: Instant::now(),
            slots: slots.map(Semaphore::new),
            one_queue: options.one_queue.then(|| Semaphore::new(1)),
            requested: Mutex::default(),
            numbers: SampleNumbers::new(options.alphabet.clone()),
            records: Mutex::default(),
            saved: Mutex::default(),
            options,
        }
    }

    /// Logprob of every token under weights after `version` optimizer steps.
    pub fn logprob(version: u64) -> f32 {
        -1.0 / (version + 1) as f32
    }

    pub fn saved(&self) -> MutexGuard<'_, BTreeMap<String, SavedWeights>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn records(&self) -> MutexGuard<'_, Vec<SampleRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The weights under a path.
    pub fn find(&self, path: &str) -> Result<SavedWeights, BackendError> {
        let found = self.saved().get(path).cloned();
        found.ok_or_else(|| BackendError::Rejected(format!("nothing is kept under {path}")))
    }

    /// Saves weights under an address, which must be unused unless they may `overwrite` others.
    pub fn keep(
        &self,
        address: Result<String, BackendError>,
        weights: SavedWeights,
        overwrite: bool,
    ) -> Result<String, BackendError> {
        let address = address?;
        let mut saved = self.saved();
        if saved.contains_key(&address) && !overwrite {
            return Err(BackendError::Rejected(format!("{address} is taken")));
        }
        saved.insert(address.clone(), weights);
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

    /// Rejects stop tokens that numbered samples consist of: these do not end there.
    pub fn check_stops(&self, stop: &Stop) -> Result<(), BackendError> {
        let (Stop::Tokens(stops), true) = (stop, self.options.numbered) else { return Ok(()) };
        let alphabet = &self.options.alphabet;
        match stops.iter().find(|stop| alphabet.contains(stop)) {
            Some(stop) => Err(BackendError::Rejected(format!(
                "{stop} is a stop token of the request and one of the tokens that samples of the simulated service \
                 consist of, {} to {}: set `alphabet` in its file to tokens with no stop token between them",
                alphabet.start,
                alphabet.end - 1
            ))),
            None => Ok(()),
        }
    }

    /// Changes the counts and returns the result of `change`.
    pub fn count<T>(&self, change: impl FnOnce(&mut ServiceCounts) -> T) -> T {
        let mut result = None;
        self.counts.send_modify(|counts| result = Some(change(counts)));
        result.expect("`send_modify` calls its argument")
    }

    /// Counts and reports a request that has arrived, as [`Self::arrived`] does. Its end is reported too, even if the
    /// caller drops the request.
    pub fn accept<'a>(&'a self, request: ServiceRequest<'a>) -> (usize, OpenRequest<'a>) {
        (self.arrived(request), OpenRequest { state: self, request, ended: false })
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

    /// Key of a request for `samples` samples, and the number of samples requested with this key before.
    pub fn key_of_samples(&self, prompt: &[Token], seed: Option<u64>, samples: usize) -> (u64, u64) {
        let seed = seed.filter(|_| !self.options.numbered);
        // FNV-1a gives the same hash in every process.
        let words = prompt.iter().copied().map(u64::from).chain(seed);
        let key =
            words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| (hash ^ word).wrapping_mul(0x100_0000_01b3));
        let mut requested = self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        let requested = requested.entry(key).or_default();
        *requested += samples as u64;
        (key, *requested - samples as u64)
    }

    fn key(&self, kind: DrawKind, case: [u64; 2]) -> [u64; 4] {
        [self.options.seed, kind as u64, case[0], case[1]]
    }

    /// The random stream for a kind and a case.
    pub fn chance(&self, kind: DrawKind, case: [u64; 2]) -> impl rand::Rng + use<> {
        seeded_rng(self.key(kind, case))
    }

    /// Draws a latency in seconds, multiplied by [`Self::slowness`] and at most [`LONGEST`].
    pub fn draw(&self, latency: &SimulatedLatency, kind: DrawKind, case: [u64; 2]) -> f64 {
        (self.slowness() * latency.draw(self.key(kind, case))).min(LONGEST)
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

    /// Waits until an adapter may start to work, and holds its place.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let turn = match &self.one_queue {
            Some(queue) => Some(queue.acquire().await.expect("the queue is never closed")),
            None => None,
        };
        let cycle = self.options.cycle.as_nanos();
        if cycle > 0 {
            let late = self.started.elapsed().as_nanos() % cycle;
            wait(Duration::from_nanos(((cycle - late) % cycle) as u64)).await;
        }
        turn
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

/// A request that has arrived. Dropping it reports that the caller gave it up.
pub struct OpenRequest<'a> {
    state: &'a SimulationState,
    request: ServiceRequest<'a>,
    ended: bool,
}

impl OpenRequest<'_> {
    /// Reports that the request gets no response, and waits forever.
    pub async fn hang<T>(self) -> T {
        self.state.count(|counts| counts.hung += 1);
        self.state.report(self.request, RequestProgress::Hung);
        // The request stays open until the caller drops this future.
        let _open = self;
        pending().await
    }

    /// Counts and reports a failure because of a fault.
    pub fn fail<T>(self) -> Result<T, BackendError> {
        self.state.count(|counts| counts.failed += 1);
        self.end(RequestProgress::Failed);
        Err(BackendError::Unavailable("scripted to fail".into()))
    }

    /// Reports progress that does not end the request.
    pub fn progress(&self, progress: RequestProgress) {
        self.state.report(self.request, progress);
    }

    /// Reports the end of the request.
    pub fn end(mut self, progress: RequestProgress) {
        self.ended = true;
        self.state.report(self.request, progress);
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.state.report(self.request, RequestProgress::Cancelled);
        }
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
