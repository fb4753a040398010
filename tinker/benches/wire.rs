//! What the wire costs: a large batch encoded and its result decoded, beside the official SDK in the same minutes, and
//! the processor time of a sample over loopback with a thousand in flight.
//!
//! `MINDS_BENCH_PYTHON` names a Python that has the `tinker` package; without it our half is measured alone.
#![expect(clippy::print_stdout, reason = "the table is the output")]

#[path = "../../benches/shared/cpu.rs"]
mod cpu;

use axum::Router;
use axum::body::Body;
use axum::http::{Response, Uri};
use bytes::Bytes;
use cpu::cpu_seconds;
use futures::StreamExt as _;
use minds_core::datum::{Datum, LossInputs};
use minds_core::loss::Loss;
use minds_core::sampling::{Completion, SampleRequest, SampleResponse, SamplingParams, StopReason};
use minds_core::service::ForwardOutput;
use minds_tinker::client::{Client, ClientOptions, ModelLimits};
use minds_tinker::convert::{forward_from_proto, forward_to_proto, pass_to_proto, sample_response_to_proto};
use minds_tinker::types::{JSON, PROTOBUF, proto};
use prost::Message as _;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const DATA: usize = 1024;
const LENGTH: usize = 2000;
const ROUNDS: usize = 7;
const IN_FLIGHT: usize = 1000;
const SAMPLES: usize = 20_000;
/// The child's own argument: it is the server.
const SERVE: &str = "serve-samples";

fn main() {
    if std::env::args().any(|arg| arg == SERVE) {
        return serve();
    }
    codec();
    samples();
}

fn codec() {
    let tokens: Vec<u32> = (0..LENGTH as u32).map(|i| 7 + i % 50_000).collect();
    let floats: Vec<f32> = (0..LENGTH).map(|i| -0.5 - (i % 13) as f32 / 7.0).collect();
    let datum = || {
        let inputs = LossInputs::Policy { logprobs: floats.clone(), advantages: floats.clone() };
        Datum::new(tokens.clone(), tokens.clone(), inputs).expect("tensors of one length")
    };
    let data: Vec<Datum> = (0..DATA).map(|_| datum()).collect();
    let forward = ForwardOutput {
        logprobs: vec![floats.clone(); DATA],
        metrics: BTreeMap::from([("loss:sum".to_owned(), 1.0)]),
    };
    let output: Bytes = forward_to_proto(&forward).encode_to_vec().into();
    let (encode, body) =
        best(|| pass_to_proto("m".into(), 1, &data, Loss::ImportanceSampling, false).encode_to_vec());
    let (decode, read) = best(|| {
        let output = proto::ProtoForwardBackwardOutput::decode(output.clone()).expect("our own bytes");
        forward_from_proto(&output).expect("our own result")
    });
    assert_eq!(read, forward);
    println!("| measure | unit | ours | SDK | times as fast |\n|---|---|---|---|---|");
    let sdk = sdk(&output, body.len());
    for (name, ours, sdk) in
        [("encode", encode, sdk.map(|sdk| sdk[0])), ("decode", decode, sdk.map(|sdk| sdk[1]))]
    {
        let ours = ours.as_secs_f64() * 1e3;
        let (theirs, times) = sdk.map_or(("–".into(), "–".into()), |sdk| {
            (format!("{:.1}", sdk * 1e3), format!("{:.1} ×", sdk * 1e3 / ours))
        });
        println!("| {name}, {DATA} × {LENGTH} | ms | {ours:.1} | {theirs} | {times} |");
    }
}

/// The SDK's seconds to encode and to decode.
fn sdk(output: &[u8], body: usize) -> Option<[f64; 2]> {
    let python = std::env::var("MINDS_BENCH_PYTHON").ok()?;
    let file = std::env::temp_dir().join(format!("minds-wire-{}.bin", std::process::id()));
    std::fs::write(&file, output).expect("the temporary folder can be written");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/wire_sdk.py");
    let args = [DATA, LENGTH, ROUNDS].map(|n| n.to_string());
    let run = Command::new(python).arg(script).args(args).arg(&file).stderr(Stdio::inherit()).output();
    let text = String::from_utf8(run.expect("Python runs").stdout).expect("numbers are text");
    std::fs::remove_file(&file).expect("the file was written by us");
    let numbers: Vec<f64> = text.split_whitespace().map(|n| n.parse().expect("a number")).collect();
    let [encode, decode, length] = numbers[..] else { panic!("the SDK's half failed: {text}") };
    assert_eq!(length as usize, body, "the two bodies are not the same request");
    Some([encode, decode])
}

fn best<T>(mut work: impl FnMut() -> T) -> (Duration, T) {
    let mut run = || {
        let begun = tokio::time::Instant::now();
        let result = work();
        (begun.elapsed(), result)
    };
    (0..ROUNDS).map(|_| run()).min_by_key(|(time, _)| *time).expect("there are rounds")
}

fn samples() {
    let program = std::env::current_exe().expect("this program has a file");
    let mut child = Command::new(program).arg(SERVE).stdout(Stdio::piped()).spawn().expect("it starts again");
    let mut lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
    let url = lines.next().expect("it says where it is").expect("its address is text");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let options =
        ClientOptions { max_sample_requests: NonZeroUsize::new(IN_FLIGHT), ..ClientOptions::new(url) };
    let (wall, cpu) = runtime.block_on(async {
        let client = Client::connect(&options).await.expect("the server is there");
        let sampler = client.base_sampler("any", ModelLimits::default()).await.expect("a sampler");
        let request = SampleRequest::new((0..500).collect(), 1, SamplingParams::plain(64));
        let run = |n: usize| {
            futures::stream::iter(0..n)
                .map(|_| sampler.sample(&request))
                .buffer_unordered(IN_FLIGHT)
                .for_each(async |sample| assert_eq!(sample.expect("a sample").sequences.len(), 1))
        };
        run(IN_FLIGHT).await;
        let (begun, before) = (tokio::time::Instant::now(), cpu_seconds());
        run(SAMPLES).await;
        (begun.elapsed(), cpu_seconds() - before)
    });
    child.kill().expect("the server still runs");
    child.wait().expect("it ends");
    println!(
        "| client's CPU per sample, {IN_FLIGHT} in flight, prompt 500, sample 64 | µs | {:.0} | | |",
        cpu * 1e6 / SAMPLES as f64
    );
    println!("| samples | 1/s | {:.0} | | |", SAMPLES as f64 / wall.as_secs_f64());
}

/// Answers everything at once, so that only the client's work counts.
fn serve() {
    let sampled = Completion::new((0..64).collect(), vec![-1.0; 64], StopReason::Length);
    let response = SampleResponse {
        sequences: vec![sampled],
        prompt_logprobs: None,
        topk_prompt_logprobs: None,
        target_prompt_logprobs: None,
        cached_prompt_tokens: 0,
    };
    let result: Bytes = sample_response_to_proto(&response).encode_to_vec().into();
    let answer = Arc::new(move |uri: Uri| {
        let (kind, body) = match uri.path().rsplit('/').next().expect("split gives at least one part") {
            "retrieve_future" => (PROTOBUF, result.clone()),
            "create_session" => (JSON, Bytes::from_static(br#"{"session_id":"s"}"#)),
            "create_sampling_session" => (JSON, Bytes::from_static(br#"{"sampling_session_id":"p"}"#)),
            "asample" => (JSON, Bytes::from_static(br#"{"request_id":"r"}"#)),
            _ => (JSON, Bytes::from_static(b"{}")),
        };
        Response::builder().header("content-type", kind).body(Body::from(body)).expect("a plain answer")
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("http://{}", listener.local_addr().expect("it has an address"));
        let handle = move |uri: Uri, _body: Bytes| std::future::ready(answer(uri));
        axum::serve(listener, Router::new().fallback(handle)).await.expect("it serves until it is killed");
    });
}
