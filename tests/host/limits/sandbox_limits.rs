//! Tests limits that the application or its environment sets. gpuflame respects these limits, and does not make the
//! application exceed them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::command::gpuflame as command;
use crate::support::{Run, Way, compile, cuda, gpuflame, root, scratch, skip};

#[test]
fn a_thread_with_a_pending_cancel_ends_after_its_first_launch_is_recorded() {
    let program = compile("tests/programs/cancelled.c", &["-O2"]);
    for formats in ["folded", "folded,activities,gfr"] {
        let done = Run::new(&program, Way::Injected).arg("50").env("GPUFLAME_FORMATS", formats).ok();
        assert_eq!(done.stdout, "50\n", "{}", done.stderr);
        done.assert_exact();
        assert_eq!(done.sum("launches").0, 50, "{}", done.stderr);
    }
}

/// The first CUDA call sets gpuflame up, so during this call gpuflame's functions are on the calling thread's stack. If
/// the thread is cancelled during this call, its stack must not be unwound before gpuflame's functions have returned.
#[test]
fn a_cancel_pending_during_set_up_takes_effect_after_the_first_call() {
    let program = compile("tests/programs/cancelled.c", &["-O2"]);
    for way in [Way::Injected, Way::Preloaded] {
        let done = Run::new(&program, way).args(["5", "first"]).ok();
        assert_eq!(done.stdout, "5\n", "{}", done.stderr);
        done.assert_exact();
        assert_eq!(done.sum("launches").0, 5, "{}", done.stderr);
    }
}

#[test]
fn a_cancel_pending_during_a_gpuflame_call_takes_effect_after_it() {
    let program = compile("tests/programs/cancelled.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).args(["20", "flush"]).ok();
    assert_eq!(done.stdout, "20\n", "{}", done.stderr);
}

/// gpuflame must not change the `errno` value that the application's last call set. The program sets `errno` to 77.
#[test]
fn errno_is_preserved_by_every_entry_point() {
    let program = compile("tests/programs/errno.c", &["-O2", "-DLINKED"]);
    let run = Run::new(&program, Way::None).env("NVTX_INJECTION64_PATH", gpuflame());
    let done = run.ok();
    let (changed, calls) = done.stdout.trim_end().split_once(" of ").expect(&done.stdout);
    let calls: u32 = calls.split(' ').next().unwrap().parse().unwrap();
    assert!(changed == "0" && calls > 300, "{}{}", done.stdout, done.stderr);
    assert_eq!(done.sum("launches").1["matched"], 112, "{}", done.stderr);
}

/// A write past the file-size limit raises a signal; this signal ends a program that has no handler for it.
#[test]
fn a_file_size_limit_costs_only_the_larger_files() {
    let program = compile("tests/programs/odd.c", &["-O2"]);
    // The shell's `ulimit -f` counts in units of 512 bytes.
    let script = r#"ulimit -f 16 && exec "$0" plain 5000"#;
    let run = Run::new(Path::new("/bin/sh"), Way::Injected).args(["-c", script]).arg(&program);
    let done = run.env("GPUFLAME_FORMATS", "folded,activities,gfr").env("GPUFLAME_CHECKPOINT", "0.05").done();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    let refused = done.ledger("cannot write ");
    assert!(refused.len() == 1 && refused[0].contains("File too large"), "{}", done.stderr);
    assert!(refused[0].contains("activities") && refused[0].contains("gfr"), "{}", done.stderr);
    let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(nanos, done.truth().count("total_ns"));
}

#[test]
fn gpuflame_disable_leaves_the_process_unchanged() {
    let program = compile("tests/programs/odd.c", &["-O2"]);
    for way in [Way::Injected, Way::Preloaded] {
        let done = Run::new(&program, way).arg("plain").env("GPUFLAME_DISABLE", "1").done();
        assert_eq!((done.code, &*done.stderr), (Some(7), ""));
        let mut files: Vec<_> =
            fs::read_dir(&done.folder).unwrap().map(|file| file.unwrap().file_name()).collect();
        files.retain(|name| name != "truth.json");
        assert!(files.is_empty(), "{files:?}");
    }
    // NVTX finds gpuflame through the variable NVTX_INJECTION64_PATH. If gpuflame is turned off, NVTX must not load it
    // either.
    let program = compile("tests/programs/ranges.c", &["-O2"]);
    let run = Run::new(&program, Way::Injected).env("NVTX_INJECTION64_PATH", gpuflame());
    let done = run.env("GPUFLAME_DISABLE", "1").done();
    assert_eq!(done.stderr, "the first push answers -2, not 0\n", "NVTX returns -2 if no tool is loaded");
    let program = compile("tests/programs/odd.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).arg("plain").env("GPUFLAME_DISABLE", "0").done();
    assert_eq!(done.sum("launches").0, 110, "{}", done.stderr);
}

/// A set-user-id program has the rights of its file's owner, whichever user starts the program. If gpuflame read its
/// settings in such a program, any user could make it write files where only the owner may write.
#[test]
fn a_setuid_program_ignores_the_environment() {
    const NOBODY: u32 = 65_534;
    let folder = std::env::temp_dir().join(format!("gpuflame-owned-{}", std::process::id()));
    let outputs = folder.join("outputs");
    fs::create_dir_all(&outputs).unwrap();
    let rights = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let owned = |program: &Path| chown(program, Some(NOBODY), None).map(|()| rights(program, 0o4755));
    // Users other than root cannot read the tests' folders, and an environment variable cannot name libraries for a
    // set-user-id program. Therefore the program and its libraries are in a folder that all users can read.
    rights(&folder, 0o755);
    rights(&outputs, 0o777);
    for library in ["libcuda.so.1", "libcudart.so.13", "libcupti.so.13"] {
        fs::copy(cuda().join(library), folder.join(library)).unwrap();
    }
    fs::copy(gpuflame(), folder.join("libgpuflame.so")).unwrap();
    fs::copy("/usr/bin/id", folder.join("id")).unwrap();
    let found = format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display());
    let program = folder.join("odd");
    fs::copy(compile("tests/programs/odd.c", &["-O2", &found]), &program).unwrap();
    let plain = || {
        let run = Run::new(&program, Way::None).in_folder(&outputs).arg("plain").env("LD_LIBRARY_PATH", "");
        run.env("CUDA_INJECTION64_PATH", folder.join("libgpuflame.so")).env("GPUSIM_TRUTH", "").done()
    };
    let first = plain();
    assert_eq!((first.code, first.sum("launches").0), (Some(7), 110), "{}", first.stderr);
    assert!(names(&outputs).contains(&"out.folded".to_owned()), "{:?}", names(&outputs));
    names(&outputs).iter().for_each(|name| fs::remove_file(outputs.join(name)).unwrap());
    let id = || Command::new(folder.join("id")).output().unwrap().stdout;
    if owned(&folder.join("id")).is_err() || !String::from_utf8_lossy(&id()).contains("euid=") {
        skip("no program can be made to run as another user here");
    } else {
        owned(&program).unwrap();
        let done = plain();
        assert_eq!((done.code, &*done.stderr), (Some(7), ""));
        assert_eq!(names(&outputs), [""; 0]);
    }
    fs::remove_dir_all(folder).unwrap();
}

/// The set-user-id program is linked to gpuflame, so gpuflame starts in this program. The user who starts the program
/// can choose some folders. gpuflame must not search for libraries in these folders.
#[test]
fn a_setuid_program_loads_no_library_from_the_callers_folders() {
    const NOBODY: u32 = 65_534;
    let folder = std::env::temp_dir().join(format!("gpuflame-linked-{}", std::process::id()));
    let packages = folder.join("venv/lib/python3.12/site-packages/nvidia/cu13/lib");
    fs::create_dir_all(&packages).unwrap();
    for library in ["libcuda.so.1", "libcudart.so.13"] {
        fs::copy(cuda().join(library), folder.join(library)).unwrap();
    }
    fs::copy(gpuflame(), folder.join("libgpuflame.so.0")).unwrap();
    fs::copy("/usr/bin/id", folder.join("id")).unwrap();
    let theirs = compile("tests/programs/foreign.c", &["-shared", "-fPIC"]);
    fs::copy(theirs, packages.join("libcupti.so.13")).unwrap();
    let found = format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display());
    let program = folder.join("errno");
    fs::copy(compile("tests/programs/errno.c", &["-O2", "-DLINKED", &found]), &program).unwrap();
    let says = || {
        let run = Run::new(&program, Way::None).env("LD_LIBRARY_PATH", "").env("GPUSIM_TRUTH", "");
        let done = run.env("VIRTUAL_ENV", folder.join("venv")).done();
        done.stdout + &done.stderr
    };
    let foreign = "a foreign library was loaded\n";
    assert!(says().contains(foreign), "without set-user-id the library is found: {}", says());
    let owned = |program: &Path| {
        chown(program, Some(NOBODY), None)?;
        fs::set_permissions(program, fs::Permissions::from_mode(0o4755))
    };
    let id = || Command::new(folder.join("id")).output().unwrap().stdout;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    if owned(&folder.join("id")).is_err() || !String::from_utf8_lossy(&id()).contains("euid=") {
        skip("no program can be made to run as another user here");
    } else {
        owned(&program).unwrap();
        assert!(!says().contains(foreign), "{}", says());
        assert!(says().contains(" changed\n"), "the program runs as usual: {}", says());
    }
    fs::remove_dir_all(folder).unwrap();
}

/// A new thread has the affinity of the thread that creates it. Therefore gpuflame's threads must change their affinity
/// themselves.
#[test]
fn gpuflame_threads_have_the_process_affinity_and_not_the_first_callers() {
    let program = compile("tests/programs/bound.c", &["-O2", "-pthread"]);
    let done = Run::new(&program, Way::Injected).env("GPUFLAME_FORMATS", "folded").ok();
    let mut lines = done.stdout.lines();
    let main = lines.next().unwrap();
    let ours: Vec<_> = lines.collect();
    assert!(ours.len() >= 2, "{}", done.stdout);
    // Only root may lower a thread's nice value. If the user is not root, gpuflame's thread keeps the nice value of the
    // thread that created it.
    let nicer = main.rsplit_once(' ').map(|(binds, _)| format!("{binds} 7")).unwrap();
    // SAFETY: geteuid has no precondition.
    let may_be_as_nice = unsafe { libc::geteuid() } != 0;
    let is_right = |one: &&str| *one == main || (may_be_as_nice && *one == nicer);
    assert!(ours.iter().all(is_right), "{}", done.stdout);
}

/// If gpuflame cannot get more memory, it stops recording and the program continues. The checkpoint contains the
/// recording up to that time.
#[test]
fn an_address_space_limit_costs_the_recording_and_not_the_process() {
    let program = compile("tests/programs/starved.c", &["-O1"]);
    let starved = |kib: u32, arenas: &str, formats: &str| {
        let run = Run::new(&program, Way::Injected).args([&kib.to_string(), "60000"]);
        let run = run.env("GPUFLAME_CHECKPOINT", "0.2").env("MALLOC_ARENA_MAX", arenas);
        let run = run.env("GPUFLAME_FORMATS", formats);
        let (mut command, folder) = run.into_command();
        // The simulation would keep its truth file in memory until the end, so the test does not request a truth file.
        let ran = command.env_remove("GPUSIM_TRUTH").output().unwrap();
        let (said, printed) = (String::from_utf8_lossy(&ran.stderr), String::from_utf8_lossy(&ran.stdout));
        assert_eq!((ran.status.code(), &*printed), (Some(0), "0 failed\n"), "{kib} KiB: {said}");
        (said.into_owned(), folder)
    };
    for kib in [0, 512, 7000] {
        let (said, folder) = starved(kib, "8", "folded,svg");
        let names = names(&folder);
        let is_out = said.contains(NO_MEMORY);
        assert!(!is_out || !names.iter().any(|name| name.ends_with(".part")), "{kib} KiB: {names:?} {said}");
        assert!(is_out || names.iter().any(|name| name == "out.folded"), "{kib} KiB: {names:?} {said}");
    }
    // In the following runs all threads share one heap of the C library, which cannot grow any more.
    for (kib, formats) in
        [(0, "folded,svg"), (64, "folded,activities"), (512, "folded"), (2048, "folded,svg"), (64, "gfr")]
    {
        let (said, folder) = starved(kib, "1", formats);
        assert_eq!(said.matches(NO_MEMORY).count(), 1, "{kib} KiB: {said}");
        let names = names(&folder);
        assert!(!names.iter().any(|name| name.ends_with(".part")), "{kib} KiB: {names:?} {said}");
        if formats != "gfr" {
            command(&folder, ["recover", "out.gfr"]).ok();
        }
        let info = command(&folder, ["info", "out.gfr"]).ok();
        assert!(
            info.stderr.contains("recording stopped for lack of memory, after "),
            "{kib} KiB: {}",
            info.stderr
        );
        let info = info.stdout;
        let launches = info.lines().find_map(|line| line.strip_prefix("launches  ")).unwrap();
        let launches: u64 = launches.trim().replace(',', "").parse().unwrap();
        // The number of launches in the last checkpoint depends on the speed of the machine.
        assert!((1..80_000).contains(&launches), "{kib} KiB: {info}");
    }
}

/// When gpuflame's threads start, the C library has no memory left.
#[test]
fn running_out_of_memory_right_after_cuda_starts_does_not_end_the_process() {
    let program = compile("tests/programs/constructor.c", &["-O2", "-rdynamic"]);
    let library = compile("tests/programs/constructor.c", &["-O2", "-shared", "-fPIC", "-DLIBRARY"]);
    for _ in 0..5 {
        for library in [Some(&library), None] {
            let run =
                library.into_iter().fold(Run::new(&program, Way::Injected), |run, library| run.arg(library));
            // The simulation would collect its truth file in memory, so the test does not request a truth file.
            let done = run.env("GPUSIM_TRUTH", "").done();
            assert_eq!((done.code, done.signal), (Some(7), None), "{library:?}: {}", done.stderr);
        }
    }
}

/// Libraries other than gpuflame may have used up the loader's static reserve for thread-local storage.
#[test]
fn an_exhausted_static_tls_reserve_does_not_prevent_recording() {
    let folder = scratch("late_tls");
    let source = folder.join("block.c");
    let variable = "__thread char block[256] __attribute__((tls_model(\"initial-exec\")));\n";
    fs::write(&source, format!("{variable}char *first(void) {{ return block; }}\n")).unwrap();
    let first = folder.join("0.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC"]).arg(source).arg("-o").arg(&first);
    assert!(gcc.status().unwrap().success());
    for number in 1..100 {
        fs::copy(&first, folder.join(format!("{number}.so"))).unwrap();
    }
    let program = compile("tests/programs/late_tls.c", &["-O2", "-pthread"]);
    let done = Run::new(&program, Way::Injected).arg(&folder).env("GPUFLAME_FORMATS", "folded").ok();
    assert!(done.stdout.contains("static TLS block"), "{}", done.stdout);
    done.assert_exact();
    assert_eq!(done.sum("launches").0, 30, "{}", done.stderr);
}

fn confined(how: &str) -> Run {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("tests/programs/confined.c", &["-O2", "-rdynamic"]));
    Run::new(program, Way::Injected).arg(how)
}

/// Coroutines, and the threads of some language runtimes, have small stacks. The test uses the optimized build of the
/// library, because frame sizes depend on the optimizer.
#[test]
fn a_first_call_uses_at_most_8_kib_of_stack_and_launches_4_kib() {
    let release = gpuflame().ancestors().nth(3).unwrap().join("release/libgpuflame.so");
    if !release.exists() {
        return skip(&format!("there is no {}; run `cargo build --release`", release.display()));
    }
    let depths = |run: Run| -> Vec<i64> {
        let done = run.done();
        assert_eq!(done.code, Some(7), "{}", done.stderr);
        done.stdout.lines().map(|line| line.parse().unwrap()).collect()
    };
    let without = depths(confined("depth").env("CUDA_INJECTION64_PATH", "none"));
    let with = depths(confined("depth").env("CUDA_INJECTION64_PATH", release));
    let more: Vec<_> = with.iter().zip(without).map(|(with, without)| with - without).collect();
    // The test measures how much stack these calls use:
    // - the first call of the process, which sets gpuflame up;
    // - the first call that another thread makes;
    // - later calls with a cached or a new call path;
    // - launches on an alternate stack.
    assert_eq!(more.len(), 26);
    assert!(more[..2].iter().all(|more| (200..=8 << 10).contains(more)), "{more:?}");
    assert!(more[2..20].iter().all(|more| (200..=4 << 10).contains(more)), "{more:?}");
    // At the first launch on an alternate stack, gpuflame learns unwind rules. At that launch, two of gpuflame's frames
    // are on the alternate stack: the function that learns the rules, and the function that calls it and walks a
    // thread's own stack. If the second of these frames were kept off the alternate stack, this would cost 40
    // instructions per launch.
    assert!((200..=4608).contains(&more[20]), "{more:?}");
    assert!(more[21..].iter().all(|more| (200..=4 << 10).contains(more)), "{more:?}");
}

#[test]
fn without_free_descriptors_the_program_exits_normally_and_the_ledger_reports_it() {
    let done = confined("descriptors").env("GPUSIM_TRUTH", "").done();
    assert_eq!(done.code, Some(7), "{}", done.stderr);
    let refused = done.ledger("cannot write ");
    assert!(refused.len() == 1 && refused[0].contains("Too many open files"), "{}", done.stderr);
    assert_eq!(done.sum("launches").0, 20, "{}", done.stderr);
}

#[test]
fn without_available_threads_one_line_is_printed_and_the_program_exits_normally() {
    let done = confined("threads").done();
    let lines: Vec<_> = done.stderr.lines().collect();
    assert!(lines.len() == 1 && lines[0].contains("cannot start a thread"), "{lines:?}");
    assert_eq!((done.code, names(&done.folder)), (Some(7), vec!["truth.json".to_owned()]));
}

/// Each launch is a call to the CUDA runtime with a nested call to the driver.
#[test]
fn launches_on_threads_without_state_are_counted_once() {
    for nested in ["shared", "distinct"] {
        let done = confined("memory").env("GPUSIM_CORR", nested).done();
        assert_eq!((done.code, &*done.stdout), (Some(7), ""), "{}", done.stderr);
        assert_eq!(done.truth().count("count"), 20 + 8 * 101, "{}", done.stderr);
        let (launches, parts) = done.sum("launches");
        assert_eq!((launches, parts["matched"], parts["dropped"]), (828, 28, 800), "{}", done.stderr);
        let (activities, parts) = done.sum("activities");
        assert_eq!(
            (activities, parts["matched"], parts["no_launch_stack"]),
            (828, 28, 800),
            "{}",
            done.stderr
        );
        let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
        assert_eq!(nanos, 828 * 700);
    }
}

/// Returns the system calls that the documentation lists. `of_samples`: whether to add the calls that only sampling
/// needs, which the documentation lists separately.
fn documented_calls(of_samples: bool) -> Vec<String> {
    let text = fs::read_to_string(root().join("docs/inside-the-process.md")).unwrap();
    let table = text.split("\n## ").find(|section| section.starts_with("Sandboxes")).unwrap();
    let is_wanted = |row: &&str| of_samples || !row.contains("GPUFLAME_CPU_SAMPLES");
    let rows = table.lines().filter(|line| line.starts_with("| ")).filter(is_wanted);
    let words = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    words.filter(|word| !word.starts_with("GPUFLAME_")).map(str::to_owned).collect()
}

const ALL_FORMATS: &str = "folded,svg,csv,idle,activities,gfr,chrome,wait,alloc";

/// The sandbox kills the process if it makes a system call that the documentation does not list.
#[test]
fn a_sandbox_that_allows_the_documented_system_calls_loses_nothing() {
    let program = compile("tests/programs/sandboxed.c", &["-O2"]);
    let calls = documented_calls(false);
    let sandboxed = |way, calls: &[String], ends_by: Option<i32>| {
        let run = Run::new(&program, way).args(calls.iter().map(String::as_str));
        let run = run.env("GPUFLAME_CHECKPOINT", "0.2").env("GPUFLAME_FORMATS", ALL_FORMATS);
        match ends_by {
            Some(signal) => run.env("ENDS_BY", signal.to_string()).done(),
            None => run.done(),
        }
    };
    for (way, ends_by) in [
        (Way::None, None),
        (Way::Injected, None),
        (Way::Preloaded, None),
        (Way::Injected, Some(libc::SIGTERM)),
        (Way::Preloaded, Some(libc::SIGINT)),
    ] {
        let done = sandboxed(way, &calls, ends_by);
        if done.code == Some(75) {
            return skip(&format!("no filter of system calls can be set here: {}", done.stdout));
        }
        let end = (done.code, done.signal);
        assert_eq!(end, (ends_by.is_none().then_some(7), ends_by), "{way:?} {} {}", done.stdout, done.stderr);
        if way != Way::None {
            assert_eq!(done.sum("launches").1["matched"], 604, "{}", done.stderr);
            assert_eq!(done.ledger("wrote ").len(), 13, "{}", done.stderr);
            let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
            assert_eq!(nanos, 604 * 700);
        }
    }
    // This run checks the sandbox itself: if one documented call is missing from the sandbox's list, Linux kills the
    // process.
    let fewer: Vec<_> = calls.into_iter().filter(|call| call != "renameat2").collect();
    let done = sandboxed(Way::Injected, &fewer, None);
    assert_eq!(done.signal, Some(libc::SIGSYS), "{}", done.stderr);
}

/// Traces a program with strace. The program installs a seccomp filter after its first launch, because the CUDA runtime
/// has finished its set-up then. In some runs strace makes a system call fail, and gpuflame uses another system call
/// instead.
#[test]
fn no_new_kind_of_system_call_is_made_after_set_up() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace; apt-get install strace");
    }
    const SAMPLES: [(&str, &str); 2] = [("GPUFLAME_CPU_SAMPLES", "499"), ("GPUFLAME_OFF_CPU", "1")];
    let term = libc::SIGTERM.to_string();
    let is_seen = [
        calls_after_set_up(&[], None, &["renameat2"]),
        calls_after_set_up(&[], Some("renameat2:error=EINVAL"), &["linkat"]),
        calls_after_set_up(
            &[("ENDS_BY", &term)],
            Some("renameat2,linkat:error=EPERM"),
            &["rename", "tgkill"],
        ),
        calls_after_set_up(&SAMPLES, Some("perf_event_open:error=EACCES"), &["timer_settime"]),
        calls_after_set_up(&[], Some("poll:error=EPERM"), &["ppoll"]),
    ];
    if is_seen != [true; 5] {
        skip("no program can be traced here");
    }
}

/// Asserts that after set-up the program makes only system calls that it had already made before, and that it makes the
/// `expected` system calls. Returns false if this machine does not allow tracing.
fn calls_after_set_up(settings: &[(&str, &str)], refused: Option<&str>, expected: &[&str]) -> bool {
    let program = compile("tests/programs/sandboxed.c", &["-O2"]);
    let mut run = Run::new(Path::new("strace"), Way::Injected).args(["-f", "-o", "calls"]);
    // With this delay, threads that are created during set-up begin to run only after set-up, as on a busy machine.
    run = run.args(["-e", "inject=set_robust_list:delay_enter=300000"]);
    // If strace makes a system call fail, gpuflame makes other system calls, which are not in the documentation's list
    // for seccomp filters.
    let calls = if refused.is_none() { documented_calls(true) } else { Vec::new() };
    if let Some(refused) = refused {
        run = run.arg("-e").arg(format!("inject={refused}"));
    }
    for (name, value) in settings {
        run = run.env(name, value);
    }
    let run = run.env("GPUFLAME_CHECKPOINT", "0.2").env("GPUFLAME_FORMATS", ALL_FORMATS);
    let done = run.arg(program).args(calls.iter().map(String::as_str)).done();
    assert!(!done.stdout.contains("unknown"), "the program knows every documented call: {}", done.stdout);
    let text = fs::read_to_string(done.folder.join("calls")).unwrap_or_default();
    let ends_by_signal = settings.iter().any(|(name, _)| *name == "ENDS_BY");
    if (done.code == Some(7)) == ends_by_signal || done.sum("launches").0 != 604 {
        eprintln!("{settings:?}: {:?} {}", done.code, done.stderr);
        return false;
    }
    // In strace's output, a system call is a line `PID NAME(...`. If a line of another thread interrupts the system
    // call, a line `PID <... NAME resumed>` continues it.
    let made = |line: &str| {
        let (_, call) = line.split_once(char::is_whitespace)?;
        let (name, _) = call.trim_start().split_once('(')?;
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then(|| name.to_owned())
    };
    let (before, after) = text.split_once("SECCOMP").expect("the program sets a filter");
    let before: BTreeSet<_> = before.lines().filter_map(made).collect();
    let after: BTreeSet<_> = after.lines().filter_map(made).collect();
    // System calls that the program itself makes when it sleeps, when its threads end, and when it exits.
    let own = ["clock_nanosleep", "exit", "exit_group"].map(str::to_owned);
    let late: Vec<_> = after.difference(&before).filter(|name| !own.contains(name)).collect();
    assert!(late.is_empty(), "{settings:?} {refused:?}: {late:?}");
    let documented = documented_calls(true);
    let unknown: Vec<_> = after.iter().filter(|name| !documented.contains(name)).collect();
    assert!(unknown.is_empty(), "{settings:?} {refused:?}: {unknown:?}");
    // The trace includes the exit of the process and the system calls that are made during the exit.
    let is_made = |name: &&str| after.contains(*name);
    assert!(expected.iter().all(is_made) && !after.contains("flock"), "{expected:?}: {after:?}");
    true
}

const NO_MEMORY: &str = "there is no memory left, and recording has ended";

/// The program makes launches, NVTX ranges, marks and queries. While the program runs, the limit on its address space
/// is lowered in steps, down to zero. GPUFLAME_STARVED is the number of runs, each of which starts at another limit. CI
/// uses a small value.
#[test]
fn a_shrinking_address_space_limit_costs_the_recording_and_not_the_process() {
    let numbers: u32 = std::env::var("GPUFLAME_STARVED").map_or(6, |count| count.parse().unwrap());
    let program = compile("tests/programs/starved.c", &["-O1"]);
    for number in 0..numbers {
        let kib = [64, 300, 1100, 3000, 9000, 30_000][number as usize % 6] + 37 * number;
        let arenas = ["1", "8"][number as usize / 6 % 2];
        let output = ["out", "out.%w"][number as usize / 12 % 2];
        let run = Run::new(&program, Way::Injected).args([
            &*kib.to_string(),
            "30000",
            &(1 + number % 7).to_string(),
        ]);
        let run = run
            .env("GPUFLAME_CHECKPOINT", "0.2")
            .env("MALLOC_ARENA_MAX", arenas)
            .env("GPUFLAME_OUTPUT", output);
        let run =
            run.env("GPUFLAME_FORMATS", ["folded,svg", "folded,gfr", "activities,csv"][number as usize % 3]);
        let (mut command, folder) = run.into_command();
        let ran = command.env_remove("GPUSIM_TRUTH").output().unwrap();
        let (said, printed) = (String::from_utf8_lossy(&ran.stderr), String::from_utf8_lossy(&ran.stdout));
        assert_eq!(
            (ran.status.code(), &*printed),
            (Some(0), "0 failed\n"),
            "{number}: {:?} {said}",
            ran.status
        );
        let names = names(&folder);
        let has = |end: &str| names.iter().any(|name| name.ends_with(end));
        assert!(!said.contains(NO_MEMORY) || !has(".part"), "{number}: {names:?} {said}");
        assert!(
            said.contains(NO_MEMORY) && has(".gfr") || has(".folded") || has(".csv"),
            "{number}: {names:?} {said}"
        );
    }
}

/// Returns the names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.to_string_lossy().into_owned()).collect()
}
