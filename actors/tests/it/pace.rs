//! How groups become steps: in parts, in several optimizer steps, dropped when too old, published now and then.

use crate::testkit::{World, local, reward_in_every, seconds};
use minds_core::datum::LossInputs;
use minds_core::optim::{LearningRateDecay, LearningRateSchedule};
use minds_core::service::BackendError;
use minds_stages::batcher::{ConstantGroups, LossWeighting, StalenessHandling};
use std::num::NonZeroUsize;

fn size(n: usize) -> NonZeroUsize {
    n.try_into().unwrap()
}

/// `groups` groups per step, sent in `parts` minibatches, with `substeps` optimizer steps.
fn in_parts(groups: usize, parts: usize, substeps: usize, steps: u64) -> World {
    let mut world = World::new(groups, 1, steps);
    world.options.batch.minibatches = size(parts);
    world.options.train.substeps = size(substeps);
    world
}

#[tokio::test(start_paused = true)]
async fn minibatches_are_submitted_as_they_fill_and_a_step_follows_the_last() {
    for (parts, substeps, one_step) in [
        (1, 1, vec!["fb", "optim", "export -"]),
        (4, 1, vec!["fb", "fb", "fb", "fb", "optim", "export -"]),
        (4, 2, vec!["fb", "fb", "optim", "fb", "fb", "optim", "export -"]),
        (2, 2, vec!["fb", "optim", "fb", "optim", "export -"]),
    ] {
        local(async {
            let mut run = in_parts(4, parts, substeps, 3).start();
            assert_eq!(run.end().await, Ok(3));
            let calls = run.calls();
            let expected: Vec<&str> = one_step.iter().copied().cycle().take(3 * one_step.len()).collect();
            assert_eq!(calls[..expected.len()], expected, "{parts} parts, {substeps} steps");
            assert_eq!(run.line.ledger().counts().trained, 12);
            assert!(run.steps.iter().all(|step| step.groups.len() == 4));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_trains_while_the_rest_of_its_step_is_sampled() {
    // Groups of a step are ready after 10, 20, 30 and 40 s, and a pass takes 10 s, however large.
    for (parts, overlap) in [(1, 0.0), (4, 30.0)] {
        local(async {
            let mut world = in_parts(4, parts, 1, 1);
            world.service.sample_delay = Box::new(|n| seconds(10 * (n as u64 + 1)));
            world.service.forward_backward = seconds(10).into();
            let mut run = world.start();
            run.end().await.unwrap();
            let shares = run.line.observer().activity.shares();
            assert!((shares.overlap - overlap).abs() < 0.1, "{parts} parts: {shares:?}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_minibatch_costs_only_its_own_groups() {
    local(async {
        let mut world = in_parts(2, 2, 1, 2);
        world.service.on_pass = Box::new(|n, _| match n {
            1 => Err(BackendError::Rejected("not finite".into())),
            _ => Ok(()),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(2));
        assert_eq!(run.groups(), [vec![0], vec![2, 3]]);
        let counts = run.line.ledger().counts();
        assert_eq!((counts.trained, counts.failed), (3, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn groups_that_are_too_stale_are_dropped_counted_and_resampled() {
    for seed in 0..20 {
        local(async {
            let mut world = World::new(2, 3, 20);
            world.options.batch.staleness = StalenessHandling::Drop;
            world.options.max_staleness = 1;
            world.service.sample_delay =
                Box::new(move |n| seconds(if (n + seed).is_multiple_of(7) { 100 } else { 5 }));
            world.service.forward_backward = seconds(10).into();
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(20));
            let oldest = run.metric("async/staleness_max");
            assert!(oldest.iter().all(|age| *age <= 1.0), "{oldest:?}");
            let counts = run.line.ledger().counts();
            assert!(counts.dropped > 0 && counts.trained == 40 && counts.failed == 0, "{counts:?}");
            // What was dropped came again, and nothing was opened twice for any other reason.
            let drawn = run.environment.drawn.lock().unwrap().len() as u64;
            assert_eq!(drawn, counts.trained + counts.dropped + counts.in_flight());
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_empty_step_is_made_when_all_groups_are_too_stale() {
    local(async {
        let mut world = World::new(2, 2, 4);
        world.options.batch.staleness = StalenessHandling::Drop;
        world.options.max_staleness = 0;
        world.service.forward_backward = seconds(10).into();
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(4));
        assert_eq!(run.metric("async/staleness_max"), [0.0; 4]);
        assert!(run.record.data().iter().all(|data| data.len() == 4));
        assert!(run.line.ledger().counts().dropped >= 4);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn refused_batches_do_not_add_staleness() {
    local(async {
        let mut world = World::new(1, 1, 10);
        world.options.batch.staleness = StalenessHandling::Drop;
        world.service.on_pass = Box::new(|n, _| match n % 2 {
            0 => Err(BackendError::Rejected("not finite".into())),
            _ => Ok(()),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(10));
        let counts = run.line.ledger().counts();
        assert_eq!((counts.trained, counts.failed), (10, 10));
        assert!(counts.dropped <= 2, "{counts:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn weights_can_be_published_every_few_steps_only() {
    local(async {
        let mut world = World::new(1, 0, 6);
        world.options.train.publish_every = 3.try_into().unwrap();
        world.options.max_staleness = 2;
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(6));
        assert_eq!(run.metric("async/staleness_max"), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
        assert_eq!(run.calls().iter().filter(|call| *call == "export -").count(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_member_is_resampled_with_other_seeds() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.group_size = 3;
        world.options.resamples = 2;
        // The group's request returns a broken sample for its second member; so does the first retry.
        world.service.on_sample = Box::new(|n, _, sequences| {
            if n < 2 {
                sequences[usize::from(n == 0)].logprobs[0] = f32::NAN;
            }
            Ok(())
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(1));
        let group = &run.steps[0].groups[0];
        assert_eq!((group.members.len(), group.missing), (3, 0));
        let asked = run.record.asked();
        assert_eq!(asked.iter().map(|a| a.samples).collect::<Vec<_>>(), [3, 1, 1]);
        assert!(asked[0].seed != asked[1].seed && asked[1].seed != asked[2].seed);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn constant_groups_can_take_their_place_and_leave_as_filtered() {
    local(async {
        let mut world = World::new(2, 0, 3);
        world.options.batch.constant = ConstantGroups::Drop;
        world.environment.judge = reward_in_every(2);
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(3));
        let counts = run.line.ledger().counts();
        assert_eq!((counts.opened, counts.trained, counts.filtered), (6, 3, 3));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_sequence_can_count_as_much_as_any_other() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.options.batch.weighting = LossWeighting::Sequence;
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(1));
        // Rewards 0 and 1, so advantages of a half, over the two tokens of each answer.
        let data = run.record.data();
        for (datum, expected) in data[0].iter().zip([-0.25, 0.25]) {
            let LossInputs::Policy { advantages, .. } = datum.inputs() else { panic!("a policy loss") };
            let given: Vec<f32> = advantages.iter().copied().filter(|a| *a != 0.0).collect();
            assert_eq!(given, [expected; 2]);
        }
        assert_eq!(run.steps[0].groups[0].members[1].advantage, 0.5, "the record holds the advantage itself");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_step_size_follows_its_course() {
    local(async {
        let mut world = World::new(1, 0, 4);
        world.options.train.adam.learning_rate = 1.0;
        world.options.train.rate =
            LearningRateSchedule { decay: LearningRateDecay::Linear, warmup: 1, floor: 0.0 };
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(run.metric("optim/lr"), [1.0, 1.0, 1.0 - 1.0 / 3.0, 1.0 - 2.0 / 3.0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_kl_alarm_fires_when_trained_logprobs_leave_the_sampled_ones() {
    // The script samples with -0.5 and -0.25 and trains with -0.5: half the mean square is (0 + 0.0625) / 4.
    for (limit, expected) in [(0.015, 1.0), (0.016, 0.0)] {
        local(async {
            let mut world = World::new(1, 0, 1);
            world.options.train.kl_alarm = Some(limit);
            let mut run = world.start();
            run.end().await.unwrap();
            assert_eq!(run.metric("optim/kl_alarm"), [expected]);
        })
        .await;
    }
}
