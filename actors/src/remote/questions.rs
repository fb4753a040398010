//! The worker's side of questions: the run answers the model queries of rewards and environments.
//!
//! A worker therefore needs no API key and no weights, and only the run retries, counts and limits requests. A worker
//! repeats a question until an answer arrives. The question's number lets the run recognize a repetition.

use super::broker::Broker;
use super::message::{Answer, Demand, LeasedAdapterRequest, Query, Question, SampledWeights, decode, encode};
use async_nats::RequestErrorKind;
use async_trait::async_trait;
use futures::FutureExt as _;
use minds_core::datum::Datum;
use minds_core::environment::{AdapterLease, FrozenWeights, LogprobDelta, Oracle};
use minds_core::ids::Token;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::reward::RewardError;
use minds_core::sampling::{SampleRequest, SampleResponse};
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, TrainingBackend,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tracing::debug;

/// Time after which an unanswered question is sent again.
const RESEND: Duration = Duration::from_secs(5);
/// Pause before a question is sent again after a failed attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// Time without a process of the run after which a worker abandons a job that asks questions, so that other runs get
/// its slot.
const ORPHANED: Duration = Duration::from_secs(20);

/// Asks the run about one delivery of a job.
pub(super) struct JobQuestions {
    broker: Broker,
    run: String,
    job: String,
    delivery: u64,
    asked: AtomicU64,
    /// Notified when the run no longer waits for this delivery.
    given_up: Notify,
}

impl JobQuestions {
    pub(super) fn new(broker: Broker, run: String, job: String, delivery: u64) -> Arc<Self> {
        let asked = AtomicU64::new(0);
        Arc::new(Self { broker, run, job, delivery, asked, given_up: Notify::new() })
    }

    /// Waits until the run no longer waits for this delivery, or has not answered for [`ORPHANED`].
    pub(super) async fn given_up(&self) {
        self.given_up.notified().await;
    }

    fn question(&self, session: usize, query: Query) -> (u64, Vec<u8>) {
        let number = self.asked.fetch_add(1, Relaxed);
        let job = self.job.clone();
        (number, encode(&Question { job, delivery: self.delivery, number, session, query }))
    }

    /// Reports to the run that the job has started. The message may get lost: it only updates the run's counts.
    pub(super) async fn tell_begun(&self, worker: &str) {
        let (_, question) = self.question(0, Query::Wanted { worker: worker.into() });
        let subject = self.broker.names.questions(&self.run);
        drop(self.broker.client.publish(subject, question.into()).await);
    }

    /// Reports to the run that the worker returns the job to the queue. If the message gets lost, the delivery counts.
    pub(super) async fn tell_handed_back(&self) {
        let (_, question) = self.question(0, Query::HandedBack);
        let subject = self.broker.names.questions(&self.run);
        drop(self.broker.client.publish(subject, question.into()).await);
    }

    /// Whether the run waits for the result; `None` without an answer within the client's request timeout.
    pub(super) async fn demand(&self, worker: &str) -> Option<Demand> {
        let (_, question) = self.question(0, Query::Wanted { worker: worker.into() });
        let subject = self.broker.names.questions(&self.run);
        let answered = self.broker.client.request(subject, question.into()).await.ok()?;
        match decode(&answered.payload).ok()? {
            Answer::Wanted(demand) => Some(demand),
            Answer::NotYours => Some(Demand::default()),
            _ => None,
        }
    }

    /// Returns the answer to a question. Retries without a limit; never returns once the job is abandoned.
    async fn ask(&self, session: usize, query: Query) -> Answer {
        let (number, question) = self.question(session, query);
        let object = format!("{}-q{}-{number}", self.job, self.delivery);
        let mut absent_since = None;
        loop {
            match self.ask_once(&object, question.clone().into()).await {
                Ok(Answer::NotYours) => break,
                Ok(answer) => return answer,
                // Only time with a connection counts: during an outage of the broker the run still waits for the job.
                Err(Unanswered::RunAbsent) if self.broker.state().is_connected() => {
                    if absent_since.get_or_insert_with(Instant::now).elapsed() > ORPHANED {
                        break;
                    }
                }
                Err(_) => absent_since = None,
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.given_up.notify_one();
        std::future::pending().await
    }

    /// Sends a question once.
    async fn ask_once(&self, object: &str, question: bytes::Bytes) -> Result<Answer, Unanswered> {
        let failed = |error: &dyn std::fmt::Display| {
            debug!(%error, "a question has no answer yet");
            Unanswered::Retry
        };
        let packed = self.broker.pack(&self.run, object, question).await.map_err(|error| failed(&error))?;
        let (headers, body) = packed.into_parts();
        let request = async_nats::Request::new().headers(headers).payload(body).timeout(Some(RESEND));
        let subject = self.broker.names.questions(&self.run);
        let message = match self.broker.client.send_request(subject, request).await {
            Ok(message) => message,
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                return Err(Unanswered::RunAbsent);
            }
            Err(error) => return Err(failed(&error)),
        };
        let body = self.broker.unpack(&self.run, &message).await.map_err(|error| failed(&error))?;
        if let Some(object) = super::broker::object_of(&message) {
            self.broker.discard_object(&self.run, object).await;
        }
        decode(&body).map_err(|error| failed(&error))
    }
}

/// Why a question has no answer yet.
enum Unanswered {
    /// No process subscribes to the questions of the run.
    RunAbsent,
    /// The request failed or timed out. The run may still be working on the answer.
    Retry,
}

/// The run's oracle for a job on a worker, at the rollout's policy version.
pub(super) struct RemoteOracle {
    pub(super) questions: Arc<JobQuestions>,
    pub(super) session: usize,
}

fn unexpected<T>() -> Result<T, RewardError> {
    Err(RewardError::Service("the run sent an unexpected answer".into()))
}

#[async_trait]
impl Oracle for RemoteOracle {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        match self.questions.ask(self.session, Query::Logprobs(prefix, target)).await {
            Answer::Logprobs(answer) => answer,
            _ => unexpected(),
        }
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        match self.questions.ask(self.session, Query::NextTokens(prefix, k)).await {
            Answer::NextTokens(answer) => answer,
            _ => unexpected(),
        }
    }

    async fn logprob_delta(
        &self,
        text: Datum,
        prefix: Arc<[Token]>,
        target: Arc<[Token]>,
    ) -> Result<LogprobDelta, RewardError> {
        match self.questions.ask(self.session, Query::LogprobDelta(text, prefix, target)).await {
            Answer::LogprobDelta(answer) => answer,
            _ => unexpected(),
        }
    }

    async fn lease_adapter(&self) -> Result<AdapterLease, RewardError> {
        match self.questions.ask(self.session, Query::LeaseAdapter).await {
            Answer::Leased(leased) => leased?,
            _ => return unexpected(),
        }
        let (requests, queue) = mpsc::unbounded_channel();
        tokio::spawn(send_in_order(self.questions.clone(), self.session, queue));
        let training = RemoteAdapter { requests, questions: self.questions.clone(), session: self.session };
        // The run returns the adapter to its pool when the job ends.
        Ok(AdapterLease { training: Arc::new(training), guard: Box::new(()) })
    }

    async fn frozen(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
        let questions = self.questions.clone();
        let weights = SampledWeights::Frozen(weights);
        Ok(Arc::new(RunSampler { questions, session: self.session, weights }))
    }
}

/// A request to an adapter, and the sender of its answer.
type QueuedRequest = (LeasedAdapterRequest, oneshot::Sender<Answer>);

/// Sends the requests to an adapter one after the other, even if callers have dropped their futures.
async fn send_in_order(
    questions: Arc<JobQuestions>,
    session: usize,
    mut queue: mpsc::UnboundedReceiver<QueuedRequest>,
) {
    while let Some((request, answered)) = queue.recv().await {
        // The caller may have dropped its future.
        drop(answered.send(questions.ask(session, Query::Train(request)).await));
    }
}

/// The adapter that the run has leased for a session.
struct RemoteAdapter {
    requests: mpsc::UnboundedSender<QueuedRequest>,
    questions: Arc<JobQuestions>,
    session: usize,
}

impl RemoteAdapter {
    /// Queues a request immediately. `read` extracts the result from the answer; `None` marks an unexpected answer.
    fn request<T: Send + 'static>(
        &self,
        request: LeasedAdapterRequest,
        read: impl FnOnce(Answer) -> Option<Result<T, BackendError>> + Send + 'static,
    ) -> Pending<T> {
        let (answered, answer) = oneshot::channel();
        // The queue closes when the job ends. The dropped sender then reports a lost request.
        drop(self.requests.send((request, answered)));
        async move {
            let answer = answer.await.map_err(|_| BackendError::Lost("its job has ended".into()))?;
            read(answer)
                .unwrap_or_else(|| Err(BackendError::Unavailable("the run sent an unexpected answer".into())))
        }
        .boxed()
    }

    fn pass(&self, request: LeasedAdapterRequest) -> Pending<ForwardOutput> {
        self.request(request, |answer| match answer {
            Answer::Passed(passed) => Some(passed),
            _ => None,
        })
    }
}

fn unsupported<T: Send + 'static>(what: &str) -> Pending<T> {
    let error = BackendError::Unsupported(format!("{what} a leased adapter from a worker"));
    std::future::ready(Err(error)).boxed()
}

impl TrainingBackend for RemoteAdapter {
    fn forward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.pass(LeasedAdapterRequest::Forward(data, loss))
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.pass(LeasedAdapterRequest::ForwardBackward(data, loss))
    }

    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep> {
        self.request(LeasedAdapterRequest::OptimStep(params), |answer| match answer {
            Answer::Stepped(stepped) => Some(stepped),
            _ => None,
        })
    }

    fn save_state(&self, _name: &str) -> Pending<String> {
        unsupported("saving")
    }

    fn load_state(&self, _path: &str, _with_optimizer: bool) -> Pending<()> {
        unsupported("loading")
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        if name.is_some() {
            return unsupported("naming an export of");
        }
        let questions = self.questions.clone();
        let session = self.session;
        self.request(LeasedAdapterRequest::Export, move |answer| match answer {
            Answer::Exported(exported) => Some(exported.map(|number| {
                let weights = SampledWeights::Exported(number);
                Export { sampler: Arc::new(RunSampler { questions, session, weights }), path: None }
            })),
            _ => None,
        })
    }
}

/// Samples from weights of the run through questions.
pub(super) struct RunSampler {
    pub(super) questions: Arc<JobQuestions>,
    pub(super) session: usize,
    pub(super) weights: SampledWeights,
}

#[async_trait]
impl SamplingBackend for RunSampler {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        match self.questions.ask(self.session, Query::Sample(request, self.weights.clone())).await {
            Answer::Sampled(answer) => answer,
            _ => Err(BackendError::Unavailable("the run sent an unexpected answer".into())),
        }
    }

    async fn logprobs_from(
        &self,
        tokens: Arc<[Token]>,
        from: usize,
    ) -> Result<Vec<Option<f32>>, BackendError> {
        let query = Query::TokenLogprobs { tokens, from, weights: self.weights.clone() };
        match self.questions.ask(self.session, query).await {
            Answer::TokenLogprobs(answer) => answer,
            _ => Err(BackendError::Unavailable("the run sent an unexpected answer".into())),
        }
    }
}
