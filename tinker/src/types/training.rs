//! Passes and optimizer steps in JSON. Newer SDKs send passes as [`super::proto::ProtoForwardBackwardRequest`].

use super::data::{TensorData, WireDatum};
use super::literal::{real, tag};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// `POST forward_backward` of older SDKs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireForwardBackwardRequest {
    /// The pass.
    pub forward_backward_input: PassInput,
    /// Which model.
    pub model_id: String,
    /// Place in the model's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
}

/// `POST forward` of older SDKs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ForwardRequest {
    /// The pass.
    pub forward_input: PassInput,
    /// Which model.
    pub model_id: String,
    /// Place in the model's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
}

/// Data and loss of a pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassInput {
    /// What to learn from.
    pub data: Vec<WireDatum>,
    /// Name of the loss.
    pub loss_fn: String,
    /// Its settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_fn_config: Option<BTreeMap<String, f64>>,
}

/// Result of a pass in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireForwardBackwardOutput {
    /// What the outputs are, `ArrayRecord`.
    pub loss_fn_output_type: String,
    /// Named tensors, one set per datum.
    pub loss_fn_outputs: Vec<BTreeMap<String, TensorData>>,
    /// Numbers; the part behind the colon of each name says how chunks are put together.
    pub metrics: BTreeMap<String, f64>,
}

/// `POST optim_step`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimStepRequest {
    /// Which model.
    pub model_id: String,
    /// Place in the model's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
    /// Which request this is.
    #[serde(rename = "type", default)]
    pub tag: tag::OptimStep,
    /// Settings of AdamW.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adam_params: Option<WireAdamParams>,
    /// Settings of another optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_params: Option<Map<String, Value>>,
}

/// Settings of AdamW. What is not sent is the default; `null` is refused, since a NaN arrives as one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WireAdamParams {
    /// Step size.
    #[serde(deserialize_with = "real")]
    pub learning_rate: f64,
    /// Decay of the first moment.
    #[serde(deserialize_with = "real")]
    pub beta1: f64,
    /// Decay of the second moment.
    #[serde(deserialize_with = "real")]
    pub beta2: f64,
    /// Added to the root of the second moment.
    #[serde(deserialize_with = "real")]
    pub eps: f64,
    /// Decoupled weight decay.
    #[serde(deserialize_with = "real")]
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 for none.
    #[serde(deserialize_with = "real")]
    pub grad_clip_norm: f64,
}

impl Default for WireAdamParams {
    fn default() -> Self {
        let core = minds_core::optim::AdamParams::default();
        Self {
            learning_rate: core.learning_rate,
            beta1: core.beta1,
            beta2: core.beta2,
            eps: core.eps,
            weight_decay: core.weight_decay,
            grad_clip_norm: core.grad_clip_norm,
        }
    }
}

/// Result of `optim_step`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimStepResponse {
    /// Numbers such as `grad_norm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<BTreeMap<String, f64>>,
}
