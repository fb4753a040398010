//! Answers the requests of one rollout.
//!
//! A request becomes a future over the weights of the rollout's session; its result is recorded when it is there. Other
//! requests of user code, such as logprobs in a reward, are answered and not recorded.

use super::message::{WeightsSource, WorkerDatum, WorkerRequest};
use super::model_profile::ModelProfile;
use super::record::{CountedTurns, RolloutRecord};
use super::request::{
    CompletedRequest, CompletionRequest, OfferedTools, RequestOutput, Requester, WorkerRequestError,
};
use super::tool_conversation;
use super::tools;
use super::unreachable::ServiceFaults;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use minds_core::datum::{Datum, LossInputs};
use minds_core::environment::{AdapterLease, FrozenWeights, Oracle};
use minds_core::ids::Token;
use minds_core::loss::Loss;
use minds_core::rollout::Turn;
use minds_core::sampling::{Completion, SampleRequest, SampleResponse, StopReason};
use minds_core::service::SamplingBackend;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of completions in one rollout.
const MOST_TURNS: usize = 512;

/// Future of a request in progress.
pub(super) type RequestFuture<'a> = BoxFuture<'a, Result<RequestOutput, WorkerRequestError>>;

/// Resolves to weights other than the policy's, or to `None` for the policy.
type WeightsFuture<'w> = BoxFuture<'w, Result<Option<Arc<dyn SamplingBackend>>, WorkerRequestError>>;

/// Answers the requests of one rollout.
pub(super) struct RequestHandler<'a> {
    profile: &'a ModelProfile,
    rollout: String,
    record: RolloutRecord,
    adapter: Option<AdapterLease>,
    weights: HashMap<u64, Arc<dyn SamplingBackend>>,
    faults: ServiceFaults,
    /// The last request that the context could not hold.
    too_long: Option<WorkerRequestError>,
}

impl<'a> RequestHandler<'a> {
    pub(super) fn new(profile: &'a ModelProfile, rollout: String) -> Self {
        let record = RolloutRecord::default();
        let weights = HashMap::new();
        Self {
            profile,
            rollout,
            record,
            adapter: None,
            weights,
            faults: ServiceFaults::default(),
            too_long: None,
        }
    }

    /// The run's sampling parameters, under the common API names.
    pub(super) fn sampling(&self) -> Value {
        let usual = &self.profile.sampling;
        let mut all = json!({
            "max_tokens": usual.max_tokens,
            "temperature": usual.temperature,
            "top_p": usual.top_p,
            "logprobs": true,
            "extra_body": { "return_token_ids": true },
        });
        if let Some(top_k) = usual.top_k {
            all["extra_body"]["top_k"] = json!(top_k);
        }
        all
    }

    /// Requests of the rollout that the service did not answer.
    pub(super) fn service_faults(&self) -> &ServiceFaults {
        &self.faults
    }

    /// The turns that the rollout consists of, at least one.
    pub(super) fn counted(&mut self, ids: Option<&[String]>) -> Result<CountedTurns, String> {
        let counted = self.record.counted(self.profile, ids)?;
        if counted.turns.is_empty() {
            let why = self.too_long.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            return Err(format!("no answer of the policy counts{why}"));
        }
        Ok(counted)
    }

    /// The turns that were sampled, whether they count or not.
    pub(super) fn into_turns(self) -> Vec<Turn> {
        self.record.into_turns()
    }

    /// Adds the requester to a request's result. The request is canceled when the requester is gone.
    pub(super) fn with_requester<'w>(
        &self,
        requester: Requester,
        work: RequestFuture<'w>,
    ) -> BoxFuture<'w, CompletedRequest> {
        async move {
            match requester {
                Requester::Worker(_) => CompletedRequest { requester, result: work.await },
                Requester::Http(mut sender) => {
                    let result = tokio::select! {
                        result = work => result,
                        () = sender.closed() => Err(WorkerRequestError::Invalid("the requester is gone".into())),
                    };
                    CompletedRequest { requester: Requester::Http(sender), result }
                }
            }
        }
        .boxed()
    }

    /// Starts a request for the policy's next completion.
    pub(super) fn complete<'w>(
        &mut self,
        question: CompletionRequest,
        sampler: &'w dyn SamplingBackend,
    ) -> Result<RequestFuture<'w>, WorkerRequestError> {
        if self.record.len() >= MOST_TURNS {
            return Err(WorkerRequestError::Invalid(format!("a rollout has at most {MOST_TURNS} answers")));
        }
        let (conversation, prompt, draw, tools) = match question {
            CompletionRequest::Chat { messages, tools, draw } => {
                if let Some(kind) = tools::no_text(&messages) {
                    return Err(WorkerRequestError::Invalid(format!(
                        "a message has a part of type {kind}: only text is read"
                    )));
                }
                let own = self.profile.renderer.tools();
                match own.filter(|_| tool_conversation::uses_tools(&messages, &tools)) {
                    Some(own) => {
                        let conversation = tool_conversation::recorded_messages(&messages);
                        let prompt = self.record.prompt_with_tools(own, self.profile, &messages, &tools)?;
                        (conversation, prompt, draw, OfferedTools::InTemplate(tools))
                    }
                    None => {
                        let said = |call: &str| self.record.text_of_call(call);
                        let conversation = tools::messages(&messages, &tools, said);
                        let prompt = self.record.prompt(self.profile, &conversation)?;
                        let has_none = tools.is_empty();
                        let tools = if has_none { OfferedTools::None } else { OfferedTools::InMessages };
                        (conversation, prompt, draw, tools)
                    }
                }
            }
            CompletionRequest::Text { text, draw } => {
                let tokenizer = &self.profile.tokenizer;
                let prompt = tokenizer.bos().into_iter().chain(tokenizer.encode(&text)).collect();
                (Vec::new(), prompt, draw, OfferedTools::None)
            }
            CompletionRequest::Tokens { tokens, draw } => (Vec::new(), tokens, draw, OfferedTools::None),
        };
        let context = self.profile.context;
        if prompt.len() >= context {
            let error = WorkerRequestError::TooLong { context, tokens: prompt.len() };
            self.too_long = Some(error.clone());
            return Err(error);
        }
        let params = self.profile.params(&draw, context - prompt.len());
        let request = SampleRequest::new(prompt.clone().into(), 1, params);
        request.check()?;
        Ok(async move {
            let answer = checked(sampler.sample(request).await?, 1)?.remove(0);
            Ok(RequestOutput::Turn { conversation, prompt, answer, tools })
        }
        .boxed())
    }

    /// Starts a request of user code.
    pub(super) fn serve<'w>(
        &mut self,
        op: WorkerRequest,
        sampler: &'w dyn SamplingBackend,
        oracle: &'w dyn Oracle,
    ) -> Result<RequestFuture<'w>, WorkerRequestError> {
        match op {
            WorkerRequest::Turn { messages: Some(messages), draw, .. } => {
                self.complete(CompletionRequest::Chat { messages, tools: Vec::new(), draw }, sampler)
            }
            WorkerRequest::Turn { tokens, draw, .. } => {
                self.complete(CompletionRequest::Tokens { tokens: tokens.unwrap_or_default(), draw }, sampler)
            }
            WorkerRequest::Sample { tokens, n, draw, prompt_logprobs, topk_prompt, topk_sample, weights } => {
                let room = self.remaining_tokens(&tokens)?;
                let params = self.profile.params(&draw, room);
                let request = SampleRequest {
                    prompt_logprobs,
                    topk_prompt_logprobs: topk_prompt,
                    topk_sample_logprobs: topk_sample,
                    ..SampleRequest::new(tokens.into(), n, params)
                };
                request.check()?;
                let weights = self.weights(weights, oracle)?;
                Ok(async move {
                    let response = match weights.await? {
                        Some(weights) => weights.sample(request).await?,
                        None => sampler.sample(request).await?,
                    };
                    Ok(RequestOutput::Value(response_value(&response)))
                }
                .boxed())
            }
            WorkerRequest::Logprobs { tokens, weights } => {
                self.remaining_tokens(&tokens)?;
                let weights = self.weights(weights, oracle)?;
                Ok(async move {
                    let found: Vec<Option<f32>> = match weights.await? {
                        _ if tokens.len() < 2 => vec![None; tokens.len()],
                        Some(weights) => weights.logprobs(tokens.into()).await?,
                        None => {
                            let (first, rest) = tokens.split_at(1);
                            let found = oracle.logprobs(first.into(), rest.into()).await?;
                            std::iter::once(None).chain(found.iter().copied().map(Some)).collect()
                        }
                    };
                    Ok(RequestOutput::Value(json!(found)))
                }
                .boxed())
            }
            WorkerRequest::ShadowOpen => {
                if self.adapter.is_some() {
                    return Err(WorkerRequestError::Invalid("a rollout may borrow one adapter".into()));
                }
                Ok(async move { Ok(RequestOutput::Adapter(oracle.lease_adapter().await?)) }.boxed())
            }
            WorkerRequest::ShadowPass { backward, loss, data } => {
                if loss != "cross_entropy" {
                    return Err(WorkerRequestError::Invalid(format!(
                        "a borrowed adapter learns by cross_entropy, not by {loss}"
                    )));
                }
                let data = data.into_iter().map(datum).collect::<Result<Vec<_>, _>>()?;
                let training = &self.adapter()?.training;
                let pass = if backward {
                    training.forward_backward(data, Loss::CrossEntropy)
                } else {
                    training.forward(data, Loss::CrossEntropy)
                };
                Ok(async move {
                    let forward = pass.await?;
                    Ok(RequestOutput::Value(
                        json!({ "logprobs": forward.logprobs, "metrics": forward.metrics }),
                    ))
                }
                .boxed())
            }
            WorkerRequest::ShadowStep { adam } => {
                adam.check().map_err(|e| {
                    WorkerRequestError::Invalid(format!("{} is {}; it must {}", e.key, e.value, e.must))
                })?;
                let step = self.adapter()?.training.optim_step(adam);
                Ok(async move { Ok(RequestOutput::Value(json!({ "metrics": step.await?.metrics }))) }.boxed())
            }
            WorkerRequest::ShadowExport => {
                let export = self.adapter()?.training.export_sampler(None);
                Ok(async move { Ok(RequestOutput::Weights(export.await?.sampler)) }.boxed())
            }
            WorkerRequest::Encode { .. }
            | WorkerRequest::Decode { .. }
            | WorkerRequest::Render { .. }
            | WorkerRequest::Parse { .. } => {
                Err(WorkerRequestError::Invalid("questions about text are answered elsewhere".into()))
            }
        }
    }

    /// Records a result and converts it to a response.
    pub(super) fn record_result(
        &mut self,
        result: Result<RequestOutput, WorkerRequestError>,
    ) -> Result<Value, WorkerRequestError> {
        let found = result.inspect_err(|error| self.faults.record(error))?;
        match found {
            RequestOutput::Value(value) => Ok(value),
            RequestOutput::Adapter(borrowed) => {
                self.adapter = Some(borrowed);
                Ok(json!(0))
            }
            RequestOutput::Weights(sampler) => {
                let handle = self.weights.len() as u64;
                self.weights.insert(handle, sampler);
                Ok(json!(handle))
            }
            RequestOutput::Turn { conversation, prompt, answer, tools } => {
                let id = format!("{}-{}", self.rollout, self.record.len());
                let cut = answer.stop == StopReason::Length;
                let mut told = json!({
                    "id": id,
                    "prompt_tokens": prompt,
                    "tokens": answer.tokens,
                    "logprobs": answer.logprobs,
                });
                let (text, content, calls) = match (tools, self.profile.renderer.tools()) {
                    (OfferedTools::InTemplate(tools), Some(own)) => {
                        let turn = own.parse(&answer, &tools);
                        let calls = tool_conversation::numbered(turn.calls.clone(), &id);
                        self.record.add_tool_turn(id.clone(), conversation, prompt, answer, &turn, &calls);
                        (turn.text, turn.content, calls)
                    }
                    (tools, _) => {
                        let text = self.record.add(self.profile, id.clone(), conversation, prompt, answer);
                        match tools {
                            OfferedTools::None => (text.clone(), text, Vec::new()),
                            _ => {
                                let (content, calls) = tools::calls(&text, &id);
                                (text, content, calls)
                            }
                        }
                    }
                };
                for call in &calls {
                    self.record.remember_call(&call.id);
                }
                let finish = if cut {
                    "length"
                } else if calls.is_empty() {
                    "stop"
                } else {
                    "tool_calls"
                };
                told["text"] = json!(text);
                told["content"] = json!(content);
                told["tool_calls"] = json!(calls);
                told["finish"] = json!(finish);
                Ok(told)
            }
        }
    }

    fn remaining_tokens(&self, tokens: &[Token]) -> Result<usize, WorkerRequestError> {
        let context = self.profile.context;
        match context.checked_sub(tokens.len()) {
            Some(room @ 1..) => Ok(room),
            _ => Err(WorkerRequestError::TooLong { context, tokens: tokens.len() }),
        }
    }

    fn adapter(&self) -> Result<&AdapterLease, WorkerRequestError> {
        self.adapter
            .as_ref()
            .ok_or_else(|| WorkerRequestError::Invalid("no adapter has been borrowed".into()))
    }

    /// Weights other than the policy's, or `None` for the policy.
    fn weights<'w>(
        &self,
        source: WeightsSource,
        oracle: &'w dyn Oracle,
    ) -> Result<WeightsFuture<'w>, WorkerRequestError> {
        let frozen = match source {
            WeightsSource::Policy => return Ok(ready(Ok(None)).boxed()),
            WeightsSource::Exported(handle) => {
                let found = self.weights.get(&handle).cloned();
                let found =
                    found.ok_or_else(|| WorkerRequestError::Invalid("these weights do not exist".into()))?;
                return Ok(ready(Ok(Some(found))).boxed());
            }
            WeightsSource::Base => FrozenWeights::Base,
            WeightsSource::Saved(path) => FrozenWeights::Saved(path),
        };
        Ok(async move { Ok(Some(oracle.frozen(frozen).await?)) }.boxed())
    }
}

/// Completions that can be trained.
fn checked(response: SampleResponse, count: usize) -> Result<Vec<Completion>, WorkerRequestError> {
    let sequences = response.sequences;
    if sequences.len() != count {
        let came = sequences.len();
        return Err(WorkerRequestError::Failed(format!("{count} samples were requested, {came} arrived")));
    }
    for sampled in &sequences {
        sampled.check().map_err(|flaw| WorkerRequestError::Failed(flaw.to_string()))?;
    }
    Ok(sequences)
}

fn response_value(response: &SampleResponse) -> Value {
    let sequences: Vec<Value> = response
        .sequences
        .iter()
        .map(|s| json!({ "tokens": s.tokens, "logprobs": s.logprobs, "stop": s.stop, "topk": s.topk }))
        .collect();
    json!({
        "sequences": sequences,
        "prompt_logprobs": response.prompt_logprobs,
        "topk_prompt_logprobs": response.topk_prompt_logprobs,
    })
}

fn datum(example: WorkerDatum) -> Result<Datum, WorkerRequestError> {
    let WorkerDatum { input, targets, weights } = example;
    Datum::new(input, targets, LossInputs::Weights(weights))
        .map_err(|e| WorkerRequestError::Invalid(e.to_string()))
}
