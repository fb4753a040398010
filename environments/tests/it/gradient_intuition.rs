//! gradient_intuition as a run uses it, and the known faults of its first version, I1 to I14.

use crate::support::{Query, Reader, last, load, reply, rollout, rollout_of};
use minds_core::chat::{Message, Role};
use minds_core::environment::{Environment, EnvironmentReply, Item};
use minds_core::ids::GroupId;
use minds_core::reward::{RewardError, Score};
use minds_environments::native;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

fn env() -> Arc<dyn Environment> {
    load("gradient_intuition", json!({}))
}

/// An oracle whose probe rises by 0.6 after any step.
fn rising() -> Reader {
    Reader::new().moved_by(|_| Ok(0.6))
}

fn right(item: &Item) -> String {
    format!("FINAL ANSWER: {}\nCONFIDENCE: 1", item.answer.as_deref().expect("a result"))
}

fn wrapped(prediction: &str, answer: &str) -> String {
    format!("PREDICTION: {prediction}\nANSWER: {answer}")
}

fn score(env: &dyn Environment, item: &Item, answer: &str) -> Score {
    rising().score_rollout(env, item, &rollout_of(&[answer])).expect("scored")
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn a_scripted_episode_by_hand() {
    let env = env();
    let item = env.item(0);
    // The inner answer is right and sure: 1. The error 0.3 is a sixth of two standard deviations of 0.9.
    let Score { reward, metrics } = score(&*env, &item, &wrapped("0.3", &right(&item)));
    assert!(close(f64::from(reward.get()), 1.0 + 0.3 * (1.0 - 0.3 / 1.8)));
    for (name, value) in [
        ("valid", 1.0),
        ("truth", 0.6),
        ("prediction", 0.3),
        ("error", 0.3),
        ("bonus", 1.0 - 0.3 / 1.8),
        ("bonus_of_zero", 1.0 - 0.6 / 1.8),
        ("bonus_of_mean", 1.0 - 0.6 / 1.8),
        ("sign_right", 1.0),
        ("spread", 0.9),
        ("inner_reward", 1.0),
        ("inner_correct", 1.0),
        ("inner_confidence", 1.0),
    ] {
        assert!(close(metrics[name], value), "{name}: {}", metrics[name]);
    }
}

#[test]
fn an_oracle_that_cannot_take_a_step_leaves_no_reward() {
    let env = env();
    for answer in ["nonsense", &wrapped("0", "1")] {
        let missing = Reader::new().score(&*env, &env.item(0), answer).expect_err("no reward");
        assert!(matches!(missing, RewardError::Unsupported(_)) && !missing.is_retryable(), "{missing}");
    }
}

// I1: the separator swallowed the sign, and exponents, separators and a bare point were misread.
#[test]
fn i1_a_prediction_keeps_its_sign_and_its_exponent() {
    let env = env();
    let item = env.item(0);
    for (written, value) in [("-0.5", -0.5), ("1e-3", 0.001), ("-2E1", -20.0), ("0", 0.0)] {
        let metrics = score(&*env, &item, &wrapped(written, &right(&item))).metrics;
        assert_eq!(metrics["prediction"], value, "{written}");
    }
    for written in
        ["1,200", "5.", ".5", "+0.5", "\u{2212}0.5", "50%", "NaN", "inf", "1e99", "0.5 nats", "- 0.5", ""]
    {
        assert_eq!(score(&*env, &item, &wrapped(written, &right(&item))).metrics["valid"], 0.0, "{written}");
    }
}

// I2: the inner prompt was one string with the printed list of messages.
#[test]
fn i2_the_inner_conversation_stays_a_conversation() {
    let inner = load("self_prediction", json!({})).item(5).prompt;
    let item = env().item(5);
    assert_eq!(item.prompt.len(), inner.len());
    for (outer, inner) in item.prompt.iter().zip(&inner) {
        assert_eq!(outer.role, inner.role);
        match outer.role {
            Role::System => assert!(outer.content.starts_with(&inner.content)),
            Role::User => assert!(outer.content.starts_with(&format!("{}\nProbe: ", inner.content))),
            Role::Assistant => {
                let (prediction, answer) = outer.content.split_once("\nANSWER: ").expect("both lines");
                assert_eq!(answer, inner.content);
                assert!(prediction.starts_with("PREDICTION: "), "{prediction}");
            }
        }
    }
    // An inner task without a system line gets one.
    let letters = load("gradient_intuition", json!({"inner": "plain_letters"})).item(0).prompt;
    assert_eq!(letters.iter().map(|m| m.role).collect::<Vec<_>>(), [Role::System, Role::User]);
}

// I3: members of a group got different words, and the probe of a slot never changed.
#[test]
fn i3_an_item_is_one_inner_task_with_one_probe_and_every_pair_occurs_once() {
    let env = load("gradient_intuition", json!({"inner": "target_number", "inner_args": {"shown": true}}));
    let items = env.items().get();
    let pair =
        |item: &Item| (item.info["inner_item"].as_u64().expect("an index"), item.info["probe"].to_string());
    let pairs: BTreeSet<_> = (0..items).map(|i| pair(&env.item(i))).collect();
    assert_eq!((pairs.len() as u64, items % 19), (items, 0));
    assert!(items / 19 >= 60);
    assert_eq!(env.item(7), env.item(7 + items));
    assert_ne!(env.item(7).info["probe"], env.item(8).info["probe"]);
    assert_ne!(env.item(7).info["probe"], env.item(7 + 19).info["probe"]);
}

#[test]
fn inner_kinds_take_turns_as_they_did() {
    let env = env();
    assert_eq!(env.strata().get(), 3);
    for i in 0..5000 {
        assert_eq!(env.item(i).info["inner"]["operation"], env.item(i % 3).info["inner"]["operation"]);
    }
}

// I4: the inner environment was built again for every rollout. I5: so was a shadow, on random weights.
#[test]
fn i4_i5_one_measurement_per_episode_through_the_oracle() {
    let env = env();
    let item = env.item(0);
    let reader = rising();
    for _ in 0..3 {
        reader.score_rollout(&*env, &item, &rollout_of(&[&wrapped("0", &right(&item))])).expect("scored");
    }
    let asked = reader.asked();
    assert_eq!(asked.len(), 3);
    // The queries are identical, so their answer can be cached.
    assert!(asked.iter().all(|query| *query == asked[0] && matches!(query, Query::LogprobDelta { .. })));
}

// I6: the text to learn had no weights, its prompt was learnt too, and it was not what the policy had seen.
// I8: the probe was a bare text.
#[test]
fn i6_i8_the_step_learns_the_answer_and_only_that_and_the_probe_is_chat() {
    let env = env();
    let item = env.item(0);
    let answer = wrapped("0", &right(&item));
    let reader = rising();
    reader.score_rollout(&*env, &item, &rollout_of(&[&answer])).expect("scored");
    let [Query::LogprobDelta { read, learnt, prefix, target }] = &reader.asked()[..] else {
        panic!("one step")
    };
    // The turn's own tokens, its stop included.
    assert_eq!((read.as_str(), learnt), ("?", &format!("{answer}<|im_end|>")));
    let probe = item.info["probe"].as_str().expect("a question");
    assert!(prefix.ends_with(&format!("<|im_start|>user\n{probe}<|im_end|>\n<|im_start|>assistant\n")));
    assert!(last(&item).content.ends_with(&format!("Probe: {probe} {target}")));
}

#[test]
fn with_the_right_answer_as_the_text_one_truth_serves_the_whole_group() {
    let env = load("gradient_intuition", json!({"text": "right"}));
    let item = env.item(0);
    let asked = |answer: &str| {
        let reader = rising();
        reader.score_rollout(&*env, &item, &rollout_of(&[answer])).expect("scored");
        reader.asked()
    };
    assert_eq!(asked("nonsense"), asked(&wrapped("1", &right(&item))));
    let [Query::LogprobDelta { read, learnt, .. }] = &asked("nonsense")[..] else { panic!("one step") };
    assert_eq!(*learnt, format!("{}<|im_end|>", item.answer.as_deref().expect("a result")));
    assert!(read.ends_with("<|im_start|>assistant\n") && !read.contains("Probe:"));
    let args = json!({"inner": "ghost_trace", "text": "right"});
    let error =
        native::load("gradient_intuition", args.as_object().expect("a table"), 0).err().expect("refused");
    assert_eq!(
        error.to_string(),
        "`text` of `gradient_intuition` is \"right\"; it must be \"own\": the tasks of `ghost_trace` have no right answer"
    );
}

// I7: errors of the step were lost.
#[test]
fn i7_a_step_that_fails_leaves_no_reward() {
    let env = env();
    for answer in ["nonsense", &wrapped("0", "1")] {
        let reader = Reader::new().moved_by(|_| Err(RewardError::Service("away".into())));
        assert_eq!(reader.score(&*env, &env.item(0), answer), Err(RewardError::Service("away".into())));
        let reader = Reader::new().moved_by(|_| Ok(f64::NAN));
        assert!(matches!(reader.score(&*env, &env.item(0), answer), Err(RewardError::NotFinite(_))));
    }
}

// I9: with small steps, predicting 0 earned more than nine tenths of the bonus.
#[test]
fn i9_errors_are_measured_by_the_spread_of_the_truths() {
    let env = load("gradient_intuition", json!({"spread": 0.9}));
    let item = env.item(0);
    let reader = Reader::new().moved_by(|learnt| Ok(if learnt.contains(": 1\n") { 0.02 } else { -0.02 }));
    let mut last = 0.0;
    for group in 0..3000 {
        let mut rollout = rollout_of(&[&wrapped(if group % 2 == 0 { "1" } else { "2" }, "?")]);
        rollout.id.group = GroupId(group);
        last = reader.score_rollout(&*env, &item, &rollout).expect("scored").metrics["bonus_of_zero"];
    }
    // Truths of 0.02 were next to nothing at first; once their spread is known, 0 is half a tolerance away.
    assert!(score(&*load("gradient_intuition", json!({})), &item, "?").metrics["bonus_of_zero"] > 0.6);
    assert!(last < 0.95 && last > 0.0, "{last}");
}

#[test]
fn a_resumed_run_restores_the_spread() {
    let (first, second) = (env(), env());
    let item = first.item(0);
    let play = |env: &dyn Environment, group: u64| {
        let mut rollout = rollout_of(&[&wrapped("0", &right(&item))]);
        rollout.id.group = GroupId(group);
        rising().score_rollout(env, &item, &rollout).expect("scored").metrics["spread"]
    };
    (0..40).for_each(|group| {
        play(&*first, group);
    });
    second.restore_memory(&first.memory().expect("it learns")).expect("its own memory");
    let spread = play(&*first, 40);
    assert!(spread < 0.7, "forty equal truths against an assumed 0.9: {spread}");
    assert_eq!(play(&*second, 40), spread);
    for strange in [json!(null), json!({"truths": {"count": 0.0, "mean": 0.0, "squares": 1.0}})] {
        assert!(second.restore_memory(&strange).is_err(), "{strange}");
    }
    assert!(load("target_number", json!({})).memory().is_none());
}

// I10: what could not be read earned 0, while an invalid inner answer cost a hundred: refusing was best.
#[test]
fn i10_refusing_gets_less_than_the_worst_inner_answer() {
    for inner in ["self_prediction", "target_number", "plain_letters", "number_guessing", "entropy_intuition"]
    {
        let env = load("gradient_intuition", json!({ "inner": inner }));
        let item = env.item(0);
        let digits: Vec<(u32, f32)> = "0123456789\n".chars().map(|c| (c as u32, -2.4)).collect();
        let reader = rising().continuing(move |_| Ok(digits.clone()));
        let reward = |answer: &str| {
            let score = reader.score_rollout(&*env, &item, &rollout_of(&[answer])).expect("scored");
            (score.reward.get(), score.metrics["valid"])
        };
        let (refused, valid) = reward("I would rather not.");
        assert_eq!(valid, 0.0, "{inner}");
        let (worst, valid) = reward(&wrapped("-1000", "???"));
        assert!(valid == 1.0 && refused < worst, "{inner}: {refused} {worst}");
    }
}

// I11: the first "answer:" anywhere counted, also one that the prompt had brought.
#[test]
fn i11_the_two_labels_begin_the_first_two_lines() {
    let env = env();
    let item = env.item(0);
    let answer = right(&item);
    for text in [
        format!("Probe target answer: 3\n{}", wrapped("1", &answer)),
        format!("ANSWER: {answer}\nPREDICTION: 1"),
        format!("PREDICTION: 1 ANSWER: {answer}"),
        format!("PREDICTION: 1\nso\nANSWER: {answer}"),
        format!("prediction: 1\nanswer: {answer}"),
    ] {
        assert_eq!(score(&*env, &item, &text).metrics["valid"], 0.0, "{text}");
    }
    // A second block belongs to the inner answer, which is then none.
    let twice = score(&*env, &item, &wrapped("1", &wrapped("1", &answer)));
    assert_eq!((twice.metrics["valid"], twice.metrics["inner_valid"]), (1.0, 0.0));
}

// I12: arguments of the wrapper were handed to the inner environment.
#[test]
fn i12_the_inner_environment_gets_its_own_arguments_and_no_others() {
    let refused = |args: Value| {
        let error = native::load("gradient_intuition", args.as_object().expect("a table"), 0).err();
        error.expect("refused").to_string()
    };
    assert!(
        refused(json!({"inner_args": {"alpha": 0.5}}))
            .starts_with("`self_prediction` takes no argument `alpha`")
    );
    assert!(refused(json!({"level": "full"})).starts_with("`gradient_intuition` takes no argument `level`"));
    assert!(refused(json!({"inner": "self_predction"})).contains("did you mean `self_prediction`?"));
    assert!(
        refused(json!({"inner": "./environments/gradient_intuition"}))
            .contains("it must be another environment")
    );
    let env = load(
        "gradient_intuition",
        json!({"inner": "./environments/self_prediction", "inner_args": {"shots": 0}}),
    );
    assert_eq!(env.item(0).prompt.len(), 2);
}

// I13: a shape of the service's data that was not expected became an empty text. I14: dead code.
#[test]
fn i13_i14_a_text_without_tokens_is_refused() {
    let env = env();
    let mut empty = rollout("", true);
    empty.turns[0].prompt = Arc::new([]);
    empty.turns[0].completion.tokens.clear();
    let missing = rising().score_rollout(&*env, &env.item(0), &empty).expect_err("no text");
    assert!(matches!(missing, RewardError::Environment(_)), "{missing}");
}

#[test]
fn a_game_of_several_turns_can_be_wrapped() {
    let env = load("gradient_intuition", json!({"inner": "number_guessing"}));
    let item =
        (0..20).map(|i| env.item(i)).find(|i| i.answer.as_deref() == Some("13")).expect("one of twenty");
    let mut conversation = item.prompt.clone();
    conversation.push(Message::assistant(wrapped("0.5", "10")));
    assert_eq!(reply(&*env, &item, &conversation), EnvironmentReply::Continue(vec![Message::user("higher")]));
    conversation.extend([Message::user("higher"), Message::assistant(wrapped("0.6", "13"))]);
    assert_eq!(reply(&*env, &item, &conversation), EnvironmentReply::Done);
    let rollout = rollout_of(&[&wrapped("0.5", "10"), &wrapped("0.6", "13")]);
    let score = rising().score_rollout(&*env, &item, &rollout).expect("scored");
    assert!(close(score.metrics["inner_reward"], 0.875) && close(score.metrics["bonus"], 1.0));
    conversation.truncate(item.prompt.len());
    conversation.push(Message::assistant("10"));
    assert_eq!(reply(&*env, &item, &conversation), EnvironmentReply::Done);
}

#[test]
fn an_answer_that_did_not_end_is_not_valid() {
    let env = env();
    let item = env.item(0);
    let cut = rollout(&wrapped("0.6", &right(&item)), false);
    let score = rising().score_rollout(&*env, &item, &cut).expect("scored");
    assert_eq!((score.metrics["valid"], score.metrics["inner_valid"]), (0.0, 0.0));
}
