//! A bad network changes nothing but the time it takes.

use crate::kit::model::Adapter;
use crate::kit::proxy::Proxy;
use crate::kit::server::{Kind, Server};
use crate::kit::{MODEL, datum, limits, options};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SamplingParams, Stop};
use minds_core::service::ForwardOutput;
use minds_tinker::client::{Client, ClientFuture, ClientOptions, ClientTimeouts};
use minds_tinker::types::LoraConfig;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;

const LOSS: Loss = Loss::CrossEntropy;

/// Many training requests without waiting, samples beside them, everything through the proxy; the same sums beside it
/// in memory say what must come out.
async fn check(protobuf: bool, seed: u64) {
    let server = Server::start(Kind { protobuf, early_polls: 0, ..Kind::default() }).await;
    let proxy = Proxy::start(&server.url, seed).await;
    let near = options(&proxy.url);
    // A silent poll must end; everything else has ample time, on a slow machine too.
    let timeouts = ClientTimeouts { poll: Duration::from_secs(1), ..near.timeouts };
    let client = Client::connect(&ClientOptions { timeouts, ..near }).await.unwrap();
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    let sampler = Arc::new(client.base_sampler(MODEL, limits()).await.unwrap());

    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut twin = Adapter::new();
    let mut passes: Vec<(ClientFuture<ForwardOutput>, ForwardOutput)> = Vec::new();
    let mut others = Vec::new();
    let mut samples = Vec::new();
    let (mut trained, mut saved) = (0, 0);
    for i in 0..300 {
        let data = vec![datum(&std::array::from_fn::<u32, 6, _>(|_| rng.random_range(0..64)))];
        match rng.random_range(0..6) {
            0 | 1 => {
                passes.push((
                    training.forward_backward(data.clone(), LOSS),
                    twin.forward_backward(&data, LOSS),
                ));
                trained += 1;
            }
            2 => {
                let params = AdamParams { learning_rate: 1e-2, ..AdamParams::default() };
                twin.step(&params);
                let step = training.optim_step(params);
                others.push(tokio::spawn(async move { step.await.map(|_| ()) }));
                trained += 1;
            }
            3 => {
                passes.push((training.forward(data.clone(), LOSS), twin.weights.pass(&data, LOSS, None)));
                trained += 1;
            }
            4 if i % 4 == 0 => {
                let save = training.save_state(&format!("s{i}"));
                others.push(tokio::spawn(async move { save.await.map(|_| ()) }));
                (trained, saved) = (trained + 1, saved + 1);
            }
            _ => {
                let params =
                    SamplingParams { seed: Some(i), stop: Stop::Tokens(vec![]), ..SamplingParams::plain(4) };
                let request = SampleRequest::new(Arc::new([1, 2, 3]), 2, params);
                let expected = crate::kit::model::Weights::base().sample(&request, 0);
                let sampler = sampler.clone();
                let sample = tokio::spawn(async move { sampler.sample(&request).await });
                samples.push((sample, expected));
            }
        }
    }
    let drawn = samples.len();
    for (answer, expected) in passes {
        assert_eq!(answer.await.unwrap(), expected);
    }
    for other in others {
        other.await.unwrap().unwrap();
    }
    for (sample, expected) in samples {
        assert_eq!(sample.await.unwrap().unwrap(), expected);
    }
    let world = server.world.lock().unwrap();
    let model = &world.models[training.model_id()];
    assert_eq!(model.adapter, twin, "the weights on the server are not what the requests make of them");
    assert_eq!(world.saved.len(), saved);
    // Each training request once. A sample is resampled only if the server lost its result, which never happened.
    let executed = |of: &str| world.executed.iter().filter(|key| key.contains(of)).count();
    assert_eq!(executed(&format!("{}#", training.model_id())), trained);
    assert_eq!(executed(&format!("{}#", sampler.id())), drawn);
    let done = proxy.done.lock().unwrap();
    assert_eq!(done.len(), 9, "not every fault happened: {done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_executed_once_over_a_bad_network() {
    check(true, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_executed_once_over_a_bad_network_in_json() {
    check(false, 2).await;
}
