//! Faults that users of other systems of this kind have reported, each as a small run that would show it here.
//!
//! The name of a test begins with the kind of the fault: a silent death, a wait cycle, a leak of credits, a resume that
//! loses or repeats, a poisoned item, a broken group, a number that is none, a buffer that loses, a missing time limit,
//! an end of data, a wrong score in silence. Wrong versions are looked for in `flow.rs` and `pace.rs`, other resumes in
//! `kills.rs`.

use crate::testkit::{Judge, World, local, reward_in_every, seconds};
use minds_core::advantage::Estimator;
use minds_core::backend::BackendError;
use minds_core::reward::{Missing, Reward};
use minds_stages::batcher::ConstantGroups;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn silent_death_a_reward_that_always_fails_ends_the_run_with_its_cause() {
    local(async {
        let mut world = World::new(2, 1, 50);
        world.options.max_failed_in_a_row = 12;
        world.environment.judge =
            Box::new(|_, _| Judge::Missing(Missing::Environment("the judge has no model".into())));
        let why = world.start().end().await.unwrap_err();
        assert!(why.contains("the judge has no model"), "{why}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn missing_limit_rewards_that_never_come_hold_no_step() {
    local(async {
        let mut world = World::new(4, 2, 100);
        world.group_size = 4;
        world.environment.judge = Box::new(|id, _| match (id.group.0 * 4 + u64::from(id.member)) % 50 {
            7 => Judge::Never,
            _ => Judge::Reward(id.member as f32),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(100));
        let missing: u32 = run.steps.iter().flat_map(|step| &step.groups).map(|group| group.missing).sum();
        assert_eq!(missing, 32, "2 % of 1600 rollouts");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn wait_cycle_one_rollout_a_thousand_times_slower_wedges_nothing_also_after_a_restart() {
    local(async {
        let slow = || {
            let mut world = World::new(2, 1, 12);
            world.options.train.save_every = 1;
            world.sampling.latency =
                Box::new(|n| if n == 5 { seconds(500) } else { Duration::from_millis(500) });
            world
        };
        let mut run = slow().start();
        run.until_step(2).await;
        let (start, _) = run.kill();
        let mut run = slow().start_from(start);
        assert_eq!(run.end().await, Ok(12));
        assert!(run.metric("async/staleness_max").iter().all(|age| *age <= 1.0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn end_of_data_a_run_longer_than_its_items_goes_round() {
    local(async {
        // The environment has 1000 items.
        let mut run = World::new(4, 1, 300).start();
        assert_eq!(run.end().await, Ok(300));
        let drawn = run.environment.drawn.lock().unwrap();
        let cycle: std::collections::BTreeSet<u64> = drawn[..1000].iter().copied().collect();
        assert_eq!((cycle.len(), drawn.len()), (1000, 1200), "each item once before any comes again");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn resume_with_a_whole_batch_already_collected_goes_on() {
    local(async {
        let quick = || {
            let mut world = World::new(2, 1, 10);
            world.options.train.save_every = 1;
            world.training.forward_backward = seconds(5);
            world
        };
        let mut run = quick().start();
        run.until_step(4).await;
        while run.saved.len() < 3 {
            let next = *run.sampling.requests.borrow() + 1;
            assert!(run.until_request(next).await);
        }
        let (start, _) = run.kill();
        assert_eq!(start.spares.len(), 2, "exactly a batch");
        let step = start.step;
        let mut run = quick().start_from(start);
        assert_eq!(run.end().await, Ok(10));
        assert_eq!(run.steps.len() as u64, 10 - step);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn credits_do_not_leak_when_half_of_the_groups_are_filtered() {
    local(async {
        let mut world = World::new(2, 1, 200);
        world.options.batch.constant = ConstantGroups::Replace;
        world.environment.judge = reward_in_every(2);
        // The books are checked at every event: never more than the credits are out, and the run would starve if fewer
        // and fewer were.
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(200));
        let counts = run.line.ledger().counts();
        assert!(counts.filtered >= 395 && counts.trained == 400, "{counts:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn buffer_a_slow_trainer_loses_nothing_that_was_sampled() {
    local(async {
        let mut world = World::new(2, 3, 30);
        world.group_size = 4;
        world.training.forward_backward = seconds(60);
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(30));
        let sampled: usize = run.sampling.asked.lock().unwrap().iter().map(|asked| asked.samples).sum();
        let trained: usize =
            run.steps.iter().flat_map(|step| &step.groups).map(|group| group.members.len()).sum();
        assert_eq!((sampled, trained), (240, 240));
        assert!(run.line.lanes().iter().all(|lane| lane.lost == 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn group_one_lost_member_costs_that_member() {
    local(async {
        let mut world = World::new(4, 1, 100);
        world.group_size = 8;
        world.options.batch.min_members = 6.try_into().unwrap();
        // One member of twenty is lost, spread over the groups.
        world.environment.judge = Box::new(|id, _| match (id.group.0 * 8 + u64::from(id.member)) % 20 {
            3 => Judge::Missing(Missing::Environment("the sandbox is gone".into())),
            _ => Judge::Reward(id.member as f32),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(100));
        let members: usize =
            run.steps.iter().flat_map(|step| &step.groups).map(|group| group.members.len()).sum();
        assert_eq!(members, 100 * 4 * 8 * 19 / 20);
        assert_eq!(run.line.ledger().counts().failed, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn group_a_rollout_without_a_token_is_no_datum() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.group_size = 4;
        world.sampling.answer = Box::new(|_, sequences| {
            sequences[2].tokens.clear();
            sequences[2].logprobs.clear();
            Ok(())
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(1));
        let group = &run.steps[0].groups[0];
        assert_eq!((group.members.len(), group.missing), (3, 1));
        assert_eq!(run.training.data.lock().unwrap()[0].len(), 3);
    })
    .await;
}

#[test]
fn numbers_advantages_are_normalised_once() {
    let advantages = |scale: f32| {
        let rewards: Vec<Reward> = [0.0, 1.0, 4.0].map(|r| Reward::new(r * scale).unwrap()).into();
        Estimator::GroupStd.advantages(&rewards)
    };
    // Rewards 0, 1, 4: mean 5/3, deviations -5/3, -2/3, 7/3, their root mean square sqrt(26)/3.
    let root = 26f32.sqrt();
    for (found, expected) in advantages(1.0).into_iter().zip([-5.0 / root, -2.0 / root, 7.0 / root]) {
        assert!((found - expected).abs() < 1e-6);
    }
    for (one, ten) in advantages(1.0).into_iter().zip(advantages(10.0)) {
        assert!((one - ten).abs() < 1e-6, "the scale of rewards does not matter");
    }
}

#[tokio::test(start_paused = true)]
async fn numbers_logprobs_that_are_none_cost_their_member_and_reach_no_optimizer() {
    for broken in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY] {
        local(async {
            let mut world = World::new(1, 0, 3);
            world.group_size = 4;
            world.sampling.answer = Box::new(move |_, sequences| {
                sequences[1].logprobs[1] = broken;
                Ok(())
            });
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(3));
            assert!(run.steps.iter().all(|step| step.groups[0].missing == 1));
            assert!(run.steps.iter().all(|step| step.metrics.values().all(|value| value.is_finite())));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn silent_score_a_reward_that_panics_is_missing_and_not_zero() {
    local(async {
        let mut world = World::new(1, 0, 2);
        world.group_size = 4;
        world.environment.judge = Box::new(|id, _| match id.member {
            0 => Judge::Panic("signal only works in main thread"),
            n => Judge::Reward(n as f32),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(2));
        for group in run.steps.iter().flat_map(|step| &step.groups) {
            // 1, 2, 3 without a zero: the mean is 2.
            let advantages: Vec<f32> = group.members.iter().map(|member| member.advantage).collect();
            assert_eq!(advantages, [-1.0, 0.0, 1.0]);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn missing_limit_a_slow_judge_does_not_hold_a_batch_that_is_full_without_it() {
    local(async {
        let mut world = World::new(2, 3, 4);
        world.score_timeout = seconds(1000);
        world.environment.latency =
            Box::new(|id, _| seconds(if id.group.0 == 1 && id.member == 0 { 300 } else { 1 }));
        let mut run = world.start();
        run.until_step(1).await;
        assert!(run.elapsed() < 10.0, "the first step took {} s", run.elapsed());
        assert_eq!(run.groups(), [[0, 2]]);
        assert_eq!(run.end().await, Ok(4));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn missing_limit_a_sampler_that_never_answers_for_one_version_is_given_up_by_its_name() {
    local(async {
        let mut world = World::new(1, 0, 5);
        world.options.max_failed_in_a_row = 3;
        // The base answers; the weights after the first step never do.
        world.sampling.latency = Box::new(|n| if n == 0 { Duration::ZERO } else { seconds(100_000) });
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("sample was not answered within 600 s"), "{why}");
        assert_eq!(run.steps.len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn poison_a_burst_of_refusals_for_load_loses_nothing() {
    local(async {
        let mut world = World::new(2, 1, 50);
        world.options.retry.retries = 5;
        // Of every ten requests three in a row are refused for load.
        world.sampling.answer = Box::new(|n, _| match n % 10 {
            4..7 => Err(BackendError::Unavailable("429".into())),
            _ => Ok(()),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(50));
        let counts = run.line.ledger().counts();
        assert_eq!((counts.trained, counts.failed), (100, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn silent_score_the_trainer_is_idle_for_samples_and_not_for_its_own_work() {
    local(async {
        let mut world = World::new(1, 0, 5);
        world.sampling.latency = Box::new(|_| seconds(7));
        world.training.forward_backward = seconds(3);
        world.training.export = seconds(2);
        let mut run = world.start();
        run.end().await.unwrap();
        // Strictly on policy: 7 s of sampling for the first step, 2 s of export and 7 s of sampling for the others.
        let idle = run.metric("time/trainer_idle");
        assert!(
            (idle[0] - 7.0).abs() < 0.1 && idle[1..].iter().all(|idle| (idle - 9.0).abs() < 0.1),
            "{idle:?}"
        );
        assert!(run.metric("time/train").iter().all(|train| (train - 3.0).abs() < 0.1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn credits_no_lane_blocks_before_the_credits_do() {
    local(async {
        let world = World::new(3, 2, 10);
        world.training.unplugged.send_replace(false);
        let mut run = world.start();
        run.pass(seconds(600)).await;
        let counts = run.line.ledger().counts();
        assert_eq!((counts.opened, counts.in_flight()), (9, 9));
        assert_eq!(run.line.ledger().spares().len(), 9, "all of them have come through to the batcher");
        run.script.unplugged.send_replace(true);
        assert_eq!(run.end().await, Ok(10));
    })
    .await;
}
