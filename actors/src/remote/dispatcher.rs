//! The run's end of the broker: hands out jobs, answers the questions of workers, takes results.
//!
//! The broker delivers at least once; here it becomes once. A job has an id made of its content, and its result is taken
//! by the one caller that waits for it: a second one is a duplicate, one that comes after the caller has gone is late,
//! and one that nobody has asked for is kept for a while, for a run that was interrupted asks for the same job again.
//! Questions are answered for the newest delivery of a job alone, so that a worker that was given up stops.

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
/// Pause before a subscription that has ended is made again.
const REBUILD_PAUSE: Duration = Duration::from_secs(1);
/// Time without a sign of life of the broker after which the consumer of results is made again.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time after which the broker hands a result out again that was not acknowledged: one that was lost on its way, or
/// that nobody has asked for yet.
const RESULT_ACK_WAIT: Duration = Duration::from_secs(30);
/// Time after which the broker forgets the consumers of a run that is gone.
const INACTIVE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time between two warnings that nobody serves an environment.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Questions of one job that wait for their turn.
const QUESTIONS: usize = 256;

/// How jobs are handed out.
#[derive(Clone, Debug)]
pub struct DispatcherOptions {
    /// Name of the run on the broker: one token of a subject.
    pub run: String,
    /// Makes the ids of jobs impossible to guess, so that only a worker that was given a job can answer it. A run that
    /// resumes has the same one.
    pub salt: String,
    /// Version of the program.
    pub program: String,
    /// Settings of the stream, if it is created here.
    pub stream: StreamSettings,
    /// Time without a sign of life of its worker after which a job is handed out again.
    pub ack_wait: Duration,
    /// How often a job is handed out before it is a dead letter.
    pub max_deliver: u64,
    /// Most jobs of an environment that workers hold at a time.
    pub max_ack_pending: i64,
    /// Age from which a job without a result is looked for on the broker, and time between two looks.
    pub audit_every: Duration,
    /// Most bytes of jobs that wait to be stored by the broker.
    pub buffer_bytes: usize,
}

/// Numbers of the jobs of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Jobs without a worker yet.
    pub queued: u64,
    /// Jobs that a worker has begun.
    pub running: u64,
    /// Jobs with a result.
    pub done: u64,
    /// Jobs with a result that had come before they were handed out: the run was interrupted meanwhile.
    pub taken_up: u64,
    /// Times that a job was handed out again.
    pub redelivered: u64,
    /// Results that came after nobody waited any more.
    pub late: u64,
    /// Results of jobs that had one.
    pub duplicate: u64,
    /// Results of jobs that this run never handed out, or never asked for again, and what is no result.
    pub foreign: u64,
    /// Jobs that no worker finished.
    pub dead: u64,
}

/// Answers what workers ask about one job.
#[async_trait]
pub(super) trait Answerer: Sync {
    /// Answers a question about the session of this index.
    async fn answer(&self, session: usize, query: Query) -> Answer;
}

/// Hands out the jobs of a run.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

struct Shared {
    broker: Broker,
    options: DispatcherOptions,
    offers: Vec<Offer>,
    jobs: Mutex<Jobs>,
    workers: Mutex<WorkerTable>,
    /// One permit per byte of jobs that wait to be stored.
    buffer: Semaphore,
    /// Whether the run ends and leaves its jobs for the time when it resumes.
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

/// A job whose result is awaited.
struct Waiting {
    result: oneshot::Sender<JobResult>,
    questions: mpsc::Sender<Asked>,
    /// The newest delivery that has made itself known; 0 for none.
    delivery: u64,
    /// When it was handed out, or last found missing.
    since: Instant,
    /// Told when the broker has neither the job nor its result.
    missing: Arc<Notify>,
}

/// A question with the place where its answer is awaited.
struct Asked {
    question: Question,
    reply: async_nats::Subject,
}

impl Dispatcher {
    /// Opens the stream, makes the consumers of this run, and announces its environments to workers.
    ///
    /// # Errors
    /// The broker refuses something that the run needs.
    pub async fn start(
        broker: Broker,
        options: DispatcherOptions,
        offers: Vec<Offer>,
    ) -> Result<Self, BrokerError> {
        let shared = Arc::new(Shared {
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
        // Results that an earlier process of this run took and did not acknowledge are handed out again at once.
        let (names, run) = (&shared.broker.names, &shared.options.run);
        let consumer = names.result_consumer(run);
        let _ = shared.broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await;
        let results = shared.make_consumers().await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(shared.clone().take_results(results));
        tasks.spawn(shared.clone().take_questions());
        tasks.spawn(shared.clone().take_reports());
        tasks.spawn(shared.clone().announce());
        tasks.spawn(shared.clone().audit());
        Ok(Self { shared, tasks: Arc::new(Mutex::new(tasks)) })
    }

    /// Name of the run on the broker.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.shared.options.run
    }

    /// Names of the environments whose jobs it hands out.
    pub fn environments(&self) -> impl Iterator<Item = &String> {
        self.shared.offers.iter().map(|offer| &offer.name)
    }

    /// The broker.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.shared.broker
    }

    pub(super) fn salt(&self) -> &str {
        &self.shared.options.salt
    }

    /// Numbers of the jobs.
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

    /// The workers that have reported, by name.
    #[must_use]
    pub fn workers(&self) -> Vec<SeenWorker> {
        self.shared.workers().all()
    }

    /// Hands out a job, answers what its worker asks, and waits for the result. Dropping the future withdraws the job.
    pub(super) async fn submit(&self, id: String, job: &Job<'_>, answerer: &dyn Answerer) -> JobResult {
        let shared = &self.shared;
        let (result, mut awaited) = oneshot::channel();
        let (questions, mut asked) = mpsc::channel(QUESTIONS);
        let missing = Arc::new(Notify::new());
        let (id, early) = {
            let mut jobs = shared.jobs();
            // The same job again: what is still under way of the earlier one must not be taken for it.
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
            debug!(job = id, "takes up a result that had come before");
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
        // Questions that are being answered, with everybody who waits for the answer.
        let mut replies: HashMap<(u64, u64), Vec<async_nats::Subject>> = HashMap::new();
        let mut answers = FuturesUnordered::new();
        // What must not be done twice is answered from here when it is asked again.
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

    /// Ends the run on the broker. One that is `finished` takes its consumers and everything it has stored there with it,
    /// but for dead letters; another one leaves them for the time when it resumes.
    pub async fn close(&self, finished: bool) {
        self.shared.leaving.store(!finished, Relaxed);
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
        if finished {
            self.shared.remove_all().await;
        }
        // What is left in the buffers of the connection is sent.
        let _ = self.shared.broker.client.flush().await;
    }
}

/// The id of a job that is handed out once more in one process.
fn numbered(id: &str, again: u32) -> String {
    if again == 0 { id.to_owned() } else { format!("{id}-{again}") }
}

impl Jobs {
    /// Whether this process has not handed out a job of this id.
    fn is_free(&self, id: &str) -> bool {
        !self.waiting.contains_key(id) && self.settled.get(id).is_none()
    }
}

/// Withdraws a job that nobody waits for any more.
struct Withdrawal {
    shared: Arc<Shared>,
    /// Id and environment, until there is a result.
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

    fn workers(&self) -> MutexGuard<'_, WorkerTable> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the stream and the object store, or makes them.
    async fn open(&self) -> Result<(), BrokerError> {
        self.broker.open_stream(self.options.stream).await?;
        self.broker.open_bucket(&self.options.run, self.options.stream).await?;
        Ok(())
    }

    /// Makes the consumers of jobs, and returns the one of results.
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
            // A worker that is handed a job too often makes a dead letter of it: the broker would only forget it.
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
        made.map_err(|error| BrokerError::refused(format!("make the consumer `{name}`"), error))
    }

    /// Stores a job on the broker; jobs that wait for that take at most the bytes of the buffer. Returns whether its body
    /// is an object.
    async fn publish(&self, id: &str, job: &Job<'_>) -> bool {
        let encoded = encode(job);
        let bytes = encoded.len().min(self.options.buffer_bytes);
        // The semaphore is never closed; without a permit the job is only not counted.
        let _room = self.buffer.acquire_many(u32::try_from(bytes).unwrap_or(u32::MAX)).await;
        let message = self.pack_job(id, encoded.into()).await;
        let subject = self.broker.names.job(&self.options.run, &job.environment, id);
        if self.broker.publish(&subject, &message).await == Published::Exists {
            debug!(job = id, "the job is queued already");
        }
        message.is_object()
    }

    /// Encodes a job, however long its large part takes to be stored.
    async fn pack_job(&self, id: &str, job: bytes::Bytes) -> PackedMessage {
        loop {
            match self.broker.pack(&self.options.run, id, job.clone()).await {
                Ok(message) => return message,
                Err(error) => {
                    warn!(job = id, %error, "a large job waits to be stored");
                    tokio::time::sleep(REBUILD_PAUSE).await;
                }
            }
        }
    }

    /// Takes a job off the queue, and tells its worker to stop.
    async fn withdraw(&self, id: &str, environment: &str) {
        let names = &self.broker.names;
        let subject = names.cancellations(&self.options.run);
        // A worker that does not hear of it does work whose result is dropped as late.
        let _ = self.broker.client.publish(subject, id.to_owned().into()).await;
        // Deleted and not purged: a purge of one subject makes older servers skip other messages of the consumer.
        if let Ok(stream) = self.broker.jetstream.get_stream_no_info(names.stream()).await
            && let Ok(job) =
                stream.get_last_raw_message_by_subject(&names.job(&self.options.run, environment, id)).await
        {
            let _ = stream.delete_message(job.sequence).await;
        }
    }

    /// Deletes the consumers of the run, its jobs, its results and its objects.
    async fn remove_all(&self) {
        let names = &self.broker.names;
        let run = &self.options.run;
        let job_consumers = self.offers.iter().map(|offer| names.job_consumer(run, &offer.name));
        for consumer in job_consumers.chain([names.result_consumer(run)]) {
            let _ = self.broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await;
        }
        if let Ok(stream) = self.broker.jetstream.get_stream_no_info(names.stream()).await {
            for subjects in [names.all_jobs(run), names.results(run)] {
                let _ = stream.purge().filter(subjects).await;
            }
        }
        let _ = self.broker.jetstream.delete_object_store(names.bucket(run)).await;
    }

    /// Takes results until the task is aborted. A consumer that ends or goes silent is made again.
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
                Err(error) => debug!(%error, "results cannot be taken"),
            }
            consumer = loop {
                tokio::time::sleep(REBUILD_PAUSE).await;
                // A broker that lost its data lost all of these.
                let made = async {
                    self.open().await?;
                    self.make_consumers().await
                };
                match made.await {
                    Ok(consumer) => break consumer,
                    Err(error) => debug!(%error, "the consumers are not made yet"),
                }
            };
            info!("takes results again");
        }
    }

    async fn take_result(&self, message: async_nats::jetstream::Message) {
        let (message, acker) = message.split();
        let id = message.subject.rsplit('.').next().unwrap_or_default().to_owned();
        let body = match self.broker.unpack(&self.options.run, &message).await {
            Ok(body) => Ok(body),
            Err(error) if object_of(&message).is_some() && self.broker.state().is_connected() => {
                Err(error.to_string())
            }
            // The broker hands it out again when it is back.
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

    /// Hands a result to whoever waits for it.
    async fn settle(&self, id: String, result: JobResult, acker: Acker, bytes: usize) {
        let dropped = {
            let mut jobs = self.jobs();
            match (jobs.waiting.remove(&id), jobs.settled.get(&id)) {
                (Some(waiting), _) => {
                    self.count(&result);
                    jobs.settled.add(id, Settlement::Done);
                    // The caller may have gone just now.
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

    /// Has the broker forget a message. If that fails, it comes again, and is then a duplicate.
    async fn acknowledge(&self, acker: &Acker) {
        if let Err(error) = acker.ack().await {
            debug!(%error, "a result was not acknowledged");
        }
    }

    /// Passes questions to the jobs that they are about.
    async fn take_questions(self: Arc<Self>) {
        let subject = self.broker.names.questions(&self.options.run);
        loop {
            match self.broker.client.subscribe(subject.clone()).await {
                Ok(mut questions) => {
                    while let Some(message) = questions.next().await {
                        self.take_question(message).await;
                    }
                }
                Err(error) => debug!(%error, "questions cannot be taken"),
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

    /// Passes a question on, or answers it at once.
    fn pass(&self, question: Question, reply: Option<&async_nats::Subject>) -> Option<Answer> {
        let mut jobs = self.jobs();
        let Some(waiting) = jobs.waiting.get_mut(&question.job) else {
            // A job of an earlier process of this run may be asked for again soon, and is worth its result till then.
            let unknown = jobs.settled.get(&question.job).is_none();
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
            // With too many questions at a time this one is lost, and is sent again.
            drop(waiting.questions.try_send(Asked { question, reply: reply.clone() }));
        }
        None
    }

    async fn reply(&self, job: &str, key: (u64, u64), reply: async_nats::Subject, answer: &Answer) {
        let object = format!("{job}-a{}-{}", key.0, key.1);
        match self.broker.pack(&self.options.run, &object, encode(answer).into()).await {
            Ok(message) => {
                let (headers, body) = message.into_parts();
                // An answer that is lost is asked for again.
                let _ = self.broker.client.publish_with_headers(reply, headers, body).await;
            }
            Err(error) => warn!(job, %error, "an answer was not sent"),
        }
    }

    /// Keeps the table of workers.
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

    /// Looks again and again for jobs that are stuck: those that the broker does not have any more, because it lost data,
    /// are handed out again, and a consumer that does not hand out what is there is made again.
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
                    debug!(%error, environment = offer.name, "a consumer was not looked at");
                }
            }
        }
    }

    /// Has jobs handed out again that the broker has lost.
    fn hand_out_lost<'a>(&self, lost: impl Iterator<Item = &'a String>) {
        let mut jobs = self.jobs();
        for id in lost {
            if let Some(waiting) = jobs.waiting.get_mut(id) {
                warn!(job = id, "the broker has lost a job: it is handed out again");
                waiting.since = Instant::now();
                waiting.missing.notify_one();
            }
        }
    }

    /// Makes the consumer of an environment again if it has nothing to hand out and nothing handed out while there are
    /// jobs, as happens after some failures of the broker (nats-server issues 4736 and 7680).
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
        warn!(environment, "the broker does not hand out jobs: their consumer is made again");
        stream.delete_consumer(&name).await?;
        self.make_job_consumer(environment).await?;
        Ok(())
    }

    /// Ids of all jobs and results of this run that the broker has.
    async fn stored(&self) -> Result<HashSet<String>, async_nats::Error> {
        let names = &self.broker.names;
        let run = &self.options.run;
        let mut ids = HashSet::new();
        // Jobs first: a job whose result comes meanwhile is in one of the two.
        for filter in [names.all_jobs(run), names.results(run)] {
            let stream = self.broker.jetstream.get_stream_no_info(names.stream()).await?;
            let mut subjects = stream.info_with_subjects(&filter).await?;
            while let Some((subject, _)) = subjects.try_next().await? {
                ids.insert(subject.rsplit('.').next().unwrap_or_default().to_owned());
            }
        }
        Ok(ids)
    }

    /// Tells workers what there is to do, again and again.
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
                debug!(%error, "the run was not announced");
            }
            self.workers().forget_silent();
            if warned.elapsed() >= WARN_EVERY {
                warned = Instant::now();
                self.warn_of_idle_jobs();
            }
        }
    }

    /// Warns of environments whose jobs nobody takes.
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
