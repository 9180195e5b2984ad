//! Tests programs that do many things at the same time. A seed number selects what each program does:
//! - threads that launch, fork and are interrupted;
//! - a child that is forked before CUDA starts;
//! - functions generated at run time that keep an arbitrary number in rbp and overwrite each other's code;
//! - records that arrive in any order, late, twice, damaged or not at all;
//! - another CUPTI client that takes over the activity records;
//! - many kinds of exit.
//!
//! The program must behave as it does without gpuflame; this includes every signal and every inherited descriptor. The
//! counts in the ledger must add up to its totals. The sums must equal those of the truth file minus the reported
//! losses, to the nanosecond. The sums must be exact both in files written at the exit and in the checkpoint of a
//! killed process.
//!
//! `GPUFLAME_CHAOS=500` runs 500 seeds, as `.ci/long` does; `GPUFLAME_CHAOS=17-20` runs the seeds 17 to 20.

mod account;
mod ended;
mod plan;

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{Done, Run, Way};
use ended::Ended;
use plan::Plan;

/// Runs a program, and returns its process id and its output.
fn over(run: Run) -> (u32, Done) {
    let (mut command, folder) = run.into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = child.id();
    (process, Done::from_output(child.wait_with_output().unwrap(), folder))
}

/// Returns the ids of the processes that wrote files whose names begin with `prefix`.
fn processes(folder: &Path, prefix: &str) -> Vec<u32> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let number = |name: String| name.strip_prefix(prefix)?.split('.').next()?.parse().ok();
    let mut all: Vec<u32> = names.filter_map(number).collect();
    all.sort();
    all.dedup();
    all
}

fn one(seed: u64) {
    let plan = Plan::of(seed);
    let without = over(plan.run(Way::None)).1;
    let run = plan.run(plan.way).env("GPUFLAME_FORMATS", plan.formats).env("GPUFLAME_OUTPUT", "out-%p");
    let run = run.env("GPUFLAME_CHECKPOINT", "0.05");
    let run = if plan.hangs() { run.env("GPUFLAME_EXIT_LIMIT", "1") } else { run };
    let (process, with) = over(run);
    let folder = with.folder.clone();
    let shown = format!("{plan:?}\n{}\n{}", folder.display(), with.stderr);
    let checked = catch_unwind(AssertUnwindSafe(|| {
        assert_eq!((with.code, with.signal), (without.code, without.signal));
        assert_eq!(with.stdout, without.stdout);
        let mut expected = processes(&folder, "stderr-");
        assert_eq!(expected.len(), usize::from(plan.child != "-"));
        for child in &expected {
            let mut done = Done::from_folder(&folder);
            done.stderr = done.file(&format!("stderr-{child}"));
            // When a forked worker calls `_exit`, gpuflame writes the worker's files as at an ordinary exit.
            let how = if plan.child == "_exit" { "exit" } else { plan.child };
            Ended { plan: &plan, how, process: *child, threads: 1, done }.assert_right();
        }
        Ended { plan: &plan, how: plan.how, process, threads: 3, done: with }.assert_right();
        expected.push(process);
        // Children that are forked after CUDA started write no files.
        let others = processes(&folder, "out-").into_iter().find(|other| !expected.contains(other));
        assert_eq!(others, None, "a process that cannot use CUDA has files");
    }));
    if let Err(why) = checked {
        panic!("{}\n{shown}", said(&*why));
    }
    [folder, without.folder].iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
}

/// Returns the message of a panic.
fn said(why: &(dyn Any + Send)) -> &str {
    let text = why.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| why.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}

/// Returns the first and the last seed for which programs run.
fn numbers() -> (u64, u64) {
    let asked = std::env::var("GPUFLAME_CHAOS").unwrap_or_else(|_| "35".to_owned());
    let (first, last) = asked.split_once('-').unwrap_or(("1", &asked));
    (first.parse().unwrap(), last.parse().unwrap())
}

/// Number of programs that run at the same time. The programs need only a few processors, because each of them waits
/// most of the time.
const AT_ONCE: usize = 4;

#[test]
fn any_random_combination_leaves_the_program_unchanged_and_the_ledger_exact() {
    let (first, last) = numbers();
    let (next, wrong) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > last {
                return;
            }
            if let Err(why) = catch_unwind(|| one(seed)) {
                wrong.lock().unwrap().push(format!("seed {seed}: {}", said(&*why)));
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} numbers\n{}", wrong.len(), last + 1 - first, wrong.join("\n\n"));
}
