//! Where checkpoints lie: `<root>/<run>/weights/<name>` and `<root>/<run>/sampler_weights/<name>`.
//!
//! A name is given once and never changes what it stands for, unless its owner replaces or removes it. No run and no
//! name leads out of the root. Concurrent writers need different runs.

use super::CheckpointError;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

/// What a checkpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To train on: weights and optimizer.
    Training,
    /// To sample from: weights only.
    Sampler,
}

impl Kind {
    fn folder(self) -> &'static str {
        match self {
            Self::Training => "weights",
            Self::Sampler => "sampler_weights",
        }
    }
}

/// The address of a checkpoint, written `tinker://<run>/weights/<name>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    run: String,
    kind: Kind,
    name: String,
}

impl Place {
    /// A checked address.
    ///
    /// # Errors
    /// A run or a name that could be mistaken for a path.
    pub fn new(run: &str, kind: Kind, name: &str) -> Result<Self, CheckpointError> {
        check_run(run)?;
        check_name(name)?;
        Ok(Self { run: run.into(), kind, name: name.into() })
    }

    /// Who saved it.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// What the checkpoint is for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The part after the run, `weights/<name>`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}", self.kind.folder(), self.name)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tinker://{}/{}/{}", self.run, self.kind.folder(), self.name)
    }
}

impl FromStr for Place {
    type Err = CheckpointError;

    fn from_str(path: &str) -> Result<Self, CheckpointError> {
        let wrong = || CheckpointError::Path(path.into());
        let rest = path.strip_prefix("tinker://").ok_or_else(wrong)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let [run, kind, name] = parts[..] else { return Err(wrong()) };
        let kind =
            [Kind::Training, Kind::Sampler].into_iter().find(|k| k.folder() == kind).ok_or_else(wrong)?;
        Self::new(run, kind, name).map_err(|_| wrong())
    }
}

/// Refuses names that a file system could take for something else.
///
/// # Errors
/// [`CheckpointError::Name`].
pub fn check_name(name: &str) -> Result<(), CheckpointError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = (1..=128).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with('.')
        && !name.contains("..");
    if good { Ok(()) } else { Err(CheckpointError::Name(name.into())) }
}

/// Refuses runs that a file system could take for something else. Servers name runs `<session>:train:<n>`, so a
/// colon may stand between plain parts.
fn check_run(run: &str) -> Result<(), CheckpointError> {
    match run.len() <= 128 && run.split(':').all(|part| check_name(part).is_ok()) {
        true => Ok(()),
        false => Err(CheckpointError::Name(run.into())),
    }
}

/// The folder name of a run. Not every file system takes a colon; names have no `%`, so no two runs meet.
fn folder_of(run: &str) -> String {
    run.replace(':', "%3A")
}

/// What the store knows of a checkpoint without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its address.
    pub place: Place,
    /// When it was saved.
    pub saved: SystemTime,
    /// Bytes of its files.
    pub bytes: u64,
}

/// A folder of checkpoints.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Uses a folder, which is made if it does not exist.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(root: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(CheckpointError::io("make the folder", &root))?;
        Ok(Self { root })
    }

    /// Takes the first free run name `<prefix>-<n>`, also against other processes.
    ///
    /// # Errors
    /// The folder of the run cannot be made.
    pub fn claim_run(&self, prefix: &str) -> Result<String, CheckpointError> {
        for number in 1.. {
            let run = format!("{prefix}-{number}");
            let folder = self.root.join(&run);
            match fs::create_dir(&folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(CheckpointError::io("make the folder", &folder)(error)),
                Ok(()) => return Ok(run),
            }
        }
        unreachable!("there are more numbers than folders")
    }

    /// Lets `write` fill a folder and then gives it its name. If anything fails, the name stays free.
    ///
    /// # Errors
    /// The name is taken, `write` fails, or the disk does.
    pub fn save(
        &self,
        place: &Place,
        write: impl FnOnce(&Path) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        if self.open(place).is_ok() {
            return Err(CheckpointError::Taken(place.to_string()));
        }
        self.replace(place, write)
    }

    /// As [`Self::save`], but what has the name already gives way. If anything fails, it stays.
    ///
    /// # Errors
    /// `write` fails, or the disk does.
    pub fn replace(
        &self,
        place: &Place,
        write: impl FnOnce(&Path) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let [parent, target, past] = self.folders(place);
        fs::create_dir_all(&parent).map_err(CheckpointError::io("make the folder", &parent))?;
        // Names never begin with a dot, so this one is free; it is removed again on every way out but the last.
        let draft = tempfile::Builder::new()
            .prefix(".draft-")
            .tempdir_in(&parent)
            .map_err(CheckpointError::io("make a folder in", &parent))?;
        write(draft.path())?;
        sync(draft.path())?;
        let replaces = self.open(place).is_ok();
        if replaces {
            // Killed between the two renames, the store finds the past one again: see `open`.
            fs::rename(&target, &past).map_err(CheckpointError::io("rename", &target))?;
        }
        fs::rename(draft.path(), &target).map_err(CheckpointError::io("rename to", &target))?;
        // The folder has moved: there is nothing left to remove.
        let _moved: PathBuf = draft.keep();
        sync(&parent)?;
        if replaces { remove(&past) } else { Ok(()) }
    }

    /// The folder of a checkpoint.
    ///
    /// # Errors
    /// Nothing was saved there.
    pub fn open(&self, place: &Place) -> Result<PathBuf, CheckpointError> {
        let [_, folder, past] = self.folders(place);
        if !folder.is_dir() && past.is_dir() {
            fs::rename(&past, &folder).map_err(CheckpointError::io("rename", &past))?;
        }
        if folder.is_dir() { Ok(folder) } else { Err(CheckpointError::Missing(place.to_string())) }
    }

    /// Removes a checkpoint; its name is free again.
    ///
    /// # Errors
    /// Nothing was saved there, or the disk fails.
    pub fn remove(&self, place: &Place) -> Result<(), CheckpointError> {
        let folder = self.open(place)?;
        let [_, _, past] = self.folders(place);
        // Renamed first: what is half removed has no name.
        fs::rename(&folder, past.with_extension("removed"))
            .map_err(CheckpointError::io("rename", &folder))?;
        remove(&past.with_extension("removed"))
    }

    /// The names of all runs that have saved something.
    ///
    /// # Errors
    /// The disk fails.
    pub fn runs(&self) -> Result<Vec<String>, CheckpointError> {
        let mut runs = Vec::new();
        for name in names(&self.root)? {
            let run = name.replace("%3A", ":");
            if check_run(&run).is_ok() && !self.list(&run)?.is_empty() {
                runs.push(run);
            }
        }
        Ok(runs)
    }

    /// The checkpoints of one run, oldest first. A run that never saved has none.
    ///
    /// # Errors
    /// The disk fails.
    pub fn list(&self, run: &str) -> Result<Vec<Entry>, CheckpointError> {
        check_run(run)?;
        let mut entries = Vec::new();
        for kind in [Kind::Training, Kind::Sampler] {
            let parent = self.root.join(folder_of(run)).join(kind.folder());
            for name in names(&parent)? {
                let Ok(place) = Place::new(run, kind, &name) else { continue };
                // Whatever vanishes meanwhile was removed by its owner.
                let Ok(entry) = entry(place, &parent.join(&name)) else { continue };
                entries.push(entry);
            }
        }
        entries.sort_by_key(|entry| entry.saved);
        Ok(entries)
    }

    /// The folder of all of a kind, the folder of this one, and where it waits while another takes its name.
    fn folders(&self, place: &Place) -> [PathBuf; 3] {
        let parent = self.root.join(folder_of(&place.run)).join(place.kind.folder());
        let folder = parent.join(&place.name);
        let past = parent.join(format!(".past-{}", place.name));
        [parent, folder, past]
    }
}

/// Names in a folder; one that does not exist has none.
fn names(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let list = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        list => list.map_err(CheckpointError::io("read the folder", folder))?,
    };
    Ok(list.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

fn entry(place: Place, folder: &Path) -> io::Result<Entry> {
    let saved = fs::metadata(folder)?.modified()?;
    let mut bytes = 0;
    for file in fs::read_dir(folder)? {
        bytes += file?.metadata()?.len();
    }
    Ok(Entry { place, saved, bytes })
}

fn remove(folder: &Path) -> Result<(), CheckpointError> {
    fs::remove_dir_all(folder).map_err(CheckpointError::io("remove", folder))
}

/// Makes the entries of a folder durable.
fn sync(folder: &Path) -> Result<(), CheckpointError> {
    let failed = CheckpointError::io("sync", folder);
    if cfg!(unix) { File::open(folder).and_then(|f| f.sync_all()).map_err(failed) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "step-0001", "v1.2_final", "x".repeat(128).as_str()] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".a", "a..b", "a/b", "a\\b", "a b", "ä", "a\0", "x".repeat(129).as_str()]
        {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_read_as_they_are_written() {
        for path in ["tinker://run-1/weights/a", "tinker://s:train:0/sampler_weights/b.2"] {
            assert_eq!(path.parse::<Place>().unwrap().to_string(), path);
        }
        for bad in [
            "run-1/weights/a",
            "tinker://run-1/a",
            "tinker://run-1/weights/a/b",
            "tinker://run-1/external_weights/a",
            "tinker://../weights/a",
            "tinker://run-1/weights/..",
            "tinker:///weights/a",
            "tinker://:/weights/",
            "tinker://a::b/weights/a",
            "tinker://a:../weights/a",
            "tinker://a%2Fb/weights/a",
        ] {
            assert!(matches!(bad.parse::<Place>(), Err(CheckpointError::Path(_))), "{bad}");
        }
    }

    #[test]
    fn a_name_exists_with_all_its_files_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::new(root.path()).unwrap();
        let place = Place::new("run", Kind::Training, "a").unwrap();
        let parent = root.path().join("run/weights");
        let failing = store.save(&place, |folder| {
            fs::write(folder.join("half"), "x").unwrap();
            Err(CheckpointError::Missing("a test".into()))
        });
        assert!(failing.is_err());
        assert!(fs::read_dir(&parent).unwrap().next().is_none(), "something is left");
        assert!(matches!(store.open(&place), Err(CheckpointError::Missing(_))));

        store
            .save(&place, |folder| fs::write(folder.join("whole"), "x").map_err(|_| unreachable!()))
            .unwrap();
        assert!(store.open(&place).unwrap().join("whole").is_file());
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 1);
        let again = store.save(&place, |_| panic!("a taken name is found before anything is written"));
        assert!(matches!(again, Err(CheckpointError::Taken(_))));
    }

    /// A checkpoint whose only file says `text`.
    fn put(store: &Store, path: &str, text: &str) -> Result<(), CheckpointError> {
        store.replace(&path.parse()?, |folder| {
            fs::write(folder.join("file"), text).map_err(CheckpointError::io("write", folder))
        })
    }

    fn read(store: &Store, path: &str) -> Option<String> {
        let folder = store.open(&path.parse().unwrap()).ok()?;
        Some(fs::read_to_string(folder.join("file")).unwrap())
    }

    #[test]
    fn replacing_leaves_the_old_or_the_new_even_when_killed_in_between() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::new(root.path()).unwrap();
        let path = "tinker://s:train:0/weights/a";
        put(&store, path, "old").unwrap();
        let failing =
            store.replace(&path.parse().unwrap(), |_| Err(CheckpointError::Missing("a test".into())));
        assert!(failing.is_err());
        assert_eq!(read(&store, path).unwrap(), "old");
        put(&store, path, "new").unwrap();
        assert_eq!(read(&store, path).unwrap(), "new");
        let parent = root.path().join("s%3Atrain%3A0/weights");
        assert_eq!(names(&parent).unwrap(), ["a"]);
        // Killed after the first rename.
        fs::rename(parent.join("a"), parent.join(".past-a")).unwrap();
        assert_eq!(read(&store, path).unwrap(), "new");
    }

    #[test]
    fn what_is_listed_can_be_opened_and_what_is_removed_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::new(root.path()).unwrap();
        let [a, b] = ["tinker://s:train:0/weights/a", "tinker://s:train:0/sampler_weights/b"];
        put(&store, a, "x").unwrap();
        put(&store, b, "xyz").unwrap();
        fs::write(root.path().join("a file"), "").unwrap();
        fs::create_dir_all(root.path().join("never-saved/weights/.draft-1")).unwrap();
        assert_eq!(store.runs().unwrap(), ["s:train:0"]);
        let mut listed: Vec<_> =
            store.list("s:train:0").unwrap().into_iter().map(|e| (e.place.to_string(), e.bytes)).collect();
        listed.sort();
        assert_eq!(listed, [(b.to_owned(), 3), (a.to_owned(), 1)]);
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
        let claim = || Store::new(root.path()).unwrap().claim_run("run").unwrap();
        assert_eq!([claim(), claim(), claim()], ["run-1", "run-2", "run-3"]);
    }
}
