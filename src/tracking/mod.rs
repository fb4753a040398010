//! Shows a run in experiment trackers, through each one's own Python package.
//!
//! Each tracker has a process of its own that reads the run folder ([`process`]), so a tracker can neither slow, block nor
//! end a run: a process that dies is restarted and continues after what it had sent, and one that hangs is killed some time
//! after the end of the run. Processes receive no key of this program.

mod package;
mod process;

use crate::config::mask;
use crate::config::tracking::TrackingPlan;
use crate::tracker::Tracker;
use minds_environments::worker::hide_own_variables;
pub use package::{find_packages, import_packages};
use process::{TrackerOrder, TrackerProcess};
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Beginnings of the names of variables that no tracker receives: keys of the service and of the broker, and overrides of
/// the config, which may hold them.
const WITHHELD: [&str; 3] = ["TINKER_", "NATS_", "MINDS_"];

/// How a run ended, as trackers show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackedOutcome {
    /// All steps are done, or it was stopped with a checkpoint saved.
    Finished,
    /// It ended with an error.
    Failed,
    /// Its process was gone before it reported an end.
    Killed,
}

impl TrackedOutcome {
    fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Killed => "killed",
        }
    }
}

/// The run that trackers show.
#[derive(Clone, Debug)]
pub struct TrackedRun {
    /// Absolute path of the run folder.
    pub folder: PathBuf,
    /// Name of the run, if the config sets none.
    pub name: String,
    /// The config as it is kept in the folder. Secrets in it are masked before it is sent.
    pub config: toml::Table,
}

/// How often a tracker's process is restarted, and what it does when another process sends the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackerPatience {
    /// Restarts it a few times, and waits for the other process.
    Run,
    /// Ends with the first process, and fails at once if another one sends the run.
    Once,
}

/// The trackers of a run, one process each.
pub struct RunTrackers {
    orders: watch::Sender<TrackerOrder>,
    processes: JoinSet<(Tracker, bool)>,
}

impl RunTrackers {
    /// Starts the processes. Must be called in a runtime.
    #[must_use]
    pub fn start(plan: &TrackingPlan, run: &TrackedRun, patience: TrackerPatience) -> Self {
        let (orders, _) = watch::channel(TrackerOrder::Follow);
        let mut processes = JoinSet::new();
        if !plan.to.is_empty() {
            hide_own_variables();
        }
        let mut config = run.config.clone();
        mask::mask(&mut config);
        for tracker in plan.to.iter().copied() {
            let settings = json!({
                "tracker": tracker.name(),
                "folder": run.folder,
                "project": plan.project,
                "run_name": plan.run_name.as_ref().unwrap_or(&run.name),
                "table_every": plan.table_every,
                "waits": patience == TrackerPatience::Run,
                "config": config,
            });
            let process = TrackerProcess {
                tracker,
                python: plan.python.clone(),
                variables: variables(plan).collect(),
                folder: run.folder.clone(),
                settings: settings.to_string(),
                patience,
            };
            processes.spawn(process.supervise(orders.subscribe()));
        }
        Self { orders, processes }
    }

    /// Reports the end of the run to the processes, and waits until they have sent everything; those that have not after
    /// `limit`, or when `stop` completes, are killed with a warning. Returns the trackers that have not finished.
    pub async fn finish(
        mut self,
        outcome: TrackedOutcome,
        limit: Option<Duration>,
        stop: impl Future<Output = ()>,
    ) -> Vec<Tracker> {
        self.orders.send_replace(TrackerOrder::Finish(outcome, limit.map(|limit| Instant::now() + limit)));
        tokio::pin!(stop);
        let mut is_stopped = false;
        let mut unfinished = Vec::new();
        loop {
            tokio::select! {
                ended = self.processes.join_next() => match ended {
                    None => return unfinished,
                    Some(Ok((_, true))) => {}
                    Some(Ok((tracker, false))) => unfinished.push(tracker),
                    Some(Err(error)) => tracing::warn!(%error, "a tracker was not followed to its end"),
                },
                () = &mut stop, if !is_stopped => {
                    is_stopped = true;
                    self.orders.send_replace(TrackerOrder::Finish(outcome, Some(Instant::now())));
                }
            }
        }
    }
}

/// Name of the run folder with its parent, which names the config of a folder under `outputs/`.
#[must_use]
pub fn name_of(folder: &Path) -> String {
    let mut parts: Vec<_> =
        folder.iter().rev().take(2).map(|part| part.to_string_lossy().into_owned()).collect();
    parts.reverse();
    parts.join("-")
}

/// The variables that trackers receive: all but the keys of this program, so that each finds its own settings.
fn variables(plan: &TrackingPlan) -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| is_passed(plan, &name.to_string_lossy()))
}

fn is_passed(plan: &TrackingPlan, name: &str) -> bool {
    !WITHHELD.iter().any(|prefix| name.starts_with(prefix))
        && !plan.withheld.iter().any(|withheld| withheld == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::LogConfig;

    #[test]
    fn trackers_receive_their_own_variables_and_no_key_of_this_program() {
        let plan = TrackingPlan::new(&LogConfig::default(), vec!["MY_KEY".into()]).unwrap();
        for name in ["WANDB_API_KEY", "MLFLOW_TRACKING_URI", "HF_TOKEN", "PATH", "MY_KEY_2"] {
            assert!(is_passed(&plan, name), "{name}");
        }
        for name in ["TINKER_API_KEY", "MINDS_TINKER__API_KEY", "NATS_PASSWORD", "MY_KEY"] {
            assert!(!is_passed(&plan, name), "{name}");
        }
    }

    #[test]
    fn a_run_is_named_after_its_config_and_its_folder() {
        assert_eq!(name_of(Path::new("/a/outputs/prophet/20261130T120000Z")), "prophet-20261130T120000Z");
        assert_eq!(name_of(Path::new("first")), "first");
    }
}
