//! The run's side of the broker: publishes jobs, answers the questions of workers, and receives results.
//!
//! The broker delivers at least once; the dispatcher passes each result on exactly once. The id of a job is derived
//! from its content, and one caller waits for its result. A second result is a duplicate. A result that arrives after
//! the caller dropped its future is late. A result of an unknown job is kept for a while, because a resumed run submits
//! the same jobs again. Only the newest delivery of a job gets answers to its questions, so a superseded worker stops.

use super::broker::{Broker, BrokerError, PackedMessage, Published, StreamSettings, object_of};
use super::early_results::EarlyResults;
use super::message::{
    Announcement, Answer, Job, JobResult, Offer, Outcome, Query, Question, WorkerReport, decode, encode,
};
use super::settled_jobs::{SettledJobs, Settlement};
use super::worker_table::{SeenWorker, WorkerTable};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::message::Acker;
use async_trait::async_trait;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Time between two announcements.
pub(super) const ANNOUNCE_EVERY: Duration = Duration::from_secs(2);
/// Pause before an ended subscription is renewed.
const REBUILD_PAUSE: Duration = Duration::from_secs(1);
/// Heartbeat interval of the result consumer. The consumer is recreated after missed heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time after which the broker redelivers an unacknowledged result: one that was lost in transit, or whose job has not
/// been submitted yet.
const RESULT_ACK_WAIT: Duration = Duration::from_secs(30);
/// Time after which the broker deletes the consumers of an inactive run.
const INACTIVE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Rate limit of the warning that no worker serves an environment.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Time after its start in which a run submits the jobs again that an earlier process of it had submitted.
const RESUBMITTED: Duration = Duration::from_secs(5);
/// Time between two looks at how full the stream is.
const FILL_EVERY: Duration = Duration::from_secs(1);
/// Capacity of the queue of questions about one job.
const QUESTIONS: usize = 256;

/// How a run publishes its jobs.
#[derive(Clone, Debug)]
pub struct DispatcherOptions {
    /// Name of the run on the broker; one token of a subject.
    pub run: String,
    /// Secret part of job ids. It makes them impossible to guess, so that only a worker that received a job can send
    /// its result. A resumed run uses the same salt.
    pub salt: String,
    /// Version of the program, which workers receive in announcements.
    pub program: String,
    /// Settings of the stream if the dispatcher creates it.
    pub stream: StreamSettings,
    /// Time without a progress report of its worker after which a job is redelivered.
    pub ack_wait: Duration,
    /// Number of deliveries after which an unfinished job becomes a dead letter.
    pub max_deliver: u64,
    /// Most jobs of one environment that are delivered but not acknowledged at a time.
    pub max_ack_pending: i64,
    /// Age from which the audit looks for a job without a result on the broker; also the time between two audits.
    pub audit_every: Duration,
    /// Most bytes of jobs that wait until the broker stores them.
    pub buffer_bytes: usize,
}

/// Counts of the jobs of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Jobs that no worker has started.
    pub queued: u64,
    /// Jobs that a worker has started and not finished.
    pub running: u64,
    /// Jobs whose result the run received.
    pub done: u64,
    /// Jobs whose result arrived before this process submitted them, because the run had been interrupted.
    pub taken_up: u64,
    /// Number of redeliveries of jobs.
    pub redelivered: u64,
    /// Results of canceled jobs.
    pub late: u64,
    /// Results of jobs that already had a result.
    pub duplicate: u64,
    /// Results whose job this process did not submit within an hour, and those dropped earlier to free memory.
    pub foreign: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
}

/// Answers the questions of workers about one job.
#[async_trait]
pub(super) trait Answerer: Sync {
    /// Answers a question about the session with this index.
    async fn answer(&self, session: usize, query: Query) -> Answer;
}

/// Publishes the jobs of a run and receives their results. Clones share their state.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

/// How full the stream is, as far as this run knows.
#[derive(Clone, Copy, Default)]
struct StreamFill {
    /// Bytes that the stream stored when it was last asked, and those that this run has published since.
    bytes: u64,
    /// Most bytes of jobs; `None` for no limit.
    most: Option<u64>,
}

impl StreamFill {
    /// Counts a job of this size, unless it belongs to the room that is left for results.
    fn take(&mut self, bytes: u64) -> bool {
        // A single job that is larger than the room for jobs must not wait forever.
        let fits = self.most.is_none_or(|most| self.bytes == 0 || self.bytes + bytes <= most);
        if fits {
            self.bytes += bytes;
        }
        fits
    }
}

struct Shared {
    fill: Mutex<StreamFill>,
    started: Instant,
    broker: Broker,
    options: DispatcherOptions,
    offers: Vec<Offer>,
    jobs: Mutex<Jobs>,
    workers: Mutex<WorkerTable>,
    /// One permit per byte of jobs that wait until the broker stores them.
    buffer: Semaphore,
    /// Whether the run stops unfinished and leaves its jobs on the broker until it resumes.
    leaving: AtomicBool,
    done: AtomicU64,
    taken_up: AtomicU64,
    redelivered: AtomicU64,
    late: AtomicU64,
    duplicate: AtomicU64,
    foreign: AtomicU64,
    dead: AtomicU64,
}

#[derive(Default)]
struct Jobs {
    waiting: HashMap<String, Waiting>,
    settled: SettledJobs,
    early: EarlyResults,
}

/// A job whose caller waits for the result.
struct Waiting {
    result: oneshot::Sender<JobResult>,
    questions: mpsc::Sender<Asked>,
    /// The newest delivery from which a question arrived; 0 before the first.
    delivery: u64,
    /// Time at which it was submitted, or last found missing on the broker.
    since: Instant,
    /// Notified when the broker has neither the job nor its result.
    missing: Arc<Notify>,
}

/// A question and the subject for its answer.
struct Asked {
    question: Question,
    reply: async_nats::Subject,
}

impl Dispatcher {
    /// Opens the stream, creates the consumers of this run, and announces its environments to workers.
    ///
    /// # Errors
    /// The broker rejects a request that the run depends on.
    pub async fn start(
        broker: Broker,
        options: DispatcherOptions,
        offers: Vec<Offer>,
    ) -> Result<Self, BrokerError> {
        let shared = Arc::new(Shared {
            fill: Mutex::default(),
            started: Instant::now(),
            buffer: Semaphore::new(options.buffer_bytes.min(Semaphore::MAX_PERMITS)),
            broker,
            options,
            offers,
            jobs: Mutex::default(),
            workers: Mutex::default(),
            leaving: AtomicBool::new(false),
            done: AtomicU64::new(0),
            taken_up: AtomicU64::new(0),
            redelivered: AtomicU64::new(0),
            late: AtomicU64::new(0),
            duplicate: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            dead: AtomicU64::new(0),
        });
        shared.open().await?;
        shared.remove_old_jobs().await?;
        // A new consumer redelivers at once the results that an earlier process did not acknowledge.
        let names = &shared.broker.names;
        let run = &shared.options.run;
        let consumer = names.result_consumer(run);
        drop(shared.broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await);
        let results = shared.make_consumers().await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(shared.clone().take_results(results));
        tasks.spawn(shared.clone().take_questions());
        tasks.spawn(shared.clone().take_reports());
        tasks.spawn(shared.clone().announce());
        tasks.spawn(shared.clone().audit());
        tasks.spawn(shared.clone().watch_fill());
        Ok(Self { shared, tasks: Arc::new(Mutex::new(tasks)) })
    }

    /// Name of the run on the broker.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.shared.options.run
    }

    /// Names of the environments whose jobs it publishes.
    pub fn environments(&self) -> impl Iterator<Item = &String> {
        self.shared.offers.iter().map(|offer| &offer.name)
    }

    /// The connection to the broker.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.shared.broker
    }

    pub(super) fn salt(&self) -> &str {
        &self.shared.options.salt
    }

    /// Current counts of the run's jobs.
    #[must_use]
    pub fn counts(&self) -> JobCounts {
        let Shared { done, taken_up, redelivered, late, duplicate, foreign, dead, .. } = &*self.shared;
        let jobs = self.shared.jobs();
        let running = jobs.waiting.values().filter(|job| job.delivery > 0).count() as u64;
        JobCounts {
            queued: jobs.waiting.len() as u64 - running,
            running,
            done: done.load(Relaxed),
            taken_up: taken_up.load(Relaxed),
            redelivered: redelivered.load(Relaxed),
            late: late.load(Relaxed),
            duplicate: duplicate.load(Relaxed),
            foreign: foreign.load(Relaxed),
            dead: dead.load(Relaxed),
        }
    }

    /// The workers that report to this run, sorted by name.
    #[must_use]
    pub fn workers(&self) -> Vec<SeenWorker> {
        self.shared.workers().all()
    }

    /// Publishes a job, answers the questions of its worker, and returns the result.
    ///
    /// Dropping the future cancels the job.
    pub(super) async fn submit(&self, id: String, job: &Job<'_>, answerer: &dyn Answerer) -> JobResult {
        let shared = &self.shared;
        let (result, mut awaited) = oneshot::channel();
        let (questions, mut asked) = mpsc::channel(QUESTIONS);
        let missing = Arc::new(Notify::new());
        let (id, early) = {
            let mut jobs = shared.jobs();
            // A job that is submitted again gets a new id, so that messages of the earlier one do not reach it.
            let id = match (0_u32..).map(|again| numbered(&id, again)).find(|id| jobs.is_free(id)) {
                Some(id) => id,
                None => id,
            };
            let early = jobs.early.take(&id);
            if early.is_some() {
                jobs.settled.add(id.clone(), Settlement::Done);
            } else {
                let waiting = Waiting {
                    result,
                    questions,
                    delivery: 0,
                    since: Instant::now(),
                    missing: missing.clone(),
                };
                jobs.waiting.insert(id.clone(), waiting);
            }
            (id, early)
        };
        if let Some((result, acker)) = early {
            debug!(job = id, "using a result that arrived before its job was submitted");
            shared.acknowledge(&acker).await;
            shared.taken_up.fetch_add(1, Relaxed);
            shared.count(&result);
            return result;
        }
        let environment = &*job.environment;
        let mut withdrawal =
            Withdrawal { shared: shared.clone(), job: Some((id.clone(), environment.to_owned())) };
        let mut publishing = shared.publish(&id, job).boxed();
        let mut is_published = false;
        let mut has_object = false;
        // Questions that are being answered, each with the subjects for the answer.
        let mut replies: HashMap<(u64, u64), Vec<async_nats::Subject>> = HashMap::new();
        let mut answers = FuturesUnordered::new();
        // Answers to training requests, which must not be executed twice. A repeated question gets the stored answer.
        let mut trained: HashMap<(u64, u64), Answer> = HashMap::new();
        loop {
            tokio::select! {
                biased;
                result = &mut awaited => {
                    let Ok(result) = result else { unreachable!("the sender is dropped by this future alone") };
                    withdrawal.job = None;
                    if has_object {
                        shared.broker.discard_object(&shared.options.run, &id).await;
                    }
                    return result;
                }
                is_object = &mut publishing, if !is_published => {
                    is_published = true;
                    has_object |= is_object;
                }
                () = missing.notified(), if is_published => {
                    publishing = shared.publish(&id, job).boxed();
                    is_published = false;
                }
                Some(Asked { question, reply }) = asked.recv() => {
                    let key = (question.delivery, question.number);
                    if let Some(answer) = trained.get(&key) {
                        shared.reply(&id, key, reply, answer).await;
                        continue;
                    }
                    let trains = matches!(question.query, Query::Train(_));
                    match replies.entry(key) {
                        Entry::Occupied(mut waiting) => waiting.get_mut().push(reply),
                        Entry::Vacant(free) => {
                            free.insert(vec![reply]);
                            answers.push(async move {
                                (key, trains, answerer.answer(question.session, question.query).await)
                            });
                        }
                    }
                }
                Some((key, trains, answer)) = answers.next() => {
                    for reply in replies.remove(&key).into_iter().flatten() {
                        shared.reply(&id, key, reply, &answer).await;
                    }
                    if trains {
                        trained.insert(key, answer);
                    }
                }
            }
        }
    }

    /// Ends the run on the broker.
    ///
    /// If the run is `finished`, deletes its consumers, jobs, results and objects, but not its dead letters. Otherwise
    /// leaves them on the broker until the run resumes.
    pub async fn close(&self, finished: bool) {
        self.shared.leaving.store(!finished, Relaxed);
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
        if finished {
            self.shared.remove_all().await;
        }
        // Sends what is left in the buffers of the connection.
        drop(tokio::time::timeout(REBUILD_PAUSE, self.shared.broker.client.flush()).await);
    }
}

/// The id of a job that one process has submitted `again` times before.
fn numbered(id: &str, again: u32) -> String {
    if again == 0 { id.to_owned() } else { format!("{id}-{again}") }
}

impl Jobs {
    /// Whether this process has not submitted a job with this id.
    fn is_free(&self, id: &str) -> bool {
        !self.waiting.contains_key(id) && self.settled.get(id).is_none()
    }
}

/// Cancels a job when its caller drops the future.
struct Withdrawal {
    shared: Arc<Shared>,
    /// Id and environment; `None` once the result arrived.
    job: Option<(String, String)>,
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let Some((id, environment)) = self.job.take() else { return };
        let shared = self.shared.clone();
        {
            let mut jobs = shared.jobs();
            jobs.waiting.remove(&id);
            jobs.settled.add(id.clone(), Settlement::Withdrawn);
        }
        if shared.leaving.load(Relaxed) {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { shared.withdraw(&id, &environment).await });
        }
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self) -> MutexGuard<'_, StreamFill> {
        self.fill.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps track of how full the stream is. A quarter of it is left for results: a stream that is full of jobs would
    /// take no result, and so lose no job.
    async fn watch_fill(self: Arc<Self>) {
        loop {
            if let Ok(info) = self.stream_info().await {
                let most = u64::try_from(info.config.max_bytes).ok().filter(|most| *most > 0);
                *self.fill() = StreamFill { bytes: info.state.bytes, most: most.map(|most| most / 4 * 3) };
            }
            tokio::time::sleep(FILL_EVERY).await;
        }
    }

    async fn stream_info(&self) -> Result<async_nats::jetstream::stream::Info, async_nats::Error> {
        let stream = self.broker.jetstream.get_stream_no_info(self.broker.names.stream()).await?;
        Ok(stream.get_info().await?)
    }

    fn workers(&self) -> MutexGuard<'_, WorkerTable> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to start beside another process of the same run, and removes the jobs of an earlier one: this process
    /// submits what it needs. Results stay.
    async fn remove_old_jobs(&self) -> Result<(), BrokerError> {
        let names = &self.broker.names;
        let run = &self.options.run;
        let job = String::new();
        let query = Query::Wanted { worker: String::new() };
        let probe = encode(&Question { job, delivery: 0, number: 0, session: 0, query });
        if self.broker.client.request(names.questions(run), probe.into()).await.is_ok() {
            return Err(BrokerError::refused(
                format!("start the run `{run}`"),
                "another process is this run: stop it, or give this one another `nats.run`",
            ));
        }
        for offer in &self.offers {
            let consumer = names.job_consumer(run, &offer.name);
            drop(self.broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await);
        }
        let refused =
            |why: &dyn std::fmt::Display| BrokerError::refused("remove the jobs of an earlier process", why);
        let stream = self
            .broker
            .jetstream
            .get_stream_no_info(names.stream())
            .await
            .map_err(|error| refused(&error))?;
        stream.purge().filter(names.all_jobs(run)).await.map_err(|error| refused(&error))?;
        Ok(())
    }

    /// Opens the stream and the object store. Creates them if they do not exist.
    async fn open(&self) -> Result<(), BrokerError> {
        self.broker.open_stream(self.options.stream).await?;
        self.broker.open_bucket(&self.options.run, self.options.stream).await?;
        Ok(())
    }

    /// Creates the consumers of jobs and results, and returns the one of results.
    async fn make_consumers(&self) -> Result<PullConsumer, BrokerError> {
        let names = &self.broker.names;
        let run = &self.options.run;
        for offer in &self.offers {
            self.make_job_consumer(&offer.name).await?;
        }
        self.make_consumer(pull::Config {
            durable_name: Some(names.result_consumer(run)),
            filter_subject: names.results(run),
            ack_wait: RESULT_ACK_WAIT,
            max_ack_pending: -1,
            ..pull::Config::default()
        })
        .await
    }

    async fn make_job_consumer(&self, environment: &str) -> Result<PullConsumer, BrokerError> {
        let names = &self.broker.names;
        let run = &self.options.run;
        self.make_consumer(pull::Config {
            durable_name: Some(names.job_consumer(run, environment)),
            filter_subject: names.jobs(run, environment),
            ack_wait: self.options.ack_wait,
            // Workers count deliveries and store a dead letter at the limit. The broker would only drop the job.
            max_deliver: -1,
            max_ack_pending: self.options.max_ack_pending,
            ..pull::Config::default()
        })
        .await
    }

    async fn make_consumer(&self, config: pull::Config) -> Result<PullConsumer, BrokerError> {
        let name = config.durable_name.clone().unwrap_or_default();
        let config = pull::Config { ack_policy: AckPolicy::Explicit, inactive_threshold: INACTIVE, ..config };
        let stream = self.broker.names.stream();
        let made = self.broker.jetstream.create_consumer_on_stream(config, stream).await;
        made.map_err(|error| BrokerError::refused(format!("create the consumer `{name}`"), error))
    }

    /// Stores a job on the broker. Waiting jobs occupy at most `buffer_bytes`. Returns whether the job's body is in the
    /// object store.
    async fn publish(&self, id: &str, job: &Job<'_>) -> bool {
        let encoded = encode(job);
        let bytes = encoded.len().min(self.options.buffer_bytes);
        // The semaphore is never closed. Without a permit the job would only not be counted.
        let _room = self.buffer.acquire_many(u32::try_from(bytes).unwrap_or(u32::MAX)).await;
        while !self.fill().take(encoded.len() as u64) {
            tokio::time::sleep(FILL_EVERY).await;
        }
        let message = self.pack_job(id, encoded.into()).await;
        let subject = self.broker.names.job(&self.options.run, &job.environment, id);
        if self.broker.publish(&subject, &message).await == Published::Exists {
            debug!(job = id, "the job is queued already");
        }
        message.is_object()
    }

    /// Packs a job into a message. Retries without a limit until the broker stores a large body.
    async fn pack_job(&self, id: &str, job: bytes::Bytes) -> PackedMessage {
        loop {
            match self.broker.pack(&self.options.run, id, job.clone()).await {
                Ok(message) => return message,
                Err(error) => {
                    warn!(job = id, %error, "a large job waits until the broker stores it");
                    tokio::time::sleep(REBUILD_PAUSE).await;
                }
            }
        }
    }

    /// Deletes a job from the queue and cancels it at its worker.
    async fn withdraw(&self, id: &str, environment: &str) {
        let names = &self.broker.names;
        let subject = names.cancellations(&self.options.run);
        // A worker that misses the message finishes the job, and its result is dropped as late.
        drop(self.broker.client.publish(subject, id.to_owned().into()).await);
        // Not a purge: in older servers, a purge of one subject makes the consumer skip other messages.
        if let Ok(stream) = self.broker.jetstream.get_stream_no_info(names.stream()).await
            && let Ok(job) =
                stream.get_last_raw_message_by_subject(&names.job(&self.options.run, environment, id)).await
        {
            drop(stream.delete_message(job.sequence).await);
        }
    }

    /// Deletes the consumers of the run, its jobs, its results and its objects.
    async fn remove_all(&self) {
        let names = &self.broker.names;
        let run = &self.options.run;
        let job_consumers = self.offers.iter().map(|offer| names.job_consumer(run, &offer.name));
        for consumer in job_consumers.chain([names.result_consumer(run)]) {
            drop(self.broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await);
        }
        if let Ok(stream) = self.broker.jetstream.get_stream_no_info(names.stream()).await {
            for subjects in [names.all_jobs(run), names.results(run)] {
                drop(stream.purge().filter(subjects).await);
            }
        }
        drop(self.broker.jetstream.delete_object_store(names.bucket(run)).await);
    }

    /// Receives results until the task is aborted. Recreates a consumer that ended or missed its heartbeats.
    async fn take_results(self: Arc<Self>, mut consumer: PullConsumer) {
        loop {
            let opened = consumer.stream().max_messages_per_batch(256).heartbeat(HEARTBEAT).messages().await;
            match opened {
                Ok(mut messages) => {
                    while let Some(message) = messages.next().await {
                        match message {
                            Ok(message) => self.take_result(message).await,
                            Err(error) => {
                                debug!(%error, "the consumer of results ended");
                                break;
                            }
                        }
                    }
                }
                Err(error) => debug!(%error, "failed to subscribe to results"),
            }
            consumer = loop {
                tokio::time::sleep(REBUILD_PAUSE).await;
                // A broker that lost its data lost the stream, the bucket and the consumers.
                let made = async {
                    self.open().await?;
                    self.make_consumers().await
                };
                match made.await {
                    Ok(consumer) => break consumer,
                    Err(error) => debug!(%error, "failed to recreate the consumers"),
                }
            };
            info!("receiving results again");
        }
    }

    async fn take_result(&self, message: async_nats::jetstream::Message) {
        let (message, acker) = message.split();
        let id = message.subject.rsplit('.').next().unwrap_or_default().to_owned();
        let body = match self.broker.unpack(&self.options.run, &message).await {
            Ok(body) => Ok(body),
            Err(error @ BrokerError::ObjectGone { .. }) => Err(error.to_string()),
            // The broker redelivers it.
            Err(_) => return,
        };
        if let Some(object) = object_of(&message) {
            self.broker.discard_object(&self.options.run, object).await;
        }
        let bytes = body.as_ref().map_or(0, bytes::Bytes::len);
        let read = body.and_then(|body| decode::<JobResult>(&body).map_err(|error| error.to_string()));
        let result = read.unwrap_or_else(|why| {
            warn!(job = id, why, "a result cannot be read");
            let outcome = Outcome::Dead(format!("its result cannot be read: {why}"));
            JobResult { worker: String::new(), delivery: 0, took: Duration::ZERO, outcome }
        });
        self.settle(id, result, acker, bytes).await;
    }

    /// Passes a result to the caller that waits for it, or counts why none does.
    async fn settle(&self, id: String, result: JobResult, acker: Acker, bytes: usize) {
        let dropped = {
            let mut jobs = self.jobs();
            match (jobs.waiting.remove(&id), jobs.settled.get(&id)) {
                (Some(waiting), _) => {
                    self.count(&result);
                    jobs.settled.add(id, Settlement::Done);
                    // The caller may have dropped its future just now.
                    drop(waiting.result.send(result));
                    vec![acker]
                }
                (None, Some(Settlement::Done)) => {
                    self.duplicate.fetch_add(1, Relaxed);
                    vec![acker]
                }
                (None, Some(Settlement::Withdrawn)) => {
                    self.late.fetch_add(1, Relaxed);
                    vec![acker]
                }
                (None, None) => {
                    let given_up = jobs.early.put(id, result, acker, bytes);
                    self.foreign.fetch_add(given_up.len() as u64, Relaxed);
                    given_up
                }
            }
        };
        for acker in &dropped {
            self.acknowledge(acker).await;
        }
    }

    fn count(&self, result: &JobResult) {
        self.done.fetch_add(1, Relaxed);
        if matches!(result.outcome, Outcome::Dead(_)) {
            self.dead.fetch_add(1, Relaxed);
        }
        self.workers().done(&result.worker, result.took);
    }

    /// Acknowledges a result. If that fails, the broker redelivers it, and it is counted as a duplicate.
    async fn acknowledge(&self, acker: &Acker) {
        if let Err(error) = acker.ack().await {
            debug!(%error, "a result was not acknowledged");
        }
    }

    /// Passes questions to the jobs that they concern.
    async fn take_questions(self: Arc<Self>) {
        let subject = self.broker.names.questions(&self.options.run);
        loop {
            match self.broker.client.subscribe(subject.clone()).await {
                Ok(mut questions) => {
                    while let Some(message) = questions.next().await {
                        self.take_question(message).await;
                    }
                }
                Err(error) => debug!(%error, "failed to subscribe to questions"),
            }
            tokio::time::sleep(REBUILD_PAUSE).await;
        }
    }

    async fn take_question(&self, message: async_nats::Message) {
        let object = object_of(&message).map(str::to_owned);
        let Ok(body) = self.broker.unpack(&self.options.run, &message).await else { return };
        if let Some(object) = object {
            self.broker.discard_object(&self.options.run, &object).await;
        }
        let Ok(question) = decode::<Question>(&body) else { return };
        let key = (question.delivery, question.number);
        let id = question.job.clone();
        let answered = self.pass(question, message.reply.as_ref());
        if let (Some(answer), Some(reply)) = (answered, message.reply) {
            self.reply(&id, key, reply, &answer).await;
        }
    }

    /// Queues a question for its job, or returns the answer if the dispatcher knows it.
    fn pass(&self, question: Question, reply: Option<&async_nats::Subject>) -> Option<Answer> {
        let mut jobs = self.jobs();
        let Some(waiting) = jobs.waiting.get_mut(&question.job) else {
            // This process may submit a job of an earlier process soon. Until then its result may be used.
            let unknown = jobs.settled.get(&question.job).is_none() && self.started.elapsed() < RESUBMITTED;
            return Some(match question.query {
                Query::Wanted { .. } => Answer::Wanted(unknown),
                _ if unknown => return None,
                _ => Answer::NotYours,
            });
        };
        if question.delivery < waiting.delivery {
            return Some(Answer::NotYours);
        }
        if question.delivery > waiting.delivery {
            if question.delivery > 1 {
                self.redelivered.fetch_add(1, Relaxed);
            }
            waiting.delivery = question.delivery;
        }
        if let Query::Wanted { .. } = question.query {
            return Some(Answer::Wanted(true));
        }
        if let Some(reply) = reply {
            // If the queue is full, the question is dropped. The worker sends it again.
            drop(waiting.questions.try_send(Asked { question, reply: reply.clone() }));
        }
        None
    }

    async fn reply(&self, job: &str, key: (u64, u64), reply: async_nats::Subject, answer: &Answer) {
        let object = format!("{job}-a{}-{}", key.0, key.1);
        match self.broker.pack(&self.options.run, &object, encode(answer).into()).await {
            Ok(message) => {
                let (headers, body) = message.into_parts();
                // The worker sends its question again if the answer is lost.
                drop(self.broker.client.publish_with_headers(reply, headers, body).await);
            }
            Err(error) => warn!(job, %error, "failed to send an answer"),
        }
    }

    /// Updates the table of workers from their reports.
    async fn take_reports(self: Arc<Self>) {
        let subject = self.broker.names.reports(&self.options.run);
        loop {
            if let Ok(mut reports) = self.broker.client.subscribe(subject.clone()).await {
                while let Some(message) = reports.next().await {
                    if let Ok(report) = decode::<WorkerReport>(&message.payload) {
                        self.workers().report(report);
                    }
                }
            }
            tokio::time::sleep(REBUILD_PAUSE).await;
        }
    }

    /// Looks periodically for stuck jobs. Publishes jobs again that the broker has lost, and recreates consumers that
    /// do not deliver queued jobs.
    async fn audit(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(self.options.audit_every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let is_old = |waiting: &Waiting| waiting.since.elapsed() >= self.options.audit_every;
            let old: Vec<String> = {
                let jobs = self.jobs();
                jobs.waiting.iter().filter(|(_, waiting)| is_old(waiting)).map(|(id, _)| id.clone()).collect()
            };
            if old.is_empty() {
                continue;
            }
            let Ok(stored) = self.stored().await else { continue };
            self.hand_out_lost(old.iter().filter(|id| !stored.contains(*id)));
            for offer in &self.offers {
                if let Err(error) = self.wake_consumer(&offer.name).await {
                    debug!(%error, environment = offer.name, "failed to check a consumer");
                }
            }
        }
    }

    /// Makes the callers of lost jobs publish them again.
    fn hand_out_lost<'a>(&self, lost: impl Iterator<Item = &'a String>) {
        let mut jobs = self.jobs();
        for id in lost {
            if let Some(waiting) = jobs.waiting.get_mut(id) {
                warn!(job = id, "the broker has lost a job: it is published again");
                waiting.since = Instant::now();
                waiting.missing.notify_one();
            }
        }
    }

    /// Recreates the consumer of an environment if it has neither pending nor unacknowledged messages while jobs are
    /// queued. This happens after some failures of the broker (nats-server issues 4736 and 7680).
    async fn wake_consumer(&self, environment: &str) -> Result<(), async_nats::Error> {
        let names = &self.broker.names;
        let run = &self.options.run;
        let name = names.job_consumer(run, environment);
        let stream = self.broker.jetstream.get_stream_no_info(names.stream()).await?;
        let queued = async || -> Result<bool, async_nats::Error> {
            let mut jobs = stream.info_with_subjects(names.jobs(run, environment)).await?;
            Ok(jobs.try_next().await?.is_some())
        };
        if !queued().await? {
            return Ok(());
        }
        let consumer = stream.consumer_info(&name).await?;
        if consumer.num_pending > 0 || consumer.num_ack_pending > 0 || !queued().await? {
            return Ok(());
        }
        warn!(environment, "the broker does not deliver queued jobs: their consumer is recreated");
        stream.delete_consumer(&name).await?;
        self.make_job_consumer(environment).await?;
        Ok(())
    }

    /// Ids of all jobs and results of this run in the stream.
    async fn stored(&self) -> Result<HashSet<String>, async_nats::Error> {
        let names = &self.broker.names;
        let run = &self.options.run;
        let mut ids = HashSet::new();
        // Jobs first: a job whose result is stored in the meantime is in one of the two lists.
        for filter in [names.all_jobs(run), names.results(run)] {
            let stream = self.broker.jetstream.get_stream_no_info(names.stream()).await?;
            let mut subjects = stream.info_with_subjects(&filter).await?;
            while let Some((subject, _)) = subjects.try_next().await? {
                ids.insert(subject.rsplit('.').next().unwrap_or_default().to_owned());
            }
        }
        Ok(ids)
    }

    /// Announces the run and its environments to workers periodically.
    async fn announce(self: Arc<Self>) {
        let announcement = Announcement {
            run: self.options.run.clone(),
            program: self.options.program.clone(),
            environments: self.offers.clone(),
            ack_wait: self.options.ack_wait,
            max_deliver: self.options.max_deliver,
        };
        let bytes: bytes::Bytes = encode(&announcement).into();
        let subject = self.broker.names.announcements(Some(&self.options.run));
        let mut warned = Instant::now();
        let mut ticks = tokio::time::interval(ANNOUNCE_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.broker.client.publish(subject.clone(), bytes.clone()).await {
                debug!(%error, "failed to announce the run");
            }
            self.workers().forget_silent();
            if warned.elapsed() >= WARN_EVERY {
                warned = Instant::now();
                self.warn_of_idle_jobs();
            }
        }
    }

    /// Warns about environments that no worker serves while jobs wait.
    fn warn_of_idle_jobs(&self) {
        if self.jobs().waiting.is_empty() {
            return;
        }
        let workers = self.workers().all();
        let served = |name: &String| workers.iter().any(|worker| worker.report.serves.contains(name));
        for name in self.offers.iter().map(|offer| &offer.name).filter(|name| !served(name)) {
            warn!(
                environment = name,
                run = self.options.run,
                "no worker serves an environment: its jobs wait"
            );
        }
    }
}
