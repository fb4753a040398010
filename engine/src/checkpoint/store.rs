//! The store of checkpoints: `<root>/<run>/weights/<name>` and `<root>/<run>/sampler_weights/<name>`.
//!
//! A name always stands for the same checkpoint, unless its owner replaces or removes it. A reader sees one
//! checkpoint from beginning to end, even if its name changes meanwhile. A process that is killed leaves the old
//! checkpoint, the new one or none under a name, as if it had saved a moment earlier or later. Concurrent processes
//! need different runs.
//!
//! A checkpoint is written into a folder `.draft-…`. A checkpoint that it replaces waits in `.past-<name>.…` until
//! the draft has its name; a removed one moves into `.gone-…`. These folders are never read. What a killed process left
//! of them is cleaned up when the store is next opened: a past checkpoint whose name is free gets it back, all others
//! are deleted.

use super::{CheckpointError, read_notes};
use minds_core::checkpoint::{CheckpointAddress, CheckpointPurpose, StoredCheckpoint, check_run};
use parking_lot::RwLock;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::Builder;

const DRAFT: &str = ".draft-";
const PAST: &str = ".past-";
const GONE: &str = ".gone-";

/// Lock file that every process with an open store holds.
const LOCK: &str = ".lock";

/// Folder inside a temporary one: a folder cannot replace another on every file system, so it moves into a fresh one.
const ASIDE: &str = "checkpoint";

/// A folder of checkpoints. Clones share it.
#[derive(Clone, Debug)]
pub struct CheckpointStore(Arc<CheckpointStoreInner>);

#[derive(Debug)]
struct CheckpointStoreInner {
    root: PathBuf,
    /// Held for reading while a checkpoint is read, for writing while names change.
    names: RwLock<()>,
    /// Shared lock that shows other processes that the store is open, if the file system supports locks.
    _lock: Option<File>,
}

impl CheckpointStore {
    /// Opens a folder, and creates it if it does not exist. If no other process uses it, cleans up what a killed
    /// process left.
    ///
    /// # Errors
    /// The folder cannot be created, or a checkpoint cannot get its name back.
    pub fn new(root: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(CheckpointError::io("make the folder", &root))?;
        // A folder that cannot be written or locked needs no protection from other processes either.
        let lock = File::options().create(true).append(true).open(root.join(LOCK)).ok();
        if let Some(lock) = &lock
            && lock.try_lock().is_ok()
        {
            recover(&root)?;
            // From here on a shared lock: it shows that the store is open and does not block other processes.
            lock.unlock().map_err(CheckpointError::io("unlock", &root))?;
        }
        let lock = lock.filter(|lock| lock.lock_shared().is_ok());
        Ok(Self(Arc::new(CheckpointStoreInner { root, names: RwLock::default(), _lock: lock })))
    }

    /// Creates the first free run name `<prefix>-<n>`, atomically across processes.
    ///
    /// # Errors
    /// The folder of the run cannot be created.
    pub fn claim_run(&self, prefix: &str) -> Result<String, CheckpointError> {
        for number in 1.. {
            let run = format!("{prefix}-{number}");
            let folder = self.0.root.join(&run);
            match fs::create_dir(&folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(CheckpointError::io("make the folder", &folder)(error)),
                Ok(()) => return Ok(run),
            }
        }
        unreachable!("there are more numbers than folders")
    }

    /// Lets `write` fill a folder and then gives it its name. On error, the name stays free.
    ///
    /// # Errors
    /// The name is taken, `write` fails, or the disk fails.
    pub fn save(
        &self,
        address: &CheckpointAddress,
        write: impl FnOnce(&Path) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        // Fails before anything is written; `put` checks again when it gives the name.
        self.read(address, |_| Err(CheckpointError::Taken(address.to_string()))).or_else(ignore_missing)?;
        self.put(address, false, write)
    }

    /// Like [`Self::save`], but replaces an existing checkpoint of that name. On error, the existing one stays.
    ///
    /// # Errors
    /// `write` fails, or the disk fails.
    pub fn replace(
        &self,
        address: &CheckpointAddress,
        write: impl FnOnce(&Path) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        self.put(address, true, write)
    }

    fn put(
        &self,
        address: &CheckpointAddress,
        overwrite: bool,
        write: impl FnOnce(&Path) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let [parent, target] = self.folders(address);
        fs::create_dir_all(&parent).map_err(CheckpointError::io("make the folder", &parent))?;
        // Removed on every return path but the last.
        let draft = Builder::new()
            .prefix(DRAFT)
            .tempdir_in(&parent)
            .map_err(CheckpointError::io("make a folder in", &parent))?;
        write(draft.path())?;
        sync(draft.path())?;
        let mut trash = Vec::new();
        {
            let _changing = self.0.names.write();
            if target.is_dir() {
                if !overwrite {
                    return Err(CheckpointError::Taken(address.to_string()));
                }
                // An old checkpoint that could not be deleted must not come back in place of this one.
                trash = discard_past(&parent, address.name())?;
                trash.push(put_aside(&target, &format!("{PAST}{}.", address.name()))?);
            }
            let named = fs::rename(draft.path(), &target).map_err(CheckpointError::io("rename to", &target));
            if let (Err(_), Some(past)) = (&named, trash.last()) {
                fs::rename(past.join(ASIDE), &target).map_err(CheckpointError::io("rename to", &target))?;
            }
            named?;
            // The folder has moved: there is nothing left to remove.
            let _moved: PathBuf = draft.keep();
            sync(&parent)?;
        }
        delete(trash);
        Ok(())
    }

    /// Passes the folder of a checkpoint, unchanged meanwhile, to `look`, which must not call the store.
    ///
    /// # Errors
    /// Nothing was saved there, or `look` fails.
    pub fn read<T>(
        &self,
        address: &CheckpointAddress,
        look: impl FnOnce(&Path) -> Result<T, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        let _reading = self.0.names.read();
        let [_, folder] = self.folders(address);
        if folder.is_dir() { look(&folder) } else { Err(CheckpointError::Missing(address.to_string())) }
    }

    /// Removes a checkpoint; its name is free again.
    ///
    /// # Errors
    /// Nothing was saved there, or the disk fails.
    pub fn remove(&self, address: &CheckpointAddress) -> Result<(), CheckpointError> {
        self.remove_if(address, |_| true).map(|_| ())
    }

    /// Removes a checkpoint if `such` accepts its folder. Returns whether it was removed.
    ///
    /// # Errors
    /// The same as for [`Self::remove`].
    pub fn remove_if(
        &self,
        address: &CheckpointAddress,
        such: impl FnOnce(&Path) -> bool,
    ) -> Result<bool, CheckpointError> {
        let [parent, target] = self.folders(address);
        let mut trash;
        {
            let _changing = self.0.names.write();
            if !target.is_dir() {
                return Err(CheckpointError::Missing(address.to_string()));
            }
            if !such(&target) {
                return Ok(false);
            }
            // First remove the past checkpoints of this name: once the name is free, they would get it back.
            trash = discard_past(&parent, address.name())?;
            trash.push(put_aside(&target, GONE)?);
            sync(&parent)?;
        }
        delete(trash);
        Ok(true)
    }

    /// The names of all runs that have saved a checkpoint.
    ///
    /// # Errors
    /// The disk fails.
    pub fn runs(&self) -> Result<Vec<String>, CheckpointError> {
        let mut runs = Vec::new();
        for name in names(&self.0.root)? {
            let run = name.replace("%3A", ":");
            if check_run(&run).is_ok() && !self.list(&run)?.is_empty() {
                runs.push(run);
            }
        }
        Ok(runs)
    }

    /// The checkpoints of one run, oldest first; empty if the run never saved.
    ///
    /// # Errors
    /// The disk fails.
    pub fn list(&self, run: &str) -> Result<Vec<StoredCheckpoint>, CheckpointError> {
        check_run(run)?;
        let _reading = self.0.names.read();
        let mut entries = Vec::new();
        for kind in [CheckpointPurpose::Training, CheckpointPurpose::Sampler] {
            let parent = self.0.root.join(folder_of(run)).join(kind.folder());
            for name in names(&parent)? {
                let Ok(address) = CheckpointAddress::new(run, kind, &name) else { continue };
                // A checkpoint that vanishes meanwhile was removed by its owner.
                let Ok(entry) = entry(address, &parent.join(&name)) else { continue };
                entries.push(entry);
            }
        }
        entries.sort_by_key(|entry| entry.saved);
        Ok(entries)
    }

    /// The folder of all checkpoints of this kind, and the folder of this one.
    fn folders(&self, address: &CheckpointAddress) -> [PathBuf; 2] {
        let parent = self.0.root.join(folder_of(address.run())).join(address.kind().folder());
        let folder = parent.join(address.name());
        [parent, folder]
    }
}

fn ignore_missing(error: CheckpointError) -> Result<(), CheckpointError> {
    if matches!(error, CheckpointError::Missing(_)) { Ok(()) } else { Err(error) }
}

/// The folder name of a run. Not every file system takes a colon; names have no `%`, so no two runs meet.
fn folder_of(run: &str) -> String {
    run.replace(':', "%3A")
}

/// Names in a folder; empty if the folder does not exist.
fn names(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let list = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        list => list.map_err(CheckpointError::io("read the folder", folder))?,
    };
    Ok(list.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

fn entry(address: CheckpointAddress, folder: &Path) -> io::Result<StoredCheckpoint> {
    let saved = fs::metadata(folder)?.modified()?;
    let mut bytes = 0;
    for file in fs::read_dir(folder)? {
        bytes += file?.metadata()?.len();
    }
    // A checkpoint whose notes cannot be read is still listed.
    let notes = read_notes(folder).unwrap_or_default();
    Ok(StoredCheckpoint { address, saved, bytes, notes })
}

/// Moves a checkpoint into a fresh folder beside it.
fn put_aside(folder: &Path, prefix: &str) -> Result<PathBuf, CheckpointError> {
    let parent = folder.parent().unwrap_or(folder);
    let aside = Builder::new()
        .prefix(prefix)
        .tempdir_in(parent)
        .map_err(CheckpointError::io("make a folder in", parent))?;
    fs::rename(folder, aside.path().join(ASIDE)).map_err(CheckpointError::io("rename", folder))?;
    Ok(aside.keep())
}

/// Makes sure that past checkpoints of this name never get it back.
fn discard_past(parent: &Path, name: &str) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut buried = Vec::new();
    for found in names(parent)?.iter().filter(|found| past_name(found) == Some(name)) {
        buried.push(put_aside(&parent.join(found), GONE)?);
    }
    Ok(buried)
}

/// Name of the checkpoint that a past folder holds.
fn past_name(folder: &str) -> Option<&str> {
    Some(folder.strip_prefix(PAST)?.rsplit_once('.')?.0)
}

/// Deletes folders that have no name any more. Those that cannot be deleted go when the store is next opened.
fn delete(trash: Vec<PathBuf>) {
    for folder in trash {
        fs::remove_dir_all(folder).ok();
    }
}

/// Cleans up what a killed process left.
fn recover(root: &Path) -> Result<(), CheckpointError> {
    for run in names(root)? {
        for kind in [CheckpointPurpose::Training, CheckpointPurpose::Sampler] {
            let parent = root.join(&run).join(kind.folder());
            let mut trash = Vec::new();
            for found in names(&parent)? {
                let folder = parent.join(&found);
                if let Some(name) = past_name(&found)
                    && !parent.join(name).exists()
                    && folder.join(ASIDE).is_dir()
                {
                    fs::rename(folder.join(ASIDE), parent.join(name))
                        .map_err(CheckpointError::io("rename", &folder))?;
                }
                if [DRAFT, PAST, GONE].iter().any(|prefix| found.starts_with(prefix)) {
                    trash.push(folder);
                }
            }
            delete(trash);
        }
    }
    Ok(())
}

/// Makes the entries of a folder durable.
fn sync(folder: &Path) -> Result<(), CheckpointError> {
    let failed = CheckpointError::io("sync", folder);
    if cfg!(unix) { File::open(folder).and_then(|f| f.sync_all()).map_err(failed) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_name_exists_with_all_its_files_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(root.path()).unwrap();
        let address = CheckpointAddress::new("run", CheckpointPurpose::Training, "a").unwrap();
        let parent = root.path().join("run/weights");
        let failing = store.save(&address, |folder| {
            fs::write(folder.join("half"), "x").unwrap();
            Err(CheckpointError::Missing("a test".into()))
        });
        assert!(failing.is_err());
        assert!(fs::read_dir(&parent).unwrap().next().is_none(), "something is left");
        assert!(matches!(store.read(&address, |_| Ok(())), Err(CheckpointError::Missing(_))));

        store
            .save(&address, |folder| fs::write(folder.join("whole"), "x").map_err(|_| unreachable!()))
            .unwrap();
        assert!(store.read(&address, |folder| Ok(folder.join("whole").is_file())).unwrap());
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 1);
        let again = store.save(&address, |_| panic!("a taken name is found before anything is written"));
        assert!(matches!(again, Err(CheckpointError::Taken(_))));
    }

    /// A checkpoint whose only file says `text`.
    fn put(store: &CheckpointStore, path: &str, text: &str) -> Result<(), CheckpointError> {
        store.replace(&path.parse()?, |folder| {
            fs::write(folder.join("file"), text).map_err(CheckpointError::io("write", folder))
        })
    }

    fn read(store: &CheckpointStore, path: &str) -> Option<String> {
        store.read(&path.parse().unwrap(), |folder| Ok(fs::read_to_string(folder.join("file")).unwrap())).ok()
    }

    #[test]
    fn replacing_leaves_the_old_or_the_new() {
        let root = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(root.path()).unwrap();
        let path = "tinker://s:train:0/weights/a";
        put(&store, path, "old").unwrap();
        let failing =
            store.replace(&path.parse().unwrap(), |_| Err(CheckpointError::Missing("a test".into())));
        assert!(failing.is_err());
        assert_eq!(read(&store, path).unwrap(), "old");
        put(&store, path, "new").unwrap();
        assert_eq!(read(&store, path).unwrap(), "new");
        assert_eq!(names(&root.path().join("s%3Atrain%3A0/weights")).unwrap(), ["a"]);
    }

    /// Each case is the disk as a process leaves it that is killed at one step: folders with what their file says, and
    /// what the next process must find under the name `v1.2`.
    #[test]
    fn a_killed_writer_leaves_the_old_the_new_or_no_checkpoint() {
        let draft = (".draft-x", "new");
        let [past, gone] = [".past-v1.2.Xy1/checkpoint", ".gone-Xy2/checkpoint"];
        let other = ("v1", "other");
        for (step, left, found) in [
            ("while a save writes", vec![draft], None),
            ("before a replacement", vec![draft, ("v1.2", "old")], Some("old")),
            ("between its renames", vec![draft, (past, "old")], Some("old")),
            ("after its renames", vec![(past, "old"), ("v1.2", "new")], Some("new")),
            ("while the old is deleted", vec![(".past-v1.2.Xy1/che", "old"), ("v1.2", "new")], Some("new")),
            ("before the removal of the only one", vec![("v1.2", "old")], Some("old")),
            ("after its rename", vec![(gone, "old")], None),
            (
                "removed after a replacement that left the old",
                vec![(".gone-Xy3/checkpoint/checkpoint", "old"), (gone, "new")],
                None,
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            let parent = root.path().join("run/weights");
            for (folder, text) in left.iter().chain([&other]) {
                fs::create_dir_all(parent.join(folder)).unwrap();
                fs::write(parent.join(folder).join("file"), text).unwrap();
            }
            // Another process is at work: what it has under way is not touched.
            let guest = File::create(root.path().join(LOCK)).unwrap();
            guest.lock_shared().unwrap();
            let before = names(&parent).unwrap().len();
            CheckpointStore::new(root.path()).unwrap();
            assert_eq!(names(&parent).unwrap().len(), before, "{step}");
            drop(guest);
            let store = CheckpointStore::new(root.path()).unwrap();
            assert_eq!(read(&store, "tinker://run/weights/v1.2").as_deref(), found, "{step}");
            assert_eq!(read(&store, "tinker://run/weights/v1").unwrap(), "other", "{step}");
            assert_eq!(names(&parent).unwrap().len(), 1 + usize::from(found.is_some()), "{step}");
        }
    }

    #[test]
    fn a_past_checkpoint_that_could_not_be_deleted_never_returns() {
        let root = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(root.path()).unwrap();
        let path = "tinker://run/weights/a";
        put(&store, path, "new").unwrap();
        let past = root.path().join("run/weights/.past-a.Xy1/checkpoint");
        fs::create_dir_all(&past).unwrap();
        fs::write(past.join("file"), "old").unwrap();
        store.remove(&path.parse().unwrap()).unwrap();
        drop(store);
        assert_eq!(read(&CheckpointStore::new(root.path()).unwrap(), path), None);
    }

    #[test]
    fn names_that_differ_after_a_dot_are_removed_side_by_side() {
        let root = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(root.path()).unwrap();
        let paths = ["v1.2", "v1.3", "v1.4"].map(|name| format!("tinker://run/weights/{name}"));
        for _ in 0..20 {
            for path in &paths {
                put(&store, path, "x").unwrap();
            }
            std::thread::scope(|scope| {
                let remove = |path: &String| store.remove(&path.parse().unwrap());
                let removing = paths.each_ref().map(|path| scope.spawn(move || remove(path)));
                for removed in removing {
                    removed.join().unwrap().unwrap();
                }
            });
        }
        assert!(names(&root.path().join("run/weights")).unwrap().is_empty());
    }

    #[test]
    fn readers_see_one_checkpoint_while_others_take_its_name() {
        let root = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(root.path()).unwrap();
        let path = "tinker://run/weights/a";
        let address: CheckpointAddress = path.parse().unwrap();
        let both = |text: String| {
            store.replace(&address, |folder| {
                for file in ["one", "two"] {
                    fs::write(folder.join(file), &text).unwrap();
                }
                Ok(())
            })
        };
        both("0".into()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let read = |folder: &Path| {
                        Ok(["one", "two"].map(|file| fs::read_to_string(folder.join(file)).unwrap()))
                    };
                    let [one, two] = store.read(&address, read).unwrap();
                    assert_eq!(one, two);
                    assert_eq!(store.list("run").unwrap().len(), 1);
                }
            });
            for round in 0..50 {
                both(round.to_string()).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn what_is_listed_can_be_read_and_what_is_removed_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(root.path()).unwrap();
        let [a, b] = ["tinker://s:train:0/weights/a", "tinker://s:train:0/sampler_weights/b"];
        put(&store, a, "x").unwrap();
        put(&store, b, "xyz").unwrap();
        fs::write(root.path().join("a file"), "").unwrap();
        fs::create_dir_all(root.path().join("never-saved/weights/.draft-1")).unwrap();
        assert_eq!(store.runs().unwrap(), ["s:train:0"]);
        let mut listed: Vec<_> =
            store.list("s:train:0").unwrap().into_iter().map(|e| (e.address.to_string(), e.bytes)).collect();
        listed.sort();
        assert_eq!(listed, [(b.to_owned(), 3), (a.to_owned(), 1)]);
        assert!(!store.remove_if(&a.parse().unwrap(), |folder| folder.join("other").exists()).unwrap());
        store.remove(&a.parse().unwrap()).unwrap();
        assert_eq!(read(&store, a), None);
        assert!(matches!(store.remove(&a.parse().unwrap()), Err(CheckpointError::Missing(_))));
        assert_eq!(store.list("s:train:0").unwrap().len(), 1);
        assert!(store.list("..").is_err());
        assert!(store.list("nobody").unwrap().is_empty());
    }

    #[test]
    fn runs_never_share_a_folder() {
        let root = tempfile::tempdir().unwrap();
        let claim = || CheckpointStore::new(root.path()).unwrap().claim_run("run").unwrap();
        assert_eq!([claim(), claim(), claim()], ["run-1", "run-2", "run-3"]);
    }
}
