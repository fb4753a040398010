//! Groups that lose members, and runs that lose groups.

use crate::testkit::{Judge, World, local, seconds};
use minds_core::datum::LossInputs;
use minds_core::reward::RewardError;
use minds_core::service::BackendError;
use minds_stages::batcher::ConstantGroups;

/// Member 1 of every group fails; the others get 0, 2 and 3.
async fn one_bad_member(bad: Judge) {
    local(async {
        let what = format!("{bad:?}");
        let mut world = World::new(2, 1, 2);
        world.group_size = 4;
        world.environment.judge = Box::new(move |id, _| match id.member {
            1 => bad.clone(),
            n => Judge::Reward(n as f32),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(2), "{what}");
        for group in run.steps.iter().flat_map(|step| &step.groups) {
            assert_eq!(group.missing, 1, "{what}");
            let members: Vec<u32> = group.members.iter().map(|m| m.rollout.id.member).collect();
            assert_eq!(members, [0, 2, 3], "{what}");
            let mean = 5.0 / 3.0;
            for (member, reward) in group.members.iter().zip([0.0, 2.0, 3.0]) {
                assert!((member.advantage - (reward - mean)).abs() < 1e-6, "{what}");
            }
            assert_eq!(group.data.len(), 3, "{what}");
        }
        assert_eq!(run.metric("env/all/missing_episodes"), [2.0, 2.0], "{what}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_reward_is_never_a_number_and_survivors_are_centred() {
    one_bad_member(Judge::Panic("boom")).await;
    one_bad_member(Judge::Never).await;
    one_bad_member(Judge::Reward(f32::NAN)).await;
    one_bad_member(Judge::Missing(RewardError::Environment("broken".into()))).await;
    one_bad_member(Judge::Missing(RewardError::Service("away".into()))).await;
}

#[tokio::test(start_paused = true)]
async fn too_few_survivors_fail_the_group_and_a_row_of_them_ends_the_run_with_the_first_cause() {
    local(async {
        let mut world = World::new(2, 1, 5);
        world.group_size = 4;
        world.options.batch.min_members = 4.try_into().unwrap();
        world.options.max_failed_in_a_row = 5;
        world.environment.judge = Box::new(|id, _| match (id.group.0, id.member) {
            (0, 1) => Judge::Panic("the first cause"),
            (_, 1) => Judge::Missing(RewardError::Environment("a later cause".into())),
            (_, n) => Judge::Reward(n as f32),
        });
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        for part in ["5 groups in a row failed", "3 of 4 members", "a later cause", "the first cause"] {
            assert!(why.contains(part), "{why}");
        }
        assert!(run.calls().is_empty(), "nothing reached the service, and nothing new was there to be saved");
        let counts = run.line.ledger().counts();
        assert!(counts.failed >= 5 && counts.trained == 0, "{counts:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_rewards_that_all_raise_ends_the_run_with_the_first_cause() {
    local(async {
        let mut world = World::new(4, 1, 5);
        world.options.max_failed_in_a_row = 12;
        world.options.max_raised_in_a_row = 4;
        world.environment.judge = Box::new(|id, _| match id.group.0 {
            0 => Judge::Missing(RewardError::Environment("Traceback: the first".into())),
            _ => Judge::Missing(RewardError::Environment("Traceback: another".into())),
        });
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("groups in a row failed in the environment's own code"), "{why}");
        assert!(why.contains("Traceback: the first"), "{why}");
    })
    .await;
}

/// A service that is away, cannot answer or refuses, or a single member that raises, is no broken environment.
#[tokio::test(start_paused = true)]
async fn rewards_that_fail_for_other_causes_or_for_some_members_only_are_not_all_raised() {
    for (every_member, cause, expected) in [
        (true, RewardError::Service("away".into()), "a service did not answer"),
        (true, BackendError::Rejected("too long".into()).into(), "12 groups in a row failed"),
        (true, BackendError::Unsupported("logprobs".into()).into(), "12 groups in a row failed"),
        (false, RewardError::Environment("one of them".into()), "12 groups in a row failed"),
    ] {
        local(async move {
            let mut world = World::new(4, 1, 5);
            world.options.batch.min_members = 2.try_into().unwrap();
            world.options.max_failed_in_a_row = 12;
            world.options.max_raised_in_a_row = 4;
            world.environment.judge = Box::new(move |id, _| match every_member || id.member == 0 {
                true => Judge::Missing(cause.clone()),
                false => Judge::Reward(1.0),
            });
            let why = world.start().end().await.unwrap_err();
            assert!(why.contains(expected), "{why}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn failures_between_good_groups_do_not_count_as_a_series_however_slow_the_trainer() {
    local(async {
        let mut world = World::new(1, 7, 8);
        world.options.max_failed_in_a_row = 2;
        world.service.answers_passes = false;
        world.environment.judge = Box::new(|id, _| match id.group.0 % 2 {
            0 => Judge::Reward(id.member as f32),
            _ => Judge::Missing(RewardError::Environment("odd".into())),
        });
        // One group is ready before the next one returns.
        world.environment.latency = Box::new(|id, _| seconds(id.group.0));
        let mut run = world.start();
        run.pass(seconds(600)).await;
        assert!(run.line.ledger().counts().failed >= 6, "{:?}", run.line.ledger().counts());
        run.service.answer_passes(true);
        assert_eq!(run.end().await, Ok(8));
        assert!(run.trained.iter().all(|id| id % 2 == 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_gives_up_saves_what_it_has() {
    local(async {
        let mut world = World::new(1, 0, 9);
        world.options.max_failed_in_a_row = 3;
        world.environment.judge = Box::new(|id, _| match id.group.0 {
            0 | 1 => Judge::Reward(id.member as f32),
            _ => Judge::Missing(RewardError::Environment("broken".into())),
        });
        let mut run = world.start();
        assert!(run.end().await.unwrap_err().contains("broken"));
        let [saved] = &run.saved[..] else { panic!("{:?}", run.saved) };
        assert_eq!((saved.name.as_str(), saved.step), ("000002-stop", 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reward_whose_service_was_unavailable_is_retried() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.environment.judge = Box::new(|id, attempt| match attempt {
            0 | 1 => Judge::Missing(RewardError::Service("away".into())),
            _ => Judge::Reward(id.member as f32),
        });
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(run.steps[0].groups[0].missing, 0);
        let elapsed = run.elapsed();
        assert!((elapsed - 2.0).abs() < 0.1, "two pauses: {elapsed}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_sampler_is_retried_with_the_same_seed_and_a_refusal_fails_the_group() {
    local(async {
        let mut world = World::new(1, 0, 2);
        world.service.on_sample = Box::new(|n, _, _| match n {
            0 => Err(BackendError::Unavailable("away".into())),
            2 => Err(BackendError::Rejected("no such token".into())),
            _ => Ok(()),
        });
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(run.groups(), [[0], [2]]);
        let seeds: Vec<u64> = run.record.asked().iter().map(|a| a.seed).collect();
        assert_eq!(seeds.len(), 4);
        assert_eq!(seeds[0], seeds[1]);
        assert!(seeds[1] != seeds[2] && seeds[2] != seeds[3]);
        assert!(run.line.ledger().failures().unwrap().0.contains("no such token"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_sample_that_cannot_be_trained_costs_only_its_own_member() {
    local(async {
        let mut world = World::new(1, 0, 3);
        world.group_size = 4;
        world.service.on_sample = Box::new(|n, _, samples| {
            match n {
                0 => samples[2].logprobs[1] = f32::NAN,
                1 => samples[2].logprobs.truncate(1),
                _ => samples[2].tokens.clear(),
            }
            Ok(())
        });
        let mut run = world.start();
        run.end().await.unwrap();
        for step in &run.steps {
            let members: Vec<u32> = step.groups[0].members.iter().map(|m| m.rollout.id.member).collect();
            assert_eq!(members, [0, 1, 3]);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_and_a_short_response_while_sampling_fail_their_group_with_the_cause() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.service.on_sample = Box::new(|n, _, samples| {
            assert_ne!(n, 0, "sampler bug");
            if n == 1 {
                samples.pop();
            }
            Ok(())
        });
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(run.groups(), [[2]]);
        let (first, group, last) = run.line.ledger().failures().unwrap();
        assert!(first.contains("it panicked") && first.contains("sampler bug"), "{first}");
        assert!(group.0 == 1 && last.contains("2 samples were requested, 1 arrived"), "{last}");
        let busy: u64 = run.line.observer().board.read().iter().map(|(_, stage)| stage.busy).sum();
        assert_eq!(busy, 0);
    })
    .await;
}

/// The scripted samples have the logprobs -0.5, -0.25; under the reference every token has -1. So their drifts are 0.5
/// and 0.75 in every member, their mean is 0.625, and at 2 a nat the tokens' advantages change by 2 · (0.625 - 0.5) = 0.25
/// and 2 · (0.625 - 0.75) = -0.25.
#[tokio::test(start_paused = true)]
async fn drift_from_the_reference_is_paid_for_token_by_token() {
    local(async {
        let mut world = World::new(1, 1, 2);
        world.reference = Some(0);
        world.options.batch.kl_penalty = 2.0;
        // Equal rewards in the second group: what is left is the penalty.
        world.environment.judge =
            Box::new(|id, _| Judge::Reward(if id.group.0 == 0 { id.member as f32 } else { 1.0 }));
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(2));
        for (step, earned) in run.steps.iter().zip([[-0.5, 0.5], [0.0, 0.0]]) {
            assert_eq!(step.record.numbers()["optim/kl_policy_base"], 0.625);
            for (datum, earned) in step.groups[0].data.iter().zip(earned) {
                let LossInputs::Policy { advantages, .. } = datum.inputs() else { panic!("{datum:?}") };
                let [.., first, second] = advantages[..] else { panic!("{advantages:?}") };
                assert_eq!([first, second], [earned + 0.25, earned - 0.25]);
            }
            assert_eq!(step.groups[0].data.len(), 2);
        }
        // One question for every different answer to every different prompt.
        assert_eq!(run.queries.sent(), 4);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_rollout_whose_drift_is_not_known_is_not_trained() {
    local(async {
        let mut world = World::new(1, 0, 3);
        world.group_size = 4;
        world.reference = Some(0);
        world.options.batch.kl_penalty = 0.1;
        world.service.on_query = Box::new(|n, _| match n {
            2 => Err(BackendError::Rejected("too long".into())),
            _ => Ok(()),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(3));
        assert_eq!(run.metric("env/all/missing_episodes"), [1.0, 0.0, 0.0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn replacing_groups_that_teach_nothing_has_an_end() {
    local(async {
        let mut world = World::new(2, 1, 5);
        world.options.batch.constant = ConstantGroups::Replace;
        world.options.max_replaced_in_a_row = 20;
        // Three steps have something to learn, and then nothing has.
        world.environment.judge =
            Box::new(|id, _| Judge::Reward(if id.group.0 < 6 { id.member as f32 } else { 1.0 }));
        let mut run = world.start();
        let why = run.end().await.unwrap_err();
        assert!(why.contains("20 groups in a row had equal rewards"), "{why}");
        assert_eq!((run.steps.len(), run.saved.len()), (3, 1), "what was learnt is saved");
    })
    .await;
}
