//! entropy_intuition as a run uses it, and the nine known faults of its first version, E1 to E9.

use crate::support::{Query, Reader, last, load, rollout};
use minds_core::environment::{Environment, Item};
use minds_core::ids::Token;
use minds_core::reward::{RewardError, Score};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

fn env() -> Arc<dyn Environment> {
    load("entropy_intuition", json!({}))
}

fn allowed(item: &Item) -> Vec<i64> {
    item.info["allowed"].as_array().expect("a list").iter().map(|n| n.as_i64().expect("a number")).collect()
}

fn find(env: &dyn Environment, mode: &str) -> Item {
    (0..env.items().get()).map(|i| env.item(i)).find(|item| item.info["mode"] == mode).expect("there is one")
}

const OPENING: &str = "<|im_start|>assistant\nNUMBER: ";

/// The likely tokens of a reader that chooses each number with this probability, and ends the line after it.
fn choosing(weights: BTreeMap<String, f64>) -> impl Fn(&str) -> Result<Vec<(Token, f32)>, RewardError> {
    move |prefix| {
        let (_, written) = prefix.rsplit_once(OPENING).expect("the answer is opened as the policy opens it");
        let of = |start: &str| -> f64 {
            weights.iter().filter(|(n, _)| format!("{n}\n").starts_with(start)).map(|(_, p)| p).sum()
        };
        let all = of(written);
        let next =
            "0123456789\n".chars().map(|c| (c as Token, (of(&format!("{written}{c}")) / all).ln() as f32));
        Ok(next.filter(|(_, lp)| lp.is_finite()).collect())
    }
}

fn even(numbers: impl IntoIterator<Item = i64>) -> BTreeMap<String, f64> {
    numbers.into_iter().map(|n| (n.to_string(), 1.0)).collect()
}

fn answer(number: i64, entropy: &str) -> String {
    format!("NUMBER: {number}\nFEELING: calm\nENTROPY: {entropy}")
}

fn scored(reader: &Reader, item: &Item, answer: &str) -> Score {
    reader.score(&*env(), item, answer).expect("scored")
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-5
}

#[test]
fn a_scripted_episode_by_hand() {
    let item = find(&*env(), "uniform");
    let numbers = allowed(&item);
    let reader = Reader::new().continuing(choosing(even(numbers.iter().copied())));
    let Score { reward, metrics } = scored(&reader, &item, &answer(numbers[0], "0.75"));
    // Every number is equally likely: the truth is 1.
    assert!(close(metrics["truth"], 1.0) && close(metrics["allowed_mass"], 1.0));
    assert!(close(metrics["error"], 0.25) && close(f64::from(reward.get()), 0.2 + 0.8 * 0.75));
    assert_eq!((metrics["valid"], metrics["prediction"], metrics["readable"]), (1.0, 0.75, 1.0));
    assert_eq!(metrics["choices"], numbers.len() as f64);
}

#[test]
fn failures_are_graded_below_every_valid_reward() {
    let item = find(&*env(), "subset");
    let numbers = allowed(&item);
    let between = numbers[0] + 1;
    assert!(!numbers.contains(&between) || numbers[0] == 2);
    let outside_set = (numbers[0]..numbers[numbers.len() - 1]).find(|n| !numbers.contains(n)).expect("a gap");
    let flat = load("entropy_intuition", json!({"grading": "flat"}));
    let reader = || Reader::new().continuing(choosing(even(1..=100)));
    for (answer, graded, flat_reward) in [
        (answer(outside_set, "0.5"), 0.1, -0.2),
        (answer(777, "0.5"), 0.05, -0.2),
        (answer(-1, "0.5"), 0.05, -0.2),
        ("I take 12".into(), -0.2, -0.2),
    ] {
        assert!(close(f64::from(scored(&reader(), &item, &answer).reward.get()), graded), "{answer}");
        let score = reader().score(&*flat, &item, &answer).expect("scored");
        assert!(close(f64::from(score.reward.get()), flat_reward), "{answer}");
    }
    let worst = scored(&reader(), &item, &answer(numbers[0], "0"));
    assert!(close(worst.metrics["truth"], 1.0) && close(f64::from(worst.reward.get()), 0.2));
}

// E1: the reward looked for what no rollout ever carried, and was 0 for everybody.
#[test]
fn e1_the_reward_needs_nothing_but_item_episode_and_reader() {
    let item = find(&*env(), "biased");
    let number = allowed(&item)[0];
    let reader = Reader::new()
        .continuing(choosing(BTreeMap::from([(number.to_string(), 1.0)])))
        .expecting(|_, _| f32::NEG_INFINITY);
    assert!(close(f64::from(scored(&reader, &item, &answer(number, "0")).reward.get()), 1.0));
}

// E2: invalid mass was one more outcome, and one number was divided by log 2.
#[test]
fn e2_entropy_is_over_the_allowed_numbers_alone() {
    let product = find(&*env(), "product");
    let number = allowed(&product)[0];
    let other = if number == 50 { 51 } else { 50 };
    let weights = BTreeMap::from([(number.to_string(), 0.9), (other.to_string(), 0.1)]);
    let metrics = scored(&Reader::new().continuing(choosing(weights)), &product, "?").metrics;
    assert!(close(metrics["truth"], 0.0) && close(metrics["allowed_mass"], 0.9), "{metrics:?}");

    let uniform = find(&*env(), "uniform");
    let numbers = allowed(&uniform);
    let outside = (1..=100).find(|n| !numbers.contains(n)).expect("a number outside");
    let mut weights = even(numbers.iter().copied());
    weights.insert(outside.to_string(), 4.0 * numbers.len() as f64);
    let metrics = scored(&Reader::new().continuing(choosing(weights)), &uniform, "?").metrics;
    assert!(close(metrics["truth"], 1.0) && close(metrics["allowed_mass"], 0.2), "{metrics:?}");
}

// E3: "1" had all the mass of "12" as well.
#[test]
fn e3_a_number_is_not_given_the_mass_of_longer_ones() {
    let env = env();
    let item = (0..env.items().get())
        .map(|i| env.item(i))
        .find(|item| allowed(item).starts_with(&[2, 4]) || allowed(item).starts_with(&[2, 3]))
        .expect("a small range");
    let numbers = allowed(&item);
    // Half the mass lies on 20 to 29, which a wrong sum would give to 2.
    let mut weights = even(numbers.iter().copied().filter(|n| *n < 10));
    let small = weights.len() as f64;
    for n in 20..30 {
        weights.insert(n.to_string(), if numbers.contains(&n) { 0.0 } else { small / 10.0 });
    }
    let metrics = scored(&Reader::new().continuing(choosing(weights.clone())), &item, "?").metrics;
    let all: f64 = weights.values().sum();
    let expected = small.ln() / (numbers.len() as f64).ln();
    assert!(close(metrics["truth"], expected) && close(metrics["allowed_mass"], small / all), "{metrics:?}");
}

// E4: the context was a bare text, without system line and template.
#[test]
fn e4_the_reader_is_queried_where_the_policy_writes_its_number() {
    let reader = Reader::new().continuing(choosing(even(1..=100)));
    let item = find(&*env(), "uniform");
    scored(&reader, &item, "?");
    let prompt = reader.tokenizer.spell(&reader.renderer.prompt(&item.prompt).unwrap());
    for query in reader.asked() {
        let Query::NextTokens { prefix, .. } = query else { panic!("{query:?}") };
        assert!(prefix.starts_with(&format!("{prompt}NUMBER: ")), "{prefix}");
    }
    assert!(prompt.starts_with("<|im_start|>system\nYou choose a number"));
}

// E5: the trainer's newer weights were asked, through its queue. E6: every rollout of a group asked for every number.
#[test]
fn e5_e6_a_group_sends_its_reader_at_most_eleven_queries_the_same_for_all_members() {
    let env = env();
    for index in 0..40 {
        let item = env.item(index);
        let asked = |answer: &str| {
            let reader = Reader::new().continuing(choosing(even(1..=100)));
            scored(&reader, &item, answer);
            let mut asked = reader.asked();
            asked.sort();
            asked
        };
        assert_eq!(asked("?"), asked(&answer(allowed(&item)[0], "0.3")));
        assert!((1..=11).contains(&asked("?").len()), "{}", asked("?").len());
    }
}

#[test]
fn a_service_without_top_k_lists_is_queried_per_token() {
    let item = find(&*env(), "uniform");
    let numbers = allowed(&item);
    for refusal in [RewardError::Refused("no lists".into()), RewardError::Unsupported("no lists".into())] {
        // Every token is as likely as any other: a number of two digits has the same probability as its neighbour.
        let reader = Reader::new().continuing(move |_| Err(refusal.clone())).expecting(|_, _| -2.5);
        let metrics = scored(&reader, &item, &answer(numbers[0], "1")).metrics;
        if numbers[0] >= 11 && numbers[numbers.len() - 1] < 100 {
            assert!(close(metrics["truth"], 1.0), "{metrics:?}");
        }
        assert!(reader.asked().iter().any(|query| matches!(query, Query::Logprobs { .. })));
    }
    let reader = Reader::new().continuing(|_| Err(RewardError::TimedOut(3)));
    assert_eq!(reader.score(&*env(), &item, "?"), Err(RewardError::TimedOut(3)));
}

#[test]
fn one_failed_question_leaves_no_reward() {
    let item = find(&*env(), "uniform");
    let reader = || Reader::new().continuing(choosing(even(1..=100)));
    let questions = {
        let reader = reader();
        scored(&reader, &item, "?");
        reader.asked().len()
    };
    for fails_at in 0..questions {
        let missing = reader().failing_at(fails_at).score(&*env(), &item, "?");
        assert_eq!(missing, Err(RewardError::Service("away".into())));
    }
    let nan =
        Reader::new().continuing(|_| Ok("0123456789\n".chars().map(|c| (c as Token, f32::NAN)).collect()));
    assert!(matches!(nan.score(&*env(), &item, "?"), Err(RewardError::NotFinite(_))));
}

// E7: 12 times 9 was clamped to 100, against the prompt.
#[test]
fn e7_every_product_is_what_the_prompt_asks_for() {
    let env = env();
    for index in (0..env.items().get()).step_by(4) {
        let item = env.item(index);
        let factors: Vec<i64> =
            last(&item).content.split(' ').filter_map(|w| w.trim_end_matches('.').parse().ok()).collect();
        assert_eq!(allowed(&item), [factors.iter().product::<i64>()]);
        assert!(allowed(&item)[0] <= 100);
    }
}

// E8: any number anywhere was read, entropies above 1 and percentages too; the feeling could be a whole page.
#[test]
fn e8_all_three_lines_are_checked() {
    let item = find(&*env(), "uniform");
    let number = allowed(&item)[0];
    let reader = Reader::new().continuing(choosing(even(1..=100)));
    for answer in [
        format!("NUMBER: {number}\nFEELING: calm\nENTROPY: 50%"),
        format!("NUMBER: {number}\nFEELING: calm\nENTROPY: 1.5"),
        format!("NUMBER: {number}\nFEELING: calm\nENTROPY: -0.5"),
        format!("NUMBER: {number}\nFEELING: {}\nENTROPY: 0.5", "calm ".repeat(20)),
        format!("NUMBER: {number}\nFEELING:\nENTROPY: 0.5"),
        format!("NUMBER: {number}\nENTROPY: 0.5"),
        format!("NUMBER: about {number}\nFEELING: calm\nENTROPY: 0.5"),
        format!("{}\nENTROPY: 0.5", answer(number, "0.5")),
        number.to_string(),
    ] {
        let score = scored(&reader, &item, &answer);
        assert!(close(f64::from(score.reward.get()), -0.2), "{answer}");
        assert_eq!((score.metrics["readable"], score.metrics["valid"]), (0.0, 0.0));
    }
    let small = scored(&reader, &item, &answer(number, "1e-2"));
    assert_eq!(small.metrics["prediction"], 0.01);
}

// E9: one item in four has an entropy of 0 whatever the policy does.
#[test]
fn e9_products_can_be_left_out_and_modes_take_turns() {
    let (with, without) = (env(), load("entropy_intuition", json!({"products": false})));
    assert_eq!((with.strata().get(), without.strata().get()), (4, 3));
    let modes = ["product", "subset", "biased", "uniform"];
    for i in 0..120 {
        assert_eq!(with.item(i).info["mode"], modes[i as usize % 4]);
        assert_eq!(without.item(i).info["mode"], modes[1 + i as usize % 3]);
    }
}

#[test]
fn an_answer_that_did_not_end_is_not_valid() {
    let item = find(&*env(), "uniform");
    let reader = Reader::new().continuing(choosing(even(1..=100)));
    let cut = rollout(&answer(allowed(&item)[0], "1"), false);
    assert_eq!(reader.score_rollout(&*env(), &item, &cut).expect("scored").metrics["valid"], 0.0);
}
