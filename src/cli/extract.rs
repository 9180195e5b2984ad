//! `gpuflame extract`: writes the GPU operations within a time range as a table.

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::input::Source;
use super::output::Target;
use super::table_output::name_writer;
use super::times::parse_micros;
use super::trace::{self, TraceFlags};
use gpuflame_export::clean_line;
use gpuflame_model::error::Result;
use gpuflame_model::profile::format_nanos;
use gpuflame_traces::steps::{Extract as Table, Ops, TimeRange, micros};

/// Number of operations in the preview that is printed if the table is written to a file.
const PREVIEW: usize = 5;

/// Write the GPU operations that are entirely within a time range, sorted by start.
///
/// Reads traces of torch.profiler, Paddle and other tools, plain or compressed. The columns are kernel_name,
/// start_time_us, end_time_us and duration_us; times are exact.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame extract trace.json.gz ops.csv 2684054,2687705\n  \
    gpuflame extract trace.json.gz -o ops.csv --from 10ms --to 1.5s")]
pub(super) struct Extract {
    /// Trace or recording (`-`: standard input).
    input: Source,
    /// CSV file to write (`-`: standard output).
    #[arg(required_unless_present = "file")]
    output: Option<Target>,
    /// Time range in microseconds on the trace's clock, inclusive. If START or END is left out, the range has no limit
    /// on that side.
    #[arg(value_name = "START,END", allow_hyphen_values = true, required_unless_present_any = ["file", "from", "to"])]
    window: Option<TimeRange>,
    /// The same file as OUTPUT, for consistency with other verbs. With -o, the time range is given by --from and --to.
    /// Without --from and --to, all operations are written.
    #[arg(short = 'o', long = "output", value_name = "FILE", id = "file", conflicts_with_all = ["output", "window"])]
    file: Option<Target>,
    /// Time at which the range starts, counted from the first GPU operation, as `view` shows it: `10ms`, `1.5s` or
    /// `200us`. A time without a unit is in microseconds.
    #[arg(long, value_name = "TIME", value_parser = parse_micros, conflicts_with = "window")]
    from: Option<i64>,
    /// Time at which the range ends, counted from the first GPU operation.
    #[arg(long, value_name = "TIME", value_parser = parse_micros, conflicts_with = "window")]
    to: Option<i64>,
    /// Reproduce kernel_extractor. Durations are then differences of two floating-point numbers, with rounding errors.
    /// Events without start_time and end_time in their args are skipped.
    #[arg(long)]
    compat: bool,
    #[command(flatten)]
    how: TraceFlags,
}

impl Extract {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let output =
            self.file.as_ref().or(self.output.as_ref()).ok_or_else(|| usage_error("name a CSV file"))?;
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from > to
        {
            return Err(usage_error("--from is after --to; swap them"));
        }
        let (first, last) = self.window.map_or((i64::MIN, i64::MAX), |range| (range.first, range.last));
        let mut ops = Ops::within(first, last).with_exact_times(self.compat);
        trace::read_trace(&self.input, &self.how, console, &mut ops)?;
        let (all, span) = (ops.total, ops.span);
        self.keep_range(&mut ops);
        let table = Table::new(ops);
        output.write(console, |mut out| table.write(self.compat, name_writer(self.compat), &mut out))?;
        let exist = match span {
            Some((first, last)) if table.ops().is_empty() => {
                let length = format_nanos(last.saturating_sub(first).unsigned_abs());
                let [first, last] = [first, last].map(micros);
                format!("; they run from {first} to {last} us on the trace's clock, {length} in total")
            }
            _ => String::new(),
        };
        console
            .remark(format!("{} of {all} GPU operations are in that time range{exist}", table.ops().len()));
        if all == 0 {
            console.remark("the trace has no GPU operations of a kind that gpuflame knows");
        }
        if let (Target::File(_), false) = (output, console.quiet) {
            Target::Stdout.write(console, |out| preview(&table, out))?;
        }
        Ok(Outcome::Clean)
    }
}

impl Extract {
    /// Removes each operation that begins before `--from` or ends after `--to`. `--from` and `--to` count from the
    /// start of the first operation.
    fn keep_range(&self, ops: &mut Ops) {
        let Some((zero, _)) = ops.span.filter(|_| self.from.is_some() || self.to.is_some()) else { return };
        let from = self.from.map_or(i64::MIN, |from| zero.saturating_add(from));
        let to = self.to.map_or(i64::MAX, |to| zero.saturating_add(to));
        ops.ops.retain(|op| op.start >= from && op.end <= to);
    }
}

/// Prints the first few operations, with names truncated to fit a line.
fn preview(table: &Table, out: &mut dyn std::io::Write) -> gpuflame_model::error::Result<()> {
    for op in table.ops().iter().take(PREVIEW) {
        let name = table.name(op);
        let short: String = name.chars().take(50).collect();
        let dots = if short.len() < name.len() { "..." } else { "" };
        let (start, end) = (micros(op.start), micros(op.end));
        writeln!(out, "{start:>20} {end:>20}  {}{dots}", clean_line(&short))?;
    }
    Ok(())
}
