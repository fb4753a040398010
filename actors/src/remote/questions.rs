//! The worker's end of questions: what a reward or an environment asks of the model, the run answers.
//!
//! So a worker needs no key and no weights, and the run stays the one place that retries, counts and bounds requests.
//! A question is sent again until it is answered: the run knows its number and answers it once.

use super::broker::Broker;
use super::message::{AdapterRequest, Answer, Query, Question, SampledWeights, decode, encode};
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

/// Time after which a question is sent again.
const RESEND: Duration = Duration::from_secs(15);
/// Pause before a question is sent again to a run that is not there.
const PAUSE: Duration = Duration::from_secs(1);
/// Time without a run after which its job is given up.
const ORPHANED: Duration = Duration::from_secs(600);

/// Asks the run about one delivery of a job.
pub(super) struct JobQuestions {
    broker: Broker,
    run: String,
    job: String,
    delivery: u64,
    asked: AtomicU64,
    /// Told when the run does not want the job from this delivery.
    given_up: Notify,
}

impl JobQuestions {
    pub(super) fn new(broker: Broker, run: String, job: String, delivery: u64) -> Arc<Self> {
        let asked = AtomicU64::new(0);
        Arc::new(Self { broker, run, job, delivery, asked, given_up: Notify::new() })
    }

    /// Waits until the run says that this delivery is not to go on.
    pub(super) async fn given_up(&self) {
        self.given_up.notified().await;
    }

    fn question(&self, session: usize, query: Query) -> (u64, Vec<u8>) {
        let number = self.asked.fetch_add(1, Relaxed);
        let (job, delivery) = (self.job.clone(), self.delivery);
        (number, encode(&Question { job, delivery, number, session, query }))
    }

    /// Tells the run that the job has begun. Nothing is lost if it does not hear it.
    pub(super) async fn tell_begun(&self, worker: &str) {
        let (_, question) = self.question(0, Query::Wanted { worker: worker.into() });
        let subject = self.broker.names.questions(&self.run);
        let _ = self.broker.client.publish(subject, question.into()).await;
    }

    /// Whether the run waits for the result; `None` if it does not answer at once.
    pub(super) async fn is_wanted(&self, worker: &str) -> Option<bool> {
        let (_, question) = self.question(0, Query::Wanted { worker: worker.into() });
        let subject = self.broker.names.questions(&self.run);
        let answered = self.broker.client.request(subject, question.into()).await.ok()?;
        match decode(&answered.payload).ok()? {
            Answer::Wanted(wanted) => Some(wanted),
            Answer::NotYours => Some(false),
            _ => None,
        }
    }

    /// The answer to a question, however long it takes. Does not end once the job is given up.
    async fn ask(&self, session: usize, query: Query) -> Answer {
        let (number, question) = self.question(session, query);
        let object = format!("{}-q{}-{number}", self.job, self.delivery);
        let mut last_seen = Instant::now();
        loop {
            match self.ask_once(&object, question.clone().into()).await {
                Some(Answer::NotYours) => break,
                Some(answer) => return answer,
                None if last_seen.elapsed() > ORPHANED => break,
                None => {}
            }
            if self.broker.state().is_connected() {
                // Only a run that is not there counts: one behind a broker that is away may wait for this job.
                tokio::time::sleep(PAUSE).await;
            } else {
                tokio::time::sleep(PAUSE).await;
                last_seen = Instant::now();
            }
        }
        self.given_up.notify_one();
        std::future::pending().await
    }

    /// Sends a question once; `None` without an answer.
    async fn ask_once(&self, object: &str, question: bytes::Bytes) -> Option<Answer> {
        let packed = self.broker.pack(&self.run, object, question).await;
        let (headers, body) =
            packed.inspect_err(|error| debug!(%error, "a question was not sent")).ok()?.into_parts();
        let request = async_nats::Request::new().headers(headers).payload(body).timeout(Some(RESEND));
        let subject = self.broker.names.questions(&self.run);
        match self.broker.client.send_request(subject, request).await {
            Ok(message) => {
                let body = self.broker.unpack(&self.run, &message).await.ok()?;
                if let Some(object) = super::broker::object_of(&message) {
                    self.broker.discard_object(&self.run, object).await;
                }
                decode(&body).inspect_err(|error| debug!(%error, "an answer cannot be read")).ok()
            }
            Err(error) => {
                let absent = error.kind() == RequestErrorKind::NoResponders;
                debug!(%error, absent, "a question has no answer yet");
                None
            }
        }
    }
}

/// What a worker's reward may ask: the oracle of the run, at the weights of the rollout.
pub(super) struct RemoteOracle {
    pub(super) questions: Arc<JobQuestions>,
    pub(super) session: usize,
}

fn unexpected<T>() -> Result<T, RewardError> {
    Err(RewardError::Service("the run answered something else".into()))
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
        // The run takes the adapter back when the job ends.
        Ok(AdapterLease { training: Arc::new(training), guard: Box::new(()) })
    }

    async fn frozen(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
        let questions = self.questions.clone();
        let weights = SampledWeights::Frozen(weights);
        Ok(Arc::new(RemoteSampler { questions, session: self.session, weights }))
    }
}

/// A request to an adapter, and where its answer goes.
type QueuedRequest = (AdapterRequest, oneshot::Sender<Answer>);

/// Sends the requests to an adapter one after the other, whether or not anybody waits for their answers.
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

/// The adapter of a session, which the run has leased.
struct RemoteAdapter {
    requests: mpsc::UnboundedSender<QueuedRequest>,
    questions: Arc<JobQuestions>,
    session: usize,
}

impl RemoteAdapter {
    /// Queues a request at once; `read` takes its result out of the answer.
    fn request<T: Send + 'static>(
        &self,
        request: AdapterRequest,
        read: impl FnOnce(Answer) -> Option<Result<T, BackendError>> + Send + 'static,
    ) -> Pending<T> {
        let (answered, answer) = oneshot::channel();
        // The queue ends with the job, and then nobody waits.
        drop(self.requests.send((request, answered)));
        async move {
            let answer = answer.await.map_err(|_| BackendError::Lost("its job has ended".into()))?;
            read(answer)
                .unwrap_or_else(|| Err(BackendError::Unavailable("the run answered something else".into())))
        }
        .boxed()
    }

    fn pass(&self, request: AdapterRequest) -> Pending<ForwardOutput> {
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
        self.pass(AdapterRequest::Forward(data, loss))
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.pass(AdapterRequest::ForwardBackward(data, loss))
    }

    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep> {
        self.request(AdapterRequest::OptimStep(params), |answer| match answer {
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
        self.request(AdapterRequest::Export, move |answer| match answer {
            Answer::Exported(exported) => Some(exported.map(|number| {
                let weights = SampledWeights::Exported(number);
                Export { sampler: Arc::new(RemoteSampler { questions, session, weights }), path: None }
            })),
            _ => None,
        })
    }
}

/// Samples from weights of the run.
pub(super) struct RemoteSampler {
    pub(super) questions: Arc<JobQuestions>,
    pub(super) session: usize,
    pub(super) weights: SampledWeights,
}

#[async_trait]
impl SamplingBackend for RemoteSampler {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        match self.questions.ask(self.session, Query::Sample(request, self.weights.clone())).await {
            Answer::Sampled(answer) => answer,
            _ => Err(BackendError::Unavailable("the run answered something else".into())),
        }
    }

    async fn logprobs(&self, tokens: Arc<[Token]>) -> Result<Vec<Option<f32>>, BackendError> {
        match self.questions.ask(self.session, Query::TokenLogprobs(tokens, self.weights.clone())).await {
            Answer::TokenLogprobs(answer) => answer,
            _ => Err(BackendError::Unavailable("the run answered something else".into())),
        }
    }
}
