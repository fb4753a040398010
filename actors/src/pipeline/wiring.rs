//! Builds what the stages share, connects the stages back to front, and launches them.
//!
//! Each stage has one function. It creates the stage's mailbox, with a capacity so large that no mailbox blocks before
//! the credits do, and returns the sending end for the stage before it.

use super::limits::SeriesLimits;
use super::{
    Observer, Pipeline, PipelineEvent, PipelineOptions, PipelineParts, ResumePoint, ShadowSetup, ShadowStart,
};
use crate::generate::RolloutGenerator;
use crate::ledger::{Ledger, SavedGroup, SettledPositions};
use crate::mailbox::{
    MailboxGauge, MailboxReceiver, MailboxSender, StageHandle, StageMessage, launch, mailbox, spawn_watched,
};
use crate::messages::{Batch, Group, MixtureComponent, ScoredRollout};
use crate::policy::{LogprobOracle, Policy, QueryBudget, ShadowCheckpoints, ShadowOrigin};
use crate::stages::batcher::{
    AdvantageBatcher, BatcherLinks, CompleteGroup, ConstantGroups, CpuPool, StalenessGate,
};
use crate::stages::evaluator::{Evaluation, Evaluator};
use crate::stages::feeder::{self, Allowance, Feeder};
use crate::stages::sampler::{GroupSampler, SampledRollout, Sampler};
use crate::stages::scorer::{LogprobSource, RolloutScorer, Scorer, ScoringOracles};
use crate::stages::shadow::ShadowTrainer;
use crate::stages::trainer::{FinishRequest, Trainer, TrainerLinks};
use crate::telemetry::StageBoard;
use crate::telemetry::activity::Activity;
use crate::telemetry::meters::PipelineMeters;
use minds_core::ids::PolicyVersion;
use minds_core::schedule::{Schedule, ScheduleComponent, ScheduleError};
use minds_core::service::{SamplingBackend, TrainingBackend};
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
        let schedule = schedule(options.seed, &parts.components)?;
        let components: Arc<[_]> = parts.components.into_iter().map(Arc::new).collect();
        let (stop, stopping) = watch::channel(false);
        let (sender, events) = mpsc::channel(EVENTS);
        let members = components.iter().map(|c| c.group_size.get()).max().unwrap_or(1);
        let wiring = Wiring {
            options,
            capacities: MailboxCapacities::of(options, members),
            step: start.step,
            schedule,
            components,
            ledger: Ledger::new(start.settled.clone()).with_unanswered_limit(options.unanswered),
            board: StageBoard::default(),
            activity: Activity::default(),
            meters: parts.meters,
            queries: parts.queries,
            stopping,
            events: sender,
        };
        // Components of weight 0 are evaluated, which is not counted here.
        let trained = wiring.components.iter().filter(|c| c.weight > 0.0);
        wiring.meters.begin(trained.map(|c| c.name.as_str()));

        let sampler = wiring.timed(parts.sampler);
        let training = options.retry.deadlines.training(parts.training, &wiring.meters.service);
        let shadows = parts.shadow.map(|setup| wiring.shadows(setup, &*training, &sampler));
        let origin = shadows.as_ref().and_then(|shadows| shadows.origin.clone());
        let first = Policy::new(PolicyVersion(start.step), sampler, wiring.queries.clone(), origin);
        let (publish, policy) = watch::channel(Arc::new(first));
        let mut skip = start.settled;
        let restored = wiring.restore(start.saved_groups, &mut skip);
        let logprob_source = match parts.logprob_source {
            LogprobSource::Fixed(sampler) => LogprobSource::Fixed(wiring.timed(sampler)),
            other => other,
        };

        // Only shadows of the policy need every version.
        let kept = shadows.as_ref().filter(|shadows| shadows.origin.is_some());
        let kept = kept.map(|shadows| shadows.checkpoints.clone());
        let shadow = shadows.map(|shadows| wiring.shadow_trainer(shadows));
        let links = wiring.trainer_links(training, publish, kept);
        let (trainer, committer, batches, finish) = wiring.trainer(links, &start.gradient_norms);
        let batches_gauge = batches.gauge();
        let (batcher, scored) = wiring.batcher(batches, policy.clone(), parts.pool, restored);
        let scored_gauge = scored.gauge();
        let (last, no_more) = watch::channel(false);
        let (found, evaluations) = mpsc::channel(EVENTS);
        let measured = start.evaluated.then_some(start.step);
        let evaluator = wiring.evaluator(measured, logprob_source.clone(), policy.clone(), no_more, found);
        let reference = parts.reference.map(|reference| wiring.timed(reference));
        let (scorer, rollouts) = wiring.scorer(scored, policy.clone(), logprob_source, reference);
        let rollouts_gauge = rollouts.gauge();
        let (sampler, groups) = wiring.sampler(rollouts, policy);
        let mut mailboxes = vec![groups.gauge(), rollouts_gauge, scored_gauge, batches_gauge];
        let feeder = wiring.feeder(groups, skip);

        let mut stages = vec![feeder, sampler, scorer, batcher, trainer, committer];
        stages.extend(evaluator);
        let shadows = shadow.map(|(shadows, stage, gauge)| {
            stages.push(stage);
            mailboxes.push(gauge);
            shadows
        });
        Ok(Self {
            events,
            stages,
            stop,
            finish,
            limits: SeriesLimits::new(options),
            away: wiring.meters.service.away(),
            observer: wiring.observer(mailboxes),
            shadows,
            giving_up: false,
            evaluations,
            last,
            ended: None,
            over: false,
        })
    }
}

/// What the stages share.
struct Wiring<'a> {
    options: &'a PipelineOptions,
    capacities: MailboxCapacities,
    /// The step at which the run begins.
    step: u64,
    schedule: Schedule,
    components: Arc<[Arc<MixtureComponent>]>,
    ledger: Ledger,
    board: StageBoard,
    activity: Activity,
    meters: PipelineMeters,
    queries: Arc<QueryBudget>,
    /// Turns true when the run stops.
    stopping: watch::Receiver<bool>,
    events: mpsc::Sender<PipelineEvent>,
}

/// What shadow adapters need beside the shadow trainer.
struct Shadows {
    setup: ShadowSetup,
    checkpoints: Arc<ShadowCheckpoints>,
    /// The first version of the policy, if shadows start from the policy.
    origin: Option<Arc<ShadowOrigin>>,
}

impl Wiring<'_> {
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
        spawn_watched("feeder", feeder.run())
    }

    /// A successor of a sampler that panicked goes on: each group belongs to a task of its own.
    fn sampler(
        &self,
        rollouts: MailboxSender<SampledRollout>,
        policy: watch::Receiver<Arc<Policy>>,
    ) -> (StageHandle, MailboxSender<Arc<Group>>) {
        let capacity = self.capacities.groups;
        let (groups, receiver) = mailbox("groups", capacity);
        let sampler = Arc::new(GroupSampler {
            policy,
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
        reference: Option<Arc<dyn SamplingBackend>>,
    ) -> (StageHandle, MailboxSender<SampledRollout>) {
        let capacity = self.capacities.rollouts;
        let (rollouts, receiver) = mailbox("rollouts", capacity);
        let oracle = |reference| Arc::new(LogprobOracle::new(reference, self.queries.clone(), None));
        let scorer = Arc::new(RolloutScorer {
            oracles: ScoringOracles::new(logprob_source, &self.queries),
            reference: reference.map(oracle),
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
    ) -> (StageHandle, MailboxSender<(Arc<Group>, ScoredRollout)>) {
        let capacity = self.capacities.scored;
        let (scored, receiver) = mailbox("scored", capacity);
        let staleness_gate = StalenessGate {
            ledger: self.ledger.clone(),
            max_staleness: self.options.max_staleness,
            groups_per_batch: self.options.batch.groups_per_batch.get(),
            first: self.step,
            left: 0,
        };
        let links = BatcherLinks { pool, board: self.board.clone(), policy, batches };
        let batcher = AdvantageBatcher::new(self.options.batch, links, staleness_gate, restored);
        (launch("batcher", capacity, 0, once(batcher), bind(receiver)), scored)
    }

    /// The trainer and the task that commits its steps. No restart: a trainer that panicked cannot know which of its
    /// requests took effect.
    fn trainer(
        &self,
        links: TrainerLinks,
        gradient_norms: &[f64],
    ) -> (StageHandle, StageHandle, MailboxSender<Batch>, MailboxSender<FinishRequest>) {
        let capacity = self.capacities.batches;
        let (batches, receiver) = mailbox("batches", capacity);
        let (finish, finish_receiver) = mailbox("finish", NonZeroUsize::MIN);
        let (trainer, committer) = Trainer::new(self.options.train.clone(), links, self.step, gradient_norms);
        let trainer = launch("trainer", capacity, 0, once(trainer), move |addr| {
            receiver.bind(addr);
            finish_receiver.bind(addr);
        });
        (trainer, spawn_watched("committer", committer), batches, finish)
    }

    fn trainer_links(
        &self,
        training: Arc<dyn TrainingBackend>,
        policy: watch::Sender<Arc<Policy>>,
        shadow_checkpoints: Option<Arc<ShadowCheckpoints>>,
    ) -> TrainerLinks {
        TrainerLinks {
            training,
            policy,
            queries: self.queries.clone(),
            shadow_checkpoints,
            components: self.components.clone(),
            ledger: self.ledger.clone(),
            activity: self.activity.clone(),
            meters: self.meters.clone(),
            board: self.board.clone(),
            events: self.events.clone(),
            stop: self.stopping.clone(),
        }
    }

    /// Evaluates the components of weight 0, if there are any. A task of its own: it follows the published weights.
    fn evaluator(
        &self,
        measured: Option<u64>,
        logprob_source: LogprobSource,
        policy: watch::Receiver<Arc<Policy>>,
        no_more: watch::Receiver<bool>,
        found: mpsc::Sender<Evaluation>,
    ) -> Option<StageHandle> {
        let Wiring { options, queries, .. } = self;
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

    /// Opens groups that an earlier part of the run had collected, so that they are not sampled again.
    fn restore(&self, saved_groups: Vec<SavedGroup>, skip: &mut SettledPositions) -> Vec<CompleteGroup> {
        let mut restored = Vec::new();
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

    fn generator(&self) -> RolloutGenerator {
        RolloutGenerator {
            seed: self.options.seed,
            retry: self.options.retry,
            activity: self.activity.clone(),
            meters: self.meters.clone(),
        }
    }

    fn observer(self, mailboxes: Vec<MailboxGauge>) -> Observer {
        Observer {
            ledger: self.ledger,
            board: self.board,
            activity: self.activity,
            queries: self.queries,
            credits: self.options.credits(),
            mailboxes: mailboxes.into(),
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
