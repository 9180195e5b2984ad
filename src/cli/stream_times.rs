//! Finds impossible durations in a run. A duration is impossible if the activity ends after a later activity on the
//! same stream has begun. All verbs that show GPU time have a table of the figures that impossible durations change.
//! The table shows each figure twice: as recorded, and as computed under the assumption that activities with an
//! impossible duration ended when the later work began.

use super::console::Console;
use super::explain::Explained;
use super::input::Source;
use super::table_output::{Cell, Table, group_digits};
use gpuflame_export::work_name;
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_offline::analysis::{DurationContradiction, StreamOrder, WorkSpans, check_stream_order};

/// Maximum number of activities whose order is checked by verbs that otherwise store only sums. Checking this number of
/// activities takes about 50 MB of memory.
pub(super) const MAX_SPANS: usize = 1 << 20;
/// Name of the table of impossible durations.
pub(super) const TABLE: &str = "impossible_durations";
/// Maximum number of impossible durations that a table lists.
const MAX_ROWS: usize = 10;

/// Checks the order of the activities in `spans` with [`check_order`]. Returns the table of impossible durations, if
/// there are any.
pub(super) fn check_durations(
    source: &Source,
    explained: &Explained,
    mut spans: WorkSpans,
    console: Console,
) -> Option<Table> {
    let order = check_order(source, explained, &mut spans, console);
    clamped_table(TABLE, &explained.profile, &order)
}

/// Checks whether the activities in `spans` ran one after another on their streams. Prints a remark if durations are
/// impossible, and another remark if some activities were not checked.
pub(super) fn check_order(
    source: &Source,
    explained: &Explained,
    spans: &mut WorkSpans,
    console: Console,
) -> StreamOrder {
    if spans.skipped() > 0 {
        console.remark(format!(
            "{source}: the durations of {} activities were not checked; `gpuflame check` checks all of them",
            group_digits(spans.skipped())
        ));
    }
    let order = check_stream_order(&explained.profile, spans, explained.facts.linked.as_ref());
    remark_impossible(source, &explained.profile, &order, console);
    order
}

/// Prints a remark with the number of impossible durations and the name of the first affected activity.
pub(super) fn remark_impossible(source: &Source, profile: &Profile, order: &StreamOrder, console: Console) {
    let Some(worst) = order.impossible.first() else { return };
    let clamped = format_nanos(worst.clamped_ns);
    let why = match worst.contradiction {
        DurationContradiction::LaterWork => format!("{clamped} until later work of its stream began"),
        DurationContradiction::Wait => format!("{clamped} until a wait for the GPU returned"),
        DurationContradiction::TooLong => "more than a day".to_owned(),
    };
    console.remark(format!(
        "{source}: {} impossible durations, such as {} of {} ({why}); GPU work is {} as recorded, {} if each of them \
         ends there",
        order.impossible.len(),
        format_nanos(worst.raw_ns),
        work_name(profile, worst.work),
        format_nanos(order.raw_ns),
        format_nanos(order.clamped_ns),
    ));
}

/// Returns a table of the figures that impossible durations change. The table shows each figure twice: as recorded, and
/// as computed under the assumption that each activity with an impossible duration ended when later work of its stream
/// began. Returns `None` if no duration is impossible. `start_ns` counts from the start of the first activity.
pub(super) fn clamped_table(name: &'static str, profile: &Profile, order: &StreamOrder) -> Option<Table> {
    if order.impossible.is_empty() {
        return None;
    }
    let mut table = Table::new(name, &["recorded_ns", "clamped_ns", "device", "stream", "start_ns", "what"]);
    for (recorded, clamped, what) in [
        (order.raw_ns, order.clamped_ns, "all GPU work"),
        (order.raw_busy_ns, order.clamped_busy_ns, "busy time of all GPUs"),
    ] {
        let (recorded, clamped) = (Cell::Nanos(recorded), Cell::Nanos(clamped));
        table.add_row([recorded, clamped, Cell::Nothing, Cell::Nothing, Cell::Nothing, what.into()]);
    }
    for row in order.impossible.iter().take(MAX_ROWS) {
        table.add_row([
            Cell::Nanos(row.raw_ns),
            Cell::Nanos(row.clamped_ns),
            Cell::Gpu(row.device.0),
            Cell::Id(row.stream.0.into()),
            Cell::Nanos(row.start.since(order.first)),
            Cell::Kernels(vec![work_name(profile, row.work).into_owned()]),
        ]);
    }
    Some(table)
}
