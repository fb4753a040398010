//! What a slow service, or one that is away, costs the rollouts of Python environments: nothing.

use super::{Outcome, Scripted, block_on, cause, options, play_seats, reward, try_open};
use async_trait::async_trait;
use minds_core::environment::Oracle;
use minds_core::ids::Token;
use minds_core::reward::RewardError;
use minds_core::sampling::{SampleRequest, SampleResponse};
use minds_core::service::{BackendError, SamplingBackend};
use minds_environments::worker::PythonEnvironment;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// A policy whose service takes its time.
struct Slow {
    policy: Arc<Scripted>,
    /// Before each answer.
    answers: Duration,
    /// Before logprobs.
    logprobs: Duration,
}

#[async_trait]
impl SamplingBackend for Slow {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        tokio::time::sleep(self.answers).await;
        self.policy.sample(request).await
    }
}

#[async_trait]
impl Oracle for Slow {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        tokio::time::sleep(self.logprobs).await;
        Oracle::logprobs(&*self.policy, prefix, target).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        self.policy.next_tokens(prefix, k).await
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn says(word: &'static str, answers: u64, logprobs: u64) -> Arc<Slow> {
    let policy = Scripted::new(move |_, _| word.into());
    Arc::new(Slow { policy, answers: seconds(answers), logprobs: seconds(logprobs) })
}

/// An environment that has six seconds for a rollout.
fn hurried(name: &str, args: &Value) -> PythonEnvironment {
    let mut options = options(name, args);
    options.workers = NonZeroUsize::new(1);
    options.rollout_timeout = seconds(6);
    try_open(options).unwrap()
}

fn played(env: &PythonEnvironment, policies: &[Arc<Slow>]) -> Vec<Outcome> {
    block_on(play_seats(env, 0, policies))
}

#[test]
fn waits_for_the_service_do_not_count_towards_a_rollouts_limit_and_its_own_time_does() {
    let env = hurried("faults", &json!({}));
    let found = played(&env, &[says("nothing", 9, 0), says("wait 600", 9, 0)]);
    assert_eq!(reward(&found[0]), 1.0);
    assert!(cause(&found[1]).contains("did not end within 6 s"), "{found:?}");
    assert!(cause(&found[1]).contains("rollout_timeout_s"), "{found:?}");
}

/// The first reward waits for its logprobs on the event loop, and so does the second, behind it.
#[test]
fn a_blocking_call_that_waits_for_the_service_does_not_count_for_those_behind_it() {
    let env = hurried("build_many", &json!({"way": "blocking"}));
    let found = played(&env, &[says("They purr.", 0, 10), says("They purr.", 0, 0)]);
    let all = format!("{found:?}");
    assert!(!all.contains("did not end"), "{all}");
    // Minus a hundredth of the mean byte of "cats".
    for outcome in &found {
        assert!((reward(outcome) + 1.0675).abs() < 1e-6, "{found:?}");
    }
}
