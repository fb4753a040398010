//! A service that cannot answer: what is waited for once, what comes back, and when a run gives up.

use crate::testkit::{Judge, World, local, seconds};
use minds_core::reward::RewardError;
use minds_core::service::BackendError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::time::Instant;

/// Rewards query a service of their own that is unavailable between two points in time. Returns the count of queries
/// that it received meanwhile.
fn judge_away(world: &mut World, from: u64, to: u64) -> Arc<AtomicUsize> {
    let (begun, asked) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    world.environment.judge = Box::new(move |id, _| {
        if (from..to).contains(&begun.elapsed().as_secs()) {
            count.fetch_add(1, Relaxed);
            return Judge::Missing(RewardError::Service("the reward service answers 503".into()));
        }
        Judge::Reward(id.member as f32)
    });
    asked
}

#[tokio::test(start_paused = true)]
async fn groups_without_their_reward_service_are_resampled_and_no_environment_is_blamed() {
    local(async {
        let mut world = World::new(2, 1, 20);
        world.options.max_failed_in_a_row = 6;
        world.service.forward_backward = seconds(5).into();
        let asked = judge_away(&mut world, 20, 320);
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(20));
        let counts = run.line.ledger().counts();
        assert_eq!((counts.trained, counts.failed), (40, 0));
        assert!(counts.dropped > 0, "{counts:?}");
        assert!(run.quarantined.is_empty(), "no rollout is at fault");
        // 20 steps of 5 s, five minutes of nothing, and at most one pause of a minute too long.
        assert!(run.elapsed() < 20.0 * 5.0 + 300.0 + 62.0, "{}", run.elapsed());
        let all: Vec<u64> = run.trained.iter().copied().collect();
        assert!(
            all.starts_with(&[0, 1, 2, 3, 4, 5, 6, 7]),
            "groups that lost their reward service were not trained later: {all:?}"
        );
        // Ten pauses that double to a minute; four groups of two with three tries each.
        assert!(asked.load(Relaxed) <= 12 * 4 * 2 * 3, "it was asked {} times", asked.load(Relaxed));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reward_service_away_beyond_the_limit_ends_the_run_with_its_cause_and_a_checkpoint() {
    local(async {
        for limit in [60, 900, 7200] {
            let mut world = World::new(2, 1, 20);
            world.options.max_failed_in_a_row = 6;
            world.options.unanswered = seconds(limit);
            world.service.forward_backward = seconds(5).into();
            judge_away(&mut world, 20, u64::MAX);
            let mut run = world.start();
            let why = run.end().await.unwrap_err();
            assert!(
                why.contains("the reward service answers 503") && why.contains("no group succeeded"),
                "{why}"
            );
            let waited = run.elapsed() - 20.0;
            assert!((waited / limit as f64 - 1.0).abs() < 0.2, "{waited} s of {limit}");
            assert_eq!(
                run.saved.last().map(|saved| saved.step),
                run.steps.last().map(|step| step.record.step)
            );
        }
    })
    .await;
}

/// The client has waited for its whole limit: no other request starts a new wait.
#[tokio::test(start_paused = true)]
async fn a_service_that_the_client_gave_up_ends_the_run_at_once() {
    local(async {
        let mut world = World::new(2, 1, 50);
        world.service.forward_backward = seconds(5).into();
        world.service.sample_delay = Box::new(|n| seconds(if n < 8 { 1 } else { 10 }));
        world.service.on_sample = Box::new(|n, _, _| match n {
            0..8 => Ok(()),
            _ => Err(BackendError::Away("the server has not answered for 10 s".into())),
        });
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("the service is away") && why.contains("not answered for 10 s"), "{why}");
        let asked = run.record.asked().len();
        assert!(asked <= 8 + 4, "{asked} samples: no group was tried again");
        let last = run.steps.last().map(|step| step.record.step);
        assert!(last.is_some_and(|step| step >= 2), "{last:?}");
        assert_eq!(
            run.saved.last().map(|saved| saved.step),
            last,
            "training answers, so the weights are saved"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reward_does_not_pay_for_the_time_that_its_queries_wait() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.score_timeout = seconds(60);
        world.environment.own_questions = 2;
        world.service.query_delay = Box::new(|_| seconds(300));
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(run.steps[0].groups[0].missing, 0);
    })
    .await;
}

/// A limit is waited out once, not once a try.
#[tokio::test(start_paused = true)]
async fn a_reward_that_never_arrives_is_awaited_once() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.group_size = 3;
        world.environment.judge = Box::new(|id, _| match id.member {
            0 => Judge::Never,
            member => Judge::Reward(member as f32),
        });
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(run.elapsed(), 60.0);
        assert_eq!(run.steps[0].groups[0].missing, 1);
    })
    .await;
}

/// A session that is lost does not come back: nothing is waited for.
#[tokio::test(start_paused = true)]
async fn a_lost_session_fails_its_groups_and_ends_the_run_soon() {
    local(async {
        let mut world = World::new(1, 1, 6);
        world.options.max_failed_in_a_row = 3;
        world.service.on_sample = Box::new(|n, _, _| match n {
            0..2 => Ok(()),
            _ => Err(BackendError::Lost("the server has ended the session".into())),
        });
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("3 groups in a row failed") && why.contains("ended the session"), "{why}");
        assert!(run.elapsed() < 10.0, "{}", run.elapsed());
    })
    .await;
}
