//! One rollout, from the moment it is handed to a process until its result is there.
//!
//! All requests of the rollout, over the pipe or over HTTP, are answered here by the weights of its session, and
//! recorded. It ends within its limit, in which waits for the service do not count: one that ignores its
//! cancellation is killed. Dropping the future gives it up.

use super::clock::{ClockHold, RolloutClock};
use super::endpoint::ModelEndpoint;
use super::message::{GroupPhase, RolloutReport, ToWorker};
use super::record::CountedTurns;
use super::request::{CompletedRequest, Requester, WorkerRequestError};
use super::request_handler::RequestHandler;
use super::worker_process::{WorkerEvent, WorkerProcess};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use minds_core::environment::{Oracle, SessionError, SessionRollout};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use minds_core::service::SamplingBackend;
use serde_json::Value;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

/// How long a canceled rollout has for its clean-up.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum number of concurrent requests of a rollout.
const MAX_PENDING_REQUESTS: usize = 256;
/// Maximum number of requests of a rollout: time of the service is not counted, so an endless loop must end here.
const MAX_REQUESTS: usize = 16_384;
/// Extra time for a rollout whose process is stalled.
const STALL_EXTENSION: Duration = Duration::from_secs(5);
/// How long a rollout may ignore its cancellation before its process is killed.
const KILL_AFTER: Duration = Duration::from_secs(60);

/// A rollout and the process that runs it.
pub(super) struct WorkerRollout<'a> {
    pub name: String,
    pub group: &'a str,
    /// Number of rollouts of the group whose rewards are compared.
    pub members: usize,
    pub item: u64,
    pub worker: Arc<WorkerProcess>,
    pub endpoint: Arc<ModelEndpoint>,
    /// Time limits of the rollout and of its group's comparison.
    pub limits: RolloutLimits,
    pub fail_on_bad_reward: bool,
    /// The metric under which bad rewards are counted.
    pub bad_rewards: &'static str,
}

/// How much time a rollout has, and, where rewards compare the members of a group, the comparison.
#[derive(Clone)]
pub(super) struct RolloutLimits {
    pub limit: Duration,
    /// Started by the first member that is compared, and shared by all.
    pub comparison: Arc<OnceLock<Arc<RolloutClock>>>,
}

impl RolloutLimits {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, comparison: Arc::default() }
    }

    fn compared(&self) -> Arc<RolloutClock> {
        self.comparison.get_or_init(|| RolloutClock::start(self.limit)).clone()
    }
}

/// A response that the service owes to a rollout.
struct PendingResponse {
    worker: Arc<WorkerProcess>,
    _clock: ClockHold,
}

impl PendingResponse {
    fn new(worker: &Arc<WorkerProcess>, clock: &Arc<RolloutClock>) -> Self {
        worker.pending_responses.fetch_add(1, Relaxed);
        Self { worker: worker.clone(), _clock: clock.hold() }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        self.worker.pending_responses.fetch_sub(1, Relaxed);
    }
}

impl WorkerRollout<'_> {
    /// Runs the rollout to its end, within its time limit.
    pub(super) async fn run(
        self,
        mut handler: RequestHandler<'_>,
        permit: OwnedSemaphorePermit,
        sampler: &dyn SamplingBackend,
        oracle: &dyn Oracle,
    ) -> Result<SessionRollout, SessionError> {
        match self.report(&mut handler, permit, sampler, oracle).await {
            Ok(report) => self.conclude(&report, handler),
            Err(cause) => Err(SessionError { cause, turns: handler.into_turns() }),
        }
    }

    /// Runs the rollout until it is over, and returns what its process reports.
    async fn report(
        &self,
        handler: &mut RequestHandler<'_>,
        permit: OwnedSemaphorePermit,
        sampler: &dyn SamplingBackend,
        oracle: &dyn Oracle,
    ) -> Result<RolloutReport, RewardError> {
        let mut clock = RolloutClock::start(self.limits.limit);
        // Held while the rollout waits for the other members of its group.
        let mut waiting = None;
        let mut registration = RolloutRegistration::new(self);
        let sampling = handler.sampling();
        let url = self.endpoint.url(&self.name);
        let start = ToWorker::Run {
            rollout: &self.name,
            group: self.group,
            members: self.members,
            item: self.item,
            url: &url,
            sampling: &sampling,
        };
        self.worker.send(&start).await;
        let mut pending = FuturesUnordered::new();
        let mut requests = 0;
        let result = loop {
            tokio::select! {
                biased;
                () = clock.expired() => {
                    // Another rollout's blocking call may wait for the service, which does not count against this rollout.
                    if self.worker.is_stalled().await {
                        clock.extend(STALL_EXTENSION);
                        continue;
                    }
                    drop(pending);
                    let cancelled = Instant::now();
                    self.worker.try_send(&registration.cancellation());
                    let ended = timeout(GRACE, registration.ended()).await;
                    registration.over = true;
                    if ended.is_err() {
                        registration.give_up(cancelled, permit).await;
                    }
                    return Err(RewardError::Environment(format!(
                        "the rollout did not end within {} s, waits for the service not counted (`rollout_timeout_s`)",
                        self.limits.limit.as_secs()
                    )));
                }
                Some(answered) = pending.next(), if !pending.is_empty() => {
                    let CompletedRequest { requester, result } = answered;
                    let result = handler.record_result(result);
                    self.reply(requester, result).await;
                }
                event = registration.events.recv() => match event {
                    Some(WorkerEvent::Done(result)) => break Some(result),
                    Some(WorkerEvent::Phase(GroupPhase::Waits)) => waiting = Some(clock.hold()),
                    Some(WorkerEvent::Phase(GroupPhase::Compared)) => {
                        clock = self.limits.compared();
                        drop(waiting.take());
                    }
                    None => break None,
                    Some(WorkerEvent::Request(call, _)) if pending.len() >= MAX_PENDING_REQUESTS => {
                        let error = WorkerRequestError::Invalid(format!("{MAX_PENDING_REQUESTS} questions are under way already"));
                        self.reply(Requester::Worker(call), Err(error)).await;
                    }
                    Some(WorkerEvent::Request(call, _)) if requests >= MAX_REQUESTS => {
                        let error = WorkerRequestError::Invalid(format!("a rollout asks at most {MAX_REQUESTS} questions"));
                        self.reply(Requester::Worker(call), Err(error)).await;
                    }
                    Some(WorkerEvent::Request(call, op)) => match handler.serve(op, sampler, oracle) {
                        Ok(work) => {
                            requests += 1;
                            pending.push(self.hold_clock(&clock, handler.with_requester(Requester::Worker(call), work)));
                        }
                        Err(error) => self.reply(Requester::Worker(call), Err(error)).await,
                    },
                },
                Some((request, answer)) = registration.calls.recv(), if pending.len() < MAX_PENDING_REQUESTS => match handler.complete(request, sampler) {
                    Ok(work) => pending.push(self.hold_clock(&clock, handler.with_requester(Requester::Http(answer), work))),
                    Err(error) => drop(answer.send(Err(error))),
                },
            }
        };
        registration.over = true;
        drop(pending);
        let Some(result) = result else {
            return Err(RewardError::Environment(self.worker.exit_cause().await));
        };
        result.map_err(|error| handler.service_faults().reward_error(&error))
    }

    /// The rollout with the reward that its process reported.
    fn conclude(
        &self,
        report: &RolloutReport,
        mut handler: RequestHandler<'_>,
    ) -> Result<SessionRollout, SessionError> {
        let score = self.score(report, &handler);
        // A reward without counted turns is invalid, and the reason for that explains it.
        let counted = handler.counted(report.responses.as_deref()).map_err(RewardError::Environment);
        let CountedTurns { opening, turns } = match counted {
            Ok(counted) => counted,
            Err(cause) => return Err(SessionError { cause, turns: handler.into_turns() }),
        };
        match score.and_then(|score| report.check_count(turns.len()).map(|()| score)) {
            Ok(score) => Ok(SessionRollout { turns, opening: opening.into(), score }),
            Err(cause) => Err(SessionError { cause, turns }),
        }
    }

    /// Wraps a request so that the clock stops until it is done.
    fn hold_clock<'w>(
        &self,
        clock: &Arc<RolloutClock>,
        work: BoxFuture<'w, CompletedRequest>,
    ) -> BoxFuture<'w, CompletedRequest> {
        let pending_response = PendingResponse::new(&self.worker, clock);
        work.inspect(move |_| drop(pending_response)).boxed()
    }

    async fn reply(&self, requester: Requester, result: Result<Value, WorkerRequestError>) {
        match requester {
            Requester::Worker(call) => {
                let (ok, error) = match result {
                    Ok(value) => (Some(value), None),
                    Err(error) => (None, Some(error.to_string())),
                };
                self.worker.send(&ToWorker::Answer { call, ok, error }).await;
            }
            // The requester may be gone.
            Requester::Http(answer) => drop(answer.send(result)),
        }
    }

    /// The reward that was reported. Rewards that raised or are not finite numbers leave none, or count as 0 if the
    /// environment's own code is at fault and the options say so.
    fn score(&self, report: &RolloutReport, handler: &RequestHandler<'_>) -> Result<Score, RewardError> {
        for error in &report.errors {
            let cause = handler.service_faults().reward_error(error);
            if self.fail_on_bad_reward || !matches!(cause, RewardError::Environment(_)) {
                return Err(cause);
            }
            warn!(rollout = self.name, %cause, "a reward counts as 0");
        }
        let reward = Reward::new(report.reward.map_or(f32::NAN, |reward| reward as f32))
            .map_err(|error| RewardError::NotFinite(format!("{}: {error}", self.worker.name)))?;
        let mut metrics: Metrics = report.metrics.clone();
        metrics.insert(self.bad_rewards.into(), f64::from(report.coerced));
        Ok(Score { reward, metrics })
    }
}

/// A rollout's place in its process and at the endpoint, given back however it ends.
struct RolloutRegistration {
    name: String,
    group: String,
    worker: Arc<WorkerProcess>,
    endpoint: Arc<ModelEndpoint>,
    events: mpsc::Receiver<WorkerEvent>,
    calls: mpsc::Receiver<super::endpoint::EndpointRequest>,
    over: bool,
}

impl RolloutRegistration {
    fn new(rollout: &WorkerRollout<'_>) -> Self {
        Self {
            name: rollout.name.clone(),
            group: rollout.group.to_owned(),
            events: rollout.worker.register(&rollout.name),
            calls: rollout.endpoint.register(&rollout.name, rollout.worker.token()),
            worker: rollout.worker.clone(),
            endpoint: rollout.endpoint.clone(),
            over: false,
        }
    }

    fn cancellation(&self) -> ToWorker<'_> {
        ToWorker::Cancel { rollout: &self.name, group: &self.group }
    }

    /// Waits for the end of the rollout and ignores its other events.
    async fn ended(&mut self) {
        while !matches!(self.events.recv().await, Some(WorkerEvent::Done(_)) | None) {}
    }

    /// Keeps the permit of a rollout that ignores its cancellation until it ends or its process is killed.
    async fn give_up(mut self, cancelled: Instant, permit: OwnedSemaphorePermit) {
        debug!(rollout = self.name, "ignores its cancellation");
        let worker = self.worker.clone();
        let cause = format!("the rollout {} could not be cancelled", self.name);
        // A blocked event loop cannot run other rollouts.
        if worker.loop_stalled_since(cancelled).await {
            worker.kill(cause);
            return;
        }
        // A running event loop still serves other rollouts.
        worker.clone().spawn(async move {
            if tokio::time::timeout(KILL_AFTER, self.ended()).await.is_err() {
                worker.kill(cause);
            }
            drop(permit);
        });
    }
}

impl Drop for RolloutRegistration {
    fn drop(&mut self) {
        self.worker.unregister(&self.name);
        self.endpoint.unregister(&self.name);
        if !self.over {
            self.worker.try_send(&self.cancellation());
        }
    }
}
