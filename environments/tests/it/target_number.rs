use crate::support::{Reader, last, load, rollout};
use minds_core::chat::{Message, Role};
use serde_json::json;
use std::collections::BTreeSet;

fn reward(args: serde_json::Value, index: u64, answer: &str) -> f32 {
    let env = load("target_number", args);
    let reader = Reader::new();
    let score = reader.score(&*env, &env.item(index), answer).expect("needs no reader");
    assert_eq!(reader.asked(), []);
    score.reward.get()
}

#[test]
fn rewards_by_hand() {
    // 0.2 for the format, and 0.8 / (1 + ((x - 3) / 1.5)^2): 0.8 at 3, 0.4 at 1.5 and 4.5, 0.16 at 0 and 6.
    for (answer, expected) in [("[3]", 1.0), ("[1.5]", 0.6), ("[4.5]", 0.6), ("[0]", 0.36), ("[6.0]", 0.36)] {
        assert!((reward(json!({}), 0, answer) - expected).abs() < 1e-6, "{answer}");
    }
    assert!((reward(json!({"target": -2.5}), 0, "[-2.5]") - 1.0).abs() < 1e-6);
    // Far away the format is still worth 0.2; an invalid answer is worth nothing.
    assert!((reward(json!({}), 0, "[900000]") - 0.2).abs() < 1e-6);
    for answer in ["", "3", "[3", "[3]3]3[3]", "[3, 3]", "I say [3]", "[three]"] {
        assert_eq!(reward(json!({}), 0, answer), 0.0, "{answer:?}");
    }
}

#[test]
fn a_shown_target_goes_from_minus_nine_to_nine_by_item() {
    let env = load("target_number", json!({"shown": true}));
    assert_eq!(env.items().get(), 19);
    let mut targets = BTreeSet::new();
    for index in 0..19 {
        let item = env.item(index);
        let target = item.info["target"].as_f64().expect("a number");
        assert!(last(&item).content.ends_with(&format!("close to {target}.")), "{}", last(&item).content);
        assert_eq!(item.answer, Some(format!("[{target}]")));
        assert!((reward(json!({"shown": true}), index, &format!("[{target}]")) - 1.0).abs() < 1e-6);
        targets.insert(target as i64);
    }
    assert_eq!(targets, (-9..=9).collect());
    assert_eq!(env.item(19), env.item(0));
}

#[test]
fn the_hidden_target_is_nowhere_in_the_prompt() {
    let env = load("target_number", json!({"target": 4.25, "shots": 4}));
    assert_eq!(env.items().get(), 1);
    assert!(env.item(0).prompt.iter().all(|message| !message.content.contains("4.25")));
}

#[test]
fn examples_are_earlier_exchanges_of_the_chat() {
    let system = Message::system("You reply with JSON only.");
    let question = Message::user("Write a JSON array that holds one number from -5 to 5.");
    let prompt = |shots: u64| load("target_number", json!({"shots": shots})).item(0).prompt;
    assert_eq!(prompt(0), [system.clone(), question.clone()]);
    assert_eq!(
        prompt(2),
        [
            system,
            question.clone(),
            Message::assistant("[2.5]"),
            question.clone(),
            Message::assistant("[-1.3]"),
            question,
        ]
    );
    assert_eq!(prompt(4).iter().filter(|m| m.role == Role::Assistant).count(), 4);
}

#[test]
fn metrics_hold_the_parts_of_the_reward() {
    let env = load("target_number", json!({}));
    let score = Reader::new().score(&*env, &env.item(0), "[1.5]").expect("scored");
    let metrics: Vec<_> = score.metrics.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(
        metrics,
        [("closeness", 0.5), ("error", 1.5), ("format", 1.0), ("prediction", 1.5), ("valid", 1.0)]
    );
    let score = Reader::new().score(&*env, &env.item(0), "no").expect("scored");
    let metrics: Vec<_> = score.metrics.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(metrics, [("closeness", 0.0), ("format", 0.0), ("valid", 0.0)]);
}

#[test]
fn an_answer_that_did_not_end_is_not_valid() {
    let env = load("target_number", json!({}));
    let score = |complete| Reader::new().score_rollout(&*env, &env.item(0), &rollout("[3]", complete));
    assert_eq!(score(true).expect("scored").reward.get(), 1.0);
    assert_eq!(score(false).expect("scored").reward.get(), 0.0);
}
