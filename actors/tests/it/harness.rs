//! Faults of the first harness that a line can have, by the names that the environments' tests use: H2, H7, H10 to H12
//! and H19. Each was a defect of a published run. H8 and H9 are tested where the schedule is, H3, H15 and H20 where
//! configs are read. H13 and H14 (a pair unpacked as if it were its first half, a library patched while it runs) cannot
//! be written down in the types of these crates.

use crate::testkit::{Judge, World, local, seconds};
use minds_core::reward::RewardError;
use minds_stages::evaluator;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

// H2: groups had the size of another component. H19: every member sent the prompt again.
#[tokio::test(start_paused = true)]
async fn h2_h19_a_group_has_its_components_size_and_shares_one_request() {
    local(async {
        let mut world = World::new(2, 0, 2);
        world.group_size = 5;
        let mut run = world.start();
        run.end().await.unwrap();
        let groups: Vec<_> = run.steps.iter().flat_map(|s| &s.groups).collect();
        assert_eq!(groups.len(), 4);
        assert!(groups.iter().all(|group| group.members.len() == 5));
        let asked = run.record.asked();
        assert!(asked.iter().all(|asked| asked.samples == 5));
        let prompts = groups.iter().map(|group| group.members[0].rollout.turns[0].prompt.clone());
        for prompt in prompts {
            assert_eq!(asked.iter().filter(|asked| asked.prompt == prompt).count(), 1);
        }
    })
    .await;
}

// H7: evaluations were configured and never ran, and what has weight 0 was trained or built for nothing.
#[tokio::test(start_paused = true)]
async fn h7_what_has_weight_0_is_evaluated_and_never_trained() {
    local(async {
        let mut world = World::new(1, 0, 4);
        world.options.evaluate = Some(evaluator::EvaluatorOptions {
            every: NonZeroU64::new(2).unwrap(),
            items: NonZeroU64::new(3).unwrap(),
            samples_per_item: NonZeroU32::MIN,
            success_at: 1.0,
            concurrency: NonZeroUsize::MIN,
        });
        world.service.forward_backward = seconds(5).into();
        let mut run = world.start();
        run.end().await.unwrap();
        let steps: Vec<u64> = run.evaluations.iter().map(|e| e.step).collect();
        assert_eq!(steps, [0, 2, 4]);
        assert!(run.evaluations.iter().all(|e| e.numbers()["eval/measured/episodes"] == 3.0));
        let trained = run.steps.iter().flat_map(|s| &s.groups).map(|g| g.group.component.name.as_str());
        assert!(trained.into_iter().all(|name| name == "scripted"));
    })
    .await;
}

// H10: one good group was lost in each step.
#[tokio::test(start_paused = true)]
async fn h10_every_good_group_is_trained_exactly_once() {
    local(async {
        let mut world = World::new(3, 2, 12);
        world.environment.judge = Box::new(|id, _| match id.group.0 % 5 {
            3 => Judge::Missing(RewardError::Environment("a bad one".into())),
            _ => Judge::Reward(id.member as f32),
        });
        let mut run = world.start();
        run.end().await.unwrap();
        let last = *run.trained.last().unwrap();
        let good: Vec<u64> = (0..=last).filter(|id| id % 5 != 3).collect();
        // What a batch passed over is older than the newest of it by less than what may be in flight.
        let missing = good.iter().filter(|id| !run.trained.contains(id)).count() as u64;
        assert!(missing < run.options.credits(), "{missing} of {} were passed over", good.len());
        assert_eq!(run.trained.len(), 36);
        assert_eq!(run.line.ledger().counts().trained, 36);
    })
    .await;
}

// H11: a stop did not reach waiting tasks, and the last checkpoint claimed that all steps were done. H12: two owners
// saved every checkpoint twice.
#[tokio::test(start_paused = true)]
async fn h11_h12_a_stop_takes_effect_at_once_and_each_checkpoint_is_saved_once_with_its_true_step() {
    local(async {
        let mut world = World::new(1, 1, 100);
        world.options.train.save_every = 2;
        world.service.forward_backward = seconds(3).into();
        // A straggler of a quarter of an hour.
        world.service.sample_delay = Box::new(|n| seconds(if n == 5 { 892 } else { 1 }));
        let mut run = world.start();
        run.until_step(4).await;
        run.line.stop();
        let before = run.elapsed();
        run.end().await.unwrap();
        assert!(run.elapsed() - before < 10.0, "it waited for the straggler: {}", run.elapsed());
        let saved: Vec<_> = run.saved.iter().map(|s| (s.name.as_str(), s.step)).collect();
        assert!(saved.starts_with(&[("000002", 2), ("000004", 4)]), "{saved:?}");
        let steps: Vec<u64> = run.saved.iter().map(|s| s.step).collect();
        assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "one state a step: {steps:?}");
        assert!(*steps.last().unwrap() < 100);
        let saves = run.calls().iter().filter(|call| call.starts_with("save ")).count();
        assert_eq!(saves, run.saved.len());
    })
    .await;
}
