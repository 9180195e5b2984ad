//! Measures the cost for a whole process that makes 200,000 launches at a depth of 64 from one thread, with and without
//! gpuflame. The measured time is that from exec to exit, and includes writing the outputs.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use crate::staged::{built, command, compiled};

const LAUNCHES: u32 = 200_000;
/// Number of pairs of runs that are measured. In each pair, one run is with gpuflame and the other run is without
/// gpuflame.
const PAIRS: usize = 20;

/// Wall-clock time, and CPU time of all processors together, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    pub(crate) wall: f64,
    pub(crate) processors: f64,
}

impl Took {
    fn better(self, other: Self) -> Self {
        Self { wall: self.wall.min(other.wall), processors: self.processors.min(other.processors) }
    }
}

/// Returns the time that gpuflame adds to a process per launch, for each of `settings`. The returned time is the
/// difference between the best run with gpuflame and the best run without it, because other load only makes a run
/// slower. Load by other programs affects CPU time less than wall-clock time. CPU time includes the collector's time,
/// for which the application does not wait.
pub(crate) fn added_per_launch<const N: usize>(cuda: &Path, settings: [&[(&str, &str)]; N]) -> [Took; N] {
    let program = compiled("tests/bench/launch/launches.c", &["-fomit-frame-pointer"], cuda);
    let folder = cuda.join("run");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    let run = |with: Option<&[(&str, &str)]>| {
        let mut command = command(&program, cuda);
        command.arg(LAUNCHES.to_string()).current_dir(&folder).stdin(Stdio::null());
        if let Some(settings) = with {
            command.env("CUDA_INJECTION64_PATH", built("libgpuflame.so")).env("GPUFLAME_OUTPUT", "out-%p");
            command.env("GPUFLAME_VERBOSE", "1");
            command.envs(settings.iter().copied());
        }
        command.stderr(Stdio::piped());
        let (began, before) = (Instant::now(), time_of_children());
        let output = command.output().expect("the program runs");
        let wall = began.elapsed().as_nanos() as f64;
        let took = Took { wall, processors: time_of_children() - before };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if with.is_some() {
            let ledger = String::from_utf8_lossy(&output.stderr);
            assert!(ledger.contains(&format!("launches {LAUNCHES} = matched {LAUNCHES} ")), "{ledger}");
        }
        took
    };
    let (mut without, mut with) = (run(None), settings.map(|settings| run(Some(settings))));
    for _ in 1..PAIRS {
        without = without.better(run(None));
        for (best, settings) in with.iter_mut().zip(settings) {
            *best = best.better(run(Some(settings)));
        }
    }
    let launches = f64::from(LAUNCHES);
    with.map(|with| Took {
        wall: (with.wall - without.wall) / launches,
        processors: (with.processors - without.processors) / launches,
    })
}

/// Returns the CPU time of all child processes that have ended.
fn time_of_children() -> f64 {
    // SAFETY: the all-zero value is valid, and getrusage writes to it.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut used);
        used
    };
    [used.ru_utime, used.ru_stime]
        .iter()
        .map(|time| time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3)
        .sum()
}
