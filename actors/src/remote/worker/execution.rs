//! One job on a worker: it is executed, its result is stored, then the job is acknowledged.

use super::{PAUSE, Served, Worker, is_true, keep_alive, lock};
use crate::generate::RolloutGenerator;
use crate::generate::session::session_result;
use crate::mailbox::catch_panic;
use crate::remote::broker::BrokerError;
use crate::remote::dead_letters::{self, DeadLetter};
use crate::remote::message::{
    Job, JobResult, JobWork, Outcome, SampledWeights, SessionStamp, decode, encode,
};
use crate::remote::questions::{JobQuestions, RemoteOracle, RunSampler};
use crate::service::retry::Retry;
use crate::telemetry::activity::Activity;
use crate::telemetry::meters::PipelineMeters;
use async_nats::jetstream::{AckKind, Message};
use futures::future::{join, join_all};
use minds_core::environment::{Item, RolloutSession, SessionError, SessionRollout};
use minds_core::reward::RewardError;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::{debug, warn};

/// Why a worker stopped working on a job.
enum JobEnd {
    Outcome(Outcome),
    Withdrawn,
    GivenUp,
    HandedBack,
}

impl Worker {
    /// Executes one job, stores its result and acknowledges it.
    pub(super) async fn process(&self, served: &Served, message: &Message) {
        let id = job_id(message);
        let delivery = delivery(message);
        let questions = self.questions(served, message);
        debug!(job = id, delivery, environment = served.component.name, "starting a job");
        let mut failures = 0;
        if delivery == 1 {
            questions.tell_begun(&self.options.name).await;
        } else {
            let demand = questions.demand(&self.options.name).await;
            if demand.is_some_and(|demand| !demand.is_wanted) {
                debug!(job = id, "dropping a redelivered job: its run does not wait for it");
                self.acknowledge(message, AckKind::Ack).await;
                return;
            }
            failures = (delivery - 1).saturating_sub(demand.unwrap_or_default().handed_back);
        }
        let begun = Instant::now();
        let cancelled = Arc::new(Notify::new());
        lock(&self.running).insert(id.clone(), cancelled.clone());
        let mut hand_back = self.hand_back.clone();
        let end = tokio::select! {
            outcome = self.outcome(served, message, &id, failures, &questions) => JobEnd::Outcome(outcome),
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
            JobEnd::HandedBack => return self.return_to_queue(served, message).await,
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

    fn questions(&self, served: &Served, message: &Message) -> Arc<JobQuestions> {
        JobQuestions::new(self.broker.clone(), served.run.clone(), job_id(message), delivery(message))
    }

    /// Returns an unfinished job to the queue. Its delivery does not count as a failure.
    pub(super) async fn return_to_queue(&self, served: &Served, message: &Message) {
        self.handed_back.fetch_add(1, Relaxed);
        self.questions(served, message).tell_handed_back().await;
        self.acknowledge(message, AckKind::Nak(None)).await;
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

    /// Executes a job and returns its outcome. A job that cannot be executed, or whose deliveries failed too often,
    /// becomes a dead letter.
    async fn outcome(
        &self,
        served: &Served,
        message: &Message,
        id: &str,
        failures: u64,
        questions: &Arc<JobQuestions>,
    ) -> Outcome {
        if failures >= served.max_deliver {
            let cause = format!(
                "it was delivered {failures} times, and each time its worker ended, hung or lost its connection"
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
            JobWork::Score { item, rollout } => {
                let oracle = RemoteOracle { questions: questions.clone(), session: 0 };
                Outcome::Scored(generator.score(&served.component, &item, &rollout, &oracle).await)
            }
            JobWork::Generate { item, sessions } => {
                Outcome::Generated(generate(served, &item, &sessions, questions).await)
            }
        }
    }
}

/// Id of the job in a message.
fn job_id(message: &Message) -> String {
    message.subject.rsplit('.').next().unwrap_or_default().to_owned()
}

/// Number of deliveries of the job in a message, this one included.
fn delivery(message: &Message) -> u64 {
    message.info().map_or(1, |info| u64::try_from(info.delivered).unwrap_or(1))
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
