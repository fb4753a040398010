//! Stopping, resuming, and being dropped.

use crate::testkit::{World, local, seconds};
use minds_core::service::{BackendError, SamplerWeights};
use minds_stages::pipeline::ResumePoint;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Steps of 10 s, groups that are ready after 1 s.
fn world(k: u64, steps: u64) -> World {
    let mut world = World::new(1, k, steps);
    world.service.sample_delay = Box::new(|_| seconds(1));
    world.service.forward_backward = seconds(10).into();
    world.service.save = seconds(5).into();
    world
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_the_step_under_way_and_saves_only_what_is_trained() {
    local(async {
        // Four groups under way: one in training, one in the trainer's mailbox, one in the batcher, one being sampled.
        let mut run = world(3, 20).start();
        run.until_step(1).await;
        run.pass(seconds(5)).await;
        run.line.stop();
        run.line.stop();
        assert_eq!(run.end().await, Ok(2));
        assert!((run.elapsed() - 26.0).abs() < 0.1, "step 2 until 21 s, then 5 s to save: {}", run.elapsed());
        let [saved] = &run.saved[..] else { panic!("{:?}", run.saved) };
        assert_eq!((saved.name.as_str(), saved.step), ("000002-stop", 2));
        let opened = run.line.ledger().counts().opened;
        let settled: BTreeSet<u64> = (0..opened + 10).filter(|p| saved.settled.contains(*p)).collect();
        assert_eq!(settled, run.trained);
        assert_eq!(run.line.ledger().counts().in_flight(), 3, "none of them was given up");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_run_stopped_before_its_first_step_saves_the_start() {
    local(async {
        let mut run = world(1, 5).start();
        run.line.stop();
        assert_eq!(run.end().await, Ok(0));
        assert_eq!(run.saved[0].name, "000000-stop");
        assert_eq!(run.saved[0].settled, ResumePoint::default().settled);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_fails_saves_only_weights_that_work() {
    local(async {
        for diverged in [false, true] {
            let mut world = World::new(1, 1, 9);
            let refused = || BackendError::Rejected("not finite".into());
            world.service.on_pass = Box::new(move |n, _| if n >= 2 { Err(refused()) } else { Ok(()) });
            world.service.on_query = Box::new(move |_, _| if diverged { Err(refused()) } else { Ok(()) });
            let mut run = world.start();
            let why = run.end().await.unwrap_err();
            assert_eq!(run.saved.len(), usize::from(!diverged), "{why}");
            assert_eq!(why.contains("non-finite logprobs"), diverged, "{why}");
        }
    })
    .await;
}

/// The next step may be under way by then; it is part of the weights that are saved.
#[tokio::test(start_paused = true)]
async fn weights_that_cannot_be_published_end_the_run_with_a_checkpoint_of_all_that_is_trained() {
    let errors = [
        BackendError::Rejected("no".into()),
        BackendError::Unsupported("no".into()),
        BackendError::Unavailable("no".into()),
        BackendError::TimedOut("no".into()),
        BackendError::Away("no".into()),
        BackendError::Lost("no".into()),
    ];
    for weights in [SamplerWeights::Snapshot, SamplerWeights::InFlight] {
        for error in errors.clone() {
            local(async {
                let mut world = world(2, 20);
                world.options.train.weights = weights;
                let refuse = error.clone();
                world.service.on_export =
                    Box::new(move |n, ()| if n < 2 { Ok(()) } else { Err(refuse.clone()) });
                let mut run = world.start();
                let why = run.end().await.unwrap_err();
                let cause = match error {
                    BackendError::Away(_) => "the service is away",
                    _ => "failed to export the weights of step 3",
                };
                assert!(why.contains(cause) && !why.contains("failed to save"), "{why}");
                let [saved] = &run.saved[..] else { panic!("{weights:?} {error:?}: {:?}", run.saved) };
                assert_eq!(saved.step, run.steps.len() as u64);
                assert!((3..=4).contains(&saved.step), "{}", saved.step);
                assert_eq!(saved.sampler_path, None);
                let trained: BTreeSet<u64> = (0..20).filter(|p| saved.settled.contains(*p)).collect();
                assert_eq!(trained, run.trained);
                let name = format!("save {:06}-stop", saved.step);
                assert_eq!(run.calls().pop(), Some(name), "no export follows it");
            })
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_save_that_fails_is_tried_once_more_at_the_end() {
    local(async {
        let mut world = world(1, 20);
        world.options.train.save_every = 2;
        world.service.on_save = Box::new(|n, ()| match n {
            0 => Err(BackendError::Unavailable("the disk is full".into())),
            _ => Ok(()),
        });
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("failed to save the state of step 2") && why.contains("disk is full"), "{why}");
        let [saved] = &run.saved[..] else { panic!("{:?}", run.saved) };
        assert_eq!(saved.step, run.steps.len() as u64);
        assert!(saved.sampler_path.is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_last_weights_are_kept_although_their_sampler_cannot_be_exported() {
    local(async {
        let mut world = world(1, 3);
        // The export of the checkpoint follows those of three steps.
        let failed = || Err(BackendError::Unavailable("no".into()));
        world.service.on_export = Box::new(move |n, ()| if n < 3 { Ok(()) } else { failed() });
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("failed to export the weights of step 3"), "{why}");
        let [saved] = &run.saved[..] else { panic!("{:?}", run.saved) };
        assert_eq!((saved.step, saved.sampler_path.as_deref()), (3, None));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_resumed_run_samples_exactly_the_unsettled_items_with_the_same_seeds() {
    local(async {
        let whole = world(2, 6);
        let mut whole = whole.start();
        whole.end().await.unwrap();
        let mut first = world(2, 6);
        // Group 1 is slow: the settled positions have a gap.
        first.service.sample_delay = Box::new(|n| seconds(if n == 1 { 1000 } else { 1 }));
        let mut first = first.start();
        first.until_step(2).await;
        first.line.stop();
        let step = first.end().await.unwrap();
        let settled = first.saved[0].settled.clone();
        assert!(!settled.contains(1) && settled.contains(2), "{settled:?}");

        let mut second = world(2, 6).start_from(ResumePoint { step, settled, ..ResumePoint::default() });
        assert_eq!(second.end().await, Ok(6));
        assert!(first.trained.is_disjoint(&second.trained));
        let union: BTreeSet<u64> = first.trained.union(&second.trained).copied().collect();
        assert_eq!(union, whole.trained, "each scheduled group once");
        let drawn = |run: &crate::testkit::Run| run.environment.drawn.lock().unwrap().clone();
        let whole_items = drawn(&whole);
        let replayed: Vec<u64> = second.trained.iter().map(|id| whole_items[*id as usize]).collect();
        assert_eq!(drawn(&second), replayed, "the same items in the same order");
        let seeds =
            |run: &crate::testkit::Run| -> Vec<u64> { run.record.asked().iter().map(|a| a.seed).collect() };
        let whole_seeds = seeds(&whole);
        let replayed: Vec<u64> = second.trained.iter().map(|id| whole_seeds[*id as usize]).collect();
        assert_eq!(seeds(&second), replayed);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_pipeline_gives_up_all_that_is_in_flight() {
    local(async {
        let mut world = World::new(2, 1, 9);
        world.service.sample_delay = Box::new(|n| seconds(if n > 2 { 500 } else { 1 }));
        world.environment.latency = Box::new(|id, _| seconds(if id.group.0 == 2 { 50 } else { 1 }));
        let run = world.start();
        run.pass(seconds(5)).await;
        assert!(Arc::strong_count(&run.environment) > 1);
        let (environment, training) = (run.environment.clone(), run.training.clone());
        drop(run);
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        assert_eq!(Arc::strong_count(&environment), 1, "no stage, group or task is left");
        assert_eq!(Arc::strong_count(&training), 1);
    })
    .await;
}
