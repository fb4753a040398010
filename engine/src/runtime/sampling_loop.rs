//! The sampling loop: continuous batching on one thread.
//!
//! Each step runs one batch through the model: the last token of every live row, and a bounded chunk of the prompts
//! in prefill, so that a long prompt delays other requests by one chunk and not by its length. New requests join at
//! the next step, ended rows leave at once, and requests whose caller dropped them are removed. Requests start strictly
//! in the order of arrival; a started request has its memory reserved and runs to its end.
//!
//! In-flight weights are replaced between two steps: a request that follows them draws its next token under the new
//! ones, either over the keys and values that it has, or after these were computed again like a prompt.

use super::budget::KvBudget;
use super::catch_panic;
use super::job::{DrawRule, PromptState, QueuedSample, SampleJob, SampleRow};
use super::prefix::{PrefixCache, PromptScores, reusable};
use super::stats::{EngineCounters, add, timed};
use super::weights::{CurrentWeights, SwapKv};
use crate::model::{HiddenStates, Model, SequenceExtension, extend, logits};
use minds_core::service::BackendError;
use rayon::ThreadPool;
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};

/// Prompt tokens per step while rows are being sampled: about the cost of two decode steps of the default model.
const PREFILL_CHUNK_BESIDE_ROWS: usize = 64;
/// Prompt tokens per step when no row waits; larger chunks are hardly faster.
const PREFILL_CHUNK_ALONE: usize = 256;
/// Most rows of logits in memory at once when prompts are scored.
const SCORED_AT_ONCE: usize = 64;

/// Everything the sampling thread owns.
pub(crate) struct SamplingLoop {
    pub(crate) model: Arc<Model<f32>>,
    pub(crate) requests: Receiver<QueuedSample>,
    pub(crate) counters: Arc<EngineCounters>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) waiting: VecDeque<QueuedSample>,
    pub(crate) running: Vec<SampleJob>,
    pub(crate) budget: KvBudget,
    pub(crate) cache: PrefixCache,
    pub(crate) swap_kv: SwapKv,
}

/// Source of one entry of a batch.
enum BatchEntry {
    Prompt {
        job: usize,
        at: usize,
        len: usize,
    },
    /// `draws` if its next token can be drawn after the batch.
    Row {
        job: usize,
        row: usize,
        draws: bool,
    },
}

/// Entries of one batch, and their hidden states.
type BatchOutput = (Vec<BatchEntry>, HiddenStates<f32>);

impl SamplingLoop {
    /// Serves requests until the engine is dropped or stopped. Unfinished requests are then lost.
    pub(crate) fn run(mut self, pool: &ThreadPool) {
        let counters = self.counters.clone();
        while self.receive() {
            timed(&counters.sampling_nanos, || {
                self.drop_abandoned();
                self.admit();
                pool.install(|| self.step());
                self.retire_ended();
            });
            counters.rows.store(self.budget.used_rows() as u64, Ordering::Relaxed);
            counters.kv_bytes.store(self.budget.used_bytes() as u64, Ordering::Relaxed);
        }
    }

    /// Receives new requests; blocks when there is no other work. `false` ends the loop.
    fn receive(&mut self) -> bool {
        if self.running.is_empty() && self.waiting.is_empty() {
            match self.requests.recv() {
                Ok(queued) => self.waiting.push_back(queued),
                Err(_) => return false,
            }
        }
        loop {
            match self.requests.try_recv() {
                Ok(queued) => self.waiting.push_back(queued),
                Err(TryRecvError::Empty) => return !self.stopping.load(Ordering::Relaxed),
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn drop_abandoned(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|queued| !queued.reply.is_closed());
        self.counters.waiting.fetch_sub((before - self.waiting.len()) as u64, Ordering::Relaxed);
        for index in (0..self.running.len()).rev() {
            if self.running[index].queued.reply.is_closed() {
                drop(self.close(index));
            }
        }
    }

    /// Starts the requests that fit. While a request lacks memory for some of its rows, no later request starts.
    fn admit(&mut self) {
        loop {
            if let Some(job) = self.running.iter_mut().find(|job| job.needs_rows()) {
                while job.needs_rows() && self.budget.reserve_row(job.queued.need) {
                    job.reserved += 1;
                }
                if job.needs_rows() {
                    return;
                }
            }
            let Some(next) = self.waiting.front() else { return };
            let weights = next.weights.now();
            let hit = self.cache.find(weights.id(), &next.request.prompt, next.scores());
            if self.is_prefilling(next, &weights, hit.as_ref().map_or(0, |h| h.len))
                || !self.budget.reserve_prompt(next.need)
            {
                return;
            }
            let Some(queued) = self.waiting.pop_front() else { return };
            self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
            add(&self.counters.cached_tokens, hit.as_ref().map_or(0, |h| h.len));
            self.running.push(SampleJob::new(&self.model, queued, weights, hit));
        }
    }

    /// Whether a prompt in prefill will soon serve more of this request's prompt than `cached`. The request then
    /// waits, so that a group which arrives as single requests computes its common prompt once.
    fn is_prefilling(&self, next: &QueuedSample, weights: &CurrentWeights, cached: usize) -> bool {
        self.running.iter().any(|job| {
            // Its logprobs will be known if it returns all of them.
            let known = job.scores.is_some_and(|scores| scores.from == 0);
            let prompt = &job.queued.request.prompt;
            job.prefill_left() > 0
                && job.weights.id() == weights.id()
                && self.cache.accepts(job.queued.need.prompt_bytes)
                && reusable(prompt, &next.request.prompt, next.scores(), known) > cached
        })
    }

    /// Draws first tokens, runs one batch, draws next tokens.
    fn step(&mut self) {
        add(&self.counters.steps, 1);
        for job in &mut self.running {
            match catch_panic("a sample", || Ok(job.start_rows()?)) {
                Ok(drawn) => add(&self.counters.decoded_tokens, drawn),
                Err(error) => job.failed = Some(error),
            }
        }
        self.swap_weights();
        let model = self.model.clone();
        let (parts, hidden) = match self.run_batch(&model) {
            Ok(Some(batch)) => batch,
            Ok(None) => return,
            Err(error) => {
                // The failing request cannot be identified, and all their keys and values may be invalid.
                self.running.iter_mut().for_each(|job| job.failed = Some(error.clone()));
                return;
            }
        };
        let outcome = catch_panic("a sampling step", || {
            self.advance_prefill(&model, &parts, &hidden);
            self.draw(&model, &parts, &hidden);
            Ok(())
        });
        if let Err(error) = outcome {
            self.running.iter_mut().for_each(|job| job.failed = Some(error.clone()));
        }
    }

    /// Gives requests the newest of the weights that they follow.
    fn swap_weights(&mut self) {
        for job in self.running.iter_mut().filter(|job| job.failed.is_none()) {
            if !job.queued.weights.have_replaced(&job.weights) || !job.may_swap() {
                continue;
            }
            job.weights = job.queued.weights.now();
            if self.swap_kv == SwapKv::Recompute {
                let hit = self.cache.find(job.weights.id(), &job.queued.request.prompt, None);
                job.recompute(&self.model, hit);
            }
        }
    }

    /// Runs the last token of every live row, and a chunk of the prompts and of what rows compute again.
    fn run_batch(&mut self, model: &Model<f32>) -> Result<Option<BatchOutput>, BackendError> {
        let decodes = |job: &SampleJob| {
            let prompt = job.queued.request.prompt.len();
            job.prefill_left() == 0 && job.rows.iter().any(|row| !row.ended && row.unread(prompt).len() == 1)
        };
        let mut allowance =
            if self.running.iter().any(decodes) { PREFILL_CHUNK_BESIDE_ROWS } else { PREFILL_CHUNK_ALONE };
        let mut parts = Vec::new();
        let mut work = Vec::new();
        for (index, job) in self.running.iter_mut().enumerate().filter(|(_, job)| job.failed.is_none()) {
            let adapter = job.weights.adapter();
            if let PromptState::Prefilling { kv } = &mut job.prompt {
                let prompt = &job.queued.request.prompt;
                let at = kv.len();
                let len = allowance.min(prompt.len() - at);
                if len > 0 {
                    allowance -= len;
                    parts.push(BatchEntry::Prompt { job: index, at, len });
                    work.push(SequenceExtension { adapter, tokens: &prompt[at..at + len], kv });
                }
                continue;
            }
            let prompt = job.queued.request.prompt.len();
            for (at, row) in job.rows.iter_mut().enumerate().filter(|(_, row)| !row.ended) {
                let unread = row.unread(prompt);
                // A row always decodes; what it computes again takes its share of the chunk.
                let len = if unread.len() == 1 { 1 } else { unread.len().min(allowance) };
                if len == 0 {
                    continue;
                }
                if unread.len() > 1 {
                    allowance -= len;
                    add(&self.counters.recomputed_tokens, len);
                }
                parts.push(BatchEntry::Row { job: index, row: at, draws: len == unread.len() });
                let tokens = &row.sampled.tokens[unread.start..unread.start + len];
                work.push(SequenceExtension { adapter, tokens, kv: &mut row.kv });
            }
        }
        if work.is_empty() {
            return Ok(None);
        }
        let hidden = catch_panic("a sampling step", || {
            extend(model, &mut work).map_err(|e| BackendError::Unavailable(e.to_string()))
        })?;
        Ok(Some((parts, hidden)))
    }

    /// Scores the prompt chunks of the batch, and shares the prompts that are complete.
    fn advance_prefill(&mut self, model: &Model<f32>, parts: &[BatchEntry], hidden: &HiddenStates<f32>) {
        for (entry, part) in parts.iter().enumerate() {
            let BatchEntry::Prompt { job, at, len } = *part else { continue };
            let job = &mut self.running[job];
            let counters = &self.counters;
            add(if job.recomputes { &counters.recomputed_tokens } else { &counters.prefilled_tokens }, len);
            let rows: Vec<usize> = hidden.rows(entry).collect();
            if let Some(PromptScores { from, .. }) = job.scores {
                let vocab = model.architecture().vocab;
                // The first position whose next token is returned.
                let first = from.saturating_sub(1).clamp(at, at + len);
                job.skip(first - at);
                let positions: Vec<usize> = (first..at + len).collect();
                let rows = rows[first - at..].chunks(SCORED_AT_ONCE);
                for (rows, positions) in rows.zip(positions.chunks(SCORED_AT_ONCE)) {
                    let block = logits(model, hidden, rows);
                    for (row, position) in block.chunks(vocab).zip(positions) {
                        if let Err(error) = job.score(*position, row) {
                            job.failed = Some(error.into());
                        }
                    }
                }
            }
            if at + len == job.queued.request.prompt.len() && job.failed.is_none() {
                let first = logits(model, hidden, &rows[len - 1..]);
                let known = job.scores.and_then(|_| job.known_logprobs());
                if let Some(shared) = job.share_prompt(model, first) {
                    self.cache.keep(job.weights.id(), &job.queued.request.prompt, known, &shared);
                }
            }
        }
    }

    /// Draws the next token of every row of the batch.
    fn draw(&mut self, model: &Model<f32>, parts: &[BatchEntry], hidden: &HiddenStates<f32>) {
        let ready = |(entry, part): (usize, &BatchEntry)| match part {
            BatchEntry::Row { job, row, draws: true } => Some((*job, *row, hidden.rows(entry).end - 1)),
            BatchEntry::Row { .. } | BatchEntry::Prompt { .. } => None,
        };
        let ready: Vec<(usize, usize, usize)> = parts.iter().enumerate().filter_map(ready).collect();
        if ready.is_empty() {
            return;
        }
        let rows: Vec<usize> = ready.iter().map(|(_, _, hidden)| *hidden).collect();
        let block = logits(model, hidden, &rows);
        let mut next = ready.iter().peekable();
        let mut drawing: Vec<(usize, &mut SampleRow, DrawRule<'_>)> = Vec::new();
        for (index, job) in self.running.iter_mut().enumerate() {
            let (rows, rule) = job.rows_and_rule();
            for (at, row) in rows.iter_mut().enumerate() {
                if next.next_if(|(job, row, _)| (*job, *row) == (index, at)).is_some() {
                    drawing.push((index, row, rule));
                }
            }
        }
        debug_assert_eq!(drawing.len(), rows.len(), "the rows of a batch are in the order of its entries");
        let failures: Vec<(usize, BackendError)> = drawing
            .par_iter_mut()
            .zip(block.par_chunks(model.architecture().vocab))
            .filter_map(|((index, row, rule), logits)| {
                catch_panic("a sample", || Ok(row.draw(logits, rule)?)).err().map(|error| (*index, error))
            })
            .collect();
        add(&self.counters.decoded_tokens, rows.len());
        for (index, error) in failures {
            self.running[index].failed = Some(error);
        }
    }

    /// Removes ended rows and requests.
    fn retire_ended(&mut self) {
        for index in (0..self.running.len()).rev() {
            if let Some(error) = self.running[index].failed.take() {
                self.close(index).fail(error);
                continue;
            }
            let job = &mut self.running[index];
            let ended = job.retire_rows();
            self.budget.release_rows(job.queued.need, ended);
            if job.is_finished() {
                self.close(index).answer();
            }
        }
    }

    /// Removes a request and releases its reservation.
    fn close(&mut self, index: usize) -> SampleJob {
        let job = self.running.remove(index);
        self.budget.release_rows(job.queued.need, job.unreleased_rows());
        self.budget.release_prompt(job.queued.need);
        job
    }
}

#[cfg(test)]
mod tests;
