use crate::support::{Reader, last, load, reply, rollout_of};
use minds_core::chat::{Message, Role};
use minds_core::environment::{Environment, EnvironmentReply, Item};
use minds_core::rollout::Rollout;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

fn env() -> Arc<dyn Environment> {
    load("number_guessing", json!({}))
}

/// The item whose hidden number is this.
fn hiding(env: &dyn Environment, number: u64) -> Item {
    (0..env.items().get())
        .map(|i| env.item(i))
        .find(|i| i.info["number"] == number)
        .expect("one item for each")
}

/// Plays these answers and returns what was replied to each, and the reward.
fn play(env: &dyn Environment, item: &Item, answers: &[&str]) -> (Vec<String>, f32) {
    let mut conversation = item.prompt.clone();
    let mut replies = Vec::new();
    for answer in answers {
        conversation.push(Message::assistant(*answer));
        match reply(env, item, &conversation) {
            EnvironmentReply::Done => replies.push("done".to_owned()),
            EnvironmentReply::Continue(messages) => {
                replies.extend(messages.iter().map(|m| m.content.clone()));
                conversation.extend(messages);
            }
        }
    }
    (replies, score(env, item, &rollout_of(answers)))
}

fn score(env: &dyn Environment, item: &Item, rollout: &Rollout) -> f32 {
    let reader = Reader::new();
    let score = reader.score_rollout(env, item, rollout).expect("needs no reader");
    assert_eq!(reader.asked(), []);
    score.reward.get()
}

#[test]
fn games_by_hand() {
    let env = env();
    let item = hiding(&*env, 13);
    for (answers, replies, reward) in [
        (&["13"][..], &["done"][..], 1.0),
        (&["10", "13"], &["higher", "done"], 0.5 + 0.5 * 3.0 / 4.0),
        (&["10", "15", "12", "13"], &["higher", "lower", "higher", "done"], 0.5 + 0.5 / 4.0),
        // Two away from the number, of nineteen: 0.1 + 0.3 * 17 / 19.
        (&["1", "2", "3", "15"], &["higher", "higher", "higher", "done"], 0.1 + 0.3 * 17.0 / 19.0),
        (&["1", "2", "3", "99"], &["higher", "higher", "higher", "done"], 0.1),
        (&["-5", "0"], &["higher", "higher"], 0.1),
        (&["10", "the middle"], &["higher", "done"], 0.0),
        (&["13 I think"], &["done"], 0.0),
        (&["13.0"], &["done"], 0.0),
        (&[" 13\n"], &["done"], 1.0),
    ] {
        let (said, earned) = play(&*env, &item, answers);
        assert_eq!(said, replies, "{answers:?}");
        assert!((earned - reward).abs() < 1e-6, "{answers:?}: {earned}");
    }
    let huge = "9".repeat(400);
    assert_eq!(play(&*env, &item, &[&huge]).0, ["lower"]);
    assert_eq!(play(&*env, &item, &[&format!("-{huge}")]).0, ["higher"]);
}

#[test]
fn an_incomplete_answer_fails_the_rollout_in_any_turn() {
    let env = env();
    let item = hiding(&*env, 7);
    for cut in 0..2 {
        let mut rollout = rollout_of(&["10", "7"]);
        rollout.turns[cut].complete = false;
        assert_eq!(score(&*env, &item, &rollout), 0.0);
    }
}

#[test]
fn every_number_is_hidden_once_and_no_prompt_reveals_it() {
    let env = load("number_guessing", json!({"largest": 100, "guesses": 7}));
    let numbers: BTreeSet<u64> =
        (0..100).map(|i| env.item(i).info["number"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (1..=100).collect());
    assert!((0..100).any(|i| env.item(i).info["number"] != i + 1));
    let prompts: BTreeSet<String> =
        (0..100).map(|i| env.item(i).prompt.iter().map(|m| m.content.clone()).collect()).collect();
    assert_eq!(prompts.len(), 1);
}

#[test]
fn the_example_is_a_game_that_was_won() {
    let texts = |args| -> Vec<String> {
        let prompt = load("number_guessing", args).item(0).prompt;
        assert_eq!(prompt[0].role, Role::System);
        prompt[1..].iter().map(|m| m.content.clone()).collect()
    };
    let question = "I think of a number from 1 to 20. You have 4 guesses.";
    assert_eq!(texts(json!({})), [question, "10", "higher", "15", &format!("found\n{question}")]);
    assert_eq!(texts(json!({"example": false})), [question]);
    assert_eq!(last(&env().item(3)).role, Role::User);
}
