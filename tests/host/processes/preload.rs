//! Tests the library that shells preload. The preloaded library sets environment variables that make the CUDA driver
//! and NVTX load gpuflame. When the preloaded library sets these variables, this must not harm threads that read the
//! environment at the same time.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Run, Way, compile, gpuflame, preload, root, scratch, skip};

#[test]
fn a_thread_can_read_the_environment_while_the_library_is_loading() {
    let program = compile("tests/programs/environment.c", &["-O2"]);
    let library = std::fs::canonicalize(gpuflame()).unwrap();
    // With MALLOC_PERTURB_, freed memory is filled with a pattern that is not a valid address.
    let run = Run::new(&program, Way::None).env("MALLOC_PERTURB_", "165");
    let done = run.arg(library).arg("100").done();
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "read on\n"), "{}", done.stderr);
}

/// Creates a folder with the library to preload in shells, and with gpuflame's library next to it.
pub(crate) fn shipped() -> std::path::PathBuf {
    let folder = scratch("shipped");
    fs::copy(preload(), folder.join("libgpuflame-preload.so")).unwrap();
    symlink(gpuflame(), folder.join("libgpuflame.so")).unwrap();
    folder
}

#[test]
fn programs_started_by_a_shell_with_the_preload_library_are_recorded() {
    let program = compile("tests/programs/bound.c", &["-O2", "-pthread"]);
    let folder = shipped();
    let relative = Path::new("beside/libgpuflame-preload.so");
    for list in [folder.join("libgpuflame-preload.so").as_path(), relative] {
        let shell = Run::new(Path::new("/bin/sh"), Way::None).env("LD_PRELOAD", list);
        let (mut shell, at) = shell.env("GPUFLAME_FORMATS", "folded").into_command();
        symlink(&folder, at.join("beside")).unwrap();
        // The shell changes its working directory. The environment variable that the driver reads must still name the
        // library's file.
        shell.args(["-c", "mkdir deep && cd deep && exec \"$0\""]).arg(&program);
        let ran = shell.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{said}");
        let folded = fs::read_to_string(at.join("deep/out.folded")).expect(&said);
        assert!(folded.contains("step_d700 700"), "{folded}");
    }
}

/// Returns the environment variables that a program finds in addition to the variables in `given`.
fn added(given: &[(&str, &str)], preloaded: &Path) -> BTreeSet<String> {
    let mut env = Command::new("env");
    env.env_clear().env("LD_PRELOAD", preloaded).envs(given.iter().copied());
    let printed = String::from_utf8(env.stderr(Stdio::null()).output().unwrap().stdout).unwrap();
    let mut lines: Vec<_> = printed.lines().collect();
    for (name, value) in given {
        let at = lines.iter().position(|line| *line == format!("{name}={value}"));
        lines.swap_remove(at.unwrap_or_else(|| panic!("{name} is gone")));
    }
    lines.retain(|line| !line.starts_with("LD_PRELOAD="));
    let known = format!("{STDERR}{}", stderr_of_null());
    lines.into_iter().map(|line| if line == known { STDERR } else { line }.to_owned()).collect()
}

const STDERR: &str = "_GPUFLAME_STDERR=";

/// Returns the device and inode numbers of `/dev/null`, which is the stderr of the programs.
fn stderr_of_null() -> String {
    let facts = fs::metadata("/dev/null").unwrap();
    format!("{:x}:{:x}", facts.dev(), facts.ino())
}

#[test]
fn the_preload_library_adds_four_variables_and_changes_no_other() {
    let folder = shipped();
    let (preloaded, library) = (folder.join("libgpuflame-preload.so"), folder.join("libgpuflame.so"));
    let library = library.display();
    let driver = format!("CUDA_INJECTION64_PATH={library}");
    let nvtx = format!("NVTX_INJECTION64_PATH={library}");
    let own = format!("_GPUFLAME_PRELOAD={} {library}", env!("CARGO_PKG_VERSION"));
    let all = BTreeSet::from([driver.clone(), nvtx, own.clone(), STDERR.to_owned()]);
    assert_eq!(added(&[("A", "1"), ("B", "")], &preloaded), all);
    // These variables do not fit into the page that the library reserves for variables.
    let names: Vec<_> = (0..2000).map(|number| format!("NAME_{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_str())).collect();
    assert_eq!(added(&many, &preloaded), all);
    // If the user has named an NVTX library, gpuflame does not replace it.
    let without_nvtx = BTreeSet::from([driver, own, STDERR.to_owned()]);
    assert_eq!(added(&[("NVTX_INJECTION64_PATH", "x")], &preloaded), without_nvtx);
    assert!(added(&[("CUDA_INJECTION64_PATH", "none")], &preloaded).is_empty());
    // If an ancestor process has already set the variable, its value describes the ancestor's descriptor 2, not that of
    // this process.
    let mut env = Command::new("env");
    env.env_clear()
        .env("LD_PRELOAD", &preloaded)
        .envs([("CUDA_INJECTION64_PATH", "x"), ("_GPUFLAME_STDERR", "1:2")]);
    let printed = String::from_utf8(env.stderr(Stdio::null()).output().unwrap().stdout).unwrap();
    assert!(printed.contains(&format!("_GPUFLAME_STDERR={}", stderr_of_null())), "{printed}");
    assert!(!printed.contains("=1:2"), "{printed}");
}

#[test]
fn a_version_mismatch_between_preload_and_main_library_is_refused_in_one_line() {
    let folder = scratch("versions");
    symlink(gpuflame(), folder.join("libgpuflame.so")).unwrap();
    let other = folder.join("libgpuflame-preload.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-Os", "-fPIC", "-ffreestanding", "-shared", "-nostdlib", "-DVERSION=\"7.6.5\"", "-o"])
        .arg(&other);
    assert!(gcc.arg(root().join("capi/preload.c")).status().unwrap().success());
    let program = compile("tests/programs/odd.c", &["-O2"]);
    let done = Run::new(&program, Way::None).env("LD_PRELOAD", &other).arg("plain").done();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    let own = env!("CARGO_PKG_VERSION");
    let lines: Vec<_> = done.stderr.lines().collect();
    assert!(
        lines.len() == 1
            && lines[0].contains("7.6.5")
            && lines[0].contains(own)
            && lines[0].contains("install both"),
        "{lines:?}"
    );
    // If the user chose a gpuflame library, another gpuflame library that is preloaded must not start.
    let chosen = Run::new(&program, Way::Injected).env("LD_PRELOAD", &other).arg("plain").done();
    assert_eq!(chosen.sum("launches").0, 110, "{}", chosen.stderr);
}

/// If the preloaded library disturbed static programs and musl programs, a user of the library would see messages from
/// every such program that a shell starts.
#[test]
fn static_and_musl_programs_start_normally_under_the_preload_library() {
    let folder = shipped();
    let preloaded = folder.join("libgpuflame-preload.so");
    let source = folder.join("says.c");
    fs::write(&source, "#include <stdio.h>\nint main(void) { return puts(\"as ever\") < 0; }\n").unwrap();
    for (compiler, flags) in
        [("gcc", &[][..]), ("gcc", &["-static"]), ("musl-gcc", &[]), ("musl-gcc", &["-static"])]
    {
        let program = folder.join(format!("{compiler}{}", flags.concat()));
        let compiled = Command::new(compiler).args(flags).arg(&source).arg("-o").arg(&program).output();
        if !compiled.is_ok_and(|compiled| compiled.status.success()) {
            skip(&format!(
                "{compiler} {flags:?} compiles no programs here; apt-get install musl-tools libc6-dev"
            ));
            continue;
        }
        let ran = Command::new(&program).env("LD_PRELOAD", &preloaded).output().unwrap();
        let [printed, said] = [ran.stdout, ran.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(ran.status.success(), "{compiler} {flags:?}: {said}");
        assert_eq!((printed.as_str(), said.as_str()), ("as ever\n", ""), "{compiler} {flags:?}");
    }
}
