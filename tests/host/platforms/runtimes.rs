//! Tests language runtimes whose programs use stacks other than the system's thread stacks, or code without unwind
//! information: Python's greenlets, Boost's fibers, Go, Java.
//!
//! The tests check three things: no launch is lost, every stack equals the one that libgcc's unwinder finds, and each
//! stack reaches as far towards the root as the runtime permits.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Done, Run, Way, compile, cuda, installed, root, scratch};

/// Compiles the library through which these programs launch kernels.
fn launcher() -> PathBuf {
    compile("tests/runtimes/launch.c", &["-O2", "-shared", "-fPIC"])
}

/// Runs a program that must make `launches` launches; gpuflame unwinds every stack a second time to verify it.
fn run(program: &Path, args: &[&str], launches: u64) -> Done {
    let run = Run::new(program, Way::Injected).args(args.iter().copied());
    let done = run.env("GPUFLAME_VERIFY", "1").ok();
    assert_eq!(done.truth().count("count"), launches);
    for what in ["launches", "activities"] {
        let (total, parts) = done.sum(what);
        assert_eq!((total, parts["matched"]), (launches, launches), "{}", done.stderr);
    }
    let unlike = "0 differ from a walk of every frame, 0 differ from libgcc's walk";
    // The call that waits for the GPU at the end of the program adds one more stack.
    let taken = launches + 1;
    assert_eq!(done.ledger("verified: "), [format!("{taken} stacks captured again, {unlike}")]);
    let stacks = done.folded();
    assert_eq!(stacks.iter().map(|(_, nanos)| nanos).sum::<u64>(), launches * 100);
    for (frames, _) in stacks {
        let [.., function, call, kernel] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!([function, call, kernel], ["launch_step", "cudaLaunchKernel", "[GPU_Kernel]step_d100"]);
    }
    done
}

/// Returns the number of distinct stacks that the line `lost:` of the ledger counts under `what`.
fn marked(done: &Done, what: &str) -> u64 {
    let line = done.ledger("lost: ")[0];
    let count = line.split(", ").find_map(|part| part.strip_prefix(what)?.strip_prefix(' '));
    count.unwrap_or_else(|| panic!("no {what} in {line}")).parse().unwrap()
}

/// Greenlets share the thread's own stack. When a greenlet is switched out, its part of the stack is copied to another
/// place in memory. The frames of the code that switched to a greenlet are below the greenlet's own frames, so stacks
/// reach `main`.
#[test]
fn greenlet_stacks_reach_the_bottom_of_the_thread() {
    let Some(python) = installed("greenlet", None) else { return };
    let program = root().join("tests/runtimes/greenlets.py");
    let library = launcher();
    let args = [program.to_str().unwrap(), library.to_str().unwrap(), "200", "20"];
    let done = run(&python, &args, 4000);
    assert_eq!((marked(&done, "stacks_guessed"), marked(&done, "stacks_cut")), (0, 0));
    for (frames, _) in done.folded() {
        assert!(frames.iter().any(|frame| frame.contains("g_switch")), "{frames:?}");
    }
}

/// Code that Numba generates has no frame pointer, and its unwind information is registered only with libgcc. Therefore
/// a native stack ends in this code, and is marked as truncated. The Python functions that call the generated code are
/// shown nevertheless.
#[test]
#[ignore = "installs Numba, 80 MB; .ci/long runs it"]
fn numba_launches_appear_under_the_python_functions_that_call_them() {
    let Some(python) = installed("numba", None) else { return };
    let program = root().join("tests/runtimes/numba_code.py");
    let run = Run::new(&python, Way::Injected).arg(program).arg(launcher()).arg("400");
    let done = run.env("GPUFLAME_VERIFY", "1").ok();
    assert_eq!(done.truth().count("count"), 800);
    for what in ["launches", "activities"] {
        let (total, parts) = done.sum(what);
        assert_eq!((total, parts["matched"]), (800, 800), "{}", done.stderr);
    }
    assert!(
        done.ledger("verified: ")[0].contains(" 0 differ from a walk of every frame, "),
        "{}",
        done.stderr
    );
    let stacks = done.folded();
    assert_eq!(stacks.iter().map(|(_, nanos)| nanos).sum::<u64>(), 800 * 100);
    let (mut is_main, mut is_cut) = (0, 0);
    for (frames, nanos) in &stacks {
        let [.., function, call, kernel] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!([function, call, kernel], ["launch_step", "cudaLaunchKernel", "[GPU_Kernel]step_d100"]);
        is_main += nanos * u64::from(frames.iter().any(|frame| frame.starts_with("main (numba_code.py:")));
        is_cut += u64::from(frames[0] == "[stack cut short]");
    }
    assert_eq!((is_main, is_cut), (800 * 100, stacks.len() as u64), "{stacks:?}");
}

/// gpuflame cannot read the Python functions of PyPy. Therefore gpuflame shows no Python functions, and prints one line
/// that says so. The native frames of these stacks are unaffected.
#[test]
fn pypy_launches_have_only_native_frames_and_one_line_reports_it() {
    let Some(python) = installed("pypy", None) else { return };
    let program = root().join("tests/runtimes/launches.py");
    let done = run(&python, &[program.to_str().unwrap(), launcher().to_str().unwrap(), "5000"], 5000);
    let line = "gpuflame: python frames off: PyPy is not supported; only CPython's frames can be read\n";
    assert_eq!(done.stderr.matches(line).count(), 1, "{}", done.stderr);
    assert_eq!(done.stderr.matches("python frames off").count(), 1, "{}", done.stderr);
}

/// The stack of a Boost fiber begins in hand-written code without unwind information. Stacks are truncated at this
/// code.
#[test]
fn boost_fiber_stacks_are_truncated_where_the_fiber_was_created() {
    if installed("boost", None).is_none() {
        return;
    }
    let library = launcher();
    let flags = ["-O2", "-Wl,--no-as-needed", library.to_str().unwrap(), "-lboost_context"];
    let program = compile("tests/runtimes/fibers.cpp", &flags);
    let done = run(&program, &["500", "40"], 20_000);
    assert_eq!((marked(&done, "stacks_guessed"), marked(&done, "stacks_cut")), (0, 20));
    for (frames, _) in done.folded() {
        assert_eq!(frames[..2], ["[stack cut short]", "make_fcontext"]);
        let depth = frames.iter().filter(|frame| *frame == "dig").count();
        assert!((1..=20).contains(&depth), "{frames:?}");
    }
}

/// Go runs C functions on the thread's stack. The code that switches from the goroutine's stack is hand-written and has
/// no unwind information, so stacks are truncated there.
#[test]
fn go_stacks_are_truncated_where_they_leave_the_goroutine() {
    let Some(go) = installed("go", None) else { return };
    let folder = scratch("go");
    let program = folder.join("goroutines");
    let libraries = format!("{} -L{} -lcudart -lcuda", launcher().display(), cuda().display());
    let mut build = Command::new(go);
    build.args(["build", "-o"]).arg(&program).arg(root().join("tests/runtimes/goroutines.go"));
    build.env("GO111MODULE", "off").env("CGO_ENABLED", "1").env("CGO_LDFLAGS", libraries);
    build.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
    let output = build.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let done = run(&program, &["500", "40"], 20_000);
    let expected = ["[stack cut short]", "runtime.asmcgocall", "launch_step"];
    for (frames, _) in done.folded() {
        assert_eq!(frames[..3], expected);
    }
}

/// Java's methods have no unwind information. If the virtual machine keeps frame pointers, which is an option, stacks
/// reach the root and are marked as guessed. Without this option, stacks may be truncated at methods that the virtual
/// machine has optimized.
#[test]
#[ignore = "installs a JDK; .ci/long runs it"]
fn java_stacks_reach_the_bottom_of_the_thread_with_frame_pointers() {
    let Some(compiler) = installed("java", None) else { return };
    let folder = scratch("java");
    let source = root().join("tests/runtimes/Threads.java");
    assert!(Command::new(&compiler).arg("-d").arg(&folder).arg(source).status().unwrap().success());
    let (library, java) = (launcher(), compiler.with_file_name("java"));
    let args = ["-cp", folder.to_str().unwrap(), "Threads", library.to_str().unwrap(), "16", "2000"];
    run(&java, &args, 32_000);
    let keeps = ["-XX:+PreserveFramePointer"].iter().chain(&args).copied().collect::<Vec<_>>();
    let done = run(&java, &keeps, 32_000);
    assert_eq!(marked(&done, "stacks_cut"), 0);
    assert!(marked(&done, "stacks_guessed") > 0);
    for (frames, _) in done.folded() {
        assert_eq!(frames[0], "thread_native_entry");
        assert!(frames.contains(&"Java_Threads_launch".to_owned()), "{frames:?}");
    }
}
