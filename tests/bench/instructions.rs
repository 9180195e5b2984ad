//! How many instructions a launch costs: the guard that notices when somebody adds work, on any machine.
//!
//! Times vary with the machine and with what else it does; callgrind counts the same instructions every time. Each case
//! runs twice, once for more launches than the other, and the difference counts. A case above its limit fails: make it
//! cheaper again, or raise the limit in the commit that says what the work is for.
//!
//!     cargo bench --bench instructions
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "../support/api_call.rs"]
mod api_call;

use std::hint::black_box;
use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::thread;

use api_call::launch;
use gpuflame::capture;
use gpuflame::control::window;
use gpuflame::unwind::{self, Skip, Unwinder};

/// What is counted, on the same stack again and again, 64 calls deep.
struct Case {
    name: &'static str,
    run: fn(u32),
    /// Instructions each may take: 1 to 3 % more than Rust 1.95 makes of it.
    limit: u64,
}

const CASES: [Case; 2] = [
    Case { name: "instructions_capture_hot_64", run: captures, limit: 794 },
    // Under valgrind two clocks are never read at one moment, so the time is asked for: system calls, of which only
    // our side counts.
    Case { name: "instructions_callback_hot_64", run: callbacks, limit: 1282 },
];

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
    capture::refill();
    window::open();
    deep(DEPTH, &mut || {
        for id in 0..black_box(count) {
            launch(id);
        }
    });
}

/// Instructions that this program takes in all when it runs a case so often.
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
        && run == "--run"
    {
        let (case, count): (usize, u32) = (case.parse().expect("a case"), count.parse().expect("a number"));
        unwind::prepare();
        // On a thread, whose stack valgrind leaves as it is.
        thread::spawn(move || (CASES[case].run)(count)).join().expect("a case does not panic");
        return ExitCode::SUCCESS;
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
