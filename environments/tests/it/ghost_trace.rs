//! ghost_trace as a run uses it, and the eight known faults of its first version, G1 to G8.

use crate::support::{Query, Reader, last, line, load, rollout};
use minds_core::chat::Role;
use minds_core::environment::Environment;
use minds_core::reward::{RewardError, Score};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

fn env() -> Arc<dyn Environment> {
    load("ghost_trace", json!({}))
}

/// A listener that expects each token of a word with logprob -2, and with -1.5 after these numbers.
fn hearing(numbers: &'static str) -> Reader {
    Reader::new().expecting(move |prefix, _| {
        if prefix.contains(&format!("Numbers: {numbers}<|im_end|>")) { -1.5 } else { -2.0 }
    })
}

fn score(answer: &str) -> Score {
    hearing("1, 2, 3, 4, 5").score(&*env(), &env().item(3), answer).expect("scored")
}

#[test]
fn a_scripted_episode_by_hand() {
    let Score { reward, metrics } = score("1, 2, 3, 4, 5");
    let metrics: Vec<_> = metrics.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    // The answer lifts the mean logprob from -2, that of the four fixed sequences, to -1.5.
    assert_eq!(metrics, [("gain", 0.5), ("logprob", -1.5), ("reference_logprob", -2.0), ("valid", 1.0)]);
    assert_eq!(reward.get(), 0.5);
    assert_eq!(score("5, 4, 3, 2, 1").reward.get(), 0.0);
}

#[test]
fn examples_are_earlier_exchanges_of_the_chat() {
    let prompt = env().item(0).prompt;
    let texts: Vec<&str> = prompt.iter().map(|message| &*message.content).collect();
    assert_eq!(texts[1..5], ["Word: sun", "310, 4, 778, 100, 52", "Word: chair", "85, 612, 9, 247, 930"]);
    assert_eq!((prompt.len(), prompt[7].role), (8, Role::User));
    assert_eq!(load("ghost_trace", json!({"shots": 0})).item(0).prompt.len(), 2);
}

#[test]
fn held_out_words_are_never_trained() {
    let words = |split| -> BTreeSet<String> {
        let env = load("ghost_trace", json!({ "split": split }));
        (0..env.items().get()).map(|i| line(&env.item(i), "Word:").to_owned()).collect()
    };
    let (train, held_out) = (words("train"), words("held_out"));
    assert_eq!(held_out.len(), 300);
    assert!(train.len() >= 1200 && train.is_disjoint(&held_out));
}

// G1: an answer without five numbers went to the listener as it was, so that "It is an apple 1" earned the most.
#[test]
fn g1_nothing_but_the_five_numbers_reaches_the_listener() {
    let env = env();
    let item = env.item(3);
    let word = item.info["word"].as_str().expect("a word").to_owned();
    let reader = hearing("1, 2, 3, 4, 5");
    for answer in
        [format!("It is {word} 1"), format!("1, 2, 3, 4, 5 {word}"), format!("{word}: 1, 2, 3, 4, 5")]
    {
        let score = reader.score(&*env, &item, &answer).expect("scored");
        assert_eq!((score.reward.get(), score.metrics["valid"]), (-1.0, 0.0), "{answer}");
    }
    reader.score(&*env, &item, "1,2,3,   4, 5").expect("scored");
    for query in reader.asked() {
        let Query::Logprobs { prefix, target } = query else { panic!("{query:?}") };
        assert_eq!(target, word);
        assert!(!prefix.contains(&word) && !prefix.contains("4, 5 "), "{prefix}");
    }
}

// G2: more than five numbers, other ranges, fractions, signs and chatter were all read as five numbers.
#[test]
fn g2_exactly_five_whole_numbers_from_0_to_999() {
    for answer in [
        "1, 2, 3, 4",
        "0, 1, 2, 3, 4, 5",
        "1, 2, 3, 4, 1000",
        "1, 2, 3, 4, -5",
        "1, 2, 3, 4, 5.5",
        "12345",
        "Sure! 1, 2, 3, 4, 5",
        "1, 2, 3, 4, 5.",
        "",
    ] {
        assert_eq!(score(answer).metrics["valid"], 0.0, "{answer:?}");
    }
    assert_eq!(score("0, 999, 0, 999, 7").metrics["valid"], 1.0);
}

// G3: an invalid answer cost a hundred, so that a group with one of them trained nothing but being valid.
#[test]
fn g3_the_penalty_is_just_below_the_worst_valid_reward() {
    for bound in [0.1, 0.9, 5.0] {
        let env = load("ghost_trace", json!({ "bound": bound }));
        let reward = |lp: f32, answer: &str| {
            let reader =
                Reader::new().expecting(move |prefix, _| if prefix.contains("1, 2, 3") { lp } else { -50.0 });
            f64::from(reader.score(&*env, &env.item(0), answer).expect("scored").reward.get())
        };
        let (best, worst) = (reward(0.0, "1, 2, 3, 4, 5"), reward(-100.0, "1, 2, 3, 4, 5"));
        assert!((best - bound).abs() < 1e-6 && (worst + bound).abs() < 1e-6);
        assert!((reward(-1.0, "no") + bound + 0.1).abs() < 1e-6);
    }
}

// G4, G6: word and prompt were encoded together and sliced by guess; the listener read a bare text that the policy
// never sees; the word changed its case.
#[test]
fn g4_g6_the_listener_reads_chat_and_is_queried_for_exactly_the_tokens_of_the_word() {
    let reader = hearing("1, 2, 3, 4, 5");
    let env = env();
    let item = env.item(3);
    reader.score(&*env, &item, "1, 2, 3, 4, 5").expect("scored");
    let asked = reader.asked();
    assert_eq!(asked.len(), 5);
    for query in asked {
        let Query::Logprobs { prefix, target } = query else { panic!("{query:?}") };
        assert_eq!(target, line(&item, "Word:"));
        assert!(prefix.starts_with("<|im_start|>system\nYou guess the word"), "{prefix}");
        assert!(prefix.ends_with("<|im_end|>\n<|im_start|>assistant\n"), "{prefix}");
    }
    assert!(last(&item).content.ends_with(item.info["word"].as_str().expect("a word")));
}

// G5: missing logprobs were left out of the mean.
#[test]
fn g5_a_missing_log_prob_leaves_no_reward() {
    let env = env();
    for answer in ["1, 2, 3, 4, 5", "no"] {
        for fails_at in 0..4 {
            let missing = hearing("").failing_at(fails_at).score(&*env, &env.item(0), answer);
            assert_eq!(missing, Err(RewardError::Service("away".into())));
        }
        assert!(hearing("").short_by(1).score(&*env, &env.item(0), answer).is_err());
        let reader = Reader::new().expecting(|_, _| f32::NEG_INFINITY);
        assert!(matches!(reader.score(&*env, &env.item(0), answer), Err(RewardError::NotFinite(_))));
    }
}

// G7: the first version stringified the list of messages when it was wrapped; G8: it asked once per rollout.
#[test]
fn g7_g8_the_query_depends_on_word_and_numbers_alone() {
    let env = env();
    let asked = |answer: &str| {
        let reader = hearing("");
        reader.score(&*env, &env.item(9), answer).expect("scored");
        let mut asked = reader.asked();
        asked.sort();
        asked
    };
    // The oracle sends equal queries once; here they are identical, however the numbers are spaced.
    assert_eq!(asked("1, 2, 3, 4, 5"), asked("1,2,3,4,  5\n"));
    let reference: BTreeSet<Query> = asked("nonsense").into_iter().collect();
    assert!(
        reference.len() == 4
            && asked("1, 2, 3, 4, 5").into_iter().filter(|q| reference.contains(q)).count() == 4
    );
    let prompt = env.item(9).prompt;
    assert!(prompt.iter().all(|message| !message.content.contains("role")));
}

#[test]
fn an_answer_that_did_not_end_is_not_valid() {
    let env = env();
    let score =
        hearing("").score_rollout(&*env, &env.item(0), &rollout("1, 2, 3, 4, 5", false)).expect("scored");
    assert_eq!(score.metrics["valid"], 0.0);
}
