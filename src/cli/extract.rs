//! `gpuflame extract`: writes the GPU operations of a time range as a table.

use clap::Args;

use super::console::{Console, Outcome};
use super::input::Source;
use super::output::Target;
use super::report::name_writer;
use super::trace::{self, TraceFlags};
use gpuflame_export::clean_line;
use gpuflame_model::error::Result;
use gpuflame_traces::steps::{Extract as Table, Ops, TimeRange};

/// Number of operations to print as a preview if the table is written to a file.
const PREVIEW: usize = 5;

/// Write the GPU operations that are entirely within a time range, by start.
///
/// Reads traces of torch.profiler, Paddle and other tools, plain or compressed. The columns are kernel_name,
/// start_time_us, end_time_us and duration_us; times are exact.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gpuflame extract trace.json.gz ops.csv 2684054,2687705")]
pub(super) struct Extract {
    /// Trace or recording (`-`: standard input).
    input: Source,
    /// CSV file to write (`-`: standard output).
    output: Target,
    /// Time range in microseconds on the trace's clock, inclusive. Without START or END, that end is open.
    #[arg(value_name = "START,END", allow_hyphen_values = true)]
    window: TimeRange,
    /// Reproduce kernel_extractor: durations are differences of two floating-point numbers, with rounding
    /// errors, and events without start_time and end_time in their args are skipped.
    #[arg(long)]
    compat: bool,
    #[command(flatten)]
    how: TraceFlags,
}

impl Extract {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let mut ops = Ops::within(self.window.first, self.window.last).with_exact_times(self.compat);
        trace::read_trace(&self.input, &self.how, console, &mut ops)?;
        let all = ops.total;
        let table = Table::new(ops);
        self.output.write(console, |mut out| table.write(self.compat, name_writer(self.compat), &mut out))?;
        console.remark(format!("{} of {all} GPU operations are in that time range", table.ops().len()));
        if all == 0 {
            console.remark("the trace has no GPU operations of a kind that gpuflame knows");
        }
        if let (Target::File(_), false) = (&self.output, console.quiet) {
            Target::Stdout.write(console, |out| preview(&table, out))?;
        }
        Ok(Outcome::Clean)
    }
}

/// Prints the first few operations, with names truncated to fit a line.
fn preview(table: &Table, out: &mut dyn std::io::Write) -> gpuflame_model::error::Result<()> {
    for op in table.ops().iter().take(PREVIEW) {
        let name = table.name(op);
        let short: String = name.chars().take(50).collect();
        let dots = if short.len() < name.len() { "..." } else { "" };
        let (start, end) = (gpuflame_traces::steps::micros(op.start), gpuflame_traces::steps::micros(op.end));
        writeln!(out, "{start:>20} {end:>20}  {}{dots}", clean_line(&short))?;
    }
    Ok(())
}
