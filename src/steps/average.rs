//! What an average step looks like: each operation's time in it, and the bubbles between them.
//!
//! Steps differ, and averaging different things means nothing. So only steps with the same operations in
//! the same order are averaged: those like the *reference*, the first step that has as many operations as
//! most steps have.

use std::collections::HashMap;
use std::io::Write;

use super::ops::{Ops, TracedOp, TracedStep};
use crate::error::{Error, ErrorKind, Result};
use crate::import::NameTable;

/// From where to where a bubble goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bubbles {
    /// From the end of whatever ran before, on any stream: the GPU did nothing at all. The bubbles of a
    /// step add up to its idle time up to the last operation's start.
    #[default]
    Union,
    /// From the end of what ran before on the same stream (at first: from the step's start).
    Stream,
    /// From the end of the operation that *started* before, as if operations never overlapped.
    Order,
}

/// How to average steps.
#[derive(Clone, Debug, PartialEq)]
pub struct StatsOptions {
    /// Operations before the first whose name has this in it are left out of each step, and times count
    /// from that one. Default: `recover_decode_task`.
    pub trim: Option<String>,
    /// The shortest step that counts, in nanoseconds. Default: 0.
    pub min: i64,
    /// The longest step that counts, in nanoseconds (decoding; what takes longer is prefilling).
    /// Default: 30 ms.
    pub max: i64,
    /// What a bubble is. Default: [`Bubbles::Union`].
    pub bubbles: Bubbles,
    /// As the tool that this table comes from has it, to the last byte, also where that is wrong: bubbles
    /// by [`Bubbles::Order`], differences and sums in `f64`, and a step that lacks the `trim` operation
    /// counts untrimmed. Default: false.
    pub compat: bool,
    /// Whether the first bubble of a trimmed step is the gap before the trimming operation, from the end of what was left
    /// out. Default: false, it is 0.
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

/// An operation of the average step; microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Average {
    /// Its name, without a time in brackets at its end.
    pub name: String,
    /// When it starts, from the step's start (or the trimming operation's).
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// How long it takes.
    pub duration: f64,
    /// How long the GPU did nothing before it.
    pub bubble: f64,
}

/// What was averaged, and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsReport {
    /// Steps in the trace.
    pub steps: usize,
    /// Of those, steps of the right length.
    pub in_bounds: usize,
    /// Of those, steps that have operations.
    pub with_ops: usize,
    /// Steps left out since they lack the trimming operation which others have.
    pub untrimmed: usize,
    /// Steps like the reference: the averages are over these.
    pub averaged: usize,
    /// Operations of the reference.
    pub ops: usize,
    /// Operations that begin in a step and end behind it: they are in no step.
    pub crossing: usize,
}

/// The average step.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Its operations, by start.
    pub averages: Vec<Average>,
    /// What it is the average of.
    pub report: StatsReport,
}

/// A step's operations.
struct Step<'a> {
    start: i64,
    /// From where times count: its start, or that of the trimming operation.
    base: i64,
    ops: &'a [TracedOp],
    /// Which of `ops` lie in it.
    within: Vec<u32>,
    /// Which of them were left out.
    left_out: Vec<u32>,
    trimmed: bool,
}

impl Step<'_> {
    fn ops(&self) -> impl Iterator<Item = &TracedOp> {
        self.within.iter().map(|&at| &self.ops[at as usize])
    }
}

impl Stats {
    /// Averages over the steps.
    ///
    /// # Errors
    /// `Format` where there are no steps, none of the right length, or none with operations in it.
    pub fn new(ops: Ops, options: &StatsOptions) -> Result<Self> {
        let Ops { mut ops, mut steps, names, all, .. } = ops;
        let mut report = StatsReport { steps: steps.len(), ..StatsReport::default() };
        steps_in_bounds(&mut steps, options)?;
        report.in_bounds = steps.len();
        steps.sort_by_key(|step| step.start);
        ops.sort_by_key(|op| op.start);
        let names = Bare::new(&names, options.trim.as_deref());
        let mut found: Vec<Step<'_>> =
            steps.iter().map(|step| ops_of(step, &ops, &names, &mut report)).collect();
        found.retain(|step| !step.within.is_empty());
        report.with_ops = found.len();
        if found.is_empty() {
            let what = format!("All ProfileSteps are empty: none of the {all} GPU operations lies in one");
            return Err(Error::new(ErrorKind::Format, what));
        }
        if !options.compat && found.iter().any(|step| step.trimmed) {
            found.retain(|step| step.trimmed);
            report.untrimmed = report.with_ops - found.len();
        }
        let alike = like_the_reference(&found, &names);
        report.averaged = alike.len();
        report.ops = alike[0].within.len();
        let averages =
            if options.compat { in_floats(&alike, &names) } else { exact(&alike, &names, options) };
        Ok(Self { averages, report })
    }

    /// Writes the table, with names as `name` gives them.
    ///
    /// # Errors
    /// What `out` reports.
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

fn steps_in_bounds(steps: &mut Vec<TracedStep>, options: &StatsOptions) -> Result<()> {
    if steps.is_empty() {
        let what = "No ProfileStep events found: the trace has no `ProfileStep#N` or `ProfilerStep#N`; \
                    call the profiler's step() once a step (in a recording: open a window for each)";
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
            "No decode ProfileStep events found after filtering: of {count} steps none takes {} to {} ms \
             (the shortest takes {} ms); give other bounds",
            super::micros(options.min / 1000),
            super::micros(options.max / 1000),
            super::micros(shortest / 1000),
        );
        return Err(Error::new(ErrorKind::Format, what));
    }
    Ok(())
}

/// Names without a time at the end, each with one number.
struct Bare {
    /// The number at each number of [`NameTable`], and whether it is a trimming operation.
    numbers: Vec<(u32, bool)>,
    texts: Vec<String>,
}

impl Bare {
    fn new(names: &NameTable, trim: Option<&str>) -> Self {
        let mut known: HashMap<&str, u32> = HashMap::new();
        let mut texts = Vec::new();
        let number = |number: u32| {
            let text = bare(names.text(number));
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

/// A name without the time that Paddle writes behind it (`gemm[12.345 us]`).
fn bare(name: &str) -> &str {
    match name.rsplit_once('[') {
        Some((before, time)) if time.ends_with(" us]") || time.ends_with(" ms]") => before,
        _ => name,
    }
}

fn ops_of<'a>(step: &TracedStep, ops: &'a [TracedOp], names: &Bare, report: &mut StatsReport) -> Step<'a> {
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
    let mut left_out = Vec::new();
    let trim = within.iter().position(|&at| names.numbers[ops[at as usize].name as usize].1);
    let base = match trim {
        Some(at) => {
            left_out.extend(within.drain(..at));
            ops[within[0] as usize].start
        }
        None => step.start,
    };
    Step { start: step.start, base, ops, within, left_out, trimmed: trim.is_some() }
}

/// The steps with the operations of the first step that has as many as most have. Of two counts that are
/// equally frequent the one seen first wins.
fn like_the_reference<'a, 's>(steps: &'a [Step<'s>], names: &Bare) -> Vec<&'a Step<'s>> {
    let mut counts: Vec<(usize, usize)> = Vec::new();
    for step in steps {
        let length = step.within.len();
        match counts.iter_mut().find(|(known, _)| *known == length) {
            Some((_, count)) => *count += 1,
            None => counts.push((length, 1)),
        }
    }
    let most = counts.iter().map(|&(_, count)| count).max().unwrap_or(0);
    let length = counts.iter().find(|&&(_, count)| count == most).map_or(0, |&(length, _)| length);
    let sequence = |step: &Step<'_>| step.ops().map(|op| names.number(op)).collect::<Vec<_>>();
    let alike = steps.iter().filter(|step| step.within.len() == length);
    let mut reference = None;
    alike.filter(|step| *reference.get_or_insert_with(|| sequence(step)) == sequence(step)).collect()
}

/// Sums of integers, each divided once.
fn exact(steps: &[&Step<'_>], names: &Bare, options: &StatsOptions) -> Vec<Average> {
    let mut sums = vec![[0_i128; 4]; steps[0].within.len()];
    for step in steps {
        let mut ends: HashMap<(u32, u32), i64> = HashMap::new();
        let (mut before, mut furthest) = (step.base, step.base);
        if options.gap_before_trim {
            (before, furthest) = (step.start, step.start);
            for op in step.left_out.iter().map(|&at| &step.ops[at as usize]) {
                (before, furthest) = (op.end, furthest.max(op.end));
                let end = ends.entry(op.stream).or_insert(op.end);
                *end = op.end.max(*end);
            }
        }
        for (sum, op) in sums.iter_mut().zip(step.ops()) {
            let from = match options.bubbles {
                Bubbles::Union => furthest,
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
            (before, furthest) = (op.end, furthest.max(op.end));
            let end = ends.entry(op.stream).or_insert(op.end);
            *end = op.end.max(*end);
        }
    }
    let count = steps.len() as f64 * 1000.0;
    rows(sums.into_iter().map(|sum| sum.map(|sum| sum as f64 / count)), steps[0], names)
}

/// As the tool that began with this table adds up: what is a difference there is one here, so that even the
/// noise is the same.
fn in_floats(steps: &[&Step<'_>], names: &Bare) -> Vec<Average> {
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
    rows(sums.into_iter().map(|sum| sum.map(|sum| sum / steps.len() as f64)), steps[0], names)
}

/// The values of each operation, with its name.
fn rows(values: impl Iterator<Item = [f64; 4]>, reference: &Step<'_>, names: &Bare) -> Vec<Average> {
    let row = |([start, end, duration, bubble], op): ([f64; 4], &TracedOp)| {
        let name = names.texts[names.number(op) as usize].clone();
        Average { name, start, end, duration, bubble }
    };
    values.zip(reference.ops()).map(row).collect()
}

fn micros(nanos: i64) -> f64 {
    nanos as f64 / 1000.0
}
