//! The state that the tasks of a dispatcher share.

use super::counts::JobCounters;
use super::options::DispatcherOptions;
use super::stream_fill::StreamFill;
use crate::remote::broker::Broker;
use crate::remote::early_results::EarlyResults;
use crate::remote::message::{JobResult, Offer, Question};
use crate::remote::settled_jobs::{SettledJobs, Settlement};
use crate::remote::worker_table::WorkerTable;
use async_nats::jetstream::message::Acker;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

/// Pause before a failed request of a background task is repeated.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// Capacity of the queue of questions about one job.
const QUESTIONS: usize = 256;

/// What the tasks of a dispatcher share.
pub(super) struct Shared {
    pub(super) broker: Broker,
    pub(super) options: DispatcherOptions,
    pub(super) offers: Vec<Offer>,
    pub(super) started: Instant,
    pub(super) counters: JobCounters,
    /// One permit per byte of jobs that wait until the broker stores them.
    pub(super) buffer: Semaphore,
    /// Whether the run stops unfinished and leaves its jobs on the broker until it resumes.
    pub(super) leaving: AtomicBool,
    /// Set when a background task has panicked.
    pub(super) panicked: watch::Sender<bool>,
    fill: Mutex<StreamFill>,
    jobs: Mutex<JobTable>,
    workers: Mutex<WorkerTable>,
}

/// The jobs of a run, by what is known of their results.
#[derive(Default)]
pub(super) struct JobTable {
    pub(super) waiting: HashMap<String, WaitingJob>,
    pub(super) settled: SettledJobs,
    pub(super) early: EarlyResults,
}

/// A job whose caller waits for the result.
pub(super) struct WaitingJob {
    pub(super) result: oneshot::Sender<JobResult>,
    /// Boxed, because the queue reserves room for many questions when it is created.
    pub(super) questions: mpsc::Sender<Box<Asked>>,
    /// Name of its environment.
    environment: String,
    /// Number of times that the broker began to count its deliveries from 1 again.
    pub(super) generation: u64,
    /// The newest delivery from which a question arrived; 0 before the first.
    pub(super) delivery: u64,
    /// Number of deliveries that a worker returned to the queue because it had to stop.
    pub(super) handed_back: u64,
    /// Time at which it was submitted, or last found missing on the broker.
    pub(super) since: Instant,
    /// Notified when the broker has neither the job nor its result.
    pub(super) missing: Arc<Notify>,
}

/// A question and the subject for its answer.
pub(super) struct Asked {
    /// The job's generation when the question arrived.
    pub(super) generation: u64,
    pub(super) question: Question,
    pub(super) reply: async_nats::Subject,
}

/// The caller's side of a job that was added to the table.
pub(super) struct AddedJob {
    pub(super) id: String,
    pub(super) result: oneshot::Receiver<JobResult>,
    pub(super) questions: mpsc::Receiver<Box<Asked>>,
    pub(super) missing: Arc<Notify>,
}

/// What became of a new job.
pub(super) enum JobAdmission {
    /// Its result arrives later.
    Added(AddedJob),
    /// Its result was there already, from an earlier process of the run.
    Done(Box<(JobResult, Acker)>),
}

impl Shared {
    pub(super) fn new(broker: Broker, options: DispatcherOptions, offers: Vec<Offer>) -> Arc<Self> {
        Arc::new(Self {
            buffer: Semaphore::new(options.buffer_bytes.min(Semaphore::MAX_PERMITS)),
            broker,
            options,
            offers,
            started: Instant::now(),
            counters: JobCounters::default(),
            leaving: AtomicBool::new(false),
            panicked: watch::Sender::default(),
            fill: Mutex::default(),
            jobs: Mutex::default(),
            workers: Mutex::default(),
        })
    }

    pub(super) fn fill(&self) -> MutexGuard<'_, StreamFill> {
        self.fill.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn jobs(&self) -> MutexGuard<'_, JobTable> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn workers(&self) -> MutexGuard<'_, WorkerTable> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingJob {
    /// The broker counts deliveries from 1 again: the job has a new message, or its environment a new consumer.
    pub(super) fn count_anew(&mut self) {
        self.generation += 1;
        self.delivery = 0;
        self.handed_back = 0;
    }
}

impl JobTable {
    /// Waiting jobs of this environment.
    pub(super) fn of_environment<'a>(
        &'a mut self,
        environment: &'a str,
    ) -> impl Iterator<Item = &'a mut WaitingJob> {
        self.waiting.values_mut().filter(move |waiting| waiting.environment == environment)
    }

    /// Adds a job. A job that is submitted again gets a new id, so that messages of the earlier one do not reach it.
    pub(super) fn add(&mut self, submitted: &str, environment: &str) -> JobAdmission {
        let mut id = submitted.to_owned();
        let mut again = 0_u32;
        while self.waiting.contains_key(&id) || self.settled.get(&id).is_some() {
            again += 1;
            id = format!("{submitted}-{again}");
        }
        if let Some(done) = self.early.take(&id) {
            self.settled.add(id, Settlement::Done);
            return JobAdmission::Done(Box::new(done));
        }
        let (sender, result) = oneshot::channel();
        let (asks, questions) = mpsc::channel(QUESTIONS);
        let missing = Arc::new(Notify::new());
        let waiting = WaitingJob {
            result: sender,
            questions: asks,
            environment: environment.to_owned(),
            generation: 0,
            delivery: 0,
            handed_back: 0,
            since: Instant::now(),
            missing: missing.clone(),
        };
        self.waiting.insert(id.clone(), waiting);
        JobAdmission::Added(AddedJob { id, result, questions, missing })
    }
}
