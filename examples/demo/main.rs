//! A complete example in one command: `cargo run --release --example demo` profiles a small decode loop and shows the
//! result.
//!
//! The demo does what a user would do by hand: it starts a program with `CUDA_INJECTION64_PATH=libgpuflame.so`. The
//! program that it starts is the demo itself, with an argument: `probe` looks for a GPU, and `workload` launches
//! kernels. If there is no GPU, the workload runs on the simulated CUDA stack that the tests use. Simulated kernels
//! take a made-up time and compute nothing. The stacks, files and ledger of a run on the simulated stack are as on a
//! real GPU.
//!
//! `gpuflame demo` runs this program from the folder in which it was installed, as `demo installed LIBRARY`.
#![allow(clippy::print_stdout, reason = "a program for people: what it prints is its result")]

/// Prints a line. Errors are ignored, because the files must be written even if the program that reads the output has
/// closed the pipe (as `head` does).
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($line)*);
    }};
}

mod call_site;
mod driver;
mod report;
mod stage;
mod workload;

use stage::{Files, Stack};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Result whose error is a line for the user: the failure, its location, and the next step.
type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    call_site::frame!(main);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Files::built().and_then(|files| demonstrate(&files)),
        ["installed", library] => Files::installed(library).and_then(|files| demonstrate(&files)),
        ["probe"] => driver::probe(),
        ["workload"] => workload::run(),
        _ => Err("it takes no arguments: cargo run --release --example demo".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Records on the real CUDA stack if the machine has one. If the machine has none, or if recording on it fails, records
/// on the simulated stack.
fn demonstrate(files: &Files) -> Result<()> {
    match probe()? {
        Ok(gpu) => {
            say!("demo: recording a decode loop on {gpu}");
            if let Some(prefix) = record(files, Stack::Real)? {
                return show(&prefix, Stack::Real);
            }
            say!("demo: nothing was recorded there; the lines above say why");
        }
        Err(reason) => say!("demo: no GPU to record on: {reason}"),
    }
    say!("demo: recording a decode loop on the simulated CUDA stack, whose times are made up");
    let nothing = || "gpuflame wrote no table; the lines above say why".to_owned();
    show(&record(files, Stack::Simulated)?.ok_or_else(nothing)?, Stack::Simulated)
}

/// Returns the GPU's name, or the reason why there is no GPU. The probe runs in a separate process, because a process that has
/// initialised CUDA cannot be profiled from the start any more, and cannot fork any more.
fn probe() -> Result<std::result::Result<String, String>> {
    let output = myself("probe")?
        .env_remove("CUDA_INJECTION64_PATH")
        .output()
        .map_err(|e| format!("cannot start itself to look for a GPU: {e}"))?;
    if output.status.success() {
        return Ok(Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()));
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("demo: ").to_owned();
    Ok(Err(if reason.is_empty() { format!("looking for one ended with {}", output.status) } else { reason }))
}

/// Runs the workload with gpuflame's library injected. Returns the prefix of the output files, if the workload wrote
/// any.
fn record(files: &Files, stack: Stack) -> Result<Option<String>> {
    let mut command = myself("workload")?;
    command.env("CUDA_INJECTION64_PATH", &files.library).env("GPUFLAME_OUTPUT", "gpuflame-demo.%p");
    // Variables that a shell may have set for another program would prevent the workload from writing its files.
    for name in ["GPUFLAME_FORMATS", "GPUFLAME_ENABLED", "GPUFLAME_UNIT"] {
        command.env_remove(name);
    }
    if stack == Stack::Simulated {
        files.simulate(&mut command)?;
    }
    let before = tables()?;
    let mut child = command.spawn().map_err(|e| format!("cannot start itself as the workload: {e}"))?;
    let status = child.wait().map_err(|e| format!("cannot wait for the workload: {e}"))?;
    if !status.success() {
        return Err(format!("the workload ended with {status}; its own line above says why"));
    }
    let its_own = format!("gpuflame-demo.{}.", child.id());
    let new = tables()?.into_iter().find(|name| name.starts_with(&its_own) && !before.contains(name));
    Ok(new.map(|name| name.trim_end_matches(".csv").to_owned()))
}

/// Returns the tables in the current folder. If a table belongs to an earlier process with the same id, gpuflame
/// chooses another name for the new table.
fn tables() -> Result<BTreeSet<String>> {
    let folder = std::fs::read_dir(".").map_err(|e| format!("cannot read the current folder: {e}"))?;
    let names = folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with("gpuflame-demo.") && name.ends_with(".csv")).collect())
}

fn myself(role: &str) -> Result<Command> {
    let mut command = Command::new(stage::executable()?);
    command.arg(role);
    Ok(command)
}

fn show(prefix: &str, stack: Stack) -> Result<()> {
    report::top_five(Path::new(&format!("{prefix}.csv")))?;
    say!();
    for (what, suffix) in
        [("flame graph", "svg"), ("folded stacks", "folded"), ("table", "csv"), ("idle time", "idle.svg")]
    {
        let path = std::path::absolute(format!("{prefix}.{suffix}"));
        say!("{what:<14} {}", path.map_err(|e| format!("{prefix}.{suffix}: {e}"))?.display());
    }
    say!();
    say!("Open the flame graph in a browser: click a frame to zoom, Ctrl-F to search.");
    if stack == Stack::Simulated {
        say!("The GPU was simulated: stacks and counts are real, times are made up.");
    }
    Ok(())
}
