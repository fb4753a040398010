//! A worker: pulls jobs from the broker, executes them, and publishes their results.
//!
//! A worker acknowledges a job after the broker has stored its result, so the broker redelivers the job if the worker
//! dies. While a job runs, the worker sends progress acknowledgements; without them the broker redelivers the job to
//! another worker. A worker that is asked to stop pulls no more jobs, finishes those in progress within its grace
//! period, and returns the rest to the queue.

use super::broker::{Broker, BrokerError};
use super::dead_letters::{self, DeadLetter};
use super::message::{
    Announcement, Job, JobResult, Offer, Outcome, SampledWeights, SessionStamp, Work, WorkerReport, decode,
    encode,
};
use super::questions::{JobQuestions, RemoteOracle, RunSampler};
use crate::generate::RolloutGenerator;
use crate::generate::session::session_result;
use crate::mailbox::catch_panic;
use crate::messages::MixtureComponent;
use crate::service::retry::Retry;
use crate::telemetry::activity::Activity;
use crate::telemetry::meters::PipelineMeters;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{AckKind, Message};
use async_trait::async_trait;
use futures::StreamExt as _;
use futures::future::{join, join_all};
use minds_core::environment::{Item, RolloutSession, SessionError, SessionRollout};
use minds_core::reward::RewardError;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Time between two reports to a run.
const REPORT_EVERY: Duration = Duration::from_secs(2);
/// Time without an announcement after which a run counts as gone.
const SILENT_RUN: Duration = Duration::from_secs(600);
/// Time without an announcement after which no jobs of a run are pulled.
const PAUSED_RUN: Duration = Duration::from_secs(10);
/// Longest wait for the answer to a request for jobs that are there now.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Duration of one pull request of an idle worker.
const LONG_POLL: Duration = Duration::from_secs(5);
/// Heartbeat interval of pull requests. A request is renewed after missed heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Pause before a failed request to the broker is retried.
const PAUSE: Duration = Duration::from_secs(1);

/// Which jobs a worker accepts, how many at a time, and how it stops.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Name of the worker, unique among the workers of a run.
    pub name: String,
    /// Version of the program, which reports contain.
    pub program: String,
    /// Most jobs in progress at a time.
    pub concurrency: NonZeroUsize,
    /// Names of the environments to serve; all if empty.
    pub environments: Vec<String>,
    /// Name of the run to serve; `None` for all runs.
    pub run: Option<String>,
    /// Time that jobs in progress have to finish after a stop request.
    pub grace: Duration,
}

/// Loads environments that runs offer.
#[async_trait]
pub trait EnvironmentLoader: Send + Sync {
    /// Loads the environment of an offer.
    ///
    /// # Errors
    /// The environment cannot be loaded, or its code or data differ from those of the run.
    async fn load(&self, offer: &Offer) -> Result<MixtureComponent, String>;
}

/// Counts of a worker when it stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerSummary {
    /// Jobs whose result the broker stored.
    pub done: u64,
    /// Unfinished jobs that were returned to the queue.
    pub handed_back: u64,
}

/// Runs a worker until `stop` becomes true, then for at most its grace period.
pub async fn run_worker(
    broker: Broker,
    loader: Arc<dyn EnvironmentLoader>,
    options: WorkerOptions,
    mut stop: watch::Receiver<bool>,
) -> WorkerSummary {
    let (hand_back, handed_back) = watch::channel(false);
    let worker = Arc::new(Worker {
        permits: Arc::new(Semaphore::new(options.concurrency.get())),
        broker,
        loader,
        options,
        started: Instant::now(),
        runs: Mutex::default(),
        running: Mutex::default(),
        hand_back: handed_back,
        jobs: Mutex::default(),
        busy_nanos: AtomicU64::new(0),
        done: AtomicU64::new(0),
        handed_back: AtomicU64::new(0),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(worker.clone().follow_runs());
    tasks.spawn(worker.clone().follow_cancellations());
    tasks.spawn(worker.clone().report());
    is_true(&mut stop).await;
    tasks.shutdown().await;
    worker.report_end().await;
    worker.stop_pulling();
    let mut jobs = std::mem::take(&mut *lock(&worker.jobs));
    info!(jobs = jobs.len(), "stopping: no more jobs are pulled");
    let finished = async { while jobs.join_next().await.is_some() {} };
    if tokio::time::timeout(worker.options.grace, finished).await.is_err() {
        hand_back.send_replace(true);
        let finished = async { while jobs.join_next().await.is_some() {} };
        drop(tokio::time::timeout(PAUSE * 5, finished).await);
    }
    drop(tokio::time::timeout(PAUSE * 5, worker.broker.client.flush()).await);
    WorkerSummary { done: worker.done.load(Relaxed), handed_back: worker.handed_back.load(Relaxed) }
}

struct Worker {
    broker: Broker,
    loader: Arc<dyn EnvironmentLoader>,
    options: WorkerOptions,
    permits: Arc<Semaphore>,
    started: Instant,
    runs: Mutex<BTreeMap<String, ServedRun>>,
    /// Notifiers that cancel a job in progress, by job id.
    running: Mutex<HashMap<String, Arc<Notify>>>,
    /// Becomes true when jobs in progress must be returned to the queue.
    hand_back: watch::Receiver<bool>,
    jobs: Mutex<JoinSet<()>>,
    busy_nanos: AtomicU64,
    done: AtomicU64,
    handed_back: AtomicU64,
}

/// A run whose announcements this worker receives.
struct ServedRun {
    announcement: Announcement,
    seen: Instant,
    counts: Arc<RunCounts>,
    serves: Vec<String>,
    problems: Vec<(String, String)>,
    /// The tasks that load its environments and pull its jobs.
    tasks: Vec<AbortHandle>,
}

impl Drop for ServedRun {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

#[derive(Default)]
struct RunCounts {
    running: AtomicUsize,
    done: AtomicU64,
}

/// An environment of a run that this worker serves.
struct Served {
    run: String,
    component: MixtureComponent,
    ack_wait: Duration,
    max_deliver: u64,
    counts: Arc<RunCounts>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// Serves every run that announces itself, until its announcements stop.
    async fn follow_runs(self: Arc<Self>) {
        let subject = self.broker.names.announcements(self.options.run.as_deref());
        loop {
            match self.broker.client.subscribe(subject.clone()).await {
                Ok(mut announcements) => loop {
                    match tokio::time::timeout(SILENT_RUN / 60, announcements.next()).await {
                        Ok(Some(message)) => self.take_announcement(&message.payload),
                        Ok(None) => break,
                        Err(_) => {}
                    }
                    if self.broker.state().is_connected() {
                        self.forget_silent_runs();
                    }
                },
                Err(error) => warn!(%error, "failed to subscribe to announcements"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn take_announcement(self: &Arc<Self>, bytes: &[u8]) {
        let announcement = match decode::<Announcement>(bytes) {
            Ok(announcement) => announcement,
            Err(error) => {
                warn!(%error, "failed to decode an announcement");
                return;
            }
        };
        let mut runs = lock(&self.runs);
        if let Some(run) = runs.get_mut(&announcement.run)
            && run.announcement == announcement
        {
            run.seen = Instant::now();
            return;
        }
        info!(run = announcement.run, "serving a run");
        let counts = runs.get(&announcement.run).map(|run| run.counts.clone()).unwrap_or_default();
        let mut run = ServedRun {
            announcement: announcement.clone(),
            seen: Instant::now(),
            counts,
            serves: Vec::new(),
            problems: Vec::new(),
            tasks: Vec::new(),
        };
        let wanted =
            |name: &String| self.options.environments.is_empty() || self.options.environments.contains(name);
        for offer in announcement.environments.iter().filter(|offer| wanted(&offer.name)) {
            let serving =
                tokio::spawn(self.clone().serve(announcement.clone(), offer.clone(), run.counts.clone()));
            run.tasks.push(serving.abort_handle());
        }
        runs.insert(announcement.run.clone(), run);
    }

    /// Whether the run has announced itself lately. Without it, its jobs would only occupy slots.
    fn is_announced(&self, run: &str) -> bool {
        lock(&self.runs).get(run).is_some_and(|run| run.seen.elapsed() < PAUSED_RUN)
    }

    fn forget_silent_runs(&self) {
        lock(&self.runs).retain(|name, run| {
            let stays = run.seen.elapsed() < SILENT_RUN;
            if !stays {
                info!(run = name, "announcements of a run have stopped");
            }
            stays
        });
    }

    /// Sends each run a last report, so that it does not count the missing reports as a failure.
    async fn report_end(&self) {
        for (run, report) in self.reports() {
            let report = WorkerReport { leaves: true, ..report };
            // Without it, the run misses the worker after a while.
            drop(self.broker.client.publish(self.broker.names.reports(&run), encode(&report).into()).await);
        }
    }

    fn stop_pulling(&self) {
        lock(&self.runs).clear();
    }

    /// Loads an environment and processes its jobs until the task is aborted.
    async fn serve(self: Arc<Self>, announcement: Announcement, offer: Offer, counts: Arc<RunCounts>) {
        let run = announcement.run;
        let component = match self.loader.load(&offer).await {
            Ok(component) => component,
            Err(problem) => {
                warn!(run, environment = offer.name, problem, "cannot serve an environment");
                if let Some(run) = lock(&self.runs).get_mut(&run) {
                    run.problems.push((offer.name, problem));
                }
                return;
            }
        };
        if let Some(run) = lock(&self.runs).get_mut(&run) {
            run.serves.push(offer.name.clone());
        }
        info!(run, environment = offer.name, "serving an environment");
        let ack_wait = announcement.ack_wait;
        let max_deliver = announcement.max_deliver;
        let served = Arc::new(Served { run, component, ack_wait, max_deliver, counts });
        loop {
            match self.consumer(&served, &offer.name).await {
                Ok(consumer) => self.pull(&served, consumer).await,
                Err(why) => debug!(why, "failed to open the consumer of jobs"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn consumer(&self, served: &Served, environment: &str) -> Result<PullConsumer, String> {
        let names = &self.broker.names;
        let name = names.job_consumer(&served.run, environment);
        let found = self.broker.jetstream.get_consumer_from_stream(name, names.stream()).await;
        found.map_err(|error| error.to_string())
    }

    /// Pulls jobs until a request fails, for example because the broker was restarted.
    async fn pull(self: &Arc<Self>, served: &Arc<Served>, consumer: PullConsumer) {
        loop {
            if !self.is_announced(&served.run) {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            // Pulls only jobs that can start at once: others would wait here while another worker is idle.
            let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
            let Ok(mut ready) = consumer.fetch().max_messages(1).messages().await else { return };
            let mut taken = None;
            loop {
                // The request has no time limit of its own: it would wait for a consumer that was deleted meanwhile.
                match tokio::time::timeout(FETCH_TIMEOUT, ready.next()).await {
                    Ok(Some(Ok(message))) => taken = Some(message),
                    Ok(Some(Err(error))) => {
                        debug!(%error, "failed to fetch a job");
                        return;
                    }
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
            if let Some(message) = taken {
                self.begin(served, message, permit);
                continue;
            }
            // An idle environment holds no permit.
            drop(permit);
            let waiting =
                consumer.batch().max_messages(1).expires(LONG_POLL).heartbeat(HEARTBEAT).messages().await;
            let Ok(mut waiting) = waiting else { return };
            while let Some(message) = waiting.next().await {
                let Ok(message) = message else { return };
                let Ok(permit) = self.hold(served, &message).await else { return };
                self.begin(served, message, permit);
            }
        }
    }

    /// Waits for a permit for a job that was already delivered, and keeps the job alive meanwhile.
    async fn hold(
        &self,
        served: &Served,
        message: &Message,
    ) -> Result<OwnedSemaphorePermit, tokio::sync::AcquireError> {
        tokio::select! {
            permit = self.permits.clone().acquire_owned() => permit,
            never = keep_alive(message, served.ack_wait) => match never {},
        }
    }

    fn begin(self: &Arc<Self>, served: &Arc<Served>, message: Message, permit: OwnedSemaphorePermit) {
        let mut jobs = lock(&self.jobs);
        while jobs.try_join_next().is_some() {}
        let worker = self.clone();
        let served = served.clone();
        jobs.spawn(async move {
            let begun = Instant::now();
            served.counts.running.fetch_add(1, Relaxed);
            worker.process(&served, &message).await;
            served.counts.running.fetch_sub(1, Relaxed);
            let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            worker.busy_nanos.fetch_add(nanos, Relaxed);
            drop(permit);
        });
    }

    /// Executes one job, stores its result and acknowledges it.
    async fn process(&self, served: &Served, message: &Message) {
        let id = message.subject.rsplit('.').next().unwrap_or_default().to_owned();
        let delivery = message.info().map_or(1, |info| u64::try_from(info.delivered).unwrap_or(1));
        let questions = JobQuestions::new(self.broker.clone(), served.run.clone(), id.clone(), delivery);
        debug!(job = id, delivery, environment = served.component.name, "starting a job");
        if delivery == 1 {
            questions.tell_begun(&self.options.name).await;
        } else if questions.is_wanted(&self.options.name).await == Some(false) {
            debug!(job = id, "dropping a redelivered job: its run does not wait for it");
            self.acknowledge(message, AckKind::Ack).await;
            return;
        }
        let begun = Instant::now();
        let cancelled = Arc::new(Notify::new());
        lock(&self.running).insert(id.clone(), cancelled.clone());
        let mut hand_back = self.hand_back.clone();
        let end = tokio::select! {
            outcome = self.outcome(served, message, &id, delivery, &questions) => JobEnd::Outcome(outcome),
            () = cancelled.notified() => JobEnd::Withdrawn,
            () = questions.given_up() => JobEnd::GivenUp,
            () = is_true(&mut hand_back) => JobEnd::HandedBack,
            never = keep_alive(message, served.ack_wait) => match never {},
        };
        lock(&self.running).remove(&id);
        let outcome = match end {
            JobEnd::Outcome(outcome) => outcome,
            JobEnd::Withdrawn => {
                debug!(job = id, "the run canceled a job");
                return self.acknowledge(message, AckKind::Ack).await;
            }
            JobEnd::GivenUp => {
                // A newer delivery has superseded this one, or the run is gone. The job is not acknowledged.
                debug!(job = id, delivery, "abandoned a job");
                return;
            }
            JobEnd::HandedBack => {
                self.handed_back.fetch_add(1, Relaxed);
                return self.acknowledge(message, AckKind::Nak(None)).await;
            }
        };
        let result =
            JobResult { worker: self.options.name.clone(), delivery, took: begun.elapsed(), outcome };
        tokio::select! {
            () = self.store(&served.run, &id, &result) => {}
            // The result is lost with this process, and the broker redelivers the job.
            () = is_true(&mut hand_back) => return,
            never = keep_alive(message, served.ack_wait) => match never {},
        }
        self.acknowledge(message, AckKind::Ack).await;
        self.done.fetch_add(1, Relaxed);
        served.counts.done.fetch_add(1, Relaxed);
    }

    /// Stores a result on the broker. Retries without a limit.
    async fn store(&self, run: &str, job: &str, result: &JobResult) {
        let bytes: bytes::Bytes = encode(result).into();
        let object = format!("{job}-r{}", result.delivery);
        let packed = loop {
            match self.broker.pack(run, &object, bytes.clone()).await {
                Ok(packed) => break packed,
                Err(error) => {
                    warn!(job, %error, "a large result waits until the broker stores it");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        self.broker.publish(&self.broker.names.result(run, job), &packed).await;
    }

    async fn acknowledge(&self, message: &Message, kind: AckKind) {
        // If this fails, the broker redelivers the job, and its result is dropped as a duplicate.
        if let Err(error) = message.ack_with(kind).await {
            debug!(%error, "failed to acknowledge a job");
        }
    }

    /// Executes a job and returns its outcome. A job that cannot be executed becomes a dead letter.
    async fn outcome(
        &self,
        served: &Served,
        message: &Message,
        id: &str,
        delivery: u64,
        questions: &Arc<JobQuestions>,
    ) -> Outcome {
        if delivery > served.max_deliver {
            let cause = format!(
                "it was delivered {} times, and each time its worker ended, hung or lost its connection",
                delivery - 1
            );
            return self.bury(served, message, id, cause).await;
        }
        let body = loop {
            match self.broker.unpack(&served.run, message).await {
                Ok(body) => break body,
                Err(error @ BrokerError::ObjectGone { .. }) => {
                    return self.bury(served, message, id, error.to_string()).await;
                }
                Err(error) => {
                    debug!(job = id, %error, "failed to read a job, trying again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        match decode::<Job<'static>>(&body) {
            Ok(job) => self.work(served, job, questions).await,
            Err(error) => self.bury(served, message, id, error.to_string()).await,
        }
    }

    /// Stores a job that cannot be executed as a dead letter.
    async fn bury(&self, served: &Served, message: &Message, id: &str, cause: String) -> Outcome {
        warn!(job = id, environment = served.component.name, cause, "a job becomes a dead letter");
        let letter = DeadLetter {
            run: served.run.clone(),
            environment: served.component.name.clone(),
            job: id.to_owned(),
            cause: cause.clone(),
        };
        dead_letters::keep(&self.broker, &letter, message).await;
        Outcome::Dead(cause)
    }

    async fn work(&self, served: &Served, job: Job<'static>, questions: &Arc<JobQuestions>) -> Outcome {
        let generator = RolloutGenerator {
            seed: 0,
            // The run decides whether to compute a reward again.
            retry: Retry { retries: 0, ..Retry::default() },
            activity: Activity::default(),
            meters: PipelineMeters::default(),
            record_stability_info: false,
        };
        match job.work {
            Work::Score { item, rollout } => {
                let oracle = RemoteOracle { questions: questions.clone(), session: 0 };
                Outcome::Scored(generator.score(&served.component, &item, &rollout, &oracle).await)
            }
            Work::Generate { item, sessions } => {
                Outcome::Generated(generate(served, &item, &sessions, questions).await)
            }
        }
    }

    /// Stops jobs in progress that their runs cancel.
    async fn follow_cancellations(self: Arc<Self>) {
        let subject = self.broker.names.cancellations(self.options.run.as_deref().unwrap_or("*"));
        loop {
            if let Ok(mut cancellations) = self.broker.client.subscribe(subject.clone()).await {
                while let Some(message) = cancellations.next().await {
                    let id = String::from_utf8_lossy(&message.payload);
                    if let Some(job) = lock(&self.running).get(&*id) {
                        job.notify_one();
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reports to all served runs periodically.
    async fn report(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(REPORT_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let reports = self.reports();
            for (run, report) in reports {
                // The next report replaces a lost one.
                drop(
                    self.broker.client.publish(self.broker.names.reports(&run), encode(&report).into()).await,
                );
            }
        }
    }

    fn reports(&self) -> Vec<(String, WorkerReport)> {
        let concurrency = self.options.concurrency.get();
        let capacity = self.started.elapsed().as_secs_f64() * concurrency as f64;
        let busy = self.busy_nanos.load(Relaxed) as f64 / 1e9;
        let idle = if capacity > 0.0 { (1.0 - busy / capacity).clamp(0.0, 1.0) } else { 1.0 };
        let report = |run: &ServedRun| WorkerReport {
            worker: self.options.name.clone(),
            program: self.options.program.clone(),
            concurrency,
            running: run.counts.running.load(Relaxed),
            done: run.counts.done.load(Relaxed),
            idle,
            serves: run.serves.clone(),
            problems: run.problems.clone(),
            leaves: false,
        };
        lock(&self.runs).iter().map(|(name, run)| (name.clone(), report(run))).collect()
    }
}

/// Why a worker stopped working on a job.
enum JobEnd {
    Outcome(Outcome),
    Withdrawn,
    GivenUp,
    HandedBack,
}

/// Waits until the value is true or its sender is dropped.
async fn is_true(value: &mut watch::Receiver<bool>) {
    // The guard must not be held across another await.
    drop(value.wait_for(|value| *value).await);
}

/// Acknowledges progress of a job to the broker every third of `ack_wait`.
async fn keep_alive(message: &Message, ack_wait: Duration) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(ack_wait / 3).await;
        if let Err(error) = message.ack_with(AckKind::Progress).await {
            debug!(%error, "failed to acknowledge progress");
        }
    }
}

/// Runs a self-driven environment. Returns one result per session, in their order.
async fn generate(
    served: &Served,
    item: &Item,
    stamps: &[SessionStamp],
    questions: &Arc<JobQuestions>,
) -> Vec<Result<SessionRollout, SessionError>> {
    let Some(environment) = served.component.environment.self_driven() else {
        let why = RewardError::Environment("it is not self-driven".into());
        return vec![Err(why.into()); stamps.len()];
    };
    let open = |(session, stamp): (usize, &SessionStamp)| {
        let sampler = RunSampler { questions: questions.clone(), session, weights: SampledWeights::Policy };
        let oracle = RemoteOracle { questions: questions.clone(), session };
        let (finished, result) = oneshot::channel();
        // The receiver is dropped if the job was canceled.
        let on_finish = move |result| drop(finished.send(result));
        let mut opened = RolloutSession::new(stamp.rollout, Arc::new(sampler), Arc::new(oracle), on_finish);
        opened.attempt = stamp.attempt;
        opened.policy = stamp.policy;
        (opened, result)
    };
    let (sessions, results): (Vec<_>, Vec<_>) = stamps.iter().enumerate().map(open).unzip();
    // A panic drops the sessions, which gives each of them an error as its result.
    let running = catch_panic(environment.run_rollouts(item, sessions));
    let (_, results) = join(running, join_all(results.into_iter().map(session_result))).await;
    results
}
