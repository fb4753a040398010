//! Resources of this machine. A value that the system does not report is unknown, which is not an error.

use std::fs::read_to_string;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;

/// Cores that this process may use.
#[must_use]
pub fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Bytes of memory that are available without swapping: of the machine, or of what this process's control groups
/// (those of a container or a batch job) may take, whichever is less.
#[must_use]
pub fn memory() -> Option<u64> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let groups = read_to_string("/proc/self/cgroup").ok();
    let group = groups.and_then(|groups| left_in_groups(&groups, Path::new("/sys/fs/cgroup")));
    [machine, group].into_iter().flatten().min()
}

/// Parses the available bytes from `/proc/meminfo`, whose numbers are KiB.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The files of a control group that report its memory.
struct CgroupFiles {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with the file cache of the group, which can be reclaimed.
    cached: &'static str,
}

const V1: CgroupFiles = CgroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file",
};
const V2: CgroupFiles = CgroupFiles { limit: "memory.max", used: "memory.current", cached: "inactive_file" };

/// Bytes left in the groups of a process, as `/proc/self/cgroup` lists them, and their parents; `None` without a
/// limit. Version 2 has one hierarchy for all, version 1 one for memory.
fn left_in_groups(groups: &str, mount: &Path) -> Option<u64> {
    let of_group = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (base, files) = match controllers {
            "" => (mount.to_owned(), V2),
            all if all.split(',').any(|name| name == "memory") => (mount.join("memory"), V1),
            _ => return None,
        };
        // A container may see the path of its host. Then its own group is the mount, which is checked too.
        let path = Path::new(path.trim_start_matches('/'));
        path.ancestors().filter_map(|above| left(&base.join(above), &files)).min()
    };
    groups.lines().filter_map(of_group).min()
}

fn left(group: &Path, files: &CgroupFiles) -> Option<u64> {
    let text = |name: &str| read_to_string(group.join(name)).ok();
    // `max` means no limit and does not parse as an integer.
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let limit = number(files.limit)?;
    let used = number(files.used)?;
    let stat = text("memory.stat").unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix(files.cached)?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
}

/// Bytes that can be written below a folder, which need not exist yet.
///
/// # Errors
/// Neither the folder nor any of its parents can be queried.
pub fn disk(folder: &Path) -> io::Result<u64> {
    let here = Path::new(".");
    let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(here);
    let found = rustix::fs::statvfs(existing)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_memory_is_read_from_the_systems_table() {
        let table = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:    8000000 kB\n";
        assert_eq!(available(table), Some(8_000_000 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        assert_eq!(available("MemAvailable: many kB\n"), None);
    }

    fn group(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn a_limit_of_a_group_or_of_one_above_it_is_what_there_is() {
        let mount = tempfile::tempdir().unwrap();
        let stat = "anon 5\ninactive_file 300\nactive_file 7\n";
        let job = mount.path().join("batch/job");
        let above = mount.path().join("batch");
        group(&job, &[("memory.max", "max\n"), ("memory.current", "900\n"), ("memory.stat", stat)]);
        assert_eq!(left_in_groups("0::/batch/job\n", mount.path()), None);
        group(&above, &[("memory.max", "5000\n"), ("memory.current", "1000\n"), ("memory.stat", stat)]);
        assert_eq!(left_in_groups("0::/batch/job\n", mount.path()), Some(5000 - (1000 - 300)));
        group(&job, &[("memory.max", "2000\n")]);
        assert_eq!(left_in_groups("0::/batch/job\n", mount.path()), Some(2000 - (900 - 300)));
        group(&job, &[("memory.max", "100\n")]);
        assert_eq!(left_in_groups("0::/batch/job\n", mount.path()), Some(0), "it is over its limit");
    }

    #[test]
    fn groups_of_version_1_and_those_that_only_the_host_sees_are_read() {
        let mount = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "8000"),
            ("memory.usage_in_bytes", "3000"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n"),
        ];
        group(&mount.path().join("memory"), &files);
        let groups = "9:name=systemd:/\n4:cpu,memory:/docker/0123\n1:cpu:/\n";
        assert_eq!(left_in_groups(groups, mount.path()), Some(6000));
        assert_eq!(left_in_groups("1:cpu:/\n", mount.path()), None);
        assert_eq!(left_in_groups("", mount.path()), None);
    }

    #[test]
    fn the_disk_of_a_folder_to_come_is_that_of_the_folder_above() {
        let dir = tempfile::tempdir().unwrap();
        assert!(disk(&dir.path().join("not/yet/there")).unwrap() > 0);
    }
}
