//! The sampling loop: continuous batching on one thread.
//!
//! Each step runs one batch through the model: the last token of every live row, and a bounded piece of the prompts
//! being read, so that a long prompt delays its neighbours by one piece and not by its length. New requests join
//! at the next step, ended rows leave at once, and requests whose caller is gone are dropped. Requests start
//! strictly in the order of arrival; what starts has its room reserved and runs to its end.

use super::budget::Budget;
use super::job::{Job, Prompt, Row, Rule, Ticket};
use super::prefix::{PrefixCache, reusable};
use super::stats::{Counters, add, timed};
use super::{Snapshot, guarded};
use crate::model::{Extend, Hidden, Model, extend, logits};
use minds_core::backend::BackendError;
use rayon::ThreadPool;
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};

/// Prompt tokens of a step while rows are being sampled: about the cost of two decode steps of the default model.
const PIECE_BESIDE_ROWS: usize = 64;
/// Prompt tokens of a step when no row waits; larger pieces are hardly faster.
const PIECE_ALONE: usize = 256;
/// Rows of logits that exist at once when prompts are scored.
const SCORED_AT_ONCE: usize = 64;

/// Everything the sampling thread owns.
pub(crate) struct Sampler {
    pub(crate) model: Arc<Model<f32>>,
    pub(crate) requests: Receiver<Ticket>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) waiting: VecDeque<Ticket>,
    pub(crate) open: Vec<Job>,
    pub(crate) budget: Budget,
    pub(crate) cache: PrefixCache,
}

/// What one entry of a batch belongs to.
enum Part {
    Prompt { job: usize, at: usize, len: usize },
    Row { job: usize },
}

/// What went through the model in one step, and what came out.
type Batch = (Vec<Part>, Hidden<f32>);

impl Sampler {
    /// Serves requests until the engine is dropped or stopped. Open requests are then lost.
    pub(crate) fn run(mut self, pool: &ThreadPool) {
        let counters = self.counters.clone();
        while self.collect() {
            timed(&counters.sampling_nanos, || {
                self.forget_dropped();
                self.admit();
                pool.install(|| self.step());
                self.settle();
            });
            counters.rows.store(self.budget.used_rows() as u64, Ordering::Relaxed);
            counters.kv_bytes.store(self.budget.used_bytes() as u64, Ordering::Relaxed);
        }
    }

    /// Takes in what has arrived; waits when there is nothing else to do. `false` ends the loop.
    fn collect(&mut self) -> bool {
        if self.open.is_empty() && self.waiting.is_empty() {
            match self.requests.recv() {
                Ok(ticket) => self.waiting.push_back(ticket),
                Err(_) => return false,
            }
        }
        loop {
            match self.requests.try_recv() {
                Ok(ticket) => self.waiting.push_back(ticket),
                Err(TryRecvError::Empty) => return !self.stopping.load(Ordering::Relaxed),
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn forget_dropped(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|ticket| !ticket.reply.is_closed());
        self.counters.waiting.fetch_sub((before - self.waiting.len()) as u64, Ordering::Relaxed);
        for index in (0..self.open.len()).rev() {
            if self.open[index].ticket.reply.is_closed() {
                drop(self.close(index));
            }
        }
    }

    /// Starts what fits. While a request lacks room for some of its rows, nothing behind it starts.
    fn admit(&mut self) {
        loop {
            if let Some(job) = self.open.iter_mut().find(|job| job.is_hungry()) {
                while job.is_hungry() && self.budget.add_row(job.ticket.need) {
                    job.reserved += 1;
                }
                if job.is_hungry() {
                    return;
                }
            }
            let Some(next) = self.waiting.front() else { return };
            let hit = if next.request.topk_prompt_logprobs > 0 {
                None
            } else {
                self.cache.find(next.snapshot_id(), &next.request.prompt, next.scored())
            };
            if self.is_being_read(next, hit.as_ref().map_or(0, |h| h.len)) || !self.budget.open(next.need) {
                return;
            }
            let Some(ticket) = self.waiting.pop_front() else { return };
            self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
            add(&self.counters.cached_tokens, hit.as_ref().map_or(0, |h| h.len));
            self.open.push(Job::new(&self.model, ticket, hit));
        }
    }

    /// Whether a prompt now being read will soon serve more of this request's than `cached`. It then waits, so
    /// that a group which arrives as single requests reads its common prompt once.
    fn is_being_read(&self, next: &Ticket, cached: usize) -> bool {
        next.request.topk_prompt_logprobs == 0
            && self.open.iter().any(|job| {
                job.unread() > 0
                    && job.ticket.snapshot_id() == next.snapshot_id()
                    && (job.ticket.scored() || !next.scored())
                    && self.cache.accepts(job.ticket.need.prompt_bytes)
                    && reusable(&job.ticket.request.prompt, &next.request.prompt, next.scored()) > cached
            })
    }

    /// Draws, runs one batch, draws.
    fn step(&mut self) {
        add(&self.counters.steps, 1);
        for job in &mut self.open {
            match guarded("a sample", || Ok(job.start_rows()?)) {
                Ok(drawn) => add(&self.counters.decoded_tokens, drawn),
                Err(error) => job.failed = Some(error),
            }
        }
        let model = self.model.clone();
        let (parts, hidden) = match self.run_batch(&model) {
            Ok(Some(batch)) => batch,
            Ok(None) => return,
            Err(error) => {
                // Which of them is at fault cannot be told, and all their keys and values are in doubt.
                self.open.iter_mut().for_each(|job| job.failed = Some(error.clone()));
                return;
            }
        };
        let outcome = guarded("a sampling step", || {
            self.read_prompts(&model, &parts, &hidden);
            self.draw(&model, &parts, &hidden);
            Ok(())
        });
        if let Err(error) = outcome {
            self.open.iter_mut().for_each(|job| job.failed = Some(error.clone()));
        }
    }

    /// Runs the last token of every live row and a piece of the prompts.
    fn run_batch(&mut self, model: &Model<f32>) -> Result<Option<Batch>, BackendError> {
        let is_live = |row: &Row| !row.ended;
        let rows = self.open.iter().any(|job| job.rows.iter().any(is_live));
        let mut allowance = if rows { PIECE_BESIDE_ROWS } else { PIECE_ALONE };
        let (mut parts, mut work) = (Vec::new(), Vec::new());
        for (index, job) in self.open.iter_mut().enumerate().filter(|(_, job)| job.failed.is_none()) {
            let adapter = job.ticket.snapshot.as_deref().map(Snapshot::weights);
            if let Prompt::Reading { kv } = &mut job.prompt {
                let prompt = &job.ticket.request.prompt;
                let at = kv.len();
                let len = allowance.min(prompt.len() - at);
                if len > 0 {
                    allowance -= len;
                    parts.push(Part::Prompt { job: index, at, len });
                    work.push(Extend { adapter, tokens: &prompt[at..at + len], kv });
                }
            }
            for row in job.rows.iter_mut().filter(|row| is_live(row)) {
                let tokens = &row.sampled.tokens[row.sampled.tokens.len() - 1..];
                parts.push(Part::Row { job: index });
                work.push(Extend { adapter, tokens, kv: &mut row.kv });
            }
        }
        if work.is_empty() {
            return Ok(None);
        }
        let hidden = guarded("a sampling step", || {
            extend(model, &mut work).map_err(|e| BackendError::Unavailable(e.to_string()))
        })?;
        Ok(Some((parts, hidden)))
    }

    /// Scores the pieces read, and shares the prompts that are complete.
    fn read_prompts(&mut self, model: &Model<f32>, parts: &[Part], hidden: &Hidden<f32>) {
        for (entry, part) in parts.iter().enumerate() {
            let Part::Prompt { job, at, len } = *part else { continue };
            add(&self.counters.prefilled_tokens, len);
            let job = &mut self.open[job];
            let rows: Vec<usize> = hidden.rows(entry).collect();
            if job.ticket.scored() {
                let vocab = model.architecture().vocab;
                let positions: Vec<usize> = (at..at + len).collect();
                for (rows, positions) in rows.chunks(SCORED_AT_ONCE).zip(positions.chunks(SCORED_AT_ONCE)) {
                    let block = logits(model, hidden, rows);
                    for (row, position) in block.chunks(vocab).zip(positions) {
                        if let Err(error) = job.score(*position, row) {
                            job.failed = Some(error.into());
                        }
                    }
                }
            }
            if at + len == job.ticket.request.prompt.len() && job.failed.is_none() {
                let first = logits(model, hidden, &rows[len - 1..]);
                if let Some(shared) = job.share_prompt(model, first) {
                    let known = job.ticket.scored().then(|| job.logprobs.as_slice().into());
                    let ticket = &job.ticket;
                    self.cache.keep(ticket.snapshot_id(), &ticket.request.prompt, known, &shared);
                }
            }
        }
    }

    /// Draws the next token of every row of the batch.
    fn draw(&mut self, model: &Model<f32>, parts: &[Part], hidden: &Hidden<f32>) {
        let last = |(entry, part): (usize, &Part)| match part {
            Part::Row { .. } => Some(hidden.rows(entry).end - 1),
            Part::Prompt { .. } => None,
        };
        let rows: Vec<usize> = parts.iter().enumerate().filter_map(last).collect();
        if rows.is_empty() {
            return;
        }
        let block = logits(model, hidden, &rows);
        let mut in_batch = vec![false; self.open.len()];
        for part in parts {
            if let Part::Row { job } = part {
                in_batch[*job] = true;
            }
        }
        let mut drawing: Vec<(usize, &mut Row, Rule<'_>)> = Vec::new();
        for (index, job) in self.open.iter_mut().enumerate().filter(|(index, _)| in_batch[*index]) {
            let (rows, rule) = job.rows_and_rule();
            drawing.extend(rows.iter_mut().filter(|row| !row.ended).map(|row| (index, row, rule)));
        }
        debug_assert_eq!(drawing.len(), rows.len(), "the rows of a batch are those that were live");
        let failures: Vec<(usize, BackendError)> = drawing
            .par_iter_mut()
            .zip(block.par_chunks(model.architecture().vocab))
            .filter_map(|((index, row, rule), logits)| {
                guarded("a sample", || Ok(row.take(logits, rule)?)).err().map(|error| (*index, error))
            })
            .collect();
        add(&self.counters.decoded_tokens, rows.len());
        for (index, error) in failures {
            self.open[index].failed = Some(error);
        }
    }

    /// Lets ended rows and requests go.
    fn settle(&mut self) {
        for index in (0..self.open.len()).rev() {
            if let Some(error) = self.open[index].failed.take() {
                self.close(index).fail(error);
                continue;
            }
            let job = &mut self.open[index];
            let ended = job.retire_rows();
            self.budget.end_rows(job.ticket.need, ended);
            if job.is_finished() {
                self.close(index).answer();
            }
        }
    }

    /// Takes a request out and gives its room back.
    fn close(&mut self, index: usize) -> Job {
        let job = self.open.remove(index);
        self.budget.end_rows(job.ticket.need, job.holding());
        self.budget.close(job.ticket.need);
        job
    }
}

#[cfg(test)]
mod tests;
