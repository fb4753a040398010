//! Samples from one set of weights.

use super::checks::ModelLimits;
use super::connection::{Connection, ResultError, ResultPayload, encode};
use super::error::ClientError;
use super::limiter::RequestPermit;
use super::retry::{NotFoundMeaning, ResponseOutcome, RetryReason};
use super::transport::HttpRequest;
use super::{ClientFuture, ClientSession, with_new_id};
use crate::convert::{sample_request_to_wire, sample_response_from_json, sample_response_from_proto};
use crate::types::{self, CreateSamplingSessionRequest, CreateSamplingSessionResponse, FutureHandle, proto};
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
        let (mut response, names) = self.draw(what, sample_request_to_wire(request), read).await?;
        name_samples(&mut response, names, request).map_err(|why| self.failed(what, &why))?;
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
        self.logprobs_from(tokens, 0).await
    }

    /// Logprob of each token from position `from` on, given those before it. Earlier positions may have none.
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub async fn logprobs_from(
        &self,
        tokens: Arc<[Token]>,
        from: usize,
    ) -> Result<Vec<Option<f32>>, ClientError> {
        let response = self.sample(&SampleRequest::score_from(tokens, from)).await?;
        response.prompt_logprobs.ok_or_else(|| ClientError::Unsupported {
            what: "prompt logprobs".into(),
            detail: "the server left them out".into(),
        })
    }

    async fn draw<T: Send + 'static>(
        &self,
        what: &'static str,
        mut request: types::WireSampleRequest,
        read: impl Fn(ResultPayload) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<(T, Option<Vec<String>>), ClientError> {
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

/// Submits until accepted, waits for the result, and starts over if the server has lost it. Returns the result, and the
/// names of its samples if the server names them.
async fn fetch<T>(
    connection: &Arc<Connection>,
    what: &str,
    mut request: types::WireSampleRequest,
    next: &AtomicI64,
    read: impl Fn(ResultPayload) -> Result<T, String>,
) -> Result<(T, Option<Vec<String>>), ClientError> {
    let mut resubmissions = 0;
    loop {
        // The number is the request's identity: the same over all attempts, another one for a new draw.
        request.seq_id = Some(next.fetch_add(1, Ordering::Relaxed));
        let permit = connection.sample_limiter.acquire().await;
        let (promise, permit) = match submit(connection, what, &request, permit).await {
            // It may have been sampled, but the id of its result is lost. Samples are independent, so another one is drawn.
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
            Ok(result) => return Ok((result, promise.sample_sequence_ids)),
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

/// Gives the samples the names that the server promised, if it recorded them: later requests refer to them.
fn name_samples(
    response: &mut SampleResponse,
    names: Option<Vec<String>>,
    request: &SampleRequest,
) -> Result<(), String> {
    if !request.record_stability_info {
        return Ok(());
    }
    let names = names.unwrap_or_default();
    if names.len() != response.sequences.len() {
        return Err(format!("it named {} of {} recorded samples", names.len(), response.sequences.len()));
    }
    for (sample, name) in response.sequences.iter_mut().zip(names) {
        sample.sequence_id = Some(name.into());
    }
    Ok(())
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
    if let Some(targets) = &request.target_prompt_logprobs {
        match &response.target_prompt_logprobs {
            None => return missing("logprobs of chosen tokens of the prompt"),
            Some(found) if found.logprobs.len() != targets.tokens.len() => {
                return Err(ClientError::Failed {
                    what: "sample".into(),
                    detail: format!("{} logprobs for {} targets", found.logprobs.len(), targets.tokens.len()),
                });
            }
            Some(_) => {}
        }
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
