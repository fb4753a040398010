//! Answers: what would one gradient step on this text do to the log-prob of that probe?
//!
//! A small pool of long-lived shadow adapters measures it, never the adapter in training. Before every measurement a
//! shadow loads the weights that it is to start from, with a fresh optimizer, so an answer does not depend on what was
//! asked before. No more adapters are ever alive than the pool allows; they are made when they are first needed, one
//! that failed is given up and replaced, and all go with the stage. A question gets exactly one reply, a number or the
//! reason why there is none.
//!
//! A reward may also borrow one of them ([`Loan`]) and do as it likes with it.
//!
//! A start is the weights of one version of the policy ([`Origin`]), or the base model, to which a fresh adapter is
//! equal before its step.

mod loan;
mod meter;
mod origin;

pub use loan::Loan;
pub use meter::{Meter, MeterReading};
pub use origin::{Origin, Shelf, State};

use crate::activity::{Activity, Work};
use crate::kit::{Board, LaneGauge, Parcel, Stage, lane, launch, unpanicked};
use crate::meters::ServiceMeters;
use crate::policy::target_logprobs;
use crate::queries::Queries;
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
use origin::Probe;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OnceCell, Semaphore, oneshot};
use tokio::time::Instant;
use tracing::{debug, warn};

const NAME: &str = "shadow_trainer";

/// What a measurement is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Most shadow adapters at a time, and so most measurements.
    pub adapters: NonZeroUsize,
    /// Shape and seed of every shadow. One seed: all shadows start from the same weights. Shadows of a policy have its
    /// shape.
    pub lora: LoraSpec,
    /// The one step.
    pub adam: AdamParams,
    /// What to do when the service fails.
    pub retry: Retry,
}

/// Reward → ShadowTrainer: a text to learn and a probe to watch.
pub struct Measure {
    /// The weights to start from; the base model if there are none.
    pub origin: Option<Arc<Origin>>,
    /// What the step is made on; its weights say which tokens are learnt.
    pub text: Datum,
    /// What stands before the probe.
    pub probe_prefix: Arc<[Token]>,
    /// The tokens whose log-probs are summed.
    pub probe_target: Arc<[Token]>,
    /// Since when it waits.
    pub asked: Instant,
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
    activity: Activity,
    meter: Arc<Meter>,
    /// One permit per adapter that may be alive.
    room: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Arc<dyn TrainingBackend>>>>,
    shelf: Arc<Shelf>,
    /// What a fresh adapter is, once somebody starts from the base model.
    base: Arc<OnceCell<Arc<Origin>>>,
}

impl ShadowTrainer {
    /// No adapter yet. States that only shadows need stand on the shelf; how long measurements take is told with the
    /// numbers of `queries`.
    #[must_use]
    pub fn new(
        options: Options,
        service: Arc<dyn Service>,
        shelf: Arc<Shelf>,
        queries: &Queries,
        board: Board,
        activity: Activity,
        meters: &ServiceMeters,
    ) -> Self {
        let service = options.retry.deadlines.service(service, meters);
        let room = Arc::new(Semaphore::new(options.adapters.get()));
        let (meter, idle, base) = (queries.shifts.clone(), Arc::default(), Arc::default());
        Self { options, service, board, activity, meter, room, idle, shelf, base }
    }

    /// Launches the stage, and leads the questions of those rewards to it that ask through `queries`. Also says how
    /// its lane is doing.
    ///
    /// # Panics
    /// Another stage answers these already.
    pub fn attach(self, queries: &Queries) -> (Stage, LaneGauge) {
        // One more than there are adapters may wait at the stage; the others wait where they ask.
        let room = self.options.adapters.saturating_add(1);
        let (measures, inlet) = lane("measures", room);
        let gauge = measures.gauge();
        assert!(queries.shadow.set(measures).is_ok(), "questions have one shadow trainer");
        let (loans, to_loans) = lane("loans", room);
        assert!(queries.loans.set(loans).is_ok(), "questions have one shadow trainer");
        let mut stage = Some(self);
        let make = move || stage.take().expect("a stage without restarts is made once");
        let stage = launch("shadow trainer", room, 0, make, move |addr| {
            inlet.bind(addr);
            to_loans.bind(addr);
        });
        (stage, gauge)
    }
}

impl Actor for ShadowTrainer {
    type Context = Context<Self>;
}

impl Handler<Parcel<Measure>> for ShadowTrainer {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Measure>, _: &mut Self::Context) {
        let (measure, slot) = parcel.open();
        let stage = self.clone();
        tokio::spawn(async move {
            stage.board.update(NAME, |s| s.busy += 1);
            let measuring = unpanicked(stage.measure(&measure));
            let result = measuring.await.map_err(Missing::Environment).and_then(|result| result);
            stage.board.update(NAME, |s| {
                s.busy -= 1;
                if result.is_ok() { s.done += 1 } else { s.failed += 1 }
            });
            // The asker may have given up; then nobody misses the answer.
            drop(measure.reply.send(result));
            drop(slot);
        });
    }
}

impl ShadowTrainer {
    async fn measure(&self, measure: &Measure) -> Result<Shift, Missing> {
        let closed = |_| Missing::Unsupported("the shadow trainer has ended".into());
        let _permit = self.room.acquire().await.map_err(closed)?;
        if measure.reply.is_closed() {
            return Err(Missing::Service("the asker has gone".into()));
        }
        let (waited, begun) = (measure.asked.elapsed(), Instant::now());
        let _busy = self.activity.enter(Work::Shadow);
        let idle = self.lock().pop();
        let shadow = match idle {
            Some(shadow) => shadow,
            None => self.create().await?,
        };
        let result = self.shift(&*shadow, measure).await;
        if result.is_ok() {
            self.meter.note(waited, begun.elapsed());
        }
        match &result {
            // A request that was refused has not harmed it.
            Ok(_) | Err(Missing::Environment(_)) => self.lock().push(shadow),
            // The permit is kept meanwhile: its successor must not live beside it. A shadow that panicked is not put
            // back either.
            Err(missing) => {
                warn!(%missing, "shadow adapter given up");
                release(&*shadow).await;
            }
        }
        result
    }

    /// Waits for the measurements under way, makes no more, and leaves nothing on the service.
    pub async fn close(&self) {
        let all = u32::try_from(self.options.adapters.get()).unwrap_or(u32::MAX);
        // An error says that it is closed already.
        drop(self.room.acquire_many(all).await);
        self.room.close();
        let idle = std::mem::take(&mut *self.lock());
        for shadow in idle {
            release(&*shadow).await;
        }
        self.shelf.clear().await;
    }

    async fn create(&self) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        let create = || self.service.create_training(self.options.lora.clone());
        self.options.retry.run("create_training", create).await
    }

    /// What a fresh shadow is.
    async fn base(&self, shadow: &dyn TrainingBackend) -> Result<Arc<Origin>, BackendError> {
        let save = || async {
            let (state, export) = (shadow.save_state("shadow-start"), shadow.export_sampler(None));
            Ok(self.shelf.keep(state, export.await?.sampler))
        };
        self.base.get_or_try_init(save).await.cloned()
    }

    async fn shift(&self, shadow: &dyn TrainingBackend, measure: &Measure) -> Result<Shift, Missing> {
        let Measure { origin, text, probe_prefix, probe_target, .. } = measure;
        let probe = (probe_prefix.clone(), probe_target.clone());
        let origin = match origin {
            Some(origin) => origin.clone(),
            None => self.base(shadow).await?,
        };
        let path = origin.path().await?;
        // The order is fixed here; the answers are waited for below, while the probe is measured before the step.
        let reset = shadow.load_state(&path, false);
        let pass = shadow.forward_backward(vec![text.clone()], Loss::CrossEntropy);
        let step = shadow.optim_step(self.options.adam);
        let export = shadow.export_sampler(None);
        let stepped = async {
            reset.await?;
            pass.await?;
            step.await?;
            Ok::<_, BackendError>(export.await?.sampler)
        };
        let (before, stepped) = futures::future::join(self.before(&origin, &probe), stepped).await;
        let after = summed(self.options.retry, stepped?, probe).await?;
        Ok(Shift { before: before?, after })
    }

    async fn before(&self, origin: &Origin, probe: &Probe) -> Result<f64, Missing> {
        let (retry, sampler, question) = (self.options.retry, origin.sampler.clone(), probe.clone());
        let ask = move || async move { Ok(summed(retry, sampler, question).await?) }.boxed();
        origin.before.once(probe.clone(), ask).await.0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn TrainingBackend>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn release(shadow: &dyn TrainingBackend) {
    if let Err(error) = shadow.release().await {
        debug!(%error, "a shadow adapter was not given up on the service");
    }
}

/// Summed log-prob of the probe's target.
async fn summed(
    retry: Retry,
    sampler: Arc<dyn SamplingBackend>,
    (prefix, target): Probe,
) -> Result<f64, BackendError> {
    let ask = || target_logprobs(sampler.clone(), prefix.clone(), target.clone());
    Ok(retry.run("logprobs", ask).await?.iter().map(|lp| f64::from(*lp)).sum())
}
