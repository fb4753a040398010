//! The service through the suite that every backend must pass, and the promises of its own.

use minds_core::contract;
use minds_core::lora::LoraSpec;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SamplingParams};
use minds_core::service::{BackendError, Service};
use minds_simulation::{
    FaultWindow, PassTime, SimulatedFault, SimulatedLatency, SimulatedService, SimulationOptions,
};
use std::time::Duration;
use tokio::time::Instant;

fn tails() -> SimulatedLatency {
    SimulatedLatency::lognormal(1.0, 1.0).with_tail(0.1, 10.0)
}

fn request(num_samples: usize, seed: Option<u64>) -> SampleRequest {
    let params = SamplingParams { seed, ..SamplingParams::plain(16) };
    SampleRequest::new([3, 1, 4, 1, 5].into(), num_samples, params)
}

#[tokio::test]
async fn the_service_keeps_the_contract_of_all_backends_in_real_time() {
    contract::all(&SimulatedService::new(SimulationOptions::default()), "real").await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_service_keeps_the_contract_of_all_backends_in_virtual_time() {
    let faults = vec![FaultWindow {
        at: Duration::from_secs(20),
        until: Duration::from_secs(3600),
        fault: SimulatedFault::Away,
    }];
    let service = SimulatedService::new(SimulationOptions {
        sample: tails(),
        query: tails(),
        sampling_slots: std::num::NonZeroUsize::new(2),
        forward_backward: tails(),
        pass_time: PassTime::PerBatch(2),
        optim_step: tails(),
        export: tails(),
        save: tails(),
        faults,
        ..SimulationOptions::default()
    });
    let begun = Instant::now();
    contract::all(&service, "virtual").await;
    assert!(begun.elapsed() > Duration::from_secs(3600), "the outage was waited for");
}

#[tokio::test(start_paused = true)]
async fn samples_occupy_slots_and_an_adapter_works_on_one_request_at_a_time() {
    let second = SimulatedLatency::constant(1.0);
    let service = SimulatedService::new(SimulationOptions {
        sample: second,
        sampling_slots: std::num::NonZeroUsize::new(3),
        optim_step: second,
        ..SimulationOptions::default()
    });
    let begun = Instant::now();
    service.sampler(0).sample(request(7, None)).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    let training = service.create_training(LoraSpec::all_linear(4, 1)).await.unwrap();
    let steps: Vec<_> = (0..4).map(|_| training.optim_step(AdamParams::default())).collect();
    futures::future::try_join_all(steps).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
    let counts = *service.counts().borrow();
    assert_eq!((counts.requests(), counts.samples, counts.training_s), (5, 7, 4.0));
}

/// The completions of forty requests, of which some fail, in an order of their own.
async fn completions(order: impl Iterator<Item = u64>) -> Vec<Result<Vec<u32>, BackendError>> {
    let service = SimulatedService::new(SimulationOptions {
        seed: 5,
        sample: tails(),
        failures: 0.2,
        ..SimulationOptions::default()
    });
    let sampler = service.sampler(0);
    let ask = async |seed| {
        let response = sampler.sample(request(1, Some(seed))).await;
        (seed, response.map(|mut response| response.sequences.remove(0).tokens))
    };
    let mut all = futures::future::join_all(order.map(ask)).await;
    all.sort_by_key(|(seed, _)| *seed);
    all.into_iter().map(|(_, completion)| completion).collect()
}

#[tokio::test(start_paused = true)]
async fn completions_and_faults_do_not_depend_on_the_order_of_requests() {
    let forward = completions(0..40).await;
    assert_eq!(forward, completions((0..40).rev()).await);
    let failed = forward.iter().filter(|completion| completion.is_err()).count();
    assert!((2..20).contains(&failed), "{failed} of 40 failed");
    let mut distinct: Vec<_> = forward.into_iter().flatten().collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 40 - failed);
}

#[tokio::test]
async fn requests_without_a_seed_differ_and_come_again_in_another_service() {
    let two = async || {
        let sampler = SimulatedService::new(SimulationOptions::default()).sampler(0);
        let first = sampler.sample(request(1, None)).await.unwrap();
        [first, sampler.sample(request(1, None)).await.unwrap()]
    };
    let [first, second] = two().await;
    assert_ne!(first, second);
    assert_eq!([first, second], two().await);
}
