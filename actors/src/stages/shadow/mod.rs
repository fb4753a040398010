//! Measures what one gradient step on a text would do to the logprob of a probe.
//!
//! A small pool of long-lived shadow adapters measures it, never the adapter in training. Before every measurement a
//! shadow loads the weights that it is to start from, with a fresh optimizer, so a result does not depend on earlier
//! measurements. The pool bounds how many adapters are alive; they are created when they are first needed, one
//! that failed is discarded and replaced, and all are released with the stage. A request gets exactly one reply, a
//! number or the reason why there is none.
//!
//! A reward may also lease one of them ([`AdapterLeaseRequest`](crate::policy::AdapterLeaseRequest)) and train it freely.
//!
//! A start is the weights of one version of the policy ([`ShadowOrigin`]), or the base model, to which a fresh adapter is
//! equal before its step.

mod lease;

use crate::mailbox::{MailboxGauge, StageHandle, StageMessage, catch_panic, launch, mailbox};
use crate::policy::{
    LogprobDeltaRequest, ProbeText, QueryBudget, ShadowCheckpoints, ShadowOrigin, target_logprobs,
};
use crate::service::retry::Retry;
use crate::telemetry::StageBoard;
use crate::telemetry::activity::{Activity, ActivityKind};
use crate::telemetry::meters::ServiceMeters;
use crate::telemetry::shadow_meter::ShadowMeter;
use actix::prelude::{Actor, Context, Handler};
use futures::FutureExt;
use minds_core::environment::LogprobDelta;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::reward::RewardError;
use minds_core::service::{BackendError, SamplingBackend, Service, TrainingBackend};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;
use tracing::{debug, warn};

const NAME: &str = "shadow_trainer";

/// Adapters and optimizer of measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowTrainerOptions {
    /// Most shadow adapters at a time, and so most measurements.
    pub adapters: NonZeroUsize,
    /// Shape and seed of every shadow. One seed: all shadows start from the same weights. Shadows of a policy have its
    /// shape.
    pub lora: LoraSpec,
    /// Optimizer settings of the measured step.
    pub adam: AdamParams,
    /// What to do when the service fails.
    pub retry: Retry,
}

/// The stage, and the handle that closes it: a clone shares its adapters. Each request is served by a task of its own. Give
/// its mailbox at least as much capacity as there are adapters.
#[derive(Clone)]
pub struct ShadowTrainer(Arc<ShadowPool>);

/// The adapters and what they start from.
struct ShadowPool {
    options: ShadowTrainerOptions,
    service: Arc<dyn Service>,
    board: StageBoard,
    activity: Activity,
    meter: Arc<ShadowMeter>,
    /// One permit per adapter that may be alive.
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Arc<dyn TrainingBackend>>>,
    shadow_checkpoints: Arc<ShadowCheckpoints>,
    /// The fresh adapter, saved once a measurement starts from the base model.
    base: OnceCell<Arc<ShadowOrigin>>,
}

impl ShadowTrainer {
    /// No adapter yet. `ShadowCheckpoints` holds the checkpoints that only shadows need; measurement times are reported
    /// with the numbers of `queries`.
    #[must_use]
    pub fn new(
        options: ShadowTrainerOptions,
        service: Arc<dyn Service>,
        shadow_checkpoints: Arc<ShadowCheckpoints>,
        queries: &QueryBudget,
        board: StageBoard,
        activity: Activity,
        meters: &ServiceMeters,
    ) -> Self {
        Self(Arc::new(ShadowPool {
            service: options.retry.deadlines.service(service, meters),
            board,
            activity,
            meter: queries.deltas.clone(),
            permits: Arc::new(Semaphore::new(options.adapters.get())),
            idle: Mutex::default(),
            shadow_checkpoints,
            base: OnceCell::new(),
            options,
        }))
    }

    /// Launches the stage, and connects it to the rewards that query through `queries`. Also returns the gauge of
    /// its mailbox.
    ///
    /// # Panics
    /// Another stage is attached to `queries` already.
    pub fn attach(self, queries: &QueryBudget) -> (StageHandle, MailboxGauge) {
        // One more than there are adapters may wait at the stage; the others wait at their sender.
        let capacity = self.0.options.adapters.saturating_add(1);
        let (measures, receiver) = mailbox("measures", capacity);
        let gauge = measures.gauge();
        assert!(queries.shadow.set(measures).is_ok(), "questions have one shadow trainer");
        let (leases, to_leases) = mailbox("adapter_leases", capacity);
        assert!(queries.leases.set(leases).is_ok(), "questions have one shadow trainer");
        let mut stage = Some(self);
        let make = move || stage.take().expect("a stage without restarts is made once");
        let stage = launch("shadow trainer", capacity, 0, make, move |addr| {
            receiver.bind(addr);
            to_leases.bind(addr);
        });
        (stage, gauge)
    }

    /// Waits for the measurements under way, starts no more, and deletes everything of the stage from the service.
    pub async fn close(&self) {
        let pool = &self.0;
        let all = u32::try_from(pool.options.adapters.get()).unwrap_or(u32::MAX);
        // An error means that it is closed already.
        drop(pool.permits.acquire_many(all).await);
        pool.permits.close();
        let idle = std::mem::take(&mut *pool.lock());
        for shadow in idle {
            release(&*shadow).await;
        }
        pool.shadow_checkpoints.clear().await;
    }
}

impl Actor for ShadowTrainer {
    type Context = Context<Self>;
}

impl Handler<StageMessage<LogprobDeltaRequest>> for ShadowTrainer {
    type Result = ();

    fn handle(&mut self, message: StageMessage<LogprobDeltaRequest>, _: &mut Self::Context) {
        let (measure, permit) = message.open();
        let pool = self.0.clone();
        tokio::spawn(async move {
            pool.board.update(NAME, |s| s.busy += 1);
            let measuring = catch_panic(pool.measure(&measure));
            let result = measuring.await.map_err(RewardError::Environment).and_then(|result| result);
            pool.board.update(NAME, |s| {
                s.busy -= 1;
                if result.is_ok() { s.done += 1 } else { s.failed += 1 }
            });
            // The requester may have given up; then the reply is dropped.
            drop(measure.reply.send(result));
            drop(permit);
        });
    }
}

impl ShadowPool {
    async fn measure(&self, measure: &LogprobDeltaRequest) -> Result<LogprobDelta, RewardError> {
        let closed = |_| RewardError::Unsupported("the shadow trainer has ended".into());
        let _permit = self.permits.acquire().await.map_err(closed)?;
        if measure.reply.is_closed() {
            return Err(RewardError::Service("the requester is gone".into()));
        }
        let waited = measure.asked.elapsed();
        let begun = Instant::now();
        let _busy = self.activity.enter(ActivityKind::Shadow);
        let idle = self.lock().pop();
        let shadow = match idle {
            Some(shadow) => shadow,
            None => self.create().await?,
        };
        let result = self.logprob_delta(&*shadow, measure).await;
        if result.is_ok() {
            self.meter.note(waited, begun.elapsed());
        }
        match &result {
            // A request that was refused has not changed the adapter.
            Ok(_) | Err(RewardError::Refused(_) | RewardError::Unsupported(_)) => self.lock().push(shadow),
            // The permit is kept meanwhile: its successor must not exist beside it. A shadow that panicked is not put
            // back either.
            Err(missing) => {
                warn!(%missing, "shadow adapter discarded");
                release(&*shadow).await;
            }
        }
        result
    }

    async fn create(&self) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        let create = || self.service.create_training(self.options.lora.clone());
        self.options.retry.run("create_training", create).await
    }

    /// Origin of a fresh shadow, saved once.
    async fn base(&self, shadow: &dyn TrainingBackend) -> Result<Arc<ShadowOrigin>, BackendError> {
        let save = || async {
            let state = shadow.save_state("shadow-start");
            let export = shadow.export_sampler(None);
            Ok(self.shadow_checkpoints.keep(state, export.await?.sampler))
        };
        self.base.get_or_try_init(save).await.cloned()
    }

    async fn logprob_delta(
        &self,
        shadow: &dyn TrainingBackend,
        measure: &LogprobDeltaRequest,
    ) -> Result<LogprobDelta, RewardError> {
        let LogprobDeltaRequest { origin, text, probe_prefix, probe_target, .. } = measure;
        let probe = (probe_prefix.clone(), probe_target.clone());
        let origin = match origin {
            Some(origin) => origin.clone(),
            None => self.base(shadow).await?,
        };
        let path = origin.path().await?;
        // The order is fixed here; the results are awaited below, while the probe is measured before the step.
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
        Ok(LogprobDelta { before: before?, after })
    }

    async fn before(&self, origin: &ShadowOrigin, probe: &ProbeText) -> Result<f64, RewardError> {
        let retry = self.options.retry;
        let sampler = origin.sampler.clone();
        let question = probe.clone();
        let ask = move || async move { Ok(summed(retry, sampler, question).await?) }.boxed();
        origin.before.once(probe.clone(), ask).await.0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn TrainingBackend>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn release(shadow: &dyn TrainingBackend) {
    if let Err(error) = shadow.release().await {
        debug!(%error, "failed to release a shadow adapter on the service");
    }
}

/// Summed logprob of the probe's target.
async fn summed(
    retry: Retry,
    sampler: Arc<dyn SamplingBackend>,
    (prefix, target): ProbeText,
) -> Result<f64, BackendError> {
    let ask = || target_logprobs(sampler.clone(), prefix.clone(), target.clone());
    Ok(retry.run("logprobs", ask).await?.iter().map(|lp| f64::from(*lp)).sum())
}
