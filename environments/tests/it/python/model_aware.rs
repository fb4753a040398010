//! Rewards that ask the model.

use super::{Scripted, options, play, reward, try_open};
use minds_core::environment::Environment as _;
use serde_json::json;

/// The scripted reader gives each byte minus a hundredth of its value, so the mean over "dogs" is known by hand:
/// (100 + 111 + 103 + 115) / 4 / 100.
#[test]
fn logprobs_can_be_queried_awaited_and_blocking() {
    for way in ["awaited", "blocking"] {
        let env = try_open(options("build_many", &json!({"way": way}))).unwrap();
        assert_eq!(env.items().get(), 3, "one item for each that was built");
        let found = play(&env, 1, &Scripted::new(|_, _| "They bark.".into()));
        assert!((reward(&found) + 1.0725).abs() < 1e-6, "{way}: {}", reward(&found));
    }
}

#[test]
fn samples_aside_are_answered_and_not_trained() {
    let env = try_open(options("build_many", &json!({"way": "sampled"}))).unwrap();
    let policy = Scripted::new(|_, n| if n == 0 { "They purr.".into() } else { "a b c d".into() });
    let found = play(&env, 0, &policy).unwrap();
    assert_eq!(found.score.reward.get(), 3.0, "three tokens were asked for");
    assert_eq!(found.score.metrics["spaces"], 1.0);
    assert_eq!(found.turns.len(), 1);
    let asked = policy.asked.lock().unwrap();
    assert_eq!((asked[1].num_samples, asked[1].params.max_tokens, asked[1].params.temperature), (2, 3, 0.5));
}

#[test]
fn build_is_given_what_it_names_and_a_prompt_may_ask_the_policy() {
    let policy = Scripted::new(|_, _| "x".into());
    let everything = try_open(options("build_many", &json!({"way": "everything"}))).unwrap();
    assert!(everything.needs_shadow_adapters(), "it may borrow adapters");
    // The bytes of "test/model", a hundredth of each: their sum is 1024.
    let found = play(&everything, 0, &policy);
    assert!((reward(&found) + 1.024).abs() < 1e-6, "{}", reward(&found));

    let asking = try_open(options("build_many", &json!({"way": "asking"}))).unwrap();
    assert!(!asking.needs_shadow_adapters());
    assert_eq!(asking.item(0).prompt, [], "no policy exists yet");
    play(&asking, 0, &policy).unwrap();
    let prompts = policy.prompts();
    // Minus a hundredth of the bytes of "ats".
    assert!(prompts[1].contains("Your logprob is -3.28."), "{prompts:?}");
}
