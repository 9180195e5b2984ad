//! `gpuflame states --as-hta`: shows queue lengths and idle times of streams by the rules of Holistic Trace Analysis.

use super::console::{Console, Outcome};
use super::explain::explain;
use super::heading::heading;
use super::input::Source;
use super::stream_flags::StreamFlags;
use super::table_output::{Cell, ReportFlags, Table};
use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_export::compose::call;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::Profile;
use gpuflame_offline::analysis::{HtaOp, enters_queue, hta_idle, hta_queues};
use gpuflame_offline::run::ReadOptions;

/// Writes the tables of queue lengths and of idle times.
pub(super) fn write_hta_tables(
    input: &Source,
    shown: &StreamFlags,
    report: &ReportFlags,
    console: Console,
) -> Result<Outcome> {
    let mut events = JoinedRows::default();
    let explained = explain(input, &ReadOptions::default(), console, &mut events)?;
    explained.facts.require_work(input)?;
    explained.facts.require_rows(input)?;
    let profile = &explained.profile;
    // If there are several steps, work of the last step is left out, because this work may have ended after the end of
    // the trace.
    let steps = explained.facts.steps.has_steps().then(|| explained.facts.steps.spans());
    let last = steps.filter(|steps| steps.len() > 1).and_then(|steps| Some(steps.last()?.0));
    let ops: Vec<HtaOp> = events
        .activities()
        .filter(|event| shown.wants_stream(event.activity.device.0, event.activity.stream.0))
        .filter_map(|event| operation(profile, &event))
        .filter(|op| last.is_none_or(|last| op.call.is_some_and(|call| call < last)))
        .collect();
    if ops.is_empty() {
        let what = "no work of these streams has times; `gpuflame info` shows its contents";
        return Err(Error::new(ErrorKind::Format, format!("{input}: {what}")));
    }
    report.write(console, &[heading(input, profile)], &[queue_table(&ops), idle_table(&ops)])?;
    Ok(Outcome::Clean)
}

fn operation(profile: &Profile, event: &JoinedActivity) -> Option<HtaOp> {
    let activity = &event.activity;
    activity.duration()?;
    let launched = event.origin.launched();
    Some(HtaOp {
        device: activity.device,
        stream: activity.stream,
        start: activity.start.0,
        end: activity.end.0,
        call: launched.map(|launched| launched.time.0),
        is_queued: launched.is_some_and(|launched| enters_queue(call(profile, launched.context))),
    })
}

fn queue_table(ops: &[HtaOp]) -> Table {
    let columns = &["device", "stream", "count", "mean", "std", "min", "p25", "p50", "p75", "max"];
    let mut table = Table::new("queue_length", columns);
    for queue in hta_queues(ops) {
        let (device, stream) = queue.key;
        let cells = [
            Cell::Id(device.0.into()),
            Cell::Id(stream.0.into()),
            Cell::Count(queue.count),
            Cell::Number(queue.mean),
            queue.std.map_or(Cell::Nothing, Cell::Number),
        ];
        table.add_row(cells.into_iter().chain(queue.quartiles.map(Cell::Number)));
    }
    table
}

fn idle_table(ops: &[HtaOp]) -> Table {
    let columns = &["device", "stream", "idle_category", "idle_time_us", "idle_time_ratio"];
    let mut table = Table::new("idle_time", columns);
    for idle in hta_idle(ops) {
        let (device, stream) = idle.key;
        table.add_row([
            Cell::Id(device.0.into()),
            Cell::Id(stream.0.into()),
            idle.category.into(),
            Cell::Number(idle.micros as f64),
            idle.ratio.map_or(Cell::Nothing, Cell::Number),
        ]);
    }
    table
}
