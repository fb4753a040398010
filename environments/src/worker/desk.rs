//! The desk of one rollout: who answers what it asks.
//!
//! A question becomes a future over the weights of the rollout's seat; its result is taken down when it is there. What
//! user code asks aside, such as log-probs in a reward, is answered and not taken down.

use super::ask::{Answered, Asker, Found, Question, Refusal};
use super::message::{Example, Op, Whose};
use super::record::{Counted, Record};
use super::tools;
use super::voice::Voice;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use minds_core::backend::SamplingBackend;
use minds_core::datum::{Datum, LossInputs};
use minds_core::environment::{Borrowed, FrozenWeights, Oracle};
use minds_core::ids::Token;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SampleResponse, Sampled, StopReason};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Most answers in one rollout.
const MOST_TURNS: usize = 512;

/// Work on a question.
pub(super) type Work<'a> = BoxFuture<'a, Result<Found, Refusal>>;

/// The way to weights beside those that play, or to nothing for these.
type Weights<'w> = BoxFuture<'w, Result<Option<Arc<dyn SamplingBackend>>, Refusal>>;

/// The desk of one rollout.
pub(super) struct Desk<'a> {
    voice: &'a Voice,
    rollout: String,
    record: Record,
    adapter: Option<Borrowed>,
    weights: HashMap<u64, Arc<dyn SamplingBackend>>,
    failed: Option<String>,
    /// The last question that the context could not hold.
    too_long: Option<Refusal>,
}

impl<'a> Desk<'a> {
    pub(super) fn new(voice: &'a Voice, rollout: String) -> Self {
        let (record, weights) = (Record::default(), HashMap::new());
        Self { voice, rollout, record, adapter: None, weights, failed: None, too_long: None }
    }

    /// How the run draws answers, in the words of the field.
    pub(super) fn sampling(&self) -> Value {
        let usual = &self.voice.sampling;
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

    /// What the service last failed at, if it did.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// What the rollout is made of, at least one turn.
    pub(super) fn counted(self, ids: Option<&[String]>) -> Result<Counted, String> {
        let counted = self.record.counted(self.voice, ids)?;
        if counted.turns.is_empty() {
            let why = self.too_long.map(|refusal| format!(": {refusal}")).unwrap_or_default();
            return Err(format!("no answer of the policy counts{why}"));
        }
        Ok(counted)
    }

    /// Work whose result comes back with its asker. It is given up when the asker goes.
    pub(super) fn answered<'w>(&self, asker: Asker, work: Work<'w>) -> BoxFuture<'w, Answered> {
        async move {
            match asker {
                Asker::Wire(_) => Answered { asker, result: work.await },
                Asker::Http(mut sender) => {
                    let result = tokio::select! {
                        result = work => result,
                        () = sender.closed() => Err(Refusal::Bad("the asker has gone".into())),
                    };
                    Answered { asker: Asker::Http(sender), result }
                }
            }
        }
        .boxed()
    }

    /// Work on a question for the policy's next answer.
    pub(super) fn question<'w>(
        &mut self,
        question: Question,
        sampler: &'w dyn SamplingBackend,
    ) -> Result<Work<'w>, Refusal> {
        if self.record.len() >= MOST_TURNS {
            return Err(Refusal::Bad(format!("a rollout has at most {MOST_TURNS} answers")));
        }
        let (conversation, prompt, draw, has_tools) = match question {
            Question::Chat { messages, tools, draw } => {
                if let Some(kind) = tools::no_text(&messages) {
                    return Err(Refusal::Bad(format!(
                        "a message has a part of type {kind}: only text is read"
                    )));
                }
                let conversation = tools::messages(&messages, &tools, |call| self.record.text_of_call(call));
                let prompt = self.record.prompt(self.voice, &conversation);
                (conversation, prompt, draw, !tools.is_empty())
            }
            Question::Text { text, draw } => {
                let tokenizer = &self.voice.tokenizer;
                let prompt = tokenizer.bos().into_iter().chain(tokenizer.encode(&text)).collect();
                (Vec::new(), prompt, draw, false)
            }
            Question::Tokens { tokens, draw } => (Vec::new(), tokens, draw, false),
        };
        let context = self.voice.context;
        if prompt.len() >= context {
            let refusal = Refusal::TooLong { context, tokens: prompt.len() };
            self.too_long = Some(refusal.clone());
            return Err(refusal);
        }
        let params = self.voice.params(&draw, context - prompt.len());
        let request = SampleRequest::new(prompt.clone().into(), 1, params);
        request.check()?;
        Ok(async move {
            let answer = checked(sampler.sample(request).await?, 1)?.remove(0);
            Ok(Found::Turn { conversation, prompt, answer, has_tools })
        }
        .boxed())
    }

    /// Work on a question of user code.
    pub(super) fn op<'w>(
        &mut self,
        op: Op,
        sampler: &'w dyn SamplingBackend,
        oracle: &'w dyn Oracle,
    ) -> Result<Work<'w>, Refusal> {
        match op {
            Op::Turn { messages: Some(messages), draw, .. } => {
                self.question(Question::Chat { messages, tools: Vec::new(), draw }, sampler)
            }
            Op::Turn { tokens, draw, .. } => {
                self.question(Question::Tokens { tokens: tokens.unwrap_or_default(), draw }, sampler)
            }
            Op::Sample { tokens, n, draw, prompt_logprobs, topk_prompt, topk_sample, weights } => {
                let room = self.room(&tokens)?;
                let params = self.voice.params(&draw, room);
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
                    Ok(Found::Value(response_value(&response)))
                }
                .boxed())
            }
            Op::Logprobs { tokens, weights } => {
                self.room(&tokens)?;
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
                    Ok(Found::Value(json!(found)))
                }
                .boxed())
            }
            Op::ShadowOpen => {
                if self.adapter.is_some() {
                    return Err(Refusal::Bad("a rollout may borrow one adapter".into()));
                }
                Ok(async move { Ok(Found::Adapter(oracle.borrow_adapter().await?)) }.boxed())
            }
            Op::ShadowPass { backward, loss, data } => {
                if loss != "cross_entropy" {
                    return Err(Refusal::Bad(format!(
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
                    Ok(Found::Value(json!({ "logprobs": forward.logprobs, "metrics": forward.metrics })))
                }
                .boxed())
            }
            Op::ShadowStep { adam } => {
                let params = adam_params(&adam);
                params
                    .check()
                    .map_err(|e| Refusal::Bad(format!("{} is {}, it must {}", e.key, e.value, e.must)))?;
                let step = self.adapter()?.training.optim_step(params);
                Ok(async move { Ok(Found::Value(json!({ "metrics": step.await?.metrics }))) }.boxed())
            }
            Op::ShadowExport => {
                let export = self.adapter()?.training.export_sampler(None);
                Ok(async move { Ok(Found::Weights(export.await?.sampler)) }.boxed())
            }
            Op::Encode { .. } | Op::Decode { .. } | Op::Render { .. } | Op::Parse { .. } => {
                Err(Refusal::Bad("questions about text are answered elsewhere".into()))
            }
        }
    }

    /// Takes a result down and puts it into words.
    pub(super) fn take_down(&mut self, result: Result<Found, Refusal>) -> Result<Value, Refusal> {
        let found = result.inspect_err(|refusal| {
            if let Refusal::Failed(why) = refusal {
                self.failed = Some(why.clone());
            }
        })?;
        match found {
            Found::Value(value) => Ok(value),
            Found::Adapter(borrowed) => {
                self.adapter = Some(borrowed);
                Ok(json!(0))
            }
            Found::Weights(sampler) => {
                let handle = self.weights.len() as u64;
                self.weights.insert(handle, sampler);
                Ok(json!(handle))
            }
            Found::Turn { conversation, prompt, answer, has_tools } => {
                let id = format!("{}-{}", self.rollout, self.record.len());
                let cut = answer.stop == StopReason::Length;
                let mut told = json!({
                    "id": id,
                    "prompt_tokens": prompt,
                    "tokens": answer.tokens,
                    "logprobs": answer.logprobs,
                });
                let text = self.record.add(self.voice, id.clone(), conversation, prompt, answer);
                let (content, calls) =
                    if has_tools { tools::calls(&text, &id) } else { (text.clone(), Vec::new()) };
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

    fn room(&self, tokens: &[Token]) -> Result<usize, Refusal> {
        let context = self.voice.context;
        match context.checked_sub(tokens.len()) {
            Some(room @ 1..) => Ok(room),
            _ => Err(Refusal::TooLong { context, tokens: tokens.len() }),
        }
    }

    fn adapter(&self) -> Result<&Borrowed, Refusal> {
        self.adapter.as_ref().ok_or_else(|| Refusal::Bad("no adapter has been borrowed".into()))
    }

    /// Weights beside those that play, or nothing for these.
    fn weights<'w>(&self, whose: Whose, oracle: &'w dyn Oracle) -> Result<Weights<'w>, Refusal> {
        let frozen = match whose {
            Whose::Policy => return Ok(ready(Ok(None)).boxed()),
            Whose::Exported(handle) => {
                let found = self.weights.get(&handle).cloned();
                let found = found.ok_or_else(|| Refusal::Bad("there are no such weights".into()))?;
                return Ok(ready(Ok(Some(found))).boxed());
            }
            Whose::Base => FrozenWeights::Base,
            Whose::Saved(path) => FrozenWeights::Saved(path),
        };
        Ok(async move { Ok(Some(oracle.frozen(frozen).await?)) }.boxed())
    }
}

/// Samples that can be trained.
fn checked(response: SampleResponse, count: usize) -> Result<Vec<Sampled>, Refusal> {
    let sequences = response.sequences;
    if sequences.len() != count {
        let came = sequences.len();
        return Err(Refusal::Failed(format!("{count} samples were asked for, {came} came back")));
    }
    for sampled in &sequences {
        sampled.check().map_err(|flaw| Refusal::Failed(flaw.to_string()))?;
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

fn datum(example: Example) -> Result<Datum, Refusal> {
    let Example { input, targets, weights } = example;
    Datum::new(input, targets, LossInputs::Weights(weights)).map_err(|e| Refusal::Bad(e.to_string()))
}

fn adam_params(written: &BTreeMap<String, f64>) -> AdamParams {
    let defaults = AdamParams::default();
    let get = |key: &str, default: f64| written.get(key).copied().unwrap_or(default);
    AdamParams {
        learning_rate: get("learning_rate", defaults.learning_rate),
        beta1: get("beta1", defaults.beta1),
        beta2: get("beta2", defaults.beta2),
        eps: get("eps", defaults.eps),
        weight_decay: get("weight_decay", defaults.weight_decay),
        grad_clip_norm: get("grad_clip_norm", defaults.grad_clip_norm),
    }
}
