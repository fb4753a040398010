//! What the clients that an environment is given do, and what they refuse.

use super::{Outcome, Scripted, block_on, cause, options, play_seats, reward, try_open};
use async_trait::async_trait;
use minds_core::environment::{FrozenWeights, Oracle};
use minds_core::ids::Token;
use minds_core::reward::RewardError;
use minds_core::sampling::{SampleRequest, SampleResponse, Stop};
use minds_core::service::{BackendError, SamplingBackend};
use serde_json::json;
use std::sync::Arc;

/// A policy of a service that has other weights, too, which say what they are. Theirs are logprobs of minus a half.
struct WithOthers(Arc<Scripted>);

#[async_trait]
impl SamplingBackend for WithOthers {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        self.0.sample(request).await
    }
}

#[async_trait]
impl Oracle for WithOthers {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        Oracle::logprobs(&*self.0, prefix, target).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        self.0.next_tokens(prefix, k).await
    }

    async fn frozen(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
        let name = match weights {
            FrozenWeights::Base => "the base model".to_owned(),
            FrozenWeights::Saved(path) if path == "tinker://none" => {
                return Err(RewardError::Environment("there are no weights at tinker://none".into()));
            }
            FrozenWeights::Saved(path) => path,
        };
        Ok(Arc::new(Frozen(Scripted::new(move |_, _| format!("I am {name}")))))
    }
}

struct Frozen(Arc<Scripted>);

#[async_trait]
impl SamplingBackend for Frozen {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        self.0.sample(request).await
    }

    async fn logprobs(&self, tokens: Arc<[Token]>) -> Result<Vec<Option<f32>>, BackendError> {
        Ok((0..tokens.len()).map(|at| (at > 0).then_some(-0.5)).collect())
    }
}

fn says(word: &str) -> Arc<Scripted> {
    let word = word.to_owned();
    Scripted::new(move |_, _| word.clone())
}

fn played(words: &[&str]) -> Vec<Outcome> {
    let env = try_open(options("clients", &json!({}))).unwrap();
    let policies: Vec<_> = words.iter().map(|word| Arc::new(WithOthers(says(word)))).collect();
    block_on(play_seats(&env, 0, &policies))
}

#[test]
fn frozen_weights_are_those_that_are_named_and_never_the_policy() {
    let found = played(&["base", "saved tinker://run/7", "likely tinker://run/7", "saved tinker://none"]);
    assert_eq!((reward(&found[0]), reward(&found[1]), reward(&found[2])), (1.0, 1.0, -1.0));
    assert!(cause(&found[3]).contains("there are no weights at tinker://none"), "{found:?}");
}

#[test]
fn an_argument_that_cannot_be_done_is_refused_by_its_name() {
    let cases = [
        ("other some/model", &["base_model='some/model'", "'test/model'", "pass_env"][..]),
        ("both", &["model_path or base_model"]),
        ("truncated", &["encode(truncation=True)"]),
        ("templated", &["apply_chat_template(tools="]),
        ("unknown", &["include_prompt"]),
        ("half", &["create_lora_training_client(train_mlp=False)"]),
        ("mixed", &["stop is [1, 'x']"]),
    ];
    let found = played(&cases.map(|(word, _)| word));
    for (outcome, (word, parts)) in found.iter().zip(cases) {
        assert!(parts.iter().all(|part| cause(outcome).contains(part)), "{word}: {outcome:?}");
    }
}

/// One process runs all of them: none of these values ends it.
#[test]
fn values_that_json_cannot_express_are_refused_where_they_are_sent() {
    let cases = [
        ("nan", &["not JSON compliant", "sample_async"][..]),
        ("big", &["seed is 18446744073709551616"]),
        ("big_token", &["token ids lie between 1 and 4294967296"]),
        ("negative", &["num_samples is -1"]),
        ("data", &["TypeError", "bytes"]),
    ];
    let found = played(&cases.map(|(word, _)| word));
    for (outcome, (word, parts)) in found.iter().zip(cases) {
        assert!(parts.iter().all(|part| cause(outcome).contains(part)), "{word}: {outcome:?}");
    }
    let found = played(&["half_a_pair", "strange_messages"]);
    assert_eq!(found.iter().map(reward).collect::<Vec<_>>(), [1.0; 2]);
}

#[test]
fn an_empty_stop_disables_stops_and_a_missing_one_is_the_runs() {
    for (stop, expected) in [
        (json!([]), Stop::Tokens(vec![])),
        (json!(null), super::profile().renderer.stop()),
        (json!(["x"]), Stop::Strings(vec!["x".into()])),
        (json!([7]), Stop::Tokens(vec![7])),
    ] {
        let env = try_open(options("clients", &json!({ "stop": stop }))).unwrap();
        let policy = says("seeded 11");
        assert_eq!(reward(&super::play(&env, 0, &policy)), 1.0);
        let asked = policy.asked.lock().unwrap();
        assert_eq!(asked[0].params.stop, expected, "{stop}");
        // What is sampled aside has its own stop and seed.
        assert_eq!((&asked[1].params.stop, asked[1].params.seed), (&Stop::Tokens(vec![]), Some(11)));
    }
}
