//! self_prediction as a run uses it, and the seven known faults of its first version, S1 to S7.

use crate::support::{Reader, last, load, rollout};
use minds_core::chat::{Message, Role};
use minds_core::environment::{Environment, Item};
use minds_core::reward::Score;
use minds_environments::native;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

fn env() -> Arc<dyn Environment> {
    load("self_prediction", json!({}))
}

fn score(env: &dyn Environment, item: &Item, answer: &str) -> Score {
    let reader = Reader::new();
    let score = reader.score(env, item, answer).expect("needs no reader");
    assert_eq!(reader.asked(), []);
    score
}

fn reward(env: &dyn Environment, item: &Item, answer: &str) -> f32 {
    score(env, item, answer).reward.get()
}

fn both(answer: impl std::fmt::Display, confidence: &str) -> String {
    format!("FINAL ANSWER: {answer}\nCONFIDENCE: {confidence}")
}

fn result(item: &Item) -> i128 {
    item.answer.as_deref().expect("a sum has a result").parse().expect("a whole number")
}

/// The first item whose question passes.
fn find(env: &dyn Environment, is_wanted: impl Fn(&Item) -> bool) -> Item {
    (0..env.items().get()).map(|i| env.item(i)).find(is_wanted).expect("there is such an item")
}

fn close(a: f32, b: f32) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn rewards_by_hand() {
    let env = env();
    let item = env.item(0);
    let right = result(&item);
    for (answer, expected) in [
        (both(right, "1"), 1.0),
        (both(right, "0.9"), 0.2 + 0.5 + 0.3 * 0.99),
        (both(right, "0"), 0.7),
        (both(right + 1, "0"), 0.5),
        (both(right + 1, "0.5"), 0.2 + 0.3 * 0.75),
        (both(right + 1, "1"), 0.2),
        (format!("FINAL ANSWER: {right}"), 0.5),
        (format!("FINAL ANSWER: {}", right + 1), 0.0),
        (right.to_string(), 0.0),
    ] {
        assert!(close(reward(&*env, &item, &answer), expected), "{answer}");
    }
}

#[test]
fn the_log_score_costs_a_sure_mistake_most() {
    let env = load("self_prediction", json!({"calibration": "log"}));
    let item = env.item(0);
    let right = result(&item);
    // 1 - ln p / ln 0.01 is 1/2 at p = 0.1.
    assert!(close(reward(&*env, &item, &both(right, "0.1")), 0.7 + 0.15));
    assert!(close(reward(&*env, &item, &both(right + 1, "0.9")), 0.2 + 0.15));
    assert!(close(reward(&*env, &item, &both(right + 1, "1")), 0.2));
}

#[test]
fn metrics_hold_the_parts_of_the_reward() {
    let env = env();
    let item = env.item(0);
    let names =
        |answer: &str| -> Vec<(String, f64)> { score(&*env, &item, answer).metrics.into_iter().collect() };
    let named = |metrics: &[(&str, f64)]| -> Vec<(String, f64)> {
        metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    let expected =
        [("calibration", 0.75), ("confidence", 0.5), ("correct", 0.0), ("format", 1.0), ("valid", 1.0)];
    assert_eq!(names(&both(-999, "0.5")), named(&expected));
    assert_eq!(
        names("what?"),
        named(&[("calibration", 0.0), ("correct", 0.0), ("format", 0.0), ("valid", 0.0)])
    );
}

#[test]
fn questions_have_the_operands_of_their_level_and_the_right_result() {
    for (level, largest) in [("to_20", 20), ("one_digit", 9), ("full", 1_000_000_000_000_i128)] {
        let env = load("self_prediction", json!({ "level": level }));
        let mut large = 0;
        for index in 0..env.items().get() {
            let item = env.item(index);
            let text = &last(&item).content;
            let words: Vec<&str> =
                text.strip_prefix("What is ").expect("a question").trim_end_matches('?').split(' ').collect();
            let [left, sign, right] = words[..] else { panic!("{text}") };
            let (left, right): (i128, i128) =
                (left.parse().expect("a number"), right.parse().expect("a number"));
            assert!(left.max(right) <= largest, "{text}");
            let expected = match sign {
                "+" => left + right,
                "-" => left - right,
                _ => left * right,
            };
            assert_eq!((result(&item), item.info["operation"].as_str()), (expected, Some(sign)), "{text}");
            large += i128::from(left > 999);
        }
        let share = large * 100 / i128::from(env.items().get());
        assert_eq!(share, if level == "full" { 15 } else { 0 });
    }
}

#[test]
fn the_small_levels_hold_every_question_once_and_no_example() {
    // 21 * 21 pairs less the two examples that are sums, for each of three operations; 100 pairs less one example.
    for (level, items, strata) in [("to_20", 3 * (21 * 21 - 2), 3), ("one_digit", 99, 1)] {
        let env = load("self_prediction", json!({ "level": level, "shots": 4 }));
        assert_eq!((env.items().get(), env.strata().get()), (items, strata));
        let questions: BTreeSet<String> = (0..items).map(|i| last(&env.item(i)).content.clone()).collect();
        assert_eq!(questions.len() as u64, items);
        let examples = env.item(0).prompt;
        assert!(examples[..examples.len() - 1].iter().all(|m| !questions.contains(&m.content)));
        for i in 0..items {
            assert_eq!(env.item(i).info["operation"], env.item(i % strata).info["operation"]);
        }
    }
}

#[test]
fn examples_are_earlier_exchanges_of_the_chat() {
    let prompt = load("self_prediction", json!({})).item(7).prompt;
    assert_eq!(
        prompt[..5],
        [
            Message::system(
                "You solve sums and say how sure you are, from 0 to 1. Reply with two lines: FINAL ANSWER and \
                 CONFIDENCE."
            ),
            Message::user("What is 6 + 5?"),
            Message::assistant("FINAL ANSWER: 11\nCONFIDENCE: 0.9"),
            Message::user("What is 17 * 13?"),
            Message::assistant("FINAL ANSWER: 221\nCONFIDENCE: 0.3"),
        ]
    );
    assert_eq!((prompt.len(), prompt[5].role), (6, Role::User));
}

// S1: the first version kept letters and digits only, so that 5 equalled -5.
#[test]
fn s1_a_lost_sign_or_point_is_a_wrong_answer() {
    let env = env();
    let item = find(&*env, |item| result(item) < -1);
    let right = result(&item);
    let correct = |answer: String| score(&*env, &item, &both(answer, "0.5")).metrics["correct"];
    assert_eq!(correct(right.to_string()), 1.0);
    assert_eq!(correct(format!("\u{2212}{}", -right)), 1.0);
    for wrong in [(-right).to_string(), format!("{right}.5"), format!("{right}0"), format!("--{}", -right)] {
        assert_eq!(correct(wrong.clone()), 0.0, "{wrong}");
    }
}

// S2: answers were compared as floats, which are the same for neighbours above 2^53; and the first number of the line
// counted.
#[test]
fn s2_neighbours_beyond_2_to_53_are_different_numbers() {
    let env = load("self_prediction", json!({"level": "full"}));
    let item = find(&*env, |item| result(item) > 1 << 60);
    let right = result(&item);
    assert_eq!((right as f64).to_bits(), ((right + 1) as f64).to_bits());
    assert!(close(reward(&*env, &item, &both(right, "1")), 1.0));
    assert!(close(reward(&*env, &item, &both(right + 1, "1")), 0.2));
    assert_eq!(reward(&*env, &item, &both(format!("1 + {right} = {right}"), "1")), 0.0);
    // A number too long for any machine is a wrong answer and no more.
    assert!(close(reward(&*env, &item, &both("9".repeat(5000), "1")), 0.2));
}

// S3: a missing confidence counted as 0.5 and earned 0.225 for nothing.
#[test]
fn s3_without_a_confidence_there_is_no_calibration() {
    let env = env();
    let item = env.item(0);
    let wrong = result(&item) + 1;
    for answer in
        [format!("FINAL ANSWER: {wrong}"), "CONFIDENCE: 0.5".into(), both(wrong, "half"), String::new()]
    {
        assert_eq!(reward(&*env, &item, &answer), 0.0, "{answer}");
    }
    // Being wrong with a low confidence gets less than being right, and more than being wrong with a high one.
    let earned = |answer, confidence| reward(&*env, &item, &both(answer, confidence));
    assert!(earned(wrong - 1, "0.5") > earned(wrong, "0") && earned(wrong, "0") > earned(wrong, "1"));
}

// S4: an empty answer became the next line, percentages were read as numbers, the first match won over the last.
#[test]
fn s4_the_two_lines_are_exact() {
    let env = env();
    let item = find(&*env, |item| result(item) == 12);
    for (answer, expected) in [
        ("FINAL ANSWER: 12\nCONFIDENCE: 1", 1.0),
        ("FINAL ANSWER: 12\nCONFIDENCE: 90%", 0.5),
        ("FINAL ANSWER: 12\nCONFIDENCE: -.5", 0.5),
        ("FINAL ANSWER: 12\nCONFIDENCE: 1.5", 0.5),
        ("FINAL ANSWER:\nCONFIDENCE: 1", 0.0),
        ("FINAL ANSWER:\n12\nCONFIDENCE: 1", 0.0),
        ("**FINAL ANSWER:** 12\nCONFIDENCE: 1", 0.0),
        ("FINAL ANSWER : 12\nCONFIDENCE: 1", 0.0),
        ("FINAL ANSWER: 11\nFINAL ANSWER: 12\nCONFIDENCE: 1", 0.0),
        ("FINAL ANSWER: 12\nCONFIDENCE: 1\nCONFIDENCE: 1", 0.0),
        ("FINAL ANSWER: 12\nCONFIDENCE: 1\nAnd so on", 0.0),
    ] {
        assert!(close(reward(&*env, &item, answer), expected), "{answer:?}");
    }
}

// S5: the prompt asked for a think block that the renderer had already closed.
#[test]
fn s5_no_prompt_asks_for_thoughts() {
    for message in load("self_prediction", json!({"shots": 4})).item(0).prompt {
        assert!(!message.content.to_lowercase().contains("think"), "{}", message.content);
    }
}

// S6: arguments were accepted that nothing read.
#[test]
fn s6_an_argument_that_nothing_reads_is_refused() {
    for args in [json!({"alpha": 0.5}), json!({"level": "one_digit", "items": 50})] {
        assert!(native::load("self_prediction", args.as_object().expect("a table"), 0).is_err(), "{args}");
    }
}

// S7: the data were drawn without a seed, and an answer cut off by the token limit was read as if it had ended.
#[test]
fn s7_items_follow_from_the_seed_and_a_truncated_answer_is_invalid() {
    let args: Value = json!({"level": "full"});
    let item = |seed, index| {
        native::load("self_prediction", args.as_object().expect("a table"), seed).expect("right").item(index)
    };
    assert_eq!(item(1, 4321), item(1, 4321));
    assert_ne!(item(1, 4321), item(2, 4321));
    let env = env();
    let item = env.item(0);
    let answer = both(result(&item), "1");
    let cut = Reader::new().score_rollout(&*env, &item, &rollout(&answer, false)).expect("scored");
    assert_eq!((cut.reward.get(), cut.metrics["valid"]), (0.0, 0.0));
}
