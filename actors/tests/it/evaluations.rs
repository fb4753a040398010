//! Measuring weights beside training.

use crate::testkit::{Judge, Run, World, local, seconds};
use minds_core::reward::Missing;
use minds_stages::evaluator;
use minds_stages::line::Start;
use std::num::{NonZeroU64, NonZeroUsize};

/// Steps of 10 s; an evaluation after each, whose four episodes take 35 s, all at a time.
fn world(steps: u64) -> World {
    let mut world = World::new(1, 1, steps);
    world.training.forward_backward = seconds(10);
    world.measured.latency = Box::new(|_, _| seconds(35));
    world.options.evaluate = Some(evaluator::Options {
        every: NonZeroU64::MIN,
        episodes: NonZeroU64::new(4).unwrap(),
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

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_does_not_wait_for_an_evaluation() {
    local(async {
        let mut run = world(9).start();
        run.until_step(4).await;
        run.line.stop();
        run.end().await.unwrap();
        assert!(run.elapsed() < 70.0, "the evaluation begun at 35 s was given up: {}", run.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_evaluation_plays_the_same_items_and_failures_are_missing() {
    local(async {
        let mut world = world(1);
        world.measured.judge = Box::new(|id, _| match id.group.0 {
            0 => Judge::Panic("a bug in the reward"),
            1 => Judge::Missing(Missing::Environment("no such thing".into())),
            n => Judge::Reward(n as f32),
        });
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(measured(&run), [0, 1]);
        let drawn = run.measured.drawn.lock().unwrap().clone();
        assert_eq!(drawn.len(), 8);
        assert_eq!(drawn[..4], drawn[4..], "paired across versions");
        for evaluation in &run.evaluations {
            let get = |key: &str| evaluation.metrics[&format!("eval/measured/{key}")];
            assert_eq!((get("episodes"), get("missing"), get("reward")), (2.0, 2.0, 2.5));
        }
        assert!(run.evaluations[0].metrics.keys().all(|key| key.starts_with("eval/measured/")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn weights_that_were_measured_before_the_resume_are_not_measured_again() {
    local(async {
        for (evaluated, expected) in [(true, &[5, 6][..]), (false, &[4, 6])] {
            let mut run = world(6).start_from(Start { step: 4, evaluated, ..Start::default() });
            run.end().await.unwrap();
            assert_eq!(measured(&run), expected, "{evaluated}");
        }
    })
    .await;
}
