//! The running engine: one thread samples, one trains, both at once.
//!
//! Sampling batches all live requests at each step; training runs strictly in the order of submission. Neither
//! waits for the other: each has a thread pool of its own as wide as the cores it may use, so that the operating
//! system shares the cores between them while both are busy and leaves them all to one while the other is idle.
//! Weights under a sample change only where it was asked to follow those in training, and then between two tokens. A panic
//! fails only the request that caused it.
//!
//! Why not one pool: a decode step that waits for its last piece there runs pieces of the training pass. With
//! the test model, 16 samples beside training passes ran at 17% of their speed alone, with two pools at 62%
//! (training kept 68% and 70%); a model of 19 million weights showed no difference (28 Nov, 2 shared cores).

mod budget;
mod job;
mod options;
mod prefix;
mod sampling_loop;
mod stats;
mod training_queue;
mod weights;

pub use options::EngineOptions;
pub use stats::EngineStats;
pub use weights::{AdapterSnapshot, InFlightTarget, SamplingWeights, SwapKv};

use crate::model::Model;
use crate::sample::{NonFiniteLogits, RequestSeeds, StopError, StopRule};
use crate::train::TrainingWorkspace;
use budget::KvBudget;
use job::QueuedSample;
use minds_core::chat::Tokenizer;
use minds_core::ids::Token;
use minds_core::sampling::{SampleRequest, SampleResponse};
use minds_core::service::{BackendError, Pending};
use prefix::PrefixCache;
use rayon::{ThreadPool, ThreadPoolBuilder};
use sampling_loop::SamplingLoop;
use stats::EngineCounters;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};
use thiserror::Error;
use tokio::sync::oneshot;
use training_queue::TrainingTask;

/// Most samples per request.
const MOST_SAMPLES: usize = 4096;

/// The operating system refused a resource that the engine needs: start it with fewer threads.
#[derive(Debug, Error)]
#[error("failed to start the threads of the engine")]
pub struct EngineStartError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// A running engine. Dropping it ends its threads after their current operations; requests still queued then
/// fail with [`BackendError::Lost`].
pub struct Engine {
    model: Arc<Model<f32>>,
    tokenizer: Option<Arc<dyn Tokenizer>>,
    stop_tokens: Arc<[Token]>,
    budget: KvBudget,
    max_waiting: u64,
    seeds: RequestSeeds,
    counters: Arc<EngineCounters>,
    stopping: Arc<AtomicBool>,
    requests: Sender<QueuedSample>,
    tasks: Sender<TrainingTask>,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts the threads.
    ///
    /// # Errors
    /// The operating system cannot start more threads.
    pub fn start(
        model: Arc<Model<f32>>,
        tokenizer: Option<Arc<dyn Tokenizer>>,
        options: &EngineOptions,
    ) -> Result<Self, EngineStartError> {
        let stop_tokens = match (&tokenizer, options.stop_tokens.is_empty()) {
            (Some(tokenizer), true) => tokenizer.stop_tokens(),
            _ => options.stop_tokens.clone(),
        };
        let budget = KvBudget::new(model.architecture(), options.kv_bytes, options.max_rows.get());
        let counters = Arc::new(EngineCounters::default());
        let stopping = Arc::new(AtomicBool::new(false));
        let (requests, inbox) = channel();
        let sampler = SamplingLoop {
            model: model.clone(),
            requests: inbox,
            counters: counters.clone(),
            stopping: stopping.clone(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            budget: budget.clone(),
            cache: PrefixCache::new(options.prefix_bytes),
            swap_kv: options.swap_kv,
        };
        let sampling_pool = pool("sample", options)?;
        let training_pool = pool("train", options)?;
        let (tasks, queue) = channel();
        let for_trainer = (counters.clone(), stopping.clone());
        let threads = vec![
            thread("engine-sampler", move || sampler.run(&sampling_pool))?,
            thread("engine-trainer", move || {
                training_queue::run(&queue, &training_pool, &for_trainer.0, &for_trainer.1)
            })?,
        ];
        Ok(Self {
            model,
            tokenizer,
            stop_tokens: stop_tokens.into(),
            budget,
            max_waiting: options.max_waiting as u64,
            seeds: RequestSeeds::new(options.seed),
            counters,
            stopping,
            requests,
            tasks,
            threads,
        })
    }

    /// The base model that all adapters share.
    #[must_use]
    pub fn model(&self) -> &Arc<Model<f32>> {
        &self.model
    }

    /// Totals of the engine so far.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.counters.snapshot()
    }

    /// Queues a sampling request. Dropping the response cancels the request at the next step.
    ///
    /// # Errors
    /// A request that can never be served is refused at once; a full queue returns an error that can be retried.
    pub fn sample(
        &self,
        weights: SamplingWeights,
        request: SampleRequest,
    ) -> Result<Pending<SampleResponse>, BackendError> {
        let (rule, max_new) = self.check(&request)?;
        let need = self.budget.need(request.prompt.len(), max_new);
        if !self.budget.can_ever_fit(need) {
            return Err(BackendError::Rejected(format!(
                "a prompt of {} tokens and a sample of {max_new} need {} bytes of keys and values, the budget is {}: \
                 shorten them or raise kv_bytes",
                request.prompt.len(),
                need.prompt_bytes + need.row_bytes,
                self.budget.total_bytes
            )));
        }
        if self.counters.waiting.fetch_add(1, Ordering::Relaxed) >= self.max_waiting {
            self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(BackendError::Unavailable(format!(
                "{} sampling requests wait already",
                self.max_waiting
            )));
        }
        let seed = request.params.seed.unwrap_or_else(|| self.seeds.next_seed());
        let (reply, answer) = oneshot::channel();
        self.requests.send(QueuedSample { request, weights, rule, seed, max_new, need, reply }).ok();
        Ok(pending(answer))
    }

    /// Queues a job behind all earlier ones. It runs even if the response is dropped. Passes in it use the workspace
    /// of the training thread.
    pub fn train<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut TrainingWorkspace<f32>) -> Result<T, BackendError> + Send + 'static,
    ) -> Pending<T> {
        let (reply, answer) = oneshot::channel();
        let task: TrainingTask = Box::new(move |workspace| {
            reply.send(catch_panic("a training job", || job(workspace))).ok();
        });
        self.tasks.send(task).ok();
        pending(answer)
    }

    /// Returns a callback that adds `tokens` to the count of trained tokens.
    pub(crate) fn note_trained(&self, tokens: usize) -> impl FnOnce() + Send + 'static {
        let counters = self.counters.clone();
        move || stats::add(&counters.trained_tokens, tokens)
    }

    /// Returns a callback that counts one optimizer step.
    pub(crate) fn note_step(&self) -> impl FnOnce() + Send + 'static {
        let counters = self.counters.clone();
        move || stats::add(&counters.optim_steps, 1)
    }

    /// Ends the threads after their current operations, and waits for them.
    pub fn stop(mut self) {
        let threads = std::mem::take(&mut self.threads);
        drop(self);
        for thread in threads {
            // A thread that panicked has stopped as well.
            thread.join().ok();
        }
    }

    /// Refuses requests that cannot be served; returns the stop rule and the most tokens of a sample.
    fn check(&self, request: &SampleRequest) -> Result<(StopRule, usize), BackendError> {
        let refuse = |text: String| Err(BackendError::Rejected(text));
        if let Err(error) = request.check() {
            return refuse(error.to_string());
        }
        let vocab = self.model.architecture().vocab;
        let context = self.model.architecture().context;
        if let Some(token) = request.prompt.iter().find(|token| **token as usize >= vocab) {
            return refuse(format!("prompt token {token} is outside of the vocabulary of {vocab}"));
        }
        if request.num_samples > MOST_SAMPLES {
            return refuse(format!(
                "num_samples is {}, at most {MOST_SAMPLES} are possible",
                request.num_samples
            ));
        }
        let targets = request.target_prompt_logprobs.iter().flat_map(|targets| targets.tokens.iter());
        if let Some(token) = targets.flatten().find(|token| **token as usize >= vocab) {
            return refuse(format!(
                "target_prompt_logprobs has the token {token}, outside of the vocabulary of {vocab}"
            ));
        }
        let scores = request.scored_from().is_some();
        let len = request.prompt.len();
        // A prompt that fills the context can be scored, though nothing can follow it.
        if len > context || (len == context && !scores) {
            return refuse(format!("a prompt of {len} tokens leaves no room in the context of {context}"));
        }
        let rule = StopRule::new(&request.params.stop, &self.stop_tokens, self.tokenizer.as_ref());
        let rule = rule.map_err(|error| match error {
            StopError::NoTokenizer => BackendError::Unsupported(error.to_string()),
            StopError::ControlWithin { .. } => BackendError::Rejected(error.to_string()),
        })?;
        Ok((rule, request.params.max_tokens.min(context - len)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

/// Runs `work`; a panic becomes an error that names it.
pub(crate) fn catch_panic<T>(
    what: &str,
    work: impl FnOnce() -> Result<T, BackendError>,
) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(BackendError::Unavailable(format!("{what} panicked: {}", panic_text(&*panic))))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

fn pending<T: Send + 'static>(answer: oneshot::Receiver<Result<T, BackendError>>) -> Pending<T> {
    Box::pin(async move {
        answer.await.unwrap_or_else(|_| Err(BackendError::Lost("the engine has stopped".into())))
    })
}

fn pool(name: &'static str, options: &EngineOptions) -> Result<ThreadPool, EngineStartError> {
    ThreadPoolBuilder::new()
        .num_threads(options.threads.map_or(0, |n| n.get()))
        .thread_name(move |index| format!("{name}-{index}"))
        .build()
        .map_err(|e| EngineStartError(Box::new(e)))
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, EngineStartError> {
    Builder::new().name(name.into()).spawn(body).map_err(|e| EngineStartError(Box::new(e)))
}

impl From<NonFiniteLogits> for BackendError {
    fn from(error: NonFiniteLogits) -> Self {
        Self::Rejected(error.to_string())
    }
}
