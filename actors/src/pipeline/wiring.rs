//! Connects the stages back to front, and launches them.
//!
//! Each stage has one function. It creates the stage's mailbox and returns the sending end for the stage before it. The
//! capacity of `rollouts` and `batches` bounds work; the others are so large that the credits block first.

use super::build::{Shadows, SharedParts, StageParts};
use super::limits::SeriesLimits;
use super::{Observer, Pipeline, PipelineEvent, PipelineOptions, PipelineParts, ResumePoint, ShadowSetup};
use crate::ledger::SettledPositions;
use crate::mailbox::{
    MailboxGauge, MailboxReceiver, MailboxSender, StageHandle, StageMessage, launch, mailbox, spawn_watched,
    spawn_watched_local,
};
use crate::messages::{Batch, Group, MixtureComponent, ScoredRollout};
use crate::policy::{Policy, ShadowCheckpoints};
use crate::stages::batcher::{
    AdvantageBatcher, BatcherLinks, CompleteGroup, ConstantGroups, CpuPool, StalenessGate,
};
use crate::stages::evaluator::Evaluator;
use crate::stages::feeder::{Allowance, Feeder};
use crate::stages::sampler::{GroupSampler, SampledRollout, Sampler};
use crate::stages::scorer::{
    LogprobSource, ReferenceModel, RolloutReference, RolloutScorer, Scorer, ScoringOracles,
};
use crate::stages::shadow::ShadowTrainer;
use crate::stages::trainer::{FinishRequest, Trainer, TrainerLinks};
use minds_core::record::EvaluationRecord;
use minds_core::schedule::ScheduleError;
use minds_core::service::TrainingBackend;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Events that wait for the pipeline's owner.
const EVENTS: usize = 8;

/// The capacity of each mailbox between two stages, in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxCapacities {
    /// Groups on their way to the sampler: as many as there are credits.
    pub groups: NonZeroUsize,
    /// Rollouts on their way to the scorer, which is as many as it scores at a time: more would only wait there.
    pub rollouts: NonZeroUsize,
    /// Scores on their way to the batcher: those of every member of every group in flight.
    pub scored: NonZeroUsize,
    /// Batches on their way to the trainer: one that is trained and one that is ready.
    pub batches: NonZeroUsize,
}

impl MailboxCapacities {
    /// Capacities for these options and a largest group of `members` rollouts.
    #[must_use]
    pub fn of(options: &PipelineOptions, members: u32) -> Self {
        let some = |n: usize| NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN);
        let groups = some(options.credits() as usize);
        Self {
            groups,
            rollouts: options.scorers,
            scored: groups.saturating_mul(some(members as usize)),
            batches: NonZeroUsize::MIN.saturating_add(1),
        }
    }

    /// Each with the name of its mailbox, in the order of the stages.
    #[must_use]
    pub fn named(&self) -> [(&'static str, NonZeroUsize); 4] {
        [
            ("groups", self.groups),
            ("rollouts", self.rollouts),
            ("scored", self.scored),
            ("batches", self.batches),
        ]
    }
}

/// The sending ends of what the batcher collects, of which a run uses one.
struct BatcherMailboxes {
    /// Rollouts with their rewards.
    scored: MailboxSender<(Arc<Group>, ScoredRollout)>,
    /// Groups whose items are imitated.
    imitated: MailboxSender<Arc<Group>>,
}

impl Pipeline {
    /// Launches all stages on the current local task set.
    ///
    /// ```
    /// use minds_stages::pipeline::{Pipeline, PipelineEvent, PipelineOptions, PipelineParts, ResumePoint};
    ///
    /// async fn run(options: PipelineOptions, parts: PipelineParts) -> Result<u64, Box<dyn std::error::Error>> {
    ///     let mut pipeline = Pipeline::start(&options, parts, ResumePoint::default())?;
    ///     let mut steps = 0;
    ///     while let Some(event) = pipeline.next().await {
    ///         match event {
    ///             PipelineEvent::Ended { step } => steps = step,
    ///             PipelineEvent::Failed(error) => return Err(error.into()),
    ///             _ => {} // a step, a checkpoint, an evaluation, a rollout without a reward
    ///         }
    ///     }
    ///     pipeline.close().await;
    ///     Ok(steps)
    /// }
    /// ```
    ///
    /// # Errors
    /// A mixture from which nothing can be drawn.
    pub fn start(
        options: &PipelineOptions,
        parts: PipelineParts,
        start: ResumePoint,
    ) -> Result<Self, ScheduleError> {
        let (stop, stopping) = watch::channel(false);
        let (sender, events) = mpsc::channel(EVENTS);
        let (shared, parts) = SharedParts::build(options, parts, start, stopping, sender)?;
        Ok(shared.connect(parts, stop, events))
    }
}

impl SharedParts<'_> {
    /// Launches the stages, the last one first: each is given the sending end of the next.
    fn connect(
        self,
        parts: StageParts,
        stop: watch::Sender<bool>,
        events: mpsc::Receiver<PipelineEvent>,
    ) -> Pipeline {
        let policy = parts.publish.subscribe();
        let (last, no_more) = watch::channel(false);
        let (found, evaluations) = mpsc::channel(EVENTS);
        // Only shadows of the policy need every version.
        let kept = parts.shadows.as_ref().filter(|shadows| shadows.origin.is_some());
        let kept = kept.map(|shadows| shadows.checkpoints.clone());

        let shadow = parts.shadows.map(|shadows| self.shadow_trainer(shadows));
        let fixed = self.needs_fixed(&parts.logprob_source, kept.is_some());
        let (commit_failed, failing) = watch::channel(false);
        let links = self.trainer_links(parts.training, parts.publish, kept, fixed, commit_failed);
        let (trainer, committer, batches, finish) = self.trainer(links, &parts.gradient_norms);
        let mut mailboxes = vec![batches.gauge()];
        let source = parts.logprob_source;
        let evaluator = self.evaluator(parts.evaluated, source.clone(), policy.clone(), no_more, found);
        let (batcher, collected) = self.batcher(batches, policy.clone(), parts.pool, parts.restored);
        let mut stages = vec![committer, trainer, batcher];
        let groups = if self.options.is_supervised() {
            collected.imitated
        } else {
            mailboxes.push(collected.scored.gauge());
            let (scorer, rollouts) = self.scorer(collected.scored, policy.clone(), source, parts.reference);
            mailboxes.push(rollouts.gauge());
            let (sampler, groups) = self.sampler(rollouts, policy);
            stages.extend([scorer, sampler]);
            groups
        };
        mailboxes.push(groups.gauge());
        stages.push(self.feeder(groups, parts.skip));

        // In the order of the stages; what stands beside them follows.
        mailboxes.reverse();
        stages.reverse();
        stages.extend(evaluator);
        let shadows = shadow.map(|(shadows, stage, gauge)| {
            stages.push(stage);
            mailboxes.push(gauge);
            shadows
        });
        Pipeline {
            events,
            stages,
            stop,
            finish,
            limits: SeriesLimits::new(self.options),
            away: self.meters.service.away(),
            commit_failed: failing,
            observer: self.observer(mailboxes),
            shadows,
            giving_up: false,
            evaluations,
            last,
            ended: None,
            over: false,
        }
    }

    fn capacities(&self) -> MailboxCapacities {
        MailboxCapacities::of(self.options, self.members)
    }

    /// Draws groups. A task of its own: nothing is sent to it.
    fn feeder(&self, groups: MailboxSender<Arc<Group>>, skip: SettledPositions) -> StageHandle {
        let steps_left = self.options.train.max_steps.saturating_sub(self.step);
        let feeder = Feeder {
            schedule: self.schedule.clone(),
            components: self.components.clone(),
            ledger: self.ledger.clone(),
            skip,
            allowance: Allowance {
                credits: self.options.credits(),
                wanted: steps_left * self.options.batch.groups_per_batch.get() as u64,
                filtered_too: self.options.batch.constant == ConstantGroups::Drop,
            },
            stop: self.stopping.clone(),
            groups,
        };
        spawn_watched_local("feeder", feeder.run())
    }

    /// A successor of a sampler that panicked goes on: each group belongs to a task of its own.
    fn sampler(
        &self,
        rollouts: MailboxSender<SampledRollout>,
        policy: watch::Receiver<Arc<Policy>>,
    ) -> (StageHandle, MailboxSender<Arc<Group>>) {
        let capacity = self.capacities().groups;
        let (groups, receiver) = mailbox("groups", capacity);
        let sampler = Arc::new(GroupSampler {
            policy,
            weights: self.options.train.weights,
            generator: self.generator(),
            resamples: self.options.resamples,
            board: self.board.clone(),
            rollouts,
        });
        let make = move || Sampler(sampler.clone());
        (launch("sampler", capacity, self.options.restarts, make, bind(receiver)), groups)
    }

    /// A successor of a scorer that panicked goes on: each rollout belongs to a task of its own.
    fn scorer(
        &self,
        scored: MailboxSender<(Arc<Group>, ScoredRollout)>,
        policy: watch::Receiver<Arc<Policy>>,
        logprob_source: LogprobSource,
        reference: Option<ReferenceModel>,
    ) -> (StageHandle, MailboxSender<SampledRollout>) {
        let capacity = self.capacities().rollouts;
        let (rollouts, receiver) = mailbox("rollouts", capacity);
        let scorer = Arc::new(RolloutScorer {
            oracles: ScoringOracles::new(logprob_source, &self.queries),
            reference: reference.map(|reference| RolloutReference::new(reference, &self.queries)),
            policy,
            generator: self.generator(),
            board: self.board.clone(),
            scored,
            events: self.events.clone(),
        });
        let make = move || Scorer(scorer.clone());
        (launch("scorer", capacity, self.options.restarts, make, bind(receiver)), rollouts)
    }

    /// No restart: half-collected groups live in the batcher, and a new one could never complete them.
    fn batcher(
        &self,
        batches: MailboxSender<Batch>,
        policy: watch::Receiver<Arc<Policy>>,
        pool: CpuPool,
        restored: Vec<CompleteGroup>,
    ) -> (StageHandle, BatcherMailboxes) {
        let MailboxCapacities { groups, scored: capacity, .. } = self.capacities();
        let (scored, scored_receiver) = mailbox("scored", capacity);
        let (imitated, imitated_receiver) = mailbox("groups", groups);
        let staleness_gate = StalenessGate {
            ledger: self.ledger.clone(),
            max_staleness: self.options.max_staleness,
            groups_per_batch: self.options.batch.groups_per_batch.get(),
            first: self.step,
            left: 0,
        };
        let links = BatcherLinks { pool, board: self.board.clone(), policy, batches };
        let batcher = AdvantageBatcher::new(self.options.batch, links, staleness_gate, restored);
        let batcher = launch("batcher", capacity, 0, once(batcher), move |addr| {
            scored_receiver.bind(addr);
            imitated_receiver.bind(addr);
        });
        (batcher, BatcherMailboxes { scored, imitated })
    }

    /// The trainer and the task that commits its steps. No restart: a trainer that panicked cannot know which of its
    /// requests took effect.
    fn trainer(
        &self,
        links: TrainerLinks,
        gradient_norms: &[f64],
    ) -> (StageHandle, StageHandle, MailboxSender<Batch>, MailboxSender<FinishRequest>) {
        let capacity = self.capacities().batches;
        let (batches, receiver) = mailbox("batches", capacity);
        let (finish, finish_receiver) = mailbox("finish", NonZeroUsize::MIN);
        let (trainer, committer) = Trainer::new(self.options.train.clone(), links, self.step, gradient_norms);
        let trainer = launch("trainer", capacity, 0, once(trainer), move |addr| {
            receiver.bind(addr);
            finish_receiver.bind(addr);
        });
        (trainer, spawn_watched("committer", committer), batches, finish)
    }

    /// Whether something needs each version as it was, beside in-flight weights.
    fn needs_fixed(&self, source: &LogprobSource, has_shadow_checkpoints: bool) -> bool {
        let asks = |component: &Arc<MixtureComponent>| {
            let environment = &component.environment;
            let answered_elsewhere =
                matches!(source, LogprobSource::Fixed(_)) && environment.self_driven().is_none();
            environment.queries_policy() && !answered_elsewhere
        };
        self.options.keeps_versions(has_shadow_checkpoints, self.components.iter().any(asks))
    }

    fn trainer_links(
        &self,
        training: Arc<dyn TrainingBackend>,
        policy: watch::Sender<Arc<Policy>>,
        shadow_checkpoints: Option<Arc<ShadowCheckpoints>>,
        needs_fixed: bool,
        commit_failed: watch::Sender<bool>,
    ) -> TrainerLinks {
        TrainerLinks {
            training,
            policy,
            needs_fixed,
            queries: self.queries.clone(),
            shadow_checkpoints,
            components: self.components.clone(),
            ledger: self.ledger.clone(),
            activity: self.activity.clone(),
            meters: self.meters.clone(),
            board: self.board.clone(),
            events: self.events.clone(),
            stop: self.stopping.clone(),
            commit_failed,
        }
    }

    /// Evaluates the components of weight 0, if there are any. A task of its own: it follows the published weights.
    fn evaluator(
        &self,
        measured: Option<u64>,
        logprob_source: LogprobSource,
        policy: watch::Receiver<Arc<Policy>>,
        no_more: watch::Receiver<bool>,
        found: mpsc::Sender<EvaluationRecord>,
    ) -> Option<StageHandle> {
        let Self { options, queries, .. } = self;
        let components: Vec<_> = self.components.iter().filter(|c| c.weight == 0.0).cloned().collect();
        let how = options.evaluate.filter(|_| !components.is_empty())?;
        let evaluator = Evaluator::new(how, components, options.seed, options.retry, logprob_source, queries);
        Some(spawn_watched("evaluator", evaluator.follow(measured, policy, no_more, found)))
    }

    /// Launches the shadow trainer and connects it to the rewards' queries.
    fn shadow_trainer(&self, shadows: Shadows) -> (ShadowTrainer, StageHandle, MailboxGauge) {
        let ShadowSetup { options, service, .. } = shadows.setup;
        let stage = ShadowTrainer::new(
            options,
            service,
            shadows.checkpoints,
            &self.queries,
            self.board.clone(),
            self.activity.clone(),
            &self.meters.service,
        );
        let (handle, gauge) = stage.clone().attach(&self.queries);
        (stage, handle, gauge)
    }

    fn observer(self, mailboxes: Vec<MailboxGauge>) -> Observer {
        Observer {
            ledger: self.ledger,
            board: self.board,
            activity: self.activity,
            meters: self.meters,
            queries: self.queries,
            credits: self.options.credits(),
            mailboxes: mailboxes.into(),
        }
    }
}

fn bind<A, M>(receiver: MailboxReceiver<M>) -> impl FnMut(&actix::Addr<A>)
where
    M: Send + 'static,
    A: actix::Actor<Context = actix::Context<A>> + actix::Handler<StageMessage<M>>,
{
    move |addr| receiver.bind(addr)
}

/// Builds a stage that is never restarted.
fn once<A>(actor: A) -> impl FnMut() -> A {
    let mut actor = Some(actor);
    move || actor.take().expect("a stage without restarts is made once")
}
