//! One sampling request on its way: its prompt, its rows, its answer.

use super::Snapshot;
use super::budget::Need;
use super::prefix::Hit;
use crate::kv::Kv;
use crate::model::Model;
use crate::sample::{Draws, Ending, NotFinite, Score, StopRule, StopScan, choose};
use minds_core::backend::BackendError;
use minds_core::ids::Token;
use minds_core::sampling::{SampleRequest, SampleResponse, Sampled, StopReason};
use std::sync::Arc;
use tokio::sync::oneshot;

/// A checked request in the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) request: SampleRequest,
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    pub(crate) rule: StopRule,
    pub(crate) seed: u64,
    /// Most tokens of a sample that the context allows.
    pub(crate) max_new: usize,
    pub(crate) need: Need,
    pub(crate) reply: oneshot::Sender<Result<SampleResponse, BackendError>>,
}

impl Ticket {
    pub(crate) fn snapshot_id(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |s| s.id())
    }

    /// Whether positions of the prompt are scored.
    pub(crate) fn scored(&self) -> bool {
        self.request.prompt_logprobs || self.request.topk_prompt_logprobs > 0
    }
}

/// The prompt: first being read, then shared by all rows.
#[derive(Debug)]
pub(crate) enum Prompt {
    /// Some of it is still to be run through the model.
    Reading { kv: Kv<f32> },
    /// All of it is there, with the logits after its last token.
    Read { kv: Arc<Kv<f32>>, first: Vec<f32> },
}

/// One sample in the making.
#[derive(Debug)]
pub(crate) struct Row {
    index: usize,
    pub(crate) kv: Kv<f32>,
    draws: Draws,
    scan: StopScan,
    pub(crate) sampled: Sampled,
    /// Set when the row has ended.
    pub(crate) ended: bool,
}

/// How the tokens of a request's rows are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule<'a> {
    request: &'a SampleRequest,
    max_new: usize,
}

impl Row {
    /// Draws the next token from its logits.
    pub(crate) fn take(&mut self, logits: &[f32], rule: &Rule<'_>) -> Result<(), NotFinite> {
        let score = Score::new(logits)?;
        let token = choose(logits, &rule.request.params, self.draws.next_unit());
        self.sampled.tokens.push(token);
        self.sampled.logprobs.push(score.logprob(token));
        if let Some(topk) = &mut self.sampled.topk {
            topk.push(score.top(rule.request.topk_sample_logprobs));
        }
        if self.scan.look(&self.sampled.tokens) == Ending::Stopped {
            self.sampled.stop = StopReason::Stop;
            self.ended = true;
        } else if self.sampled.tokens.len() >= rule.max_new {
            self.ended = true;
        }
        Ok(())
    }
}

/// A request that has room reserved.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ticket: Ticket,
    pub(crate) prompt: Prompt,
    pub(crate) rows: Vec<Row>,
    /// Rows with room reserved, of the first to the last.
    pub(crate) reserved: usize,
    /// Rows begun.
    started: usize,
    finished: Vec<Option<Sampled>>,
    pub(crate) logprobs: Vec<Option<f32>>,
    topk: Vec<Option<Vec<(Token, f32)>>>,
    cached: usize,
    /// Set when the request cannot go on.
    pub(crate) failed: Option<BackendError>,
}

impl Job {
    /// Begins after what is kept of the prompt.
    pub(crate) fn new(model: &Model<f32>, ticket: Ticket, hit: Option<Hit>) -> Self {
        let samples = ticket.request.num_samples;
        let (mut logprobs, mut topk) = (Vec::new(), Vec::new());
        if ticket.scored() {
            logprobs.push(None);
            topk.push(None);
        }
        let cached = hit.as_ref().map_or(0, |h| h.len);
        let prompt = match hit {
            None => Prompt::Reading { kv: Kv::root(model) },
            Some(hit) => {
                if let Some(known) = &hit.logprobs {
                    logprobs = known[..=hit.len].to_vec();
                }
                Prompt::Reading { kv: hit.from.fork(hit.len) }
            }
        };
        let finished = vec![None; samples];
        Self {
            ticket,
            prompt,
            rows: Vec::new(),
            reserved: 1,
            started: 0,
            finished,
            logprobs,
            topk,
            cached,
            failed: None,
        }
    }

    /// Prompt tokens still to be read.
    pub(crate) fn unread(&self) -> usize {
        match &self.prompt {
            Prompt::Reading { kv } => self.ticket.request.prompt.len() - kv.len(),
            Prompt::Read { .. } => 0,
        }
    }

    /// Makes the prompt, now read to its end, the common start of all rows.
    pub(crate) fn share_prompt(&mut self, model: &Model<f32>, first: Vec<f32>) -> Option<Arc<Kv<f32>>> {
        let Prompt::Reading { kv } = &mut self.prompt else { return None };
        let shared = Arc::new(std::mem::replace(kv, Kv::root(model)));
        self.prompt = Prompt::Read { kv: shared.clone(), first };
        Some(shared)
    }

    /// Whether rows are left that have no room yet.
    pub(crate) fn is_hungry(&self) -> bool {
        self.reserved < self.ticket.request.num_samples
    }

    /// Rows that hold room.
    pub(crate) fn holding(&self) -> usize {
        self.reserved - self.finished.iter().filter(|f| f.is_some()).count()
    }

    /// How this request draws, next to its rows.
    pub(crate) fn rows_and_rule(&mut self) -> (&mut [Row], Rule<'_>) {
        let rule = Rule { request: &self.ticket.request, max_new: self.ticket.max_new };
        (&mut self.rows, rule)
    }

    /// Begins every row that has room, once the prompt is read, and draws their first tokens.
    pub(crate) fn start_rows(&mut self) -> Result<usize, NotFinite> {
        let Prompt::Read { kv: prompt, first } = &self.prompt else { return Ok(0) };
        let rule = Rule { request: &self.ticket.request, max_new: self.ticket.max_new };
        let begun = self.started..self.reserved;
        for index in begun.clone() {
            let topk = (self.ticket.request.topk_sample_logprobs > 0).then(Vec::new);
            let sampled =
                Sampled { tokens: Vec::new(), logprobs: Vec::new(), stop: StopReason::Length, topk };
            let mut row = Row {
                index,
                kv: Kv::child(prompt.clone()),
                draws: Draws::new(self.ticket.seed, index as u64),
                scan: StopScan::new(self.ticket.rule.clone()),
                sampled,
                ended: self.ticket.max_new == 0,
            };
            if !row.ended {
                row.take(first, &rule)?;
            }
            self.rows.push(row);
        }
        self.started = self.reserved;
        Ok(if self.ticket.max_new == 0 { 0 } else { begun.len() })
    }

    /// Notes what one position of the prompt says about the token after it.
    pub(crate) fn score(&mut self, position: usize, logits: &[f32]) -> Result<(), NotFinite> {
        let Some(&next) = self.ticket.request.prompt.get(position + 1) else { return Ok(()) };
        let score = Score::new(logits)?;
        self.logprobs.push(Some(score.logprob(next)));
        let k = self.ticket.request.topk_prompt_logprobs;
        if k > 0 {
            self.topk.push(Some(score.top(k)));
        }
        Ok(())
    }

    /// Sets ended rows aside; how many there were.
    pub(crate) fn retire_rows(&mut self) -> usize {
        let ended: Vec<Row> = self.rows.extract_if(.., |row| row.ended).collect();
        let count = ended.len();
        for row in ended {
            self.finished[row.index] = Some(row.sampled);
        }
        count
    }

    /// Whether every sample is there.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.iter().all(Option::is_some)
    }

    /// Answers with everything that was asked for.
    pub(crate) fn answer(self) {
        let request = &self.ticket.request;
        let response = SampleResponse {
            sequences: self.finished.into_iter().flatten().collect(),
            prompt_logprobs: request.prompt_logprobs.then_some(self.logprobs),
            topk_prompt_logprobs: (request.topk_prompt_logprobs > 0).then_some(self.topk),
            cached_prompt_tokens: self.cached,
        };
        self.ticket.reply.send(Ok(response)).ok();
    }

    /// Answers with a failure.
    pub(crate) fn fail(self, error: BackendError) {
        self.ticket.reply.send(Err(error)).ok();
    }
}
