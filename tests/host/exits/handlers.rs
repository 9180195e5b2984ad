//! Tests a program that has its own handlers for SIGINT, SIGTERM and SIGHUP. The program's handlers must be visible to
//! other code and must be called, as without gpuflame. If the program restores the default action and sends itself the
//! signal again, gpuflame first writes the files. After that, the signal ends the program.
//!
//! The program is `tests/programs/handlers.c`, whose kernels take 1,000 ns.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::running::Running;
use crate::support::{Done, Run, Way, compile};

const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
const LAUNCHES: u64 = 100;
const WAYS: [Way; 2] = [Way::Injected, Way::Preloaded];

fn handlers(way: Way, args: &[&str]) -> Run {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program: &Path = PROGRAM.get_or_init(|| compile("tests/programs/handlers.c", &["-O1"]));
    Run::new(program, way).args(args.iter().copied())
}

fn assert_written(done: &Done, launches: u64) {
    let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(nanos, 1000 * launches, "{}", done.stderr);
    assert_eq!(done.sum("launches").1["matched"], launches, "{}", done.stderr);
    assert_eq!(done.ledger("wrote ").len(), 6, "{}", done.stderr);
}

#[test]
fn a_program_sees_the_same_signal_actions_as_without_gpuflame() {
    let without = handlers(Way::None, &["view"]).done();
    assert_eq!(without.code, Some(7), "{}", without.stderr);
    assert!(without.stdout.contains("2 begins: default 0 0\n"), "{}", without.stdout);
    for way in WAYS {
        let done = handlers(way, &["view"]).done();
        assert_eq!((done.code, &done.stdout), (Some(7), &without.stdout), "{}", done.stderr);
        assert_written(&done, LAUNCHES);
    }
}

#[test]
fn a_program_continues_after_its_handler_calls_the_previous_one() {
    for how in ["chained", "chained_at_end", "child"] {
        for signal in SIGNALS.map(|signal| signal.to_string()) {
            assert_eq!(handlers(Way::None, &[how, &signal]).done().code, Some(3), "{how}");
            let done = handlers(Way::Injected, &[how, &signal]).done();
            assert_eq!((done.code, done.signal), (Some(3), None), "{how} {signal}: {}", done.stderr);
            assert_written(&done, LAUNCHES);
        }
    }
}

#[test]
fn a_handler_that_restores_the_previous_action_and_raises_again_leaves_files() {
    for signal in SIGNALS {
        let done = handlers(Way::Injected, &["restores", &signal.to_string()]).done();
        assert_eq!((done.code, done.signal), (None, Some(signal)), "{}", done.stderr);
        assert_written(&done, LAUNCHES);
    }
}

/// Like uvicorn, the program installs its signal handler before CUDA starts. Therefore the signal does not have its
/// default action when gpuflame starts.
#[test]
fn a_server_that_restores_the_default_and_raises_the_signal_again_leaves_files() {
    for way in WAYS {
        for how in ["sigaction", "signal", "found"] {
            for signal in SIGNALS {
                let mut running = Running::of(handlers(way, &["server", &signal.to_string(), how]));
                running.wait_for(|running| (running.folder.join("ready").exists(), "not ready".to_owned()));
                let done = running.signalled(signal);
                assert_eq!((done.code, done.signal), (None, Some(signal)), "{how}: {}", done.stderr);
                assert_written(&done, LAUNCHES + 1);
            }
        }
    }
}

/// GNU's linker gives a program without exports an empty symbol hash table. Therefore gpuflame cannot find out from
/// this table how many symbols the program imports.
#[test]
fn a_program_without_exports_that_restores_the_default_leaves_files() {
    let program = compile("tests/programs/handlers.c", &["-O1", "-no-pie"]);
    let signal = libc::SIGTERM;
    for how in ["sigaction", "signal"] {
        let run = Run::new(&program, Way::Injected).args(["server", &signal.to_string(), how]);
        let mut running = Running::of(run);
        running.wait_for(|running| (running.folder.join("ready").exists(), "not ready".to_owned()));
        let done = running.signalled(signal);
        assert_eq!((done.code, done.signal), (None, Some(signal)), "{how}: {}", done.stderr);
        assert_written(&done, LAUNCHES + 1);
    }
}

#[test]
fn gpuflame_signals_0_interposes_on_no_function() {
    let run = handlers(Way::Injected, &["server", &libc::SIGTERM.to_string(), "sigaction"]);
    let mut running = Running::of(run.env("GPUFLAME_SIGNALS", "0"));
    running.wait_for(|running| (running.folder.join("ready").exists(), "not ready".to_owned()));
    let done = running.signalled(libc::SIGTERM);
    assert_eq!(done.signal, Some(libc::SIGTERM), "{}", done.stderr);
    assert!(!done.folder.join("out.folded").exists(), "{}", done.stderr);
}
