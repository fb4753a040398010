//! A run that is killed at any moment and resumed trains what an uninterrupted run trains.

use crate::testkit::{World, local};
use minds_stages::pipeline::ResumePoint;
use std::collections::BTreeSet;
use std::time::Duration;

const STEPS: u64 = 40;
const GROUPS: u64 = 2;

/// Latencies that scatter, so that every order of events occurs.
fn world() -> World {
    let mut world = World::new(GROUPS as usize, 2, STEPS);
    world.options.train.save_every = 3;
    let scatter =
        |n: usize, most: u64| Duration::from_millis((n as u64 + 1).wrapping_mul(0x9e37_79b9) % most);
    world.service.sample_delay = Box::new(move |n| scatter(n, 7001));
    world.environment.latency = Box::new(move |id, _| scatter(id.group.0 as usize, 3001));
    world.service.forward_backward = Duration::from_millis(900).into();
    world.service.export = Duration::from_millis(1300).into();
    world.service.save = Duration::from_millis(700).into();
    world
}

#[tokio::test(start_paused = true)]
async fn a_run_killed_at_any_request_trains_each_group_once() {
    let all: BTreeSet<u64> = (0..STEPS * GROUPS).collect();
    let requests = local(async {
        let mut run = world().start();
        assert_eq!(run.end().await, Ok(STEPS));
        assert_eq!(run.trained, all);
        run.counts().requests()
    })
    .await;
    assert!(requests >= 200, "only {requests} moments to be killed at");
    for moment in 1..=requests {
        local(async {
            let mut run = world().start();
            assert!(run.until_request(moment).await);
            let (start, before) = run.kill();
            let step = start.step;
            let mut run = world().start_from(start);
            assert_eq!(run.end().await, Ok(STEPS), "killed at request {moment}");
            assert_eq!(run.steps.len() as u64, STEPS - step);
            assert_eq!(run.line.ledger().counts().in_flight(), 0);
            assert!(before.is_disjoint(&run.trained), "trained twice, killed at request {moment}");
            assert_eq!(&before | &run.trained, all, "killed at request {moment}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_killed_again_and_again_trains_each_group_once() {
    local(async {
        let (mut start, mut trained) = (ResumePoint::default(), BTreeSet::new());
        for life in 0.. {
            let mut run = world().start_from(start.clone());
            // Lives of 17 to 56 requests: some end before they have saved anything.
            if run.until_request(17 + life * 13 % 40).await {
                let (saved, before) = run.kill();
                if saved.step > start.step {
                    assert!(trained.is_disjoint(&before));
                    trained.extend(before);
                    start = saved;
                }
            } else {
                assert!(trained.is_disjoint(&run.trained));
                trained.extend(&run.trained);
                break;
            }
        }
        assert_eq!(trained, (0..STEPS * GROUPS).collect());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ready_groups_are_trained_and_not_resampled() {
    local(async {
        let mut world = world();
        world.options.train.save_every = 1;
        // Sampling is quick and training slow: at every save all credits but the batch's own are ready.
        world.service.sample_delay = Box::new(|_| Duration::from_millis(10));
        world.environment.latency = Box::new(|_, _| Duration::ZERO);
        world.service.forward_backward = Duration::from_secs(10).into();
        let mut run = world.start();
        run.until_step(6).await;
        while run.saved.len() < 5 {
            let next = run.counts().requests() + 1;
            assert!(run.until_request(next).await);
        }
        let (start, before) = run.kill();
        let saved_groups: BTreeSet<u64> =
            start.saved_groups.iter().map(|saved_group| saved_group.group.0).collect();
        assert_eq!(saved_groups.len() as u64, 2 * GROUPS, "two batches wait behind the one in training");
        let (step, rewards) = (start.step, start.saved_groups[0].members[1].score.reward.get());
        let mut run = self::world().start_from(start);
        assert_eq!(run.end().await, Ok(STEPS));
        assert_eq!(run.record.asked().len() as u64, STEPS * GROUPS - before.len() as u64 - 2 * GROUPS);
        let first: BTreeSet<u64> = run.groups()[..2].concat().into_iter().collect();
        assert_eq!(first, saved_groups, "the oldest first");
        assert_eq!(run.steps[0].groups[0].members[1].score.reward.get(), rewards);
        let oldest = run.metric("async/staleness_max");
        assert!(oldest.iter().all(|age| *age <= 2.0), "from step {step}: {oldest:?}");
    })
    .await;
}
