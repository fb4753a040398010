//! The trainer: order of requests, refusals, batches without signal, the end.

use crate::testkit::{Judge, World, local, reward_by_member, reward_in_every, seconds};
use minds_core::advantage::Estimator;
use minds_core::datum::{LossInputs, SpanSource};
use minds_core::loss::Loss;
use minds_core::service::BackendError;
use minds_simulation::RequestProgress;
use minds_stages::batcher::ConstantGroups;
use minds_stages::pipeline::ResumePoint;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn rejected() -> Result<(), BackendError> {
    Err(BackendError::Rejected("not finite".into()))
}

#[tokio::test(start_paused = true)]
async fn a_refused_batch_leaves_step_and_version_and_the_next_one_trains() {
    local(async {
        let mut world = World::new(1, 0, 3);
        world.service.on_pass = Box::new(|n, _| if n == 1 { rejected() } else { Ok(()) });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(3));
        assert_eq!(run.groups(), [[0], [2], [3]]);
        let counts = run.line.ledger().counts();
        assert_eq!((counts.opened, counts.trained, counts.failed), (4, 3, 1));
        assert!(run.line.ledger().failures().unwrap().0.contains("the batch was refused"));
        let policies: Vec<u64> = run.steps.iter().map(|s| s.groups[0].members[0].rollout.policy.0).collect();
        assert_eq!(policies, [0, 1, 2], "group 2 was not sampled by the newest weights");
        assert_eq!(run.metric("async/staleness_max"), [0.0; 3]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn refused_batches_have_a_limit_of_their_own() {
    local(async {
        let mut world = World::new(2, 0, 3);
        world.options.max_failed_in_a_row = 2; // no more than the groups of one refused batch
        world.service.on_pass = Box::new(|_, _| rejected());
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("3 batches in a row were refused") && why.contains("not finite"), "{why}");
        assert_eq!(run.calls().iter().filter(|c| *c == "fb").count(), 3);
        assert_eq!(run.line.ledger().counts().failed, 6);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_refused_where_a_checkpoint_was_due_does_not_use_up_its_name() {
    local(async {
        let mut world = World::new(1, 0, 2);
        world.options.train.save_every = 1;
        world.service.on_pass = Box::new(|n, _| if n == 1 { rejected() } else { Ok(()) });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(2));
        let names: Vec<&str> = run.saved.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["000001", "000002-1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_optimizer_step_is_a_refused_batch_and_the_next_one_trains() {
    local(async {
        let mut world = World::new(1, 0, 3);
        world.service.on_step = Box::new(|n, _| if n == 1 { rejected() } else { Ok(()) });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(3));
        assert_eq!(run.groups(), [[0], [2], [3]]);
        let counts = run.line.ledger().counts();
        assert_eq!((counts.opened, counts.trained, counts.failed), (4, 3, 1));
        assert_eq!(run.line.ledger().refused_batches(), 1);
        assert!(run.line.ledger().failures().unwrap().0.contains("the batch was refused"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn of_a_batch_of_two_steps_only_the_groups_of_the_refused_one_fail() {
    local(async {
        let mut world = World::new(2, 0, 2);
        world.options.batch.minibatches = NonZeroUsize::new(2).unwrap();
        world.options.train.substeps = NonZeroUsize::new(2).unwrap();
        world.service.on_step = Box::new(|n, _| if n == 1 { rejected() } else { Ok(()) });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(2));
        assert_eq!(run.groups(), [vec![0], vec![2, 3]]);
        let counts = run.line.ledger().counts();
        assert_eq!((counts.opened, counts.trained, counts.failed), (4, 3, 1));
        assert_eq!(run.line.ledger().refused_batches(), 0, "its first step was made");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_optimizer_step_that_fails_ends_the_run_because_its_gradients_may_stay() {
    local(async {
        let mut world = World::new(1, 0, 3);
        let failed = || Err(BackendError::Unavailable("a bug".into()));
        world.service.on_step = Box::new(move |n, _| if n == 1 { failed() } else { Ok(()) });
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("the optimizer's step failed"), "{why}");
        assert_eq!(run.steps.len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_and_a_failed_export_end_the_run_with_the_cause() {
    local(async {
        let mut world = World::new(1, 1, 3);
        world.service.on_pass = Box::new(|_, _| Err(BackendError::Lost("gone".into())));
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("the training session is lost: gone"), "{why}");
        let (first, ..) = run.line.ledger().failures().unwrap();
        assert!(first.contains("gone"), "the group's own verdict names the cause: {first}");

        let mut world = World::new(1, 1, 3);
        world.service.on_export = Box::new(|n, _| if n == 1 { rejected() } else { Ok(()) });
        let why = world.start().end().await.unwrap_err();
        assert!(
            why.contains("failed to export the weights of step 2") && why.contains("not finite"),
            "{why}"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn requests_go_out_in_the_order_step_export_save_and_only_then_the_next_step() {
    local(async {
        let mut world = World::new(2, 1, 5);
        world.options.train.save_every = 2;
        let mut run = world.start();
        run.end().await.unwrap();
        let plain = ["fb", "optim", "export -"].map(String::from);
        let kept = |n: u32| ["fb".into(), "optim".into(), format!("export {n:06}"), format!("save {n:06}")];
        let last = ["save 000005-final", "export 000005-final"].map(String::from);
        let expected = [&plain[..], &kept(2), &plain, &kept(4), &plain, &last].concat();
        assert_eq!(run.calls(), expected);
        let saved: Vec<_> =
            run.saved.iter().map(|s| (s.name.as_str(), s.step, s.state_path.as_str())).collect();
        assert_eq!(
            saved,
            [
                ("000002", 2, "tinker://simulated-0/weights/000002"),
                ("000004", 4, "tinker://simulated-0/weights/000004"),
                ("000005-final", 5, "tinker://simulated-0/weights/000005-final")
            ]
        );
        let sampler = |name: &str| Some(format!("tinker://simulated-0/sampler_weights/{name}"));
        assert!(run.saved.iter().all(|s| s.sampler_path == sampler(&s.name)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_next_batch_is_submitted_while_the_export_is_still_being_made() {
    local(async {
        let mut world = World::new(1, 1, 3);
        world.service.forward_backward = seconds(10).into();
        world.service.export = seconds(20).into();
        let run = world.start();
        run.pass(seconds(15)).await;
        assert_eq!(run.calls(), ["fb", "optim", "export -", "fb", "optim", "export -"]);
        assert_eq!(run.line.ledger().counts().trained, 0, "the first weights are not out yet");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_without_signal_counts_as_a_step_but_moves_no_weights() {
    local(async {
        let mut world = World::new(2, 1, 3);
        world.environment.judge = Box::new(|_, _| Judge::Reward(0.1));
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(3));
        assert!(run.calls().iter().all(|call| call != "fb" && call != "optim"), "{:?}", run.calls());
        assert_eq!(run.metric("optim/stepped"), [0.0; 3]);
        assert_eq!(run.line.ledger().counts().trained, 6);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn constant_groups_can_be_replaced_by_others() {
    local(async {
        let mut world = World::new(2, 0, 3);
        world.options.batch.constant = ConstantGroups::Replace;
        world.environment.judge = reward_in_every(3);
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(3));
        assert!(run.trained.iter().all(|id| id % 3 == 0));
        let counts = run.line.ledger().counts();
        assert!(counts.trained == 6 && counts.filtered >= 10 && counts.failed == 0, "{counts:?}");
        assert!(run.steps.iter().all(|step| step.groups.len() == 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_group_of_one_trains_only_without_a_baseline() {
    for (estimator, passes) in [(Estimator::GroupMean, 0), (Estimator::None, 2)] {
        local(async {
            let mut world = World::new(1, 0, 2);
            world.group_size = 1;
            world.options.batch.estimator = estimator;
            world.environment.judge = Box::new(|_, _| Judge::Reward(0.5));
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(2));
            let data = run.record.data();
            assert_eq!(data.len(), passes, "{estimator:?}");
            for datum in data.iter().flatten() {
                let LossInputs::Policy { advantages, .. } = datum.inputs() else { panic!("{datum:?}") };
                assert!(advantages.ends_with(&[0.5, 0.5]), "{advantages:?}");
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn samples_are_recorded_and_named_in_the_data_of_a_loss_that_needs_it() {
    for loss in [Loss::StableReinforce { kl_coeff: None }, Loss::Gspo { low: 0.8, high: 1.2 }] {
        local(async {
            let mut world = World::new(1, 0, 2);
            world.options.train.loss = loss;
            world.environment.judge = reward_by_member();
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(2));
            let data = run.record.data();
            assert!(data.iter().all(|data| !data.is_empty()), "{data:?}");
            let mut names = BTreeSet::new();
            for datum in data.iter().flatten() {
                // `a.` is sampled.
                let sampled = (0..datum.len()).filter(|t| datum.is_sampled(*t)).count();
                assert_eq!((sampled, datum.provenance().is_some()), (2, loss.needs_provenance()), "{loss:?}");
                let Some(provenance) = datum.provenance() else { continue };
                let last = provenance.targets.last().unwrap();
                assert_eq!((last.source, last.offset, last.length), (SpanSource::Sample, 0, 2));
                names.insert(last.sequence_id.clone());
            }
            let expected = if loss.needs_provenance() { data.iter().flatten().count() } else { 0 };
            assert_eq!(names.len(), expected, "every datum has a sample of its own");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_resumed_at_its_last_step_ends_at_once() {
    local(async {
        let start = ResumePoint { step: 3, ..ResumePoint::default() };
        let mut run = World::new(2, 1, 3).start_from(start);
        assert_eq!(run.end().await, Ok(3));
        assert!(run.calls().is_empty());
        assert_eq!(run.line.ledger().counts().opened, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_stage_ends_the_run_with_its_message() {
    local(async {
        let mut world = World::new(2, 1, 9);
        world.environment.broken_item = Some(3);
        let why = world.start().end().await.unwrap_err();
        assert!(why.contains("the feeder panicked") && why.contains("no such item"), "{why}");

        let mut world = World::new(2, 1, 9);
        let passes = AtomicUsize::new(0);
        world.service.observer = Box::new(move |request, progress| {
            let arrives = progress == RequestProgress::Arrived && request.name() == "forward_backward";
            assert!(!arrives || passes.fetch_add(1, Relaxed) < 2, "no such pass");
        });
        let why = world.start().end().await.unwrap_err();
        assert!(why.contains("the trainer panicked") && why.contains("no such pass"), "{why}");
    })
    .await;
}
