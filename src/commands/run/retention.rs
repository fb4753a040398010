//! Retention of the checkpoints that a run has saved on the service: the newest are kept.

use crate::run_folder::RunFolder;
use minds_core::ids::PolicyVersion;
use minds_core::service::Service;
use minds_stages::trainer::SavedCheckpoint;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Deletes old checkpoints of a run.
pub(super) struct CheckpointRetention {
    pub(super) service: Arc<dyn Service>,
    /// Number of newest checkpoints to keep; `None` for all.
    pub(super) keep: Option<NonZeroUsize>,
    /// Time after which the service deletes a checkpoint by itself, counted from when there is a newer one.
    pub(super) ttl: Option<Duration>,
    /// Paths of the newest checkpoint, if it expires once there is a newer one.
    pub(super) newest: Vec<String>,
    /// Weights that the config names, which are never deleted.
    pub(super) pinned: Vec<String>,
    /// Whether shadow adapters start from saved checkpoints, so that those of versions in flight must stay.
    pub(super) starts_shadows: bool,
    /// Deletions and changes of expiry dates in flight.
    pub(super) deletions: JoinSet<()>,
}

impl CheckpointRetention {
    /// Sets the expiry date of the checkpoint before this one; however a run ends, it may be resumed from the newest at any
    /// time. A failure only costs disk space on the service.
    pub(super) fn expire_older(&mut self, saved: &SavedCheckpoint) {
        let newest = expiring_paths(&saved.name, &saved.state_path, saved.sampler_path.as_ref());
        let older = std::mem::replace(&mut self.newest, newest);
        let Some(ttl) = self.ttl else { return };
        let service = self.service.clone();
        self.deletions.spawn(async move {
            for path in older {
                if let Err(error) = service.expire(&path, ttl).await {
                    tracing::warn!(path, %error, "no expiry set for a checkpoint: delete it by hand");
                }
            }
        });
    }

    /// Deletes the oldest, but none that shadow adapters may start from: `oldest` is the oldest version that is still
    /// sampled from. A failed deletion only costs disk space.
    pub(super) fn prune(
        &mut self,
        folder: &mut RunFolder,
        oldest: Option<PolicyVersion>,
    ) -> anyhow::Result<()> {
        let Some(keep) = self.keep else { return Ok(()) };
        let in_use = oldest.filter(|_| self.starts_shadows).map(|version| version.0);
        for old in folder.drop_old(keep, in_use)? {
            let service = self.service.clone();
            let mut paths: Vec<String> = std::iter::once(old.state_path).chain(old.sampler_path).collect();
            paths.retain(|path| !self.pinned.contains(path));
            self.deletions.spawn(async move {
                for path in paths {
                    if let Err(error) = service.delete(&path).await {
                        tracing::warn!(path, %error, "failed to delete an old checkpoint");
                    }
                }
            });
        }
        Ok(())
    }
}

/// The paths of a checkpoint that expires once there is a newer one: none for those that mark an end of the run, whose
/// names are more than a number.
pub(super) fn expiring_paths(name: &str, state: &str, sampler: Option<&String>) -> Vec<String> {
    let marks_an_end = !name.bytes().all(|byte| byte.is_ascii_digit());
    let paths = std::iter::once(state.to_owned()).chain(sampler.cloned());
    paths.filter(|_| !marks_an_end).collect()
}
