//! How a Python environment is run.

use serde_json::{Map, Value};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// What becomes of a reward that is no finite number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadReward {
    /// The rollout has no reward.
    #[default]
    Fail,
    /// It counts as 0, as the original harness has it. It is counted in the metrics, and there is a warning.
    Zero,
}

/// Which environment, and how it is run.
#[derive(Clone, Debug)]
pub struct PythonOptions {
    /// A folder, a file, or the name of a module.
    pub id: String,
    /// What its `load_environment` is given.
    pub args: Map<String, Value>,
    /// The interpreter; `None` looks for a `.venv` and then takes `python3`.
    pub python: Option<PathBuf>,
    /// Processes; `None` starts one and more when there is work for them, up to four.
    pub workers: Option<NonZeroUsize>,
    /// Rollouts that one process plays at a time.
    pub rollouts_per_worker: NonZeroUsize,
    /// Longest that loading may take.
    pub load_timeout: Duration,
    /// Longest that a rollout may take from its start in a process, its reward included and waits for the service not.
    pub rollout_timeout: Duration,
    /// Variables that are handed on beside the usual ones.
    pub pass_env: Vec<String>,
    /// What becomes of a reward that is no number.
    pub on_bad_reward: BadReward,
    /// Seed of the environment's chance.
    pub seed: u64,
    /// Counts its processes that ended unasked, or did not start.
    pub worker_exits: Arc<AtomicU64>,
}

impl PythonOptions {
    /// The environment of this id, run as usual.
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
