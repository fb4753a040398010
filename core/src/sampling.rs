//! Requests to a sampler and its responses.

use crate::ids::{PolicyVersion, Token};
use crate::number::ShortNumber;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use thiserror::Error;

/// When a sample ends before `max_tokens`. The stop itself is part of the sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stop {
    /// The model's own end-of-sequence tokens.
    ModelDefault,
    /// Any of these tokens. An empty list means that nothing stops the sample early.
    Tokens(Vec<Token>),
    /// The first time the decoded text contains any of these strings, or the model's own end. Without any string,
    /// nothing stops the sample early.
    Strings(Vec<String>),
}

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// Most tokens to sample.
    pub max_tokens: usize,
    /// Softmax temperature; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep this many most likely tokens; `None` keeps all.
    pub top_k: Option<usize>,
    /// Keep the smallest set of most likely tokens with at least this probability; 1 keeps all.
    pub top_p: f32,
    /// Makes the sample repeatable; sample `i` of a request draws from its own stream of this seed.
    pub seed: Option<u64>,
    /// What ends a sample.
    pub stop: Stop,
}

/// Parameters or prompts that no sampler can serve.
#[derive(Debug, Error, PartialEq)]
pub enum SamplingError {
    /// A parameter is out of range.
    #[error("{key} is {}; it must {must}", ShortNumber(*value))]
    Range {
        /// Name of the invalid parameter.
        key: &'static str,
        /// Value of that parameter, as given.
        value: f64,
        /// The condition that the value violates.
        must: &'static str,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The request has `num_samples` 0.
    #[error("num_samples is 0")]
    NoSamples,
    /// `prompt_logprobs_last_n` is not a part of the prompt without its first token, which has no logprob.
    #[error(
        "prompt_logprobs_last_n is {last}; it must lie between 1 and {most}, one less than the prompt has tokens"
    )]
    LastTokens {
        /// Number of tokens to score, as given.
        last: usize,
        /// Most tokens that can be scored.
        most: usize,
    },
    /// `target_prompt_logprobs` does not have one row per prompt position after the first.
    #[error(
        "target_prompt_logprobs has {len} tokens; it must have {rows} rows of {k}, and at least one a row"
    )]
    Targets {
        /// Number of tokens, as given.
        len: usize,
        /// One less than the prompt has tokens.
        rows: usize,
        /// Tokens per row, as given.
        k: usize,
    },
    /// A stop string is empty and would stop everything.
    #[error("a stop string is empty")]
    EmptyStop,
}

impl SamplingParams {
    /// Plain sampling from the model's distribution (temperature 1, nothing cut off).
    #[must_use]
    pub fn plain(max_tokens: usize) -> Self {
        Self { max_tokens, temperature: 1.0, top_k: None, top_p: 1.0, seed: None, stop: Stop::ModelDefault }
    }
}

/// One prompt, `num_samples` continuations of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// Tokens that precede every sample.
    pub prompt: Arc<[Token]>,
    /// Number of independent samples; they share one prefill.
    pub num_samples: usize,
    /// Parameters of all samples of the request.
    pub params: SamplingParams,
    /// Whether to return the logprob of each prompt token.
    pub prompt_logprobs: bool,
    /// Return the `k` most likely tokens at each prompt position; 0 for none.
    pub topk_prompt_logprobs: usize,
    /// Return the `k` most likely tokens at each sampled position; 0 for none.
    pub topk_sample_logprobs: usize,
    /// Score only this many tokens at the end of the prompt; `None` scores all. The service can take what precedes them
    /// from its prefix cache.
    #[serde(default)]
    pub prompt_logprobs_last_n: Option<usize>,
    /// Tokens whose logprob to return at each prompt position.
    #[serde(default)]
    pub target_prompt_logprobs: Option<TargetTokens>,
    /// Whether the service records of each sample what `stable_reinforce` trains on.
    #[serde(default)]
    pub record_stability_info: bool,
}

/// Tokens whose logprob is requested at each prompt position after the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetTokens {
    /// Row after row, one row per position; `None` requests nothing.
    pub tokens: Arc<[Option<Token>]>,
    /// Number of tokens per row.
    pub k: usize,
}

impl SampleRequest {
    /// Samples only, no extras.
    #[must_use]
    pub fn new(prompt: Arc<[Token]>, num_samples: usize, params: SamplingParams) -> Self {
        Self {
            prompt,
            num_samples,
            params,
            prompt_logprobs: false,
            topk_prompt_logprobs: 0,
            topk_sample_logprobs: 0,
            prompt_logprobs_last_n: None,
            target_prompt_logprobs: None,
            record_stability_info: false,
        }
    }

    /// The logprobs of `tokens` under the model, as a request (one token is sampled and ignored).
    #[must_use]
    pub fn score(tokens: Arc<[Token]>) -> Self {
        Self {
            prompt_logprobs: true,
            ..Self::new(tokens, 1, SamplingParams { temperature: 0.0, ..SamplingParams::plain(1) })
        }
    }

    /// The logprobs of these tokens from position `from` on, as a request. With `from` beyond the last token, that of the
    /// last.
    #[must_use]
    pub fn score_from(tokens: Arc<[Token]>, from: usize) -> Self {
        // The first token has no logprob.
        let partial = from > 1 && tokens.len() > 2;
        let prompt_logprobs_last_n = partial.then(|| tokens.len().saturating_sub(from).max(1));
        Self { prompt_logprobs_last_n, ..Self::score(tokens) }
    }

    /// Whether positions of the prompt are scored, and from which on: the logprobs of tokens before it are not returned.
    #[must_use]
    pub fn scored_from(&self) -> Option<usize> {
        let by_token = self.prompt_logprobs || self.topk_prompt_logprobs > 0;
        let from = match (by_token, &self.target_prompt_logprobs) {
            (false, None) => return None,
            (true, None) => {
                self.prompt_logprobs_last_n.map_or(0, |last| self.prompt.len().saturating_sub(last))
            }
            // Targets are not limited to the last tokens.
            (_, Some(_)) => 0,
        };
        Some(from)
    }

    /// Checks that a sampler can serve the request.
    ///
    /// # Errors
    /// Names the first parameter that is invalid.
    pub fn check(&self) -> Result<(), SamplingError> {
        let p = &self.params;
        let range = |key, value: f64, must| Err(SamplingError::Range { key, value, must });
        if self.prompt.is_empty() {
            return Err(SamplingError::EmptyPrompt);
        }
        if self.num_samples == 0 {
            return Err(SamplingError::NoSamples);
        }
        if p.max_tokens == 0 {
            return range("max_tokens", 0.0, "be at least 1");
        }
        if !(p.temperature.is_finite() && p.temperature >= 0.0) {
            return range("temperature", f64::from(p.temperature), "be finite and not negative");
        }
        if p.top_k == Some(0) {
            return range("top_k", 0.0, "be at least 1");
        }
        if !(p.top_p > 0.0 && p.top_p <= 1.0) {
            return range("top_p", f64::from(p.top_p), "lie in (0, 1]");
        }
        if let Some(last) = self.prompt_logprobs_last_n {
            let most = self.prompt.len() - 1;
            if !self.prompt_logprobs {
                return range("prompt_logprobs_last_n", last as f64, "be used with prompt_logprobs");
            }
            if !(1..=most).contains(&last) {
                return Err(SamplingError::LastTokens { last, most });
            }
        }
        if let Some(TargetTokens { tokens, k }) = &self.target_prompt_logprobs {
            let rows = self.prompt.len() - 1;
            if *k == 0 || rows.checked_mul(*k) != Some(tokens.len()) {
                return Err(SamplingError::Targets { len: tokens.len(), rows, k: *k });
            }
        }
        if matches!(&p.stop, Stop::Strings(strings) if strings.iter().any(String::is_empty)) {
            return Err(SamplingError::EmptyStop);
        }
        Ok(())
    }
}

/// Logprobs of requested tokens at each prompt position after the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetLogprobs {
    /// In the order of [`TargetTokens::tokens`]; 0 where nothing was requested.
    pub logprobs: Vec<f32>,
    /// Number of tokens per row.
    pub k: usize,
}

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// A stop token or string.
    Stop,
    /// `max_tokens` or the context's end.
    Length,
}

/// Tokens with their logprobs, most likely first.
pub type TopK = Vec<(Token, f32)>;

/// Tokens with the logprob each had under the model at temperature 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Sampled tokens, the stop included.
    pub tokens: Vec<Token>,
    /// Logprob of each, same length.
    pub logprobs: Vec<f32>,
    /// Why the sample ended.
    pub stop: StopReason,
    /// The most likely tokens at each position, best first, if they were requested.
    pub topk: Option<Vec<TopK>>,
    /// Name that the service gave the sample, if it names samples. Later requests refer to the sample by it.
    #[serde(default)]
    pub sequence_id: Option<Arc<str>>,
    /// The versions of the weights that sampled it, from the first token to the last. Empty where one version sampled all
    /// of it, or the service does not tell.
    #[serde(default)]
    pub versions: Vec<VersionSpan>,
}

/// Consecutive tokens of a sample that one version of the weights sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSpan {
    /// The version, as it was named when it was published.
    pub version: PolicyVersion,
    /// How many of the tokens in a row it sampled.
    pub tokens: usize,
}

impl Completion {
    /// A sample without extras.
    #[must_use]
    pub fn new(tokens: Vec<Token>, logprobs: Vec<f32>, stop: StopReason) -> Self {
        Self { tokens, logprobs, stop, topk: None, sequence_id: None, versions: Vec::new() }
    }

    /// Appends what was sampled from its end on.
    pub fn append(&mut self, rest: Self) {
        self.tokens.extend(rest.tokens);
        self.logprobs.extend(rest.logprobs);
        self.stop = rest.stop;
        self.topk = self.topk.take().zip(rest.topk).map(|(lists, more)| [lists, more].concat());
        for VersionSpan { version, tokens } in rest.versions {
            (0..tokens).for_each(|_| self.sampled_by(version));
        }
    }

    /// Notes that these weights sampled the next token.
    pub fn sampled_by(&mut self, version: PolicyVersion) {
        match self.versions.last_mut().filter(|last| last.version == version) {
            Some(last) => last.tokens += 1,
            None => self.versions.push(VersionSpan { version, tokens: 1 }),
        }
    }

    /// Whether it can be trained: it has tokens, and each of them a finite logprob.
    ///
    /// # Errors
    /// The first defect of the sample.
    pub fn check(&self) -> Result<(), CompletionError> {
        let tokens = self.tokens.len();
        let logprobs = self.logprobs.len();
        if tokens == 0 {
            return Err(CompletionError::Empty);
        }
        if tokens != logprobs {
            return Err(CompletionError::Unmatched { tokens, logprobs });
        }
        match self.logprobs.iter().position(|logprob| !logprob.is_finite()) {
            Some(at) => Err(CompletionError::NotFinite { at, logprob: self.logprobs[at] }),
            None => Ok(()),
        }
    }
}

/// Why a sample cannot be trained.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum CompletionError {
    /// It has no tokens.
    #[error("a sample has no tokens")]
    Empty,
    /// The numbers of tokens and of logprobs differ.
    #[error("a sample of {tokens} tokens has {logprobs} logprobs")]
    Unmatched {
        /// Number of tokens in the sample.
        tokens: usize,
        /// Number of logprobs in the sample.
        logprobs: usize,
    },
    /// A logprob is NaN or infinite.
    #[error("token {at} of a sample has the logprob {logprob}")]
    NotFinite {
        /// Position of the token in the sample, from 0.
        at: usize,
        /// The invalid logprob, NaN or infinite.
        logprob: f32,
    },
}

/// Response to a [`SampleRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleResponse {
    /// One entry per sample.
    pub sequences: Vec<Completion>,
    /// Logprob of each prompt token given those before it; the first has none.
    pub prompt_logprobs: Option<Vec<Option<f32>>>,
    /// The most likely tokens at each prompt position, best first; the first position has none.
    pub topk_prompt_logprobs: Option<Vec<Option<TopK>>>,
    /// Logprobs of the requested [`TargetTokens`].
    #[serde(default)]
    pub target_prompt_logprobs: Option<TargetLogprobs>,
    /// Prompt tokens that needed no computation, where the service reports it.
    pub cached_prompt_tokens: usize,
}
