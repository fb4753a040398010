//! Episodes of several turns, and questions to the oracle.

use crate::testkit::{Run, World, local, seconds};
use minds_core::service::BackendError;
use minds_simulation::{SimulatedService, SimulationOptions};
use minds_stages::scorer::LogprobSource;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

async fn play(env_turns: usize, max_turns: u32) -> Run {
    let mut world = World::new(2, 0, 2);
    world.environment.turns = env_turns;
    world.max_turns = max_turns;
    let mut run = world.start();
    run.end().await.unwrap();
    run
}

fn seeds(run: &Run) -> BTreeSet<u64> {
    run.record.asked().iter().map(|a| a.seed).collect()
}

#[tokio::test(start_paused = true)]
async fn members_share_the_first_request_and_continue_with_their_own_seeds() {
    local(async {
        let run = play(3, 8).await;
        let asked = run.record.asked();
        // Four groups: one request for both members, then two more for each of the two.
        assert_eq!(asked.len(), 4 * (1 + 2 * 2));
        assert_eq!(asked.iter().filter(|a| a.samples == 2).count(), 4);
        assert_eq!(seeds(&run).len(), asked.len(), "all seeds differ");
        assert_eq!(seeds(&run), seeds(&play(3, 8).await), "and come again");
        for member in run.steps.iter().flat_map(|s| &s.groups).flat_map(|g| g.members.iter()) {
            let turns = &member.rollout.turns;
            assert_eq!(turns.len(), 3);
            let first = [&turns[0].prompt[..], &turns[0].completion.tokens].concat();
            assert!(turns[1].prompt.starts_with(&first), "a prompt holds all that was said before");
        }
        let data = run.record.data();
        assert!(data.iter().all(|batch| batch.len() == 4), "one datum per rollout");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_turns_ends_an_episode_without_asking_the_environment() {
    local(async {
        let run = play(10, 2).await;
        let episodes = || run.steps.iter().flat_map(|s| &s.groups).flat_map(|g| g.members.iter());
        assert!(episodes().all(|m| m.rollout.turns.len() == 2));
        assert_eq!(run.environment.replies.load(Relaxed), episodes().count() as u64);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_turn_requests_more_than_the_context_and_a_full_context_ends_the_rollout() {
    local(async {
        let mut world = World::new(2, 0, 2);
        world.environment.turns = 5;
        world.max_turns = 8;
        // A prompt is `item N`, and each turn adds two tokens of the answer and the seven of `go on N`.
        world.context = 20;
        let mut run = world.start();
        run.end().await.unwrap();
        let asked = run.record.asked();
        let mut shortened = 0;
        for request in asked.iter() {
            assert_eq!(request.max_tokens, 8.min(20 - request.prompt.len()));
            shortened += usize::from(request.max_tokens < 8);
        }
        assert!(shortened > 0);
        let episodes = || run.steps.iter().flat_map(|s| &s.groups).flat_map(|g| g.members.iter());
        assert!(episodes().all(|m| m.rollout.turns.len() == 2), "a third prompt has 24 tokens or more");
        assert_eq!(run.line.ledger().counts().failed, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_first_prompt_that_fills_the_context_fails_its_group_by_the_numbers() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.options.max_failed_in_a_row = 1;
        world.context = 6;
        let why = world.start().end().await.unwrap_err();
        assert!(why.contains("the model reads 6"), "{why}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn members_that_ask_the_same_question_share_one_query_per_version() {
    local(async {
        let mut world = World::new(2, 0, 2);
        world.group_size = 4;
        world.environment.questions = 2;
        world.service.query_delay = Box::new(|_| seconds(5));
        let mut run = world.start();
        run.end().await.unwrap();
        // Two steps, so two versions; 8 episodes with two questions each per step.
        assert_eq!(run.counts().queries, 2);
        assert_eq!(run.queries.sent(), 2);
        assert_eq!(run.queries.remembered(), 2 * (8 * 2 - 1));
        assert_eq!(run.elapsed(), 10.0);
    })
    .await;
}

/// Weights with n steps behind them answer with -1 / (n + 1).
#[tokio::test(start_paused = true)]
async fn logprob_queries_use_the_sampling_the_newest_or_fixed_weights() {
    local(async {
        for (name, expected) in [("sampled", -1.0), ("latest", -0.5), ("fixed", -0.1)] {
            let mut world = World::new(1, 1, 2);
            world.environment.questions = 1;
            // Played by the first weights, and ready when step 1 is done.
            world.service.sample_delay = Box::new(|n| seconds(if n == 1 { 20 } else { 1 }));
            let fixed = SimulatedService::new(SimulationOptions::default()).sampler(9);
            world.judge = match name {
                "sampled" => LogprobSource::Sampled,
                "latest" => LogprobSource::Latest,
                _ => LogprobSource::Fixed(fixed),
            };
            let mut run = world.start();
            run.end().await.unwrap();
            let heard = run.environment.heard.lock().unwrap();
            let second: Vec<f32> =
                heard.iter().filter(|(id, _)| id.group.0 == 1).map(|(_, lp)| *lp).collect();
            assert_eq!(second, [expected; 2], "{name}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_query_that_fails_or_hangs_is_retried() {
    local(async {
        let mut world = World::new(1, 0, 1);
        world.group_size = 4;
        world.environment.questions = 1;
        world.service.on_query =
            Box::new(|n, _| if n == 0 { Err(BackendError::Unavailable("away".into())) } else { Ok(()) });
        world.service.query_delay = Box::new(|n| seconds(if n == 1 { 1_000_000 } else { 5 }));
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(run.steps[0].groups[0].missing, 0);
        assert_eq!(run.counts().queries, 3, "once for all members at each try");
    })
    .await;
}
