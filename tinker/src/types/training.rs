//! Passes and optimizer steps in JSON. Newer SDKs send passes as [`super::proto::ProtoForwardBackwardRequest`].

use super::data::{TensorData, WireDatum};
use super::literal::{real, tag};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Request body of `POST forward_backward` from older SDKs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireForwardBackwardRequest {
    /// Data and loss of the pass.
    pub forward_backward_input: PassInput,
    /// Name of the model to train.
    pub model_id: String,
    /// Position in the model's request order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
}

/// Request body of `POST forward` from older SDKs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ForwardRequest {
    /// Data and loss of the pass.
    pub forward_input: PassInput,
    /// Name of the model to train.
    pub model_id: String,
    /// Position in the model's request order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
}

/// Data and loss of a pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassInput {
    /// Training data of the pass.
    pub data: Vec<WireDatum>,
    /// Name of the loss.
    pub loss_fn: String,
    /// Settings of the loss, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_fn_config: Option<BTreeMap<String, f64>>,
}

/// Result of a pass in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireForwardBackwardOutput {
    /// Type of the outputs, `ArrayRecord`.
    pub loss_fn_output_type: String,
    /// Named tensors, one set per datum.
    pub loss_fn_outputs: Vec<BTreeMap<String, TensorData>>,
    /// Metrics by name; the suffix after the colon says how chunks are combined.
    pub metrics: BTreeMap<String, f64>,
}

/// Request body of `POST optim_step`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimStepRequest {
    /// Name of the model to train.
    pub model_id: String,
    /// Position in the model's request order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::OptimStep,
    /// Settings of the AdamW optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adam_params: Option<WireAdamParams>,
    /// Settings of another optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_params: Option<Map<String, Value>>,
}

/// Settings of AdamW. Absent fields take the default; `null` is rejected, since a NaN arrives as `null`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WireAdamParams {
    /// Learning rate of this step.
    #[serde(deserialize_with = "real")]
    pub learning_rate: f64,
    /// Decay of the first moment.
    #[serde(deserialize_with = "real")]
    pub beta1: f64,
    /// Decay of the second moment.
    #[serde(deserialize_with = "real")]
    pub beta2: f64,
    /// Term added to the root of the second moment.
    #[serde(deserialize_with = "real")]
    pub eps: f64,
    /// Coefficient of the decoupled weight decay.
    #[serde(deserialize_with = "real")]
    pub weight_decay: f64,
    /// Maximum global gradient norm; 0 disables clipping.
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

/// Response to `POST optim_step`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimStepResponse {
    /// Metrics by name, such as `grad_norm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<BTreeMap<String, f64>>,
}
