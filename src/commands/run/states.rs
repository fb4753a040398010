//! The states that a run has saved on the service: the newest are kept.

use crate::run_folder::RunFolder;
use minds_core::backend::Service;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::task::JoinSet;

/// The states that a run has saved.
pub(super) struct States {
    pub(super) service: Arc<dyn Service>,
    /// How many of them are kept.
    pub(super) keep: Option<NonZeroUsize>,
    /// Weights that the config names: they are never deleted.
    pub(super) pinned: Vec<String>,
    /// Deletions under way.
    pub(super) leaving: JoinSet<()>,
}

impl States {
    /// Deletes the oldest. One that cannot be deleted costs room and nothing else.
    pub(super) fn prune(&mut self, folder: &mut RunFolder) -> anyhow::Result<()> {
        let Some(keep) = self.keep else { return Ok(()) };
        for old in folder.let_go(keep)? {
            let service = self.service.clone();
            let mut paths: Vec<String> = std::iter::once(old.state_path).chain(old.sampler_path).collect();
            paths.retain(|path| !self.pinned.contains(path));
            self.leaving.spawn(async move {
                for path in paths {
                    if let Err(error) = service.forget(&path).await {
                        tracing::warn!(path, %error, "an old state could not be deleted");
                    }
                }
            });
        }
        Ok(())
    }
}
