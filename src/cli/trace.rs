//! Reads a trace or a recording as trace events, and shows a progress bar if reading takes long.

use clap::Args;

use super::console::Console;
use super::input::{Source, print_remarks, sums_only_error, with_progress};
use super::recorded_steps::RecordedEvents;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_traces::import::{Fork, Kind, Options, ReadCounts};

/// Command-line options for reading the trace of another tool.
#[derive(Debug, Args)]
pub(super) struct TraceFlags {
    /// Number of threads that read a plain JSON file. The number of threads does not change the result.
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Size of the read buffer in KiB. The size of the buffer does not change the result.
    #[arg(long, value_name = "KIB", default_value_t = 1024, hide = true)]
    buffer: usize,
}

/// Passes the trace events of `source` to `sink`.
pub(super) fn read_trace(
    source: &Source,
    how: &TraceFlags,
    console: Console,
    sink: &mut impl Fork,
) -> Result<()> {
    let opened = source.open()?;
    let kind = opened.kind();
    if matches!(kind, Kind::Folded | Kind::ExtendedFolded) {
        let what =
            format!("{source}: {kind} have no GPU operations; give the trace from which they were made");
        return Err(Error::new(ErrorKind::Format, what));
    }
    let options = Options {
        buffer: how.buffer.clamp(1, 1 << 20) << 10,
        threads: how.threads.clamp(1, 64),
        accept_cut: console.accept_cut,
        ..Options::default()
    };
    let (options, _bar) = with_progress(options, &opened, console);
    let seen = if kind == Kind::Recording {
        let mut events = RecordedEvents::new(sink);
        let read = source.recording(opened, &options, console, &mut |row| events.add_row(row))?;
        if read.has_only_sums {
            return Err(sums_only_error(source, read.is_finished));
        }
        events.add_steps();
        ReadCounts { untimed: events.untimed, ..ReadCounts::default() }
    } else {
        opened.read_parallel(&options, sink)?
    };
    print_remarks(source, &seen, console);
    Ok(())
}
