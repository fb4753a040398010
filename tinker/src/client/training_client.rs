//! One adapter in training on a server.

use super::checks::{self, ModelLimits};
use super::chunks;
use super::connection::{ResultPayload, encode};
use super::error::ClientError;
use super::pass_request::PassRequest;
use super::request_queue::{RequestQueue, SubmitResult, TrainingRequest};
use super::retry::NotFoundMeaning;
use super::sampling_client::SamplingClient;
use super::transport::HttpRequest;
use super::{ClientFuture, ClientSession, json_result, result_error};
use crate::convert::{adam_to_wire, forward_from_json, forward_from_proto, loss_sum};
use crate::types::{
    CheckpointKind, CheckpointList, CheckpointPath, GetInfoRequest, GetInfoResponse, LoadWeightsRequest,
    LoadWeightsResponse, OptimStepRequest, OptimStepResponse, SaveKind, SaveWeightsForSamplerRequest,
    SaveWeightsForSamplerResponse, SaveWeightsRequest, SaveWeightsResponse, UnloadModel, proto,
};
use futures::future::try_join_all;
use minds_core::datum::Datum;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::service::{ForwardOutput, OptimStep};
use prost::Message as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// The metric that every pass reports.
const LOSS_SUM: &str = "loss:sum";

/// A model of this session. Requests run in the order of the calls; answers may be dropped.
pub struct TrainingClient {
    session: Arc<ClientSession>,
    queue: RequestQueue,
    model_id: String,
    limits: ModelLimits,
}

/// Weights to sample from, as they were when they were asked for.
pub struct ExportedSampler {
    /// Sampler over the exported weights.
    pub sampler: SamplingClient,
    /// Where they are kept, if they are.
    pub path: Option<String>,
}

impl TrainingClient {
    pub(super) fn start(session: Arc<ClientSession>, model_id: String, limits: ModelLimits) -> Self {
        let queue = RequestQueue::start(session.connection.clone(), model_id.clone());
        session.created_models.lock().push(model_id.clone());
        Self { session, queue, model_id, limits }
    }

    /// The model's name on the server.
    #[must_use]
    pub fn model_id(&self) -> &str {
        &self.model_id
    }

    /// Computes losses and logprobs without gradients.
    pub fn forward(&self, data: Vec<Datum>, loss: Loss) -> ClientFuture<ForwardOutput> {
        self.pass(data, loss, true)
    }

    /// Adds the gradients of the summed loss.
    pub fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> ClientFuture<ForwardOutput> {
        self.pass(data, loss, false)
    }

    fn pass(&self, data: Vec<Datum>, loss: Loss, forward_only: bool) -> ClientFuture<ForwardOutput> {
        let (what, kind) =
            if forward_only { ("forward", "Forward") } else { ("forward_backward", "ForwardBackward") };
        if let Err(error) = self.limits.check_data(what, &data, loss) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let data: Arc<[Datum]> = data.into();
        let request = TrainingRequest::Pass(PassRequest { data: data.clone(), loss, forward_only });
        let accepted = self.queue.push(what.into(), request);
        let connection = self.session.connection.clone();
        self.under_way(async move {
            let changes = |error: ClientError| match forward_only {
                true => error,
                false => error.for_model_change(what),
            };
            let submitted = wait(what, accepted).await.map_err(changes)?;
            let parts = chunks::split(&data, &connection.config);
            let connection = &connection;
            let all = &data;
            let parts = submitted.iter().zip(parts).map(|(submitted, part)| async move {
                let limit = connection.timeouts.training;
                let read = |payload| read_pass(payload, &all[part.clone()]);
                let result = connection.result(what, kind, submitted, limit, read).await;
                result.map_err(|error| changes(result_error(what, error)))
            });
            // Of several parts some may have been executed, so that the failure of one leaves half a pass behind.
            let several = submitted.len() > 1;
            let parts = try_join_all(parts).await.map_err(|error| match several && !forward_only {
                true => ClientError::lost(what, format!("a part of it failed: {error}")),
                false => error,
            })?;
            let mut forward = ForwardOutput::merged(parts);
            // A pass without gradients exists for its logprobs, so they are checked. A pass with gradients cannot be
            // undone, so the caller decides what to do about its logprobs.
            if forward_only {
                checks::check_logprobs(forward.logprobs.iter().flatten()).map_err(|why| {
                    let detail = format!("the answer of {} is wrong: {why}", connection.transport.server());
                    ClientError::Unreadable { what: what.into(), detail }
                })?;
            }
            // Some servers do not report it.
            if !forward.metrics.contains_key(LOSS_SUM) {
                let sum =
                    loss_sum(&data, &forward.logprobs, loss).ok_or_else(|| ClientError::Unreadable {
                        what: what.into(),
                        detail: format!(
                            "the answer of {} has no `{LOSS_SUM}`, and the formula of {} is not public",
                            connection.transport.server(),
                            loss.name()
                        ),
                    })?;
                forward.metrics.insert(LOSS_SUM.into(), sum);
            }
            Ok(forward)
        })
    }

    /// Applies and clears the gradients.
    pub fn optim_step(&self, params: AdamParams) -> ClientFuture<OptimStep> {
        let what = "optim_step";
        if let Err(error) = params.check() {
            return Box::pin(std::future::ready(Err(ClientError::rejected(what, error.to_string()))));
        }
        let model_id = self.model_id.clone();
        let step: ClientFuture<OptimStepResponse> =
            self.request(what, "OptimStep", NotFoundMeaning::Lost, move |seq_id| {
                encode(&OptimStepRequest {
                    model_id,
                    seq_id: Some(seq_id),
                    adam_params: Some(adam_to_wire(&params)),
                    ..OptimStepRequest::default()
                })
            });
        Box::pin(async move {
            let step = step.await.map_err(|error| error.for_model_change(what))?;
            Ok(OptimStep { metrics: step.metrics.unwrap_or_default() })
        })
    }

    /// Saves weights and optimizer under a name; returns the path.
    pub fn save_state(&self, name: &str) -> ClientFuture<String> {
        let what = "save_state";
        if let Err(error) = checks::check_name(what, name) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let model_id = self.model_id.clone();
        let name = name.to_owned();
        let model = model_id.clone();
        let wanted = name.clone();
        let saved: ClientFuture<SaveWeightsResponse> =
            self.request(what, "SaveWeights", NotFoundMeaning::Lost, move |seq_id| {
                encode(&SaveWeightsRequest {
                    model_id,
                    path: Some(name),
                    seq_id: Some(seq_id),
                    ..SaveWeightsRequest::default()
                })
            });
        let session = self.session.clone();
        Box::pin(async move {
            let path = match saved.await {
                Ok(saved) => saved.path,
                Err(error) => find_saved(&session, error, &model, CheckpointKind::Training, &wanted).await?,
            };
            check_saved(&session, what, &path)?;
            Ok(path)
        })
    }

    /// Loads weights, and the optimizer's state if asked; otherwise the optimizer starts afresh.
    pub fn load_state(&self, path: &str, with_optimizer: bool) -> ClientFuture<()> {
        let what = "load_state";
        if let Err(error) = checks::check_path(what, path) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let model_id = self.model_id.clone();
        let path = path.to_owned();
        let loaded: ClientFuture<LoadWeightsResponse> =
            self.request(what, "LoadWeights", NotFoundMeaning::Rejected, move |seq_id| {
                encode(&LoadWeightsRequest {
                    model_id: Some(model_id),
                    seq_id: Some(seq_id),
                    path,
                    optimizer: with_optimizer,
                    ..LoadWeightsRequest::default()
                })
            });
        Box::pin(async move { loaded.await.map(|_| ()).map_err(|error| error.for_model_change(what)) })
    }

    /// Makes a sampler of the weights at this point of the order; with a name they are also kept.
    pub fn sampler(&self, name: Option<&str>) -> ClientFuture<ExportedSampler> {
        self.save_for_sampler(name, SaveKind::Snapshot)
    }

    /// Makes a sampler of the weights at this point of the order, which later calls replace. Those of earlier calls
    /// sample from them too, also in the middle of a request.
    pub fn in_flight_sampler(&self) -> ClientFuture<SamplingClient> {
        let made = self.save_for_sampler(None, SaveKind::Inflight);
        Box::pin(async move { Ok(made.await?.sampler) })
    }

    fn save_for_sampler(&self, name: Option<&str>, kind: SaveKind) -> ClientFuture<ExportedSampler> {
        let what = "save_weights_for_sampler";
        if let Some(Err(error)) = name.map(|name| checks::check_name(what, name)) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let model_id = self.model_id.clone();
        let name = name.map(ToOwned::to_owned);
        let model = model_id.clone();
        let wanted = name.clone();
        let number = name.is_none().then(|| self.session.samplers.fetch_add(1, Ordering::Relaxed));
        let saved: ClientFuture<SaveWeightsForSamplerResponse> =
            self.request(what, "SaveWeightsForSampler", NotFoundMeaning::Lost, move |seq_id| {
                encode(&SaveWeightsForSamplerRequest {
                    model_id,
                    path: name,
                    sampling_session_seq_id: number,
                    kind,
                    seq_id: Some(seq_id),
                    ..SaveWeightsForSamplerRequest::default()
                })
            });
        let session = self.session.clone();
        let limits = self.limits;
        Box::pin(async move {
            let saved = match (saved.await, wanted) {
                (Err(error), Some(name)) => {
                    let path = find_saved(&session, error, &model, CheckpointKind::Sampler, &name).await?;
                    SaveWeightsForSamplerResponse { path: Some(path), ..Default::default() }
                }
                (saved, _) => saved?,
            };
            if let Some(path) = &saved.path {
                check_saved(&session, what, path)?;
            }
            let sampler = match (saved.sampling_session_id, &saved.path) {
                (Some(id), _) => SamplingClient::from_id(session, id, limits),
                (None, Some(path)) => SamplingClient::open(session, None, Some(path.clone()), limits).await?,
                (None, None) => {
                    let detail = "the result names neither a path nor a sampler".into();
                    return Err(ClientError::Failed { what: what.into(), detail });
                }
            };
            Ok(ExportedSampler { sampler, path: saved.path })
        })
    }

    /// What the server knows about the model.
    ///
    /// # Errors
    /// It is gone, or the server does not answer.
    pub async fn info(&self) -> Result<GetInfoResponse, ClientError> {
        let ask = GetInfoRequest { model_id: self.model_id.clone(), ..GetInfoRequest::default() };
        let connection = self.session.connection.clone();
        let work = async move { connection.post("the model", "get_info", &ask, NotFoundMeaning::Lost).await };
        self.session.run(work).await
    }

    /// Gives the model up, so that the server can use its place.
    ///
    /// # Errors
    /// The server does not know how, or does not answer.
    pub fn unload(&self) -> ClientFuture<()> {
        let ask = UnloadModel { model_id: self.model_id.clone(), ..UnloadModel::default() };
        let connection = self.session.connection.clone();
        let work = async move {
            let what = "unload_model";
            let call = HttpRequest::post(what, encode(&ask), connection.timeouts.request);
            let given_up = async {
                let submitted = connection.submit(what, call, NotFoundMeaning::Lost).await?;
                let limit = connection.timeouts.training;
                json_result::<serde_json::Value>(&connection, what, "UnloadModel", &submitted, limit).await
            };
            match given_up.await {
                // It is gone, by this request or by an attempt whose answer was lost.
                Ok(_) | Err(ClientError::Lost { .. } | ClientError::InDoubt { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        };
        self.under_way(work)
    }

    /// One request of the order with a result in JSON.
    fn request<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        kind: &'static str,
        not_found: NotFoundMeaning,
        body: impl FnOnce(i64) -> bytes::Bytes + Send + 'static,
    ) -> ClientFuture<T> {
        let path = match kind {
            "OptimStep" => "optim_step",
            "SaveWeights" => "save_weights",
            "LoadWeights" => "load_weights",
            _ => "save_weights_for_sampler",
        };
        let changes = matches!(kind, "OptimStep" | "LoadWeights");
        let accepted = self
            .queue
            .push(what.into(), TrainingRequest::Json { path, not_found, changes, body: Box::new(body) });
        let connection = self.session.connection.clone();
        self.under_way(async move {
            let submitted = wait(what, accepted).await?;
            let submitted = submitted.first().ok_or_else(|| ClientError::lost(what, "it has no result"))?;
            match json_result(&connection, what, kind, submitted, connection.timeouts.training).await {
                // Where numbers are not kept, a save that was repeated is refused because the first one succeeded.
                Err(ClientError::Rejected { detail, .. }) if submitted.maybe_executed && !changes => {
                    let detail = format!("the answer to an earlier attempt was lost: {detail}");
                    Err(ClientError::InDoubt { what: what.into(), detail })
                }
                result => result,
            }
        })
    }

    /// Fetches a result as soon as it is ready, even before it is awaited, and stops when the future is dropped.
    fn under_way<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    ) -> ClientFuture<T> {
        let (mut done, result) = oneshot::channel();
        self.session.connection.runtime.spawn(async move {
            tokio::select! {
                () = done.closed() => {}
                result = work => {
                    // The receiver may have gone in this moment.
                    if done.send(result).is_err() {
                        tracing::debug!("a result arrived after its caller was dropped");
                    }
                }
            }
        });
        Box::pin(async move {
            result
                .await
                .unwrap_or_else(|_| Err(ClientError::lost("the result", "the client's runtime has stopped")))
        })
    }
}

/// Checks the place that a server names before it is kept.
fn check_saved(session: &ClientSession, what: &str, path: &str) -> Result<(), ClientError> {
    checks::check_saved(path).map_err(|why| {
        let detail = session.connection.transport.redact(&why);
        ClientError::Unreadable { what: what.into(), detail }
    })
}

/// Looks whether weights were saved, if that is in doubt. A model's names are its own, so that what is there under this
/// name was saved by this request.
async fn find_saved(
    session: &ClientSession,
    error: ClientError,
    model_id: &str,
    kind: CheckpointKind,
    name: &str,
) -> Result<String, ClientError> {
    let ClientError::InDoubt { what, detail } = &error else { return Err(error) };
    let connection = session.connection.clone();
    let route = format!("training_runs/{model_id}/checkpoints");
    let look = async move { connection.get::<CheckpointList>("the list of saved weights", &route).await };
    let listed = match session.run(look).await {
        Ok(listed) => listed.checkpoints,
        Err(why) => {
            let detail = format!("{detail}; whether it is there could not be asked: {why}");
            return Err(ClientError::InDoubt { what: what.clone(), detail });
        }
    };
    let is_it = |path: &String| {
        path.parse::<CheckpointPath>()
            .is_ok_and(|path| path.name == name && path.kind.is_none_or(|its| its == kind))
    };
    let found = listed.into_iter().map(|checkpoint| checkpoint.tinker_path).find(is_it);
    if let Some(path) = &found {
        let path = session.connection.transport.redact(path);
        tracing::warn!(what, detail, path, "the answer was lost, and the weights are on the server");
    }
    found.ok_or(error)
}

async fn wait(what: &str, accepted: oneshot::Receiver<SubmitResult>) -> SubmitResult {
    accepted.await.unwrap_or_else(|_| Err(ClientError::lost(what, "the client's runtime has stopped")))
}

/// Reads the result about these data.
fn read_pass(payload: ResultPayload, data: &[Datum]) -> Result<ForwardOutput, String> {
    let forward = match payload {
        ResultPayload::Protobuf(body) => {
            let output = proto::ProtoForwardBackwardOutput::decode(body).map_err(|e| e.to_string())?;
            forward_from_proto(&output)
        }
        ResultPayload::Json(value) => {
            forward_from_json(&serde_json::from_value(value).map_err(|e| e.to_string())?)
        }
    };
    let forward = forward.map_err(|e| e.to_string())?;
    let fits = forward.logprobs.len() == data.len()
        && forward.logprobs.iter().zip(data).all(|(row, datum)| row.len() == datum.len());
    if fits { Ok(forward) } else { Err("its logprobs do not have the lengths of the data".into()) }
}
