//! Faults of the first harness that any environment can have: H1, H4 to H6, H16 to H18. Each is held against all.

use crate::support::{Bytes, LLAMA, Query, Reader, load, renderer, sampled};
use minds_core::chat::Termination;
use minds_core::environment::Environment;
use minds_core::ids::Token;
use minds_core::reward::RewardError;
use minds_environments::native::EnvInfo;
use minds_environments::{native, render};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

fn all(seed: u64) -> Vec<Arc<dyn Environment>> {
    let load = |info: &EnvInfo| {
        let args = if info.requires_args() { crate::dataset::sums() } else { json!({}) };
        native::load(info.id, args.as_object().expect("a table"), seed).expect("the arguments are right")
    };
    native::list().iter().map(load).collect()
}

/// A reader that answers everything.
fn answering() -> Reader {
    Reader::new()
        .continuing(|_| Ok("0123456789\n".chars().map(|c| (c as Token, -2.4)).collect()))
        .moved_by(|_| Ok(0.25))
}

// H1: every component got the first component's environment and data, and most of a published run trained one task.
#[test]
fn h1_every_environment_is_itself() {
    let envs = all(0);
    let prompts: BTreeSet<String> = envs.iter().map(|env| format!("{:?}", env.item(0).prompt)).collect();
    assert_eq!(prompts.len(), envs.len());
    for (env, info) in envs.iter().zip(native::list()) {
        assert_eq!(env.id(), info.id);
    }
    let (train, held_out) =
        (load("ghost_trace", json!({})), load("ghost_trace", json!({"split": "held_out"})));
    assert_ne!((train.items(), train.item(0)), (held_out.items(), held_out.item(0)));
}

// H4: one renderer was hard-coded for all models.
#[test]
fn h4_a_renderer_of_another_family_is_refused_when_it_is_made() {
    for name in render::NAMES {
        let is_right = ["role_colon", "llama3"].contains(&name);
        assert_eq!(render::renderer(name, Bytes::with(&LLAMA)).is_ok(), is_right, "{name}");
    }
}

// H6: how an answer ended was a truth value that was always true.
#[test]
fn h6_the_end_of_a_completion_is_distinguished() {
    let tokenizer = Bytes::chatml();
    let renderer = renderer("chatml", tokenizer.clone());
    let ended = |text: &str| renderer.parse(&sampled(tokenizer.encode_with_controls(text))).termination;
    assert_eq!(ended("[1]<|im_end|>"), Termination::Stop);
    assert_eq!(ended("[1]"), Termination::Truncated);
    assert_eq!(ended("[1]<|im_end|><|im_end|>"), Termination::Malformed);
}

// H5, H16: a logprob that was missing counted as certainty, and a reward that failed as 0.
#[test]
fn h5_h16_a_query_that_fails_is_never_a_number() {
    for (env, info) in all(0).into_iter().zip(native::list()) {
        let item = env.item(0);
        let asked = {
            let reader = answering();
            reader.score(&*env, &item, "?").expect("scored");
            reader.asked()
        };
        let questions = asked.len();
        assert_eq!(questions > 0, info.queries_model, "{}", env.id());
        let is_delta = |query: &Query| matches!(query, Query::LogprobDelta { .. });
        assert_eq!(asked.iter().any(is_delta), env.needs_shadow_adapters(), "{}", env.id());
        assert_eq!(asked.iter().any(|query| !is_delta(query)), env.queries_policy(), "{}", env.id());
        for fails_at in 0..questions {
            let missing = answering().failing_at(fails_at).score(&*env, &item, "?");
            assert_eq!(missing, Err(RewardError::Service("away".into())), "{} at {fails_at}", env.id());
        }
    }
}

// H17: metrics were overwritten by the names of functions; one environment's only metric was called `wrapped`.
#[test]
fn h17_metric_names_are_unique_and_all_but_one_environment_report_validity() {
    for env in all(0) {
        let score = answering().score(&*env, &env.item(0), "?").expect("scored");
        assert!(score.metrics.values().all(|value| value.is_finite()), "{}: {:?}", env.id(), score.metrics);
        assert!(score.metrics.keys().all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
        let has_validity = env.id() != "plain_letters";
        assert_eq!(score.metrics.contains_key("valid"), has_validity, "{}", env.id());
    }
}

// H18: data were rebuilt at each start without a seed, so that a resumed run trained on others.
#[test]
fn h18_items_are_a_function_of_seed_and_index() {
    for (env, again) in all(3).into_iter().zip(all(3)) {
        let items = env.items().get();
        // Items are requested backwards and forwards, in two instances: no item depends on earlier requests.
        for index in (0..items.min(300)).rev() {
            assert_eq!(env.item(index), env.item(index + items), "{} {index}", env.id());
        }
        for index in 0..items.min(300) {
            assert_eq!(env.item(index), again.item(index), "{} {index}", env.id());
            assert_eq!(env.item(index).index, index);
        }
    }
}

/// What people are shown of an answer is what the reward reads: there is a parse where and only where it is valid.
#[test]
fn the_parsed_answer_can_be_shown() {
    let sum = "FINAL ANSWER: -7\nCONFIDENCE: 0.5";
    for (env, args, answer, parse) in [
        ("target_number", json!({}), "[4.5]", json!(4.5)),
        ("self_prediction", json!({}), sum, json!({"answer": "-7", "confidence": 0.5})),
        ("ghost_trace", json!({}), "1, 2, 3, 4, 999", json!([1, 2, 3, 4, 999])),
        ("gradient_prophet", json!({}), "[-0.25]", json!(-0.25)),
        ("gradient_prophet", json!({"task": "surprise"}), "[3, 1, 2]", json!([3, 1, 2])),
        (
            "entropy_intuition",
            json!({}),
            "NUMBER: 7\nFEELING: calm\nENTROPY: 0.3",
            json!({"number": 7, "feeling": "calm", "entropy": 0.3}),
        ),
        (
            "gradient_intuition",
            json!({}),
            &format!("PREDICTION: -0.5\nANSWER: {sum}"),
            json!({"prediction": -0.5, "answer": sum, "inner": {"answer": "-7", "confidence": 0.5}}),
        ),
        ("number_guessing", json!({}), "12", json!("12")),
    ] {
        let env = load(env, args);
        let three =
            |item: &minds_core::environment::Item| item.info["probes"].as_u64().is_none_or(|n| n == 3);
        let item = (0..50).map(|i| env.item(i)).find(three).expect("most lessons have three probes");
        assert_eq!(env.parse(&item, answer), Some(parse), "{}", env.id());
        assert_eq!(env.parse(&item, "I would rather not."), None, "{}", env.id());
    }
}

#[test]
fn no_answer_whatever_breaks_a_reward() {
    use proptest::test_runner::{Config, TestRunner};
    for env in all(0) {
        let item = env.item(1);
        let reader = answering();
        let mut runner = TestRunner::new(Config { cases: 64, ..Config::default() });
        let ran = runner.run(&"(\\PC|\n|[0-9]{1,3}|, |PREDICTION: |ANSWER: |NUMBER: ){0,16}", |answer| {
            let score = reader.score(&*env, &item, &answer).expect("scored");
            proptest::prop_assert!(score.reward.get().is_finite());
            Ok(())
        });
        ran.unwrap_or_else(|e| panic!("{}: {e}", env.id()));
    }
}
