//! Training runs, checkpoints and sessions that a server keeps, and lists of them.

use super::literal::nullable;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Response to `GET training_runs/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingRun {
    /// Name of the run, which is the model's.
    pub training_run_id: String,
    /// Name of the base model.
    pub base_model: String,
    /// Owner of the training run.
    pub model_owner: String,
    /// Whether the model is an adapter.
    pub is_lora: bool,
    /// Time of the last request, RFC 3339.
    pub last_request_time: String,
    /// Whether the model is damaged beyond repair.
    #[serde(default, deserialize_with = "nullable")]
    pub corrupted: bool,
    /// Rank of the adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<usize>,
    /// The last checkpoint with optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<WireCheckpoint>,
    /// The last weights saved for sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sampler_checkpoint: Option<WireCheckpoint>,
    /// Arbitrary metadata of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
}

/// Saved weights as a list names them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireCheckpoint {
    /// Kind and name, `weights/x`.
    pub checkpoint_id: String,
    /// `training`, `sampler` or `external`.
    pub checkpoint_type: String,
    /// When it was saved, RFC 3339.
    pub time: String,
    /// Address of the weights, `tinker://…`.
    pub tinker_path: String,
    /// Size of the checkpoint in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Whether all users may read the checkpoint.
    #[serde(default, deserialize_with = "nullable")]
    pub public: bool,
    /// Arbitrary metadata of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// When it will be deleted, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// Position of a page in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageCursor {
    /// Entries before this page.
    pub offset: usize,
    /// Maximum number of entries per page.
    pub limit: usize,
    /// Number of entries in the whole list.
    pub total_count: usize,
}

/// Response to `GET training_runs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingRunList {
    /// Training runs of one page.
    pub training_runs: Vec<TrainingRun>,
    /// Position of the page in the list.
    #[serde(default, deserialize_with = "nullable")]
    pub cursor: PageCursor,
}

/// Response to `GET checkpoints` and `GET training_runs/{id}/checkpoints`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointList {
    /// Checkpoints of one page.
    pub checkpoints: Vec<WireCheckpoint>,
    /// Position of the page in the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<PageCursor>,
}

/// Response to `GET sessions/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Models created in the session.
    pub training_run_ids: Vec<String>,
    /// Samplers created in the session.
    pub sampler_ids: Vec<String>,
    /// Arbitrary metadata of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// Human-readable name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// Response to `GET sessions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionList {
    /// Names of the sessions of one page.
    pub sessions: Vec<String>,
}

/// Request body of `PUT training_runs/{id}/checkpoints/{checkpoint}/ttl`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetTtlRequest {
    /// Seconds to keep the checkpoint from now on; `None`, written as `null`, keeps it forever.
    pub ttl_seconds: Option<u64>,
}
