//! Determines the limit on gpuflame's own memory. The limit is the user's setting, or by default a share of the memory
//! that this process may use.

use std::fs;
use std::path::{Path, PathBuf};

const MIB: usize = 1 << 20;
/// Upper bound in bytes of the default memory limit.
const DEFAULT_LIMIT_BYTES: usize = 256 * MIB;
/// Minimum memory limit in bytes: the memory that gpuflame needs in a program with few stacks and few launching
/// threads, plus a margin.
const MIN_LIMIT_BYTES: usize = 24 * MIB;
/// The default memory limit is at most the control group's memory limit divided by this number.
const CGROUP_DIVISOR: u64 = 10;

/// Returns the limit on gpuflame's memory in this process, in bytes. `asked` is the user's setting.
pub fn limit_bytes(asked: Option<usize>) -> usize {
    choose_limit(asked, || {
        let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        cgroup_limit(&group, |path| fs::read_to_string(path).ok())
    })
}

/// Returns freed memory to the kernel, because the C library keeps most freed memory in pieces that are too small for
/// large tables. The `gpuflame` command calls this function after it has read a trace. The shared library does not need
/// this function, because it has its own heap.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns `asked` if it is set, but at least 24 MiB. If `asked` is not set, returns 256 MiB or a tenth of the control
/// group's limit, whichever is smaller, but at least 24 MiB.
fn choose_limit(asked: Option<usize>, limit: impl FnOnce() -> Option<u64>) -> usize {
    let unasked = || {
        let part = limit().map_or(u64::MAX, |limit| limit / CGROUP_DIVISOR);
        DEFAULT_LIMIT_BYTES.min(usize::try_from(part).unwrap_or(usize::MAX))
    };
    asked.unwrap_or_else(unasked).max(MIN_LIMIT_BYTES)
}

/// Returns the minimum of the memory limits of a control group and its ancestors. `groups` is the text of
/// `/proc/self/cgroup`.
fn cgroup_limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let files = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        Some((PathBuf::from(root), path.trim_start_matches('/').to_owned(), file))
    });
    let limits = files.flat_map(|(root, path, file)| {
        // In a container, `path` is often the control group's path outside the container. Inside the container, only
        // the root group exists.
        let around = Path::new(&path).ancestors().map(|group| root.join(group).join(file));
        around.filter_map(|file| read(&file)?.trim().parse::<u64>().ok()).collect::<Vec<_>>()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroup_limit_of(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        cgroup_limit(groups, |path| {
            files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_lowest_limit_of_a_cgroup_and_its_parents_applies() {
        let groups = "0::/user.slice/job\n";
        let outer = ("/sys/fs/cgroup/user.slice/memory.max", "1000\n");
        let inner = ("/sys/fs/cgroup/user.slice/job/memory.max", "3000\n");
        assert_eq!(cgroup_limit_of(groups, &[outer, inner]), Some(1000));
        assert_eq!(
            cgroup_limit_of(groups, &[("/sys/fs/cgroup/user.slice/memory.max", "max\n"), inner]),
            Some(3000)
        );
        assert_eq!(cgroup_limit_of(groups, &[]), None);
    }

    #[test]
    fn in_a_container_the_limit_of_the_cgroup_root_applies() {
        assert_eq!(
            cgroup_limit_of("0::/\n", &[("/sys/fs/cgroup/memory.max", "100663296\n")]),
            Some(96 << 20)
        );
        let old = "5:cpu:/x\n4:memory,misc:/docker/abc\n";
        let root = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n");
        assert_eq!(cgroup_limit_of(old, &[root]), Some(500));
    }

    /// Returns the memory limit in MiB for a user setting in MiB and a limit of the control group in MiB.
    fn mib(asked: Option<usize>, limit: Option<u64>) -> usize {
        choose_limit(asked.map(|asked| asked * MIB), || limit.map(|limit| limit * MIB as u64)) / MIB
    }

    #[test]
    fn the_ceiling_is_a_tenth_of_the_cgroup_limit_within_bounds() {
        assert_eq!(mib(None, None), 256);
        let of_groups =
            [(100_000, 256), (2_561, 256), (2_550, 255), (1_000, 100), (240, 24), (96, 24), (0, 24)];
        for (limit, expected) in of_groups {
            assert_eq!(mib(None, Some(limit)), expected, "in a group of {limit} MiB");
        }
        assert_eq!(choose_limit(None, || Some(u64::MAX)), 256 * MIB);
        assert!((MIN_LIMIT_BYTES..=DEFAULT_LIMIT_BYTES).contains(&limit_bytes(None)));
    }

    #[test]
    fn a_requested_ceiling_applies_regardless_of_the_cgroup_but_at_least_24_mib() {
        for limit in [None, Some(96), Some(1_000)] {
            assert_eq!([25, 300, 5].map(|asked| mib(Some(asked), limit)), [25, 300, 24]);
        }
        assert_eq!(limit_bytes(Some(1 << 40)), 1 << 40);
    }
}
