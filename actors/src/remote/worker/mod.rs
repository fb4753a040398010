//! A worker: pulls jobs from the broker, executes them, and publishes their results.
//!
//! A worker acknowledges a job after the broker has stored its result, so the broker redelivers the job if the worker
//! dies. While a job runs, the worker sends progress acknowledgements; without them the broker redelivers the job to
//! another worker. A worker that is asked to stop pulls no more jobs, finishes those in progress within its grace
//! period, and returns the rest to the queue.

mod execution;

use super::broker::Broker;
use super::message::{Announcement, MessageError, Offer, WorkerReport, decode, encode};
use crate::messages::MixtureComponent;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{AckKind, Message};
use async_trait::async_trait;
use futures::StreamExt as _;
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
/// Rate limit of the warning about announcements that cannot be decoded.
const WARN_EVERY: Duration = Duration::from_secs(60);
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
        instance: rand::random(),
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
    while jobs.try_join_next().is_some() {}
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
    /// Random number that tells two processes of one name apart.
    instance: u64,
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
        let mut damage = DamagedAnnouncements::default();
        let mut is_told = false;
        loop {
            match self.broker.client.subscribe(subject.clone()).await {
                Ok(mut announcements) => loop {
                    match tokio::time::timeout(SILENT_RUN / 60, announcements.next()).await {
                        Ok(Some(message)) => match decode(&message.payload) {
                            Ok(announcement) => self.take_announcement(announcement),
                            Err(error) => damage.warn(&error),
                        },
                        Ok(None) => break,
                        Err(_) => {
                            if !std::mem::replace(&mut is_told, true) && lock(&self.runs).is_empty() {
                                self.tell_idle();
                            }
                        }
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

    /// Explains why this worker has nothing to do.
    fn tell_idle(&self) {
        warn!(
            stream = self.broker.names.stream(),
            run = self.options.run.as_deref().unwrap_or("any"),
            "no run has announced itself: start one with scorer.transport = \"nats\", this broker and this stream"
        );
    }

    fn take_announcement(self: &Arc<Self>, announcement: Announcement) {
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
            // Without heartbeats: a batch of async-nats 0.51 does not wake up for the message after a heartbeat.
            let waiting = consumer.batch().max_messages(1).expires(LONG_POLL).messages().await;
            let Ok(mut waiting) = waiting else { return };
            while let Some(message) = waiting.next().await {
                let Ok(message) = message else { return };
                let begun = self.begin_when_permitted(served, message);
                // An error: the job was returned to the queue, because the worker stops.
                drop(begun.await);
            }
        }
    }

    /// Starts a job that was already delivered as soon as there is a permit, and keeps it alive meanwhile. The receiver
    /// resolves when the job starts.
    fn begin_when_permitted(
        self: &Arc<Self>,
        served: &Arc<Served>,
        message: Message,
    ) -> oneshot::Receiver<()> {
        let (started, begun) = oneshot::channel();
        let worker = self.clone();
        let served = served.clone();
        let mut hand_back = self.hand_back.clone();
        self.spawn_job(async move {
            let permit = tokio::select! {
                permit = worker.permits.clone().acquire_owned() => permit,
                () = is_true(&mut hand_back) => return worker.return_to_queue(&served, &message).await,
                never = keep_alive(&message, served.ack_wait) => match never {},
            };
            // The semaphore is never closed, and the puller may have been aborted.
            let (Ok(permit), _) = (permit, started.send(())) else { return };
            worker.execute(&served, &message, permit).await;
        });
        begun
    }

    fn begin(self: &Arc<Self>, served: &Arc<Served>, message: Message, permit: OwnedSemaphorePermit) {
        let worker = self.clone();
        let served = served.clone();
        self.spawn_job(async move { worker.execute(&served, &message, permit).await });
    }

    fn spawn_job(&self, job: impl Future<Output = ()> + Send + 'static) {
        let mut jobs = lock(&self.jobs);
        while jobs.try_join_next().is_some() {}
        jobs.spawn(job);
    }

    /// Processes a job and counts the time that it took.
    async fn execute(&self, served: &Served, message: &Message, permit: OwnedSemaphorePermit) {
        let begun = Instant::now();
        served.counts.running.fetch_add(1, Relaxed);
        self.process(served, message).await;
        served.counts.running.fetch_sub(1, Relaxed);
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.busy_nanos.fetch_add(nanos, Relaxed);
        drop(permit);
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
            instance: self.instance,
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

/// Warns about announcements that cannot be decoded, at most once a minute: a run repeats them.
#[derive(Default)]
struct DamagedAnnouncements {
    warned: Option<Instant>,
}

impl DamagedAnnouncements {
    fn warn(&mut self, error: &MessageError) {
        if self.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned = Some(Instant::now());
            warn!(%error, "failed to decode an announcement");
        }
    }
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
