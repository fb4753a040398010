//! The experiment trackers of a run: which ones, and under which names they show it.

use super::error::KeyProblem;
use super::file::{ConfigFile, LogConfig};
use super::plan::time;
use crate::tracker::Tracker;
use minds_environments::worker;
use std::path::PathBuf;
use std::time::Duration;

/// Project of a run whose config names none.
const PROJECT: &str = "minds-actors";
/// Steps between two tables of rollouts.
const TABLE_EVERY: u64 = 10;
/// Longest that the end of a run waits for its trackers.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Resolved settings of the trackers of a run.
#[derive(Clone, Debug)]
pub struct TrackingPlan {
    /// The trackers, each once.
    pub to: Vec<Tracker>,
    /// Project of the run.
    pub project: String,
    /// Name of the run, if the config sets it.
    pub run_name: Option<String>,
    /// Interpreter that has the packages.
    pub python: PathBuf,
    /// Steps between two tables of rollouts; 0 sends none.
    pub table_every: u64,
    /// Longest that the end of the run waits.
    pub timeout: Duration,
    /// Variables with keys of this program, which no tracker receives.
    pub withheld: Vec<String>,
}

impl TrackingPlan {
    pub(super) fn decide(file: &ConfigFile) -> Result<Self, KeyProblem> {
        let keys = [&file.tinker.api_key_env, &file.metrics.token_env];
        Self::new(&file.log, keys.into_iter().flatten().cloned().collect())
    }

    /// The plan of a `[log]` table; `withheld` are variables that no tracker receives.
    ///
    /// # Errors
    /// A time is invalid.
    pub fn new(log: &LogConfig, withheld: Vec<String>) -> Result<Self, KeyProblem> {
        let mut to: Vec<Tracker> = Vec::new();
        for tracker in &log.to {
            if !to.contains(&tracker.0) {
                to.push(tracker.0);
            }
        }
        Ok(Self {
            to,
            project: log.project.clone().unwrap_or_else(|| PROJECT.into()),
            run_name: log.run_name.clone(),
            python: log.python.clone().unwrap_or_else(|| worker::interpreter(None)),
            table_every: log.table_every.unwrap_or(TABLE_EVERY),
            timeout: time("log.tracker_timeout", log.tracker_timeout.as_deref())?.unwrap_or(TIMEOUT),
            withheld,
        })
    }

    /// The plan of one of its trackers.
    #[must_use]
    pub fn only(&self, tracker: Tracker) -> Self {
        Self { to: vec![tracker], ..self.clone() }
    }

    /// Names of the trackers, for messages.
    #[must_use]
    pub fn names(&self) -> String {
        self.to.iter().map(|tracker| tracker.name()).collect::<Vec<_>>().join(", ")
    }
}
