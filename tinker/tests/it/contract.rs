//! The suite that every service must pass, over sockets, on both wires and with every way to find out which.

use crate::kit::server::{Kind, Server};
use crate::kit::{MODEL, options};
use minds_core::contract;
use minds_tinker::client::WireFormat;
use minds_tinker::{RemoteOptions, RemoteService};

async fn check(kind: Kind, wire: WireFormat) {
    let server = Server::start(kind).await;
    let model = RemoteOptions { base_model: MODEL.into(), ..RemoteOptions::default() };
    let service = RemoteService::connect(&options(&server.url), model).await.unwrap();
    contract::all(&service, "run").await;
    assert_eq!(service.client().wire(), wire);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_the_newer_wire_behaves() {
    check(Kind::default(), WireFormat::Protobuf).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_the_older_wire_behaves() {
    check(Kind { protobuf: false, config: None, ..Kind::default() }, WireFormat::Json).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_guess_about_the_wire_is_corrected() {
    check(Kind { protobuf: false, early_polls: 0, ..Kind::default() }, WireFormat::Json).await;
    check(Kind { protobuf: true, config: None, early_polls: 2, ..Kind::default() }, WireFormat::Protobuf)
        .await;
}
