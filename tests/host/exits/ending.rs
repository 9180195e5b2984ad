//! However a program ends, gpuflame must write its flame graph, and the program must end as it would without gpuflame.
//!
//! The program, `tests/programs/ending.c`, launches kernels of 1,000 ns. The program counts in a file how many launch
//! calls have returned. The program exits with code 7.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::exits::checkpoint::{in_trouble, let_outputs_go};
use crate::running::FILE;
use crate::support::command::gpuflame as command;
use crate::support::{Done, Run, Way, compile, skip};

const EXITED: (Option<i32>, Option<i32>) = (Some(7), None);
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/ending.c", &["-O2", "-g0"]))
}

fn ending(args: &[&str]) -> Run {
    Run::new(program(), Way::Injected).args(args.iter().copied())
}

fn with_signal(place: &str, signal: i32, how: &str) -> Run {
    ending(&[place, &signal.to_string(), how])
}

fn end(done: &Done) -> (Option<i32>, Option<i32>) {
    (done.code, done.signal)
}

/// For each thread, returns how many of its launch calls had returned when the process ended.
fn launched(done: &Done) -> Vec<u64> {
    let bytes = fs::read(done.folder.join("launched")).unwrap();
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
}

/// Asserts that the ledger's counts add up to its totals, and that the output files exist and agree with the ledger.
/// Returns the number of launches in the ledger.
fn assert_written(done: &Done) -> u64 {
    let (launches, became) = done.sum("launches");
    let (_, activities) = done.sum("activities");
    let folded = done.folded();
    let nanos: u64 = folded.iter().map(|(_, nanos)| nanos).sum();
    // If a launch was in flight when the process ended, it may have no stack.
    assert_eq!(nanos, 1000 * (activities["matched"] + activities["no_launch_stack"]), "{}", done.stderr);
    let ours = folded.iter().filter(|(frames, _)| frames.contains(&"launch".to_owned()));
    assert_eq!(ours.map(|(_, nanos)| nanos).sum::<u64>(), 1000 * activities["matched"], "{folded:?}");
    assert_eq!(done.ledger("wrote ").len(), 6, "{}", done.stderr);
    assert!(done.file("out.svg").trim_end().ends_with("</svg>"));
    launches - became["outside"]
}

fn assert_nothing_written(done: &Done) {
    assert!(!done.folder.join("out.folded").exists(), "{}", done.stderr);
    assert_eq!(done.ledger("wrote"), [""; 0], "{}", done.stderr);
}

#[test]
fn files_are_written_while_four_threads_launch_during_the_exit() {
    let done = ending(&["flat_out", "4"]).done();
    assert_eq!(end(&done), EXITED, "{}", done.stderr);
    assert!(assert_written(&done) >= 80_100, "{}", done.stderr);
}

#[test]
fn four_concurrent_exits_write_the_files_once() {
    for _ in 0..5 {
        let done = ending(&["exits"]).done();
        assert_eq!(end(&done), EXITED, "{}", done.stderr);
        assert_eq!(assert_written(&done), 100);
    }
}

#[test]
fn quick_exit_writes_the_files() {
    let done = ending(&["quick"]).done();
    assert_eq!(end(&done), EXITED, "{}", done.stderr);
    assert_eq!(assert_written(&done), 100);
}

/// Without gpuflame, the process ends with code 0 when its last thread ends.
#[test]
fn a_process_whose_main_thread_ended_exits_with_its_last_thread() {
    let done = ending(&["main_ends"]).done();
    assert_eq!(end(&done), (Some(0), None), "{}", done.stderr);
    assert_eq!(assert_written(&done), 1100);
    assert!(!done.stderr.contains("CUPTI did not answer"), "{}", done.stderr);
}

/// During gpuflame's set-up, the program starts a thread that blocks all signals. Therefore this thread looks like a
/// thread of CUPTI.
#[test]
fn a_program_thread_that_outlives_main_sets_the_exit_code() {
    let program = compile("tests/programs/left.c", &["-O2", "-rdynamic"]);
    let left = |way, how| Run::new(&program, way).arg(how).done();
    assert_eq!(end(&left(Way::None, "worker")), EXITED);
    assert_eq!(end(&left(Way::None, "nothing")), (Some(0), None));
    let done = left(Way::Injected, "worker");
    assert_eq!(end(&done), EXITED, "{}", done.stderr);
    assert_eq!(done.sum("launches").1["matched"], 1, "{}", done.stderr);
    let done = left(Way::Injected, "nothing");
    assert_eq!(end(&done), (Some(0), None), "only gpuflame's threads and CUPTI's are left: {}", done.stderr);
    assert_eq!(done.sum("launches").1["matched"], 1, "{}", done.stderr);
}

#[test]
fn a_hanging_cupti_delays_the_exit_at_most_by_the_limit() {
    let run = ending(&["quick"]).env("GPUSIM_FAULTS", "flush_hangs").env("GPUFLAME_EXIT_LIMIT", "2");
    let done = run.done();
    assert_eq!(end(&done), EXITED, "{}", done.stderr);
    assert_eq!(assert_written(&done), 100);
    let line =
        "CUPTI did not answer within 2 s; the records that it still held are lost, the rest is written";
    assert_eq!(done.ledger("CUPTI did"), [&line["CUPTI did ".len()..]], "{}", done.stderr);
}

/// Asserts that the signal kills the program, that the program prints nothing more, and that the output files contain
/// all launches that returned before the signal.
fn assert_dies_of(signal: i32, done: &Done) {
    assert_eq!((end(done), done.stdout.as_str()), ((None, Some(signal)), "ready\n"), "{}", done.stderr);
    let launches = assert_written(done);
    assert!(launches >= 1100, "{launches}");
    if launched(done)[1..] == [0; 511] {
        assert_eq!(launches, 1100);
    }
}

#[test]
fn sigint_sigterm_and_sighup_leave_the_files_and_kill_the_process() {
    for signal in SIGNALS {
        assert_dies_of(signal, &with_signal("sleeping", signal, "").done());
    }
}

#[test]
fn a_signal_while_main_launches_loses_no_launch_that_had_returned() {
    for _ in 0..10 {
        let done = with_signal("launching", libc::SIGTERM, "").done();
        assert_eq!(end(&done), (None, Some(libc::SIGTERM)), "{}", done.stderr);
        let returned: u64 = launched(&done).iter().sum();
        let launches = assert_written(&done);
        assert!((returned..=returned + 1).contains(&launches), "{launches} of {returned}");
    }
}

#[test]
fn a_signal_inside_malloc_leaves_the_files() {
    for _ in 0..10 {
        assert_dies_of(libc::SIGTERM, &with_signal("malloc", libc::SIGTERM, "").done());
    }
}

/// gpuflame's threads never use the heap arenas of the C library. Therefore the files are written even if a stopped
/// thread holds the lock of a heap arena forever. Calls into CUPTI are tested as well, because the simulated CUPTI
/// allocates memory when it answers a call.
#[test]
fn a_signal_on_a_thread_that_holds_the_heap_lock_leaves_the_files() {
    let library = compile("tests/programs/heap.c", &["-O2", "-shared", "-fPIC", "-Wl,--as-needed"]);
    let held = |signal| {
        let run = with_signal("heap", signal, "").env("LD_PRELOAD", &library);
        run.env("GPUFLAME_CHECKPOINT", "0.02")
    };
    for signal in SIGNALS {
        let done = held(signal).done();
        assert_eq!((end(&done), done.stdout.as_str()), ((None, Some(signal)), "ready\n"), "{}", done.stderr);
        assert_eq!(assert_written(&done), 2100, "{}", done.stderr);
        let done = held(signal).env("GPUFLAME_FORMATS", "folded,svg,csv,idle,activities,chrome,gfr").done();
        assert_eq!(end(&done), (None, Some(signal)), "{}", done.stderr);
        for name in ["folded", "svg", "csv", "idle.folded", "activities.csv", "json", "gfr"] {
            assert!(done.folder.join(format!("out.{name}")).exists(), "{name}: {}", done.stderr);
        }
    }
}

#[test]
fn a_signal_inside_the_loader_leaves_the_files() {
    for _ in 0..5 {
        assert_dies_of(libc::SIGTERM, &with_signal("loading", libc::SIGTERM, "").done());
    }
}

#[test]
fn a_signal_to_another_thread_leaves_the_files() {
    assert_dies_of(libc::SIGTERM, &with_signal("thread", libc::SIGTERM, "").done());
}

#[test]
fn a_signal_on_a_small_alternate_stack_leaves_the_files() {
    assert_dies_of(libc::SIGINT, &with_signal("signal_stack", libc::SIGINT, "").done());
}

#[test]
fn a_signal_with_a_hanging_cupti_leaves_the_files() {
    let done = with_signal("sleeping", libc::SIGINT, "").env("GPUSIM_FAULTS", "flush_hangs").done();
    assert_dies_of(libc::SIGINT, &done);
    assert!(done.ledger("CUPTI did not answer within 0.3 s").len() == 1, "{}", done.stderr);
}

#[test]
fn a_signal_during_the_exit_kills_the_process_after_the_files_are_written() {
    let done = with_signal("exiting", libc::SIGTERM, "").done();
    assert_eq!(end(&done), (None, Some(libc::SIGTERM)), "{}", done.stderr);
    assert_eq!(assert_written(&done), 1100);
}

#[test]
fn two_signals_within_a_second_count_as_one() {
    assert_dies_of(libc::SIGINT, &with_signal("sleeping", libc::SIGINT, "twice").done());
    assert_dies_of(libc::SIGINT, &with_signal("thread", libc::SIGINT, "twice").done());
}

#[test]
fn a_second_signal_after_a_second_kills_at_once_and_leaves_the_checkpoint() {
    let done = in_trouble(with_signal("sleeping", libc::SIGINT, "later"), "later").done();
    assert_eq!((end(&done), done.stdout.as_str()), ((None, Some(libc::SIGINT)), "ready\n"));
    let_outputs_go(&done.folder);
    assert_nothing_written(&done);
    command(&done.folder, ["recover", FILE]).ok();
    let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(nanos, 1100 * 1000);
}

#[test]
fn a_signal_handler_that_the_program_installs_wins() {
    let done = with_signal("sleeping", libc::SIGTERM, "own").done();
    assert_eq!((end(&done), done.stdout.as_str()), ((Some(5), None), "ready\nmine\n"), "{}", done.stderr);
    assert_eq!(assert_written(&done), 1100);
}

#[test]
fn a_signal_whose_default_action_was_restored_still_leaves_the_files() {
    for signal in SIGNALS {
        assert_dies_of(signal, &with_signal("sleeping", signal, "default").done());
    }
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let done = with_signal("sleeping", libc::SIGHUP, "ignored").done();
    assert_eq!((end(&done), done.stdout.as_str()), ((Some(6), None), "ready\n"), "{}", done.stderr);
    assert_eq!(assert_written(&done), 1100);
}

#[test]
fn child_processes_die_of_their_signals_and_write_nothing() {
    for how in ["forked", "spawned"] {
        let done = with_signal("sleeping", libc::SIGTERM, how).done();
        assert_eq!(end(&done), (Some(6), None), "{how}: {}", done.stderr);
        assert_eq!(assert_written(&done), 1100);
    }
}

/// Returns the numbers of the signals for which the program has a handler, as Linux lists them in `/proc`.
fn caught(done: &Done) -> Vec<i32> {
    // The C library has handlers for two more signals, with numbers from 32 on.
    set_of_signals(done, "SigCgt:").into_iter().filter(|signal| *signal < 32).collect()
}

/// Returns the signals in the set `name` that Linux lists in `/proc` for the program's main thread.
fn set_of_signals(done: &Done, name: &str) -> Vec<i32> {
    let status = done.file("status");
    let set = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let set = u64::from_str_radix(set.trim(), 16).unwrap();
    (1..=64).filter(|signal| set & 1 << (signal - 1) != 0).collect()
}

#[test]
fn no_signal_is_blocked() {
    assert_eq!(set_of_signals(&ending(&["status", "1"]).done(), "SigBlk:"), [0; 0]);
}

#[test]
fn only_default_sighup_sigint_and_sigterm_are_handled() {
    assert_eq!(caught(&ending(&["status", "1"]).done()), [libc::SIGHUP, libc::SIGINT, libc::SIGTERM]);
    assert_eq!(caught(&with_signal("status", libc::SIGHUP, "ignored").done()), [libc::SIGINT, libc::SIGTERM]);
    assert_eq!(caught(&ending(&["status", "1"]).env("GPUFLAME_SIGNALS", "0").done()), [0; 0]);
}

/// The first process of a container survives a signal if the signal has its default action. The test needs permission
/// to create a container.
#[test]
fn process_1_of_a_container_gets_no_signal_handlers() {
    let script = "unshare --user --map-root-user --pid --fork --mount-proc $1 status 1";
    let done = in_a_shell(script, None);
    if done.stderr.starts_with("unshare: ") {
        return skip(&format!("no user namespace can be created here: {}", done.stderr));
    }
    assert_eq!((caught(&done), done.code), (vec![], Some(7)), "{}", done.stderr);
}

#[test]
fn gpuflame_signals_0_leaves_signals_alone() {
    let done = with_signal("sleeping", libc::SIGTERM, "").env("GPUFLAME_SIGNALS", "0").done();
    assert_eq!((end(&done), done.stdout.as_str()), ((None, Some(libc::SIGTERM)), "ready\n"));
    assert_nothing_written(&done);
}

/// Runs the script `shell` with the program's path as `$1`, waits until the program is ready, and sends the signal to
/// the script's process group.
fn in_a_shell(shell: &str, signal: Option<i32>) -> Done {
    let script = Run::new(Path::new("/bin/bash"), Way::Injected).args(["-c", shell, "bash"]).arg(program());
    let (mut command, folder) = script.into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
    if let Some(signal) = signal {
        let ready = folder.join("ready");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !ready.exists() || fs::read(&ready).unwrap() != b"ready\n" {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: the process group is that of the child process, for which the test has not waited. Therefore the id
        // of the process group is still in use.
        assert_eq!(unsafe { libc::kill(-(child.id() as i32), signal) }, 0);
    }
    Done::from_output(child.wait_with_output().unwrap(), folder)
}

#[test]
fn ctrl_c_ends_the_program_and_its_shell() {
    let shell = "cd . && $1 told 2 >ready; echo after";
    let done = in_a_shell(shell, Some(libc::SIGINT));
    assert_eq!((end(&done), done.stdout.as_str()), ((None, Some(libc::SIGINT)), ""), "{}", done.stderr);
    assert_eq!(assert_written(&done), 1100);
}

#[test]
fn a_program_ended_by_timeout_leaves_the_files() {
    for (signal, code) in [("-s INT", 124), ("-s TERM", 124), ("--preserve-status -s HUP", 129)] {
        // On SIGALRM, the command `timeout` acts as if its time were over. `set -m` turns job control on, because
        // otherwise background programs ignore SIGINT.
        let shell = format!(
            "set -m; timeout {signal} 1000 $1 told 2 >ready & while ! [ -s ready ]; do sleep 0.01; done; \
             kill -ALRM $!; wait $!"
        );
        let done = in_a_shell(&shell, None);
        assert_eq!((end(&done), done.stdout.as_str()), ((Some(code), None), ""), "{}", done.stderr);
        assert_eq!(assert_written(&done), 1100);
    }
}

#[test]
fn a_program_under_nohup_survives_sighup() {
    let shell = "nohup $1 told 2 >ready & while ! [ -s ready ]; do sleep 0.01; done; \
                 kill -HUP $!; sleep 0.2; kill -TERM $!; wait $!";
    let done = in_a_shell(shell, None);
    assert_eq!(end(&done), (Some(128 + libc::SIGTERM), None), "{}", done.stderr);
    assert_eq!(assert_written(&done), 1100);
}
