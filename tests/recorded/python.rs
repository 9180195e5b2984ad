//! Python frames in stacks, compared with the frames that `sys._getframe` returns at each launch. The tests use every
//! Python of this machine:
//! - `python3`;
//! - the Pythons of pyenv, which have a shared library;
//! - the Pythons of `tests/python/interpreters`, including debug builds, which have no shared library.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::pythons::{debian_pythons, pythons};
use crate::support::{Done, Run, Way, compile, installed, root, skip};

/// Versions of Python whose frames gpuflame can read.
const KNOWN: std::ops::RangeInclusive<(u32, u32)> = (3, 9)..=(3, 15);

/// Returns the Python interpreters of this machine whose frames gpuflame can read.
pub(crate) fn known() -> Vec<((u32, u32), PathBuf)> {
    let all = pythons("ctypes").into_iter().chain(debian_pythons());
    let found: Vec<_> = all.filter(|(version, _)| KNOWN.contains(version)).collect();
    assert!(!found.is_empty(), "the tests need a Python 3.9 to 3.15");
    found
}

fn program(python: &Path, path: &str) -> Run {
    Run::new(python, Way::Injected).arg(root().join(path))
}

/// Returns the Python frames in a stack, in the form `function (file:line)`.
pub(crate) fn python_frames(frames: &[String]) -> Vec<&str> {
    let is_python = |frame: &&String| {
        let place = frame.strip_suffix(')').and_then(|rest| rest.rsplit_once(':'));
        place.is_some_and(|(_, line)| line.bytes().all(|byte| byte.is_ascii_digit()))
    };
    frames.iter().filter(is_python).map(String::as_str).collect()
}

/// Python frames that the program printed when it launched a kernel, keyed by the kernel's name.
type Said = BTreeMap<String, Vec<String>>;

fn said(done: &Done) -> Said {
    said_in(done, "frames.txt")
}

fn said_in(done: &Done, file: &str) -> Said {
    let line = |line: &str| {
        let (kernel, frames) = line.split_once('\t').unwrap();
        (format!("[GPU_Kernel]{kernel}"), frames.split(';').map(str::to_owned).collect())
    };
    done.file(file).lines().map(line).collect()
}

/// Asserts that each launch has the Python frames that the program printed for it.
fn assert_stacks_as_said(done: &Done) {
    let said = said(done);
    let stacks = done.folded();
    assert_eq!(stacks.len(), said.len(), "{}", done.stderr);
    for (frames, _) in &stacks {
        let kernel = frames.last().unwrap();
        assert_eq!(python_frames(frames), said[kernel], "{kernel} in {frames:#?}\n{}", done.stderr);
    }
}

/// The names of output files are derived from the script's name, even in the default folder. The set file has the
/// script's name as the program's name.
#[test]
fn files_of_a_python_program_have_the_name_of_its_script() {
    let (_, python) = known().into_iter().next().unwrap();
    let done = program(&python, "tests/programs/frames.py").env("GPUFLAME_OUTPUT", "new/").ok();
    let mut names: Vec<_> =
        done.folder.join("new").read_dir().unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    let names: Vec<_> = names.iter().map(|name| name.to_str().unwrap()).collect();
    let process = names[0].split('.').nth(1).unwrap();
    let ends = ["csv", "folded", "gfr", "idle.folded", "idle.svg", "set.json", "svg"];
    assert_eq!(names, ends.map(|end| format!("frames.{process}.{end}")), "{}", done.stderr);
    let about: Value = serde_json::from_str(&done.file(&format!("new/frames.{process}.set.json"))).unwrap();
    assert_eq!(
        (about["program"].as_str(), about["process"].to_string()),
        (Some("frames"), process.to_owned())
    );
}

/// Asserts that each launch has the Python frames that the program printed for it, and that no Python frame was lost.
fn assert_as_said(done: &Done) {
    assert_stacks_as_said(done);
    let lost = done.ledger("lost: ")[0];
    assert!(lost.contains(" python_dropped 0, python_unsure 0"), "{lost}");
    assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
}

#[test]
fn each_launch_appears_under_the_frames_that_python_reports() {
    for ((_, minor), python) in known() {
        let done = program(&python, "tests/programs/frames.py").env("GPUFLAME_PYTHON", "lines").ok();
        assert!(said(&done).len() > 1500, "3.{minor} has launched");
        assert_as_said(&done);
    }
}

/// With each Python version, checks launches from functions that the program repeatedly creates and frees.
fn assert_functions_come_and_go(launches: &str, seed: &str) {
    for (_, python) in known() {
        let run = program(&python, "tests/programs/redefined.py").args([launches, seed]);
        assert_as_said(&run.env("GPUFLAME_PYTHON", "lines").ok());
    }
}

#[test]
fn short_lived_functions_at_one_address_have_their_own_names_and_lines() {
    assert_functions_come_and_go("2000", "1");
}

#[test]
#[ignore = "100,000 launches on each Python; .ci/long runs it"]
fn many_short_lived_functions_have_their_own_names_and_lines() {
    assert_functions_come_and_go("100000", "7");
}

/// Since Python 3.12, the option `-X perf` makes Python call functions through trampolines without unwind information.
/// Despite the trampolines, stacks contain the Python functions and the frames below the trampolines.
#[test]
fn functions_called_through_perf_trampolines_have_the_same_frames() {
    for (_, python) in known().into_iter().filter(|(version, _)| *version >= (3, 12)) {
        let run = Run::new(&python, Way::Injected).args(["-X", "perf"]);
        let run = run.arg(root().join("tests/programs/frames.py")).env("GPUFLAME_PYTHON", "lines");
        // With perf trampolines, a debug build of Python needs more native stack per call than Python's own limit
        // allows.
        let is_debug = python.to_str().is_some_and(|name| name.ends_with('d'));
        let done = run.args(is_debug.then_some("[!d]*")).ok();
        assert_as_said(&done);
        assert!(done.ledger("lost: ")[0].contains(" stacks_cut 0, "), "{}", done.stderr);
    }
}

/// gpuflame shows perf trampolines, under the names that Python gives them, only if the user hides Python functions. No
/// output contains both trampolines and Python functions.
#[test]
fn perf_trampolines_are_shown_only_if_python_functions_are_hidden() {
    let flags = |minor| if minor >= 13 { &["perf", "perf_jit"][..] } else { &["perf"] };
    for ((_, minor), python) in known().into_iter().filter(|(version, _)| *version >= (3, 12)) {
        for (flag, mode) in flags(minor).iter().flat_map(|flag| [(flag, "off"), (flag, "auto")]) {
            let run = Run::new(&python, Way::Injected).args(["-X", flag]);
            // The program runs without `deep`, whose native stacks exceed the maximum depth.
            let run = run.arg(root().join("tests/programs/frames.py")).arg("[!d]*");
            let run = run.env("GPUFLAME_PYTHON", mode);
            let done = run.ok();
            let said = said(&done);
            for (frames, _) in done.folded() {
                // Python 3.13 calls specialised functions, such as `__init__`, without a trampoline.
                let is_called = |name: &&str| !name.ends_with("__init__");
                let functions = frames.iter().filter_map(|frame| frame.strip_prefix("py::"));
                let functions = functions.map(|name| name.rsplit_once(':').unwrap().0).filter(is_called);
                let said = said[frames.last().unwrap()].iter().map(|it| it.split_once(" (").unwrap().0);
                let said = said.filter(|_| mode == "off").filter(is_called);
                assert!(functions.eq(said), "3.{minor} -X {flag}, {mode}: {frames:#?}");
                assert!(
                    !frames.iter().any(|frame| frame.starts_with("[unknown]")),
                    "3.{minor} {flag}: {frames:#?}"
                );
            }
        }
    }
}

/// A launch in a greenlet is under the greenlet's functions, even if other greenlets ran on the same native stack
/// before. Before Python 3.11, the ledger counts stacks in whose outer part the evaluator was called more often than
/// there are Python functions.
#[test]
fn launches_in_greenlets_appear_under_the_frames_that_python_reports() {
    for ((_, minor), python) in known() {
        let Some(python) = installed("greenlet", Some(&python)) else { continue };
        let run = program(&python, "tests/runtimes/greenlet_frames.py").args(["40", "20"]);
        let done = run.env("GPUFLAME_PYTHON", "lines").ok();
        assert!(said(&done).len() > 5000, "3.{minor} has launched");
        match minor {
            ..11 => assert_stacks_as_said(&done),
            _ => assert_as_said(&done),
        }
    }
}

/// Returns the path of py-spy. If py-spy cannot be installed, prints a line and returns `None`.
pub(crate) fn py_spy() -> Option<String> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let output = Command::new(root().join("tests/python/py-spy")).arg(cache).output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        skip(&format!("py-spy cannot be installed from PyPI here\n{said}"));
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
}

/// py-spy reads the memory of the process from outside, and does not depend on gpuflame. The threads wait at the place
/// from which they have launched a kernel. Therefore py-spy must find the same functions that gpuflame found at the
/// launches.
#[test]
fn py_spy_reports_the_same_functions_and_lines_for_a_running_process() {
    let Some(spy) = py_spy() else { return };
    let library = library();
    for (version, python) in pythons("ctypes").into_iter().filter(|(version, _)| KNOWN.contains(version)) {
        let run = program(&python, "tests/programs/waits.py").arg(&library).env("GPUFLAME_PYTHON", "lines");
        let (mut command, folder) = run.into_command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"waits\n");
        let seen = Command::new(&spy).args(["dump", "--json", "--pid", &child.id().to_string()]).output();
        let seen = seen.unwrap();
        drop(child.stdin.take());
        let done = Done::from_output(child.wait_with_output().unwrap(), folder);
        assert_eq!(done.code, Some(0), "{version:?}: {}", done.stderr);
        assert!(seen.status.success(), "{version:?}: {}", String::from_utf8_lossy(&seen.stderr));
        let threads: Value = serde_json::from_slice(&seen.stdout).unwrap();
        let frame = |frame: &Value| {
            let file = frame["filename"].as_str().unwrap().rsplit('/').next().unwrap();
            format!("{} ({file}:{})", frame["name"].as_str().unwrap(), frame["line"])
        };
        let frames = |thread: &Value| -> Vec<String> {
            thread["frames"].as_array().unwrap().iter().rev().map(frame).collect()
        };
        let mut theirs: Vec<_> = threads.as_array().unwrap().iter().map(frames).collect();
        let ours = |(frames, _): &(Vec<String>, u64)| -> Vec<String> {
            python_frames(frames).into_iter().map(str::to_owned).collect()
        };
        let mut ours: Vec<_> = done.folded().iter().map(ours).collect();
        theirs.sort();
        ours.sort();
        assert_eq!(ours, theirs, "{version:?}: {}", done.stderr);
        assert!(ours.len() == 2 && ours.iter().all(|frames| frames.len() >= 5), "{ours:#?}");
    }
}

/// Since Python 3.13, Python's JIT compiler may compile loops. Debian's Python versions support the JIT compiler if the
/// user requests it.
#[test]
fn launches_from_pythons_jit_appear_under_their_functions() {
    let library = library();
    for (version, python) in debian_pythons().into_iter().filter(|(version, _)| *version >= (3, 14)) {
        let mut asked = Command::new(&python);
        asked.env("PYTHON_JIT", "1").args(["-c", "import sys; sys.exit(not sys._jit.is_enabled())"]);
        if !asked.status().unwrap().success() {
            skip(&format!("this Python has no JIT: {}", python.display()));
            continue;
        }
        let run = program(&python, "tests/programs/jit.py").arg(&library);
        let done = run.env("PYTHON_JIT", "1").env("GPUFLAME_PYTHON", "lines").ok();
        let compiled: u64 = done.stdout.trim().parse().unwrap();
        assert!(compiled > 1000, "{version:?}: {compiled} of 8000 from compiled code");
        let stacks = done.folded();
        assert_eq!(stacks.iter().map(|(_, nanos)| nanos).sum::<u64>(), 8000 * 100);
        for (frames, _) in &stacks {
            let expected = ["<module> (jit.py:20)", "main (jit.py:17)", "loop (jit.py:12)"];
            assert_eq!(python_frames(frames), expected, "{version:?}: {frames:#?}");
        }
        let lost = done.ledger("lost: ")[0];
        assert!(lost.contains(" python_dropped 0, python_unsure 0"), "{lost}");
        assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
    }
}

/// Before Python 3.12, gpuflame finds only the functions of the first interpreter, even while another interpreter runs.
/// Therefore gpuflame shows the functions that called the second interpreter, but not the functions that ran in the
/// second interpreter.
#[test]
fn functions_of_subinterpreters_are_shown_since_3_12() {
    for ((_, minor), python) in known() {
        let run = program(&python, "tests/programs/subinterpreters.py");
        let done = run.env("GPUFLAME_PYTHON", "lines").ok();
        let (outside, inside) = (said(&done), said_in(&done, "inside.txt"));
        let stacks = done.folded();
        assert!(inside.len() > 50 && stacks.len() == outside.len() + inside.len(), "{}", done.stderr);
        for (frames, _) in &stacks {
            let (kernel, found) = (frames.last().unwrap(), python_frames(frames));
            match (outside.get(kernel), inside.get(kernel)) {
                (Some(said), _) => assert_eq!(found, *said, "3.{minor}: {frames:#?}"),
                (None, Some(said)) if minor >= 12 => assert_eq!(found, *said, "3.{minor}: {frames:#?}"),
                (None, _) => {
                    let names: Vec<_> = found.iter().map(|frame| frame.split_once(" (").unwrap().0).collect();
                    assert_eq!(names, ["<module>", "main", "outside"], "3.{minor}: {frames:#?}");
                }
            }
        }
        assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
    }
}

/// A child process that is forked before CUDA starts has its own recording. Child processes that are forked during
/// launches record nothing, and do not corrupt the frames of any thread.
#[test]
fn forked_children_have_their_own_frames() {
    for (_, python) in known() {
        let done = program(&python, "tests/programs/forking.py").env("GPUFLAME_PYTHON", "lines").ok();
        assert!(said(&done).len() > 100, "{}", done.stderr);
        assert_stacks_as_said(&done);
        assert_stacks_as_said(&Done::from_folder(&done.folder.join("child")));
        assert_eq!(done.ledger("launches ").len(), 2, "{}", done.stderr);
        assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
    }
}

/// Runs the program with the address sanitizer's allocator, which delays the reuse of freed memory and checks each
/// free.
fn sanitized(run: Run) -> Done {
    let found = Command::new("gcc").arg("-print-file-name=libasan.so").output().unwrap();
    let sanitizer = String::from_utf8(found.stdout).unwrap();
    assert!(Path::new(sanitizer.trim()).is_absolute(), "gcc comes with its sanitizer");
    let run = run.env("LD_PRELOAD", sanitizer.trim()).env("ASAN_OPTIONS", "detect_leaks=0");
    let done = run.env("PYTHONMALLOC", "malloc").env("GPUFLAME_PYTHON", "lines").ok();
    assert!(!done.stderr.contains("AddressSanitizer"), "{}", done.stderr);
    done
}

#[test]
fn python_frames_are_exact_under_the_address_sanitizer() {
    for (_, python) in known() {
        assert_as_said(&sanitized(program(&python, "tests/programs/frames.py")));
    }
}

#[test]
fn finalizing_an_interpreter_under_the_address_sanitizer_is_safe() {
    let library = library();
    for (_, python) in known() {
        let done = sanitized(program(&python, "tests/programs/finalizing.py").arg(&library));
        assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
        assert!(done.sum("launches").0 >= 200, "{}", done.stderr);
    }
}

/// Runs a program that launches from the functions in `interpreter.c`, which is compiled with these definitions.
fn evaluated(definitions: &[&str]) -> Done {
    evaluates(definitions, None).ok()
}

/// Prepares the same run as `evaluated`, without starting it. With `word`, the second launch is made by a thread whose
/// Python thread state is filled with this word.
fn evaluates(definitions: &[&str], word: Option<&str>) -> Run {
    let flags = ["-O2", "-shared", "-fPIC"].iter().chain(definitions).copied().collect::<Vec<_>>();
    let interpreter = compile("tests/programs/interpreter.c", &flags);
    Run::new(&compile("tests/programs/evaluates.c", &["-O2"]), Way::Injected).args(word).arg(interpreter)
}

/// Definitions with which `interpreter.c` has the memory layouts of Python 3.13, 3.11 and 3.9.
const LAID_OUT: [&[&str]; 3] = [&[], &["-DVERSION=0x030b00f0"], &["-DVERSION=0x030900f0"]];

#[test]
fn an_unknown_interpreter_layout_turns_python_frames_off_with_a_message() {
    let functions: Vec<_> = ["h", "g", "f", "e", "d", "c", "b"]
        .iter()
        .zip([80, 70, 60, 50, 40, 30, 20])
        .map(|(letter, line)| format!("function_{letter} (model.py:{line})"))
        .collect();
    for definitions in LAID_OUT {
        let done = evaluated(definitions);
        let [(frames, _)] = &done.folded()[..] else { panic!("{definitions:?}: {}", done.stderr) };
        assert_eq!(python_frames(frames), functions, "{definitions:?}");
    }
    for (definition, why) in [
        ("-DVERSION=0x030e00f0", "CPython's table of its own layout does not match its version"),
        ("-DVERSION=0x031000f0", "CPython 3.16 is not supported (unknown layout)"),
        ("-DTHREADS=1", "CPython without the GIL is not supported (unknown layout)"),
    ] {
        let done = evaluated(&[definition]);
        assert_eq!(done.sum("launches").1["matched"], 3, "{}", done.stderr);
        assert!(done.stderr.contains(&format!("gpuflame: python frames off: {why}\n")), "{}", done.stderr);
        assert!(done.folded().iter().all(|(frames, _)| python_frames(frames).is_empty()), "{definition}");
    }
}

/// The dynamic loader lists a library before it has relocated it. If gpuflame called a function of the library at that
/// time, the call could jump to any address.
#[test]
fn launches_while_python_is_being_loaded_call_no_function_of_it() {
    let program = compile("tests/programs/half_loaded.c", &["-O2"]);
    for definitions in LAID_OUT {
        let flags =
            ["-O2", "-shared", "-fPIC", "-DSLOW"].iter().chain(definitions).copied().collect::<Vec<_>>();
        let library = compile("tests/programs/interpreter.c", &flags);
        let done = Run::new(&program, Way::Injected).arg(library).ok();
        let stacks = done.folded();
        let of_python =
            stacks.iter().filter(|(frames, _)| !python_frames(frames).is_empty()).collect::<Vec<_>>();
        let [(frames, nanos)] = &of_python[..] else { panic!("{definitions:?}: {}", done.stderr) };
        assert_eq!((python_frames(frames).len(), *nanos), (7, 100), "{definitions:?}");
        // The program made launches during the 0.3 s in which the library was being loaded.
        assert!(stacks.len() > 20, "{definitions:?}: {}", stacks.len());
    }
}

/// In the Python builds of Debian and conda, profile-guided optimization has moved half of the evaluator's code to a
/// separate, cold part.
#[test]
fn calls_from_the_cold_part_of_the_evaluator_are_recognized() {
    let done = evaluated(&["-DVERSION=0x030900f0", "-DCOLD"]);
    let [(frames, nanos)] = &done.folded()[..] else { panic!("{}", done.stderr) };
    assert_eq!(*nanos, 300);
    assert_eq!(python_frames(frames).len(), 7, "{frames:?}");
    assert!(!frames.iter().any(|frame| frame.starts_with("_PyEval")), "{frames:?}");
    assert!(done.ledger("lost: ")[0].contains(" python_dropped 0, python_unsure 0"), "{}", done.stderr);
    assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
}

/// The first stack with Python frames decides whether gpuflame uses Python frames at all. If the Python frames of a
/// later stack do not match that stack's native frames, gpuflame puts these Python frames at the outermost evaluator
/// call.
#[test]
fn frames_outside_every_evaluator_call_are_rejected_or_counted_as_unsure() {
    // None of the 8 Python functions (16 with the memory layout of CPython 3.9) is inside a native frame.
    for (definitions, functions) in LAID_OUT.iter().zip([8, 8, 16]) {
        let elsewhere = |from: &'static str| evaluated(&[definitions, &[from][..]].concat());
        let counts = |done: &Done| {
            let mut counts: Vec<_> =
                done.folded().iter().map(|(frames, nanos)| (python_frames(frames).len(), *nanos)).collect();
            counts.sort();
            counts
        };
        let first = elsewhere("-DELSEWHERE=1");
        assert!(
            first
                .stderr
                .contains("gpuflame: python frames off: the Python frames did not match the native frames\n"),
            "{}",
            first.stderr
        );
        assert_eq!(counts(&first), [(0, 200), (functions, 100)], "{definitions:?}: {}", first.stderr);
        let later = elsewhere("-DELSEWHERE=2");
        assert!(!later.stderr.contains("python frames off"), "{}", later.stderr);
        assert_eq!(counts(&later), [(7, 100), (functions, 200)], "{definitions:?}: {}", later.stderr);
        for done in [first, later] {
            assert_eq!(done.sum("launches").1["matched"], 3, "{}", done.stderr);
            assert!(
                done.ledger("lost: ")[0].contains(" python_dropped 0, python_unsure 1"),
                "{}",
                done.stderr
            );
        }
    }
}

/// A thread that is being created has no Python frames yet. If the Python frame is missing, this is harmless, even if
/// the thread's Python state holds arbitrary values.
#[test]
fn a_partly_initialized_thread_state_is_safe_and_native_frames_are_kept() {
    let garbage = ["1", "0x7001", "0x4141414141414141", "0xdead0000", "0xffffffffffffffff", "own"];
    for (definitions, word) in LAID_OUT.iter().flat_map(|it| garbage.map(|word| (it, word))) {
        let done = evaluates(definitions, Some(word)).ok();
        let context = format!("{definitions:?} {word}: {}", done.stderr);
        assert_eq!(done.sum("launches").1["matched"], 3, "{context}");
        assert!(done.stderr.contains("gpuflame: python frames off: a thread's memory did not"), "{context}");
        assert!(done.ledger("lost: ")[0].contains(" python_dropped 1, python_unsure 0"), "{context}");
    }
    for definitions in LAID_OUT {
        let done = evaluates(definitions, Some("0")).ok();
        let mut counts: Vec<_> = done.folded().iter().map(|it| (python_frames(&it.0).len(), it.1)).collect();
        counts.sort();
        assert_eq!(counts, [(0, 100), (7, 200)], "{definitions:?}: {}", done.stderr);
        assert!(done.ledger("lost: ")[0].contains(" python_dropped 0, python_unsure 0"), "{}", done.stderr);
        assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
    }
}

/// Compiles the library through which Python programs launch kernels.
pub(crate) fn library() -> PathBuf {
    compile("tests/programs/frames.c", &["-O2", "-shared", "-fPIC", "-std=gnu11"])
}

#[test]
fn launches_are_recorded_while_another_thread_holds_the_gil() {
    let library = library();
    for (_, python) in known() {
        let done = program(&python, "tests/programs/held.py").arg(&library).ok();
        let (launches, parts) = done.sum("launches");
        let meanwhile: u64 = done.stdout.trim().parse().unwrap();
        assert!(meanwhile > 100 && launches > meanwhile, "{meanwhile} of {launches} while the lock was held");
        assert_eq!(parts["matched"], launches, "{}", done.stderr);
        for (frames, _) in done.folded() {
            assert!(
                python_frames(&frames).iter().any(|frame| frame.contains("(threading.py:")),
                "{frames:?}"
            );
        }
    }
}

#[test]
fn finalizing_an_interpreter_while_other_threads_launch_is_safe() {
    let library = library();
    for (_, python) in known() {
        for _ in 0..3 {
            let done = program(&python, "tests/programs/finalizing.py").arg(&library).ok();
            assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
            assert!(done.sum("launches").0 >= 200, "{}", done.stderr);
        }
    }
}

/// gpuflame does not follow invalid Python frames, the process continues, and all launches have their native frames.
#[test]
fn invalid_python_frames_turn_python_frames_off_safely() {
    let library = library();
    let wrong = ["0x8", "0x7001", "0xdead0000", "0x8000000000000000", "0xfffffffffffffff8", "bytes", "gone"];
    for (_, python) in known() {
        for (which, wrong) in
            ["thread", "previous", "code"].iter().flat_map(|it| wrong.map(|wrong| (it, wrong)))
        {
            let done = program(&python, "tests/programs/harmed.py").arg(&library).args([*which, wrong]).ok();
            let context = format!("{which} {wrong} on {}\n{}", python.display(), done.stderr);
            assert_eq!(done.sum("launches").1["matched"], 3, "{context}");
            assert!(
                done.stderr.contains("gpuflame: python frames off: a thread's memory did not"),
                "{context}"
            );
            assert!(done.ledger("lost: ")[0].contains(" python_dropped 1, python_unsure 0"), "{context}");
            // gpuflame keeps the Python frames that it read before the first invalid frame.
            let first = done.folded().into_iter().find(|(frames, _)| !python_frames(frames).is_empty());
            assert!(
                first.is_some_and(|(frames, _)| python_frames(&frames)[1].starts_with("main ")),
                "{context}"
            );
        }
        // The Python frame does not point to a function yet, like a frame that is being created.
        let done = program(&python, "tests/programs/harmed.py").arg(&library).args(["code", "0x0"]).ok();
        assert_eq!(done.sum("launches").1["matched"], 3, "{}", done.stderr);
        assert!(
            done.stderr.contains("gpuflame: python frames off: a thread's memory did not"),
            "{}",
            done.stderr
        );
        // The thread has no Python frame yet.
        let done = program(&python, "tests/programs/harmed.py").arg(&library).args(["thread", "0x0"]).ok();
        assert_eq!(done.sum("launches").1["matched"], 3, "{}", done.stderr);
        assert!(done.ledger("lost: ")[0].contains(" python_dropped 0, python_unsure 0"), "{}", done.stderr);
        assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
        // If the pointers between Python frames form a ring, gpuflame counts the stack as too deep, and everything else
        // is unaffected. There is no other effect.
        let done =
            program(&python, "tests/programs/harmed.py").arg(&library).args(["previous", "frame"]).ok();
        assert_eq!(done.sum("launches").1["matched"], 3, "{}", done.stderr);
        assert!(!done.stderr.contains("python frames off"), "{}", done.stderr);
    }
}

/// Python frames that are hidden in flame graphs are still in the recording. If frames are hidden, no time moves: under
/// each remaining frame, each kernel has the same time as in a flame graph with all frames.
#[test]
fn hiding_frames_does_not_change_the_time_of_a_kernel() {
    use crate::support::command::gpuflame;

    let python = known().pop().unwrap().1;
    let run = program(&python, "tests/programs/frames.py").arg("c*").env("GPUFLAME_FORMATS", "folded,gfr");
    let done = run.ok();
    let drawn = |name: &str, flags: &[&str]| {
        let args = ["flamegraph", "out.gfr", "--format", "folded", "-o", name]
            .into_iter()
            .chain(flags.iter().copied());
        gpuflame(&done.folder, args).ok();
        done.folded_file(name)
            .into_iter()
            .map(|(frames, nanos)| (frames.last().unwrap().clone(), (frames, nanos)))
    };
    let shown: BTreeMap<_, _> = drawn("shown.folded", &[]).collect();
    let all: BTreeMap<_, _> = drawn("all.folded", &["--all-frames"]).collect();
    let only: BTreeMap<_, _> = drawn("only.folded", &["--python", "only"]).collect();
    // With line numbers, a function has two frames if it is called from two lines.
    let lines: BTreeMap<_, _> = drawn("lines.folded", &["--python", "lines"]).collect();
    assert!(shown.keys().eq(lines.keys()) && shown != lines);
    assert!(shown.len() > 20 && shown.keys().eq(all.keys()) && shown.keys().eq(only.keys()));
    for (kernel, (frames, nanos)) in &shown {
        let ((all, all_nanos), (only, only_nanos)) = (&all[kernel], &only[kernel]);
        assert_eq!((nanos, nanos), (all_nanos, only_nanos), "{kernel}");
        let mut rest = all.iter();
        assert!(frames.iter().all(|frame| rest.any(|other| other == frame)), "{frames:#?}\n{all:#?}");
        assert!(all.len() > frames.len() + 5, "{all:#?}");
        let interpreter = |frame: &&String| frame.starts_with("_Py") || frame.contains("libpython");
        assert_eq!(frames.iter().find(interpreter), None, "{frames:#?}");
        assert_eq!(python_frames(frames), python_frames(all));
        let but_native = [&python_frames(frames)[..], &[only[only.len() - 2].as_str(), kernel]].concat();
        assert_eq!(*only, but_native);
    }
}

/// Stacks of CPU samples contain Python's functions and no perf trampolines. If the user turns Python frames off, the
/// stacks contain the trampolines instead.
#[test]
fn cpu_samples_name_python_functions_called_through_perf_trampolines() {
    let known = known().into_iter().filter(|(version, _)| *version >= (3, 12));
    for ((_, python), mode) in known.flat_map(|python| [(python.clone(), "off"), (python, "auto")]) {
        let run = Run::new(&python, Way::Injected).args(["-X", "perf"]);
        let run = run.arg(root().join("tests/programs/slow.py")).env("GPUFLAME_CPU_SAMPLES", "499");
        let done = run.env("GPUFLAME_OFF_CPU", "1").env("GPUFLAME_PYTHON", mode).ok();
        if !done.ledger("GPUFLAME_OFF_CPU: ").is_empty() {
            return skip(&format!("the kernel refuses samples of waits: {}", done.stderr));
        }
        for (file, function) in [("out.cpu.folded", "spins"), ("out.off-cpu.folded", "sleeps")] {
            let all = done.folded_file(file);
            let (heaviest, _) = all.iter().max_by_key(|(_, nanos)| *nanos).unwrap();
            let named = |name: &str| match mode {
                "off" => format!("py::{name}:{}", root().join("tests/programs/slow.py").display()),
                _ => name.to_owned(),
            };
            let expected = [named("<module>"), named("main"), named(function)];
            // If an interpreter is started through its own dynamic loader, gpuflame cannot name some native frames of
            // the loader.
            let of_loader = |frame: &&String| !frame.starts_with("ld-linux-x86-64.so.2+0x");
            let shown = heaviest.iter().filter(of_loader).take(3);
            // Python functions are shown with their file and line.
            let shown: Vec<&str> = shown.map(|frame| frame.split(" (").next().unwrap()).collect();
            assert_eq!(shown, expected, "{heaviest:?}\n{}", done.stderr);
        }
    }
}
