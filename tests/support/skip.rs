//! Skips tests that this machine cannot run. CI must run every test. So a skip is an error in CI, unless this file
//! lists its reason.
#![allow(dead_code, unreachable_pub)] // Some test binaries use only a part of this module.

/// Reasons for which CI may skip a test. Only the part before the first `: ` is compared.
pub const ALLOWED_UNDER_CI: &[&str] = &[
    // CI may run as an ordinary user, who cannot change the owner of a file.
    "only root can give files to another user",
    // This test needs root, and some containers ignore the set-user-ID bit even for root.
    "no program can be made to run as another user here",
    // This test needs root, and a build folder that other users can reach.
    "no other user can run the test program here",
    // Many containers and distributions forbid user namespaces.
    "no user namespace can be created here",
    // Only ordinary users may skip for this reason: root must be able to make a control group.
    "only root can make a control group with a memory limit",
    // Only ordinary users may skip for this reason: root must be able to mount a file system.
    "only root can mount the small disk that the test fills",
    // Ordinary users may skip for this reason, and kernels built without BTF or uprobes.
    "probes need root, a kernel with BTF, and the uprobe event source",
    // Linux before 5.11, and other kernels that run Linux programs, lack this feature.
    "this kernel cannot return system calls as signals (Linux 5.11 and later can)",
    // The clock source can cause this, for example on virtual machines that offer only `hpet` or `acpi_pm`.
    "this machine's clock can only be read by a system call",
    // The traces are too large for the repository.
    "there is no folder of real traces (GPUFLAME_TRACES names one)",
    // The check of further traces takes minutes and is run by hand.
    "GPUFLAME_MORE_TRACES names no folder of further traces",
    // No recording was added to the repository yet.
    "there is no recording from hardware in tests/golden/hw",
    // The test checks what the kit does without a GPU.
    "this machine has a GPU",
    // Debian's newest release changes every day, and its archive does not keep older packages.
    "Debian's Pythons are not available",
    // Builds of Python may leave out the JIT.
    "this Python has no JIT",
    // Not every package has a build for every Python.
    "there is no package for this Python",
    // The registry of npm packages may be unreachable.
    "the page's tools are not available",
    // The archive of the older release may be unreachable.
    "no older C library is available",
    // Shells other than bash need not be installed.
    "a shell is not installed",
    // Small container images do not contain `man`.
    "man is not installed",
    // These packages are too large for `.ci/run`. `.ci/long` installs both.
    "Transformers or Triton is not installed",
];

/// Prints why the calling test is skipped; the test then returns. Panics under CI unless the reason is allowed there.
#[track_caller]
pub fn skip(reason: &str) {
    assert!(!is_ci() || is_allowed_under_ci(reason), "a test must not be skipped under CI: {reason}");
    eprintln!("skipped: {}", reason.trim_end());
}

fn is_allowed_under_ci(reason: &str) -> bool {
    let (summary, _) = reason.split_once(": ").unwrap_or((reason, ""));
    ALLOWED_UNDER_CI.contains(&summary)
}

/// Whether the variable `CI` is set.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}
