//! The process of one tracker: how it starts and restarts, learns of the end of the run, and is killed.

use super::{TrackedOutcome, TrackerPatience};
use crate::tracker::Tracker;
use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

/// Source files of the process, embedded in the binary.
const FILES: [(&str, &str); 5] = [
    ("__init__.py", include_str!("python/minds_track/__init__.py")),
    ("main.py", include_str!("python/minds_track/main.py")),
    ("place.py", include_str!("python/minds_track/place.py")),
    ("run_folder.py", include_str!("python/minds_track/run_folder.py")),
    ("trackers.py", include_str!("python/minds_track/trackers.py")),
];

/// Neither the folder of these files nor the working directory, where `wandb` may be a folder of runs, is on the import
/// path of the tracker's package.
const START: &str = "import sys; files = sys.argv[1]; sys.path[:] = filter(None, sys.path); \
                     sys.path.insert(0, files); from minds_track import main; sys.path.remove(files); \
                     main.main(files)";

/// Folder of the run folder with what each tracker was sent, and with what its process prints.
const FOLDER: &str = "tracking";
/// Number of restarts of a process that dies soon after its start.
const RESTARTS: u32 = 3;
/// A process that lives this long is restarted as often as one that starts.
const STABLE: Duration = Duration::from_secs(300);
/// Pause before the first restart; it doubles with each one.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes of the log that are searched for its last line.
const TAIL: i64 = 4096;

/// State of the run that its processes act on.
#[derive(Clone, Copy, Debug)]
pub(super) enum TrackerOrder {
    /// The run is under way.
    Follow,
    /// The run has ended. A process that has not sent everything at this moment is killed.
    Finish(TrackedOutcome, Option<Instant>),
}

/// How a process ended.
enum TrackerExit {
    /// It has sent everything, or the run is gone and leaves it alone.
    Done,
    /// It ended before that; with the cause.
    Died(String),
    /// It was killed at its limit.
    Late,
}

/// What the process of a tracker is started with.
pub(super) struct TrackerProcess {
    pub(super) tracker: Tracker,
    pub(super) python: PathBuf,
    pub(super) variables: Vec<(OsString, OsString)>,
    /// Absolute path of the run folder.
    pub(super) folder: PathBuf,
    /// JSON that the process reads first.
    pub(super) settings: String,
    pub(super) patience: TrackerPatience,
}

impl TrackerProcess {
    /// Keeps a process running until it has sent everything. Returns whether it has.
    pub(super) async fn supervise(self, mut orders: watch::Receiver<TrackerOrder>) -> (Tracker, bool) {
        let name = self.tracker.name();
        let log = self.log_path();
        let rest = format!("`minds-actors track {} --to {name}` sends the rest", self.folder.display());
        let mut deaths = 0;
        loop {
            let started = Instant::now();
            let exit = match self.start() {
                Ok((child, _files)) => self.follow(child, &mut orders).await,
                Err(error) => TrackerExit::Died(format!("it cannot be started: {error:#}")),
            };
            let cause = match exit {
                TrackerExit::Done => return (self.tracker, true),
                TrackerExit::Late => {
                    let last = last_line(&log);
                    warn!(log = %log.display(), last, "tracker {name} did not finish in time and was ended; {rest}");
                    return (self.tracker, false);
                }
                TrackerExit::Died(cause) => cause,
            };
            if started.elapsed() > STABLE {
                deaths = 0;
            }
            let last = last_line(&log);
            if deaths == RESTARTS || self.patience == TrackerPatience::Once {
                warn!(cause, log = %log.display(), last, "tracker {name} ended and is not restarted; {rest}");
                return (self.tracker, false);
            }
            warn!(cause, log = %log.display(), last, "tracker {name} ended and is restarted");
            let pause = PAUSE * 2_u32.pow(deaths);
            deaths += 1;
            tokio::select! {
                () = sleep(pause) => {}
                _ = orders.wait_for(|order| matches!(order, TrackerOrder::Finish(..))) => {}
            }
        }
    }

    /// What the process prints.
    fn log_path(&self) -> PathBuf {
        self.folder.join(FOLDER).join(format!("{}.log", self.tracker.name()))
    }

    /// Starts the process in a group of its own. Its files exist at least until the folder is dropped or it removes them.
    fn start(&self) -> anyhow::Result<(Child, TempDir)> {
        let files = tempfile::Builder::new().prefix("minds-track-").tempdir()?;
        let package = files.path().join("minds_track");
        fs::create_dir(&package)?;
        for (name, text) in FILES {
            fs::write(package.join(name), text)?;
        }
        fs::write(files.path().join("settings.json"), &self.settings)?;
        fs::create_dir_all(self.folder.join(FOLDER))?;
        // A file, not a pipe: nothing that it prints can make it wait, and it may outlive this process.
        let log = OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let child = Command::new(&self.python)
            .args(["-u", "-c", START])
            .arg(files.path())
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("PYTHONIOENCODING", "utf-8")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("`{}`", self.python.display()))?;
        Ok((child, files))
    }

    /// Waits for the process to end, and reports the end of the run to it. If this future is dropped, its input ends, which
    /// means to the process that the run was killed.
    async fn follow(&self, mut child: Child, orders: &mut watch::Receiver<TrackerOrder>) -> TrackerExit {
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let mut input = child.stdin.take();
        loop {
            let order = *orders.borrow_and_update();
            let limit = match order {
                TrackerOrder::Follow => None,
                TrackerOrder::Finish(outcome, limit) => {
                    if let Some(mut input) = input.take() {
                        // The pipe is empty, so a line fits even if the process hangs; if it is dead, that is seen below.
                        drop(input.write_all(format!("{}\n", outcome.name()).as_bytes()).await);
                    }
                    limit
                }
            };
            tokio::select! {
                status = child.wait() => return match status {
                    Ok(status) if status.success() => TrackerExit::Done,
                    Ok(status) => TrackerExit::Died(describe(status)),
                    Err(error) => TrackerExit::Died(error.to_string()),
                },
                changed = orders.changed() => if changed.is_err() {
                    return TrackerExit::Done;
                },
                () = sleep_until(limit.unwrap_or_else(Instant::now)), if limit.is_some() => {
                    if let Some(Err(error)) = group.map(|group| kill_process_group(group, Signal::KILL)) {
                        debug!(%error, "the group of a tracker is empty");
                    }
                    drop(child.wait().await);
                    return TrackerExit::Late;
                }
            }
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, code) => format!("exit code {}", code.unwrap_or_default()),
    }
}

/// The last line of a log that is not empty.
fn last_line(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        if length > TAIL.unsigned_abs() {
            file.seek(SeekFrom::End(-TAIL))?;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_long_log_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert_eq!(last_line(&path), "", "there is no log");
        fs::write(&path, format!("{}\nValueError: no key\n\n", "x\n".repeat(9000))).unwrap();
        assert_eq!(last_line(&path), "ValueError: no key");
    }
}
