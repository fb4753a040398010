//! Numbered samples: the same for every client, and recognized in training data.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::{PolicyVersion, Token};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{Completion, SampleRequest, SamplingParams, Stop};
use minds_core::service::{SamplingBackend, TrainingBackend};
use minds_simulation::{
    PassTime, SimulatedLatency, SimulatedService, SimulationOptions, TrainedData, TrainedSample,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

const PROMPT: [Token; 3] = [7, 8, 9];
const STOP: Token = 2;

/// A service that numbers its samples, and what it recognizes in training data.
fn service(options: SimulationOptions) -> (SimulatedService, Arc<Mutex<Vec<TrainedData>>>) {
    let trained = Arc::new(Mutex::new(Vec::new()));
    let record = trained.clone();
    let on_trained = Box::new(move |data: &TrainedData| record.lock().unwrap().push(data.clone()));
    let options = SimulationOptions { numbered: true, completion_tokens: 12, on_trained, ..options };
    (SimulatedService::new(options), trained)
}

fn request(prompt: &[Token], samples: usize) -> SampleRequest {
    let params = SamplingParams { stop: Stop::Tokens(vec![STOP]), ..SamplingParams::plain(64) };
    SampleRequest::new(prompt.into(), samples, params)
}

async fn sample(sampler: &dyn SamplingBackend) -> Completion {
    sampler.sample(request(&PROMPT, 1)).await.unwrap().sequences.remove(0)
}

/// The training datum of a sample: position t predicts token t + 1.
fn datum(tokens: &[Token], logprobs: &[f32]) -> Datum {
    let mut sequence = PROMPT.to_vec();
    sequence.extend(tokens);
    let all = |values: &[f32]| [&[0.0; PROMPT.len() - 1], values].concat();
    let inputs = LossInputs::Policy { logprobs: all(logprobs), advantages: all(&vec![1.0; tokens.len()]) };
    Datum::new(sequence[..sequence.len() - 1].to_vec(), sequence[1..].to_vec(), inputs).unwrap()
}

async fn train(training: &dyn TrainingBackend, data: Vec<Datum>) {
    training.forward_backward(data, Loss::ImportanceSampling).await.unwrap();
}

#[tokio::test]
async fn a_trained_sample_is_recognized_with_its_staleness() {
    let (service, trained) = service(SimulationOptions::default());
    let training = service.adapter(0);
    let first = sample(&*service.sampler(0)).await;
    assert_eq!((first.tokens.len(), first.tokens[11]), (12, STOP));
    let second = sample(&*service.sampler(0)).await;
    assert_ne!(first.tokens, second.tokens);

    train(&*training, vec![datum(&second.tokens, &second.logprobs)]).await;
    training.optim_step(AdamParams::default()).await.unwrap();
    train(&*training, vec![datum(&first.tokens, &first.logprobs), datum(&second.tokens, &second.logprobs)])
        .await;
    let of = |number, staleness, again| {
        let token_staleness = 12 * staleness;
        TrainedSample { number, tokens: 12, staleness, token_staleness, again }
    };
    let expected = [
        TrainedData { data: 1, tokens: 14, samples: vec![of(1, 0, false)], unknown: 0 },
        TrainedData { data: 2, tokens: 28, samples: vec![of(0, 1, false), of(1, 1, true)], unknown: 0 },
    ];
    assert_eq!(*trained.lock().unwrap(), expected);
}

#[tokio::test]
async fn what_is_no_sample_of_the_service_is_unknown() {
    let (service, trained) = service(SimulationOptions::default());
    let training = service.adapter(0);
    let Completion { tokens, logprobs, .. } = sample(&*service.sampler(0)).await;
    let mut other = tokens.clone();
    other[10] = if other[10] == 97 { 98 } else { 97 };
    let mut late = tokens.clone();
    late.rotate_right(1);
    let mut foreign = logprobs.clone();
    foreign[5] = -0.5;
    train(
        &*training,
        vec![
            datum(&other, &logprobs),
            datum(&late, &logprobs),
            datum(&tokens[..11], &logprobs[..11]),
            datum(&tokens, &foreign),
            datum(&[5; 12], &logprobs),
        ],
    )
    .await;
    let trained = trained.lock().unwrap();
    assert_eq!((trained[0].samples.len(), trained[0].unknown), (0, 5));
}

#[tokio::test(start_paused = true)]
async fn latencies_do_not_depend_on_how_samples_are_divided_into_requests() {
    let spread = SimulatedLatency::lognormal(1.0, 1.0).with_tail(0.1, 10.0);
    let options = || SimulationOptions { seed: 3, sample: spread, ..SimulationOptions::default() };
    let time = async |service: &SimulatedService, prompt: Token, samples: usize| {
        let begun = Instant::now();
        service.sampler(0).sample(request(&[prompt], samples)).await.unwrap();
        begun.elapsed()
    };
    let (whole, _) = service(options());
    let (parts, _) = service(options());
    // Another prompt in between changes nothing.
    time(&parts, 2, 1).await;
    let mut each = Vec::new();
    for _ in 0..8 {
        each.push(time(&parts, 1, 1).await);
    }
    assert_eq!(time(&whole, 1, 8).await, each.iter().max().copied().unwrap());
    each.dedup();
    assert_eq!(each.len(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_pass_takes_the_same_time_in_one_piece_and_in_two() {
    let pass_time = PassTime::PerDatum { datum: 0.5, token: 0.01 };
    let (service, _) = service(SimulationOptions {
        forward_backward: SimulatedLatency::constant(2.0),
        pass_time,
        ..SimulationOptions::default()
    });
    let training = service.adapter(0);
    let data = vec![datum(&[97; 8], &[-1.0; 8]); 4];
    for pieces in [vec![4], vec![1, 3]] {
        let begun = Instant::now();
        for piece in pieces {
            train(&*training, data[..piece].to_vec()).await;
        }
        training.optim_step(AdamParams::default()).await.unwrap();
        // 2 s, four data of 0.5 s, and 40 tokens of 0.01 s.
        assert_eq!(begun.elapsed(), Duration::from_secs_f64(2.0 + 4.0 * 0.5 + 40.0 * 0.01));
    }
}

#[tokio::test(start_paused = true)]
async fn training_starts_at_the_next_cycle_and_what_is_queued_shares_it() {
    let cycle = Duration::from_secs(10);
    let (service, _) = service(SimulationOptions { cycle, ..SimulationOptions::default() });
    let training = service.adapter(0);
    let begun = Instant::now();
    tokio::time::advance(Duration::from_secs(3)).await;
    let steps: Vec<_> = (0..3).map(|_| training.optim_step(AdamParams::default())).collect();
    futures::future::try_join_all(steps).await.unwrap();
    assert_eq!(begun.elapsed(), cycle);
    training.optim_step(AdamParams::default()).await.unwrap();
    assert!(begun.elapsed() >= cycle);
}

#[tokio::test(start_paused = true)]
async fn adapters_that_share_a_queue_take_turns() {
    for (one_queue, seconds) in [(false, 1), (true, 2)] {
        let optim_step = SimulatedLatency::constant(1.0);
        let (service, _) =
            service(SimulationOptions { optim_step, one_queue, ..SimulationOptions::default() });
        let adapters = [service.adapter(0), service.adapter(0)];
        let begun = Instant::now();
        let steps = adapters.iter().map(|adapter| adapter.optim_step(AdamParams::default()));
        futures::future::try_join_all(steps).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::from_secs(seconds));
    }
}

#[tokio::test(start_paused = true)]
async fn each_token_of_a_sample_has_the_staleness_of_the_weights_that_drew_it() {
    let seconds = SimulatedLatency::constant(12.0);
    let (service, trained) = service(SimulationOptions { sample: seconds, ..SimulationOptions::default() });
    let (training, sampler) = service.adapter_in_flight(0);
    let first = sample(&*sampler).await;
    let training_meanwhile = async {
        // Tokens are drawn at 0, 1, … 11 s: seven of them before the weights are replaced.
        tokio::time::sleep(Duration::from_millis(6500)).await;
        train(&*training, vec![datum(&first.tokens, &first.logprobs)]).await;
        training.optim_step(AdamParams::default()).await.unwrap();
        training.publish_in_flight(PolicyVersion(1)).await.unwrap();
    };
    let (second, ()) = tokio::join!(sample(&*sampler), training_meanwhile);
    assert_eq!([second.logprobs[6], second.logprobs[7]], [-1.0, -0.5]);
    train(&*training, vec![datum(&second.tokens, &second.logprobs)]).await;
    let of = |number, staleness, token_staleness| TrainedSample {
        number,
        tokens: 12,
        staleness,
        token_staleness,
        again: false,
    };
    let samples: Vec<_> = trained.lock().unwrap().iter().flat_map(|data| data.samples.clone()).collect();
    assert_eq!(samples, [of(0, 0, 0), of(1, 1, 7)]);
}
