//! The addresses of the API over [`World`], on a real socket of this machine.

use super::passes;
use super::world::{Outcome, World};
use super::{MODEL, model};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Response, StatusCode};
use bytes::Bytes;
use minds_tinker::convert::{
    forward_to_json, forward_to_proto, sample_response_to_json, sample_response_to_proto,
};
use minds_tinker::types::{self, ClientConfig, JSON, PROTOBUF};
use prost::Message as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What kind of server it is.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Whether passes and results are protobuf; otherwise JSON.
    pub protobuf: bool,
    /// What it answers to `client/config`; `None` for "unknown address".
    pub config: Option<ClientConfig>,
    /// Polls that are answered "not yet" before a result is given.
    pub early_polls: u32,
    /// Whether samples may be cancelled.
    pub cancels: bool,
    /// Whether it falls over a pass on the other wire, and over the request after it.
    pub falls: bool,
    /// Whether it names samples.
    pub names_samples: bool,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            protobuf: true,
            config: Some(ClientConfig::default()),
            early_polls: 1,
            cancels: false,
            falls: false,
            names_samples: true,
        }
    }
}

/// An answer that is given instead of the true one.
pub struct Scripted {
    /// For requests whose address ends like this.
    pub path: &'static str,
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

/// A request as it came.
pub struct Seen {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

pub struct Server {
    pub url: String,
    pub kind: Kind,
    pub world: Mutex<World>,
    pub script: Mutex<VecDeque<Scripted>>,
    pub seen: Mutex<Vec<Seen>>,
    fallen: AtomicBool,
}

impl Server {
    pub async fn start(kind: Kind) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Arc::new(Self {
            url,
            kind,
            world: Mutex::default(),
            script: Mutex::default(),
            seen: Mutex::default(),
            fallen: AtomicBool::new(false),
        });
        let router = Router::new().fallback(handle).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        server
    }

    /// Lies once per entry.
    pub fn script(&self, path: &'static str, status: u16, body: &str) {
        self.script.lock().unwrap().push_back(Scripted { path, status, headers: vec![], body: body.into() });
    }

    /// The number of requests to an address.
    pub fn asked(&self, path: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| seen.path.ends_with(path)).count()
    }

    fn route(&self, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Response<Body> {
        let mut world = self.world.lock().unwrap();
        let world = &mut *world;
        match (method.as_str(), path) {
            ("POST", "client/config") => match &self.kind.config {
                Some(config) => json_answer(config),
                None => no_route(),
            },
            ("POST", "client/dynamic_config") => {
                json_answer(&json!({"sample_cancel_enabled": self.kind.cancels}))
            }
            ("POST", "create_session") => {
                world.sessions += 1;
                json_answer(&json!({"session_id": format!("s{}", world.sessions)}))
            }
            ("POST", "session_heartbeat") => json_answer(&json!({})),
            ("GET", "get_server_capabilities") => {
                json_answer(&json!({"supported_models": [{"model_name": MODEL,
                "max_context_length": model::CONTEXT, "vocab_size": model::VOCAB}]}))
            }
            ("POST", "create_model") => promise(Some(world.create_model(&read(body)))),
            ("POST", "forward_backward") | ("POST", "forward") => {
                if self.fallen.swap(false, Ordering::Relaxed) {
                    return cut();
                }
                if path == "forward" && self.kind.protobuf {
                    return no_route();
                }
                match passes::read(self.kind.protobuf, path == "forward", headers, body.clone()) {
                    Ok(pass) => {
                        promise(world.pass(&pass.model_id, pass.seq_id, pass.pass, pass.forward_only))
                    }
                    Err(_) if self.kind.falls => {
                        self.fallen.store(true, Ordering::Relaxed);
                        answer(StatusCode::INTERNAL_SERVER_ERROR, JSON, "Internal Server Error")
                    }
                    Err(status) => answer(status, JSON, r#"{"detail":"unreadable"}"#),
                }
            }
            ("POST", "optim_step") => promise(world.step(&read(body))),
            ("POST", "save_weights") => promise(world.save(&read(body))),
            ("POST", "save_weights_for_sampler") => promise(world.save_for_sampler(&read(body))),
            ("POST", "load_weights") => {
                let request: types::LoadWeightsRequest = read(body);
                match (&request.session_id, request.model_seq_id) {
                    (Some(session), Some(number)) if self.kind.protobuf => {
                        promise(world.create_from(session, number, &request.path, request.optimizer))
                    }
                    _ => promise(world.load(&request)),
                }
            }
            ("POST", "weights_info") => {
                json_answer(&json!({"base_model": MODEL, "is_lora": true, "lora_rank": 4}))
            }
            ("POST", "get_info") => {
                let id = read::<types::GetInfoRequest>(body).model_id;
                match world.models.contains_key(&id) {
                    true => json_answer(&json!({"model_id": id, "model_data": {"model_name": MODEL}})),
                    false => missing(),
                }
            }
            ("POST", "unload_model") => {
                let id = read::<types::UnloadModel>(body).model_id;
                world.models.remove(&id);
                let name = format!("unload-{id}");
                world.results.insert(name.clone(), Outcome::Json(json!({"model_id": id})));
                promise(Some(name))
            }
            ("POST", "create_sampling_session") => match world.sampler(&read(body)) {
                Some(id) => json_answer(&json!({"sampling_session_id": id})),
                None => missing(),
            },
            ("POST", "asample") => {
                let request = read::<types::WireSampleRequest>(body);
                match world.sample(&request) {
                    Some(id) if self.kind.names_samples => {
                        let names: Vec<String> =
                            (0..request.num_samples).map(|number| format!("{id}/{number}")).collect();
                        json_answer(&json!({"request_id": id, "sample_sequence_ids": names}))
                    }
                    id => promise(id),
                }
            }
            ("POST", "cancel_future") => {
                world.cancelled.push(read::<types::CancelFutureRequest>(body).request_id);
                json_answer(&json!({}))
            }
            ("POST", "retrieve_future") => self.result(world, headers, &read(body)),
            ("GET", list) if list.ends_with("checkpoints") => {
                json_answer(&types::CheckpointList { checkpoints: world.checkpoints(), cursor: None })
            }
            ("DELETE", path) => {
                let place = path.strip_prefix("training_runs/").unwrap().replacen("/checkpoints", "", 1);
                match world.saved.remove(&format!("tinker://{place}")) {
                    Some(_) => answer(StatusCode::NO_CONTENT, JSON, ""),
                    None => missing(),
                }
            }
            ("POST", finish) if finish.ends_with("/finish") => json_answer(&json!({})),
            _ => no_route(),
        }
    }

    fn result(
        &self,
        world: &mut World,
        headers: &HeaderMap,
        ask: &types::RetrieveFutureRequest,
    ) -> Response<Body> {
        let polls = world.polls.entry(ask.request_id.clone()).or_default();
        *polls += 1;
        if *polls <= self.kind.early_polls {
            // Both ways to say "not yet", in turns.
            let status = if *polls % 2 == 1 { StatusCode::REQUEST_TIMEOUT } else { StatusCode::OK };
            return answer(status, JSON, r#"{"type":"try_again","request_id":"r","queue_state":"active"}"#);
        }
        let Some(outcome) = world.results.get(&ask.request_id) else { return missing() };
        let wants = headers.get("accept").is_some_and(|accept| accept == PROTOBUF);
        if wants && ask.allow_metadata_only && matches!(outcome, Outcome::Pass(_)) {
            return json_answer(&json!({"status": "complete_metadata", "response_payload_size": 1}));
        }
        let protobuf = |message: Vec<u8>| {
            Response::builder().header("content-type", PROTOBUF).body(Body::from(message)).unwrap()
        };
        match outcome {
            Outcome::Failed(failed) => json_answer(failed),
            Outcome::Json(value) => json_answer(value),
            Outcome::Pass(forward) if self.kind.protobuf => {
                protobuf(forward_to_proto(forward).encode_to_vec())
            }
            Outcome::Pass(forward) => json_answer(&forward_to_json(forward)),
            Outcome::Sample(response) if self.kind.protobuf => {
                protobuf(sample_response_to_proto(response).encode_to_vec())
            }
            Outcome::Sample(response) => json_answer(&sample_response_to_json(response)),
        }
    }
}

async fn handle(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    let path = parts.uri.path().trim_start_matches("/api/v1/").to_owned();
    server.seen.lock().unwrap().push(Seen {
        path: path.clone(),
        headers: parts.headers.clone(),
        body: body.clone(),
    });
    let scripted = {
        let mut script = server.script.lock().unwrap();
        let next = script.iter().position(|scripted| path.ends_with(scripted.path));
        next.and_then(|next| script.remove(next))
    };
    match scripted {
        Some(scripted) => {
            let mut response = Response::builder().status(scripted.status);
            for (name, value) in &scripted.headers {
                response = response.header(*name, value);
            }
            if !scripted.headers.iter().any(|(name, _)| *name == "content-type") {
                response = response.header("content-type", JSON);
            }
            response.body(Body::from(scripted.body)).unwrap()
        }
        None => server.route(&parts.method, &path, &parts.headers, &body),
    }
}

fn read<T: DeserializeOwned>(body: &Bytes) -> T {
    serde_json::from_slice(body).expect("the client writes readable requests")
}

fn answer(status: StatusCode, kind: &str, body: impl Into<Body>) -> Response<Body> {
    Response::builder().status(status).header("content-type", kind).body(body.into()).unwrap()
}

fn json_answer(value: &impl Serialize) -> Response<Body> {
    answer(StatusCode::OK, JSON, serde_json::to_vec(value).unwrap())
}

fn promise(name: Option<String>) -> Response<Body> {
    match name {
        Some(name) => json_answer(&json!({"request_id": name, "sample_sequence_ids": Value::Null})),
        None => missing(),
    }
}

/// An answer that breaks off, and the connection with it.
fn cut() -> Response<Body> {
    let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut")) });
    Response::new(Body::from_stream(broken))
}

fn no_route() -> Response<Body> {
    answer(StatusCode::NOT_FOUND, JSON, r#"{"detail":"Not Found"}"#)
}

fn missing() -> Response<Body> {
    answer(StatusCode::NOT_FOUND, JSON, r#"{"detail":"there is no such thing here"}"#)
}
