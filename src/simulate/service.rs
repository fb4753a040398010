//! The scripted service: concurrent samples, an adapter that runs its requests one after the other, and faults.

use super::event_log::EventLog;
use crate::config::latency::SimulatedLatency;
use crate::config::simulate::{SimulatePlan, SimulatedFault};
use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use minds_core::datum::Datum;
use minds_core::ids::{PolicyVersion, RolloutId, Token};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::random::seeded_rng;
use minds_core::reward::RewardError;
use minds_core::sampling::{Completion, SampleRequest, SampleResponse, StopReason};
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, TrainingBackend,
};
use rand::RngExt as _;
use serde_json::json;
use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::sleep;

/// Purpose of a random draw: each kind has its own random stream.
#[derive(Clone, Copy)]
enum DrawKind {
    Sample,
    SampleFault,
    Query,
    QueryFault,
    Pass,
    Step,
    Export,
    Save,
    Reward,
    RewardFault,
    Value,
}

/// Number of scripted faults, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Requests that returned an error.
    pub failed: u64,
    /// Requests that never got a response.
    pub hung: u64,
    /// Samples with a logprob of NaN.
    pub not_finite: u64,
    /// Rewards that failed for good.
    pub missing: u64,
}

/// Work done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SimulatedWork {
    /// Number of samples drawn so far.
    pub samples: u64,
    /// Virtual seconds in which the adapter was busy.
    pub training_s: f64,
    /// Number of faults by kind.
    pub faults: FaultCounts,
}

/// The scripted service, which also sets the time and the value of rewards.
pub struct SimulatedService {
    plan: SimulatePlan,
    seed: u64,
    log: EventLog,
    slots: Arc<Semaphore>,
    /// Number of attempts per key: a retry has its own random draws.
    tries: Mutex<HashMap<(u64, u64), u64>>,
    queries: AtomicU64,
    done: Mutex<SimulatedWork>,
}

impl SimulatedService {
    /// Creates an idle service from its script.
    pub fn new(plan: SimulatePlan, seed: u64, log: EventLog) -> Self {
        let slots = plan
            .sampling_slots
            .map_or(Semaphore::MAX_PERMITS, |slots| slots.get().min(Semaphore::MAX_PERMITS));
        let slots = Arc::new(Semaphore::new(slots));
        let tries = Mutex::default();
        let queries = AtomicU64::new(0);
        Self { plan, seed, log, slots, tries, queries, done: Mutex::default() }
    }

    /// The script that the service follows.
    pub fn plan(&self) -> &SimulatePlan {
        &self.plan
    }

    /// The log that receives its events.
    pub fn log(&self) -> &EventLog {
        &self.log
    }

    /// Work done so far.
    pub fn done(&self) -> SimulatedWork {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sampler with the weights of this policy version.
    pub fn sampler(self: &Arc<Self>, version: PolicyVersion) -> Arc<dyn SamplingBackend> {
        Arc::new(SimulatedSampler { service: self.clone(), version })
    }

    /// Waits for the scripted time of a reward; fails if the script says so.
    pub async fn reward(&self, id: RolloutId) -> Result<(), RewardError> {
        let attempt = self.count_attempt(id.group.0, u64::from(id.member));
        let case = [id.group.0, u64::from(id.member) << 16 | attempt];
        sleep(seconds(self.draw(&self.plan.reward, DrawKind::Reward, case))).await;
        if self.chance(DrawKind::RewardFault, case) < self.plan.missing {
            self.note(|done| done.faults.missing += 1);
            self.log.record("reward_missing", [("group", id.group.0.into()), ("member", id.member.into())]);
            return Err(RewardError::Environment("scripted to be missing".into()));
        }
        Ok(())
    }

    /// A reward in [0, 1).
    pub fn value(&self, id: RolloutId) -> f32 {
        self.chance(DrawKind::Value, [id.group.0, u64::from(id.member)]) as f32
    }

    fn note(&self, change: impl FnOnce(&mut SimulatedWork)) {
        change(&mut self.done.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts an attempt at this request, and returns the number of earlier ones.
    fn count_attempt(&self, request: u64, member: u64) -> u64 {
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        let tries = tries.entry((request, member)).or_default();
        *tries += 1;
        *tries - 1
    }

    fn key(&self, kind: DrawKind, case: [u64; 2]) -> [u64; 4] {
        [self.seed, kind as u64, case[0], case[1]]
    }

    fn chance(&self, kind: DrawKind, case: [u64; 2]) -> f64 {
        seeded_rng(self.key(kind, case)).random()
    }

    /// Draws a latency in seconds, longer while the service is slow.
    fn draw(&self, latency: &SimulatedLatency, kind: DrawKind, case: [u64; 2]) -> f64 {
        let factor = match self.fault() {
            Some((SimulatedFault::Slow(factor), _)) => factor,
            _ => 1.0,
        };
        factor * latency.draw(self.key(kind, case))
    }

    /// The current fault and its remaining time.
    fn fault(&self) -> Option<(SimulatedFault, Duration)> {
        let now = seconds(self.log.elapsed());
        self.plan.fault(now).map(|window| (window.fault, window.until - now))
    }

    /// Waits until the service is no longer away.
    async fn back(&self) {
        while let Some((SimulatedFault::Away, left)) = self.fault() {
            sleep(left).await;
        }
    }

    fn failed<T>(&self, what: &str) -> Result<T, BackendError> {
        self.note(|done| done.faults.failed += 1);
        self.log.record("failed", [("what", what.into())]);
        Err(BackendError::Unavailable("scripted to fail".into()))
    }

    /// Holds a permit for `time` seconds.
    async fn occupy(&self, time: f64) {
        let _place = self.slots.acquire().await.expect("the places are never closed");
        sleep(seconds(time)).await;
    }
}

struct SimulatedSampler {
    service: Arc<SimulatedService>,
    version: PolicyVersion,
}

#[async_trait]
impl SamplingBackend for SimulatedSampler {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let service = &*self.service;
        let seed = request.params.seed.unwrap_or_default();
        let attempt = service.count_attempt(seed, u64::MAX);
        let case = |n: usize| [seed, (n as u64) << 16 | attempt];
        let told = [
            ("version", self.version.0.into()),
            ("seed", seed.into()),
            ("samples", request.num_samples.into()),
        ];
        service.log.record("sample", told.clone());
        service.back().await;
        let mut chance = seeded_rng(service.key(DrawKind::SampleFault, case(0)));
        if chance.random::<f64>() < service.plan.hangs {
            service.note(|done| done.faults.hung += 1);
            service.log.record("hung", told);
            return pending().await;
        }
        let times =
            (0..request.num_samples).map(|n| service.draw(&service.plan.sample, DrawKind::Sample, case(n)));
        join_all(times.map(|time| service.occupy(time))).await;
        service.back().await;
        if chance.random::<f64>() < service.plan.failures {
            return service.failed("sample");
        }
        let mut sequences = Vec::with_capacity(request.num_samples);
        for _ in 0..request.num_samples {
            let broken = chance.random::<f64>() < service.plan.not_finite;
            service.note(|done| {
                done.samples += 1;
                done.faults.not_finite += u64::from(broken);
            });
            let first = if broken { f32::NAN } else { -0.5 };
            let tokens = vec![Token::from(b'o'), Token::from(b'k')];
            sequences.push(Completion {
                tokens,
                logprobs: vec![first, -0.5],
                stop: StopReason::Stop,
                topk: None,
            });
        }
        service.log.record("sampled", told);
        Ok(SampleResponse {
            sequences,
            prompt_logprobs: None,
            topk_prompt_logprobs: None,
            cached_prompt_tokens: 0,
        })
    }

    async fn logprobs(&self, tokens: Arc<[Token]>) -> Result<Vec<Option<f32>>, BackendError> {
        let service = &*self.service;
        let case = [service.queries.fetch_add(1, Relaxed), 0];
        service.back().await;
        service.occupy(service.draw(&service.plan.query, DrawKind::Query, case)).await;
        service.back().await;
        if service.chance(DrawKind::QueryFault, case) < service.plan.failures {
            return service.failed("logprobs");
        }
        Ok((0..tokens.len()).map(|at| (at > 0).then_some(-0.5)).collect())
    }
}

/// The simulated adapter in training.
pub struct SimulatedTraining {
    service: Arc<SimulatedService>,
    /// Number of rollouts in a whole batch.
    whole: usize,
    /// Number of requests so far.
    count: AtomicU64,
    steps: Arc<AtomicU64>,
    jobs: mpsc::UnboundedSender<BoxFuture<'static, ()>>,
}

impl SimulatedTraining {
    /// Starts an adapter whose batches have `whole` rollouts. Must be called on a runtime.
    pub fn start(service: Arc<SimulatedService>, whole: usize) -> Self {
        let (jobs, mut queue) = mpsc::unbounded_channel::<BoxFuture<'static, ()>>();
        tokio::spawn(async move {
            while let Some(job) = queue.recv().await {
                job.await;
            }
        });
        Self { service, whole, count: AtomicU64::new(0), steps: Arc::default(), jobs }
    }

    /// Queues a request behind earlier ones; it takes `share` of the scripted time of its kind.
    fn queue<T: Send + 'static>(
        &self,
        kind: DrawKind,
        share: f64,
        answer: impl FnOnce(&Arc<SimulatedService>) -> T + Send + 'static,
    ) -> Pending<T> {
        let service = self.service.clone();
        let number = self.count.fetch_add(1, Relaxed);
        let (sender, result) = oneshot::channel();
        let job = async move {
            let plan = &service.plan;
            let (what, latency) = match kind {
                DrawKind::Step => ("optim_step", &plan.optim_step),
                DrawKind::Export => ("export", &plan.export),
                DrawKind::Save => ("save_state", &plan.save),
                _ => ("forward_backward", &plan.forward_backward),
            };
            service.back().await;
            let time = share * service.draw(latency, kind, [number, 0]);
            sleep(seconds(time)).await;
            service.note(|done| done.training_s += time);
            service.back().await;
            service.log.record(what, [("seconds", json!(time))]);
            // The caller may have dropped the receiver.
            drop(sender.send(answer(&service)));
        };
        // The queue lives as long as `self`.
        drop(self.jobs.send(job.boxed()));
        let gone = || BackendError::Lost("the simulation is over".into());
        async move { result.await.map_err(|_| gone()) }.boxed()
    }
}

impl TrainingBackend for SimulatedTraining {
    fn forward(&self, _: Vec<Datum>, _: Loss) -> Pending<ForwardOutput> {
        std::future::ready(Err(BackendError::Unsupported("a pass without gradients".into()))).boxed()
    }

    fn forward_backward(&self, data: Vec<Datum>, _: Loss) -> Pending<ForwardOutput> {
        let share = data.len() as f64 / self.whole as f64;
        self.queue(DrawKind::Pass, share, move |_| ForwardOutput {
            logprobs: data.iter().map(|datum| vec![-0.5; datum.len()]).collect(),
            metrics: [("loss:sum".into(), 0.0)].into(),
        })
    }

    fn optim_step(&self, _: AdamParams) -> Pending<OptimStep> {
        let steps = self.steps.clone();
        self.queue(DrawKind::Step, 1.0, move |_| {
            steps.fetch_add(1, Relaxed);
            OptimStep::default()
        })
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        let path = format!("simulated/{name}");
        self.queue(DrawKind::Save, 1.0, move |_| path)
    }

    fn load_state(&self, path: &str, _: bool) -> Pending<()> {
        let refusal = BackendError::Rejected(format!("nothing is kept under {path}"));
        std::future::ready(Err(refusal)).boxed()
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        let steps = self.steps.clone();
        let path = name.map(|name| format!("simulated/sampler/{name}"));
        self.queue(DrawKind::Export, 1.0, move |service| Export {
            sampler: service.sampler(PolicyVersion(steps.load(Relaxed))),
            path,
        })
    }
}

fn seconds(time: f64) -> Duration {
    Duration::from_secs_f64(time)
}
