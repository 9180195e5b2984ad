//! Skips tests that this machine cannot run. CI runs every test: there a skip is an error, unless its reason is listed
//! here.
#![allow(dead_code, unreachable_pub)] // Some test binaries use only a part of this module.

/// Reasons for which CI, too, may skip a test. The text before the first `: ` of a reason is compared.
pub const ALLOWED_UNDER_CI: &[&str] = &[
    // CI may run as an ordinary user, who cannot change the owner of a file.
    "only root can give files to another user",
    // Needs root, and some containers ignore the set-user-ID bit even for root.
    "no program can be made to run as another user here",
    // Needs root, and a build folder that other users can reach.
    "no other user can run the test program here",
    // Many containers and distributions forbid user namespaces.
    "no user namespace can be created here",
    // Allowed for an ordinary user only: root must be able to make a control group.
    "only root can make a control group with a memory limit",
    // Allowed for an ordinary user only: root must be able to mount a file system.
    "only root can mount the small disk that the test fills",
    // Allowed for an ordinary user, or on a kernel built without BTF or uprobes.
    "probes need root, a kernel with BTF, and the uprobe event source",
    // Linux before 5.11, and other kernels that run Linux programs, lack this feature.
    "this kernel cannot return system calls as signals (Linux 5.11 and later can)",
    // The reason is the clock source, for example on virtual machines that offer only `hpet` or `acpi_pm`.
    "this machine's clock can only be read by a system call",
    // The traces are too large for the repository.
    "there is no folder of real traces (GPUFLAME_TRACES names one)",
    // The check of further traces takes minutes and is run by hand.
    "GPUFLAME_MORE_TRACES names no folder of further traces",
    // No recording was added to the repository yet.
    "there is no recording from hardware in tests/golden/hw",
    // The test checks what the kit does without a GPU.
    "this machine has a GPU",
    // Debian's newest release changes every day, and its archive no longer has older packages.
    "Debian's Pythons are not available",
    // Builds of Python may leave out the JIT.
    "this Python has no JIT",
    // Not every package has a build for every Python.
    "there is no package for this Python",
    // The registry of npm's packages may be out of reach.
    "the page's tools are not available",
    // The archive of the older release may be out of reach.
    "no older C library is available",
    // Shells other than bash need not be there.
    "a shell is not installed",
    // Small images of distributions leave `man` out.
    "man is not installed",
    // Too large for `.ci/run`; `.ci/long` installs both.
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
