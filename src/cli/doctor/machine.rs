//! Checks the machine itself: the permission to take CPU samples, the Python on the PATH, and the free disk space.

use std::path::Path;
use std::process::{Command, Stdio};

use super::CheckResult;
use gpuflame_os::free_space::free_bytes;

/// Oldest version of CPython whose functions can be shown.
const MIN_PYTHON: (u32, u32) = (3, 9);
const MAX_PYTHON: (u32, u32) = (3, 15);
/// Minimum free disk space in bytes for a run with `--rows`. One GiB of rows is enough for about 60 million launches.
const MIN_FREE_BYTES: u64 = 1 << 30;
/// Capabilities that permit CPU samples: CAP_PERFMON and CAP_SYS_ADMIN.
const SAMPLING_CAPABILITIES: u64 = 1 << 38 | 1 << 21;
/// Python program that prints the implementation, its version, and 1 if Python was built without the GIL.
const ASK_PYTHON: &str = "import sys, sysconfig; print(sys.implementation.name, *sys.version_info[:2], \
                          sysconfig.get_config_var('Py_GIL_DISABLED') or 0)";

/// Checks which kinds of CPU samples the Linux kernel permits.
pub(super) fn check_samples() -> CheckResult {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    samples_result(level.trim().parse().ok(), effective & SAMPLING_CAPABILITIES != 0)
}

fn samples_result(level: Option<i32>, has_capability: bool) -> CheckResult {
    let remedy = |level: u32| {
        format!(
            "only --cpu-samples and --off-cpu need it: sysctl kernel.perf_event_paranoid={level}, or CAP_PERFMON in a \
             container"
        )
    };
    match level {
        _ if has_capability => CheckResult::ok(
            "samples",
            "CAP_PERFMON permits CPU samples and waits, unless a container's filter forbids them",
        ),
        Some(level) if level <= 1 => CheckResult::ok(
            "samples",
            format!(
                "perf_event_paranoid {level} permits CPU samples and waits, unless a container's filter forbids them"
            ),
        ),
        Some(2) => CheckResult::warn(
            "samples",
            "perf_event_paranoid 2: CPU samples have user time only, and waits cannot be recorded",
            remedy(1),
        ),
        Some(level) => CheckResult::warn(
            "samples",
            format!(
                "perf_event_paranoid {level}: CPU samples come from a timer, and waits cannot be recorded"
            ),
            remedy(1),
        ),
        None => CheckResult::warn(
            "samples",
            "this kernel has no perf events: CPU samples come from a timer",
            remedy(1),
        ),
    }
}

/// Checks whether functions of the first `python3` on the PATH can be shown. Returns `None` if the PATH has no
/// `python3`.
pub(super) fn check_python() -> Option<CheckResult> {
    let mut command = Command::new("python3");
    command.args(["-I", "-S", "-c", ASK_PYTHON]).env_remove("LD_PRELOAD");
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    python_result(&String::from_utf8_lossy(&output.stdout))
}

fn python_result(answer: &str) -> Option<CheckResult> {
    let words: Vec<&str> = answer.split_whitespace().collect();
    let [name, major, minor, without_gil] = words[..] else { return None };
    let version = (major.parse().ok()?, minor.parse().ok()?);
    let found = match (name, without_gil) {
        ("cpython", "0") => format!("CPython {major}.{minor}"),
        ("cpython", _) => format!("free-threaded CPython {major}.{minor}"),
        _ => format!("{name} {major}.{minor}"),
    };
    let is_known = name == "cpython" && without_gil == "0" && (MIN_PYTHON..=MAX_PYTHON).contains(&version);
    Some(match is_known {
        true => CheckResult::ok("python", format!("{found} (python3 on the PATH): its functions are shown")),
        false => CheckResult::warn(
            "python",
            format!("{found} (python3 on the PATH): only native functions are shown"),
            format!(
                "use CPython {}.{} to {}.{} with a GIL",
                MIN_PYTHON.0, MIN_PYTHON.1, MAX_PYTHON.0, MAX_PYTHON.1
            ),
        ),
    })
}

/// Checks whether `folder`, which must exist, has enough free space for the output files.
pub(super) fn check_disk(folder: &Path) -> Option<CheckResult> {
    Some(disk_result(folder, free_bytes(folder).ok()?))
}

fn disk_result(folder: &Path, free: u64) -> CheckResult {
    let found = format!("{:.1} GB free in {}", free as f64 / 1e9, folder.display());
    if free >= MIN_FREE_BYTES {
        return CheckResult::ok("disk", found);
    }
    let remedy =
        "write elsewhere (`gpuflame run -o`, GPUFLAME_OUTPUT), or limit the recording (GPUFLAME_MAX_FILE)";
    CheckResult::warn("disk", found, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::CheckState;
    use super::*;

    #[test]
    fn samples_need_a_capability_or_a_level_of_at_most_1() {
        let state = |level, has_capability| samples_result(level, has_capability).state;
        for (level, has_capability) in [(Some(-1), false), (Some(1), false), (Some(4), true), (None, true)] {
            assert_eq!(state(level, has_capability), CheckState::Ok, "{level:?}");
        }
        for level in [Some(2), Some(3), Some(4), None] {
            assert_eq!(state(level, false), CheckState::Warn, "{level:?}");
        }
        assert!(samples_result(Some(2), false).found.contains("user time only"));
    }

    #[test]
    fn pythons_are_known_from_3_9_to_3_15_with_a_gil() {
        let state = |answer: &str| python_result(answer).map(|result| result.state);
        for answer in ["cpython 3 9 0\n", "cpython 3 15 0"] {
            assert_eq!(state(answer), Some(CheckState::Ok), "{answer}");
        }
        for answer in ["cpython 3 8 0", "cpython 3 16 0", "cpython 3 13 1", "pypy 3 10 0", "cpython 2 10 0"] {
            assert_eq!(state(answer), Some(CheckState::Warn), "{answer}");
        }
        assert_eq!(state("Traceback"), None);
    }

    #[test]
    fn less_than_a_gibibyte_of_free_space_is_a_warning() {
        let state = |free| disk_result(Path::new("/data"), free).state;
        assert_eq!((state(1 << 30), state((1 << 30) - 1)), (CheckState::Ok, CheckState::Warn));
        assert_eq!(disk_result(Path::new("/data"), 2_500_000_000).found, "2.5 GB free in /data");
    }
}
