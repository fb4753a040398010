//! Faults that requests meet on purpose.

use crate::kit::{Served, run};
use minds_core::sampling::{SampleRequest, SamplingParams};
use minds_core::service::Service;
use minds_server::{FaultInjector, InjectedFault};
use minds_simulation::{SimulatedService, SimulationOptions};
use minds_tinker::client::ClientOptions;
use minds_tinker::{RemoteOptions, RemoteService};
use reqwest::Method;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A server of a simulated service, whose n-th sample request meets the fault that `choose` gives for n.
async fn served(
    choose: impl Fn(usize) -> Option<InjectedFault> + Send + Sync + 'static,
) -> (Served, Arc<SimulatedService>) {
    let mut options = SimulationOptions::default();
    options.info.base_model = "tiny".into();
    let service = Arc::new(SimulatedService::new(options));
    let requests = AtomicUsize::new(0);
    let faults = FaultInjector::new(move |path| match path {
        "/asample" => choose(requests.fetch_add(1, Ordering::Relaxed)),
        _ => None,
    });
    (Served::over(service.clone(), |options| options.faults = Some(faults)).await, service)
}

#[test]
fn each_fault_is_what_its_name_says() {
    run(async {
        let faults = [
            InjectedFault::TooManyRequests,
            InjectedFault::Unavailable,
            InjectedFault::Gone,
            InjectedFault::Reset,
        ];
        let (server, service) = served(move |n| faults.get(n).copied()).await;
        let body = json!({"base_model": "tiny", "prompt": {"chunks": [{"tokens": [3, 1, 4]}]},
            "num_samples": 1, "sampling_params": {"max_tokens": 4}});
        assert_eq!(server.try_post("asample", &body).await.0, 429);
        assert_eq!(server.try_post("asample", &body).await.0, 503);
        let gone = server.post("asample", &body).await;
        let fetch = json!({"request_id": gone["request_id"]});
        assert_eq!(server.try_post("retrieve_future", &fetch).await.0, 410);
        assert_eq!(service.counts().borrow().sample_requests, 0, "nothing has reached the service");

        let response = server.posting("asample", &body).send().await;
        let broken = match response {
            Ok(response) => response.bytes().await.is_err(),
            Err(_) => true,
        };
        assert!(broken, "the connection breaks");
        let mut counts = service.counts();
        counts.wait_for(|counts| counts.sample_requests == 1).await.expect("the request was processed");
        assert_eq!(server.ask("asample", &body).await["sequences"].as_array().unwrap().len(), 1);
        assert_eq!(server.answer(server.request(Method::GET, "healthz")).await.0, 200);
        server.stop().await;
    });
}

#[test]
fn a_client_that_retries_gets_every_sample_once() {
    run(async {
        let faults = [
            InjectedFault::TooManyRequests,
            InjectedFault::Unavailable,
            InjectedFault::Reset,
            InjectedFault::Gone,
        ];
        let (server, service) = served(move |n| faults.get(n).copied()).await;
        let options = ClientOptions::new(server.url());
        let model = RemoteOptions { base_model: "tiny".into(), ..RemoteOptions::default() };
        let remote = RemoteService::connect(&options, model).await.unwrap();
        let sampler = remote.base_sampler().await.unwrap();
        let response = sampler.sample(SampleRequest::new([3, 1].into(), 3, SamplingParams::plain(4))).await;
        assert_eq!(response.unwrap().sequences.len(), 3);
        // The request that was cut off had been processed, and its repetition was recognized.
        assert!(service.counts().borrow().samples <= 6);
        drop((sampler, remote));
        server.stop().await;
    });
}
