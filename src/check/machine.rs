//! What this machine has to offer. What the system does not tell is not known, and no error.

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;

/// Cores that this process may use.
#[must_use]
pub fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Bytes of memory that can be had without pushing others out.
#[must_use]
pub fn memory() -> Option<u64> {
    std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text))
}

/// Of Linux's table, whose numbers are KiB.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that can be written below a folder, which need not exist yet.
///
/// # Errors
/// Neither it nor a folder above it can be asked.
pub fn disk(folder: &Path) -> io::Result<u64> {
    let here = Path::new(".");
    let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(here);
    let found = rustix::fs::statvfs(existing)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_read_from_the_systems_table() {
        let table = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:    8000000 kB\n";
        assert_eq!(available(table), Some(8_000_000 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        assert_eq!(available("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn the_disk_of_a_folder_to_come_is_that_of_the_folder_above() {
        let dir = tempfile::tempdir().unwrap();
        assert!(disk(&dir.path().join("not/yet/there")).unwrap() > 0);
    }
}
