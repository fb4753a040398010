//! Large passes in parts.

use crate::kit::server::{Kind, Server};
use crate::kit::{MODEL, datum, limits, options};
use minds_core::datum::Datum;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_tinker::client::{Client, ClientError};
use minds_tinker::types::{ClientConfig, LoraConfig, PROTOBUF};

fn data() -> Vec<Datum> {
    (0..5).map(|i| datum(&[i, i + 7, i + 20, 3])).collect()
}

async fn check(most: usize, zstd: bool) -> (f64, f64) {
    let config =
        ClientConfig { fwdbwd_max_chunk_len: most, proto_compress_fwdbwd: zstd, ..ClientConfig::default() };
    let server = Server::start(Kind { config: Some(config), ..Kind::default() }).await;
    let client = Client::connect(&options(&server.url)).await.unwrap();
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    let pass = training.forward_backward(data(), Loss::CrossEntropy);
    drop(training.optim_step(AdamParams { eps: 1.0, ..AdamParams::default() }));
    let after = training.forward(data(), Loss::CrossEntropy).await.unwrap();
    let pass = pass.await.unwrap();
    assert_eq!(pass.logprobs.len(), 5);
    // Two passes in parts, and a step.
    assert_eq!(server.asked("forward_backward"), 2 * 5usize.div_ceil(most));
    let seen = server.seen.lock().unwrap();
    for request in seen.iter().filter(|seen| seen.path == "forward_backward") {
        assert_eq!(request.headers["content-type"], PROTOBUF);
        assert_eq!(request.headers.get("content-encoding").is_some(), zstd);
    }
    (pass.metrics["loss:sum"], after.metrics["loss:sum"])
}

#[tokio::test]
async fn a_pass_in_parts_is_the_same_pass() {
    let (whole, whole_after) = check(1024, false).await;
    for most in [1, 2, 4] {
        let (parts, parts_after) = check(most, false).await;
        assert!((whole - parts).abs() < 1e-9, "{whole} in parts of {most} is {parts}");
        // The step saw the gradients of all parts.
        assert!(
            (whole_after - parts_after).abs() < 1e-9,
            "{whole_after} in parts of {most} is {parts_after}"
        );
    }
    assert!(whole_after < whole);
}

#[tokio::test]
async fn bodies_are_compressed_if_the_server_accepts_it() {
    assert_eq!(check(2, true).await, check(2, false).await);
}

/// Half a pass cannot be taken back, so it is not like a pass that was refused.
#[tokio::test]
async fn a_pass_of_which_a_part_fails_is_lost() {
    let config = ClientConfig { fwdbwd_max_chunk_len: 2, ..ClientConfig::default() };
    let server = Server::start(Kind { config: Some(config), ..Kind::default() }).await;
    let client = Client::connect(&options(&server.url)).await.unwrap();
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    server.script("retrieve_future", 200, r#"{"error":"no","category":"user"}"#);
    let pass = training.forward_backward(data(), Loss::CrossEntropy).await;
    assert!(matches!(pass, Err(ClientError::Lost { .. })), "{pass:?}");
}
