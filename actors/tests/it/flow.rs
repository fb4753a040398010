//! What flows when: credits, overlap, staleness, order.

use crate::testkit::{Judge, World, local, seconds};
use minds_core::ids::PolicyVersion;
use minds_core::service::BackendError;
use minds_stages::batcher::CpuPool;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn the_feeder_stalls_after_exactly_the_credits_while_the_trainer_is_plugged() {
    for (groups, k) in [(2, 0), (2, 1), (3, 2), (1, 7)] {
        local(async {
            let mut world = World::new(groups, k, 12);
            world.service.answers_passes = false;
            let mut run = world.start();
            let credits = groups as u64 * (k + 1);
            for _ in 0..3 {
                run.pass(seconds(60)).await;
                assert_eq!(run.line.ledger().counts().opened, credits, "{groups} groups, K = {k}");
            }
            assert_eq!(run.record.asked().len() as u64, credits);
            run.service.answer_passes(true);
            assert_eq!(run.end().await, Ok(12));
            assert_eq!(run.line.ledger().counts().opened, 12 * groups as u64, "none is opened beyond need");
            assert!(run.line.mailboxes().iter().all(|lane| lane.lost == 0));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_steps_are_sampled_and_scored_while_this_one_trains() {
    local(async {
        let mut world = World::new(1, 2, 10);
        world.service.sample_delay = Box::new(|_| seconds(10));
        world.environment.latency = Box::new(|_, _| seconds(5));
        world.service.forward_backward = seconds(10).into();
        let mut run = world.start();
        let begun = tokio::time::Instant::now();
        run.end().await.unwrap();
        // 15 s until the first group is ready, then the trainer never waits; one after the other would be 250 s.
        assert!((run.elapsed() - 115.0).abs() < 0.1, "{}", run.elapsed());
        let shares = run.line.observer().activity.shares();
        // Groups 3 to 9 are sampled and scored without a gap from 25 s to 100 s; the trainer works from 15 s to 115 s.
        assert!((shares.training - 100.0).abs() < 0.1 && (shares.overlap - 75.0).abs() < 0.1, "{shares:?}");
        let asked = run.record.asked();
        let fourth = (asked[3].at - begun).as_secs_f64();
        assert!((fourth - 25.0).abs() < 0.1, "asked at {fourth} s, while step 2 trains from 25 s to 35 s");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn on_policy_every_group_is_sampled_by_the_weights_it_trains() {
    local(async {
        let mut world = World::new(2, 0, 5);
        world.service.sample_delay = Box::new(|n| seconds(1 + n as u64 % 3));
        world.service.export = seconds(30).into();
        // A group that fails is replaced in the same step.
        world.service.on_sample =
            Box::new(|n, _, _| if n == 3 { Err(BackendError::Rejected("no".into())) } else { Ok(()) });
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(run.metric("async/staleness_max"), [0.0; 5]);
        let asked = run.record.asked();
        let versions: Vec<u64> = asked.iter().map(|a| a.version).collect();
        assert_eq!(
            versions,
            [0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4],
            "opened only after the weights were published"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn with_equal_latencies_staleness_reaches_the_limit_and_never_exceeds_it() {
    for k in [1, 2, 3] {
        local(async {
            let mut world = World::new(2, k, 8);
            world.service.sample_delay = Box::new(|_| seconds(1));
            world.service.forward_backward = seconds(10).into();
            let mut run = world.start();
            run.end().await.unwrap();
            let most = run.metric("async/staleness_max").into_iter().fold(0.0, f64::max);
            assert_eq!(most, k as f64);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_trainer_waits_for_a_straggler_rather_than_leave_it_too_far_behind() {
    for k in 0..3 {
        local(async {
            let mut world = World::new(2, k, 20);
            // Every seventh group takes twenty times as long.
            world.service.sample_delay = Box::new(|n| seconds(if n % 7 == 3 { 100 } else { 5 }));
            world.service.forward_backward = seconds(1).into();
            let mut run = world.start();
            run.end().await.unwrap();
            let oldest: Vec<f64> =
                run.steps.iter().map(|step| step.record.numbers()["async/staleness_max"]).collect();
            assert!(oldest.iter().all(|age| *age <= k as f64), "K = {k}: {oldest:?}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn stragglers_of_one_version_that_fill_several_steps_do_not_grow_too_old_either() {
    local(async {
        let mut world = World::new(2, 2, 8);
        world.service.sample_delay = Box::new(|n| seconds(if (2..6).contains(&n) { 100 } else { 5 }));
        world.service.forward_backward = seconds(1).into();
        let mut run = world.start();
        run.end().await.unwrap();
        let oldest = run.metric("async/staleness_max");
        assert!(oldest.iter().all(|age| *age <= 2.0), "{oldest:?} {:?}", run.groups());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn staleness_never_exceeds_the_limit_whatever_the_latencies() {
    for (k, seed) in (0..4).flat_map(|k| (0..25).map(move |seed| (k, seed))) {
        local(async {
            let mut world = World::new(1 + seed as usize % 3, k, 12);
            // Long tails: one answer in eight takes ten times as long, one in eleven is refused.
            let chance =
                move |n: usize| (n as u64 + 1 + seed * 1000).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            world.service.sample_delay =
                Box::new(move |n| seconds(chance(n) % 10 * if chance(n) % 8 == 0 { 10 } else { 1 }));
            world.service.on_sample = Box::new(move |n, _, _| match chance(n) % 11 {
                0 => Err(BackendError::Rejected("no".into())),
                _ => Ok(()),
            });
            world.service.forward_backward = seconds(1 + seed % 7).into();
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(12));
            let oldest = run.metric("async/staleness_max");
            assert!(oldest.iter().all(|age| *age <= k as f64), "K = {k}, seed {seed}: {oldest:?}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_version_is_stamped_at_dispatch() {
    local(async {
        let mut world = World::new(1, 1, 10);
        world.service.sample_delay = Box::new(|n| seconds(if n == 1 { 80 } else { 1 }));
        world.service.forward_backward = seconds(10).into();
        let mut run = world.start();
        run.end().await.unwrap();
        let (step, slow) = run
            .steps
            .iter()
            .flat_map(|step| step.groups.iter().map(move |group| (step, group)))
            .find(|(_, group)| group.group.id.0 == 1)
            .unwrap();
        assert_eq!(step.record.step, 2, "the newest weights were version 1 when it came back");
        assert!(slow.members.iter().all(|m| m.rollout.policy == PolicyVersion(0)));
        assert_eq!(step.record.numbers()["async/staleness_max"], 1.0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn batches_hold_the_oldest_groups_of_the_moment_when_the_trainer_has_room() {
    local(async {
        let mut world = World::new(1, 3, 6);
        world.service.answers_passes = false;
        world.service.sample_delay = Box::new(|n| seconds([40, 30, 20, 10].get(n).copied().unwrap_or(0)));
        let mut run = world.start();
        run.pass(seconds(60)).await;
        run.service.answer_passes(true);
        run.end().await.unwrap();
        // 3 was first and went to the trainer, 2 into its lane; then 0, 1 were older than the new ones.
        assert_eq!(run.groups(), [[3], [2], [0], [1], [4], [5]]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn members_find_their_group_and_place_in_whatever_order_they_finish() {
    local(async {
        let mut world = World::new(3, 1, 6);
        world.group_size = 4;
        let reward = |group: u64, member: u32| (group * 10 + u64::from(member * member)) as f32;
        world.environment.judge = Box::new(move |id, _| Judge::Reward(reward(id.group.0, id.member)));
        world.environment.latency =
            Box::new(|id, _| Duration::from_millis((id.group.0 * 701 + u64::from(id.member) * 1303) % 1100));
        let mut run = world.start();
        run.end().await.unwrap();
        for group in run.steps.iter().flat_map(|step| &step.groups) {
            let mean = (0..4).map(|m| reward(group.group.id.0, m)).sum::<f32>() / 4.0;
            for (member, at) in group.members.iter().zip(0..) {
                assert_eq!((member.rollout.id.group, member.rollout.id.member), (group.group.id, at));
                assert_eq!(member.rollout.turns[0].completion.tokens[0], u32::from(b'a') + at);
                assert_eq!(member.score.reward.get(), reward(group.group.id.0, at));
                assert!((member.advantage - (reward(group.group.id.0, at) - mean)).abs() < 1e-4);
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_ledger_balances_on_many_threads_in_real_time() {
    local(async {
        let mut world = World::new(4, 3, 100);
        world.group_size = 4;
        world.pool = CpuPool::start(2).unwrap();
        world.service.sample_delay = Box::new(|n| Duration::from_micros(n as u64 % 7 * 100));
        world.environment.latency = Box::new(|id, _| Duration::from_micros(id.group.0 % 5 * 100));
        world.service.on_sample =
            Box::new(|n, _, _| if n % 9 == 5 { Err(BackendError::Rejected("no".into())) } else { Ok(()) });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(100));
        let counts = run.line.ledger().counts();
        assert_eq!((counts.trained, counts.in_flight()), (400, 0), "{counts:?}");
        assert!(counts.failed > 0 && run.line.mailboxes().iter().all(|lane| lane.lost == 0));
    })
    .await;
}
