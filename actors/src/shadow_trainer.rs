//! Answers: what would one gradient step on this text do to the log-prob of that probe?
//!
//! A small pool of long-lived shadow adapters measures it, never the adapter in training. Each is set back to its
//! start, optimizer included, before every measurement, so an answer does not depend on what was asked before. No
//! more adapters are ever alive than the pool allows; they are made when they are first needed, and one that failed
//! is given up and replaced. A question gets exactly one reply, a number or the reason why there is none.
//!
//! Shadows start from the base model: a fresh adapter changes nothing before its step.

use crate::kit::{Board, Parcel, unpanicked};
use crate::memory::Memory;
use crate::retry::Retry;
use actix::prelude::{Actor, Context, Handler};
use futures::FutureExt;
use minds_core::backend::{BackendError, SamplingBackend, Service, TrainingBackend};
use minds_core::datum::Datum;
use minds_core::environment::Shift;
use minds_core::ids::Token;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::reward::Missing;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, oneshot};
use tracing::warn;

const NAME: &str = "shadow_trainer";

/// What a measurement is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Most shadow adapters at a time, and so most measurements.
    pub adapters: NonZeroUsize,
    /// Shape and seed of every shadow. One seed: all shadows start from the same weights.
    pub lora: LoraSpec,
    /// The one step.
    pub adam: AdamParams,
    /// What to do when the service fails.
    pub retry: Retry,
}

/// Reward → ShadowTrainer: a text to learn and a probe to watch.
pub struct Measure {
    /// What the step is made on; its weights say which tokens are learnt.
    pub text: Datum,
    /// What stands before the probe.
    pub probe_prefix: Arc<[Token]>,
    /// The tokens whose log-probs are summed.
    pub probe_target: Arc<[Token]>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<Shift, Missing>>,
}

/// The stage. Cheap to clone: each measurement is made by a task of its own. Give its lane at least as many places
/// as there are adapters.
#[derive(Clone)]
pub struct ShadowTrainer {
    options: Options,
    service: Arc<dyn Service>,
    board: Board,
    /// One permit per adapter that may be alive.
    room: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Shadow>>>,
    /// Start weights are the same for all shadows, so one answer per probe serves all.
    before: Arc<Memory<Probe, f64>>,
}

type Probe = (Arc<[Token]>, Arc<[Token]>);

/// One adapter with its start.
struct Shadow {
    training: Arc<dyn TrainingBackend>,
    start: Arc<dyn SamplingBackend>,
    start_path: String,
}

impl ShadowTrainer {
    /// No adapter yet.
    #[must_use]
    pub fn new(options: Options, service: Arc<dyn Service>, board: Board) -> Self {
        let service = options.retry.deadlines.service(service);
        let room = Arc::new(Semaphore::new(options.adapters.get()));
        Self { options, service, board, room, idle: Arc::default(), before: Arc::default() }
    }
}

impl Actor for ShadowTrainer {
    type Context = Context<Self>;
}

impl Handler<Parcel<Measure>> for ShadowTrainer {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Measure>, _: &mut Self::Context) {
        let (Measure { text, probe_prefix, probe_target, reply }, slot) = parcel.open();
        let stage = self.clone();
        tokio::spawn(async move {
            stage.board.update(NAME, |s| s.busy += 1);
            let measuring = unpanicked(stage.measure(text, (probe_prefix, probe_target), &reply));
            let result = measuring.await.map_err(Missing::Environment).and_then(|result| result);
            stage.board.update(NAME, |s| {
                s.busy -= 1;
                if result.is_ok() { s.done += 1 } else { s.failed += 1 }
            });
            // The asker may have given up; then nobody misses the answer.
            drop(reply.send(result));
            drop(slot);
        });
    }
}

impl ShadowTrainer {
    async fn measure(
        &self,
        text: Datum,
        probe: Probe,
        reply: &oneshot::Sender<Result<Shift, Missing>>,
    ) -> Result<Shift, Missing> {
        let closed = |_| Missing::Service("the shadow trainer has ended".into());
        let _permit = self.room.acquire().await.map_err(closed)?;
        if reply.is_closed() {
            return Err(Missing::Service("the asker has gone".into()));
        }
        let idle = self.lock().pop();
        let shadow = match idle {
            Some(shadow) => shadow,
            None => self.create().await?,
        };
        let result = self.shift(&shadow, text, probe).await;
        // A shadow that panicked or failed is not put back; a request that was refused has not harmed it.
        match &result {
            Ok(_) | Err(Missing::Environment(_)) => self.lock().push(shadow),
            Err(missing) => warn!(%missing, "shadow adapter given up"),
        }
        result
    }

    async fn create(&self) -> Result<Shadow, BackendError> {
        let retry = &self.options.retry;
        let create = || self.service.create_training(self.options.lora.clone());
        let training = retry.run("create_training", create).await?;
        let (state, export) = (training.save_state("shadow-start"), training.export_sampler(None));
        let start_path = state.await?;
        let start = export.await?.sampler;
        Ok(Shadow { training, start, start_path })
    }

    async fn shift(&self, shadow: &Shadow, text: Datum, probe: Probe) -> Result<Shift, Missing> {
        let training = &shadow.training;
        // The order is fixed here; the answers are waited for below, while the probe is measured before the step.
        let reset = training.load_state(&shadow.start_path, true);
        let pass = training.forward_backward(vec![text], Loss::CrossEntropy);
        let step = training.optim_step(self.options.adam);
        let export = training.export_sampler(None);
        let stepped = async {
            reset.await?;
            pass.await?;
            step.await?;
            Ok::<_, BackendError>(export.await?.sampler)
        };
        let (before, stepped) = futures::future::join(self.before(shadow, &probe), stepped).await;
        let after = summed(self.options.retry, stepped?, probe).await?;
        Ok(Shift { before: before?, after })
    }

    async fn before(&self, shadow: &Shadow, probe: &Probe) -> Result<f64, Missing> {
        let (retry, start, question) = (self.options.retry, shadow.start.clone(), probe.clone());
        let ask = move || async move { Ok(summed(retry, start, question).await?) }.boxed();
        self.before.once(probe.clone(), ask).await.0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Shadow>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Summed log-prob of the probe's target.
async fn summed(
    retry: Retry,
    sampler: Arc<dyn SamplingBackend>,
    (prefix, target): Probe,
) -> Result<f64, BackendError> {
    let tokens: Arc<[Token]> = prefix.iter().chain(target.iter()).copied().collect();
    let scored = retry.run("logprobs", || sampler.logprobs(tokens.clone())).await?;
    let tail = scored.get(prefix.len()..).filter(|tail| tail.len() == target.len());
    let values =
        tail.and_then(|t| t.iter().map(|lp| lp.filter(|lp| lp.is_finite())).collect::<Option<Vec<_>>>());
    values
        .map(|values| values.into_iter().map(f64::from).sum())
        .ok_or_else(|| BackendError::Unavailable("a target token came back without a log-prob".into()))
}
