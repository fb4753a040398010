//! The folder of the worker's files, for as long as a run needs it.
//!
//! A lock marks it as in use. Runs that share a folder for temporary files, in containers of their own or on a
//! system without `/proc`, see each other's locks where they would not see each other's processes. Where locks are not
//! supported, a folder that its run left behind stays.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use tempfile::TempDir;

/// Common prefix of the names of these folders.
const PREFIX: &str = "minds-host-";
/// File that the run locks while it needs the folder.
const LOCK: &str = "lock";

/// A folder that is removed when this is dropped.
pub(super) struct WorkerFiles {
    dir: TempDir,
    /// Released after the folder is removed.
    _lock: File,
}

impl WorkerFiles {
    /// Makes a folder among the temporary files, and removes those that killed runs left there.
    pub(super) fn create() -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    fn create_in(temp: &Path) -> io::Result<Self> {
        sweep(temp);
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(temp)?;
        // The file is renamed into place once it is locked, so that no other process sees it unlocked.
        let unnamed = dir.path().join("lock.new");
        let lock = File::create(&unnamed)?;
        match lock.try_lock() {
            Ok(()) => std::fs::rename(&unnamed, dir.path().join(LOCK))?,
            Err(error) => tracing::debug!(%error, folder = %dir.path().display(), "cannot be locked"),
        }
        Ok(Self { dir, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes folders whose lock is free. Folders of other users cannot be removed and are left alone.
fn sweep(temp: &Path) {
    for entry in std::fs::read_dir(temp).into_iter().flatten().filter_map(Result::ok) {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // Some network file systems lock only writable files.
        let lock = OpenOptions::new().write(true).open(entry.path().join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_needed_stays_and_one_that_was_left_behind_goes() {
        let temp = tempfile::tempdir().unwrap();
        let needed = WorkerFiles::create_in(temp.path()).unwrap();
        // A process number in the name, which no process of this container has, must not matter.
        let other = temp.path().join(format!("{PREFIX}4194303-elsewhere"));
        std::fs::create_dir(&other).unwrap();
        let held = File::create(other.join(LOCK)).unwrap();
        held.lock().unwrap();
        let unfinished = temp.path().join(format!("{PREFIX}unfinished"));
        std::fs::create_dir(&unfinished).unwrap();
        let foreign = temp.path().join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        File::create(foreign.join(LOCK)).unwrap();

        let second = WorkerFiles::create_in(temp.path()).unwrap();
        for path in [needed.path(), second.path(), &other, &unfinished, &foreign] {
            assert!(path.exists(), "{}", path.display());
        }

        drop(held);
        let path = second.path().to_owned();
        drop(second);
        sweep(temp.path());
        assert!(!other.exists() && !path.exists());
        assert!(needed.path().exists());
    }
}
