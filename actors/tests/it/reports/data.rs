//! What goes wrong with rollouts: groups, numbers, scores, poisoned items.

use crate::testkit::{Judge, World, local, seconds, trained};
use minds_core::advantage::Estimator;
use minds_core::ids::GroupId;
use minds_core::reward::{Reward, RewardError};
use minds_core::service::BackendError;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn group_one_lost_member_costs_that_member() {
    local(async {
        let mut world = World::new(4, 1, 100);
        world.group_size = 8;
        world.options.batch.min_members = 6.try_into().unwrap();
        // One member of twenty is lost, spread over the groups.
        world.environment.judge = Box::new(|id, _| match (id.group.0 * 8 + u64::from(id.member)) % 20 {
            3 => Judge::Missing(RewardError::Environment("the sandbox is gone".into())),
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
async fn group_a_rollout_without_tokens_yields_no_datum() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.group_size = 4;
        world.service.on_sample = Box::new(|_, _, sequences| {
            sequences[2].tokens.clear();
            sequences[2].logprobs.clear();
            Ok(())
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(1));
        let group = &run.steps[0].groups[0];
        assert_eq!((group.members.len(), group.missing), (3, 1));
        assert_eq!(run.record.data()[0].len(), 3);
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
async fn numbers_invalid_logprobs_fail_their_member_and_reach_no_optimizer() {
    for broken in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY] {
        local(async {
            let mut world = World::new(1, 0, 3);
            world.group_size = 4;
            world.service.on_sample = Box::new(move |_, _, sequences| {
                sequences[1].logprobs[1] = broken;
                Ok(())
            });
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(3));
            assert!(run.steps.iter().all(|step| step.groups[0].missing == 1));
            assert!(
                run.steps.iter().all(|step| step.record.numbers().values().all(|value| value.is_finite()))
            );
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
async fn poison_a_burst_of_refusals_for_load_loses_nothing() {
    local(async {
        let mut world = World::new(2, 1, 50);
        world.options.retry.retries = 5;
        // Of every ten requests three in a row are refused for load.
        world.service.on_sample = Box::new(|n, _, _| match n % 10 {
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
        world.service.sample_delay = Box::new(|_| seconds(7));
        world.service.forward_backward = seconds(3).into();
        world.service.export = seconds(2).into();
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
async fn numbers_a_pass_with_nan_logprobs_ends_the_run_and_names_the_group() {
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        local(async {
            let mut world = World::new(2, 0, 5);
            world.service.on_pass = trained(move |n, logprobs| {
                // Groups 4 and 5 have two members each.
                if n == 2 {
                    logprobs[2][0] = broken;
                }
            });
            let mut run = world.start();
            let why = run.end().await.unwrap_err();
            let words = format!("non-finite logprobs for {}", GroupId(5));
            assert!(why.contains(&words), "{why}");
            assert_eq!(run.steps.len(), 2, "{broken}: such weights are not published");
            assert!(run.saved.is_empty(), "{broken}: nor saved");
        })
        .await;
    }
}

/// The gradients of such a pass are made, and cannot be taken back; what it says of its logprobs decides nothing.
#[tokio::test(start_paused = true)]
async fn numbers_a_pass_with_probabilities_above_1_is_kept_and_reported() {
    for (logprob, impossible) in [(0.5, 1.0), (1e-3, 0.0), (1e-7, 0.0)] {
        local(async {
            let mut world = World::new(1, 0, 3);
            world.service.on_pass = trained(move |n, logprobs| {
                if n == 1 {
                    *logprobs[0].last_mut().unwrap() = logprob;
                }
            });
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(3), "{logprob}");
            assert_eq!(run.metric("optim/impossible_logprobs"), [0.0, impossible, 0.0], "{logprob}");
            // Sampled with -0.5 and -0.25, trained with -0.5: gaps of 0 and 0.25. What is rounded away is a gap like
            // any other; what is no logprob is none.
            let gap = run.metric("optim/max_abs_logprob_gap")[1];
            let expected = if impossible > 0.0 { 0.25 } else { 0.25 + logprob };
            assert!((gap - f64::from(expected)).abs() < 1e-6, "{logprob}: {gap}");
        })
        .await;
    }
}

/// Three answers a rollout, while steps are quick: the weights change in the middle of episodes. Some episodes lose their
/// second or third answer.
#[tokio::test(start_paused = true)]
async fn group_a_member_that_lost_a_later_turn_is_left_out_and_no_member_mixes_versions() {
    local(async {
        let mut world = World::new(2, 2, 30);
        (world.group_size, world.max_turns, world.environment.turns) = (4, 3, 3);
        world.service.sample_delay = Box::new(|n| Duration::from_millis(300 + 100 * (n as u64 % 7)));
        world.service.on_sample = Box::new(|n, _, sequences| match sequences.len() {
            1 if n % 11 == 5 => Err(BackendError::Rejected("aborted".into())),
            _ => Ok(()),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(30));
        let groups: Vec<_> = run.steps.iter().flat_map(|step| &step.groups).collect();
        let lost: u32 = groups.iter().map(|group| group.missing).sum();
        let kept: usize = groups.iter().map(|group| group.members.len()).sum();
        assert!(lost >= 20, "{lost}");
        assert_eq!(kept + lost as usize, 30 * 2 * 4);
        let asked = run.record.asked();
        for member in groups.iter().flat_map(|group| group.members.iter()) {
            assert_eq!(member.rollout.turns.len(), 3, "all of it or nothing");
            for turn in &member.rollout.turns {
                let mut same = asked.iter().filter(|asked| asked.prompt == turn.prompt);
                assert!(
                    same.all(|asked| asked.version == member.rollout.policy.0),
                    "{:?}",
                    member.rollout.id
                );
            }
        }
        let data: usize = run.record.data().iter().map(Vec::len).sum();
        assert_eq!(data, kept, "one datum a member, and none of those that were lost");
        assert!(run.metric("async/staleness_max").contains(&2.0), "the weights did change meanwhile");
    })
    .await;
}
