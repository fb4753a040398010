//! Where checkpoints lie: `<root>/<run>/weights/<name>` and `<root>/<run>/sampler_weights/<name>`.
//!
//! A name is given once and never changes what it stands for. Concurrent writers need different runs.

use super::CheckpointError;
use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

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
        // Servers name runs `<session>:train:<n>`.
        check_name(&run.replace(':', "-"))?;
        check_name(name)?;
        Ok(Self { run: run.into(), kind, name: name.into() })
    }

    /// What the checkpoint is for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
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
        let parent = self.root.join(&place.run).join(place.kind.folder());
        let target = parent.join(&place.name);
        fs::create_dir_all(&parent).map_err(CheckpointError::io("make the folder", &parent))?;
        if target.exists() {
            return Err(CheckpointError::Taken(place.to_string()));
        }
        // Names never begin with a dot, so this one is free; it is removed again on every way out but the last.
        let draft = tempfile::Builder::new()
            .prefix(".draft-")
            .tempdir_in(&parent)
            .map_err(CheckpointError::io("make a folder in", &parent))?;
        write(draft.path())?;
        sync(draft.path())?;
        fs::rename(draft.path(), &target).map_err(CheckpointError::io("rename to", &target))?;
        // The folder has moved: there is nothing left to remove.
        let _moved: PathBuf = draft.keep();
        sync(&parent)
    }

    /// The folder of a checkpoint.
    ///
    /// # Errors
    /// Nothing was saved there.
    pub fn open(&self, place: &Place) -> Result<PathBuf, CheckpointError> {
        let folder = self.root.join(&place.run).join(place.kind.folder()).join(&place.name);
        if folder.is_dir() { Ok(folder) } else { Err(CheckpointError::Missing(place.to_string())) }
    }
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

    #[test]
    fn runs_never_share_a_folder() {
        let root = tempfile::tempdir().unwrap();
        let claim = || Store::new(root.path()).unwrap().claim_run("run").unwrap();
        assert_eq!([claim(), claim(), claim()], ["run-1", "run-2", "run-3"]);
    }
}
