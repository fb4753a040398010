//! The run's side of the broker: publishes jobs, answers the questions of workers, and receives results.
//!
//! The broker delivers at least once; the dispatcher passes each result on exactly once. The id of a job is derived
//! from its content, and one caller waits for its result. A second result is a duplicate. A result that arrives after
//! the caller dropped its future is late. A result of an unknown job is kept for a while, because a resumed run submits
//! the same jobs again. Only the newest delivery of a job gets answers to its questions, so a superseded worker stops.

mod answers;
mod auditing;
mod consumers;
mod counts;
mod options;
mod publishing;
mod receiving;
mod state;
mod stream_fill;

pub use answers::Answerer;
pub use counts::JobCounts;
pub use options::DispatcherOptions;

use super::broker::{Broker, BrokerError};
use super::message::{Job, JobResult, Offer};
use super::worker_table::SeenWorker;
use crate::mailbox::catch_panic;
use answers::PendingAnswers;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use publishing::Withdrawal;
use state::{AddedJob, JobAdmission, PAUSE, Shared};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;
use tracing::{debug, error};

/// Publishes the jobs of a run and receives their results. Clones share their state.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
    tasks: Arc<Mutex<JoinSet<()>>>,
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
        let shared = Shared::new(broker, options, offers);
        shared.open().await?;
        shared.remove_old_jobs().await?;
        // A new consumer redelivers at once the results that an earlier process did not acknowledge.
        let names = &shared.broker.names;
        let run = &shared.options.run;
        let consumer = names.result_consumer(run);
        drop(shared.broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await);
        let results = shared.make_consumers().await?;
        let mut tasks = JoinSet::new();
        let work: [BoxFuture<'static, ()>; 6] = [
            shared.clone().take_results(results).boxed(),
            shared.clone().take_questions().boxed(),
            shared.clone().take_reports().boxed(),
            shared.clone().announce().boxed(),
            shared.clone().audit().boxed(),
            shared.clone().watch_fill().boxed(),
        ];
        for task in work {
            let shared = shared.clone();
            tasks.spawn(async move {
                // None of them ends by itself.
                if let Err(why) = catch_panic(task).await {
                    error!(why, "a task of the dispatcher has ended");
                    shared.panicked.send_replace(true);
                }
            });
        }
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

    /// Waits until the dispatcher cannot go on, and returns the reason. The jobs of the run stay on the broker.
    pub async fn failed(&self) -> BrokerError {
        // The sender lives as long as this.
        drop(self.shared.panicked.subscribe().wait_for(|panicked| *panicked).await);
        BrokerError::Panicked
    }

    pub(super) fn salt(&self) -> &str {
        &self.shared.options.salt
    }

    /// Current counts of the run's jobs.
    #[must_use]
    pub fn counts(&self) -> JobCounts {
        let jobs = self.shared.jobs();
        let running = jobs.waiting.values().filter(|job| job.delivery > 0).count() as u64;
        self.shared.counters.with_waiting(jobs.waiting.len() as u64 - running, running)
    }

    /// The workers that report to this run, sorted by name.
    #[must_use]
    pub fn workers(&self) -> Vec<SeenWorker> {
        self.shared.workers().all()
    }

    /// Publishes a job, answers the questions of its worker, and returns the result.
    ///
    /// Dropping the future cancels the job.
    pub(super) async fn submit(&self, id: &str, job: &Job<'_>, answerer: &dyn Answerer) -> JobResult {
        let shared = &self.shared;
        let admission = shared.jobs().add(id, &job.environment);
        let AddedJob { id, result: mut awaited, questions: mut asked, missing } = match admission {
            JobAdmission::Added(added) => added,
            JobAdmission::Done(done) => {
                let (result, acker) = *done;
                debug!(job = id, "using a result that arrived before its job was submitted");
                shared.acknowledge(&acker).await;
                shared.counters.taken_up.fetch_add(1, Relaxed);
                shared.count(&result);
                return result;
            }
        };
        let withdrawal = Withdrawal::new(shared, &id, &job.environment);
        let mut publishing = shared.publish(&id, job).boxed();
        let mut is_published = false;
        let mut has_object = false;
        let mut answers = PendingAnswers::new(answerer);
        loop {
            tokio::select! {
                biased;
                result = &mut awaited => {
                    let Ok(result) = result else { unreachable!("the sender is dropped by this future alone") };
                    withdrawal.cancel();
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
                Some(asked) = asked.recv() => {
                    if let Some((key, reply, answer)) = answers.ask(*asked) {
                        shared.reply(&id, key, reply, &answer).await;
                    }
                }
                Some((key, replies, answer)) = answers.next() => {
                    for reply in replies {
                        shared.reply(&id, key, reply, &answer).await;
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
        drop(tokio::time::timeout(PAUSE, self.shared.broker.client.flush()).await);
    }
}
