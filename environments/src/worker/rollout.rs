//! One rollout, from the moment it is handed to a process until its result is there.
//!
//! All that the rollout asks, over the pipe or over HTTP, is answered and taken down here, by the weights of its seat.
//! It ends within its limit, in which waits for the service do not count: what does not listen to its cancellation is killed. Dropping the future gives it up.

use super::ask::{Answered, Asker, Refusal};
use super::clock::{ClockHold, RolloutClock};
use super::desk::Desk;
use super::endpoint::Endpoint;
use super::message::{Phase, Report, ToHost};
use super::record::Counted;
use super::unreachable;
use super::worker::{Event, Worker};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use minds_core::backend::SamplingBackend;
use minds_core::environment::{Oracle, Performance};
use minds_core::reward::{Metrics, Missing, Reward, Score};
use serde_json::Value;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

/// How long a cancelled rollout has for its clean-up.
const GRACE: Duration = Duration::from_secs(2);
/// Most questions of a rollout that are under way at a time.
const MOST_ASKED: usize = 256;
/// Most questions of a rollout: time that the service takes is not counted, so a loop without an end must end here.
const MOST_QUESTIONS: usize = 16_384;
/// More time for a rollout whose process is held up.
const HELD_UP: Duration = Duration::from_secs(5);
/// How long one that does not listen may go on before its process is killed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is played, and where.
pub(super) struct Rollout<'a> {
    pub name: String,
    pub group: &'a str,
    /// Rollouts of the group that are judged together.
    pub members: usize,
    pub item: u64,
    pub worker: Arc<Worker>,
    pub slot: OwnedSemaphorePermit,
    pub endpoint: Arc<Endpoint>,
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

/// An answer that the service owes to a rollout.
struct Owed {
    worker: Arc<Worker>,
    _clock: ClockHold,
}

impl Owed {
    fn new(worker: &Arc<Worker>, clock: &Arc<RolloutClock>) -> Self {
        worker.owed.fetch_add(1, Relaxed);
        Self { worker: worker.clone(), _clock: clock.hold() }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.worker.owed.fetch_sub(1, Relaxed);
    }
}

impl Rollout<'_> {
    /// Plays it.
    pub(super) async fn play(
        self,
        desk: Desk<'_>,
        sampler: &dyn SamplingBackend,
        oracle: &dyn Oracle,
    ) -> Result<Performance, Missing> {
        let mut clock = RolloutClock::start(self.limits.limit);
        // Held while the rollout waits for the other members of its group.
        let mut waiting = None;
        let mut visit = Visit::enter(&self);
        let sampling = desk.sampling();
        let url = self.endpoint.url(&self.name);
        let play = ToHost::Play {
            rollout: &self.name,
            group: self.group,
            members: self.members,
            item: self.item,
            url: &url,
            sampling: &sampling,
        };
        self.worker.send(&play).await;
        let mut desk = desk;
        let mut asked = FuturesUnordered::new();
        let mut questions = 0;
        let result = loop {
            tokio::select! {
                biased;
                () = clock.expired() => {
                    // Another rollout's blocking call may wait for the service, which does not count against this rollout.
                    if self.worker.is_held_up().await {
                        clock.extend(HELD_UP);
                        continue;
                    }
                    drop(asked);
                    let cancelled = Instant::now();
                    self.worker.hint(&visit.cancellation());
                    let ended = timeout(GRACE, visit.ended()).await;
                    visit.over = true;
                    if ended.is_err() {
                        visit.give_up(cancelled, self.slot).await;
                    }
                    return Err(Missing::Environment(format!(
                        "the rollout did not end within {} s, waits for the service not counted (`rollout_timeout_s`)",
                        self.limits.limit.as_secs()
                    )));
                }
                Some(answered) = asked.next(), if !asked.is_empty() => {
                    let Answered { asker, result } = answered;
                    let result = desk.take_down(result);
                    self.reply(asker, result).await;
                }
                event = visit.events.recv() => match event {
                    Some(Event::Done(result)) => break Some(result),
                    Some(Event::Phase(Phase::Waits)) => waiting = Some(clock.hold()),
                    Some(Event::Phase(Phase::Compared)) => {
                        clock = self.limits.compared();
                        drop(waiting.take());
                    }
                    None => break None,
                    Some(Event::Ask(call, _)) if asked.len() >= MOST_ASKED => {
                        let refusal = Refusal::Bad(format!("{MOST_ASKED} questions are under way already"));
                        self.reply(Asker::Wire(call), Err(refusal)).await;
                    }
                    Some(Event::Ask(call, _)) if questions >= MOST_QUESTIONS => {
                        let refusal = Refusal::Bad(format!("a rollout asks at most {MOST_QUESTIONS} questions"));
                        self.reply(Asker::Wire(call), Err(refusal)).await;
                    }
                    Some(Event::Ask(call, op)) => match desk.op(op, sampler, oracle) {
                        Ok(work) => {
                            questions += 1;
                            asked.push(self.owed(&clock, desk.answered(Asker::Wire(call), work)));
                        }
                        Err(refusal) => self.reply(Asker::Wire(call), Err(refusal)).await,
                    },
                },
                Some((question, answer)) = visit.calls.recv(), if asked.len() < MOST_ASKED => match desk.question(question, sampler) {
                    Ok(work) => asked.push(self.owed(&clock, desk.answered(Asker::Http(answer), work))),
                    Err(refusal) => drop(answer.send(Err(refusal))),
                },
            }
        };
        visit.over = true;
        drop(asked);
        let Some(result) = result else {
            return Err(Missing::Environment(self.worker.cause_of_death().await));
        };
        let report = result.map_err(|error| match desk.failure() {
            // What the service did to the rollout explains what user code says about it.
            Some(why) => Missing::Service(format!(
                "{why}; the environment then raised {}: {}",
                error.r#type, error.message
            )),
            None => unreachable::missing(&error),
        })?;
        // A reward of nothing that counts is no reward, and why nothing does explains it.
        let Counted { opening, turns } =
            desk.counted(report.responses.as_deref()).map_err(Missing::Environment)?;
        let score = self.score(&report)?;
        if let Some(told) = report.answers.filter(|told| *told != turns.len()) {
            let given = turns.len();
            return Err(Missing::Environment(format!(
                "the environment counts {told} answers, and {given} were given: which of them count cannot be told"
            )));
        }
        Ok(Performance { turns, opening: opening.into(), score })
    }

    /// Work during which the clock stands.
    fn owed<'w>(&self, clock: &Arc<RolloutClock>, work: BoxFuture<'w, Answered>) -> BoxFuture<'w, Answered> {
        let owed = Owed::new(&self.worker, clock);
        work.inspect(move |_| drop(owed)).boxed()
    }

    async fn reply(&self, asker: Asker, result: Result<Value, Refusal>) {
        match asker {
            Asker::Wire(call) => {
                let (ok, error) = match result {
                    Ok(value) => (Some(value), None),
                    Err(refusal) => (None, Some(refusal.to_string())),
                };
                self.worker.send(&ToHost::Answer { call, ok, error }).await;
            }
            // Whoever asked may have gone.
            Asker::Http(answer) => drop(answer.send(result)),
        }
    }

    fn score(&self, report: &Report) -> Result<Score, Missing> {
        if report.coerced > 0 && self.fail_on_bad_reward {
            let why = report.warnings.first().map_or("a reward was no finite number", String::as_str);
            return Err(Missing::Environment(why.into()));
        }
        for warning in &report.warnings {
            warn!(rollout = self.name, warning, "a reward function failed and counts as 0");
        }
        if report.coerced > 0 && report.warnings.is_empty() {
            warn!(
                rollout = self.name,
                rewards = report.coerced,
                "a reward was no finite number and counts as 0"
            );
        }
        let reward = Reward::new(report.reward as f32)?;
        let mut metrics: Metrics = report.metrics.clone();
        metrics.insert(self.bad_rewards.into(), f64::from(report.coerced));
        Ok(Score { reward, metrics })
    }
}

/// A rollout's place in its process and at the endpoint, given back however it ends.
struct Visit {
    name: String,
    group: String,
    worker: Arc<Worker>,
    endpoint: Arc<Endpoint>,
    events: mpsc::Receiver<Event>,
    calls: mpsc::Receiver<super::endpoint::Call>,
    over: bool,
}

impl Visit {
    fn enter(rollout: &Rollout<'_>) -> Self {
        Self {
            name: rollout.name.clone(),
            group: rollout.group.to_owned(),
            events: rollout.worker.enter(&rollout.name),
            calls: rollout.endpoint.enter(&rollout.name, rollout.worker.token()),
            worker: rollout.worker.clone(),
            endpoint: rollout.endpoint.clone(),
            over: false,
        }
    }

    fn cancellation(&self) -> ToHost<'_> {
        ToHost::Cancel { rollout: &self.name, group: &self.group }
    }

    /// Waits for the end; whatever else it says is not heard.
    async fn ended(&mut self) {
        while !matches!(self.events.recv().await, Some(Event::Done(_)) | None) {}
    }

    /// Keeps the slot of a rollout that does not listen until it ends or its process is killed.
    async fn give_up(mut self, cancelled: Instant, slot: OwnedSemaphorePermit) {
        debug!(rollout = self.name, "does not listen to its cancellation");
        let worker = self.worker.clone();
        let cause = format!("the rollout {} could not be cancelled", self.name);
        // A blocked event loop serves nobody.
        if worker.has_stood_since(cancelled).await {
            worker.kill(cause);
            return;
        }
        // One that turns serves others meanwhile.
        worker.clone().spawn(async move {
            if tokio::time::timeout(PATIENCE, self.ended()).await.is_err() {
                worker.kill(cause);
            }
            drop(slot);
        });
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.worker.leave(&self.name);
        self.endpoint.leave(&self.name);
        if !self.over {
            self.worker.hint(&self.cancellation());
        }
    }
}
