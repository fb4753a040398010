//! A client of the Tinker API.
//!
//! Training requests of one model run in the order of the calls, despite network failures. A server that keeps
//! `seq_id`s executes a retried request only once. Every wait has a name and a time limit. All I/O happens on the
//! runtime that [`Client::connect`] was called on, so results may be awaited on any runtime.

mod checks;
mod chunks;
mod connection;
mod credential;
mod error;
mod limiter;
mod metrics;
mod options;
mod outage;
mod pass_request;
mod quirks;
mod request_queue;
mod rest;
mod retry;
mod sampling_client;
mod secret;
mod training_client;
mod transport;
mod wire_format;

pub use checks::ModelLimits;
pub use credential::CREDENTIAL_COMMAND_ENV;
pub use error::ClientError;
pub use metrics::ClientMetrics;
pub use options::{API_KEY_ENV, ClientOptions, ClientTimeouts};
pub use sampling_client::SamplingClient;
pub use secret::Secret;
pub use training_client::{ExportedSampler, TrainingClient};
pub use transport::check_address;
pub use wire_format::WireFormat;

use crate::types::{
    CreateModelRequest, CreateModelResponse, CreateSessionRequest, CreateSessionResponse, GetInfoRequest,
    GetInfoResponse, HeartbeatRequest, LoadWeightsRequest, LoraConfig, OptimizerConfig, ServerCapabilities,
    WeightsInfoRequest, WeightsInfoResponse,
};
use connection::{Connection, ResultError, ResultPayload, SDK_VERSION, SubmittedRequest, encode};
use parking_lot::Mutex;
use retry::NotFoundMeaning;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::AbortHandle;
use transport::HttpRequest;

/// Result of a request that is already queued or in flight; it may be dropped.
pub type ClientFuture<T> = Pin<Box<dyn Future<Output = Result<T, ClientError>> + Send + 'static>>;

/// A session with a server. Clones share it; it stays alive until the last clone and all its models and samplers drop.
#[derive(Clone)]
pub struct Client(Arc<ClientSession>);

pub(crate) struct ClientSession {
    connection: Arc<Connection>,
    id: String,
    models: AtomicU64,
    /// Models to unload at the end, for servers that do not release them with the session.
    created_models: Mutex<Vec<String>>,
    samplers: AtomicU64,
    heartbeat: AbortHandle,
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl Client {
    /// Connects and opens a session. Must be called on a tokio runtime, which does all of the client's work.
    ///
    /// # Errors
    /// Invalid options, a rejected key, or a server that does not respond.
    pub async fn connect(options: &ClientOptions) -> Result<Self, ClientError> {
        let connection = Arc::new(Connection::open(options).await?);
        let request = CreateSessionRequest {
            tags: options.tags.clone(),
            project_id: options.project_id.clone(),
            sdk_version: SDK_VERSION.into(),
            ..CreateSessionRequest::default()
        };
        let answer: CreateSessionResponse =
            connection.post("a session", "create_session", &request, NotFoundMeaning::Rejected).await?;
        if let Some(message) = &answer.info_message {
            tracing::info!(message = connection.transport.redact(message), "the server says");
        }
        if let Some(message) = &answer.warning_message {
            tracing::warn!(message = connection.transport.redact(message), "the server says");
        }
        if let Some(message) = &answer.error_message {
            tracing::error!(message = connection.transport.redact(message), "the server says");
        }
        let beat = keep_alive(Arc::downgrade(&connection), answer.session_id.clone(), options.timeouts);
        let heartbeat = tokio::spawn(beat).abort_handle();
        let session = connection.transport.redact(&answer.session_id);
        tracing::debug!(session, wire = ?connection.wire.now(), "connected");
        Ok(Self(Arc::new(ClientSession {
            connection,
            id: answer.session_id,
            models: AtomicU64::new(0),
            created_models: Mutex::default(),
            samplers: AtomicU64::new(0),
            heartbeat,
        })))
    }

    /// Address of the server, without a trailing slash.
    #[must_use]
    pub fn server(&self) -> String {
        self.0.connection.transport.server()
    }

    /// Name of the session on the server.
    #[must_use]
    pub fn session_id(&self) -> &str {
        &self.0.id
    }

    /// Wire format of the server; a guess before the first pass.
    #[must_use]
    pub fn wire(&self) -> WireFormat {
        self.0.connection.wire.now()
    }

    /// Queries the capabilities of the server.
    ///
    /// # Errors
    /// No response, or a server without this endpoint.
    pub async fn capabilities(&self) -> Result<ServerCapabilities, ClientError> {
        self.run(|c| async move { c.get("the server's capabilities", "get_server_capabilities").await }).await
    }

    /// Creates a new adapter.
    ///
    /// # Errors
    /// The server rejects the model or the adapter, or does not respond.
    pub async fn create_training(
        &self,
        base_model: &str,
        lora: LoraConfig,
        limits: ModelLimits,
    ) -> Result<TrainingClient, ClientError> {
        let what = "a new adapter";
        let make = || -> ClientFuture<CreateModelResponse> {
            let request = CreateModelRequest {
                session_id: self.0.id.clone(),
                model_seq_id: self.0.models.fetch_add(1, Ordering::Relaxed),
                base_model: base_model.into(),
                lora_config: Some(lora.clone()),
                optimizer_config: Some(OptimizerConfig::default()),
                ..CreateModelRequest::default()
            };
            let c = self.0.connection.clone();
            Box::pin(async move {
                let call = HttpRequest::post("create_model", encode(&request), c.timeouts.request);
                let submitted = c.submit(what, call, NotFoundMeaning::Rejected).await?;
                json_result(&c, what, "CreateModel", &submitted, c.timeouts.training).await
            })
        };
        let model = with_new_id(&self.0, make).await?;
        Ok(TrainingClient::start(self.0.clone(), model.model_id, limits))
    }

    /// Creates an adapter from a checkpoint, with the configuration of the saved one.
    ///
    /// # Errors
    /// The checkpoint is missing or unreadable, or the server does not respond.
    pub async fn create_training_from(
        &self,
        path: &str,
        with_optimizer: bool,
        limits: ModelLimits,
    ) -> Result<TrainingClient, ClientError> {
        let what = "an adapter from a saved state";
        checks::check_path(what, path)?;
        if self.wire() == WireFormat::Json {
            return self.create_and_load(path, with_optimizer, limits).await;
        }
        let load = || -> ClientFuture<String> {
            let model_seq_id = self.0.models.fetch_add(1, Ordering::Relaxed);
            let request = LoadWeightsRequest {
                session_id: Some(self.0.id.clone()),
                model_seq_id: Some(model_seq_id),
                path: path.into(),
                optimizer: with_optimizer,
                ..LoadWeightsRequest::default()
            };
            let model_id = format!("{}:train:{model_seq_id}", self.0.id);
            let c = self.0.connection.clone();
            Box::pin(async move {
                let call = HttpRequest::post("load_weights", encode(&request), c.timeouts.request);
                let submitted = c.submit(what, call, NotFoundMeaning::Rejected).await?;
                let _: serde_json::Value =
                    json_result(&c, what, "LoadWeights", &submitted, c.timeouts.training).await?;
                // Checks that the model exists under the name that follows from its number.
                let ask = GetInfoRequest { model_id: model_id.clone(), ..GetInfoRequest::default() };
                c.post::<GetInfoResponse>(what, "get_info", &ask, NotFoundMeaning::Rejected).await?;
                Ok(model_id)
            })
        };
        match with_new_id(&self.0, load).await {
            Ok(model_id) => Ok(TrainingClient::start(self.0.clone(), model_id, limits)),
            // Servers of older SDKs require an existing model to load into.
            Err(ClientError::Rejected { .. }) => self.create_and_load(path, with_optimizer, limits).await,
            Err(error) => Err(error),
        }
    }

    async fn create_and_load(
        &self,
        path: &str,
        with_optimizer: bool,
        limits: ModelLimits,
    ) -> Result<TrainingClient, ClientError> {
        let info = self.weights_info(path).await?;
        let lora = LoraConfig {
            rank: info.lora_rank.unwrap_or(LoraConfig::default().rank),
            seed: None,
            train_unembed: info.train_unembed.unwrap_or(true),
            train_mlp: info.train_mlp.unwrap_or(true),
            train_attn: info.train_attn.unwrap_or(true),
        };
        let training = self.create_training(&info.base_model, lora, limits).await?;
        training.load_state(path, with_optimizer).await?;
        Ok(training)
    }

    /// Describes saved weights: base model and adapter.
    ///
    /// # Errors
    /// The weights do not exist, or the server does not respond.
    pub async fn weights_info(&self, path: &str) -> Result<WeightsInfoResponse, ClientError> {
        let ask = WeightsInfoRequest { tinker_path: path.into() };
        self.run(
            |c| async move { c.post("saved weights", "weights_info", &ask, NotFoundMeaning::Rejected).await },
        )
        .await
    }

    /// Creates a sampler over the base model.
    ///
    /// # Errors
    /// The server does not have the model, or does not respond.
    pub async fn base_sampler(
        &self,
        base_model: &str,
        limits: ModelLimits,
    ) -> Result<SamplingClient, ClientError> {
        SamplingClient::open(self.0.clone(), Some(base_model.into()), None, limits).await
    }

    /// Creates a sampler over saved weights.
    ///
    /// # Errors
    /// The weights do not exist, or the server does not respond.
    pub async fn sampler_from(&self, path: &str, limits: ModelLimits) -> Result<SamplingClient, ClientError> {
        checks::check_path("a sampler over saved weights", path)?;
        SamplingClient::open(self.0.clone(), None, Some(path.into()), limits).await
    }

    /// Runs a request on the client's runtime.
    async fn run<T, F, W>(&self, work: W) -> Result<T, ClientError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ClientError>> + Send + 'static,
        W: FnOnce(Arc<Connection>) -> F,
    {
        self.0.run(work(self.0.connection.clone())).await
    }
}

impl ClientSession {
    fn created_models(&self) -> Vec<String> {
        self.created_models.lock().clone()
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    ) -> Result<T, ClientError> {
        self.connection.check_alive("the request")?;
        // The task continues if the caller drops the future, so no request stays half done.
        match self.connection.runtime.spawn(work).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::lost("the request", "the client's runtime has stopped")),
        }
    }
}

/// Retries under a new number when it is unknown whether a model or sampler was created.
const MAX_RECREATIONS: u32 = 2;

/// Creates a model or a sampler. If it is unknown whether it was created, creates another one under a new number: an
/// unused one has no effect.
async fn with_new_id<T: Send + 'static>(
    session: &ClientSession,
    make: impl Fn() -> ClientFuture<T>,
) -> Result<T, ClientError> {
    let mut recreations = 0;
    loop {
        match session.run(make()).await {
            Err(ClientError::InDoubt { what, detail }) if recreations < MAX_RECREATIONS => {
                tracing::warn!(what, detail, "it is created again");
                recreations += 1;
            }
            made => return made,
        }
    }
}

/// Waits for a result that every server sends as JSON.
async fn json_result<T: serde::de::DeserializeOwned>(
    connection: &Connection,
    what: &str,
    kind: &'static str,
    submitted: &SubmittedRequest,
    limit: Duration,
) -> Result<T, ClientError> {
    let read = |payload| match payload {
        ResultPayload::Json(value) => serde_json::from_value(value).map_err(|e| e.to_string()),
        ResultPayload::Protobuf(_) => Err("it arrived as protobuf, which cannot represent it".into()),
    };
    connection.result(what, kind, submitted, limit, read).await.map_err(|error| result_error(what, error))
}

/// Converts the error of an accepted request.
fn result_error(what: &str, error: ResultError) -> ClientError {
    match error {
        ResultError::Gone(why) => {
            let detail = format!("the server has forgotten its result: {why}");
            ClientError::InDoubt { what: what.into(), detail }
        }
        ResultError::Error(error) => error,
    }
}

/// Sends heartbeats until the client or the server ends the session.
async fn keep_alive(connection: Weak<Connection>, session_id: String, timeouts: ClientTimeouts) {
    let body = encode(&HeartbeatRequest { session_id, ..HeartbeatRequest::default() });
    let call = HttpRequest::post("session_heartbeat", body, timeouts.heartbeat);
    loop {
        tokio::time::sleep(timeouts.heartbeat).await;
        let Some(connection) = connection.upgrade() else { return };
        match connection.transport.send(&call).await {
            Ok(reply) if reply.status == 410 => {
                tracing::warn!("the server has ended the session");
                connection.ended.store(true, Ordering::Relaxed);
                return;
            }
            Ok(_) => {}
            Err(why) => tracing::debug!(why, "a heartbeat was not answered"),
        }
    }
}
