//! Numbers that are finite and absurd: glitches of a service that would freeze or spoil the weights without any error.

use crate::testkit::{Judge, World, local, seconds, trained};
use minds_core::datum::LossInputs;
use minds_core::service::OptimStep;
use minds_simulation::RequestHook;

/// The limits that optimizer steps were submitted with; 0 where there was none.
fn limits(run: &crate::testkit::Run) -> Vec<f64> {
    run.record.adam().iter().map(|adam| adam.grad_clip_norm).collect()
}

/// The first optimizer steps report these gradient norms; later ones report none.
fn norms(norms: &[f64]) -> RequestHook<OptimStep> {
    let norms = norms.to_vec();
    Box::new(move |n, step| {
        step.metrics.extend(norms.get(n).map(|norm| ("grad_norm".to_owned(), *norm)));
        Ok(())
    })
}

#[tokio::test(start_paused = true)]
async fn a_gradient_far_above_those_before_is_clipped_counted_and_reported() {
    local(async {
        let mut world = World::new(1, 0, 5);
        world.options.train.clip_multiple = 4.0;
        world.service.on_step = norms(&[2.0, 1.0, 1e15, 1.0, 1.0]);
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(5));
        // By hand: 4 times the largest norm so far; the outlier counts as that.
        assert_eq!(limits(&run), [0.0, 8.0, 8.0, 8.0, 8.0]);
        assert_eq!(run.metric("optim/clipped"), [0.0, 0.0, 1.0, 0.0, 0.0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_norm_of_the_config_takes_the_place_of_the_running_limit() {
    local(async {
        let mut world = World::new(1, 0, 3);
        world.options.train.clip_multiple = 4.0;
        world.options.train.adam.grad_clip_norm = 1.0;
        world.service.on_step = norms(&[2.0; 3]);
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(3));
        assert_eq!(limits(&run), [1.0; 3]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_running_limit_survives_a_kill() {
    local(async {
        let world = |steps| {
            let mut world = World::new(1, 0, steps);
            world.options.train.clip_multiple = 4.0;
            world.options.train.save_every = 1;
            world.service.on_step = norms(&[2.0; 3]);
            world
        };
        let mut first = world(3);
        first.service.on_step = norms(&[3.0, 2.0, 2.0]);
        let mut first = first.start();
        first.until_step(2).await;
        // The checkpoint of a step follows its report.
        first.pass(seconds(1)).await;
        first.end().await.unwrap();
        let (start, _) = first.kill();
        assert_eq!(start.gradient_norms, [3.0, 2.0, 2.0]);
        let mut second = world(5).start_from(start);
        assert_eq!(second.end().await, Ok(5));
        assert_eq!(limits(&second), [12.0; 2]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_token_that_cannot_have_been_sampled_is_left_out_of_the_loss_and_its_siblings_are_not() {
    for (logprob, masked) in [(-16.5, 1.0), (-40.0, 1.0), (-15.5, 0.0)] {
        local(async {
            let mut world = World::new(1, 0, 1);
            world.service.on_sample = Box::new(move |_, _, sequences| {
                sequences[1].logprobs[0] = logprob;
                Ok(())
            });
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(1));
            assert_eq!(run.metric("tokens/masked"), [masked], "{logprob}");
            let data = run.record.data();
            let LossInputs::Policy { advantages, .. } = data[0][1].inputs() else { panic!("a policy loss") };
            let trained = advantages.iter().filter(|advantage| **advantage != 0.0).count();
            assert_eq!(trained, 2 - masked as usize, "{logprob}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_step_whose_sampler_and_trainer_disagree_ends_the_run_before_its_weights_change() {
    // The script samples with -0.5 and -0.25 and trains with -1.0: 0.625 nats on average.
    for (bound, ends) in [(0.5, true), (0.7, false), (0.0, false)] {
        local(async {
            let mut world = World::new(1, 1, 3);
            world.options.train.max_first_gap = bound;
            world.service.on_pass = trained(|_, data| data.iter_mut().flatten().for_each(|lp| *lp = -1.0));
            let mut run = world.start();
            let end = run.end().await;
            if ends {
                let why = end.unwrap_err();
                assert!(why.contains("0.62 nats") || why.contains("0.63 nats"), "{why}");
                assert!(why.contains("renderer_name") && why.contains("max_first_gap"), "{why}");
                assert!(!run.calls().contains(&"optim".to_owned()), "{:?}", run.calls());
            } else {
                assert_eq!(end, Ok(3), "bound {bound}");
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_check_waits_for_the_first_step_that_trains_anything() {
    local(async {
        let mut world = World::new(1, 1, 6);
        world.options.train.max_first_gap = 0.5;
        // The rewards of three groups are equal, so that their steps have no pass.
        world.environment.judge =
            Box::new(|id, _| Judge::Reward(if id.group.0 < 3 { 1.0 } else { id.member as f32 }));
        world.service.on_pass = trained(|_, data| data.iter_mut().flatten().for_each(|lp| *lp = -1.0));
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("max_first_gap"), "{why}");
        assert_eq!(run.steps.len(), 3);
        assert!(!run.calls().contains(&"optim".to_owned()), "{:?}", run.calls());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_gap_of_stale_rollouts_or_later_steps_does_not_end_the_run() {
    local(async {
        let mut world = World::new(1, 1, 4);
        world.options.train.max_first_gap = 0.5;
        world.service.on_pass = trained(|n, data| {
            if n > 0 {
                data.iter_mut().flatten().for_each(|lp| *lp = -9.0);
            }
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(4));
    })
    .await;
}

/// The first batch is of saved groups, and the second was sampled before its optimizer step.
#[tokio::test(start_paused = true)]
async fn after_a_resume_no_rollout_is_compared_with_weights_that_an_optimizer_step_has_changed() {
    let world = || {
        let mut world = World::new(1, 2, 8);
        world.options.train.save_every = 1;
        world.options.train.max_first_gap = 0.5;
        world.service.sample_delay = Box::new(|_| seconds(1));
        world.service.forward_backward = seconds(30).into();
        world
    };
    local(async {
        let mut run = world().start();
        run.until_step(3).await;
        while run.saved.len() < 2 {
            let next = run.counts().requests() + 1;
            assert!(run.until_request(next).await);
        }
        let (start, _) = run.kill();
        assert!(!start.saved_groups.is_empty());

        let mut world = world();
        world.service.on_pass = trained(|n, data| {
            if n > 0 {
                data.iter_mut().flatten().for_each(|lp| *lp = -9.0);
            }
        });
        assert_eq!(world.start_from(start).end().await, Ok(8));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_step_reports_how_long_it_was_held_back_for_a_straggler() {
    local(async {
        // Groups take 1 s but for the second, which takes 60 s; a pass takes 1 s. No rollout may be older than 1 step.
        let mut world = World::new(1, 1, 6);
        world.service.sample_delay = Box::new(|n| seconds(if n == 1 { 60 } else { 1 }));
        world.service.forward_backward = seconds(1).into();
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(6));
        let held = run.metric("time/waits_for_stragglers");
        // Step 1 is done at 2 s and its credit opens a group that is ready at 3 s; if that left, the straggler of version 0
        // would be trained at version 2. It comes at 60 s.
        assert!((held.iter().sum::<f64>() - 57.0).abs() < 1.5, "{held:?}");
        assert!(run.metric("time/trainer_idle").iter().zip(&held).all(|(idle, held)| held <= idle));
    })
    .await;
}
