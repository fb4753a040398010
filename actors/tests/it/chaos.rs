//! Long runs in which every kind of fault occurs at random: nothing hangs, and the ledger balances at every event.

use crate::testkit::{Judge, Run, World, local, seconds};
use minds_core::random::seeded_rng;
use minds_core::reward::RewardError;
use minds_core::service::BackendError;
use minds_stages::pipeline::ResumePoint;
use rand::Rng;
use std::collections::BTreeSet;
use std::time::Duration;

const STEPS: u64 = 500;
const SEEDS: u64 = 100;
/// Longer than any deadline.
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

/// A number below 100, the same for the same event of the same life.
fn percent(seed: u64, kind: u64, event: u64) -> u64 {
    seeded_rng([seed, kind, event, 0]).next_u64() % 100
}

/// 5% of the requests fail, 2% are never answered, and 1% of the samples have a NaN logprob. Rewards are slow, fail,
/// panic or never arrive; some batches are refused.
fn world(seed: u64) -> World {
    let mut world = World::new(2, 1 + seed % 3, STEPS);
    world.options.train.save_every = 20;
    world.options.train.max_refused = 50;
    world.options.retry.deadlines.sampling = seconds(120);
    world.service.sample_delay = Box::new(move |n| match percent(seed, 0, n as u64) {
        0..2 => FOR_EVER,
        2..7 => seconds(60),
        p => Duration::from_millis(100 + 40 * p),
    });
    world.service.on_sample = Box::new(move |n, _, sequences| match percent(seed, 1, n as u64) {
        0..4 => Err(BackendError::Unavailable("away".into())),
        4 => Err(BackendError::Rejected("no".into())),
        5 => {
            sequences[0].logprobs[0] = f32::NAN;
            Ok(())
        }
        _ => Ok(()),
    });
    world.environment.judge = Box::new(move |id, again| {
        match percent(seed, 2, id.group.0 * 10 + u64::from(id.member) + u64::from(again) * 7) {
            0 => Judge::Never,
            1 => Judge::Panic("a bug"),
            2 => Judge::Reward(f32::NAN),
            3..6 => Judge::Missing(RewardError::Service("away".into())),
            _ => Judge::Reward(id.member as f32),
        }
    });
    world.environment.latency = Box::new(move |id, _| match percent(seed, 3, id.group.0) {
        0..3 => seconds(50),
        p => Duration::from_millis(10 * p),
    });
    world.service.forward_backward = seconds(2).into();
    world.service.on_pass = Box::new(move |n, _| match percent(seed, 4, n as u64) {
        0..5 => Err(BackendError::Rejected("not finite".into())),
        _ => Ok(()),
    });
    world
}

/// What one life leaves: its end, or the last state before it was killed.
async fn live(
    seed: u64,
    life: u64,
    start: &ResumePoint,
    killed_at: Option<usize>,
) -> Result<BTreeSet<u64>, (ResumePoint, BTreeSet<u64>)> {
    let mut run: Run = world(seed + 1000 * life).start_from(start.clone());
    if let Some(moment) = killed_at
        && run.until_request(moment).await
    {
        return Err(run.kill());
    }
    if run.steps.last().is_none_or(|step| step.record.step < STEPS) {
        assert_eq!(run.end().await, Ok(STEPS), "seed {seed}, life {life}");
    }
    assert!(run.line.mailboxes().iter().all(|lane| lane.depth <= lane.capacity && lane.lost == 0));
    Ok(run.trained)
}

#[tokio::test(start_paused = true)]
async fn through_a_hundred_long_runs_nothing_hangs_and_nothing_is_trained_twice() {
    for seed in 0..SEEDS {
        local(async {
            let (mut start, mut trained) = (ResumePoint::default(), BTreeSet::new());
            // Killed twice on its way.
            for life in 0..3 {
                let moment = (life < 2).then(|| 300 + 7 * percent(seed, 5, life) as usize);
                match live(seed, life, &start, moment).await {
                    Ok(last) => {
                        assert!(trained.is_disjoint(&last));
                        trained.extend(last);
                        break;
                    }
                    Err((saved, before)) if saved.step > start.step => {
                        assert!(trained.is_disjoint(&before));
                        trained.extend(before);
                        start = saved;
                    }
                    Err(_) => {}
                }
            }
            // A refused batch is made up for by another one; every step has its two groups.
            assert_eq!(trained.len() as u64, 2 * STEPS, "seed {seed}");
        })
        .await;
    }
}
