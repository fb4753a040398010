//! Shadow adapters measure one gradient step.

use crate::testkit::{ServiceRecord, World, local, seconds};
use minds_core::datum::{Datum, LossInputs};
use minds_core::environment::{AdapterLease, LogprobDelta};
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::reward::RewardError;
use minds_core::service::{BackendError, ForwardOutput, Service};
use minds_simulation::{ServiceCounts, SimulatedService, SimulationOptions};
use minds_stages::mailbox::{MailboxSender, StageHandle, launch, mailbox};
use minds_stages::pipeline::ShadowStart;
use minds_stages::policy::{AdapterLeaseRequest, LogprobDeltaRequest, QueryBudget, ShadowCheckpoints};
use minds_stages::service::retry::Retry;
use minds_stages::shadow::{ShadowTrainer, ShadowTrainerOptions};
use minds_stages::telemetry::StageBoard;
use minds_stages::telemetry::activity::Activity;
use minds_stages::telemetry::meters::PipelineMeters;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::sync::oneshot;

fn shadow_options(adapters: NonZeroUsize) -> ShadowTrainerOptions {
    let lora = LoraSpec::all_linear(8, 1);
    ShadowTrainerOptions { adapters, lora, adam: AdamParams::default(), retry: Retry::default() }
}

struct Shadows {
    service: Arc<SimulatedService>,
    record: Arc<ServiceRecord>,
    measures: MailboxSender<LogprobDeltaRequest>,
    leases: MailboxSender<AdapterLeaseRequest>,
    pool: ShadowTrainer,
    _stage: StageHandle,
}

impl Shadows {
    fn start(adapters: usize, options: SimulationOptions) -> Self {
        let (service, record) = ServiceRecord::start(options, true);
        let adapters = NonZeroUsize::new(adapters).unwrap();
        let retry = Retry { retries: 0, ..Retry::default() };
        let options = ShadowTrainerOptions { retry, ..shadow_options(adapters) };
        let (shadow_checkpoints, queries) = (ShadowCheckpoints::new(service.clone()), QueryBudget::default());
        let (board, activity) = (StageBoard::default(), Activity::default());
        let pool = ShadowTrainer::new(
            options,
            service.clone(),
            shadow_checkpoints,
            &queries,
            board,
            activity,
            &PipelineMeters::default().service,
        );
        let stage = pool.clone();
        let (measures, receiver) = mailbox("measures", NonZeroUsize::new(8).unwrap());
        let capacity = NonZeroUsize::new(8).unwrap();
        let (leases, to_leases) = mailbox("adapter_leases", capacity);
        let stage = launch(
            "shadow_trainer",
            capacity,
            0,
            move || stage.clone(),
            move |a| {
                receiver.bind(a);
                to_leases.bind(a);
            },
        );
        Self { service, record, measures, leases, pool, _stage: stage }
    }

    async fn borrow(&self) -> Result<AdapterLease, RewardError> {
        let (reply, answer) = oneshot::channel();
        assert!(self.leases.send(AdapterLeaseRequest { origin: None, reply }).await.is_ok());
        answer.await.unwrap()
    }

    async fn measure(&self) -> Result<LogprobDelta, RewardError> {
        let (reply, answer) = oneshot::channel();
        let text = Datum::new(vec![1, 2], vec![2, 3], LossInputs::Weights(vec![0.0, 1.0])).unwrap();
        let (probe_prefix, probe_target) = ([5, 6].into(), [7, 8].into());
        let (origin, asked) = (None, tokio::time::Instant::now());
        let measure = LogprobDeltaRequest { origin, text, probe_prefix, probe_target, asked, reply };
        assert!(self.measures.send(measure).await.is_ok());
        answer.await.unwrap()
    }

    fn counts(&self) -> ServiceCounts {
        *self.service.counts().borrow()
    }
}

/// Two target tokens at -1 before the step and -1/2 after it.
const EXPECTED: LogprobDelta = LogprobDelta { before: -2.0, after: -1.0 };

#[tokio::test(start_paused = true)]
async fn measurements_share_a_pool_that_never_outgrows_its_size() {
    local(async {
        let forward_backward = seconds(10).into();
        let shadows =
            Shadows::start(2, SimulationOptions { forward_backward, ..SimulationOptions::default() });
        let begun = tokio::time::Instant::now();
        let all = futures::future::join_all((0..5).map(|_| shadows.measure())).await;
        assert_eq!(all, vec![Ok(EXPECTED); 5], "each from the start, whatever was measured before");
        let elapsed = begun.elapsed().as_secs_f64();
        assert!((elapsed - 30.0).abs() < 0.1, "five on two adapters take three rounds: {elapsed} s");
        let counts = shadows.counts();
        assert_eq!((counts.adapters, counts.most_adapters), (2, 2));
        assert_eq!(counts.queries, 1 + 5, "the probe is measured once before and after every step");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_adapter_is_saved_once_and_reset_before_every_measurement() {
    local(async {
        let shadows = Shadows::start(1, SimulationOptions::default());
        let trained = shadows.service.create_training(LoraSpec::all_linear(8, 1)).await.unwrap();
        drop(trained.optim_step(AdamParams::default()));
        for _ in 0..2 {
            assert_eq!(shadows.measure().await, Ok(EXPECTED));
        }
        assert_eq!(shadows.record.calls(0), ["optim"], "the adapter in training is left alone");
        let round = ["load tinker://simulated-1/weights/shadow-start false", "fb", "optim", "export -"];
        let expected = [&["save shadow-start", "export -"][..], &round, &round].concat();
        let calls = || shadows.record.calls(1);
        assert_eq!(calls(), expected);
        assert_eq!(shadows.service.saved().len(), 1);
        shadows.pool.close().await;
        assert_eq!(calls().last().unwrap(), "release", "its place on the service is free again");
        assert!(shadows.service.saved().is_empty(), "and nothing of it is kept");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_missing_and_a_broken_adapter_is_replaced() {
    local(async {
        let refuse = |n, _: &mut ForwardOutput| match n {
            0 => Err(BackendError::Rejected("too long".into())),
            1 => Err(BackendError::Lost("gone".into())),
            _ => Ok(()),
        };
        let on_pass = Box::new(refuse);
        let shadows = Shadows::start(1, SimulationOptions { on_pass, ..SimulationOptions::default() });
        let refused = shadows.measure().await;
        assert!(matches!(&refused, Err(RewardError::Refused(why)) if why == "too long"), "{refused:?}");
        // Counted per adapter: the next pass of the same adapter is number 1.
        let lost = shadows.measure().await;
        assert!(matches!(&lost, Err(RewardError::Service(why)) if why == "gone"), "{lost:?}");
        assert_eq!(shadows.counts().adapters, 1, "a refused text has not harmed it");
        let refused = shadows.measure().await;
        assert!(matches!(refused, Err(RewardError::Refused(_))), "a new adapter counts anew");
        let counts = shadows.counts();
        assert_eq!((counts.adapters, counts.most_adapters), (2, 1), "one at a time");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_shadow_adapter_that_never_answers_fails_by_name() {
    local(async {
        let silent = SimulationOptions { answers_passes: false, ..SimulationOptions::default() };
        let shadows = Shadows::start(1, silent);
        let hung = shadows.measure().await;
        assert!(matches!(&hung, Err(RewardError::Away(why)) if why.contains("forward_backward")), "{hung:?}");
    })
    .await;
}

/// A scripted step takes every logprob from -1 to -1/2.
#[tokio::test(start_paused = true)]
async fn rewards_ask_what_a_step_would_change_and_the_adapter_in_training_is_left_alone() {
    local(async {
        for adapters in [0, 2] {
            let mut world = World::new(2, 1, 3);
            world.environment.shifts = true;
            world.shadow =
                NonZeroUsize::new(adapters).map(|adapters| (shadow_options(adapters), ShadowStart::Base));
            let mut run = world.start();
            let ended = run.end().await;
            if adapters == 0 {
                let why = ended.unwrap_err();
                assert!(why.contains("nothing in this run can answer"), "{why}");
                continue;
            }
            ended.unwrap();
            let members = run.steps.iter().flat_map(|s| &s.groups).flat_map(|g| g.members.iter());
            assert!(members.map(|m| m.score.reward.get()).all(|reward| (reward - 0.5).abs() < 1e-6));
            assert!(run.counts().adapters <= 1 + adapters);
            let passes = run.calls().iter().filter(|call| *call == "fb").count();
            assert_eq!(
                passes, 0,
                "all groups are constant: nothing was trained, and no shadow's pass went here"
            );
            assert!(run.queries.deltas() >= 3 * 2 * 2);
        }
    })
    .await;
}

/// Weights with n steps behind them give every token -1 / (n + 1), and a step adds one.
#[tokio::test(start_paused = true)]
async fn a_measurement_starts_from_the_version_that_sampled() {
    local(async {
        let mut world = World::new(2, 1, 6);
        world.environment.shifts = true;
        world.options.train.save_every = 4;
        world.service.forward_backward = seconds(3).into();
        // Members differ, so that there is something to train.
        world.environment.judge_shift = true;
        let options = shadow_options(NonZeroUsize::new(2).unwrap());
        world.shadow = Some((options, ShadowStart::Policy { saved: None }));
        let mut run = world.start();
        run.end().await.unwrap();
        let mut versions = BTreeSet::new();
        for member in run.steps.iter().flat_map(|s| &s.groups).flat_map(|g| g.members.iter()) {
            let version = member.rollout.policy.0;
            let expected = 1.0 / (version + 1) as f64 - 1.0 / (version + 2) as f64;
            assert!((member.score.metrics["change"] - expected).abs() < 1e-6, "{version}: {member:?}");
            versions.insert(version);
        }
        assert!(versions.len() >= 3, "{versions:?}");
        assert!(run.counts().most_adapters <= 1 + 2);
        assert!(run.metric("shadow/measured").iter().sum::<f64>() > 0.0);

        let calls = run.calls();
        let saves: Vec<_> = calls.iter().filter(|call| call.starts_with("save ")).cloned().collect();
        assert!(saves.starts_with(&["save 000000-shadow".into(), "save 000001-shadow".into()]), "{saves:?}");
        assert!(!saves.contains(&"save 000004-shadow".into()), "a checkpoint serves both: {saves:?}");
        let service = run.service.clone();
        let kept = || -> Vec<String> {
            let names = service
                .saved()
                .into_iter()
                .filter_map(|path| path.strip_prefix("tinker://simulated-0/weights/").map(str::to_owned));
            names.collect()
        };
        assert!(!kept().contains(&"000000-shadow".into()), "swept during the run: {:?}", kept());
        run.line.close().await;
        assert_eq!(kept(), ["000004", "000006-final"], "what stays are the checkpoints");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_leased_adapter_occupies_a_slot_until_dropped_and_returns_clean() {
    local(async {
        let shadows = Shadows::start(1, SimulationOptions::default());
        let borrowed = shadows.borrow().await.unwrap();
        let text = Datum::new(vec![1, 2], vec![2, 3], LossInputs::Weights(vec![0.0, 1.0])).unwrap();
        borrowed.training.forward_backward(vec![text], Loss::CrossEntropy).await.unwrap();
        let waiting = tokio::time::timeout(seconds(60), shadows.measure()).await;
        assert!(waiting.is_err(), "the only place is taken");
        drop(borrowed);
        // The gradients that were left behind would be in this step if they had not been used up.
        assert_eq!(shadows.measure().await, Ok(EXPECTED));
        assert_eq!(shadows.counts().adapters, 1, "it is the same adapter");
        let calls = shadows.record.calls(0);
        let left = calls.iter().position(|call| call.starts_with("fb")).unwrap();
        assert!(calls[left + 1].starts_with("optim"), "{calls:?}");
    })
    .await;
}
