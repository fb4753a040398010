//! Locks between processes, also on file systems without locks.
//!
//! The system's lock on a file ends with the process that holds it, even if that is killed. Some network file systems
//! (Lustre without `flock`, NFS without its lock service) have no locks. There a second file replaces the lock. It
//! names its holder, and another process takes it over if the holder was a process of this machine that has ended.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval between checks of a lock file that another process holds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// ENOLCK of Linux, "no locks available": NFS without its lock service.
const NO_LOCKS: i32 = 37;

/// Why a lock was not taken.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds it. If a file replaces the lock, the path of that file.
    Held(Option<PathBuf>),
    /// The lock file could not be created or locked.
    Io(io::Error),
}

/// A lock on a file, held until this is dropped.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    /// File that replaces the lock; `None` if the system's lock is held.
    stand_in: Option<StandInFile>,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing the file would not suffice: a child process has a copy of it until it starts its program. Fails only
        // where there are no locks.
        drop(self.file.unlock());
    }
}

#[derive(Debug)]
struct StandInFile(PathBuf);

impl Drop for StandInFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the lock file was not removed");
        }
    }
}

impl FileLock {
    /// Locks this file and creates it if necessary. If the file system has no locks, logs a warning and takes the
    /// [`stand_in`] instead.
    ///
    /// # Errors
    /// Another process holds it, or the lock file could not be created or locked.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        Self::take_by(path, File::try_lock)
    }

    fn take_by(path: &Path, try_lock: impl Fn(&File) -> Result<(), TryLockError>) -> Result<Self, LockError> {
        let file = File::create(path).map_err(LockError::Io)?;
        match try_lock(&file) {
            Ok(()) => Ok(Self { file, stand_in: None }),
            Err(TryLockError::WouldBlock) => Err(LockError::Held(None)),
            Err(TryLockError::Error(error)) if has_no_locks(&error) => {
                let stand_in = take_stand_in(&stand_in(path))?;
                tracing::warn!(
                    path = %stand_in.0.display(),
                    %error,
                    "the file system has no locks: this file replaces the lock"
                );
                Ok(Self { file, stand_in: Some(stand_in) })
            }
            Err(TryLockError::Error(error)) => Err(LockError::Io(error)),
        }
    }

    /// Takes the lock, and waits while another process holds it; `waiting` is called once before the wait.
    pub(crate) fn wait(path: &Path, waiting: impl FnOnce()) -> io::Result<Self> {
        let mut waiting = Some(waiting);
        loop {
            let held = match Self::take(path) {
                Ok(lock) => return Ok(lock),
                Err(LockError::Io(error)) => return Err(error),
                Err(LockError::Held(held)) => held,
            };
            if let Some(waiting) = waiting.take() {
                waiting();
            }
            if held.is_some() {
                std::thread::park_timeout(POLL_INTERVAL);
            } else {
                let file = File::create(path)?;
                file.lock()?;
                return Ok(Self { file, stand_in: None });
            }
        }
    }

    /// Whether a file replaces the lock because the file system has no locks.
    #[must_use]
    pub fn is_stand_in(&self) -> bool {
        self.stand_in.is_some()
    }
}

/// Whether the file system of this folder has locks, determined without creating a file.
#[must_use]
pub fn has_locks(folder: &Path) -> bool {
    // A folder can be locked like a file, and no other code locks this one.
    let Ok(folder) = File::open(folder) else { return true };
    !matches!(folder.try_lock_shared(), Err(TryLockError::Error(error)) if has_no_locks(&error))
}

/// Checks whether the lock of a file could be taken now. Nothing is written, and the lock is released at once.
///
/// # Errors
/// Another process holds the lock.
pub fn check_lock(path: &Path) -> Result<(), LockError> {
    let stand_in = stand_in(path);
    if fs::read_to_string(&stand_in).is_ok_and(|holder| may_live(&holder)) {
        return Err(LockError::Held(Some(stand_in)));
    }
    let Ok(file) = File::open(path) else { return Ok(()) };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(LockError::Held(None)),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Path of the file that replaces the lock of `path`.
fn stand_in(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".holder");
    name.into()
}

fn has_no_locks(error: &io::Error) -> bool {
    error.kind() == ErrorKind::Unsupported
        || (cfg!(target_os = "linux") && error.raw_os_error() == Some(NO_LOCKS))
}

fn take_stand_in(path: &Path) -> Result<StandInFile, LockError> {
    let own = own_name();
    let make = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(own.as_bytes())?;
        file.sync_all()
    };
    let made = match make() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if fs::read_to_string(path).is_ok_and(|holder| may_live(&holder)) {
                return Err(LockError::Held(Some(path.to_owned())));
            }
            // Its holder was killed. If several processes find this, the one whose name stays holds the lock.
            fs::remove_file(path).ok();
            make()
        }
        made => made,
    };
    match made {
        Ok(()) if fs::read_to_string(path).is_ok_and(|holder| holder == own) => {
            Ok(StandInFile(path.to_owned()))
        }
        Ok(()) => Err(LockError::Held(Some(path.to_owned()))),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(LockError::Held(Some(path.to_owned()))),
        Err(error) => Err(LockError::Io(error)),
    }
}

/// Identifies this process among all that share the file system: machine, PID namespace, PID, start time.
fn own_name() -> String {
    let number = std::process::id();
    format!("{}\n{number}\n{}\n", machine(), begin(number).unwrap_or_default())
}

/// Whether a holder may still be running. Holders on other machines count as running.
fn may_live(holder: &str) -> bool {
    let mut lines = holder.lines();
    let (Some(place), Some(number), Some(begun)) = (lines.next(), lines.next(), lines.next()) else {
        // The holder is still writing the file, or the file is empty.
        return true;
    };
    let Ok(number) = number.parse() else { return true };
    place != machine() || begun.is_empty() || begin(number).is_some_and(|now| now == begun)
}

/// Host name, boot id and PID namespace. Outside of Linux all three are empty.
fn machine() -> String {
    let text = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let space = fs::read_link("/proc/self/ns/pid").map(|link| link.display().to_string()).unwrap_or_default();
    let name = text("/proc/sys/kernel/hostname");
    let boot = text("/proc/sys/kernel/random/boot_id");
    format!("{name} {boot} {space}")
}

/// Start time of a process of this machine, in clock ticks since boot.
fn begin(number: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The process name in parentheses may contain any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19).map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Lustre answers where it is mounted without `flock` (ENOSYS), and NFS without its lock service (ENOLCK).
    const REFUSALS: [i32; 2] = [38, NO_LOCKS];

    fn take(path: &Path, refusal: i32) -> Result<FileLock, LockError> {
        FileLock::take_by(path, |_| Err(TryLockError::Error(io::Error::from_raw_os_error(refusal))))
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn where_there_are_no_locks_a_file_stands_for_one() {
        for refusal in REFUSALS {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(".lock");
            let lock = take(&path, refusal).unwrap();
            assert!(lock.is_stand_in());
            for held in [take(&path, refusal).map(drop), check_lock(&path)] {
                match held {
                    Err(LockError::Held(Some(file))) => assert_eq!(file, stand_in(&path)),
                    other => panic!("{other:?}"),
                }
            }
            drop(lock);
            assert!(check_lock(&path).is_ok() && !stand_in(&path).exists());
            assert!(take(&path, refusal).is_ok());
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_holder_that_was_killed_is_followed_and_one_of_another_machine_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".lock");
        let killed = format!("{}\n{}\n1\n", machine(), std::process::id());
        fs::write(stand_in(&path), killed).unwrap();
        assert!(check_lock(&path).is_ok(), "this number has another process by now");
        drop(take(&path, REFUSALS[0]).unwrap());
        for other in [own_name().replacen(' ', "-elsewhere ", 1), String::new()] {
            fs::write(stand_in(&path), other).unwrap();
            assert!(matches!(take(&path, REFUSALS[0]), Err(LockError::Held(Some(_)))));
        }
    }

    #[test]
    fn other_refusals_are_errors_and_a_held_lock_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".lock");
        assert!(matches!(take(&path, 5), Err(LockError::Io(_))));
        let lock = FileLock::take(&path).unwrap();
        assert!(!lock.is_stand_in() && has_locks(dir.path()));
        for held in [FileLock::take(&path).map(drop), check_lock(&path)] {
            assert!(matches!(held, Err(LockError::Held(None))));
        }
        drop(lock);
        assert!(check_lock(&path).is_ok());
        let mut waited = false;
        drop(FileLock::wait(&path, || waited = true).unwrap());
        assert!(!waited);
    }
}
