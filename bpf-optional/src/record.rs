//! `gpuflame-bpf record`: records the stacks of launches from outside the process.

use std::ffi::OsString;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use clap::Args;
use gpuflame_model::error::{Error, ErrorKind, Result};

use crate::folded::{self, Options};
use crate::kernel::{Dropped, Watched};
use crate::launched::Seen;
use crate::process;
use crate::watch::{Named, Watch};

/// Record the stack of every launch that a command, a process or all processes make.
///
/// Attaches a probe to every function that starts GPU work, before its first call: in each mapped version of
/// libcudart and libcuda, and in a static runtime that still has its symbols. Stacks follow frame pointers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame-bpf record -E -o cpu_results.txt -- ./app --steps 100\n  \
    gpuflame-bpf record --pid 4242        until Ctrl-C\n\n\
    Exit codes: the command's; 2 if nothing could be recorded.")]
pub(crate) struct Record {
    /// Record this running process, and all processes that it forks from now on.
    #[arg(short, long, conflicts_with_all = ["all", "command"])]
    pid: Option<u32>,
    /// Record all processes.
    #[arg(long, conflicts_with = "command")]
    all: bool,
    /// Additional function to probe: the path of a file or the beginning of its name, and a symbol in it.
    #[arg(long, value_name = "LIB:SYMBOL", value_parser = named)]
    uprobe: Vec<Named>,
    /// Add the kernel's frames on top: those of the probe's own trap, and of anything that interrupted the
    /// trap.
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
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = buffer)]
    buffer: u32,
    /// Output file (`-`: standard output).
    #[arg(short, long, default_value = "cpu_results.txt")]
    output: PathBuf,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn named(text: &str) -> std::result::Result<Named, String> {
    match text.rsplit_once(':') {
        Some((library, symbol)) if !library.is_empty() && !symbol.is_empty() => {
            Ok(Named { library: library.to_owned(), symbol: symbol.to_owned() })
        }
        _ => Err("give LIB:SYMBOL, as in libcublas.so:cublasSgemm_v2".to_owned()),
    }
}

fn buffer(text: &str) -> std::result::Result<u32, String> {
    let mib: u32 = text.parse().map_err(|_| "give a number of MiB".to_owned())?;
    if mib.is_power_of_two() && mib <= 1024 {
        Ok(mib)
    } else {
        Err("give a power of two up to 1024".to_owned())
    }
}

/// Variable that makes a library inside the process call the marker.
pub(crate) const MARKER: &str = "GPUFLAME_LAUNCH_MARKER";

impl Record {
    /// Records, and returns the exit code.
    pub(crate) fn run(&self) -> Result<u8> {
        if self.pid.is_none() && !self.all && self.command.is_empty() {
            return Err(Error::new(ErrorKind::Setting, "give a command, --pid or --all"));
        }
        // An output that cannot be written is detected before the command is run.
        let mut out = self.out()?;
        let watched = Watched {
            all: self.all,
            kernel_stacks: self.kernel_stacks,
            copies: self.copies,
            buffer_mib: Some(self.buffer),
        };
        if let Some(pid) = self.pid
            && !process::is_there(pid)
        {
            return Err(Error::new(ErrorKind::State, format!("there is no process {pid}")));
        }
        let mut watch = Watch::new(watched, self.uprobe.clone())?;
        let code = match self.pid {
            Some(pid) => until_gone(&mut watch, pid)?,
            None if self.all => until_interrupted(&mut watch)?,
            None => until_over(&mut watch, &self.command, &[(MARKER, "1".into())])?,
        };
        let attached = watch.attached();
        let (seen, dropped, remarks) = watch.into_seen()?;
        remarks.iter().for_each(|remark| say(remark));
        if attached == 0 {
            return Err(Error::new(ErrorKind::State, nothing(&self.command, code)));
        }
        let options = Options { extended: self.extended, nested: self.nested };
        let written = folded::write(&seen, options, &mut out)?;
        say(&summary(&seen, &dropped, written));
        Ok(code)
    }

    fn out(&self) -> Result<Box<dyn std::io::Write>> {
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

/// Returns the reason why there are no launches.
fn nothing(command: &[OsString], code: u8) -> String {
    let what = match command.first() {
        Some(word) => format!("{} ended with {code} and", word.display()),
        None => "the watched processes".to_owned(),
    };
    format!(
        "{what} never mapped a libcudart or libcuda, nor a static runtime with symbols: nothing was probed \
         (a stripped program that contains the runtime is seen only when it calls libcuda.so.1)"
    )
}

/// Returns the counts, as one line.
fn summary(seen: &Seen, dropped: &Dropped, written: usize) -> String {
    let outermost = seen.launches.iter().filter(|launch| !launch.nested).count();
    let known = seen.launches.iter().filter(|launch| launch.correlation.is_some()).count();
    format!(
        "{} calls seen = {outermost} launches + {} nested; {written} written, {known} with correlation id; {} probes, {} \
         stacks; dropped {} calls, {} ids, {} mappings",
        seen.launches.len(),
        seen.launches.len() - outermost,
        seen.probes.len(),
        seen.stacks.len(),
        dropped.hits,
        dropped.markers,
        dropped.mappings,
    )
}

/// Runs a command and watches it from before its first instruction to its end. Returns the exit code.
pub(crate) fn until_over(
    watch: &mut Watch,
    command: &[OsString],
    environment: &[(&str, OsString)],
) -> Result<u8> {
    let held = process::hold(command, environment)?;
    watch.follow(held.pid)?;
    let running = held.go();
    loop {
        let [_, is_over] = process::wait([watch.descriptor(), running.descriptor()]);
        watch.read();
        if is_over {
            break;
        }
    }
    let status = running.status(command)?;
    // Reads the last records of the command.
    watch.read();
    Ok(gpuflame_os::child::exit_code(status))
}

fn until_gone(watch: &mut Watch, pid: u32) -> Result<u8> {
    process::end_on_signals();
    let end = process::end_of(pid)?;
    watch.follow(pid)?;
    watch.look_into_process(pid);
    use std::os::fd::AsRawFd as _;
    let mut is_gone = false;
    while !is_gone && !process::is_enough() {
        [_, is_gone] = process::wait([watch.descriptor(), end.as_raw_fd()]);
        watch.read();
    }
    Ok(0)
}

fn until_interrupted(watch: &mut Watch) -> Result<u8> {
    process::end_on_signals();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            watch.look_into_process(pid);
        }
    }
    while !process::is_enough() {
        process::wait([watch.descriptor()]);
        watch.read();
    }
    Ok(0)
}

/// Prints a line for the user.
pub(crate) fn say(text: &str) {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // If the reader or terminal of stderr has gone away, the recording must not end.
    let _ = std::io::stderr().write_all(format!("gpuflame-bpf: {line}\n").as_bytes());
}
