//! Samples from one set of weights.

use super::checks::{self, ModelLimits};
use super::connection::{Connection, ResultError, ResultPayload, encode};
use super::error::ClientError;
use super::limiter::RequestPermit;
use super::retry::{NotFoundMeaning, ResponseOutcome, RetryReason};
use super::transport::HttpRequest;
use super::{ClientFuture, ClientSession, with_new_id};
use crate::convert::{sample_request_to_wire, sample_response_from_json, sample_response_from_proto};
use crate::types::{
    self, CreateSamplingSessionRequest, CreateSamplingSessionResponse, FutureHandle, numbers, proto,
};
use minds_core::ids::Token;
use minds_core::sampling::{SampleRequest, SampleResponse};
use prost::Message as _;
use reqwest::header::HeaderValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Retries of a sample whose result the server has lost.
const RESUBMISSIONS: u32 = 5;

/// A sampler of the server. Requests are independent of each other.
pub struct SamplingClient {
    session: Arc<ClientSession>,
    id: String,
    next: Arc<AtomicI64>,
    limits: ModelLimits,
}

/// Logprobs of chosen tokens at each prompt position.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetLogprobs {
    /// Row after row, one row per position that predicts a token; NaN where no token was requested.
    pub values: Vec<f32>,
    /// Number of tokens per row.
    pub k: usize,
}

impl SamplingClient {
    pub(super) async fn open(
        session: Arc<ClientSession>,
        base_model: Option<String>,
        model_path: Option<String>,
        limits: ModelLimits,
    ) -> Result<Self, ClientError> {
        let what = "a sampler";
        let path = "create_sampling_session";
        let make = || -> ClientFuture<CreateSamplingSessionResponse> {
            let request = CreateSamplingSessionRequest {
                session_id: session.id.clone(),
                sampling_session_seq_id: session.samplers.fetch_add(1, Ordering::Relaxed),
                base_model: base_model.clone(),
                model_path: model_path.clone(),
                ..CreateSamplingSessionRequest::default()
            };
            let connection = session.connection.clone();
            Box::pin(async move { connection.post(what, path, &request, NotFoundMeaning::Rejected).await })
        };
        let answer = with_new_id(&session, make).await?;
        Ok(Self::from_id(session, answer.sampling_session_id, limits))
    }

    pub(super) fn from_id(session: Arc<ClientSession>, id: String, limits: ModelLimits) -> Self {
        Self { session, id, next: Arc::default(), limits }
    }

    /// The sampler's name on the server.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Draws samples. A call that is dropped is cancelled where the server can do that.
    ///
    /// # Errors
    /// A request that no sampler can serve, or that the server refuses, and everything that can go wrong on the way.
    pub async fn sample(&self, request: &SampleRequest) -> Result<SampleResponse, ClientError> {
        let what = "sample";
        self.limits.check_sample(what, request)?;
        let prompt_len = request.prompt.len();
        let read = move |payload| match payload {
            ResultPayload::Protobuf(body) => proto::ProtoSampleResponse::decode(body)
                .map_err(|e| e.to_string())
                .and_then(|r| sample_response_from_proto(&r, prompt_len).map_err(|e| e.to_string())),
            ResultPayload::Json(value) => serde_json::from_value(value)
                .map_err(|e| e.to_string())
                .and_then(|r| sample_response_from_json(&r, prompt_len).map_err(|e| e.to_string())),
        };
        let response = self.draw(what, sample_request_to_wire(request), read).await?;
        self.limits.check_samples(&response, request).map_err(|why| self.failed(what, &why))?;
        complete(response, request)
    }

    /// The server's fault, by its name.
    fn failed(&self, what: &str, why: &str) -> ClientError {
        let server = self.session.connection.transport.server();
        ClientError::Failed { what: what.into(), detail: format!("the answer of {server} is wrong: {why}") }
    }

    /// Logprob of each token given those before it; the first has none.
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub async fn logprobs(&self, tokens: Arc<[Token]>) -> Result<Vec<Option<f32>>, ClientError> {
        let response = self.sample(&SampleRequest::score(tokens)).await?;
        response.prompt_logprobs.ok_or_else(|| ClientError::Unsupported {
            what: "prompt logprobs".into(),
            detail: "the server left them out".into(),
        })
    }

    /// Logprobs of chosen tokens at each prompt position: `targets` has one row of `k` for each token of the prompt but
    /// the first, `None` for no token. Only newer servers have it.
    ///
    /// # Errors
    /// As [`Self::sample`], and a server that leaves them out.
    pub async fn target_logprobs(
        &self,
        prompt: Arc<[Token]>,
        targets: &[Option<Token>],
        k: usize,
    ) -> Result<TargetLogprobs, ClientError> {
        let what = "target logprobs";
        let request = SampleRequest::score(prompt);
        self.limits.check_sample(what, &request)?;
        let rows = request.prompt.len() - 1;
        if k == 0 || rows.checked_mul(k) != Some(targets.len()) {
            let detail = format!("{} targets are not {rows} rows of {k}", targets.len());
            return Err(ClientError::rejected(what, detail));
        }
        let values = targets.iter().map(|target| target.map_or(-1, i64::from)).collect();
        let mut tensor = types::TensorData::int64(values);
        tensor.shape = Some(vec![rows as i64, k as i64]);
        let mut wire = sample_request_to_wire(&request);
        wire.target_prompt_logprobs = Some(tensor);
        let absent =
            || ClientError::Unsupported { what: what.into(), detail: "the server left them out".into() };
        let read = |payload| match payload {
            ResultPayload::Protobuf(body) => proto::ProtoSampleResponse::decode(body)
                .map(|r| r.target_prompt_logprobs)
                .map_err(|e| e.to_string()),
            ResultPayload::Json(_) => Ok(None),
        };
        let tensor = self.draw(what, wire, read).await?.ok_or_else(absent)?;
        let Some(proto::Encoding::Dense(bytes)) = &tensor.encoding else {
            return Err(self.failed(what, "they arrived as a sparse tensor"));
        };
        let values = numbers::read::<f32>(bytes).map_err(|e| self.failed(what, &e.to_string()))?.into_owned();
        if values.len() != targets.len() {
            return Err(self.failed(what, &format!("{} values for {} targets", values.len(), targets.len())));
        }
        checks::check_logprobs(&values).map_err(|why| self.failed(what, &why))?;
        Ok(TargetLogprobs { values, k })
    }

    async fn draw<T: Send + 'static>(
        &self,
        what: &'static str,
        mut request: types::WireSampleRequest,
        read: impl Fn(ResultPayload) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<T, ClientError> {
        request.sampling_session_id = Some(self.id.clone());
        let connection = self.session.connection.clone();
        connection.check_alive(what)?;
        let runtime = connection.runtime.clone();
        let next = self.next.clone();
        let work = async move { fetch(&connection, what, request, &next, read).await };
        let task = AbortOnDrop(runtime.spawn(work));
        task.join().await.unwrap_or_else(|| Err(ClientError::lost(what, "the client's runtime has stopped")))
    }
}

/// Submits until accepted, waits for the result, and starts over if the server has lost it.
async fn fetch<T>(
    connection: &Arc<Connection>,
    what: &str,
    mut request: types::WireSampleRequest,
    next: &AtomicI64,
    read: impl Fn(ResultPayload) -> Result<T, String>,
) -> Result<T, ClientError> {
    let mut resubmissions = 0;
    loop {
        // The number is the request's identity: the same over all attempts, another one for a new draw.
        request.seq_id = Some(next.fetch_add(1, Ordering::Relaxed));
        let permit = connection.sample_limiter.acquire().await;
        let (promise, permit) = match submit(connection, what, &request, permit).await {
            // It was drawn, and its result has no name here: another draw is as good.
            Err(ClientError::InDoubt { detail, .. }) if resubmissions < RESUBMISSIONS => {
                tracing::debug!(what, detail, "a sample is resampled");
                resubmissions += 1;
                continue;
            }
            submitted => submitted?,
        };
        let mut guard = CancelOnDrop { connection, request_id: Some(promise.request_id.clone()) };
        let limit = connection.timeouts.sample;
        let result = connection.retrieve(what, "Sample", &promise.request_id, limit, &read).await;
        guard.request_id = None;
        drop(permit);
        match result {
            Ok(result) => return Ok(result),
            Err(ResultError::Error(error)) => return Err(error),
            Err(ResultError::Gone(why)) if resubmissions == RESUBMISSIONS => {
                return Err(ClientError::Failed { what: what.into(), detail: why });
            }
            Err(ResultError::Gone(why)) => {
                tracing::debug!(what, why, "the server has lost a result");
                resubmissions += 1;
            }
        }
    }
}

async fn submit<'a>(
    connection: &'a Connection,
    what: &str,
    request: &types::WireSampleRequest,
    mut permit: RequestPermit<'a>,
) -> Result<(FutureHandle, RequestPermit<'a>), ClientError> {
    let call = HttpRequest::post("asample", encode(request), connection.timeouts.request)
        .header("x-tinker-sampling-backpressure", HeaderValue::from_static("1"));
    let call = connection.with_idempotency_key(call);
    let mut attempts = connection.attempts(what, &call.path, None);
    loop {
        let reason = match connection.attempt(what, &call, NotFoundMeaning::Lost, &attempts).await {
            ResponseOutcome::Accepted(reply) => match connection.read(&reply) {
                Ok(promise) => {
                    permit.succeeded();
                    return Ok((promise, permit));
                }
                Err(why) => RetryReason::Unreadable(why),
            },
            ResponseOutcome::Retry(reason) => reason,
            ResponseOutcome::Gone(why) => return Err(ClientError::lost(what, why)),
            ResponseOutcome::Failed(error) => return Err(error),
        };
        if matches!(reason, RetryReason::Busy(..)) {
            permit.refused();
        }
        // A request that pauses returns its permit.
        drop(permit);
        attempts.back_off(reason).await?;
        permit = connection.sample_limiter.acquire().await;
    }
}

/// Checks that all requested outputs are present.
fn complete(response: SampleResponse, request: &SampleRequest) -> Result<SampleResponse, ClientError> {
    let missing = |what: &str| {
        Err(ClientError::Unsupported { what: what.into(), detail: "the server left them out".into() })
    };
    if request.prompt_logprobs && response.prompt_logprobs.is_none() {
        return missing("prompt logprobs");
    }
    if request.topk_prompt_logprobs > 0 && response.topk_prompt_logprobs.is_none() {
        return missing("the most likely tokens of the prompt");
    }
    if request.topk_sample_logprobs > 0 && response.sequences.iter().any(|s| s.topk.is_none()) {
        return missing("the most likely tokens of samples");
    }
    Ok(response)
}

/// Cancels a sample when its caller drops it.
struct CancelOnDrop<'a> {
    connection: &'a Arc<Connection>,
    request_id: Option<String>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.request_id.take() {
            let connection = self.connection.clone();
            let runtime = connection.runtime.clone();
            runtime.spawn(async move { connection.cancel(id).await });
        }
    }
}

/// A task that is aborted when its handle drops.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    async fn join(mut self) -> Option<T> {
        (&mut self.0).await.ok()
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
