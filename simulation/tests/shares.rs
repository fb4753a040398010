//! Shares of requests with a fault: those of the options, however requests are repeated.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use futures::FutureExt as _;
use minds_core::ids::Token;
use minds_core::sampling::{SampleRequest, SamplingParams};
use minds_core::service::SamplingBackend;
use minds_simulation::{SimulatedService, SimulationOptions};
use std::sync::Arc;

/// Requests of each kind.
const REQUESTS: usize = 1000;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Answered,
    Failed,
    Hung,
}

fn sample(sampler: &dyn SamplingBackend, prompt: &[Token], samples: usize) -> Outcome {
    let request = SampleRequest::new(prompt.into(), samples, SamplingParams::plain(8));
    match sampler.sample(request).now_or_never() {
        None => Outcome::Hung,
        Some(Ok(_)) => Outcome::Answered,
        Some(Err(_)) => Outcome::Failed,
    }
}

fn query(sampler: &dyn SamplingBackend, tokens: &[Token]) -> Outcome {
    match sampler.logprobs(tokens.into()).now_or_never().unwrap() {
        Ok(_) => Outcome::Answered,
        Err(_) => Outcome::Failed,
    }
}

fn sampler(options: SimulationOptions) -> Arc<dyn SamplingBackend> {
    SimulatedService::new(SimulationOptions { numbered: true, ..options }).sampler(0)
}

fn share(outcomes: &[Outcome], of: Outcome) -> f64 {
    outcomes.iter().filter(|outcome| **outcome == of).count() as f64 / outcomes.len() as f64
}

/// Fails if a share is farther from its key than four standard deviations of independent draws.
fn check(outcomes: &[Outcome], of: Outcome, key: f64) {
    let deviation = (key * (1.0 - key) / outcomes.len() as f64).sqrt();
    let share = share(outcomes, of);
    assert!((share - key).abs() < 4.0 * deviation, "{of:?}: {share} instead of {key}");
}

#[tokio::test(start_paused = true)]
async fn the_shares_of_faults_are_those_of_the_options() {
    for seed in 0..5 {
        let options =
            || SimulationOptions { seed, hangs: 0.3, failures: 0.4, ..SimulationOptions::default() };
        let [repeated, different, groups] = [(); 3].map(|()| sampler(options()));
        let number = |n: usize| [n as Token % 200, n as Token / 200];
        let all = [
            (0..REQUESTS).map(|_| sample(&*repeated, &[7], 1)).collect::<Vec<_>>(),
            (0..REQUESTS).map(|n| sample(&*different, &number(n), 1)).collect(),
            (0..REQUESTS).map(|n| sample(&*groups, &[n as Token % 3], 4)).collect(),
        ];
        for outcomes in all {
            check(&outcomes, Outcome::Hung, 0.3);
            check(&outcomes, Outcome::Failed, 0.4);
        }
        let queries: Vec<Outcome> = (0..REQUESTS).map(|_| query(&*repeated, &[7, 8])).collect();
        check(&queries, Outcome::Failed, 0.4);
    }
}

/// Otherwise a client that repeats a request would meet the same fault again.
#[tokio::test(start_paused = true)]
async fn the_fault_of_a_repeated_request_does_not_depend_on_that_of_the_first() {
    let options = SimulationOptions { hangs: 0.3, failures: 0.3, ..SimulationOptions::default() };
    let sampler = sampler(options);
    let outcomes: Vec<Outcome> = (0..4 * REQUESTS).map(|_| sample(&*sampler, &[7], 1)).collect();
    for first in [Outcome::Hung, Outcome::Failed, Outcome::Answered] {
        let pairs = outcomes.windows(2).filter(|pair| pair[0] == first);
        let second: Vec<Outcome> = pairs.map(|pair| pair[1]).collect();
        check(&second, Outcome::Hung, 0.3);
        check(&second, Outcome::Failed, 0.3);
    }
}

#[tokio::test(start_paused = true)]
async fn the_share_of_samples_without_a_logprob_is_that_of_the_options() {
    let sampler = sampler(SimulationOptions { not_finite: 0.2, ..SimulationOptions::default() });
    let request = SampleRequest::new([7].into(), REQUESTS, SamplingParams::plain(8));
    let sequences = sampler.sample(request).await.unwrap().sequences;
    let bad = sequences.iter().filter(|sample| sample.logprobs[0].is_nan()).count() as f64;
    let share = bad / REQUESTS as f64;
    assert!((share - 0.2).abs() < 4.0 * (0.2 * 0.8 / REQUESTS as f64).sqrt(), "{share}");
}
