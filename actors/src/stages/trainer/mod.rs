//! Turns batches into optimizer steps and publishes the new weights.
//!
//! A batch may arrive in minibatches; each is submitted on arrival, and `substeps` optimizer steps are made per batch.
//! The last one's `forward_backward`, `optim_step` and the export are submitted back to back; the next batch is
//! submitted as soon as the step's result arrives, while the export is still being made. A minibatch that the service
//! refuses leaves the weights untouched, but for what an optimizer step without gradients does, and its groups with the
//! outcome "failed"; so does an optimizer step that the service refuses, with the groups of its gradients. Credits are
//! returned after the new weights are published, so that a group opened with them samples from the new weights.

mod clip;
mod committer;
mod first_step;
mod gradient_accumulation;
mod staleness;
mod step_metrics;
mod swap_check;
mod token_gaps;

use crate::error::PipelineError;
use crate::ledger::Ledger;
use crate::mailbox::StageMessage;
use crate::messages::{Batch, MixtureComponent, TrainingGroup};
use crate::policy::{Policy, QueryBudget, ShadowCheckpoints};
use crate::stages::event::PipelineEvent;
pub use crate::stages::event::SavedCheckpoint;
use crate::telemetry::StageBoard;
use crate::telemetry::activity::{Activity, ActivityKind};
use crate::telemetry::meters::PipelineMeters;
use crate::usage::usage_meter::UsageReservation;
use actix::fut::ActorFutureExt;
use actix::prelude::{Actor, AsyncContext, Context, Handler, WrapFuture};
use clip::{ClippedGradient, RunningClip};
use committer::{CommitRequest, CompletedStep, NewSamplers, StepCommitter};
use futures::FutureExt;
use futures::future::{OptionFuture, ready};
use gradient_accumulation::GradientAccumulation;
use minds_core::ids::PolicyVersion;
use minds_core::loss::Loss;
use minds_core::optim::{AdamParams, LearningRateSchedule};
use minds_core::service::{BackendError, Export, ForwardOutput, Pending, SamplerWeights, TrainingBackend};
use minds_core::usage::TokenUsage;
pub use staleness::StalenessHistogram;
use std::future::Future;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{error, warn};

const NAME: &str = "trainer";

/// How a batch becomes optimizer steps.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerOptions {
    /// Loss of the policy, with its settings.
    pub loss: Loss,
    /// The optimizer's settings, at the full step size.
    pub adam: AdamParams,
    /// Schedule of the step size.
    pub rate: LearningRateSchedule,
    /// Optimizer steps per batch, at equal intervals; divides the number of minibatches.
    pub substeps: NonZeroUsize,
    /// Steps between two publications of the weights.
    pub publish_every: NonZeroU64,
    /// Whether published weights reach the requests that are being sampled.
    pub weights: SamplerWeights,
    /// Gap between sampled and trained logprobs (`optim/kl_sample_train_v2`) above which an alarm is raised.
    pub kl_alarm: Option<f64>,
    /// Gradients are clipped at this multiple of the largest norm of the last 16 optimizer steps; 0 for no such limit.
    /// `adam.grad_clip_norm`, where it is set, takes its place.
    pub clip_multiple: f64,
    /// Mean gap in nats between the sampled and the trained logprobs of an on-policy first step from which the run ends;
    /// 0 for none.
    pub max_first_gap: f64,
    /// Steps after which the run has ended.
    pub max_steps: u64,
    /// Steps between two checkpoints; 0 for none but the last.
    pub save_every: u64,
    /// Batches refused in a row after which the run ends with an error.
    pub max_refused: u32,
}

impl TrainerOptions {
    /// Whether the loss is that of imitation, which knows no rollouts.
    #[must_use]
    pub fn is_supervised(&self) -> bool {
        self.loss == Loss::CrossEntropy
    }
}

/// Pipeline → Trainer: save and end; the cause, if it was not requested.
pub struct FinishRequest(pub Option<PipelineError>);

/// What the trainer is connected to.
#[derive(Clone)]
pub struct TrainerLinks {
    /// The adapter in training.
    pub training: Arc<dyn TrainingBackend>,
    /// Publishes new weights to the other stages.
    pub policy: watch::Sender<Arc<Policy>>,
    /// Whether something needs each version as it was, beside in-flight weights.
    pub needs_fixed: bool,
    /// Limits and counts of the rewards' queries.
    pub queries: Arc<QueryBudget>,
    /// Keeps every version for shadows, if they start from the policy.
    pub shadow_checkpoints: Option<Arc<ShadowCheckpoints>>,
    /// The components of the mixture, by index.
    pub components: Arc<[Arc<MixtureComponent>]>,
    /// The ledger of all groups.
    pub ledger: Ledger,
    /// Busy times of the stages.
    pub activity: Activity,
    /// Counters of the pipeline for Prometheus.
    pub meters: PipelineMeters,
    /// Where the stage publishes its snapshot.
    pub board: StageBoard,
    /// Receives step records and checkpoints.
    pub events: mpsc::Sender<PipelineEvent>,
    /// Turns true when the run stops.
    pub stop: watch::Receiver<bool>,
    /// Turned true when new weights cannot be published or saved: the owner of the pipeline ends the run.
    pub commit_failed: watch::Sender<bool>,
}

/// The fifth stage: trains batches and publishes weights.
pub struct Trainer {
    options: TrainerOptions,
    links: TrainerLinks,
    step: u64,
    refused: u32,
    clip: RunningClip,
    agreement: LogprobAgreement,
    idle_since: Instant,
    /// The minibatches of the next step that have been submitted.
    accumulated: GradientAccumulation,
    closing: mpsc::Sender<CommitRequest>,
    /// Set when the final request has been sent to the committer.
    over: bool,
    /// Groups that arrived after the stop, or whose pass was denied. They are kept as long as the stage: given up, they
    /// would count as failed in the last checkpoint. For the same reason the stage never stops by itself, which would
    /// drop what is in its mailbox.
    parked: Vec<TrainingGroup>,
}

impl Trainer {
    /// A trainer whose weights have `step` steps behind them, the latest of which had these gradient norms, and the
    /// task that commits its steps, to be run beside it.
    pub fn new(
        options: TrainerOptions,
        links: TrainerLinks,
        step: u64,
        gradient_norms: &[f64],
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        // Two steps can wait to be committed; then the next one waits too.
        let (closing, finished) = mpsc::channel(2);
        let committer = StepCommitter::new(options.clone(), links.clone(), step).run(finished);
        let trainer = Self {
            clip: RunningClip::new(options.clip_multiple, gradient_norms),
            options,
            links,
            agreement: LogprobAgreement::Unknown { since: PolicyVersion(step) },
            step,
            refused: 0,
            idle_since: Instant::now(),
            accumulated: GradientAccumulation::default(),
            closing,
            over: false,
            parked: Vec::new(),
        };
        (trainer, committer)
    }
}

impl Actor for Trainer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if self.step >= self.options.max_steps {
            self.end(None, ctx);
        }
    }
}

impl Handler<StageMessage<Batch>> for Trainer {
    type Result = ();

    fn handle(&mut self, message: StageMessage<Batch>, ctx: &mut Self::Context) {
        let (batch, permit) = message.open();
        if self.over || *self.links.stop.borrow() {
            self.parked.extend(batch.groups);
            return;
        }
        let mut work = StepInProgress {
            options: self.options.clone(),
            links: self.links.clone(),
            step: self.step,
            refused: self.refused,
            clip: self.clip.clone(),
            agreement: self.agreement,
            closing: self.closing.clone(),
        };
        let mut accumulated = std::mem::take(&mut self.accumulated);
        accumulated.idle += self.idle_since.elapsed();
        if let Some(since) = batch.held_since {
            // Holding back a batch while the trainer is busy costs nothing.
            accumulated.held += since.max(self.idle_since).elapsed();
        }
        self.links.board.update(NAME, |s| s.busy = 1);
        let training = async move {
            let needed = TokenUsage::of_pass(batch.groups.iter().flat_map(|group| &group.data));
            let outcome = match work.links.meters.usage.reserve(needed).await {
                Some(reserved) => work.train(batch, accumulated, reserved).await,
                None => BatchOutcome::Withheld { groups: batch.groups, accumulated: Box::new(accumulated) },
            };
            drop(permit);
            (outcome, work.clip, work.agreement)
        };
        ctx.wait(training.into_actor(self).map(|(outcome, clip, agreement), stage, ctx| {
            stage.clip = clip;
            stage.agreement = agreement;
            stage.links.board.update(NAME, |s| s.busy = 0);
            stage.idle_since = Instant::now();
            stage.record(outcome, ctx);
        }));
    }
}

impl Handler<StageMessage<FinishRequest>> for Trainer {
    type Result = ();

    fn handle(&mut self, message: StageMessage<FinishRequest>, ctx: &mut Self::Context) {
        let (FinishRequest(why), _permit) = message.open();
        self.end(why, ctx);
    }
}

impl Trainer {
    fn record(&mut self, outcome: BatchOutcome, ctx: &mut Context<Self>) {
        match outcome {
            BatchOutcome::Accumulating(accumulated) => self.accumulated = *accumulated,
            BatchOutcome::Withheld { groups, accumulated } => {
                self.accumulated = *accumulated;
                self.parked.extend(groups);
            }
            BatchOutcome::Stepped => {
                self.step += 1;
                self.refused = 0;
                self.links.board.update(NAME, |s| s.done += 1);
                if self.step >= self.options.max_steps {
                    self.end(None, ctx);
                }
            }
            BatchOutcome::Refused(why) => {
                self.refused += 1;
                self.links.ledger.refuse_batch();
                self.links.board.update(NAME, |s| s.failed += 1);
                error!(step = self.step, %why, refused_in_a_row = self.refused, "batch refused");
                if self.refused >= self.options.max_refused {
                    self.end(Some(PipelineError::BatchesRefused { batches: self.refused, source: why }), ctx);
                }
            }
            BatchOutcome::Fatal(why) => self.tell(CommitRequest::Failed(why), ctx),
        }
    }

    /// Saves and ends, after all earlier steps; `why` is the cause, if it was not requested.
    fn end(&mut self, why: Option<PipelineError>, ctx: &mut Context<Self>) {
        let gradient_norms = self.clip.norms();
        self.tell(CommitRequest::End { step: self.step, gradient_norms, why }, ctx);
    }

    /// Sends the final request to the committer.
    fn tell(&mut self, last: CommitRequest, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let closing = self.closing.clone();
        // The committer is gone only if it panicked, and then the run has ended with its panic message.
        ctx.wait(async move { drop(closing.send(last).await) }.into_actor(self));
    }
}

/// Whether sampler and trainer are known to agree about the logprobs of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogprobAgreement {
    /// There was no optimizer step yet, so weights of the version `since` or newer are those in training.
    Unknown { since: PolicyVersion },
    /// They agree, or the run continues although they do not, or an optimizer step lies between the weights in training
    /// and those that sampled what comes next.
    Checked,
}

enum BatchOutcome {
    /// More minibatches of the step will follow.
    Accumulating(Box<GradientAccumulation>),
    /// The pass could cost more than what is left below the cap, and was not sent, or the service denied a request of the
    /// step to the account. The owner of the pipeline stops the run.
    Withheld {
        groups: Vec<TrainingGroup>,
        accumulated: Box<GradientAccumulation>,
    },
    Stepped,
    Refused(BackendError),
    Fatal(PipelineError),
}

/// One step under way.
struct StepInProgress {
    options: TrainerOptions,
    links: TrainerLinks,
    step: u64,
    /// Batches refused for this step so far.
    refused: u32,
    clip: RunningClip,
    agreement: LogprobAgreement,
    closing: mpsc::Sender<CommitRequest>,
}

impl StepInProgress {
    async fn train(
        &mut self,
        batch: Batch,
        mut accumulated: GradientAccumulation,
        reserved: UsageReservation,
    ) -> BatchOutcome {
        let Batch { groups, minibatch, minibatches, .. } = batch;
        let version = PolicyVersion(self.step);
        if groups.iter().any(|group| version.staleness(group.oldest).is_none()) {
            return BatchOutcome::Fatal(PipelineError::VersionsWentBack { version });
        }
        let last = minibatch + 1 >= minibatches.get();
        let steps_now = (minibatch + 1).is_multiple_of(minibatches.get() / self.options.substeps);
        let due = |every: u64| last && every > 0 && (self.step + 1).is_multiple_of(every);
        let save = due(self.options.save_every);
        let publish = save || due(self.options.publish_every.get());
        // A service accepts each name once, and a batch that was refused has used up its own.
        let name = match self.refused {
            0 => format!("{:06}", self.step + 1),
            n => format!("{:06}-{n}", self.step + 1),
        };

        let data: Vec<_> = groups.iter().flat_map(|g| g.data.iter().cloned()).collect();
        let training = &self.links.training;
        let started = Instant::now();
        let busy = self.links.activity.enter(ActivityKind::Training);
        // No group has a learning signal: momentum alone would move the weights, so the Adam step is skipped.
        let teaches = accumulated.gradients || !data.is_empty();
        let mut forward =
            (!data.is_empty()).then(|| training.forward_backward(data.clone(), self.options.loss));
        // The pass has been submitted and is counted by itself.
        reserved.release();
        // A gap means a wrong service or template: the weights must stay unchanged.
        if let LogprobAgreement::Unknown { since } = self.agreement
            && let Some(pending) = forward.take()
        {
            let result = pending.await;
            if let Ok(forward) = &result {
                match first_step::check(&self.options, since, &groups, forward) {
                    Ok(true) => self.agreement = LogprobAgreement::Checked,
                    Ok(false) => {}
                    Err(why) => {
                        gradient_accumulation::fail(&groups, &why.to_string());
                        return BatchOutcome::Fatal(why);
                    }
                }
            }
            forward = Some(Box::pin(ready(result)));
        }
        let optim = (steps_now && teaches).then(|| training.optim_step(self.adam()));
        let export = publish.then(|| self.publish(save.then_some(name.as_str())));
        match OptionFuture::from(forward).await {
            Some(Ok(forward)) => match not_finite(&groups, &forward) {
                None => accumulated.add(groups, data, forward),
                Some(why) => {
                    gradient_accumulation::fail(&groups, &why.to_string());
                    return BatchOutcome::Fatal(why);
                }
            },
            Some(Err(BackendError::Denied { .. })) => {
                return BatchOutcome::Withheld { groups, accumulated: Box::new(accumulated) };
            }
            Some(Err(error)) => {
                accumulated.refuse(&groups, &error);
                // The service may still execute a pass that timed out.
                if matches!(error, BackendError::Lost(_) | BackendError::TimedOut(_) | BackendError::Away(_))
                {
                    return BatchOutcome::Fatal(accumulated.give_up(error));
                }
            }
            None => accumulated.groups.extend(groups),
        }
        if let Some(optim) = optim {
            match optim.await {
                // After a refused minibatch there may have been no gradients; then the step changed nothing.
                Ok(optim) if accumulated.gradients => {
                    if let Some(clipped) = self.clip.record(&optim) {
                        self.report(clipped);
                        accumulated.clipped += 1;
                    }
                    self.agreement = LogprobAgreement::Checked;
                    accumulated.stepped(optim);
                }
                Ok(_) => {}
                Err(BackendError::Denied { .. }) => {
                    return BatchOutcome::Withheld { groups: vec![], accumulated: Box::new(accumulated) };
                }
                Err(_) if !accumulated.gradients => {}
                Err(error @ BackendError::Rejected(_)) => accumulated.refuse_step(&error),
                // The gradients may still be there: the next batch would be trained together with this one.
                Err(error) => return BatchOutcome::Fatal(accumulated.give_up(error)),
            }
        }
        if steps_now {
            accumulated.close_step();
        }
        drop(busy);
        accumulated.train += started.elapsed();
        if !last {
            return BatchOutcome::Accumulating(Box::new(accumulated));
        }
        if accumulated.groups.is_empty() {
            let empty = || BackendError::Rejected("the batch was empty".into());
            return BatchOutcome::Refused(accumulated.refused.unwrap_or_else(empty));
        }
        if accumulated.optim.is_none() {
            warn!(step = self.step + 1, "all rewards are equal within their groups: weights unchanged");
        }
        // Shadows start from the checkpoint, where there is one.
        let shadows = self.links.shadow_checkpoints.as_ref().filter(|_| publish && !save);
        let shadow_state = shadows.map(|_| training.save_state(&format!("{name}-shadow")));
        let state = save.then(|| {
            let pending = training.save_state(&name).shared();
            (name, pending)
        });
        let done = CompletedStep {
            step: self.step + 1,
            adam: self.adam(),
            gradient_norms: self.clip.norms(),
            accumulated,
            export,
            state,
            shadow_state,
        };
        match self.closing.send(CommitRequest::Commit(Box::new(done))).await {
            Ok(()) => BatchOutcome::Stepped,
            Err(_) => BatchOutcome::Fatal(PipelineError::CommitterGone),
        }
    }

    /// Submits the publication of the weights after this step, which are also kept on the service if they have a name.
    fn publish(&self, name: Option<&str>) -> Pending<NewSamplers> {
        let training = &self.links.training;
        if self.options.weights == SamplerWeights::Snapshot {
            let export = training.export_sampler(name);
            return Box::pin(async move {
                let Export { sampler, path } = export.await?;
                Ok(NewSamplers { rollouts: sampler.clone(), fixed: sampler, path })
            });
        }
        let in_flight = training.publish_in_flight(PolicyVersion(self.step + 1));
        let fixed = (self.links.needs_fixed || name.is_some()).then(|| training.export_sampler(name));
        Box::pin(async move {
            let rollouts = in_flight.await?;
            Ok(match OptionFuture::from(fixed).await.transpose()? {
                Some(Export { sampler, path }) => NewSamplers { rollouts, fixed: sampler, path },
                None => NewSamplers { fixed: rollouts.clone(), rollouts, path: None },
            })
        })
    }

    /// The optimizer's settings of this step.
    fn adam(&self) -> AdamParams {
        let adam = self.options.adam;
        let share = self.options.rate.share(self.step, self.options.max_steps);
        let running = self.clip.limit().filter(|_| adam.grad_clip_norm == 0.0);
        AdamParams {
            learning_rate: adam.learning_rate * share,
            grad_clip_norm: running.unwrap_or(adam.grad_clip_norm),
            ..adam
        }
    }

    fn report(&self, ClippedGradient { norm, limit }: ClippedGradient) {
        warn!(
            step = self.step + 1,
            norm,
            limit,
            "the gradient was far above those of the steps before and was clipped (`optim.grad_clip_multiple`): look at \
             `optim/max_abs_logprob_gap`, and at the rewards of the step"
        );
    }
}

/// Names the group whose logprobs are not finite: then the weights or the gradients are not finite either.
fn not_finite(groups: &[TrainingGroup], forward: &ForwardOutput) -> Option<PipelineError> {
    let owners = groups.iter().flat_map(|group| group.data.iter().map(|_| group.group.id));
    let broken = |logprobs: &Vec<f32>| logprobs.iter().any(|lp| !lp.is_finite());
    let (group, _) = owners.zip(&forward.logprobs).find(|(_, logprobs)| broken(logprobs))?;
    Some(PipelineError::NotFinite { group })
}
