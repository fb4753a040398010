//! One running sampling request: its prompt, its rows, its response.

use super::budget::KvNeed;
use super::prefix::{PrefixHit, PromptScores};
use super::weights::{CurrentWeights, SamplingWeights};
use crate::kv_cache::KvCache;
use crate::model::Model;
use crate::sample::{
    NonFiniteLogits, NormalizedLogits, SampleRng, StopRule, StopScanner, StopStatus, choose,
};
use minds_core::ids::{PolicyVersion, Token};
use minds_core::sampling::{
    Completion, SampleRequest, SampleResponse, StopReason, TargetLogprobs, TargetTokens,
};
use minds_core::service::BackendError;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A validated request in the queue.
#[derive(Debug)]
pub(crate) struct QueuedSample {
    pub(crate) request: SampleRequest,
    pub(crate) weights: SamplingWeights,
    pub(crate) rule: StopRule,
    pub(crate) seed: u64,
    /// Most tokens per sample that the context allows.
    pub(crate) max_new: usize,
    pub(crate) need: KvNeed,
    pub(crate) reply: oneshot::Sender<Result<SampleResponse, BackendError>>,
}

impl QueuedSample {
    /// What is returned of the positions of the prompt; `None` for nothing.
    pub(crate) fn scores(&self) -> Option<PromptScores> {
        let from = self.request.scored_from()?;
        let rows = self.request.topk_prompt_logprobs > 0 || self.request.target_prompt_logprobs.is_some();
        Some(PromptScores { from, rows })
    }
}

/// The prompt: first prefilled, then shared by all rows.
#[derive(Debug)]
pub(crate) enum PromptState {
    /// Some of the prompt has not run through the model yet.
    Prefilling { kv: KvCache<f32> },
    /// The whole prompt has run, with the logits after its last token and the version of the weights that gave them.
    Prefilled { kv: Arc<KvCache<f32>>, first: Vec<f32>, version: Option<PolicyVersion> },
}

impl PromptState {
    /// A prompt of which this prefix is cached.
    fn after(model: &Model<f32>, hit: Option<PrefixHit>) -> Self {
        let kv = match hit {
            None => KvCache::root(model.architecture()),
            Some(hit) => hit.from.fork(hit.len),
        };
        Self::Prefilling { kv }
    }
}

/// One sample in progress.
#[derive(Debug)]
pub(crate) struct SampleRow {
    index: usize,
    pub(crate) kv: KvCache<f32>,
    rng: SampleRng,
    scan: StopScanner,
    pub(crate) sampled: Completion,
    /// Whether its keys and values are computed again and it has drawn no token since.
    recomputing: bool,
    /// Set when the row has ended.
    pub(crate) ended: bool,
}

/// How the tokens of a request's rows are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawRule<'a> {
    request: &'a SampleRequest,
    max_new: usize,
    /// Version of the weights that gave the logits, where others can follow.
    version: Option<PolicyVersion>,
}

impl SampleRow {
    /// Sampled tokens after a prompt of this length whose keys and values are missing: the last one, or more of them
    /// after new weights have taken over.
    pub(crate) fn unread(&self, prompt: usize) -> Range<usize> {
        self.kv.len() - prompt..self.sampled.tokens.len()
    }

    /// Draws the next token from its logits.
    pub(crate) fn draw(&mut self, logits: &[f32], rule: &DrawRule<'_>) -> Result<(), NonFiniteLogits> {
        let score = NormalizedLogits::new(logits)?;
        let token = choose(logits, &rule.request.params, self.rng.next_unit());
        self.sampled.tokens.push(token);
        self.sampled.logprobs.push(score.logprob(token));
        self.recomputing = false;
        if let Some(version) = rule.version {
            self.sampled.sampled_by(version);
        }
        if let Some(topk) = &mut self.sampled.topk {
            topk.push(score.top(rule.request.topk_sample_logprobs));
        }
        if self.scan.check(&self.sampled.tokens) == StopStatus::Stopped {
            self.sampled.stop = StopReason::Stop;
            self.ended = true;
        } else if self.sampled.tokens.len() >= rule.max_new {
            self.ended = true;
        }
        Ok(())
    }
}

/// A request with a reservation.
#[derive(Debug)]
pub(crate) struct SampleJob {
    pub(crate) queued: QueuedSample,
    /// The weights in use.
    pub(crate) weights: CurrentWeights,
    pub(crate) prompt: PromptState,
    /// What is returned of the prompt; `None` for nothing, or once it is recorded.
    pub(crate) scores: Option<PromptScores>,
    /// Whether the prompt was prefilled before, under other weights.
    pub(crate) recomputes: bool,
    pub(crate) rows: Vec<SampleRow>,
    /// Number of rows with a reservation, counted from the first.
    pub(crate) reserved: usize,
    /// Number of rows started so far.
    started: usize,
    finished: Vec<Option<Completion>>,
    pub(crate) logprobs: Vec<Option<f32>>,
    topk: Vec<Option<Vec<(Token, f32)>>>,
    /// Logprobs of the requested targets, position after position.
    targets: Vec<f32>,
    cached: usize,
    /// Error that ends the request; `None` while it can continue.
    pub(crate) failed: Option<BackendError>,
}

impl SampleJob {
    /// Starts after the cached part of the prompt.
    pub(crate) fn new(
        model: &Model<f32>,
        queued: QueuedSample,
        weights: CurrentWeights,
        hit: Option<PrefixHit>,
    ) -> Self {
        let samples = queued.request.num_samples;
        let cached = hit.as_ref().map_or(0, |h| h.len);
        let scores = queued.scores();
        // Of cached positions, no logprob is returned unless it is known.
        let unscored = if scores.is_some() { cached + 1 } else { 0 };
        let mut logprobs = vec![None; unscored];
        let topk = vec![None; unscored];
        if let Some(hit) = &hit
            && let Some(known) = &hit.logprobs
        {
            logprobs = known[..=hit.len].to_vec();
        }
        let prompt = PromptState::after(model, hit);
        let finished = vec![None; samples];
        Self {
            queued,
            weights,
            prompt,
            scores,
            recomputes: false,
            rows: Vec::new(),
            reserved: 1,
            started: 0,
            finished,
            logprobs,
            topk,
            targets: Vec::new(),
            cached,
            failed: None,
        }
    }

    /// Prompt tokens that are not prefilled yet.
    pub(crate) fn prefill_left(&self) -> usize {
        match &self.prompt {
            PromptState::Prefilling { kv } => self.queued.request.prompt.len() - kv.len(),
            PromptState::Prefilled { .. } => 0,
        }
    }

    /// Makes the prefilled prompt the common start of all rows.
    pub(crate) fn share_prompt(&mut self, model: &Model<f32>, first: Vec<f32>) -> Option<Arc<KvCache<f32>>> {
        let PromptState::Prefilling { kv } = &mut self.prompt else { return None };
        let shared = Arc::new(std::mem::replace(kv, KvCache::root(model.architecture())));
        for row in &mut self.rows {
            row.kv = KvCache::child(shared.clone());
        }
        self.prompt = PromptState::Prefilled { kv: shared.clone(), first, version: self.weights.version };
        self.scores = None;
        Some(shared)
    }

    /// Whether the weights may be replaced now. A prompt is prefilled under one version, so that its logprobs are those of
    /// one; and each row draws a token between two replacements, so that no rate of publication stops it.
    pub(crate) fn may_swap(&self) -> bool {
        let mut live = self.rows.iter().filter(|row| !row.ended);
        self.prefill_left() == 0 && live.all(|row| !row.recomputing) && !self.is_done()
    }

    /// Whether no token is left to be drawn.
    fn is_done(&self) -> bool {
        !self.needs_rows() && self.rows.iter().all(|row| row.ended)
    }

    /// Drops all keys and values, which are those of other weights, so that they are computed again after `hit`.
    pub(crate) fn recompute(&mut self, model: &Model<f32>, hit: Option<PrefixHit>) {
        self.prompt = PromptState::after(model, hit);
        self.recomputes = true;
        for row in self.rows.iter_mut().filter(|row| !row.ended) {
            row.kv = KvCache::root(model.architecture());
            row.recomputing = true;
        }
    }

    /// Whether rows are left that have no reservation yet.
    pub(crate) fn needs_rows(&self) -> bool {
        self.reserved < self.queued.request.num_samples
    }

    /// Number of unfinished rows that hold a reservation.
    pub(crate) fn unreleased_rows(&self) -> usize {
        self.reserved - self.finished.iter().filter(|f| f.is_some()).count()
    }

    /// The rows and the rule by which this request draws.
    pub(crate) fn rows_and_rule(&mut self) -> (&mut [SampleRow], DrawRule<'_>) {
        let rule = DrawRule {
            request: &self.queued.request,
            max_new: self.queued.max_new,
            version: self.weights.version,
        };
        (&mut self.rows, rule)
    }

    /// Starts every row with a reservation, once the prompt is prefilled, and draws their first tokens.
    pub(crate) fn start_rows(&mut self) -> Result<usize, NonFiniteLogits> {
        let PromptState::Prefilled { kv: prompt, first, version } = &self.prompt else { return Ok(0) };
        let rule =
            DrawRule { request: &self.queued.request, max_new: self.queued.max_new, version: *version };
        let begun = self.started..self.reserved;
        for index in begun.clone() {
            let topk = (self.queued.request.topk_sample_logprobs > 0).then(Vec::new);
            let sampled = Completion { topk, ..Completion::new(Vec::new(), Vec::new(), StopReason::Length) };
            let mut row = SampleRow {
                index,
                kv: KvCache::child(prompt.clone()),
                rng: SampleRng::new(self.queued.seed, index as u64),
                scan: StopScanner::new(self.queued.rule.clone()),
                sampled,
                recomputing: false,
                ended: self.queued.max_new == 0,
            };
            if !row.ended {
                row.draw(first, &rule)?;
            }
            self.rows.push(row);
        }
        self.started = self.reserved;
        Ok(if self.queued.max_new == 0 { 0 } else { begun.len() })
    }

    /// Records that nothing is returned of the token after this many more positions.
    pub(crate) fn skip(&mut self, positions: usize) {
        self.logprobs.resize(self.logprobs.len() + positions, None);
        self.topk.resize(self.topk.len() + positions, None);
    }

    /// Records the logprobs that one position of the prompt gives for the token after it.
    pub(crate) fn score(&mut self, position: usize, logits: &[f32]) -> Result<(), NonFiniteLogits> {
        let Some(&next) = self.queued.request.prompt.get(position + 1) else { return Ok(()) };
        let score = NormalizedLogits::new(logits)?;
        self.logprobs.push(Some(score.logprob(next)));
        let k = self.queued.request.topk_prompt_logprobs;
        self.topk.push((k > 0).then(|| score.top(k)));
        if let Some(TargetTokens { tokens, k }) = &self.queued.request.target_prompt_logprobs {
            let row = &tokens[position * k..][..*k];
            self.targets.extend(row.iter().map(|token| token.map_or(0.0, |token| score.logprob(token))));
        }
        Ok(())
    }

    /// The logprobs of all tokens of the prompt, if each is known.
    pub(crate) fn known_logprobs(&self) -> Option<Arc<[Option<f32>]>> {
        let complete = self.logprobs.len() == self.queued.request.prompt.len()
            && self.logprobs[1..].iter().all(Option::is_some);
        complete.then(|| self.logprobs.as_slice().into())
    }

    /// Moves ended rows to the finished samples and returns their number.
    pub(crate) fn retire_rows(&mut self) -> usize {
        let ended: Vec<SampleRow> = self.rows.extract_if(.., |row| row.ended).collect();
        let count = ended.len();
        for row in ended {
            self.finished[row.index] = Some(row.sampled);
        }
        count
    }

    /// Whether all samples are finished.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.iter().all(Option::is_some)
    }

    /// Sends the complete response.
    pub(crate) fn answer(self) {
        let request = &self.queued.request;
        let mut logprobs = self.logprobs;
        let hidden = request.prompt_logprobs_last_n.map_or(0, |last| logprobs.len().saturating_sub(last));
        logprobs[..hidden].fill(None);
        let targets = request.target_prompt_logprobs.as_ref();
        let response = SampleResponse {
            sequences: self.finished.into_iter().flatten().collect(),
            prompt_logprobs: request.prompt_logprobs.then_some(logprobs),
            topk_prompt_logprobs: (request.topk_prompt_logprobs > 0).then_some(self.topk),
            target_prompt_logprobs: targets
                .map(|targets| TargetLogprobs { logprobs: self.targets, k: targets.k }),
            cached_prompt_tokens: self.cached,
        };
        self.queued.reply.send(Ok(response)).ok();
    }

    /// Sends an error as the response.
    pub(crate) fn fail(self, error: BackendError) {
        self.queued.reply.send(Err(error)).ok();
    }
}
