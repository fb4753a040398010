//! A server of the test model, and words for it.

use minds_core::architecture::Architecture;
use minds_core::hosting::HostedService;
use minds_engine::embedded::EmbeddedService;
use minds_engine::model::Model;
use minds_engine::runtime::{EngineOptions, SwapKv};
use minds_models::ByteTokenizer;
use minds_server::{ServerOptions, serve};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The engine over the seeded test model, with a folder for checkpoints or without.
pub fn engine(state: Option<&Path>) -> EmbeddedService {
    engine_with(state, SwapKv::Keep)
}

pub fn engine_with(state: Option<&Path>, swap_kv: SwapKv) -> EmbeddedService {
    let model = Arc::new(Model::random(Architecture::tiny(), 1).unwrap());
    let options = EngineOptions {
        threads: Some(2.try_into().unwrap()),
        checkpoint_dir: state.map(Into::into),
        swap_kv,
        ..EngineOptions::new("tiny")
    };
    EmbeddedService::start(model, Some(Arc::new(ByteTokenizer)), &options).unwrap()
}

/// Runs a test on a runtime of its own.
pub fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

pub struct Served {
    base: String,
    client: Client,
    stop: oneshot::Sender<()>,
    done: JoinHandle<std::io::Result<()>>,
}

impl Served {
    pub async fn start(state: Option<&Path>, change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::over(Arc::new(engine(state)), change).await
    }

    /// The server over any service.
    pub async fn over(service: Arc<dyn HostedService>, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let mut options = ServerOptions::new(|| UNIX_EPOCH);
        change(&mut options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/api/v1/", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let done = tokio::spawn(serve(listener, service, options, async move {
            stopped.await.ok();
        }));
        // An error means that another test has done it.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = Client::builder().no_proxy().build().unwrap();
        Self { base, client, stop, done }
    }

    /// Orders the server to stop, and waits until it has.
    pub async fn stop(self) {
        self.stop.send(()).unwrap();
        self.done.await.unwrap().unwrap();
    }

    /// Where a client of the API finds it.
    pub fn url(&self) -> &str {
        self.base.trim_end_matches("/api/v1/")
    }

    pub fn order_stop(self) -> JoinHandle<std::io::Result<()>> {
        self.stop.send(()).unwrap();
        self.done
    }

    pub fn request(&self, method: Method, address: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{address}", self.base))
    }

    /// Status and JSON of an answer.
    pub async fn answer(&self, request: RequestBuilder) -> (u16, Value) {
        let response = request.send().await.unwrap();
        let (status, body) = (response.status().as_u16(), response.bytes().await.unwrap());
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    pub fn posting(&self, address: &str, body: &Value) -> RequestBuilder {
        let request = self.request(Method::POST, address).header("content-type", "application/json");
        request.body(body.to_string())
    }

    pub async fn try_post(&self, address: &str, body: &Value) -> (u16, Value) {
        self.answer(self.posting(address, body)).await
    }

    pub async fn post(&self, address: &str, body: &Value) -> Value {
        let (status, answer) = self.try_post(address, body).await;
        assert_eq!(status, 200, "{address} {body}: {answer}");
        answer
    }

    /// Posts until there is room.
    pub async fn post_patiently(&self, address: &str, body: &Value) -> Value {
        loop {
            match self.try_post(address, body).await {
                (429, _) => tokio::task::yield_now().await,
                (status, answer) => {
                    assert_eq!(status, 200, "{address} {body}: {answer}");
                    return answer;
                }
            }
        }
    }

    pub async fn get(&self, address: &str) -> Value {
        let (status, answer) = self.answer(self.request(Method::GET, address)).await;
        assert_eq!(status, 200, "{address}: {answer}");
        answer
    }

    /// The result behind a promise.
    pub async fn result(&self, promise: &Value) -> Value {
        loop {
            let body = json!({"request_id": promise["request_id"]});
            let (status, answer) = self.try_post("retrieve_future", &body).await;
            match status {
                408 => assert_eq!(answer["type"], "try_again", "{answer}"),
                200 => return answer,
                other => panic!("{other}: {answer}"),
            }
        }
    }

    /// Posts and fetches.
    pub async fn ask(&self, address: &str, body: &Value) -> Value {
        self.result(&self.post(address, body).await).await
    }

    pub async fn session(&self) -> String {
        self.post("create_session", &json!({})).await["session_id"].as_str().unwrap().into()
    }

    pub async fn model_in(&self, session: &str, number: u64) -> String {
        let body = json!({"session_id": session, "model_seq_id": number, "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1}});
        self.ask("create_model", &body).await["model_id"].as_str().unwrap().into()
    }

    /// A model in a session of its own.
    pub async fn model(&self) -> String {
        self.model_in(&self.session().await, 0).await
    }
}

/// A pass of cross-entropy over one datum.
pub fn pass(key: &str, model: &str, number: Option<i64>, weight: f32) -> Value {
    let tensor = |data: Value, dtype: &str| json!({"data": data, "dtype": dtype});
    let datum = json!({
        "model_input": {"chunks": [{"tokens": [3, 1, 4, 1]}]},
        "loss_fn_inputs": {"target_tokens": tensor(json!([1, 4, 1, 5]), "int64"),
            "weights": tensor(json!(vec![weight; 4]), "float32")},
    });
    json!({key: {"data": [datum], "loss_fn": "cross_entropy"}, "model_id": model, "seq_id": number})
}

pub fn backward(model: &str, number: i64) -> Value {
    pass("forward_backward_input", model, Some(number), 1.0)
}

pub fn forward(model: &str, number: i64) -> Value {
    pass("forward_input", model, Some(number), 1.0)
}

pub fn step(model: &str, number: i64) -> Value {
    json!({"model_id": model, "seq_id": number, "adam_params": {"learning_rate": 0.01}})
}

pub fn loss(result: &Value) -> f64 {
    result["metrics"]["loss:sum"].as_f64().unwrap_or_else(|| panic!("no loss in {result}"))
}
