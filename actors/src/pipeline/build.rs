//! Builds what the stages are connected to: what they share, and what belongs to one of them alone.

use super::{PipelineEvent, PipelineOptions, PipelineParts, ResumePoint, ShadowSetup, ShadowStart};
use crate::generate::RolloutGenerator;
use crate::ledger::{Ledger, SavedGroup, SettledPositions};
use crate::messages::MixtureComponent;
use crate::policy::{Policy, QueryBudget, ShadowCheckpoints, ShadowOrigin};
use crate::stages::batcher::{CompleteGroup, CpuPool};
use crate::stages::feeder;
use crate::stages::scorer::{LogprobSource, ReferenceModel};
use crate::telemetry::StageBoard;
use crate::telemetry::activity::Activity;
use crate::telemetry::meters::PipelineMeters;
use minds_core::ids::PolicyVersion;
use minds_core::schedule::{Schedule, ScheduleComponent, ScheduleError};
use minds_core::service::{SamplingBackend, TrainingBackend};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// What the stages share.
pub(super) struct SharedParts<'a> {
    pub(super) options: &'a PipelineOptions,
    /// Rollouts of the largest group.
    pub(super) members: u32,
    /// The step at which the run begins.
    pub(super) step: u64,
    pub(super) schedule: Schedule,
    pub(super) components: Arc<[Arc<MixtureComponent>]>,
    pub(super) ledger: Ledger,
    pub(super) board: StageBoard,
    pub(super) activity: Activity,
    pub(super) meters: PipelineMeters,
    pub(super) queries: Arc<QueryBudget>,
    /// Turns true when the run stops.
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) events: mpsc::Sender<PipelineEvent>,
}

/// What shadow adapters need beside the shadow trainer.
pub(super) struct Shadows {
    pub(super) setup: ShadowSetup,
    pub(super) checkpoints: Arc<ShadowCheckpoints>,
    /// The first version of the policy, if shadows start from the policy.
    pub(super) origin: Option<Arc<ShadowOrigin>>,
}

/// What belongs to one stage alone.
pub(super) struct StageParts {
    pub(super) training: Arc<dyn TrainingBackend>,
    /// Publishes new weights to the other stages.
    pub(super) publish: watch::Sender<Arc<Policy>>,
    /// Gradient norms of the latest optimizer steps, the oldest first.
    pub(super) gradient_norms: Vec<f64>,
    pub(super) pool: CpuPool,
    /// Groups that an earlier part of the run had collected.
    pub(super) restored: Vec<CompleteGroup>,
    pub(super) logprob_source: LogprobSource,
    pub(super) reference: Option<ReferenceModel>,
    pub(super) shadows: Option<Shadows>,
    /// Positions that are not drawn again.
    pub(super) skip: SettledPositions,
    /// The version that was evaluated last.
    pub(super) evaluated: Option<u64>,
}

impl<'a> SharedParts<'a> {
    /// Builds what the stages are connected to. Only the weights that shadows start from are requested already.
    pub(super) fn build(
        options: &'a PipelineOptions,
        parts: PipelineParts,
        start: ResumePoint,
        stopping: watch::Receiver<bool>,
        events: mpsc::Sender<PipelineEvent>,
    ) -> Result<(Self, StageParts), ScheduleError> {
        let schedule = schedule(options.seed, &parts.components)?;
        let members = parts.components.iter().map(|c| c.group_size.get()).max().unwrap_or(1);
        let shared = Self {
            options,
            members,
            step: start.step,
            schedule,
            components: parts.components.into_iter().map(Arc::new).collect(),
            ledger: Ledger::new(start.settled.clone()).with_unanswered_limit(options.unanswered),
            board: StageBoard::default(),
            activity: Activity::default(),
            meters: parts.meters,
            queries: parts.queries,
            stopping,
            events,
        };
        // Set once: each pipeline has a budget of its own.
        drop(shared.queries.activity.set(shared.activity.clone()));
        // Components of weight 0 are evaluated, which is not counted here.
        let trained = shared.components.iter().filter(|c| c.weight > 0.0);
        shared.meters.begin(trained.map(|c| c.name.as_str()));

        let sampler = shared.timed(parts.sampler);
        let training = options.retry.deadlines.training(parts.training, &shared.meters.service);
        let shadows = parts.shadow.map(|setup| shared.shadows(setup, &*training, &sampler));
        let origin = shadows.as_ref().and_then(|shadows| shadows.origin.clone());
        let mut first = Policy::new(PolicyVersion(start.step), sampler, shared.queries.clone(), origin);
        if let Some(in_flight) = parts.in_flight {
            first = first.sampled_by(shared.timed(in_flight));
        }
        let mut skip = start.settled;
        let parts = StageParts {
            training,
            publish: watch::Sender::new(Arc::new(first)),
            gradient_norms: start.gradient_norms,
            pool: parts.pool,
            restored: shared.restore(start.saved_groups, &mut skip),
            logprob_source: match parts.logprob_source {
                LogprobSource::Fixed(sampler) => LogprobSource::Fixed(shared.timed(sampler)),
                other => other,
            },
            reference: parts
                .reference
                .map(|reference| ReferenceModel { sampler: shared.timed(reference.sampler), ..reference }),
            shadows,
            skip,
            evaluated: start.evaluated.then_some(start.step),
        };
        Ok((shared, parts))
    }

    /// Finds or saves the weights that shadows of the first version start from.
    fn shadows(
        &self,
        setup: ShadowSetup,
        training: &dyn TrainingBackend,
        sampler: &Arc<dyn SamplingBackend>,
    ) -> Shadows {
        let deadlines = self.options.retry.deadlines;
        let service = deadlines.service(setup.service.clone(), &self.meters.service);
        let checkpoints = ShadowCheckpoints::new(service);
        let origin = match &setup.from {
            ShadowStart::Base => None,
            ShadowStart::Policy { saved: Some(path) } => {
                Some(ShadowOrigin::kept(path.clone(), sampler.clone()))
            }
            ShadowStart::Policy { saved: None } => {
                let saving = training.save_state(&format!("{:06}-shadow", self.step));
                Some(checkpoints.keep(saving, sampler.clone()))
            }
        };
        Shadows { setup, checkpoints, origin }
    }

    /// Opens groups that an earlier part of the run had collected, so that they are not sampled again. They are sampled
    /// again if the loss needs what the service recorded of them: that belongs to the session of the earlier part.
    fn restore(&self, saved_groups: Vec<SavedGroup>, skip: &mut SettledPositions) -> Vec<CompleteGroup> {
        let mut restored = Vec::new();
        if self.options.train.loss.needs_provenance() {
            return restored;
        }
        for saved_group in saved_groups {
            let members = &saved_group.members;
            let Some(oldest) = members.iter().map(|member| member.rollout.policy).min() else {
                continue;
            };
            if skip.contains(saved_group.group.0) {
                continue;
            }
            skip.insert(saved_group.group.0);
            let group = feeder::open(saved_group.group, &self.schedule, &self.components, &self.ledger);
            group.credit.sampling_started(oldest);
            group.credit.add_tokens(members.iter().map(|member| member.rollout.sampled_tokens()).sum());
            restored.push(CompleteGroup::restored(Arc::new(group), &saved_group, oldest));
        }
        restored
    }

    pub(super) fn generator(&self) -> RolloutGenerator {
        RolloutGenerator {
            seed: self.options.seed,
            retry: self.options.retry,
            activity: self.activity.clone(),
            meters: self.meters.clone(),
            record_stability_info: self.options.train.loss.needs_provenance(),
        }
    }

    /// The same sampler, with a time limit on its responses.
    fn timed(&self, sampler: Arc<dyn SamplingBackend>) -> Arc<dyn SamplingBackend> {
        self.options.retry.deadlines.sampler(sampler, &self.meters.service)
    }
}

fn schedule(seed: u64, components: &[MixtureComponent]) -> Result<Schedule, ScheduleError> {
    let component = |c: &MixtureComponent| ScheduleComponent {
        weight: c.weight,
        items: c.environment.items().get(),
        strata: c.environment.strata().get(),
    };
    Schedule::new(seed, &components.iter().map(component).collect::<Vec<_>>())
}
