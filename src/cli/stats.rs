//! `gpuflame stats`: computes the average step of an inference server, and the bubbles, which are the times in a step
//! during which the GPU waits.

use clap::{Args, ValueEnum};

use super::console::{Console, Outcome, usage_error};
use super::input::Source;
use super::near_misses::{near_misses, quoted};
use super::output::Target;
use super::table_output::name_writer;
use super::times::parse_millis;
use super::trace::{self, TraceFlags};
use gpuflame_model::error::Result;
use gpuflame_traces::steps::{Bubbles, Ops, Stats as Table, StatsOptions};

/// Default value of the argument TRIM, as in kernel_extractor. A trace need not contain an operation with this name.
const DEFAULT_TRIM: &str = "recover_decode_task";

/// Average the GPU operations of equal steps, and the idle time before each operation.
///
/// Steps are those of the profiler (`ProfileStep#N`, `ProfilerStep#N`) or of a recording. The steps of a recording are
/// those that the program began with `gpuflame.step()` or with ranges named by GPUFLAME_STEP_RANGE, otherwise its
/// windows. Only steps with the same operations in the same order are averaged. The averaged steps are those that equal
/// the first step with the most common number of operations.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gpuflame stats trace.json.gz steps.csv none 1000")]
pub(super) struct Stats {
    /// Trace or recording (`-`: standard input).
    input: Source,
    /// CSV file to write (`-`: standard output).
    #[arg(required_unless_present = "file")]
    output: Option<Target>,
    /// In each step, remove the operations before the first operation whose name contains TRIM, and count times from
    /// that operation (`none`: remove nothing).
    #[arg(value_name = "TRIM", default_value = DEFAULT_TRIM)]
    trim: String,
    /// Maximum length of a step, such as `30ms`: longer steps are prefill, not decoding. A time without a unit is in
    /// milliseconds.
    #[arg(value_name = "MAX_MS", default_value = "30", value_parser = parse_millis)]
    longest: i64,
    /// The same file as OUTPUT, for consistency with other verbs. With -o, TRIM and MAX_MS are given as options too.
    #[arg(short = 'o', long = "output", value_name = "FILE", id = "file", conflicts_with = "output")]
    file: Option<Target>,
    /// Same as TRIM.
    #[arg(long = "trim", value_name = "TRIM", id = "trim-option", conflicts_with = "trim")]
    trim_option: Option<String>,
    /// Same as MAX_MS, and takes precedence over MAX_MS. A time without a unit is in milliseconds.
    #[arg(long, alias = "max-ms", value_name = "TIME", value_parser = parse_millis)]
    max: Option<i64>,
    /// Minimum length of a step, such as `500us` or `2ms`. A time without a unit is in milliseconds.
    #[arg(long, alias = "min-ms", value_name = "TIME", default_value = "0ms", value_parser = parse_millis)]
    min: i64,
    /// Definition of a bubble.
    #[arg(long, value_enum, default_value = "union")]
    bubbles: BubbleStart,
    /// Reproduce kernel_extractor to the last byte. Bubbles are then in the order of starts, and sums are
    /// floating-point numbers with rounding errors. Steps without the TRIM operation are not trimmed. Events without
    /// start_time and end_time in their args are skipped.
    #[arg(long)]
    compat: bool,
    /// With TRIM: the first bubble is the gap between the end of the removed operations and the TRIM operation, instead
    /// of 0.
    #[arg(long, conflicts_with = "compat")]
    gap_before_trim: bool,
    #[command(flatten)]
    how: TraceFlags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BubbleStart {
    /// A bubble begins when all earlier operations on all streams have ended, so the GPU is idle.
    Union,
    /// A bubble begins at the end of the previous operation on the same stream.
    Stream,
    /// A bubble begins at the end of the operation that started before, as if operations never overlapped.
    Order,
}

impl Stats {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let max = self.max.unwrap_or(self.longest);
        if self.min > max {
            return Err(usage_error("--min is above the maximum length (MAX_MS or --max); swap them"));
        }
        let output =
            self.file.as_ref().or(self.output.as_ref()).ok_or_else(|| usage_error("name a CSV file"))?;
        let options = StatsOptions {
            trim: Some(self.trim().to_owned()).filter(|trim| !trim.eq_ignore_ascii_case("none")),
            min: self.min,
            max,
            bubbles: match self.bubbles {
                BubbleStart::Union => Bubbles::Union,
                BubbleStart::Stream => Bubbles::Stream,
                BubbleStart::Order => Bubbles::Order,
            },
            compat: self.compat,
            gap_before_trim: self.gap_before_trim,
        };
        let mut ops = Ops::with_steps().with_exact_times(self.compat);
        trace::read_trace(&self.input, &self.how, console, &mut ops)?;
        self.remark_on_trim(&ops, console);
        let table = Table::new(ops, &options).map_err(|error| error.within(&self.input))?;
        output.write(console, |mut out| table.write(name_writer(self.compat), &mut out))?;
        self.report(&table, console);
        Ok(Outcome::Clean)
    }

    /// Prints a remark if the trace contains no operation whose name the user's TRIM matches.
    fn remark_on_trim(&self, ops: &Ops, console: Console) {
        let trim = self.trim();
        let names = || (0..ops.names.len() as u32).map(|number| ops.names.text(number));
        let is_off = trim.eq_ignore_ascii_case("none") || trim == DEFAULT_TRIM;
        if is_off || names().any(|name| name.contains(trim)) {
            return;
        }
        let near = near_misses(trim, names());
        let advice =
            if near.is_empty() { String::new() } else { format!("; did you mean {}?", quoted(&near)) };
        console.remark(format!("no operation has `{trim}` in its name, so nothing is trimmed{advice}"));
    }

    fn trim(&self) -> &str {
        self.trim_option.as_ref().unwrap_or(&self.trim)
    }

    fn report(&self, table: &Table, console: Console) {
        let report = &table.report;
        console.remark(format!(
            "averaged {} of {} steps ({} of the right length, {} with operations), {} operations each",
            report.averaged, report.steps, report.in_bounds, report.with_ops, report.ops
        ));
        if report.untrimmed > 0 {
            let (count, trim) = (report.untrimmed, self.trim());
            console
                .remark(format!("skipped {count} steps without a `{trim}` operation (other steps have one)"));
        }
        if report.crossing > 0 {
            let count = report.crossing;
            console.remark(format!(
                "{count} operations begin in a step and end after it: they belong to no step"
            ));
        }
    }
}
