//! The whole way: core's contract over our client, a socket and our server.

use super::kit::{Served, run};
use minds_core::contract;
use minds_tinker::client::ClientOptions;
use minds_tinker::{RemoteOptions, RemoteService};

#[test]
fn client_and_server_together_keep_the_contract_of_all_backends() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let server = Served::start(Some(state.path()), |_| {}).await;
        let options = ClientOptions::new(server.url());
        let model = RemoteOptions { base_model: "tiny".into(), ..RemoteOptions::default() };
        let service = RemoteService::connect(&options, model).await.unwrap();
        contract::all(&service, "contract").await;
        drop(service);
        server.stop().await;
    });
}
