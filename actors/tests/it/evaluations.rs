//! Measuring weights beside training.

use crate::testkit::{Judge, Run, World, local, seconds};
use minds_core::reward::RewardError;
use minds_stages::evaluator;
use minds_stages::pipeline::ResumePoint;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

/// Steps of 10 s; an evaluation after each, whose four episodes take 35 s, all at a time.
fn world(steps: u64) -> World {
    let mut world = World::new(1, 1, steps);
    world.service.forward_backward = seconds(10).into();
    world.measured.latency = Box::new(|_, _| seconds(35));
    world.options.evaluate = Some(evaluator::EvaluatorOptions {
        every: NonZeroU64::MIN,
        items: NonZeroU64::new(4).unwrap(),
        samples_per_item: NonZeroU32::MIN,
        success_at: 1.0,
        concurrency: NonZeroUsize::new(4).unwrap(),
    });
    world
}

fn measured(run: &Run) -> Vec<u64> {
    run.evaluations.iter().map(|e| e.step).collect()
}

#[tokio::test(start_paused = true)]
async fn training_never_waits_for_an_evaluation_and_the_last_weights_are_measured() {
    local(async {
        let mut run = world(4).start();
        run.until_step(4).await;
        assert_eq!(run.elapsed(), 40.0, "as without evaluations");
        assert_eq!(measured(&run), [0], "the one that was under way since the start");
        run.end().await.unwrap();
        assert_eq!(measured(&run), [0, 3, 4], "then the newest, and the last");
        assert_eq!(run.elapsed(), 35.0 + 35.0 + 35.0);
    })
    .await;
}

/// The same with an evaluation every `every` steps, each of which ends before the next step.
fn every(every: u64, steps: u64) -> World {
    let mut world = world(steps);
    world.measured.latency = Box::new(|_, _| seconds(1));
    world.options.evaluate.as_mut().unwrap().every = NonZeroU64::new(every).unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn the_weights_that_a_run_ends_with_are_measured_once_whether_they_are_due_or_not() {
    for (every, steps, expected) in
        [(2, 5, &[0, 2, 4, 5][..]), (2, 4, &[0, 2, 4]), (5, 2, &[0, 2]), (3, 3, &[0, 3])]
    {
        local(async {
            let mut run = self::every(every, steps).start();
            run.end().await.unwrap();
            assert_eq!(measured(&run), expected, "every {every} of {steps} steps");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_weights_are_measured_also_where_they_were_not_yet_published() {
    local(async {
        let mut world = every(2, 5);
        world.options.train.publish_every = NonZeroU64::new(3).unwrap();
        world.options.max_staleness = 4;
        let mut run = world.start();
        run.end().await.unwrap();
        // Step 2 falls due when the weights of step 3 come, and 5 is the last one.
        assert_eq!(measured(&run), [0, 3, 5]);
        let asked = run.record.asked();
        assert_eq!(asked.iter().rev().take(4).map(|asked| asked.version).collect::<Vec<_>>(), [5; 4]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_resumed_run_adds_the_missing_evaluations() {
    for (evaluated, expected) in [(true, &[4, 5][..]), (false, &[3, 4, 5])] {
        local(async {
            let start = ResumePoint { step: 3, evaluated, ..ResumePoint::default() };
            let mut run = every(1, 5).start_from(start);
            run.end().await.unwrap();
            assert_eq!(measured(&run), expected, "{evaluated}");
        })
        .await;
    }
    // With no step left: the end itself had been saved, and not yet measured.
    for (evaluated, expected) in [(true, &[][..]), (false, &[5])] {
        local(async {
            let start = ResumePoint { step: 5, evaluated, ..ResumePoint::default() };
            let mut run = every(2, 5).start_from(start);
            run.end().await.unwrap();
            assert_eq!(measured(&run), expected, "{evaluated}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_does_not_wait_for_an_evaluation() {
    local(async {
        let mut run = world(9).start();
        run.until_step(4).await;
        run.line.stop();
        run.end().await.unwrap();
        assert!(run.elapsed() < 70.0, "the evaluation begun at 35 s was given up: {}", run.elapsed());
        assert_eq!(measured(&run), [0], "and none is made of the weights that it stopped with");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_evaluation_samples_the_same_items_and_failures_are_missing() {
    local(async {
        let mut world = world(1);
        world.measured.judge = Box::new(|id, _| match id.group.0 {
            0 => Judge::Panic("a bug in the reward"),
            1 => Judge::Missing(RewardError::Environment("no such thing".into())),
            n => Judge::Reward(n as f32),
        });
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(measured(&run), [0, 1]);
        let drawn = run.measured.drawn.lock().unwrap().clone();
        assert_eq!(drawn.len(), 8);
        assert_eq!(drawn[..4], drawn[4..], "paired across versions");
        for evaluation in &run.evaluations {
            let get = |key: &str| evaluation.numbers()[&format!("eval/measured/{key}")];
            assert_eq!((get("episodes"), get("missing"), get("reward")), (2.0, 2.0, 2.5));
        }
        assert!(run.evaluations[0].numbers().keys().all(|key| key.starts_with("eval/measured/")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn weights_that_were_measured_before_the_resume_are_not_measured_again() {
    local(async {
        for (evaluated, expected) in [(true, &[5, 6][..]), (false, &[4, 6])] {
            let mut run = world(6).start_from(ResumePoint { step: 4, evaluated, ..ResumePoint::default() });
            run.end().await.unwrap();
            assert_eq!(measured(&run), expected, "{evaluated}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_environment_is_evaluated_at_its_own_cadence_and_all_of_them_at_the_end() {
    local(async {
        let mut world = every(2, 5);
        world.rarely = NonZeroU64::new(4);
        let mut run = world.start();
        run.end().await.unwrap();
        let named = |at: usize| -> Vec<&str> {
            run.evaluations[at].environments.keys().map(String::as_str).collect()
        };
        assert_eq!(measured(&run), [0, 2, 4, 5]);
        assert_eq!([named(0).len(), named(1).len(), named(2).len(), named(3).len()], [2, 1, 2, 2]);
        assert!(!named(1).contains(&"rarely"), "{:?}", named(1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn all_samples_of_an_item_come_from_one_request() {
    local(async {
        let mut world = every(5, 5);
        world.options.evaluate.as_mut().unwrap().samples_per_item = NonZeroU32::new(3).unwrap();
        let mut run = world.start();
        run.end().await.unwrap();
        let found = run.evaluations[0].environments.values().next().unwrap();
        assert_eq!(found.rollouts, Some(12.0), "three samples of four items");
        assert!(found.parts.contains_key("pass@2") && !found.parts.contains_key("pass@4"));
        let asked = run.record.asked();
        assert!(asked.iter().filter(|asked| asked.samples == 3).count() >= 4, "{asked:?}");
    })
    .await;
}
