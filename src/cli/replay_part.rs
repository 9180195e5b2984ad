//! Defines the command-line flags that select the part of a run to replay.

use clap::Args;

use super::console::usage_error;
use super::found_path::FoundPath;
use super::input::Source;
use super::times::parse_micros;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_offline::analysis::{Moment, MomentKind};

/// Tests whether a moment keeps its recorded time, because it is outside the replayed part. The first argument of the
/// function is the index of the moment.
pub(super) type OutsideTest<'a> = dyn Fn(usize, &Moment) -> bool + 'a;

/// Flags that select a part of a run. Calls and GPU work outside the part happen at the recorded times.
#[derive(Debug, Args)]
pub(super) struct PartFlags {
    /// Replay only this step, counted from 1.
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "to", "ops"])]
    step: Option<usize>,
    /// Replay only the part of the run after this time, counted from the start of the run: `10ms`, `1.5s` or `200us`. A
    /// time without a unit is in microseconds. Calls and work outside the part happen at the recorded times.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    from: Option<i64>,
    /// Replay only the part of the run before this time, counted from the start of the run.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    to: Option<i64>,
    /// Replay only these instructions, by the numbers that `gpuflame instructions` prints: `100..200` includes the
    /// instructions 100 and 200.
    #[arg(long, value_name = "A..B", value_parser = parse_range, conflicts_with_all = ["from", "to"])]
    ops: Option<(u32, u32)>,
    /// Replay only these streams, as GPU and stream: `0:7,0:20`.
    #[arg(long, value_name = "GPU:STREAM", value_delimiter = ',', value_parser = parse_stream)]
    stream: Vec<(u32, u32)>,
}

fn parse_range(text: &str) -> Result<(u32, u32)> {
    let parts = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let parts = parts.filter(|(a, b)| a <= b);
    parts.ok_or_else(|| usage_error("want two numbers, the smaller one first, such as 100..200"))
}

fn parse_stream(text: &str) -> Result<(u32, u32)> {
    let parts =
        text.split_once(':').and_then(|(device, stream)| Some((device.parse().ok()?, stream.parse().ok()?)));
    parts.ok_or_else(|| usage_error("want a GPU and a stream, such as 0:7"))
}

impl PartFlags {
    /// Whether a flag restricts the replay to a part of the run.
    pub(super) fn is_given(&self) -> bool {
        self.step.is_some()
            || self.from.is_some()
            || self.to.is_some()
            || self.ops.is_some()
            || !self.stream.is_empty()
    }

    /// Returns a function that tests whether a moment is outside the replayed part.
    ///
    /// # Errors
    /// Fails if the part contains no moment.
    pub(super) fn outside<'a>(
        &'a self,
        input: &Source,
        found: &'a FoundPath,
    ) -> Result<Box<OutsideTest<'a>>> {
        let (from, to) = self.window(input, found)?;
        let ops = self.ops.unwrap_or((0, u32::MAX));
        let is_outside = move |_: usize, moment: &Moment| {
            let is_call = matches!(moment.kind, MomentKind::CallBegin | MomentKind::CallEnd);
            let instruction = found.list.get(moment.instruction);
            let place = instruction.device.zip(instruction.stream);
            let is_of_stream =
                || place.is_some_and(|(device, stream)| self.stream.contains(&(device.0, stream.0)));
            moment.time < from
                || moment.time > to
                || !(ops.0..=ops.1).contains(&moment.instruction)
                || (!self.stream.is_empty() && (is_call || !is_of_stream()))
        };
        let moments = found.path.moments();
        if moments.iter().enumerate().all(|(at, moment)| is_outside(at, moment)) {
            let streams = found.list_streams();
            let what = match self.stream.is_empty() {
                true => format!("no work is in this part; there are {} instructions", found.list.len()),
                false => format!("no work is on this stream; there are {streams}"),
            };
            return Err(Error::new(ErrorKind::Format, format!("{input}: {what}")));
        }
        Ok(Box::new(is_outside))
    }

    fn window(&self, input: &Source, found: &FoundPath) -> Result<(u64, u64)> {
        if !self.is_given() {
            return Ok((0, u64::MAX));
        }
        match self.step {
            Some(step) => found.step(input, step),
            None => found.stretch(self.from, self.to),
        }
    }
}
