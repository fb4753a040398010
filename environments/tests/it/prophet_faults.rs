//! The eleven known faults of the task's first version, P1 to P11: each test fails on code that has the fault.

use crate::prophet::taught;
use crate::support::{Query, Reader, last, line, load};
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item};
use minds_core::reward::RewardError;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn in_context() -> Arc<dyn Environment> {
    load("gradient_prophet", json!({}))
}

fn surprise() -> Arc<dyn Environment> {
    load("gradient_prophet", json!({"task": "surprise"}))
}

fn probes(item: &Item) -> usize {
    item.info["probes"].as_u64().expect("a number") as usize
}

/// The `n`-th probe of an item of the surprise task, from 1.
fn probe(item: &Item, n: usize) -> String {
    line(item, &format!("Probe {n}:")).to_owned()
}

/// A reader that after the lesson leans to another first token, the more the earlier the probe stands in `order`.
fn leaning(item: &Item, order: &[usize]) -> Reader {
    let by_surprise: Vec<String> = order.iter().map(|n| probe(item, *n)).collect();
    Reader::new().continuing(move |prefix| {
        let taught = prefix.matches("<|im_start|>user").count() > 1;
        let place = by_surprise
            .iter()
            .position(|p| prefix.contains(&format!("user\n{p}<|im_end|>\n<|im_start|>assistant")));
        let lean = if taught { 0.8 - 0.1 * place.expect("a probe is asked") as f32 } else { 0.1 };
        Ok(vec![(65, lean.ln()), (66, (0.9 - lean).ln())])
    })
}

#[test]
fn p1_surprise_comes_from_the_twenty_likeliest_tokens_of_both_prompts() {
    let env = surprise();
    let item = env.item(0);
    let order: Vec<usize> = (1..=probes(&item)).rev().collect();
    let reader = leaning(&item, &order);
    let score = reader.score(&*env, &item, &format!("{order:?}")).expect("scored");
    assert_eq!(score.reward.get(), 1.0);
    assert_eq!(reader.asked().len(), 2 * probes(&item));
    assert!(reader.asked().iter().all(|query| matches!(query, Query::NextTokens { k: 20, .. })));
}

#[test]
fn p1_surprise_is_the_divergence_of_the_posterior_from_the_prior() {
    // The lesson moves one probe most and the others a little: equal surprises would have no order.
    let first = AtomicBool::new(true);
    let reader = Reader::new().continuing(move |prefix| {
        let is_taught = prefix.matches("<|im_start|>user").count() > 1;
        let (a, b): (f32, f32) = match is_taught {
            true if first.swap(false, Ordering::Relaxed) => (0.8, 0.1),
            true => (0.6, 0.3),
            false => (0.5, 0.4),
        };
        Ok(vec![(65, a.ln()), (66, b.ln())])
    });
    let score = reader.score(&*surprise(), &surprise().item(0), "?").expect("invalid");
    // 0.8 ln (0.8 / 0.5) + 0.1 ln (0.1 / 0.4), the rest being 0.1 in both. The other way round it is 0.3195.
    assert!((score.metrics["largest_surprise"] - 0.2374).abs() < 1e-4, "{:?}", score.metrics);
}

#[test]
fn p1_a_service_without_top_k_is_answered_with_what_to_use_instead() {
    let env = surprise();
    let why = || "no top-k here".to_owned();
    for answer in [Ok(vec![]), Err(RewardError::Unsupported(why())), Err(RewardError::Refused(why()))] {
        let reader = Reader::new().continuing(move |_| answer.clone());
        let Err(RewardError::Unsupported(why)) = reader.score(&*env, &env.item(0), "[1]") else {
            panic!("no reward")
        };
        assert!(why.contains("use the task `in_context`"), "{why}");
    }
    let reader = Reader::new().continuing(|_| Err(RewardError::TimedOut(3)));
    assert_eq!(reader.score(&*env, &env.item(0), "[1]"), Err(RewardError::TimedOut(3)));
}

#[test]
fn p2_a_lesson_without_effect_has_zero_surprise_however_unlikely_the_answer() {
    let unmoved = || Reader::new().expecting(|_, _| -35.0).continuing(|_| Ok(vec![(65, -20.0)]));
    let score = unmoved().score(&*in_context(), &in_context().item(0), "[0]").expect("scored");
    assert_eq!((score.metrics["truth"], score.reward.get()), (0.0, 1.0));
    let env = surprise();
    let item = env.item(0);
    // Equal surprises have no correct order, so every member of the group gets a reward error, whatever it answered.
    let order: Vec<usize> = (1..=probes(&item)).collect();
    for answer in [&*format!("{order:?}"), "?", "[1]", ""] {
        let missing = unmoved().score(&*env, &item, answer);
        let Err(RewardError::Environment(why)) = &missing else { panic!("{answer}: {missing:?}") };
        assert!(why.contains("equally surprising"), "{why}");
    }
}

#[test]
fn probes_that_are_equally_surprising_share_their_ranks() {
    let env = surprise();
    let index = (0..152).find(|i| probes(&env.item(*i)) == 3).expect("a lesson with three probes");
    let item = env.item(index);
    // The first probe is changed, the other two are not.
    let changed = probe(&item, 1);
    let reader = Reader::new().continuing(move |prefix| {
        let taught = prefix.matches("<|im_start|>user").count() > 1;
        let is_first = prefix.contains(&format!("user\n{changed}<|im_end|>\n<|im_start|>assistant"));
        let lean: f32 = if taught && is_first { 0.8 } else { 0.1 };
        Ok(vec![(65, lean.ln()), (66, (0.9 - lean).ln())])
    });
    let reward = |answer: &str| reader.score(&*env, &item, answer).expect("scored").reward.get();
    // Ranks 0, 1.5, 1.5 against 0, 1, 2: 1.5 / sqrt(1.5 * 2). Which of the two stands before the other is all the same.
    for answer in ["[1, 2, 3]", "[1, 3, 2]"] {
        assert!((reward(answer) - 0.75_f32.sqrt()).abs() < 1e-6, "{answer}");
    }
    assert!(
        reward("[2, 3, 1]") < -0.8 && reward("[2, 3, 1]") > -1.0,
        "an invalid answer earns less than any order"
    );
    assert_eq!(reward("[1]"), -1.0);
}

#[test]
fn p3_an_unreadable_answer_gets_less_than_any_valid_one() {
    let env = in_context();
    let reward = |answer: &str| taught().score(&*env, &env.item(0), answer).expect("scored").reward.get();
    assert_eq!(reward("I cannot say"), 0.0);
    assert!(reward("[0]") > reward("") && reward("[-1000000]") > reward(""));
    let env = surprise();
    let item = env.item(0);
    let identity: Vec<usize> = (1..=probes(&item)).collect();
    let reader = leaning(&item, &identity);
    assert_eq!(reader.score(&*env, &item, &format!("{identity:?}")).expect("scored").reward.get(), 1.0);
    let score = reader.score(&*env, &item, "whatever").expect("scored");
    assert_eq!((score.reward.get(), score.metrics["valid"]), (-1.0, 0.0));
}

#[test]
fn p4_every_probe_of_every_lesson_is_used() {
    let (one, all) = (in_context(), surprise());
    let mut asked = BTreeSet::new();
    for index in 0..one.items().get() {
        let item = one.item(index);
        asked.insert((line(&item, "Lesson:").to_owned(), line(&item, "Probe:").to_owned()));
    }
    let mut exist = BTreeSet::new();
    for index in 0..all.items().get() {
        let item = all.item(index);
        exist.extend((1..=probes(&item)).map(|n| (line(&item, "Lesson:").to_owned(), probe(&item, n))));
    }
    assert_eq!(asked, exist);
    // 152 controls, and each related probe once per cycle beside one of them.
    assert_eq!(one.items().get() as usize, 2 * (exist.len() - 152));
}

#[test]
fn p5_one_failed_query_leaves_no_reward() {
    for (env, queries) in [(in_context(), 2), (surprise(), 2 * probes(&surprise().item(0)))] {
        for fails_at in 0..queries {
            for answer in ["[1]", "nonsense"] {
                let reader = taught().failing_at(fails_at);
                let missing = reader.score(&*env, &env.item(0), answer);
                assert_eq!(missing, Err(RewardError::Service("away".into())), "{fails_at}");
            }
        }
    }
    let reader = taught().short_by(1);
    let missing = reader.score(&*in_context(), &in_context().item(0), "[1]");
    assert!(matches!(missing, Err(RewardError::Service(_))), "{missing:?}");
}

#[test]
fn p6_an_order_names_every_probe_exactly_once() {
    let env = surprise();
    let index = (0..152).find(|i| probes(&env.item(*i)) == 4).expect("a lesson with four probes");
    let item = env.item(index);
    let reader = leaning(&item, &[2, 3, 4, 1]);
    let reward = |answer: &str| reader.score(&*env, &item, answer).expect("scored").reward.get();
    assert_eq!(reward("[2, 3, 4, 1]"), 1.0);
    // The last two swapped: 1 - 6 * 2 / (4 * 15).
    assert!((reward("[2, 3, 1, 4]") - 0.8).abs() < 1e-6);
    for answer in ["[2.9, 3, 4, 1]", "[0, 1, 2, 3]", "[2, 2, 3, 4]", "[2, 3]", "[2]", "[]", "[2, 3, 4, 1, 5]"]
    {
        assert_eq!(reward(answer), -1.0, "{answer}");
    }
}

#[test]
fn p7_members_of_a_group_ask_the_same_questions() {
    for env in [in_context(), surprise()] {
        let asked = |answer: &str| -> Vec<Query> {
            let reader = taught();
            let item = env.item(2);
            // Only the query matters: the cache in front of the reader answers equal queries once.
            drop(reader.score(&*env, &item, answer));
            reader.asked()
        };
        assert!(!asked("[0.5]").is_empty());
        for answer in ["[1, 2, 3]", "[7]", "nonsense", ""] {
            assert_eq!(asked(answer), asked("[0.5]"), "{answer}");
        }
    }
}

#[test]
fn p8_the_truth_belongs_to_the_weights_that_score() {
    let env = in_context();
    let truth = |reader: Reader| reader.score(&*env, &env.item(0), "[1]").expect("scored").metrics["truth"];
    assert_eq!(truth(taught()), 2.0);
    assert_eq!(truth(Reader::new()), 0.0);
}

#[test]
fn p9_probes_are_sent_as_chat() {
    let env = in_context();
    let item = env.item(0);
    let reader = taught();
    reader.score(&*env, &item, "[1]").expect("scored");
    let (lesson, probe) = (line(&item, "Lesson:"), line(&item, "Probe:"));
    let (question, answer) = lesson.split_once("? ").expect("a question and its answer");
    let spelled = |messages: &[Message]| reader.tokenizer.spell(&reader.renderer.prompt(messages).unwrap());
    let alone = spelled(&[Message::user(probe)]);
    let after =
        spelled(&[Message::user(format!("{question}?")), Message::assistant(answer), Message::user(probe)]);
    let target = line(&item, "Target:").to_owned();
    let query = |prefix| Query::Logprobs { prefix, target: target.clone() };
    assert_eq!(reader.asked(), [query(alone.clone()), query(after)]);
    assert!(alone.ends_with(&format!("<|im_start|>user\n{probe}<|im_end|>\n<|im_start|>assistant\n")));
}

#[test]
fn p10_the_truth_per_token_does_not_grow_with_the_target() {
    let (env, sum) = (in_context(), load("gradient_prophet", json!({"reward_form": "sum"})));
    let mut lengths = BTreeSet::new();
    for index in 0..20 {
        let item = env.item(index);
        let length = line(&item, "Target:").len();
        lengths.insert(length);
        assert_eq!(taught().score(&*env, &item, "[2]").expect("scored").reward.get(), 1.0);
        let score = taught().score(&*sum, &sum.item(index), "[2]").expect("scored");
        assert_eq!(score.metrics["truth"], 2.0 * length as f64);
        assert!(score.reward.get() < 0.01);
    }
    assert!(lengths.len() > 3);
}

#[test]
fn p11_brackets_in_prose_are_not_an_answer() {
    let env = in_context();
    let reward = |answer: &str| taught().score(&*env, &env.item(0), answer).expect("scored").reward.get();
    assert_eq!(reward("[2]"), 1.0);
    for answer in ["[delta_logprob] = [2]", "The change is [2]", "[2]2]2[2]", "[2] [2]", "[\"2\"]", "2"] {
        assert_eq!(reward(answer), 0.0, "{answer}");
    }
    assert!(last(&env.item(0)).content.contains("Lesson: "));
}
