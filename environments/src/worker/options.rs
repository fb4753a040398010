//! How a Python environment is run.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// What happens to a reward that is not a finite number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadReward {
    /// The rollout gets a reward error.
    #[default]
    Fail,
    /// It counts as 0, as in the original harness. A metric counts it, and a warning is logged.
    Zero,
}

/// Id and settings of a Python environment.
#[derive(Clone, Debug)]
pub struct PythonOptions {
    /// A folder, a file, or the name of a module.
    pub id: String,
    /// Arguments for its `load_environment`.
    pub args: Map<String, Value>,
    /// The interpreter; `None` looks for a `.venv` and then takes `python3`.
    pub python: Option<PathBuf>,
    /// Number of processes; `None` starts one, and up to four on demand.
    pub workers: Option<NonZeroUsize>,
    /// Rollouts that one process runs at a time.
    pub rollouts_per_worker: NonZeroUsize,
    /// Time limit for loading the environment.
    pub load_timeout: Duration,
    /// Time limit of a rollout from its start in a process, including its reward and excluding waits for the service.
    pub rollout_timeout: Duration,
    /// Environment variables to pass on beside the usual ones.
    pub pass_env: Vec<String>,
    /// What happens to a reward that is not a finite number.
    pub on_bad_reward: BadReward,
    /// Seed of the environment's randomness.
    pub seed: u64,
    /// Counts its processes that ended unexpectedly, or did not start.
    pub worker_exits: Arc<AtomicU64>,
}

impl PythonOptions {
    /// The environment of this id, with default settings.
    #[must_use]
    pub fn new(id: impl Into<String>, args: Map<String, Value>, seed: u64) -> Self {
        Self {
            id: id.into(),
            args,
            python: None,
            workers: None,
            rollouts_per_worker: NonZeroUsize::MIN.saturating_add(63),
            load_timeout: Duration::from_secs(600),
            rollout_timeout: Duration::from_secs(900),
            pass_env: Vec::new(),
            on_bad_reward: BadReward::default(),
            seed,
            worker_exits: Arc::default(),
        }
    }
}
