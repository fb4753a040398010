//! Receives results, the questions of workers and their reports.

use super::answers::QuestionKey;
use super::state::{Asked, PAUSE, Shared};
use crate::remote::broker::{BrokerError, object_of};
use crate::remote::message::{
    Answer, Demand, JobResult, Outcome, Query, Question, WorkerReport, decode, encode,
};
use crate::remote::settled_jobs::Settlement;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::message::Acker;
use futures::StreamExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tracing::{debug, info, warn};

/// Heartbeat interval of the result consumer. The consumer is recreated after missed heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time after its start in which a run submits the jobs again that an earlier process of it had submitted.
const RESUBMITTED: Duration = Duration::from_secs(5);

impl Shared {
    /// Receives results until the task is aborted. Recreates a consumer that ended or missed its heartbeats.
    pub(super) async fn take_results(self: Arc<Self>, mut consumer: PullConsumer) {
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
                tokio::time::sleep(PAUSE).await;
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
        let result = match read {
            Ok(result) => result,
            // A process that submits this job later publishes it again.
            Err(why) if !self.jobs().waiting.contains_key(&id) => {
                debug!(job = id, why, "a result of an unknown job cannot be read");
                self.counters.foreign.fetch_add(1, Relaxed);
                return self.acknowledge(&acker).await;
            }
            Err(why) => {
                warn!(job = id, why, "a result cannot be read");
                let outcome = Outcome::Dead(format!("its result cannot be read: {why}"));
                JobResult { worker: String::new(), delivery: 0, took: Duration::ZERO, outcome }
            }
        };
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
                    self.counters.duplicate.fetch_add(1, Relaxed);
                    vec![acker]
                }
                (None, Some(Settlement::Withdrawn)) => {
                    self.counters.late.fetch_add(1, Relaxed);
                    vec![acker]
                }
                (None, None) => {
                    let given_up = jobs.early.put(id, result, acker, bytes);
                    self.counters.foreign.fetch_add(given_up.len() as u64, Relaxed);
                    given_up
                }
            }
        };
        for acker in &dropped {
            self.acknowledge(acker).await;
        }
    }

    pub(super) fn count(&self, result: &JobResult) {
        self.counters.done.fetch_add(1, Relaxed);
        if matches!(result.outcome, Outcome::Dead(_)) {
            self.counters.dead.fetch_add(1, Relaxed);
        }
        self.workers().done(&result.worker, result.took);
    }

    /// Acknowledges a result. If that fails, the broker redelivers it, and it is counted as a duplicate.
    pub(super) async fn acknowledge(&self, acker: &Acker) {
        if let Err(error) = acker.ack().await {
            debug!(%error, "a result was not acknowledged");
        }
    }

    /// Passes questions to the jobs that they concern.
    pub(super) async fn take_questions(self: Arc<Self>) {
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
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn take_question(&self, message: async_nats::Message) {
        let object = object_of(&message).map(str::to_owned);
        let Ok(body) = self.broker.unpack(&self.options.run, &message).await else { return };
        if let Some(object) = object {
            self.broker.discard_object(&self.options.run, &object).await;
        }
        let Ok(question) = decode::<Question>(&body) else { return };
        // Only stored answers depend on the generation.
        let key = QuestionKey::of(&question, 0);
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
                Query::Wanted { .. } => Answer::Wanted(Demand { is_wanted: unknown, handed_back: 0 }),
                _ if unknown => return None,
                _ => Answer::NotYours,
            });
        };
        if question.delivery < waiting.delivery {
            return Some(Answer::NotYours);
        }
        if question.delivery > waiting.delivery {
            if question.delivery > 1 {
                self.counters.redelivered.fetch_add(1, Relaxed);
            }
            waiting.delivery = question.delivery;
        }
        match (&question.query, reply) {
            (Query::Wanted { .. }, _) => {
                return Some(Answer::Wanted(Demand { is_wanted: true, handed_back: waiting.handed_back }));
            }
            (Query::HandedBack, _) => waiting.handed_back += 1,
            // If the queue is full, the question is dropped. The worker sends it again.
            (_, Some(reply)) => {
                let asked = Asked { generation: waiting.generation, question, reply: reply.clone() };
                drop(waiting.questions.try_send(Box::new(asked)));
            }
            (_, None) => {}
        }
        None
    }

    pub(super) async fn reply(
        &self,
        job: &str,
        key: QuestionKey,
        reply: async_nats::Subject,
        answer: &Answer,
    ) {
        let object = format!("{job}-a{}-{}", key.delivery, key.number);
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
    pub(super) async fn take_reports(self: Arc<Self>) {
        let subject = self.broker.names.reports(&self.options.run);
        loop {
            if let Ok(mut reports) = self.broker.client.subscribe(subject.clone()).await {
                while let Some(message) = reports.next().await {
                    if let Ok(report) = decode::<WorkerReport>(&message.payload) {
                        self.workers().report(report);
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
