//! Skips tests that this machine cannot run. In CI a skip is an error unless this file lists its reason, because CI
//! should run every test.
#![allow(dead_code, unreachable_pub)] // Some test binaries use only a part of this module.

/// Reasons for which CI may skip a test. The check compares only the part of a reason before the first `: `.
pub const ALLOWED_UNDER_CI: &[&str] = &[
    // CI may run as a non-root user, who cannot change the owner of a file.
    "only root can give files to another user",
    // This test needs root, and some containers ignore the set-user-ID bit even for root.
    "no program can be made to run as another user here",
    // This test needs root, and a build folder that other users can reach.
    "no other user can run the test program here",
    // Many containers and distributions forbid user namespaces.
    "no user namespace can be created here",
    // Only a non-root user may skip for this reason, because root must be able to create a control group.
    "only root can make a control group with a memory limit",
    // Only a non-root user may skip for this reason, because root must be able to mount a file system.
    "only root can mount the small disk that the test fills",
    // A non-root user may skip for this reason, and so may a machine whose kernel lacks BTF or uprobes.
    "probes need root, a kernel with BTF, and the uprobe event source",
    // Linux before 5.11 lacks this feature, and so do other kernels that run Linux programs.
    "this kernel cannot return system calls as signals (Linux 5.11 and later can)",
    // The kernel's clock source can be the cause, for example on a virtual machine that offers only `hpet` or
    // `acpi_pm`.
    "this machine's clock can only be read by a system call",
    // Real traces are too large for the repository.
    "there is no folder of real traces (GPUFLAME_TRACES names one)",
    // The check of these further traces takes minutes, so developers run it by hand.
    "GPUFLAME_MORE_TRACES names no folder of further traces",
    // No recording was added to the repository yet.
    "there is no recording from hardware in tests/golden/hw",
    // This test checks the truth kit's behaviour on a machine without a GPU.
    "this machine has a GPU",
    // Debian's newest release changes every day, and its archive does not keep older packages.
    "Debian's Pythons are not available",
    // A Python build may lack the JIT compiler.
    "this Python has no JIT",
    // Not every PyPI package has a build for every Python version.
    "there is no package for this Python",
    // The npm registry may be unreachable.
    "the page's tools are not available",
    // The package archive of the older Debian release may be unreachable.
    "no older C library is available",
    // A machine may lack shells other than bash.
    "a shell is not installed",
    // Small container images do not contain `man`.
    "man is not installed",
    // The packages that this test needs are too large for `.ci/run`; only `.ci/long` installs them.
    "Transformers or Triton is not installed",
];

/// Prints the reason for which the calling test is skipped; the test then returns. Panics in CI unless CI may skip for
/// this reason.
#[track_caller]
pub fn skip(reason: &str) {
    assert!(!is_ci() || is_allowed_under_ci(reason), "a test must not be skipped under CI: {reason}");
    eprintln!("skipped: {}", reason.trim_end());
}

fn is_allowed_under_ci(reason: &str) -> bool {
    let (summary, _) = reason.split_once(": ").unwrap_or((reason, ""));
    ALLOWED_UNDER_CI.contains(&summary)
}

/// Whether the environment variable `CI` is set.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}
