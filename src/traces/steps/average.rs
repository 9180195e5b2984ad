//! Computes the average step of a trace: the average times of the operations in a step, and of the bubbles (idle times
//! of the GPU) between them.
//!
//! An average over steps with different operations has no meaning. So a step is averaged only if it has the same
//! operations in the same order as the *reference* step. The reference step is the first step that has the most common
//! number of operations.

use std::collections::HashMap;
use std::io::Write;

use super::ops::{Ops, TracedOp, TracedStep};
use crate::import::NameTable;
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Definition of a bubble, which is the idle time before an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bubbles {
    /// The bubble begins when all earlier operations on all streams have ended. So the GPU is idle during the whole
    /// bubble. The sum of the bubbles in a step is the idle time from the start of the step to the start of its last
    /// operation.
    #[default]
    Union,
    /// The bubble begins at the end of the previous operation on the same stream. If the stream has no previous
    /// operation, the bubble begins at the start of the step.
    Stream,
    /// The bubble begins at the end of the operation that *started* directly before this operation, even if an earlier
    /// operation ends later.
    Order,
}

/// Options for averaging the steps of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct StatsOptions {
    /// Text that the name of the trimming operation contains. In each step, the operations before the first trimming
    /// operation are removed. Times are relative to the start of the trimming operation. Default:
    /// `recover_decode_task`.
    pub trim: Option<String>,
    /// Minimum duration in ns of a step that is averaged. Shorter steps are ignored. Default: 0.
    pub min: i64,
    /// Maximum duration in ns of a step that is averaged. Longer steps are ignored, because long steps are prefill
    /// steps and not decoding steps. Default: 30 ms.
    pub max: i64,
    /// Definition by which bubbles are computed. Default: [`Bubbles::Union`].
    pub bubbles: Bubbles,
    /// Whether to reproduce the output of the original tool byte by byte, including its errors. If the option is set,
    /// bubbles are computed by [`Bubbles::Order`], differences and sums are computed in `f64`, and steps without a
    /// `trim` operation are included untrimmed. Default: false.
    pub compat: bool,
    /// Whether the first bubble of a trimmed step is the gap between the removed operations and the trimming operation.
    /// By default, the first bubble is 0.
    pub gap_before_trim: bool,
}

impl Default for StatsOptions {
    fn default() -> Self {
        Self {
            trim: Some("recover_decode_task".to_owned()),
            min: 0,
            max: 30_000_000,
            bubbles: Bubbles::Union,
            compat: false,
            gap_before_trim: false,
        }
    }
}

/// An operation in the average step. All times are in us.
#[derive(Clone, Debug, PartialEq)]
pub struct Average {
    /// Name of the operation. A time in brackets at the end of the name is removed.
    pub name: String,
    /// Start time, relative to the start of the step or of the trimming operation.
    pub start: f64,
    /// End time, relative to the same point in time as `start`.
    pub end: f64,
    /// Duration of the operation.
    pub duration: f64,
    /// Idle time of the GPU before the operation.
    pub bubble: f64,
}

/// Counts of averaged and skipped steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsReport {
    /// Number of steps in the trace.
    pub steps: usize,
    /// Number of steps whose duration is within the limits.
    pub in_bounds: usize,
    /// Number of steps whose duration is within the limits and that contain operations.
    pub with_ops: usize,
    /// Number of steps that were skipped because they have no trimming operation, although some steps have a trimming
    /// operation.
    pub untrimmed: usize,
    /// Number of steps that were averaged, because they have the same operations as the reference.
    pub averaged: usize,
    /// Number of operations in the reference step.
    pub ops: usize,
    /// Number of operations that begin inside a step and end after the step. Operations that begin inside a step and
    /// end after it do not belong to any step.
    pub crossing: usize,
}

/// The average step of a trace.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Operations of the average step, sorted by start time.
    pub averages: Vec<Average>,
    /// Counts of averaged and skipped steps.
    pub report: StatsReport,
}

/// A step and its operations.
struct Step<'a> {
    start: i64,
    /// Time to which the times of the step are relative: the start of the step or of the trimming operation.
    base: i64,
    ops: &'a [TracedOp],
    /// Indexes in `ops` of the operations inside the step, except those that were removed by trimming.
    within: Vec<u32>,
    /// Indexes in `ops` of the operations that were removed by trimming.
    trimmed_ops: Vec<u32>,
    trimmed: bool,
}

impl Step<'_> {
    fn ops(&self) -> impl Iterator<Item = &TracedOp> {
        self.within.iter().map(|&at| &self.ops[at as usize])
    }
}

impl Stats {
    /// Computes the average step from all steps of a trace.
    ///
    /// # Errors `Format` if there are no steps, no steps within the limits of duration, or no steps with operations.
    pub fn new(ops: Ops, options: &StatsOptions) -> Result<Self> {
        let Ops { mut ops, mut steps, names, total, .. } = ops;
        let mut report = StatsReport { steps: steps.len(), ..StatsReport::default() };
        retain_steps_in_bounds(&mut steps, options)?;
        report.in_bounds = steps.len();
        steps.sort_by_key(|step| step.start);
        ops.sort_by_key(|op| op.start);
        let names = BareNames::new(&names, options.trim.as_deref());
        let mut kept: Vec<Step<'_>> =
            steps.iter().map(|step| collect_ops(step, &ops, &names, &mut report)).collect();
        kept.retain(|step| !step.within.is_empty());
        report.with_ops = kept.len();
        if kept.is_empty() {
            let what =
                format!("All ProfileSteps are empty: none of the {total} GPU operations is inside a step");
            return Err(Error::new(ErrorKind::Format, what));
        }
        if !options.compat && kept.iter().any(|step| step.trimmed) {
            kept.retain(|step| step.trimmed);
            report.untrimmed = report.with_ops - kept.len();
        }
        let equal_steps = equal_to_reference(&kept, &names);
        report.averaged = equal_steps.len();
        report.ops = equal_steps[0].within.len();
        let averages = if options.compat {
            average_in_floats(&equal_steps, &names)
        } else {
            average_exactly(&equal_steps, &names, options)
        };
        Ok(Self { averages, report })
    }

    /// Writes the average step as a CSV table. `name` converts the name of an operation to the name that the table
    /// shows.
    ///
    /// # Errors
    /// Returns any error from writing to `out`.
    pub fn write(&self, name: impl Fn(&str) -> String, out: &mut impl Write) -> Result<()> {
        let mut out = csv::Writer::from_writer(out);
        let failed = |error: csv::Error| Error::new(ErrorKind::Io, error.to_string());
        let header =
            ["operation_name", "avg_start_time_us", "avg_end_time_us", "avg_duration_us", "bubble_time_us"];
        out.write_record(header).map_err(failed)?;
        for row in &self.averages {
            out.serialize((name(&row.name), row.start, row.end, row.duration, row.bubble)).map_err(failed)?;
        }
        Ok(out.flush()?)
    }
}

fn retain_steps_in_bounds(steps: &mut Vec<TracedStep>, options: &StatsOptions) -> Result<()> {
    if steps.is_empty() {
        let what = "No ProfileStep events found: the trace has no `ProfileStep#N` or `ProfilerStep#N`; \
                    call the profiler's step() once per step (in a recording: open a window per step)";
        return Err(Error::new(ErrorKind::Format, what));
    }
    let count = steps.len();
    let shortest = steps.iter().map(|step| step.end - step.start).min().unwrap_or(0);
    steps.retain(|step| {
        let length = step.end.saturating_sub(step.start);
        let fits = match options.compat {
            true => micros(step.end) - micros(step.start) <= micros(options.max),
            false => length <= options.max,
        };
        fits && length >= options.min
    });
    if steps.is_empty() {
        let what = format!(
            "No decode ProfileStep events found after filtering: none of the {count} steps takes {} to {} ms \
             (the shortest takes {} ms); give other limits",
            super::micros(options.min / 1000),
            super::micros(options.max / 1000),
            super::micros(shortest / 1000),
        );
        return Err(Error::new(ErrorKind::Format, what));
    }
    Ok(())
}

/// Bare names, which are operation names without the time at their end. There is one index for each distinct bare name.
struct BareNames {
    /// For each index in the [`NameTable`]: index of the name's bare name, and whether it is the name of a trimming
    /// operation.
    numbers: Vec<(u32, bool)>,
    texts: Vec<String>,
}

impl BareNames {
    fn new(names: &NameTable, trim: Option<&str>) -> Self {
        let mut known: HashMap<&str, u32> = HashMap::new();
        let mut texts = Vec::new();
        let number = |number: u32| {
            let text = strip_time(names.text(number));
            let bare = *known.entry(text).or_insert_with(|| {
                texts.push(text.to_owned());
                texts.len() as u32 - 1
            });
            (bare, trim.is_some_and(|trim| text.contains(trim)))
        };
        let numbers = (0..names.len() as u32).map(number).collect();
        Self { numbers, texts }
    }

    fn number(&self, op: &TracedOp) -> u32 {
        self.numbers[op.name as usize].0
    }
}

/// Removes the time that Paddle appends to a name (as in `gemm[12.345 us]`).
fn strip_time(name: &str) -> &str {
    match name.rsplit_once('[') {
        Some((before, time)) if time.ends_with(" us]") || time.ends_with(" ms]") => before,
        _ => name,
    }
}

fn collect_ops<'a>(
    step: &TracedStep,
    ops: &'a [TracedOp],
    names: &BareNames,
    report: &mut StatsReport,
) -> Step<'a> {
    let first = ops.partition_point(|op| op.start < step.start);
    let mut within = Vec::new();
    for (at, op) in (first as u32..).zip(&ops[first..]) {
        if op.start > step.end {
            break;
        }
        if op.end <= step.end {
            within.push(at);
        } else if op.start < step.end {
            report.crossing += 1;
        }
    }
    let mut trimmed_ops = Vec::new();
    let trim = within.iter().position(|&at| names.numbers[ops[at as usize].name as usize].1);
    let base = match trim {
        Some(at) => {
            trimmed_ops.extend(within.drain(..at));
            ops[within[0] as usize].start
        }
        None => step.start,
    };
    Step { start: step.start, base, ops, within, trimmed_ops, trimmed: trim.is_some() }
}

/// Returns the steps that have the same operations in the same order as the reference step. The reference is the first
/// step that has the most common number of operations. If two numbers of operations per step are equally common, the
/// number that occurs first is used.
fn equal_to_reference<'a, 's>(steps: &'a [Step<'s>], names: &BareNames) -> Vec<&'a Step<'s>> {
    let mut counts: Vec<(usize, usize)> = Vec::new();
    for step in steps {
        let length = step.within.len();
        match counts.iter_mut().find(|(known, _)| *known == length) {
            Some((_, count)) => *count += 1,
            None => counts.push((length, 1)),
        }
    }
    let max_count = counts.iter().map(|&(_, count)| count).max().unwrap_or(0);
    let length = counts.iter().find(|&&(_, count)| count == max_count).map_or(0, |&(length, _)| length);
    let sequence = |step: &Step<'_>| step.ops().map(|op| names.number(op)).collect::<Vec<_>>();
    let equal_steps = steps.iter().filter(|step| step.within.len() == length);
    let mut reference = None;
    equal_steps.filter(|step| *reference.get_or_insert_with(|| sequence(step)) == sequence(step)).collect()
}

/// Computes the averages from sums of integers. Each sum is divided only once, at the end, so that rounding errors do
/// not accumulate.
fn average_exactly(steps: &[&Step<'_>], names: &BareNames, options: &StatsOptions) -> Vec<Average> {
    let mut sums = vec![[0_i128; 4]; steps[0].within.len()];
    for step in steps {
        let mut ends: HashMap<(u32, u32), i64> = HashMap::new();
        let (mut before, mut latest_end) = (step.base, step.base);
        if options.gap_before_trim {
            (before, latest_end) = (step.start, step.start);
            for op in step.trimmed_ops.iter().map(|&at| &step.ops[at as usize]) {
                (before, latest_end) = (op.end, latest_end.max(op.end));
                let end = ends.entry(op.stream).or_insert(op.end);
                *end = op.end.max(*end);
            }
        }
        for (sum, op) in sums.iter_mut().zip(step.ops()) {
            let from = match options.bubbles {
                Bubbles::Union => latest_end,
                Bubbles::Order => before,
                Bubbles::Stream => *ends.get(&op.stream).unwrap_or(if options.gap_before_trim {
                    &step.start
                } else {
                    &step.base
                }),
            };
            let bubble = (op.start - from).max(0);
            let values = [op.start - step.base, op.end - step.base, op.end - op.start, bubble];
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += i128::from(value));
            (before, latest_end) = (op.end, latest_end.max(op.end));
            let end = ends.entry(op.stream).or_insert(op.end);
            *end = op.end.max(*end);
        }
    }
    let count = steps.len() as f64 * 1000.0;
    to_averages(sums.into_iter().map(|sum| sum.map(|sum| sum as f64 / count)), steps[0], names)
}

/// Computes the averages in the same way as the original tool. Every subtraction of that tool is repeated, so that the
/// rounding errors are the same as well.
fn average_in_floats(steps: &[&Step<'_>], names: &BareNames) -> Vec<Average> {
    let mut sums = vec![[0.0; 4]; steps[0].within.len()];
    for step in steps {
        let base = micros(step.base) - micros(step.start);
        let since = |time: i64| micros(time) - micros(step.start) - base;
        let mut before = 0.0;
        for (sum, op) in sums.iter_mut().zip(step.ops()) {
            let (start, end) = (since(op.start), since(op.end));
            let values = [start, end, micros(op.end) - micros(op.start), f64::max(start - before, 0.0)];
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            before = end;
        }
    }
    to_averages(sums.into_iter().map(|sum| sum.map(|sum| sum / steps.len() as f64)), steps[0], names)
}

/// Combines the averaged values with the names of the operations.
fn to_averages(
    values: impl Iterator<Item = [f64; 4]>,
    reference: &Step<'_>,
    names: &BareNames,
) -> Vec<Average> {
    let row = |([start, end, duration, bubble], op): ([f64; 4], &TracedOp)| {
        let name = names.texts[names.number(op) as usize].clone();
        Average { name, start, end, duration, bubble }
    };
    values.zip(reference.ops()).map(row).collect()
}

fn micros(nanos: i64) -> f64 {
    nanos as f64 / 1000.0
}
