//! The run's end of the broker: hands out jobs, answers the questions of workers, takes results.
//!
//! The broker delivers at least once; here it becomes once. A job has an id made of its content, and its result is taken
//! by the one caller that waits for it: a second one is a duplicate, one that comes after the caller has gone is late,
//! and one that nobody has asked for is kept for a while, for a run that was interrupted asks for the same job again.
//! Questions are answered for the newest delivery of a job alone, so that a worker that was given up stops.

use super::broker::{Broker, BrokerError, PackedMessage, Published, StreamSettings, object_of};
use super::early_results::EarlyResults;
use super::message::{
    Announcement, Answer, JobResult, Offer, Outcome, Query, Question, WorkerReport, decode, encode,
};
use super::settled_jobs::{SettledJobs, Settlement};
use super::worker_table::{SeenWorker, WorkerTable};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::message::Acker;
use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

/// Time between two announcements.
pub(super) const ANNOUNCE_EVERY: Duration = Duration::from_secs(2);
/// Pause before a subscription that has ended is made again.
const REBUILD_PAUSE: Duration = Duration::from_secs(1);
/// Time without a sign of life of the broker after which the consumer of results is made again.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time after which the broker hands a result out again that was not acknowledged.
const RESULT_ACK_WAIT: Duration = Duration::from_secs(3600);
/// Time after which the broker forgets the consumers of a run that is gone.
const INACTIVE: Duration = Duration::from_secs(7 * 24 * 3600);
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
        broker.open_stream(options.stream).await?;
        broker.open_bucket(&options.run, options.stream).await?;
        let shared = Arc::new(Shared {
            buffer: Semaphore::new(options.buffer_bytes.min(Semaphore::MAX_PERMITS)),
            broker,
            options,
            offers,
            jobs: Mutex::default(),
            workers: Mutex::default(),
            leaving: AtomicBool::new(false),
            done: AtomicU64::new(0),
            redelivered: AtomicU64::new(0),
            late: AtomicU64::new(0),
            duplicate: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            dead: AtomicU64::new(0),
        });
        // Results that an earlier process of this run took and did not acknowledge are handed out again at once.
        let (names, run) = (&shared.broker.names, &shared.options.run);
        let consumer = names.result_consumer(run);
        let _ = shared.broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await;
        let results = shared.result_consumer().await?;
        shared.make_job_consumers().await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(shared.clone().take_results(results));
        tasks.spawn(shared.clone().take_questions());
        tasks.spawn(shared.clone().take_reports());
        tasks.spawn(shared.clone().announce());
        Ok(Self { shared, tasks: Arc::new(Mutex::new(tasks)) })
    }

    /// Name of the run on the broker.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.shared.options.run
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
        let Shared { done, redelivered, late, duplicate, foreign, dead, .. } = &*self.shared;
        let jobs = self.shared.jobs();
        let running = jobs.waiting.values().filter(|job| job.delivery > 0).count() as u64;
        JobCounts {
            queued: jobs.waiting.len() as u64 - running,
            running,
            done: done.load(Relaxed),
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

    /// Hands out an encoded job, answers what its worker asks, and waits for the result. Dropping the future withdraws the job.
    pub(super) async fn submit(
        &self,
        id: String,
        environment: &str,
        job: Vec<u8>,
        answerer: &dyn Answerer,
    ) -> JobResult {
        let shared = &self.shared;
        let (result, mut awaited) = oneshot::channel();
        let (questions, mut asked) = mpsc::channel(QUESTIONS);
        let early = {
            let mut jobs = shared.jobs();
            let early = jobs.early.take(&id);
            match early {
                Some(early) => {
                    jobs.settled.add(id.clone(), Settlement::Done);
                    Some(early)
                }
                None => {
                    jobs.settled.forget(&id);
                    jobs.waiting.insert(id.clone(), Waiting { result, questions, delivery: 0 });
                    None
                }
            }
        };
        if let Some((result, acker)) = early {
            debug!(job = id, "takes up a result that had come before");
            shared.acknowledge(&acker).await;
            shared.done.fetch_add(1, Relaxed);
            return result;
        }
        let mut withdrawal =
            Withdrawal { shared: shared.clone(), job: Some((id.clone(), environment.to_owned())) };
        let publishing = shared.publish(&id, environment, job);
        tokio::pin!(publishing);
        let mut stored_as = None;
        // Questions that are being answered, with everybody who waits for the answer.
        let mut replies: HashMap<(u64, u64), Vec<async_nats::Subject>> = HashMap::new();
        let mut answers = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                result = &mut awaited => {
                    let Ok(result) = result else { unreachable!("the sender is dropped by this future alone") };
                    withdrawal.job = None;
                    if stored_as == Some(StoredAs::Object) {
                        shared.broker.discard_object(&shared.options.run, &id).await;
                    }
                    return result;
                }
                stored = &mut publishing, if stored_as.is_none() => stored_as = Some(stored),
                Some(Asked { question, reply }) = asked.recv() => {
                    let key = (question.delivery, question.number);
                    match replies.entry(key) {
                        Entry::Occupied(mut waiting) => waiting.get_mut().push(reply),
                        Entry::Vacant(free) => {
                            free.insert(vec![reply]);
                            answers.push(async move {
                                (key, answerer.answer(question.session, question.query).await)
                            });
                        }
                    }
                }
                Some((key, answer)) = answers.next() => {
                    for reply in replies.remove(&key).into_iter().flatten() {
                        shared.reply(&id, key, reply, &answer).await;
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

/// Where the body of a job lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredAs {
    Message,
    Object,
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

    async fn make_job_consumers(&self) -> Result<(), BrokerError> {
        let names = &self.broker.names;
        let run = &self.options.run;
        for offer in &self.offers {
            let name = names.job_consumer(run, &offer.name);
            let config = pull::Config {
                durable_name: Some(name.clone()),
                filter_subject: names.jobs(run, &offer.name),
                ack_policy: AckPolicy::Explicit,
                ack_wait: self.options.ack_wait,
                // A worker that is handed a job too often makes a dead letter of it: the broker would only forget it.
                max_deliver: -1,
                max_ack_pending: self.options.max_ack_pending,
                inactive_threshold: INACTIVE,
                ..pull::Config::default()
            };
            let made = self.broker.jetstream.create_consumer_on_stream(config, names.stream()).await;
            made.map_err(|error| BrokerError::refused(format!("make the consumer `{name}`"), error))?;
        }
        Ok(())
    }

    async fn result_consumer(&self) -> Result<PullConsumer, BrokerError> {
        let names = &self.broker.names;
        let name = names.result_consumer(&self.options.run);
        let config = pull::Config {
            durable_name: Some(name.clone()),
            filter_subject: names.results(&self.options.run),
            ack_policy: AckPolicy::Explicit,
            ack_wait: RESULT_ACK_WAIT,
            max_ack_pending: -1,
            inactive_threshold: INACTIVE,
            ..pull::Config::default()
        };
        let made = self.broker.jetstream.create_consumer_on_stream(config, names.stream()).await;
        made.map_err(|error| BrokerError::refused(format!("make the consumer `{name}`"), error))
    }

    /// Stores a job on the broker; jobs that wait for that take at most the bytes of the buffer.
    async fn publish(&self, id: &str, environment: &str, job: Vec<u8>) -> StoredAs {
        let bytes = job.len().min(self.options.buffer_bytes);
        // The semaphore is never closed; without a permit the job is only not counted.
        let _room = self.buffer.acquire_many(u32::try_from(bytes).unwrap_or(u32::MAX)).await;
        let message = self.pack_job(id, job.into()).await;
        let subject = self.broker.names.job(&self.options.run, environment, id);
        if self.broker.publish(&subject, &message).await == Published::Exists {
            debug!(job = id, "the job is queued already");
        }
        if message.is_object() { StoredAs::Object } else { StoredAs::Message }
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
        if let Ok(stream) = self.broker.jetstream.get_stream_no_info(names.stream()).await {
            let _ = stream.purge().filter(names.job(&self.options.run, environment, id)).await;
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
            for subjects in [format!("{}.job.{run}.>", names.stream()), names.results(run)] {
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
                match self.result_consumer().await {
                    Ok(consumer) => break consumer,
                    Err(error) => debug!(%error, "the consumer of results is not made yet"),
                }
            };
            // A broker that lost its data lost these as well.
            if let Err(error) = self.make_job_consumers().await {
                warn!(%error, "workers may get no jobs");
            }
            info!("takes results again");
        }
    }

    async fn take_result(&self, message: async_nats::jetstream::Message) {
        let (message, acker) = message.split();
        let id = message.subject.rsplit('.').next().unwrap_or_default().to_owned();
        let body = match self.broker.unpack(&self.options.run, &message).await {
            Ok(body) => body,
            Err(error) => {
                // It is handed out again after a while, or its job is.
                warn!(job = id, %error, "a result cannot be read");
                return;
            }
        };
        let read = decode::<JobResult>(&body);
        if let Some(object) = object_of(&message) {
            self.broker.discard_object(&self.options.run, object).await;
        }
        match read {
            Ok(result) => self.settle(id, result, acker, body.len()).await,
            Err(error) => {
                warn!(job = id, %error, "drops a result");
                self.foreign.fetch_add(1, Relaxed);
                self.acknowledge(&acker).await;
            }
        }
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
        let mut ticks = tokio::time::interval(ANNOUNCE_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.broker.client.publish(subject.clone(), bytes.clone()).await {
                debug!(%error, "the run was not announced");
            }
            self.workers().forget_silent();
        }
    }
}
