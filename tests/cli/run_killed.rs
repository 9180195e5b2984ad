//! `gpuflame run` of a process that is killed. Files, findings and page are made from the recording that the process
//! has left.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::run::{run, said};
use crate::support::{Done, compile};

#[test]
fn a_process_ended_by_sigkill_has_a_page_and_its_busy_time_is_reported() {
    let program = compile("tests/programs/ending.c", &["-O2", "-g0"]);
    let script = format!("{} left _exit & echo $! > process; wait", program.display());
    let run = run(&[], &["sh", "-c", &script]).env("GPUFLAME_CHECKPOINT", "0.05");
    let (mut command, folder) = run.into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(100);
    let wait_for = |launches: u64| {
        let is_written = || {
            let left = gpuflame::read(folder.join("out.gfr"), &gpuflame::ReadOptions::default());
            left.is_ok_and(|run| run.ledger().tally.activities.matched == launches)
        };
        while !is_written() {
            assert!(Instant::now() < deadline, "no checkpoint with {launches} launches");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Wait for a second checkpoint: the process tells `gpuflame run` the name of its file only after the first one.
    wait_for(1100);
    fs::write(folder.join("more"), "").unwrap();
    wait_for(1101);
    let process = fs::read_to_string(folder.join("process")).unwrap().trim().parse().unwrap();
    // SAFETY: kill takes any two numbers; the process is the one that this test's shell started.
    unsafe { libc::kill(process, libc::SIGKILL) };
    let done = Done::from_output(child.wait_with_output().unwrap(), folder);
    let [line] = said(&done, "ending (process ")[..] else { panic!("{}", done.stderr) };
    assert!(line.contains("): 1,101 launches, GPU 0 busy "), "{line}");
    assert_eq!(
        said(&done, &format!("wrote {}", done.folder.join("out.html").display())).len(),
        1,
        "{}",
        done.stderr
    );
    let page = fs::read_to_string(done.folder.join("out.html")).unwrap();
    assert!(page.contains("GPU 0 busy "), "the page shows its first line even without JavaScript");
    assert!(page.contains("not complete"), "the page warns that the end is missing");
}
