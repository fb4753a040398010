//! What is kept on a server, and lists of it.

use super::literal::nullable;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Answer to `GET training_runs/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingRun {
    /// Its name, which is the model's.
    pub training_run_id: String,
    /// What was trained.
    pub base_model: String,
    /// Whose it is.
    pub model_owner: String,
    /// Whether it is an adapter.
    pub is_lora: bool,
    /// When it was last used, RFC 3339.
    pub last_request_time: String,
    /// Whether it is beyond repair.
    #[serde(default, deserialize_with = "nullable")]
    pub corrupted: bool,
    /// Rank of the adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<usize>,
    /// The last saved state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<WireCheckpoint>,
    /// The last weights saved for sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sampler_checkpoint: Option<WireCheckpoint>,
    /// Anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
}

/// Saved weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireCheckpoint {
    /// Kind and name, `weights/x`.
    pub checkpoint_id: String,
    /// `training`, `sampler` or `external`.
    pub checkpoint_type: String,
    /// When it was saved, RFC 3339.
    pub time: String,
    /// Where it is.
    pub tinker_path: String,
    /// How large it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Whether everybody may read it.
    #[serde(default, deserialize_with = "nullable")]
    pub public: bool,
    /// Anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// When it will be deleted, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// Where a page of a list lies in the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageCursor {
    /// Entries before this page.
    pub offset: usize,
    /// Most entries per page.
    pub limit: usize,
    /// Entries in all.
    pub total_count: usize,
}

/// Answer to `GET training_runs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingRunList {
    /// One page.
    pub training_runs: Vec<TrainingRun>,
    /// Where it lies.
    #[serde(default, deserialize_with = "nullable")]
    pub cursor: PageCursor,
}

/// Answer to `GET checkpoints` and `GET training_runs/{id}/checkpoints`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointList {
    /// One page.
    pub checkpoints: Vec<WireCheckpoint>,
    /// Where it lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<PageCursor>,
}

/// Answer to `GET sessions/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Models made in it.
    pub training_run_ids: Vec<String>,
    /// Samplers made in it.
    pub sampler_ids: Vec<String>,
    /// Anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// Answer to `GET sessions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionList {
    /// Names of one page.
    pub sessions: Vec<String>,
}

/// `PUT training_runs/{id}/checkpoints/{checkpoint}/ttl`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetTtlRequest {
    /// Seconds to keep it from now; `None`, written as `null`, keeps it for ever.
    pub ttl_seconds: Option<u64>,
}
