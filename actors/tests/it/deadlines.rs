//! Every wait on the service ends, once, and says what it waited for.

use crate::testkit::{World, local, seconds};

#[tokio::test(start_paused = true)]
async fn a_sample_that_never_arrives_is_awaited_once_and_its_group_is_resampled() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.service.sample_delay = Box::new(|n| seconds(if n == 0 { 1_000_000 } else { 1 }));
        let mut run = world.start();
        run.end().await.unwrap();
        assert!((run.elapsed() - 602.0).abs() < 0.1, "ten minutes, a pause, a second: {}", run.elapsed());
        let counts = run.line.ledger().counts();
        assert_eq!((counts.trained, counts.dropped, counts.failed), (1, 1, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_trainer_that_never_answers_ends_the_run_by_name() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.service.answers_passes = false;
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("forward_backward was not answered within 1800 s"), "{why}");
        assert!((run.elapsed() - 1800.0).abs() < 1.0, "the limit was waited out once: {}", run.elapsed());

        let mut world = World::new(1, 0, 1);
        world.service.export = seconds(1_000_000).into();
        let why = world.start().end().await.unwrap_err();
        assert!(why.contains("export_sampler was not answered within 1800 s"), "{why}");

        let mut world = World::new(1, 0, 1);
        world.service.save = seconds(1_000_000).into();
        let why = world.start().end().await.unwrap_err();
        assert!(why.contains("save_state was not answered within 1800 s"), "{why}");
    })
    .await;
}
