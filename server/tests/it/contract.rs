//! The whole way: core's contract over our client, a socket and our server.

use crate::kit::{Served, run};
use minds_core::contract;
use minds_server::PlainService;
use minds_simulation::{SimulatedService, SimulationOptions};
use minds_tinker::client::ClientOptions;
use minds_tinker::{RemoteOptions, RemoteService};
use std::sync::Arc;

/// Core's contract through our client, a socket and the server.
async fn check(server: Served, run: &str) {
    let options = ClientOptions::new(server.url());
    let model = RemoteOptions { base_model: "tiny".into(), ..RemoteOptions::default() };
    let service = RemoteService::connect(&options, model).await.unwrap();
    contract::all(&service, run).await;
    drop(service);
    server.stop().await;
}

#[test]
fn client_and_server_together_keep_the_contract_of_all_backends() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let server = Served::start(Some(state.path()), |_| {}).await;
        check(server, "contract").await;
    });
}

/// So the server needs nothing of the engine but core's traits.
#[test]
fn a_simulated_service_behind_the_server_keeps_the_contract() {
    run(async {
        let mut options = SimulationOptions::default();
        options.info.base_model = "tiny".into();
        let service = Arc::new(SimulatedService::new(options));
        check(Served::over(service, |_| {}).await, "simulated").await;
    });
}

#[test]
fn a_server_before_another_one_keeps_the_contract() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let behind = Served::start(Some(&state.path().join("remote")), |_| {}).await;
        let options = ClientOptions::new(behind.url());
        let model = RemoteOptions { base_model: "tiny".into(), ..RemoteOptions::default() };
        let remote = RemoteService::connect(&options, model).await.unwrap();
        let plain = PlainService::new(Arc::new(remote));
        check(Served::over(Arc::new(plain), |_| {}).await, "remote").await;
        behind.stop().await;
    });
}
