//! Starts a pipeline against the script and follows it, checking the ledger at every event.

use super::{Judge, ScriptedEnvironment, ScriptedRenderer, ServiceRecord};
use minds_core::advantage::Estimator;
use minds_core::ids::RolloutId;
use minds_core::loss::Loss;
use minds_core::optim::{AdamParams, LearningRateSchedule};
use minds_core::record::EvaluationRecord;
use minds_core::sampling::SamplingParams;
use minds_core::service::{SamplerWeights, TrainingBackend};
use minds_simulation::{ServiceCounts, SimulatedService, SimulationOptions};
use minds_stages::batcher::CpuPool;
use minds_stages::batcher::{self, ConstantGroups, LossWeighting, StalenessHandling};
use minds_stages::messages::{CommittedStep, MixtureComponent, QuarantinedRollout};
use minds_stages::pipeline::{
    Pipeline, PipelineEvent, PipelineOptions, PipelineParts, ResumePoint, ShadowSetup, ShadowStart,
};
use minds_stages::policy::{QueryBudget, QueryLimits};
use minds_stages::scorer;
use minds_stages::service::deadlines::Deadlines;
use minds_stages::service::retry::Retry;
use minds_stages::shadow::ShadowTrainerOptions;
use minds_stages::telemetry::meters::PipelineMeters;
use minds_stages::trainer::{self, SavedCheckpoint};
use std::collections::BTreeSet;
use std::future::Future;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time::Instant;

pub fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Runs on a local task set, as actors must.
pub async fn local<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

/// Rewards 0, 1, 2, … by member, so that no group is constant.
pub fn reward_by_member() -> Box<dyn Fn(RolloutId, u32) -> Judge + Send + Sync> {
    Box::new(|id, _| Judge::Reward(id.member as f32))
}

/// The same in every `n`-th group; in the others all rewards are equal.
pub fn reward_in_every(n: u64) -> Box<dyn Fn(RolloutId, u32) -> Judge + Send + Sync> {
    Box::new(move |id, _| Judge::Reward(if id.group.0.is_multiple_of(n) { id.member as f32 } else { 1.0 }))
}

/// Everything a run depends on.
pub struct World {
    pub environment: ScriptedEnvironment,
    /// Of weight 0.
    pub measured: ScriptedEnvironment,
    /// Steps between two evaluations of a second one, `rarely`, if there is one.
    pub rarely: Option<NonZeroU64>,
    pub service: SimulationOptions,
    /// Whether prompts and data are recorded, for inspection by tests.
    pub remember: bool,
    pub options: PipelineOptions,
    pub group_size: u32,
    pub max_turns: u32,
    /// Tokens that the model reads.
    pub context: usize,
    pub score_timeout: Duration,
    /// Whose logprobs count.
    pub judge: scorer::LogprobSource,
    /// Weights of this version are the reference.
    pub reference: Option<u64>,
    /// How often rewards may ask.
    pub limits: QueryLimits,
    /// Who measures gradient steps.
    pub shadow: Option<(ShadowTrainerOptions, ShadowStart)>,
    /// Where heavy sums are made; inline unless the test is about threads.
    pub pool: CpuPool,
    /// What is counted.
    pub meters: PipelineMeters,
}

impl World {
    /// `groups` groups of two per step, `k` steps off-policy, `steps` steps.
    pub fn new(groups: usize, k: u64, steps: u64) -> Self {
        let options = PipelineOptions {
            seed: 7,
            max_steps_off_policy: k,
            max_staleness: k,
            resamples: 0,
            scorers: NonZeroUsize::new(64).unwrap(),
            restarts: 0,
            max_replaced_in_a_row: u64::MAX,
            max_failed_in_a_row: 100,
            max_raised_in_a_row: 100,
            unanswered: seconds(15 * 60),
            retry: Retry {
                retries: 2,
                first_pause: seconds(1),
                longest_pause: seconds(1),
                deadlines: Deadlines::default(),
            },
            batch: batcher::BatcherOptions {
                groups_per_batch: NonZeroUsize::new(groups).unwrap(),
                estimator: Estimator::GroupMean,
                constant: ConstantGroups::Keep,
                min_members: NonZeroUsize::MIN,
                weighting: LossWeighting::Token,
                kl_penalty: 0.0,
                rewards: true,
                length: batcher::LengthShaping::default(),
                minibatches: NonZeroUsize::MIN,
                staleness: StalenessHandling::Wait,
            },
            train: trainer::TrainerOptions {
                loss: Loss::ImportanceSampling,
                adam: AdamParams::default(),
                max_steps: steps,
                rate: LearningRateSchedule::default(),
                substeps: NonZeroUsize::MIN,
                publish_every: NonZeroU64::MIN,
                weights: SamplerWeights::Snapshot,
                kl_alarm: None,
                clip_multiple: 0.0,
                max_first_gap: 0.0,
                save_every: 0,
                max_refused: 3,
            },
            evaluate: None,
        };
        Self {
            environment: ScriptedEnvironment::default(),
            measured: ScriptedEnvironment::default(),
            rarely: None,
            service: SimulationOptions::default(),
            remember: true,
            options,
            group_size: 2,
            max_turns: 1,
            context: 1000,
            score_timeout: seconds(60),
            judge: scorer::LogprobSource::Sampled,
            reference: None,
            limits: QueryLimits::default(),
            shadow: None,
            pool: CpuPool::inline(),
            meters: PipelineMeters::default(),
        }
    }

    pub fn start(self) -> Run {
        self.start_from(ResumePoint::default())
    }

    pub fn start_from(self, start: ResumePoint) -> Run {
        let environment = Arc::new(self.environment);
        let (service, record) = ServiceRecord::start(self.service, self.remember);
        let (training, in_flight) = match self.options.train.weights {
            SamplerWeights::Snapshot => (service.adapter(start.step), None),
            SamplerWeights::InFlight => {
                let (training, sampler) = service.adapter_in_flight(start.step);
                (training, Some(sampler))
            }
        };
        let queries = Arc::new(QueryBudget::new(self.limits));
        let component = |name: &str, weight: f64, environment: &Arc<ScriptedEnvironment>| MixtureComponent {
            name: name.into(),
            environment: environment.clone(),
            renderer: Arc::new(ScriptedRenderer),
            group_size: NonZeroU32::new(self.group_size).unwrap(),
            sampling: SamplingParams::plain(8),
            max_turns: self.max_turns,
            context: self.context,
            score_timeout: self.score_timeout,
            weight,
            evaluate_every: None,
        };
        let measured = Arc::new(self.measured);
        let mut components =
            vec![component("scripted", 1.0, &environment), component("measured", 0.0, &measured)];
        components.extend(self.rarely.map(|every| MixtureComponent {
            evaluate_every: Some(every),
            ..component("rarely", 0.0, &measured)
        }));
        let parts = PipelineParts {
            components,
            training: training.clone(),
            sampler: service.sampler(start.step),
            in_flight,
            logprob_source: self.judge,
            reference: self.reference.map(|version| scorer::ReferenceModel {
                sampler: service.sampler(version),
                context: Arc::default(),
            }),
            queries: queries.clone(),
            shadow: self.shadow.map(|(options, from)| ShadowSetup {
                options,
                service: service.clone(),
                from,
            }),
            pool: self.pool,
            meters: self.meters,
        };
        let line = Pipeline::start(&self.options, parts, start).unwrap();
        let (options, begun) = (self.options, Instant::now());
        let (steps, saved, trained, evaluations, quarantined) = Default::default();
        Run {
            line,
            options,
            environment,
            measured,
            service,
            record,
            training,
            queries,
            begun,
            steps,
            saved,
            evaluations,
            quarantined,
            trained,
        }
    }
}

/// A running line with all that was seen of it.
pub struct Run {
    pub line: Pipeline,
    pub options: PipelineOptions,
    pub environment: Arc<ScriptedEnvironment>,
    pub measured: Arc<ScriptedEnvironment>,
    pub service: Arc<SimulatedService>,
    pub record: Arc<ServiceRecord>,
    pub training: Arc<dyn TrainingBackend>,
    pub queries: Arc<QueryBudget>,
    begun: Instant,
    pub steps: Vec<CommittedStep>,
    pub saved: Vec<SavedCheckpoint>,
    pub evaluations: Vec<EvaluationRecord>,
    pub quarantined: Vec<QuarantinedRollout>,
    /// Groups of all steps.
    pub trained: BTreeSet<u64>,
}

impl Run {
    /// Follows the run to its end; the words of its failure, if it failed.
    pub async fn end(&mut self) -> Result<u64, String> {
        loop {
            let day = Duration::from_secs(24 * 3600);
            let event = tokio::time::timeout(day, self.line.next()).await.expect("the run hangs");
            if let Some(end) = self.take(event.expect("the run ends with an event")) {
                if end.is_ok() {
                    assert_eq!(self.line.ledger().counts().trained, self.trained.len() as u64);
                }
                assert!(self.line.next().await.is_none());
                return end;
            }
        }
    }

    /// Records an event and checks the ledger. Returns the result of the run if the event ended it.
    fn take(&mut self, event: PipelineEvent) -> Option<Result<u64, String>> {
        let mut end = None;
        match event {
            PipelineEvent::Step(step) => self.enter(*step),
            PipelineEvent::CheckpointSaved(saved) => self.saved.push(saved),
            PipelineEvent::Evaluated(evaluation) => self.evaluations.push(evaluation),
            PipelineEvent::Quarantined(quarantined) => self.quarantined.push(quarantined),
            PipelineEvent::Ended { step } => end = Some(Ok(step)),
            PipelineEvent::Failed(why) => end = Some(Err(why.to_string())),
        }
        self.check();
        end
    }

    /// Follows the run until the service has seen `count` requests. Returns whether it got there.
    pub async fn until_request(&mut self, count: usize) -> bool {
        let mut counts = self.service.counts();
        loop {
            let event = tokio::select! {
                biased;
                seen = counts.wait_for(|seen| seen.requests() >= count) => return seen.is_ok(),
                event = self.line.next() => event,
            };
            if let Some(end) = self.take(event.expect("the run goes on")) {
                end.unwrap();
                return false;
            }
        }
    }

    /// Ends it as a crash does: nothing more is heard of it. What the last saved state has behind it, and the groups
    /// that its steps had trained.
    pub fn kill(self) -> (ResumePoint, BTreeSet<u64>) {
        let Some(last) = self.saved.last() else { return Default::default() };
        let steps = self.steps.iter().filter(|step| step.record.step <= last.step);
        let trained = steps.flat_map(|step| step.groups.iter().map(|group| group.group.id.0)).collect();
        let start = ResumePoint {
            step: last.step,
            settled: last.settled.clone(),
            saved_groups: last.saved_groups.clone(),
            gradient_norms: last.gradient_norms.clone(),
            evaluated: false,
        };
        (start, trained)
    }

    /// Follows the run until it has done `count` steps.
    pub async fn until_step(&mut self, count: usize) {
        while self.steps.len() < count {
            let event = self.line.next().await.expect("the run goes on");
            if let Some(end) = self.take(event) {
                panic!("the run ended early: {end:?}");
            }
        }
    }

    /// Lets time pass.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
        self.check();
    }

    pub fn elapsed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    fn enter(&mut self, step: CommittedStep) {
        let expected = self.steps.last().map_or(step.record.step, |last| last.record.step + 1);
        assert_eq!(step.record.step, expected, "steps are reported in order");
        for group in &step.groups {
            let first = group.filtered || self.trained.insert(group.group.id.0);
            assert!(first, "{} was trained twice", group.group.id);
        }
        self.steps.push(step);
    }

    /// Compares the ledger with the environment and the events.
    pub fn check(&self) {
        let counts = self.line.ledger().counts();
        assert_eq!(counts.opened, self.environment.drawn.lock().unwrap().len() as u64, "items drawn");
        let settled = counts.trained + counts.filtered + counts.dropped + counts.failed;
        assert!(settled <= counts.opened, "{counts:?}");
        assert!(counts.opened - settled <= self.options.credits(), "{counts:?}");
        assert!(
            counts.trained >= self.trained.len() as u64,
            "a step was reported before the outcomes of its groups: {counts:?}"
        );
        assert!(self.trained.iter().all(|id| self.line.ledger().settled().contains(*id)));
    }

    /// One number of every step.
    pub fn metric(&self, name: &str) -> Vec<f64> {
        self.steps.iter().map(|step| step.record.numbers()[name]).collect()
    }

    /// Ids of the groups of every step.
    pub fn groups(&self) -> Vec<Vec<u64>> {
        self.steps.iter().map(|step| step.groups.iter().map(|g| g.group.id.0).collect()).collect()
    }

    pub fn calls(&self) -> Vec<String> {
        self.record.calls(0)
    }

    pub fn counts(&self) -> ServiceCounts {
        *self.service.counts().borrow()
    }
}
