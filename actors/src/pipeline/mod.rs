//! Wires the stages into a pipeline and runs it to its end.
//!
//! Back to front, each stage gets the sender to the next; a mailbox's capacity is large enough that no mailbox blocks
//! before the credits do. The owner of a pipeline receives events, reads the board, and can stop it.

mod capacities;
mod observer;

use crate::generate::RolloutGenerator;
use crate::ledger::{GroupCounts, Ledger, SettledPositions, one_line};
use crate::mailbox::{
    MailboxReceiver, MailboxSender, MailboxStats, StageExit, StageHandle, StageMessage, launch, mailbox,
    spawn_watched,
};
use crate::messages::{MixtureComponent, QuarantinedRollout, SavedGroup, StepRecord};
use crate::policy::{LogprobOracle, Policy, QueryBudget, ShadowCheckpoints, ShadowOrigin};
use crate::service::retry::Retry;
use crate::stages::batcher::{self, AdvantageBatcher, BatcherOptions, CompleteGroup, CpuPool, StalenessGate};
use crate::stages::evaluator::{Evaluation, Evaluator, EvaluatorOptions};
use crate::stages::feeder::{self, Allowance, Feeder};
use crate::stages::sampler::Sampler;
use crate::stages::scorer::{LogprobSource, Scorer, ScoringOracles};
use crate::stages::shadow::{ShadowTrainer, ShadowTrainerOptions};
use crate::stages::trainer::{FinishRequest, SavedCheckpoint, Trainer, TrainerLinks, TrainerOptions};
use crate::telemetry::StageBoard;
use crate::telemetry::activity::Activity;
use crate::telemetry::meters::PipelineMeters;
pub use capacities::MailboxCapacities;
use futures::future::select_all;
use minds_core::ids::PolicyVersion;
use minds_core::schedule::{self, Schedule, ScheduleError};
use minds_core::service::{SamplingBackend, Service, TrainingBackend};
pub use observer::Observer;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tracing::error;

/// Events of the pipeline, in the order in which they happened.
pub enum PipelineEvent {
    /// An optimizer step is done and its weights are published.
    Step(StepRecord),
    /// A checkpoint has been saved.
    CheckpointSaved(SavedCheckpoint),
    /// A reward has failed for good.
    Quarantined(QuarantinedRollout),
    /// Weights have been evaluated. May arrive after later steps.
    Evaluated(Evaluation),
    /// The run is over, because it was stopped or all steps are done.
    Ended {
        /// Optimizer steps done at the end.
        step: u64,
    },
    /// The run cannot continue; the first cause.
    Failed(String),
}

/// Sizes and limits of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineOptions {
    /// Seed of items and samples.
    pub seed: u64,
    /// Batches that may be under way beside the one in training, which decides the credits. 0: strictly on-policy.
    pub max_steps_off_policy: u64,
    /// Most optimizer steps between the weights that sampled a group and those that it trains.
    pub max_staleness: u64,
    /// How often a failed member is resampled.
    pub resamples: u32,
    /// Rewards computed at a time.
    pub scorers: NonZeroUsize,
    /// Restarts of each stage after a panic.
    pub restarts: u32,
    /// Groups that may fail one after the other before the run ends with an error.
    pub max_failed_in_a_row: u64,
    /// Groups in which every reward may fail in the environment's own code, one after the other, before the run ends with
    /// an error.
    pub max_raised_in_a_row: u64,
    /// How long groups may go without an answer from a service, one that a reward queries for example, before they
    /// count as failed; if no other group becomes ready meanwhile, the run ends with an error.
    pub unanswered: Duration,
    /// Groups without signal that may be replaced one after the other before the run ends with an error.
    pub max_replaced_in_a_row: u64,
    /// What to do when the service fails.
    pub retry: Retry,
    /// How groups become batches.
    pub batch: BatcherOptions,
    /// How a batch becomes optimizer steps.
    pub train: TrainerOptions,
    /// How weights are evaluated on the components of weight 0, if they are.
    pub evaluate: Option<EvaluatorOptions>,
}

impl PipelineOptions {
    /// Most groups started and not yet settled.
    #[must_use]
    pub fn credits(&self) -> u64 {
        self.batch.groups_per_batch.get() as u64 * (self.max_steps_off_policy + 1)
    }
}

/// The checkpoint data from which a run resumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResumePoint {
    /// Optimizer steps done before.
    pub step: u64,
    /// Positions of the schedule settled before.
    pub settled: SettledPositions,
    /// Groups that were ready and not yet trained.
    pub saved_groups: Vec<SavedGroup>,
    /// Gradient norms of the latest optimizer steps, the oldest first.
    pub gradient_norms: Vec<f64>,
    /// Whether the weights have been evaluated.
    pub evaluated: bool,
}

/// What the pipeline is built from.
pub struct PipelineParts {
    /// Environments of the mixture, with their weights.
    pub components: Vec<MixtureComponent>,
    /// The adapter in training.
    pub training: Arc<dyn TrainingBackend>,
    /// Samples from the weights as they are now.
    pub sampler: Arc<dyn SamplingBackend>,
    /// The weights that answer logprob queries of rewards.
    pub logprob_source: LogprobSource,
    /// Reference weights of the KL penalty, if there is one ([`BatcherOptions::kl_penalty`]).
    pub reference: Option<Arc<dyn SamplingBackend>>,
    /// Limits and counts of the rewards' queries.
    pub queries: Arc<QueryBudget>,
    /// Set-up of the shadow trainer, if rewards may measure gradient steps.
    pub shadow: Option<ShadowSetup>,
    /// Threads for long computations.
    pub pool: CpuPool,
    /// Counters of the pipeline for Prometheus.
    pub meters: PipelineMeters,
}

/// Where shadow adapters live, and how they train.
pub struct ShadowSetup {
    /// Adapters, optimizer and retries of the shadow trainer.
    pub options: ShadowTrainerOptions,
    /// Creates the adapters when they are first needed.
    pub service: Arc<dyn Service>,
    /// The weights that the adapters start from.
    pub from: ShadowStart,
}

/// The weights that shadow adapters start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShadowStart {
    /// The base model, without an adapter.
    Base,
    /// The version of the policy that sampled the rollout.
    Policy {
        /// Where the first version is saved, if it is.
        saved: Option<String>,
    },
}

/// A running pipeline. Lives on the local task set on which it was started, and ends when it is dropped, which cancels
/// everything under way.
pub struct Pipeline {
    events: mpsc::Receiver<PipelineEvent>,
    stages: Vec<StageHandle>,
    stop: watch::Sender<bool>,
    finish: MailboxSender<FinishRequest>,
    observer: Observer,
    max_failed_in_a_row: u64,
    max_raised_in_a_row: u64,
    /// Why the run stopped waiting for the service, if it did.
    away: watch::Receiver<Option<String>>,
    /// No bound unless constant groups are replaced.
    max_replaced_in_a_row: u64,
    /// Holds adapters and checkpoints on the service that belong to shadows alone.
    shadows: Option<ShadowTrainer>,
    /// Whether the run is being ended early, after a last checkpoint.
    giving_up: bool,
    /// Results of the evaluator.
    evaluations: mpsc::Receiver<Evaluation>,
    /// Turns true when no more weights will come.
    last: watch::Sender<bool>,
    /// The final event, held back until the last evaluation has been reported.
    ended: Option<PipelineEvent>,
    over: bool,
}

impl Pipeline {
    /// Launches all stages.
    ///
    /// # Errors
    /// A mixture from which nothing can be drawn.
    pub fn start(
        options: &PipelineOptions,
        parts: PipelineParts,
        start: ResumePoint,
    ) -> Result<Self, ScheduleError> {
        let mixture: Vec<_> = parts
            .components
            .iter()
            .map(|c| schedule::ScheduleComponent {
                weight: c.weight,
                items: c.environment.items().get(),
                strata: c.environment.strata().get(),
            })
            .collect();
        let schedule = Schedule::new(options.seed, &mixture)?;
        let components: Arc<[Arc<MixtureComponent>]> = parts.components.into_iter().map(Arc::new).collect();
        let members = components.iter().map(|c| c.group_size.get()).max().unwrap_or(1);
        let capacities = MailboxCapacities::of(options, members);

        let (groups, to_sampler) = mailbox("groups", capacities.groups);
        let (rollouts, to_scorer) = mailbox("rollouts", capacities.rollouts);
        let (scored, to_batcher) = mailbox("scored", capacities.scored);
        let (batches, to_trainer) = mailbox("batches", capacities.batches);
        let (finish, to_end) = mailbox("finish", NonZeroUsize::MIN);

        let board = StageBoard::default();
        let activity = Activity::default();
        let ledger = Ledger::new(start.settled.clone()).with_unanswered_limit(options.unanswered);
        let mut skip = start.settled;
        let restored = restore(start.saved_groups, &schedule, &components, &ledger, &mut skip);
        let (stop, stopping) = watch::channel(false);
        let (event, events) = mpsc::channel(8);
        let deadlines = options.retry.deadlines;
        let meters = parts.meters;
        // Components of weight 0 are evaluated, which is not counted here.
        meters.begin(components.iter().filter(|c| c.weight > 0.0).map(|c| c.name.as_str()));
        let service = &meters.service;
        let away = meters.service.away();
        let sampler = deadlines.sampler(parts.sampler, service);
        let training = deadlines.training(parts.training, service);
        let shadow_checkpoints = parts
            .shadow
            .as_ref()
            .map(|shadow| ShadowCheckpoints::new(deadlines.service(shadow.service.clone(), service)));
        let origin = shadow_checkpoints.as_ref().zip(parts.shadow.as_ref()).and_then(
            |(shadow_checkpoints, shadow)| {
                let ShadowStart::Policy { saved } = &shadow.from else { return None };
                Some(match saved.clone() {
                    Some(path) => ShadowOrigin::kept(path, sampler.clone()),
                    None => {
                        let name = format!("{:06}-shadow", start.step);
                        shadow_checkpoints.keep(training.save_state(&name), sampler.clone())
                    }
                })
            },
        );
        let first = Policy::new(PolicyVersion(start.step), sampler, parts.queries.clone(), origin.clone());
        let (publish, policy) = watch::channel(Arc::new(first));
        let mut mailboxes = vec![groups.gauge(), rollouts.gauge(), scored.gauge(), batches.gauge()];

        let shadow = parts.shadow.zip(shadow_checkpoints.clone()).map(
            |(ShadowSetup { options, service, .. }, shadow_checkpoints)| {
                let board = board.clone();
                let activity = activity.clone();
                let queries = &parts.queries;
                let meters = &meters.service;
                let stage = ShadowTrainer::new(
                    options,
                    service,
                    shadow_checkpoints,
                    queries,
                    board,
                    activity,
                    meters,
                );
                let (attached, gauge) = stage.clone().attach(&parts.queries);
                mailboxes.push(gauge);
                (stage, attached)
            },
        );
        let (shadows, shadow): (Option<_>, Option<_>) = shadow.unzip();
        let links = TrainerLinks {
            training,
            policy: publish,
            queries: parts.queries.clone(),
            // Only shadows of the policy need every version.
            shadow_checkpoints: shadow_checkpoints.filter(|_| origin.is_some()),
            components: components.clone(),
            ledger: ledger.clone(),
            activity: activity.clone(),
            meters: meters.clone(),
            board: board.clone(),
            events: event.clone(),
            stop: stopping.clone(),
        };
        // A trainer that panicked cannot know which of its requests took effect: no restart.
        let (trainer, committer) =
            Trainer::new(options.train.clone(), links, start.step, &start.gradient_norms);
        let trainer = launch("trainer", capacities.batches, 0, once(trainer), move |addr| {
            to_trainer.bind(addr);
            to_end.bind(addr);
        });
        let committer = spawn_watched("committer", committer);
        // Half-collected groups live in the batcher: a new one could never complete them.
        let staleness_gate = StalenessGate {
            ledger: ledger.clone(),
            max_staleness: options.max_staleness,
            groups_per_batch: options.batch.groups_per_batch.get(),
            first: start.step,
            left: 0,
        };
        let stage = AdvantageBatcher::new(
            options.batch,
            staleness_gate,
            parts.pool,
            board.clone(),
            policy.clone(),
            batches,
            restored,
        );
        let batcher = launch("batcher", capacities.scored, 0, once(stage), bind(to_batcher));
        let (last, no_more) = watch::channel(false);
        let (found, evaluations) = mpsc::channel(8);
        let logprob_source = match parts.logprob_source {
            LogprobSource::Fixed(sampler) => LogprobSource::Fixed(deadlines.sampler(sampler, service)),
            other => other,
        };
        let measured: Vec<_> = components.iter().filter(|c| c.weight == 0.0).cloned().collect();
        let evaluator = options.evaluate.filter(|_| !measured.is_empty()).map(|how| {
            let logprob_source = logprob_source.clone();
            let queries = &parts.queries;
            let evaluator =
                Evaluator::new(how, measured, options.seed, options.retry, logprob_source, queries);
            let last = start.evaluated.then_some(start.step);
            spawn_watched("evaluator", evaluator.follow(last, policy.clone(), no_more, found))
        });
        let seed = options.seed;
        let retry = options.retry;
        let generator = RolloutGenerator { seed, retry, activity: activity.clone(), meters: meters.clone() };
        let reference = parts.reference.map(|reference| {
            Arc::new(LogprobOracle::new(deadlines.sampler(reference, service), parts.queries.clone(), None))
        });
        let scorer = Scorer {
            oracles: ScoringOracles::new(logprob_source, &parts.queries),
            reference,
            policy: policy.clone(),
            generator: generator.clone(),
            board: board.clone(),
            scored,
            events: event,
        };
        let scorer =
            launch("scorer", capacities.rollouts, options.restarts, move || scorer.clone(), bind(to_scorer));
        let sampler =
            Sampler { policy, generator, resamples: options.resamples, board: board.clone(), rollouts };
        let sampler =
            launch("sampler", capacities.groups, options.restarts, move || sampler.clone(), bind(to_sampler));
        let steps_left = options.train.max_steps.saturating_sub(start.step);
        let feeder = Feeder {
            schedule,
            components,
            ledger: ledger.clone(),
            skip,
            allowance: Allowance {
                credits: options.credits(),
                wanted: steps_left * options.batch.groups_per_batch.get() as u64,
                filtered_too: options.batch.constant == batcher::ConstantGroups::Drop,
            },
            stop: stopping,
            groups,
        };
        let feeder = launch("feeder", NonZeroUsize::MIN, 0, once(feeder), |_| ());

        Ok(Self {
            events,
            stages: [feeder, sampler, scorer, batcher, trainer, committer]
                .into_iter()
                .chain(evaluator)
                .chain(shadow)
                .collect(),
            stop,
            finish,
            observer: Observer {
                ledger,
                board,
                activity,
                queries: parts.queries,
                credits: options.credits(),
                mailboxes: mailboxes.into(),
            },
            max_failed_in_a_row: options.max_failed_in_a_row,
            max_raised_in_a_row: options.max_raised_in_a_row,
            away,
            max_replaced_in_a_row: match options.batch.constant {
                batcher::ConstantGroups::Replace => options.max_replaced_in_a_row,
                batcher::ConstantGroups::Keep | batcher::ConstantGroups::Drop => u64::MAX,
            },
            shadows,
            giving_up: false,
            evaluations,
            last,
            ended: None,
            over: false,
        })
    }

    /// The next event; `None` after the run's last one. May be dropped while it waits: no event is lost.
    pub async fn next(&mut self) -> Option<PipelineEvent> {
        if self.over {
            return None;
        }
        let mut counts = self.observer.ledger.watch();
        let failed = self.max_failed_in_a_row;
        let raised = self.max_raised_in_a_row;
        let replaced = self.max_replaced_in_a_row;
        let ledger = self.observer.ledger.clone();
        let hopeless = |c: &GroupCounts| {
            c.failed_in_a_row >= failed
                || c.raised_in_a_row >= raised
                || c.filtered_in_a_row >= replaced
                || ledger.unanswered().is_some()
        };
        let event = loop {
            // All steps are done; an evaluation that is due at the last step still runs, unless the run is stopped.
            if self.ended.is_some()
                && !*self.stop.borrow()
                && let Some(evaluation) = self.evaluations.recv().await
            {
                break PipelineEvent::Evaluated(evaluation);
            }
            if let Some(ended) = self.ended.take() {
                break ended;
            }
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => match event {
                    PipelineEvent::Ended { .. } => {
                        // A stopped run has no last weights: it may be resumed.
                        if !*self.stop.borrow() {
                            self.last.send_replace(true);
                        }
                        self.ended = Some(event);
                    }
                    event => break event,
                },
                Some(evaluation) = self.evaluations.recv() => break PipelineEvent::Evaluated(evaluation),
                why = broken(&mut self.stages) => break PipelineEvent::Failed(why),
                why = given_up(&mut self.away), if !self.giving_up => {
                    // The rest of the service may still be reachable: the weights may still be saved.
                    error!(%why, "stopping after the step in progress");
                    self.giving_up = true;
                    self.end(Some(why));
                }
                _ = counts.wait_for(hopeless), if !self.giving_up => {
                    // The weights are good: they are saved before the run ends.
                    let why = self.too_many();
                    error!(%why, "stopping after the step in progress");
                    self.giving_up = true;
                    self.end(Some(why));
                }
            }
        };
        self.over = matches!(event, PipelineEvent::Ended { .. } | PipelineEvent::Failed(_));
        Some(event)
    }

    /// Opens no more groups, completes the step under way, saves a checkpoint, and ends.
    pub fn stop(&self) {
        self.end(None);
    }

    /// Cancels everything under way, and deletes what the run kept on the service for itself alone.
    pub async fn close(self) {
        let shadows = self.shadows.clone();
        drop(self);
        if let Some(shadows) = shadows {
            shadows.close().await;
        }
    }

    fn end(&self, why: Option<String>) {
        if !self.stop.send_replace(true) {
            let finish = self.finish.clone();
            // If the trainer has already gone, its end is among the events.
            tokio::spawn(async move { drop(finish.send(FinishRequest(why)).await) });
        }
    }

    /// Reads the pipeline, also after it has ended.
    #[must_use]
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// The ledger of all groups.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.observer.ledger
    }

    /// The latest snapshot of every stage.
    #[must_use]
    pub fn board(&self) -> &StageBoard {
        &self.observer.board
    }

    /// Busy times of the stages.
    #[must_use]
    pub fn activity(&self) -> &Activity {
        &self.observer.activity
    }

    /// Depth and traffic of the mailboxes, in the order of the stages.
    #[must_use]
    pub fn mailboxes(&self) -> Vec<MailboxStats> {
        self.observer.mailboxes()
    }

    fn too_many(&self) -> String {
        let limit = self.max_failed_in_a_row;
        let counts = self.ledger().counts();
        let replaced = counts.filtered_in_a_row;
        if let Some(first) =
            self.ledger().first_raised().filter(|_| counts.raised_in_a_row >= self.max_raised_in_a_row)
        {
            let raised = counts.raised_in_a_row;
            return format!(
                "every reward of {raised} groups in a row failed in the environment's own code; the first: {first}"
            );
        }
        if replaced >= self.max_replaced_in_a_row {
            return format!(
                "{replaced} groups in a row had equal rewards and were replaced (`constant_groups`): there is nothing \
                 to learn from, the task is too easy or too hard"
            );
        }
        if let Some((lasts, why)) = self.ledger().unanswered() {
            let lasts = lasts.as_secs();
            return format!("no group succeeded for {lasts} s because a service did not answer: {why}");
        }
        match self.observer.ledger.failures() {
            Some((first, group, last)) if first == last => {
                format!("{limit} groups in a row failed, the last was {group}: {last}")
            }
            Some((first, group, last)) => {
                let last = one_line(&last);
                format!(
                    "{limit} groups in a row failed, the last was {group}: {last}; the run's first failure: {first}"
                )
            }
            None => format!("{limit} groups in a row failed"),
        }
    }
}

/// Opens groups that an earlier part of the run had collected, so that they are not sampled again.
fn restore(
    saved_groups: Vec<SavedGroup>,
    schedule: &Schedule,
    components: &[Arc<MixtureComponent>],
    ledger: &Ledger,
    skip: &mut SettledPositions,
) -> Vec<CompleteGroup> {
    let mut restored = Vec::new();
    for saved_group in saved_groups {
        let Some(oldest) = saved_group.members.iter().map(|member| member.rollout.policy).min() else {
            continue;
        };
        if !skip.contains(saved_group.group.0) {
            skip.insert(saved_group.group.0);
            let group = feeder::open(saved_group.group, schedule, components, ledger);
            group.credit.sampling_started(oldest);
            group
                .credit
                .add_tokens(saved_group.members.iter().map(|member| member.rollout.sampled_tokens()).sum());
            restored.push(CompleteGroup::restored(Arc::new(group), &saved_group));
        }
    }
    restored
}

/// Waits until the outage limit of the service is reached.
async fn given_up(away: &mut watch::Receiver<Option<String>>) -> String {
    let why = away.wait_for(Option::is_some).await.ok().and_then(|away| away.clone());
    match why {
        Some(why) => format!("the service is away: {why}"),
        None => std::future::pending().await,
    }
}

/// Waits until a stage has panicked for good. Stages that end otherwise are removed from the list.
async fn broken(stages: &mut Vec<StageHandle>) -> String {
    while !stages.is_empty() {
        let (exit, index, _) = select_all(stages.iter_mut().map(|stage| Box::pin(stage.watch()))).await;
        let stage = stages.swap_remove(index);
        if let StageExit::Panicked(why) = exit {
            return format!("the {} panicked: {why}", stage.name());
        }
    }
    std::future::pending().await
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
