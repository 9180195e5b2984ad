//! `gpuflame-bpf record`: records the stacks of launches from outside the process.

use std::ffi::OsString;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use clap::Args;
use gpuflame_model::error::{Error, ErrorKind, Result};

use crate::folded::{self, FoldedOptions};
use crate::kernel::{DropCounts, WatchOptions};
use crate::probed_launches::ProbedLaunches;
use crate::process;
use crate::watch::{UserProbe, Watcher};

/// Record the stack of every launch that a command, a process or all processes make.
///
/// Attaches a probe to every function that starts GPU work, before its first call: in each mapped version of libcudart
/// and libcuda, and in a static runtime that still has its symbols. Stacks are captured by frame pointers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame-bpf record -E -o cpu_results.txt -- ./app --steps 100\n  \
    gpuflame-bpf record --pid 4242        until Ctrl-C\n\n\
    Exit codes: the command's; 2 if nothing could be recorded.")]
pub(crate) struct Record {
    /// Record this running process, and all processes that it forks while it is recorded.
    #[arg(short, long, conflicts_with_all = ["all", "command"])]
    pid: Option<u32>,
    /// Record all processes.
    #[arg(long, conflicts_with = "command")]
    all: bool,
    /// Additional function to probe: the path of a file or the beginning of its name, and a symbol in it.
    #[arg(long, value_name = "LIB:SYMBOL", value_parser = parse_user_probe)]
    uprobe: Vec<UserProbe>,
    /// Add the kernel's frames on top of stacks: frames of the probe's own trap, and of anything that interrupted it.
    #[arg(long)]
    kernel_stacks: bool,
    /// Write one line per launch: TIME COMM PID TID CPU FRAMES, with [correlation N] if gpuflame is in the
    /// process.
    #[arg(short = 'E', long)]
    extended: bool,
    /// Record copies and fills as well.
    #[arg(long)]
    copies: bool,
    /// Write calls that CUDA makes inside other calls as well.
    #[arg(long)]
    nested: bool,
    /// Size of the buffer for unread records, in MiB: a power of two, at most 1024.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = parse_buffer_size)]
    buffer: u32,
    /// Output file (`-`: standard output).
    #[arg(short, long, default_value = "cpu_results.txt")]
    output: PathBuf,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_user_probe(text: &str) -> std::result::Result<UserProbe, String> {
    match text.rsplit_once(':') {
        Some((library, symbol)) if !library.is_empty() && !symbol.is_empty() => {
            Ok(UserProbe { library: library.to_owned(), symbol: symbol.to_owned() })
        }
        _ => Err("give LIB:SYMBOL, as in libcublas.so:cublasSgemm_v2".to_owned()),
    }
}

fn parse_buffer_size(text: &str) -> std::result::Result<u32, String> {
    let mib: u32 = text.parse().map_err(|_| "give a number of MiB".to_owned())?;
    if mib.is_power_of_two() && mib <= 1024 {
        Ok(mib)
    } else {
        Err("give a power of two up to 1024".to_owned())
    }
}

/// Environment variable of the watched process that makes libgpuflame call the probed function `gpuflame_launch_marker`
/// for each launch.
pub(crate) const MARKER_VARIABLE: &str = "GPUFLAME_LAUNCH_MARKER";

impl Record {
    /// Records launches, and returns the exit code.
    pub(crate) fn run(&self) -> Result<u8> {
        if self.pid.is_none() && !self.all && self.command.is_empty() {
            return Err(Error::new(ErrorKind::Setting, "give a command, --pid or --all"));
        }
        // The output is opened first. Therefore, if the output cannot be written, the error is reported before the
        // command runs.
        let mut out = self.open_output()?;
        let watched = WatchOptions {
            all: self.all,
            kernel_stacks: self.kernel_stacks,
            copies: self.copies,
            buffer_mib: Some(self.buffer),
        };
        if let Some(pid) = self.pid
            && !process::process_exists(pid)
        {
            return Err(Error::new(ErrorKind::State, format!("there is no process {pid}")));
        }
        let mut watch = Watcher::new(watched, self.uprobe.clone())?;
        let code = match self.pid {
            Some(pid) => watch_process(&mut watch, pid)?,
            None if self.all => watch_all(&mut watch)?,
            None => watch_command(&mut watch, &self.command, &[(MARKER_VARIABLE, "1".into())])?,
        };
        let attached = watch.probe_count();
        let (probed, dropped, remarks) = watch.into_launches()?;
        remarks.iter().for_each(|remark| print_message(remark));
        if attached == 0 {
            return Err(Error::new(ErrorKind::State, nothing_probed(&self.command, code)));
        }
        let options = FoldedOptions { extended: self.extended, nested: self.nested };
        let written = folded::write(&probed, options, &mut out)?;
        print_message(&summary(&probed, &dropped, written));
        Ok(code)
    }

    fn open_output(&self) -> Result<Box<dyn std::io::Write>> {
        if self.output.as_os_str() == "-" {
            return Ok(Box::new(BufWriter::new(std::io::stdout())));
        }
        let made = std::fs::File::create(&self.output);
        let file = made.map_err(|error| {
            Error::new(
                ErrorKind::Io,
                format!("{}: {error}; name another file with -o", self.output.display()),
            )
        })?;
        Ok(Box::new(BufWriter::new(file)))
    }
}

/// Returns a message that explains why no function could be probed.
fn nothing_probed(command: &[OsString], code: u8) -> String {
    let what = match command.first() {
        Some(word) => format!("{} ended with {code} and", word.display()),
        None => "the watched processes".to_owned(),
    };
    format!(
        "{what} never mapped a libcudart or libcuda, nor a static runtime with symbols: nothing was probed \
         (a stripped program that contains the runtime is seen only when it calls libcuda.so.1)"
    )
}

/// Returns a line that states the number of launches and the number of dropped records.
fn summary(probed: &ProbedLaunches, dropped: &DropCounts, written: usize) -> String {
    let outermost = probed.launches.iter().filter(|launch| !launch.nested).count();
    let known = probed.launches.iter().filter(|launch| launch.correlation.is_some()).count();
    format!(
        "{} calls seen = {outermost} launches + {} nested; {written} written, {known} with correlation id; {} probes, {} \
         stacks; dropped {} calls, {} ids, {} mappings",
        probed.launches.len(),
        probed.launches.len() - outermost,
        probed.probes.len(),
        probed.stacks.len(),
        dropped.hits,
        dropped.markers,
        dropped.mappings,
    )
}

/// Runs a command, and watches its process from before its first instruction until it ends. Returns the exit code of
/// the command.
pub(crate) fn watch_command(
    watch: &mut Watcher,
    command: &[OsString],
    environment: &[(&str, OsString)],
) -> Result<u8> {
    let paused = process::start_paused(command, environment)?;
    watch.follow(paused.pid)?;
    let running = paused.start();
    loop {
        let [_, is_over] = process::wait_readable([watch.descriptor(), running.descriptor()]);
        watch.read();
        if is_over {
            break;
        }
    }
    let status = running.status(command)?;
    // Reads the last records about the command.
    watch.read();
    Ok(gpuflame_os::child::exit_code(status))
}

fn watch_process(watch: &mut Watcher, pid: u32) -> Result<u8> {
    process::catch_interrupts();
    let end = process::open_pidfd(pid)?;
    watch.follow(pid)?;
    watch.inspect_process(pid);
    use std::os::fd::AsRawFd as _;
    let mut is_gone = false;
    while !is_gone && !process::is_interrupted() {
        [_, is_gone] = process::wait_readable([watch.descriptor(), end.as_raw_fd()]);
        watch.read();
    }
    Ok(0)
}

fn watch_all(watch: &mut Watcher) -> Result<u8> {
    process::catch_interrupts();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            watch.inspect_process(pid);
        }
    }
    while !process::is_interrupted() {
        process::wait_readable([watch.descriptor()]);
        watch.read();
    }
    Ok(0)
}

/// Prints a line to stderr for the user.
pub(crate) fn print_message(text: &str) {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // Errors are ignored: even if the reader or the terminal of stderr has gone away, the recording must continue.
    let _ = std::io::stderr().write_all(format!("gpuflame-bpf: {line}\n").as_bytes());
}
