//! Commits steps in order: publishes their weights, returns credits, saves checkpoints.

use super::gradient_accumulation::GradientAccumulation;
use super::step_metrics::StepMeasurements;
use super::swap_check::SwapCheck;
use super::{TrainerLinks, TrainerOptions};
use crate::error::PipelineError;
use crate::ledger::{GroupCounts, GroupOutcome, SavedGroup, SettledPositions};
use crate::messages::{CommittedStep, MixtureComponent, TrainingGroup};
use crate::policy::{Policy, QueryCounts, ShadowOrigin, SharedPath};
use crate::stages::event::{PipelineEvent, SavedCheckpoint};
use crate::telemetry::activity::{ActivityKind, BusyTimes};
use futures::future::OptionFuture;
use minds_core::datum::Datum;
use minds_core::ids::{PolicyVersion, Token};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::service::{BackendError, Export, Pending, SamplerWeights, SamplingBackend};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, error, warn};

/// A step whose results have arrived.
pub(super) struct CompletedStep {
    pub(super) step: u64,
    /// The optimizer's settings in this step.
    pub(super) adam: AdamParams,
    /// Gradient norms of the optimizer steps up to this one.
    pub(super) gradient_norms: Vec<f64>,
    pub(super) accumulated: GradientAccumulation,
    /// The weights, if they are to be published.
    pub(super) export: Option<Pending<NewSamplers>>,
    /// Name and path of a save that was submitted after the step.
    pub(super) state: Option<(String, SharedPath)>,
    /// Path of a save that only shadows need.
    pub(super) shadow_state: Option<Pending<String>>,
}

/// Samplers of new weights. Both are the same one, where the weights are not in flight or nothing needs them as they are.
pub(super) struct NewSamplers {
    /// Samples the rollouts of later groups, and of earlier ones if the weights are in flight.
    pub(super) rollouts: Arc<dyn SamplingBackend>,
    /// Sampler over weights that stay as they are.
    pub(super) fixed: Arc<dyn SamplingBackend>,
    /// Path of the weights, if they have a name.
    pub(super) path: Option<String>,
}

/// What the newest weights were trained on.
struct CheckpointContents {
    settled: SettledPositions,
    saved_groups: Vec<SavedGroup>,
    counts: GroupCounts,
    memories: BTreeMap<String, serde_json::Value>,
    gradient_norms: Vec<f64>,
}

impl CheckpointContents {
    fn saved(
        self,
        name: String,
        step: u64,
        state_path: String,
        sampler_path: Option<String>,
    ) -> SavedCheckpoint {
        let Self { settled, saved_groups, counts, memories, gradient_norms } = self;
        SavedCheckpoint {
            name,
            step,
            state_path,
            sampler_path,
            settled,
            saved_groups,
            counts,
            memories,
            gradient_norms,
        }
    }
}

/// What the trainer submits to the committer.
pub(super) enum CommitRequest {
    /// A step to be committed.
    Commit(Box<CompletedStep>),
    /// The run is over: save a checkpoint. `why` is the cause, if it was not requested.
    End { step: u64, gradient_norms: Vec<f64>, why: Option<PipelineError> },
    /// The run cannot continue; the cause.
    Failed(PipelineError),
}

/// Tokens that every vocabulary has.
const PROBE: [Token; 2] = [0, 1];

pub(super) struct StepCommitter {
    options: TrainerOptions,
    links: TrainerLinks,
    /// The step at which the run began.
    first: u64,
    /// The latest step that was saved.
    saved: Option<u64>,
    /// Query counts at the previous step.
    reading: QueryCounts,
    /// Busy times until the previous step.
    busy: BusyTimes,
    /// Why the run ends after the submitted steps, if something that follows a step has failed; the first cause.
    failure: Option<PipelineError>,
    /// Whether in-flight weights are swapped.
    swaps: SwapCheck,
}

impl StepCommitter {
    pub(super) fn new(options: TrainerOptions, links: TrainerLinks, first: u64) -> Self {
        // A run resumed from its last step has nothing left to do, and that step is saved.
        let saved = (first >= options.max_steps).then_some(first);
        let busy = links.activity.shares();
        Self {
            options,
            links,
            first,
            saved,
            reading: QueryCounts::default(),
            busy,
            failure: None,
            swaps: SwapCheck::default(),
        }
    }

    pub(super) async fn run(mut self, mut finished: mpsc::Receiver<CommitRequest>) {
        while let Some(next) = finished.recv().await {
            let last = match next {
                CommitRequest::Commit(done) => match self.close(*done).await {
                    Ok(()) => continue,
                    Err(why) => PipelineEvent::Failed(why),
                },
                CommitRequest::End { step, gradient_norms, why } => self.end(step, gradient_norms, why).await,
                CommitRequest::Failed(why) => PipelineEvent::Failed(why),
            };
            // The receiver of events may be gone; then the event is dropped.
            drop(self.links.events.send(last).await);
            return;
        }
    }

    async fn close(&mut self, done: CompletedStep) -> Result<(), PipelineError> {
        let CompletedStep { step, adam, gradient_norms, mut accumulated, export, state, shadow_state } = done;
        let forward = accumulated.take_forward();
        let mut export_time = None;
        let mut sampler_path = None;
        if let Some(export) = export {
            let started = Instant::now();
            let busy = self.links.activity.enter(ActivityKind::Exporting);
            let made = match unless_denied(export.await) {
                Ok(made) => made,
                Err(source) => {
                    self.fail(PipelineError::Export { step, source });
                    None
                }
            };
            drop(busy);
            export_time = Some(started.elapsed());
            // Without an export the run ends, so that nothing samples from the new weights.
            if let Some(NewSamplers { rollouts, fixed, path }) = made {
                let shadow_checkpoints = self.links.shadow_checkpoints.as_ref();
                let origin = shadow_checkpoints.and_then(|shadow_checkpoints| match (&state, shadow_state) {
                    (Some((_, state)), _) => Some(ShadowOrigin::new(state.clone(), fixed.clone())),
                    (None, Some(pending)) => Some(shadow_checkpoints.keep(pending, fixed.clone())),
                    (None, None) => None,
                });
                self.publish(self.policy(step, fixed, origin).sampled_by(rollouts.clone()));
                sampler_path = path;
                self.check_swaps(&rollouts, &accumulated.groups).await;
            }
        }
        self.links.queries.next_step();
        for group in &accumulated.groups {
            group.group.span.in_scope(|| debug!(step, "trained"));
            group.group.credit.settle(if group.filtered {
                &GroupOutcome::Filtered
            } else {
                &GroupOutcome::Trained
            });
        }
        let queries = self.links.queries.read();
        let busy = self.links.activity.shares();
        let measurements = StepMeasurements {
            step,
            adam: &adam,
            accumulated: &accumulated,
            forward: forward.as_ref(),
            export: export_time,
            queries: queries.since(&std::mem::replace(&mut self.reading, queries)),
            queries_budget: self.links.queries.per_step(),
            has_shadow: self.links.queries.has_shadow(),
            busy: busy.since(&std::mem::replace(&mut self.busy, busy)),
            billed: self.links.meters.usage.next_step(),
        };
        let record = measurements.record(&self.options);
        self.links.meters.step(&record, &accumulated.groups);
        let committed = CommittedStep { record, groups: accumulated.groups };
        self.tell(PipelineEvent::Step(Box::new(committed))).await?;
        if let Some((name, pending)) = state {
            let contents = self.checkpoint_contents(gradient_norms);
            let saved = match unless_denied(pending.await) {
                Ok(saved) => saved,
                // Another save would wait for the same limit.
                Err(source @ BackendError::TimedOut(_)) => return Err(PipelineError::Save { step, source }),
                Err(source) => {
                    self.fail(PipelineError::Save { step, source });
                    None
                }
            };
            // What failed or was denied is tried once more at the end of the run, which follows.
            if let Some(state_path) = saved {
                self.saved = Some(step);
                let checkpoint = contents.saved(name, step, state_path, sampler_path);
                self.tell(PipelineEvent::CheckpointSaved(checkpoint)).await?;
            }
        }
        if let Some(shadow_checkpoints) = self.links.shadow_checkpoints.clone() {
            // In a task of its own: a slow deletion must not delay the next weights.
            tokio::spawn(async move { shadow_checkpoints.sweep().await });
        }
        Ok(())
    }

    /// Warns once if rollouts are sampled by snapshots although the weights are to be in flight.
    async fn check_swaps(&mut self, newest: &Arc<dyn SamplingBackend>, groups: &[TrainingGroup]) {
        if self.options.weights == SamplerWeights::InFlight && self.swaps.is_ignored(newest, groups).await {
            warn!(
                "the service does not replace in-flight weights: each rollout is sampled by the weights of its start, and \
                 with `trainer.weights = \"inflight\"` twice as many groups are under way, so rollouts are twice as stale: \
                 leave `trainer.weights` out for this service"
            );
        }
    }

    /// What a checkpoint records besides the weights.
    fn checkpoint_contents(&self, gradient_norms: Vec<f64>) -> CheckpointContents {
        let learnt = |c: &Arc<MixtureComponent>| Some((c.name.clone(), c.environment.memory()?));
        let memories = self.links.components.iter().filter_map(learnt).collect();
        let ledger = &self.links.ledger;
        let settled = ledger.settled();
        let saved_groups = ledger.saved_groups();
        let counts = ledger.counts();
        CheckpointContents { settled, saved_groups, counts, memories, gradient_norms }
    }

    /// Ends the run with a checkpoint after the steps that are already submitted.
    fn fail(&mut self, why: PipelineError) {
        error!(%why, "stopping after the step in progress");
        self.failure.get_or_insert(why);
        self.links.commit_failed.send_replace(true);
    }

    /// Saves under the step's name, unless that step has just been saved or nothing was done. A run that failed saves
    /// only weights that work, because it is to be resumed from them.
    async fn end(
        &mut self,
        step: u64,
        gradient_norms: Vec<f64>,
        why: Option<PipelineError>,
    ) -> PipelineEvent {
        // Exports that have failed are not tried again: the state alone can be resumed.
        let exports = !matches!(self.failure, Some(PipelineError::Export { .. }));
        let why = why.or_else(|| self.failure.take());
        let nothing_done = why.is_some() && step == self.first;
        let saving = if self.saved == Some(step) || nothing_done {
            Ok(())
        } else if why.is_some() && !self.works(exports).await {
            Err(PipelineError::UnusableWeights { step })
        } else {
            self.save(step, gradient_norms, exports).await
        };
        let why = why.or_else(|| self.failure.take());
        match (why, saving) {
            (None, Ok(())) => PipelineEvent::Ended { step },
            (Some(why), Ok(())) => PipelineEvent::Failed(why),
            (None, Err(error)) => PipelineEvent::Failed(error),
            (Some(why), Err(source)) => {
                PipelineEvent::Failed(PipelineError::NotSaved { why: why.into(), source: source.into() })
            }
        }
    }

    /// Whether the weights give finite logprobs, by a sampler of them if the service exports it, else by a pass. Only a
    /// service that refuses to compute says no: one that fails may still save them.
    async fn works(&self, exports: bool) -> bool {
        let logprobs = match exports {
            true => self.sampled_logprobs().await,
            false => self.trained_logprobs().await,
        };
        match logprobs {
            Ok(logprobs) => logprobs.into_iter().all(f32::is_finite),
            Err(error) => !matches!(error, BackendError::Rejected(_)),
        }
    }

    async fn sampled_logprobs(&self) -> Result<Vec<f32>, BackendError> {
        let sampler = self.links.training.export_sampler(None).await?.sampler;
        Ok(sampler.logprobs(PROBE.into()).await?.into_iter().flatten().collect())
    }

    async fn trained_logprobs(&self) -> Result<Vec<f32>, BackendError> {
        let datum = Datum::supervised(&PROBE[..1], &PROBE[1..]);
        let datum = datum.map_err(|error| BackendError::Rejected(error.to_string()))?;
        let forward = self.links.training.forward(vec![datum], Loss::CrossEntropy).await?;
        Ok(forward.logprobs.concat())
    }

    /// Saves the state, with the sampler weights under the same name if the service `exports` them.
    async fn save(
        &mut self,
        step: u64,
        gradient_norms: Vec<f64>,
        exports: bool,
    ) -> Result<(), PipelineError> {
        // Groups settled from here on are not part of these weights.
        let contents = self.checkpoint_contents(gradient_norms);
        let name = format!("{step:06}{}", if step >= self.options.max_steps { "-final" } else { "-stop" });
        let training = &self.links.training;
        let state = training.save_state(&name);
        let export = exports.then(|| training.export_sampler(Some(&name)));
        let state_path = state.await.map_err(|source| PipelineError::Save { step, source })?;
        // The run resumes from its state alone where the sampler weights are denied or fail.
        let export = match OptionFuture::from(export).await.map(unless_denied).transpose() {
            Ok(export) => export.flatten(),
            Err(source) => {
                self.fail(PipelineError::Export { step, source });
                None
            }
        };
        let sampler_path = export.as_ref().and_then(|export| export.path.clone());
        if let Some(Export { sampler, .. }) = export
            && self.links.policy.borrow().version.0 < step
        {
            // With a `publish_every` that does not divide the steps, the last weights are not published yet.
            let origin = self
                .links
                .shadow_checkpoints
                .as_ref()
                .map(|_| ShadowOrigin::kept(state_path.clone(), sampler.clone()));
            self.publish(self.policy(step, sampler, origin));
        }
        self.tell(PipelineEvent::CheckpointSaved(contents.saved(name, step, state_path, sampler_path))).await
    }

    fn policy(
        &self,
        step: u64,
        sampler: Arc<dyn SamplingBackend>,
        origin: Option<Arc<ShadowOrigin>>,
    ) -> Policy {
        Policy::new(PolicyVersion(step), sampler, self.links.queries.clone(), origin)
    }

    /// From now on these weights sample.
    fn publish(&self, policy: Policy) {
        self.links.policy.send_replace(Arc::new(policy));
    }

    async fn tell(&self, event: PipelineEvent) -> Result<(), PipelineError> {
        self.links.events.send(event).await.map_err(|_| PipelineError::ObserverGone)
    }
}

/// The result of a request, or none if the service denied it to the account: then the owner of the pipeline stops the run.
fn unless_denied<T>(result: Result<T, BackendError>) -> Result<Option<T>, BackendError> {
    match result {
        Err(BackendError::Denied { .. }) => Ok(None),
        result => result.map(Some),
    }
}
