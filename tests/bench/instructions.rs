//! Counts gpuflame's instructions per launch, so that an increase is detected on any machine.
//!
//! Times vary with the machine and its load, whereas callgrind counts the same instructions every time. Each case runs
//! twice, the second time with more launches, and the benchmark uses the difference between the two counts of
//! instructions. If a case exceeds its limit, make it cheaper again, or raise the limit and explain the added work in
//! the commit.
//!
//!     cargo bench --bench instructions
//!     cargo bench --bench instructions -- --time      nanoseconds instead, the fastest of many rounds
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "../support/api_call.rs"]
mod api_call;

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::thread;
use std::time::Instant;

use api_call::launch;
use gpuflame_recorder::capture;
use gpuflame_recorder::control::window;
use gpuflame_unwind::{self as unwind, Skip, Unwinder};

/// A case whose instructions are counted. Unless its name or a comment states otherwise, a case launches repeatedly
/// from the same stack, 64 calls deep.
struct Case {
    name: &'static str,
    run: fn(u32),
    /// Maximum instructions per launch. The limit is 1 to 3 % above the count that was measured for the code that Rust
    /// 1.95 generates.
    limit: u64,
}

const CASES: [Case; 14] = [
    Case { name: "instructions_capture_hot_64", run: captures, limit: 794 },
    // Under valgrind, gpuflame cannot calibrate the time stamp counter, because two clocks are never read at the same
    // time. Therefore every launch reads the time with system calls; callgrind does not count the instructions of these
    // calls inside Linux.
    Case { name: "instructions_callback_hot_64", run: callbacks, limit: 1160 },
    // These cases launch in turn from 8 stacks of 70 frames that share the outer 35 frames. Each launch walks the inner
    // half of its stack. When the stacks are cached, a launch walks no frames.
    Case { name: "instructions_capture_half_70", run: half_captures, limit: 4000 },
    Case { name: "instructions_callback_half_70", run: halves, limit: 1640 },
    // These cases launch from a stack with 15 Python functions from four files. The first case ignores the Python
    // functions, and the remaining cases read them, in the memory layouts of CPython 3.13, 3.11 and 3.9.
    Case { name: "instructions_callback_python_off_70", run: in_python::<0x30d, false>, limit: 1120 },
    Case { name: "instructions_callback_python_15_of_70", run: in_python::<0x30d, true>, limit: 1750 },
    Case { name: "instructions_callback_python_3_11_off_70", run: in_python::<0x30b, false>, limit: 1120 },
    Case { name: "instructions_callback_python_3_11_15_of_70", run: in_python::<0x30b, true>, limit: 2150 },
    Case { name: "instructions_callback_python_3_9_off_70", run: in_python::<0x309, false>, limit: 1120 },
    Case { name: "instructions_callback_python_3_9_15_of_70", run: in_python::<0x309, true>, limit: 2025 },
    // Twelve Python functions stay on the stack. Each launch is made below these functions and, alternately, below
    // three or six further Python functions.
    Case { name: "instructions_callback_python_other_leaf", run: by_turns::<0x30d>, limit: 2370 },
    Case { name: "instructions_callback_python_3_11_other_leaf", run: by_turns::<0x30b>, limit: 2860 },
    Case { name: "instructions_callback_python_3_9_other_leaf", run: by_turns::<0x309>, limit: 2890 },
    // In each of three places in Python code, the case launches three kernels in a row, as one line of Python may do.
    // The three launches from one place differ only in their native frames.
    Case { name: "instructions_callback_python_in_rows", run: in_rows::<0x30d>, limit: 2600 },
];

/// Python versions whose memory layout the tests' fake interpreter can imitate.
const VERSIONS: [u32; 3] = [0x309, 0x30b, 0x30d];

const DEPTH: u32 = 64;
const FEW: u32 = 1000;
const MANY: u32 = 3000;

#[inline(never)]
fn deep(calls: u32, at_the_end: &mut dyn FnMut()) -> u32 {
    if calls == 0 {
        at_the_end();
        return 0;
    }
    black_box(deep(black_box(calls - 1), at_the_end)) + 1
}

fn captures(count: u32) {
    let mut unwinder = Unwinder::new().expect("memory for an unwinder");
    unwinder.check_every_capture(true);
    deep(DEPTH, &mut || {
        for _ in 0..black_box(count) {
            assert!(unwinder.capture(Skip::None).frames.len() > DEPTH as usize);
        }
    });
}

fn callbacks(count: u32) {
    capture::refill_chunks();
    window::open();
    deep(DEPTH, &mut || callbacks_of(count));
}

/// Makes `count` launches. With `--time`, prints the time per launch.
fn callbacks_of(count: u32) {
    let start = Instant::now();
    for id in 0..black_box(count) {
        launch(id);
    }
    let nanos = start.elapsed().as_nanos() as f64 / f64::from(count);
    if std::env::args().nth(1).as_deref() == Some("--nanos") {
        let _ = writeln!(std::io::stdout(), "{nanos}");
    }
}

fn halves(count: u32) {
    capture::refill_chunks();
    window::open();
    from_halves(count, &mut launch);
}

fn half_captures(count: u32) {
    let mut unwinder = Unwinder::new().expect("memory for an unwinder");
    from_halves(count, &mut |_| {
        assert!(unwinder.capture(Skip::None).frames.len() > DEPTH as usize);
    });
}

/// Launches in turn from stacks that differ in their inner half. The count includes the calls that build these stacks;
/// each call has 16 instructions.
fn from_halves(count: u32, launch: &mut dyn FnMut(u32)) {
    deep(DEPTH / 2, &mut || {
        for id in 0..black_box(count) {
            let turns = (id % 8).wrapping_mul(0x9e37_79b9);
            winding(DEPTH / 2 - 3, turns, &mut || launch(id));
        }
    });
}

/// Makes `calls` nested calls. Each of these calls is made from one of two places in the code.
fn winding(calls: u32, turns: u32, at_the_end: &mut dyn FnMut()) -> u32 {
    if calls == 0 {
        at_the_end();
        return 0;
    }
    let way = if turns.is_multiple_of(2) { left } else { right };
    way(calls - 1, turns.rotate_right(1), at_the_end)
}

#[inline(never)]
fn left(calls: u32, turns: u32, at_the_end: &mut dyn FnMut()) -> u32 {
    black_box(winding(calls, turns, at_the_end)) + 1
}

#[inline(never)]
fn right(calls: u32, turns: u32, at_the_end: &mut dyn FnMut()) -> u32 {
    black_box(winding(calls, turns, at_the_end)) + 2
}

/// Launches from a stack with 15 Python frames and 70 native frames. Since CPython 3.11, five calls to the evaluator
/// run all the Python frames. Before CPython 3.11, each Python frame has its own call to the evaluator.
fn in_python<const VERSION: u32, const IS_WANTED: bool>(count: u32) {
    unsafe extern "C" fn launches(count: *mut c_void) {
        callbacks_of(count.addr() as u32);
    }
    evaluated::<VERSION>(15, IS_WANTED, launches, count);
}

/// Launches below 12 Python frames and, alternately, three or six more Python frames.
fn by_turns<const VERSION: u32>(count: u32) {
    unsafe extern "C" fn turns(count: *mut c_void) {
        let evaluate = EVALUATE.get().expect("it was loaded");
        for id in 0..black_box(count.addr()) {
            let with = std::ptr::without_provenance_mut(id);
            // SAFETY: SAFETY: SAFETY: `evaluate` may be called as in the first call of this function.
            unsafe { evaluate(if id % 2 == 0 { 3 } else { 6 }, one, with) };
        }
    }
    unsafe extern "C" fn one(id: *mut c_void) {
        launch(id.addr() as u32);
    }
    evaluated::<VERSION>(12, true, turns, count);
}

/// Launches in turn from three places in Python. Each place launches three times, from three different native
/// functions.
fn in_rows<const VERSION: u32>(count: u32) {
    unsafe extern "C" fn rows(count: *mut c_void) {
        let evaluate = EVALUATE.get().expect("it was loaded");
        for id in 0..black_box(count.addr()) {
            let kernel = [one::<0>, one::<1>, one::<2>][id % 3];
            let with = std::ptr::without_provenance_mut(id);
            // SAFETY: SAFETY: SAFETY: `evaluate` may be called as in the first call of this function.
            unsafe { evaluate([3, 6, 9][id / 3 % 3], kernel, with) };
        }
    }
    unsafe extern "C" fn one<const KERNEL: u32>(id: *mut c_void) {
        launch(black_box(id.addr() as u32));
        black_box(KERNEL);
    }
    evaluated::<VERSION>(12, true, rows, count);
}

type Evaluate = unsafe extern "C" fn(c_int, unsafe extern "C" fn(*mut c_void), *mut c_void) -> c_int;

static EVALUATE: OnceLock<Evaluate> = OnceLock::new();

/// Calls `then` with `frames` Python frames on the stack.
fn evaluated<const VERSION: u32>(
    frames: c_int,
    is_wanted: bool,
    then: unsafe extern "C" fn(*mut c_void),
    count: u32,
) {
    unwind::python::set_enabled(is_wanted);
    let interpreter = interpreter(VERSION);
    // SAFETY: the library is the tests' own, and its constructor only fills its own variables.
    let library = unsafe { libc::dlopen(interpreter.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!library.is_null(), "the interpreter of the tests is loaded");
    // SAFETY: SAFETY: `library` is a loaded library, and the name is a C string.
    let evaluate = unsafe { libc::dlsym(library, c"evaluate".as_ptr()) };
    assert!(!evaluate.is_null());
    // SAFETY: the library's function with this name has this type.
    let evaluate =
        *EVALUATE.get_or_init(|| unsafe { std::mem::transmute::<*mut c_void, Evaluate>(evaluate) });
    capture::refill_chunks();
    window::open();
    let calls = if VERSION < 0x30b { frames } else { frames / 3 };
    deep(DEPTH - 5 - calls as u32, &mut || {
        let with = std::ptr::without_provenance_mut(count as usize);
        // SAFETY: the function does nothing but call its argument from a few nested functions.
        unsafe { evaluate(frames, then, with) };
    });
    assert!(unwind::python::off_reason().is_none(), "{:?}", unwind::python::off_reason());
}

/// Returns the path of the tests' fake interpreter for `version` of Python. The fake interpreter has the memory layout
/// of that Python version but evaluates nothing. The fake interpreter is compiled only once, into this program's
/// folder.
fn interpreter(version: u32) -> CString {
    let program = std::env::current_exe().expect("a program has a path");
    let library = program.with_extension(format!("interpreter-{version:x}.so"));
    CString::new(library.to_str().expect("a path in UTF-8")).expect("a path without a zero")
}

fn compile_interpreter(version: u32) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/interpreter.c");
    let mut command = Command::new("gcc");
    command.args(["-std=gnu99", "-O2", "-shared", "-fPIC", &format!("-DVERSION={version:#x}00f0"), "-o"]);
    let status = command.arg(interpreter(version).to_str().expect("it was one")).arg(source).status();
    assert!(status.is_ok_and(|status| status.success()), "a C compiler (gcc) is needed");
}

/// Returns the total number of instructions that this program executes when it runs a case that makes `count` launches.
fn instructions(case: usize, count: u32) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--run", &case.to_string(), &count.to_string()])
        .output()
        .map_err(|error| format!("valgrind is needed (apt-get install valgrind): {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    collected.filter(|_| output.status.success()).ok_or_else(|| said.into_owned())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, run, case, count] = &arguments[..]
        && (run == "--run" || run == "--nanos")
    {
        let (case, count): (usize, u32) = (case.parse().expect("a case"), count.parse().expect("a number"));
        unwind::prepare();
        // The case runs on a new thread, because valgrind does not change the stack of such a thread.
        thread::spawn(move || (CASES[case].run)(count)).join().expect("a case does not panic");
        return ExitCode::SUCCESS;
    }
    VERSIONS.into_iter().for_each(compile_interpreter);
    if arguments.iter().any(|argument| argument == "--time") {
        return time();
    }
    let mut is_within = true;
    for (at, case) in CASES.iter().enumerate() {
        let each = match (instructions(at, FEW), instructions(at, MANY)) {
            (Ok(few), Ok(many)) => (many - few) / u64::from(MANY - FEW),
            (Err(error), _) | (_, Err(error)) => {
                let _ = writeln!(std::io::stderr(), "{}: {error}", case.name);
                return ExitCode::FAILURE;
            }
        };
        let verdict = if each > case.limit { "TOO MANY" } else { "within" };
        let _ = writeln!(std::io::stdout(), "{} {each} n   ({verdict} {})", case.name, case.limit);
        is_within &= each <= case.limit;
    }
    if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the nanoseconds per launch for each case, measured in the fastest of many processes. The processes of the
/// cases take turns.
fn time() -> ExitCode {
    const ROUNDS: usize = 40;
    const LAUNCHES: &str = "20000";
    let program = std::env::current_exe().expect("a program has a path");
    let mut fastest = [f64::INFINITY; CASES.len()];
    for _ in 0..ROUNDS {
        for (at, fastest) in fastest.iter_mut().enumerate().skip(1) {
            let output = Command::new(&program).args(["--nanos", &at.to_string(), LAUNCHES]).output();
            let text = String::from_utf8(output.expect("this program runs again").stdout).unwrap_or_default();
            *fastest = fastest.min(text.trim().parse().unwrap_or(f64::INFINITY));
        }
    }
    // Cases that do other work between launches have no time. The output has no lines for these cases.
    for (case, nanos) in CASES.iter().zip(fastest).filter(|(_, nanos)| nanos.is_finite()) {
        let name = case.name.replace("instructions", "time");
        let _ = writeln!(std::io::stdout(), "{name} {nanos:.1} ns");
    }
    ExitCode::SUCCESS
}
