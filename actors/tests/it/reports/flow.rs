//! What goes wrong on the way: deaths, waits, credits, versions, resumes, buffers, memory, limits, ends.

use crate::testkit::{Judge, World, local, reward_in_every, seconds};
use minds_core::ids::{GroupId, PolicyVersion, Token};
use minds_core::reward::RewardError;
use minds_stages::batcher::ConstantGroups;
use minds_stages::ledger::{GroupOutcome, Ledger, SettledPositions};
use minds_stages::pipeline::{PipelineEvent, ResumePoint};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn silent_death_a_reward_that_always_fails_ends_the_run_with_its_cause() {
    local(async {
        let mut world = World::new(2, 1, 50);
        world.options.max_failed_in_a_row = 12;
        world.environment.judge =
            Box::new(|_, _| Judge::Missing(RewardError::Environment("the oracle has no model".into())));
        let why = world.start().end().await.unwrap_err();
        assert!(why.contains("the oracle has no model"), "{why}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn missing_limit_rewards_that_never_arrive_do_not_block_a_step() {
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
        assert_eq!(missing, 32, "2% of 1600 rollouts");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn wait_cycle_one_rollout_a_thousand_times_slower_wedges_nothing_also_after_a_restart() {
    local(async {
        let slow = || {
            let mut world = World::new(2, 1, 12);
            world.options.train.save_every = 1;
            world.service.sample_delay =
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

/// Every state is saved, and groups are ready long before they are trained.
fn slow_trainer() -> World {
    let mut world = World::new(2, 1, 10);
    world.options.train.save_every = 1;
    world.service.forward_backward = seconds(5).into();
    world
}

/// What such a run leaves when it is killed after its third state.
async fn killed_beside_ready_groups() -> ResumePoint {
    let mut run = slow_trainer().start();
    run.until_step(4).await;
    while run.saved.len() < 3 {
        let next = run.counts().requests() + 1;
        assert!(run.until_request(next).await);
    }
    run.kill().0
}

#[tokio::test(start_paused = true)]
async fn resume_with_a_whole_batch_already_collected_continues() {
    local(async {
        let start = killed_beside_ready_groups().await;
        assert_eq!(start.saved_groups.len(), 2, "exactly a batch");
        let step = start.step;
        let mut run = slow_trainer().start_from(start);
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
        // The ledger is checked at every event: no more groups than credits are in flight, and a leak would starve the
        // run.
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
        world.service.forward_backward = seconds(60).into();
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(30));
        let sampled: usize = run.record.asked().iter().map(|asked| asked.samples).sum();
        let trained: usize =
            run.steps.iter().flat_map(|step| &step.groups).map(|group| group.members.len()).sum();
        assert_eq!((sampled, trained), (240, 240));
        assert!(run.line.mailboxes().iter().all(|lane| lane.lost == 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn missing_limit_a_slow_reward_does_not_block_a_batch_that_is_full_without_it() {
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
async fn missing_limit_a_sampler_that_never_answers_for_one_version_ends_the_run_by_name() {
    local(async {
        let mut world = World::new(1, 0, 5);
        world.options.max_failed_in_a_row = 3;
        // The base answers; the weights after the first step never do.
        world.service.sample_delay = Box::new(|n| if n == 0 { Duration::ZERO } else { seconds(100_000) });
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("sample was not answered within 600 s"), "{why}");
        assert_eq!(run.steps.len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn credits_no_lane_blocks_before_the_credits_do() {
    local(async {
        let mut world = World::new(3, 2, 10);
        world.service.answers_passes = false;
        let mut run = world.start();
        run.pass(seconds(600)).await;
        let counts = run.line.ledger().counts();
        assert_eq!((counts.opened, counts.in_flight()), (9, 9));
        assert_eq!(run.line.ledger().saved_groups().len(), 9, "all of them have come through to the batcher");
        run.service.answer_passes(true);
        assert_eq!(run.end().await, Ok(10));
    })
    .await;
}

/// A trainer that was recreated and counts from 0 again.
#[tokio::test(start_paused = true)]
async fn version_weights_older_than_the_sampling_weights_end_the_run() {
    local(async {
        let start = killed_beside_ready_groups().await;
        assert!(start.step >= 3 && !start.saved_groups.is_empty());
        let mut run = slow_trainer().start_from(ResumePoint { step: 0, ..start });
        let why = run.end().await.unwrap_err();
        assert!(why.contains("versions went back"), "{why}");
        assert!(run.steps.is_empty(), "no age below 0 was ever trained");
    })
    .await;
}

/// Whatever is over first: the pass, the export that publishes its weights, or the state saved behind it.
#[tokio::test(start_paused = true)]
async fn wait_cycle_a_state_saved_while_weights_are_published_holds_neither() {
    for [pass, export, save] in
        [[1, 5, 9], [1, 9, 5], [5, 1, 9], [5, 9, 1], [9, 1, 5], [9, 5, 1], [0, 5, 5], [5, 5, 5], [0, 0, 0]]
    {
        local(async {
            let mut world = World::new(2, 2, 12);
            world.options.train.save_every = 1;
            world.service.forward_backward = seconds(pass).into();
            world.service.export = seconds(export).into();
            world.service.save = seconds(save).into();
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(12), "{pass}, {export}, {save} s");
            let saved: Vec<u64> = run.saved.iter().map(|saved| saved.step).collect();
            assert_eq!(saved, (1..=12).collect::<Vec<_>>(), "{pass}, {export}, {save} s");
        })
        .await;
    }
}

/// Ten thousand times, on two threads with no order between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_cycle_the_awaited_event_may_precede_or_follow_the_wait() {
    let ledger = Ledger::new(SettledPositions::default());
    for group in 0..10_000 {
        let credit = ledger.open(GroupId(group));
        credit.sampling_started(PolicyVersion(0));
        let settling = tokio::task::spawn_blocking(move || credit.settle(&GroupOutcome::Trained));
        let waiting = ledger.until(|playing| playing.is_empty());
        tokio::time::timeout(seconds(60), waiting).await.expect("a wake-up was lost");
        assert!(settling.await.unwrap());
    }
}

/// Prompts stand for rollouts: each group has its own, and any of its members keeps it alive.
#[tokio::test(start_paused = true)]
async fn memory_of_a_long_run_is_that_of_the_groups_under_way_however_large_they_are() {
    local(async {
        let mut world = World::new(4, 3, 500);
        world.remember = false;
        // A hundred times the usual answer, and a trainer ten times slower than the sampler.
        world.service.on_sample = Box::new(|_, _, sequences| {
            for sequence in sequences {
                sequence.tokens = vec![Token::from(b'x'); 200];
                sequence.logprobs = vec![-0.5; 200];
            }
            Ok(())
        });
        world.service.sample_delay = Box::new(|_| seconds(1));
        world.service.forward_backward = seconds(10).into();
        let mut run = world.start();
        let credits = run.options.credits() as usize;
        let (mut steps, mut most) = (0, 0);
        loop {
            match run.line.next().await {
                Some(PipelineEvent::Step(_)) => steps += 1,
                Some(PipelineEvent::CheckpointSaved(_)) => {}
                Some(PipelineEvent::Ended { .. }) => break,
                _ => panic!("nothing else happens"),
            }
            let prompts = run.record.prompts.lock().unwrap();
            most = most.max(prompts.iter().filter(|prompt| prompt.strong_count() > 0).count());
        }
        assert_eq!((steps, run.record.prompts.lock().unwrap().len()), (500, 2000));
        // All groups with a credit, and those of a step that is just being reported.
        assert!(
            (credits - 4..=credits + 4).contains(&most),
            "{most} groups are held, {credits} have a credit"
        );
    })
    .await;
}
