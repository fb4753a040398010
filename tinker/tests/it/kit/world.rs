//! What the server knows. Every request of a model is executed once, in the order of its numbers.

use super::MODEL;
use super::model::{Adapter, CONTEXT, Moments, Weights};
use minds_core::optim::AdamParams;
use minds_core::sampling::SampleResponse;
use minds_core::service::ForwardOutput;
use minds_tinker::convert::{CheckedPass, adam_from_wire, sample_request_from_wire};
use minds_tinker::types::{self, CheckpointPath, FailureCategory, RequestFailed};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// A result in the server's own terms; its encoding depends on the request.
#[derive(Clone, Debug)]
pub enum Outcome {
    Pass(ForwardOutput),
    Sample(SampleResponse),
    Json(Value),
    Failed(RequestFailed),
}

#[derive(Default)]
pub struct World {
    pub sessions: usize,
    pub models: HashMap<String, Model>,
    samplers: HashMap<String, Weights>,
    /// Samplers of which each publication of their model replaces the weights.
    in_flight: Vec<String>,
    pub saved: BTreeMap<String, (Weights, Moments)>,
    pub results: HashMap<String, Outcome>,
    /// The number of polls for each result.
    pub polls: HashMap<String, u32>,
    names: HashMap<String, String>,
    /// Names of results in the order in which they were executed.
    pub executed: Vec<String>,
    pub cancelled: Vec<String>,
}

pub struct Model {
    pub adapter: Adapter,
    next: i64,
}

impl World {
    /// Gives a request that was seen before its old name, and executes a new one.
    fn once(&mut self, key: String, work: impl FnOnce(&mut Self) -> Outcome) -> String {
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let outcome = work(self);
        let name = format!("req-{}", self.names.len());
        self.executed.push(key.clone());
        self.names.insert(key, name.clone());
        self.results.insert(name.clone(), outcome);
        name
    }

    /// Executes a request of a model.
    pub fn train(
        &mut self,
        model_id: &str,
        seq_id: Option<i64>,
        work: impl FnOnce(&mut Self, &mut Adapter) -> Result<Outcome, String>,
    ) -> Option<String> {
        let seq_id = seq_id.expect("the client numbers its requests");
        let expected = self.models.get(model_id)?.next;
        Some(self.once(format!("{model_id}#{seq_id}"), |world| {
            assert_eq!(seq_id, expected, "{model_id}: a number was left out or used twice");
            let mut model = world.models.remove(model_id).unwrap();
            model.next += 1;
            let before = model.adapter.clone();
            let result = work(world, &mut model.adapter);
            let outcome = result.unwrap_or_else(|error| {
                model.adapter = before;
                Outcome::Failed(RequestFailed { error, category: FailureCategory::User })
            });
            world.models.insert(model_id.into(), model);
            outcome
        }))
    }

    pub fn create_model(&mut self, request: &types::CreateModelRequest) -> String {
        let id = format!("{}:train:{}", request.session_id, request.model_seq_id);
        self.once(id.clone(), |world| {
            world.models.insert(id.clone(), Model { adapter: Adapter::new(), next: 1 });
            Outcome::Json(json!({"model_id": id}))
        })
    }

    pub fn create_from(&mut self, session: &str, number: u64, path: &str, optimizer: bool) -> Option<String> {
        let (weights, moments) = self.saved.get(path)?.clone();
        let id = format!("{session}:train:{number}");
        Some(self.once(id.clone(), |world| {
            let adapter = Adapter::of(weights, if optimizer { moments } else { Moments::default() });
            world.models.insert(id.clone(), Model { adapter, next: 1 });
            Outcome::Json(json!({"path": path, "model_id": id}))
        }))
    }

    pub fn pass(
        &mut self,
        model_id: &str,
        seq_id: i64,
        pass: Result<CheckedPass, String>,
        forward_only: bool,
    ) -> Option<String> {
        self.train(model_id, Some(seq_id), |_, adapter| {
            let CheckedPass { data, loss } = pass?;
            if data.iter().any(|datum| datum.len() > CONTEXT) {
                return Err("a datum is too long".into());
            }
            Ok(Outcome::Pass(match forward_only {
                true => adapter.weights.pass(&data, loss, None),
                false => adapter.forward_backward(&data, loss),
            }))
        })
    }

    pub fn step(&mut self, request: &types::OptimStepRequest) -> Option<String> {
        let params = adam_from_wire(&request.adam_params.unwrap_or_default()).map_err(|e| e.to_string());
        self.train(&request.model_id, request.seq_id, |_, adapter| {
            let params: AdamParams = params?;
            adapter.step(&params);
            Ok(Outcome::Json(json!({"metrics": {"lr": params.learning_rate}})))
        })
    }

    pub fn save(&mut self, request: &types::SaveWeightsRequest) -> Option<String> {
        let path =
            format!("tinker://{}/weights/{}", request.model_id, request.path.as_deref().unwrap_or("x"));
        self.train(&request.model_id, request.seq_id, |world, adapter| {
            world.keep(&path, adapter)?;
            Ok(Outcome::Json(json!({"path": path, "type": "save_weights"})))
        })
    }

    pub fn save_for_sampler(&mut self, request: &types::SaveWeightsForSamplerRequest) -> Option<String> {
        self.train(&request.model_id, request.seq_id, |world, adapter| {
            Ok(Outcome::Json(match &request.path {
                Some(name) => {
                    let path = format!("tinker://{}/sampler_weights/{name}", request.model_id);
                    world.keep(&path, adapter)?;
                    json!({"path": path})
                }
                None => {
                    let number = request.sampling_session_seq_id.expect("a sampler has a number");
                    let id = format!("{}:eph:{number}", request.model_id);
                    let model = format!("{}:", request.model_id);
                    let mut published = vec![id.clone()];
                    if request.kind == types::SaveKind::Inflight {
                        world.in_flight.push(id.clone());
                        published =
                            world.in_flight.iter().filter(|id| id.starts_with(&model)).cloned().collect();
                    }
                    for id in published {
                        world.samplers.insert(id, adapter.weights.clone());
                    }
                    json!({"sampling_session_id": id})
                }
            }))
        })
    }

    fn keep(&mut self, path: &str, adapter: &Adapter) -> Result<(), String> {
        if self.saved.contains_key(path) {
            return Err(format!("{path} exists"));
        }
        self.saved.insert(path.into(), (adapter.weights.clone(), adapter.moments.clone()));
        Ok(())
    }

    pub fn load(&mut self, request: &types::LoadWeightsRequest) -> Option<String> {
        let model_id = request.model_id.as_deref().unwrap();
        self.train(model_id, request.seq_id, |world, adapter| {
            let (weights, moments) =
                world.saved.get(&request.path).ok_or("there is no such checkpoint")?.clone();
            *adapter = Adapter::of(weights, if request.optimizer { moments } else { Moments::default() });
            Ok(Outcome::Json(json!({"path": request.path})))
        })
    }

    pub fn sampler(&mut self, request: &types::CreateSamplingSessionRequest) -> Option<String> {
        let weights = match (&request.model_path, request.base_model.as_deref()) {
            (Some(path), _) => self.saved.get(path)?.0.clone(),
            (None, Some(MODEL)) => Weights::base(),
            _ => return None,
        };
        let id = format!("{}:sample:{}", request.session_id, request.sampling_session_seq_id);
        self.samplers.entry(id.clone()).or_insert(weights);
        Some(id)
    }

    pub fn sample(&mut self, request: &types::WireSampleRequest) -> Option<String> {
        let sampler = request.sampling_session_id.clone()?;
        let weights = self.samplers.get(&sampler)?.clone();
        let seq_id = request.seq_id.expect("the client numbers its requests");
        Some(self.once(format!("{sampler}#{seq_id}"), |_| match sample_request_from_wire(request, CONTEXT) {
            Ok(core) if core.prompt.len() <= CONTEXT => Outcome::Sample(weights.sample(&core, seq_id as u64)),
            other => {
                let error = format!("a prompt that cannot be served: {other:?}");
                Outcome::Failed(RequestFailed { error, category: FailureCategory::User })
            }
        }))
    }

    pub fn checkpoints(&self) -> Vec<types::WireCheckpoint> {
        let entry = |path: &String| {
            let place: CheckpointPath = path.parse().unwrap();
            types::WireCheckpoint {
                checkpoint_id: place.checkpoint_id(),
                checkpoint_type: place.kind.unwrap().name().into(),
                time: "2026-01-01T00:00:00Z".into(),
                tinker_path: path.clone(),
                ..types::WireCheckpoint::default()
            }
        };
        self.saved.keys().map(entry).collect()
    }
}
