//! A scripted Tinker server whose completions are hostile: every one tries to attack the program that shows it.
//!
//! It computes nothing: a pass gives back the logprobs that it was sent, so that every ratio is 1. It speaks the older of
//! the two wires, JSON throughout.

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// A completion that would run a script twice.
pub const MARKUP: &str = "<script>alert(1)</script><img src=x onerror=alert(1)>";

/// Members of a group, each with a completion of its own kind.
pub const MEMBERS: usize = 8;

/// Characters of a long completion. Every fourth group has one.
pub const LONG: usize = 200_000;

/// How long a sample takes.
const SAMPLE: Duration = Duration::from_millis(100);

/// What the file-less model ends an answer with; all other tokens here are bytes.
const END: u32 = 258;

/// The completions of a group: one for each member.
fn completions(group: usize) -> [Vec<u8>; MEMBERS] {
    let accents = format!("\u{301}\u{301} alone, and z{}algo", "\u{334}\u{321}".repeat(200));
    let last: String = match group % 4 {
        0 => "All work and <b>no</b> play. ".chars().cycle().take(LONG).collect(),
        _ => "javascript:alert(1) \u{200b}\u{feff}{{7*7}}</style></textarea>".to_owned(),
    };
    [
        MARKUP.into(),
        // Colours, and a link as terminals know it.
        "\u{1b}[31mred\u{1b}[0m, \u{1b}]8;;https://evil.example/\u{7}a link\u{1b}]8;;\u{7}".into(),
        // Reads from right to left, first as it should not and then as it should.
        "abc\u{202e}fed\u{202c}, \u{2067}ihg\u{2069} and \u{5e9}\u{5dc}\u{5d5}\u{5dd}".into(),
        "\0\0nothing\0 to see\0".into(),
        accents.into(),
        "x".repeat(3000).into(),
        b"\xff\xfe no text \xe2\x86".into(),
        last.into(),
    ]
}

/// What the server knows: its promises, each with the time from which it is kept.
#[derive(Default)]
struct Script {
    results: Mutex<HashMap<String, (Instant, Value)>>,
    promised: AtomicUsize,
    groups: AtomicUsize,
}

impl Script {
    fn promise(&self, result: Value, after: Duration) -> Json<Value> {
        let name = format!("r{}", self.promised.fetch_add(1, Relaxed));
        self.results.lock().unwrap().insert(name.clone(), (Instant::now() + after, result));
        Json(json!({ "request_id": name }))
    }

    fn sample(&self, request: &Value) -> Json<Value> {
        let wanted = request["num_samples"].as_u64().unwrap();
        let texts = completions(self.groups.fetch_add(1, Relaxed)).into_iter().take(wanted as usize);
        let sequences = texts.map(|text| {
            let tokens: Vec<u32> = text.into_iter().map(u32::from).chain([END]).collect();
            // All shades of likely, from 1 down to 0.02.
            let logprobs: Vec<f32> = (0..tokens.len()).map(|at| (at * 37 % 100) as f32 / -25.0).collect();
            json!({ "tokens": tokens, "logprobs": logprobs, "stop_reason": "stop" })
        });
        let result = json!({ "sequences": sequences.collect::<Vec<_>>() });
        self.promise(result, SAMPLE * wanted as u32)
    }
}

type Shared = State<Arc<Script>>;

async fn pass(State(script): Shared, Json(request): Json<Value>) -> Json<Value> {
    let data = request["forward_backward_input"]["data"].as_array().unwrap();
    let rows: Vec<Value> =
        data.iter().map(|datum| json!({ "logprobs": datum["loss_fn_inputs"]["logprobs"] })).collect();
    let result = json!({
        "loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": rows, "metrics": { "loss:sum": 0.0 }
    });
    script.promise(result, Duration::ZERO)
}

async fn save(State(script): Shared, Json(request): Json<Value>) -> Json<Value> {
    let path = format!("tinker://s:train:0/weights/{}", request["path"].as_str().unwrap());
    script.promise(json!({ "path": path }), Duration::ZERO)
}

async fn save_for_sampler(State(script): Shared, Json(request): Json<Value>) -> Json<Value> {
    let result = match request["path"].as_str() {
        Some(name) => json!({ "path": format!("tinker://s:train:0/sampler_weights/{name}") }),
        None => json!({ "sampling_session_id": format!("s:train:0:{}", request["seq_id"]) }),
    };
    script.promise(result, Duration::ZERO)
}

async fn retrieve(
    State(script): Shared,
    Json(request): Json<Value>,
) -> Result<Json<Value>, (StatusCode, Json<Value>)> {
    let name = request["request_id"].as_str().unwrap();
    let found = script.results.lock().unwrap().remove(name);
    let (at, result) =
        found.ok_or((StatusCode::NOT_FOUND, Json(json!({ "detail": "there is no such result" }))))?;
    sleep_until(at).await;
    Ok(Json(result))
}

fn routes() -> Router {
    let model = json!({ "model_name": "tiny-random", "max_context_length": 1 << 20, "vocab_size": 259 });
    let capabilities = json!({ "supported_models": [model] });
    let just = |answer: Value| post(move || async { Json(answer) });
    let api = Router::new()
        .route("/get_server_capabilities", get(move || async { Json(capabilities) }))
        .route("/create_session", just(json!({ "session_id": "s" })))
        .route("/session_heartbeat", just(json!({})))
        .route("/sessions/{id}/finish", just(json!({})))
        .route("/create_sampling_session", just(json!({ "sampling_session_id": "saved" })))
        .route(
            "/create_model",
            post(|State(script): Shared| async move {
                script.promise(json!({ "model_id": "s:train:0" }), Duration::ZERO)
            }),
        )
        .route(
            "/asample",
            post(|State(script): Shared, Json(request): Json<Value>| async move { script.sample(&request) }),
        )
        .route("/forward_backward", post(pass))
        .route(
            "/optim_step",
            post(
                |State(script): Shared| async move { script.promise(json!({ "metrics": {} }), Duration::ZERO) },
            ),
        )
        .route("/save_weights", post(save))
        .route("/save_weights_for_sampler", post(save_for_sampler))
        .route("/retrieve_future", post(retrieve));
    // A pass over long completions is long, too.
    Router::new().nest("/api/v1", api).layer(DefaultBodyLimit::disable()).with_state(Arc::default())
}

/// The server, which ends with the test.
pub struct Hostile {
    pub url: String,
    _stop: oneshot::Sender<()>,
}

impl Hostile {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    served = axum::serve(listener, routes()).into_future() => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self { url, _stop: stop }
    }
}
