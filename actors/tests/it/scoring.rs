//! The scoring stage: how it scales, what it may ask, and what becomes of rewards that fail for good.

use crate::testkit::{Judge, World, local, seconds};
use minds_core::reward::RewardError;
use minds_stages::policy::QueryLimits;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

/// 1,000 groups of one; each reward asks six questions of 50 ms, all at a time. Nothing else takes time.
async fn seconds_with(workers: usize) -> f64 {
    let mut world = World::new(20, 4, 50);
    world.group_size = 1;
    world.environment.own_questions = 6;
    world.service.query_delay = Box::new(|_| Duration::from_millis(50));
    world.options.scorers = NonZeroUsize::new(workers).unwrap();
    let mut run = world.start();
    run.end().await.unwrap();
    assert_eq!(run.trained.len(), 1000);
    assert!(run.counts().queries >= 6 * 1000);
    run.elapsed()
}

#[tokio::test(start_paused = true)]
async fn throughput_grows_linearly_with_the_workers() {
    local(async {
        let one = seconds_with(1).await;
        assert!((one - 1000.0 * 0.05).abs() < 1.0, "one after the other: {one} s");
        for workers in [2, 4, 8, 16] {
            let efficiency = one / (workers as f64 * seconds_with(workers).await);
            assert!(efficiency >= 0.95, "{workers} workers: {efficiency}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_more_questions_are_under_way_than_the_run_allows() {
    local(async {
        let mut world = World::new(4, 0, 2);
        world.environment.own_questions = 6;
        world.service.query_delay = Box::new(|_| seconds(1));
        world.limits = QueryLimits { concurrency: NonZeroUsize::new(3).unwrap(), ..QueryLimits::default() };
        let mut run = world.start();
        run.end().await.unwrap();
        // 4 groups × 2 members × 6 questions a step, three at a time.
        assert_eq!(run.elapsed(), 2.0 * 48.0 / 3.0);
        assert_eq!(run.metric("scorer/queries_used"), [48.0, 48.0]);
    })
    .await;
}

/// A batch needs 2 × 2 × 5 = 20 queries; the rewards of two batches run at once.
#[tokio::test(start_paused = true)]
async fn work_ahead_waits_for_the_next_steps_budget_and_nothing_is_lost() {
    local(async {
        let mut world = World::new(2, 1, 5);
        world.environment.own_questions = 5;
        world.service.forward_backward = seconds(10).into();
        world.limits = QueryLimits { per_step: NonZeroU64::new(25), ..QueryLimits::default() };
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(run.line.ledger().counts().failed, 0);
        let used = run.metric("scorer/queries_used");
        assert!(used.iter().all(|used| *used <= 25.0), "{used:?}");
        assert_eq!(run.metric("scorer/queries_budget"), [25.0; 5]);
        assert!(run.metric("scorer/queries_wait_s").iter().sum::<f64>() > 0.0, "some had to wait");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_too_small_for_a_batch_ends_the_run_by_name() {
    local(async {
        let mut world = World::new(2, 0, 5);
        world.environment.own_questions = 5;
        world.options.max_failed_in_a_row = 6;
        world.limits =
            QueryLimits { per_step: NonZeroU64::new(9), wait_limit: seconds(30), ..QueryLimits::default() };
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("the 9 logprob queries of this step are used up"), "{why}");
        assert!(why.contains("scorer.queries_per_step"), "{why}");
        assert!(run.quarantined.is_empty(), "it is no rollout's fault");
        assert!(run.elapsed() < 300.0, "{}", run.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_rollout_whose_reward_fails_for_good_is_quarantined_once_with_its_text() {
    local(async {
        let mut world = World::new(2, 0, 2);
        world.environment.judge = Box::new(|id, attempt| match (id.group.0, id.member, attempt) {
            (0, 1, _) => Judge::Panic("a bug in the reward"),
            (1, 0, 0..=1) => Judge::Missing(RewardError::Service("away".into())),
            (2, 0, _) => Judge::Never,
            (3, 1, _) => Judge::Missing(RewardError::Unsupported("such a thing".into())),
            (_, member, _) => Judge::Reward(member as f32),
        });
        let mut run = world.start();
        run.end().await.unwrap();
        let mut told: Vec<_> =
            run.quarantined.iter().map(|p| (p.rollout.group.0, p.rollout.member, p.cause.clone())).collect();
        told.sort_by_key(|(group, ..)| *group);
        let panic = RewardError::Environment("it panicked: a bug in the reward".into());
        // The second member of group 1 was scored at the third try, within the budget of two retries.
        assert_eq!(told, [(0, 1, panic), (2, 0, RewardError::TimedOut(60))]);
        let first = run.quarantined.iter().find(|p| p.rollout.group.0 == 0).unwrap();
        assert_eq!((first.environment.as_str(), &first.answers[..]), ("scripted", &["b.".to_owned()][..]));
        assert_eq!(first.item, run.environment.drawn.lock().unwrap()[0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_holds_the_state_of_environments() {
    local(async {
        let mut world = World::new(2, 0, 4);
        world.options.train.save_every = 2;
        let mut run = world.start();
        run.end().await.unwrap();
        let learnt = |n: usize| run.saved[n].memories["scripted"].as_u64().unwrap();
        assert_eq!(run.saved.len(), 2);
        // Two groups of two a step, and those of the step after may have begun.
        assert!((8..=12).contains(&learnt(0)) && (16..=20).contains(&learnt(1)));
    })
    .await;
}
