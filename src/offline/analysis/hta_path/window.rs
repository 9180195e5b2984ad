//! Selects two sets of trace events for the analysis. One set is the whole trace without the profiler's last step. The
//! second set is the part of the trace in the window that an annotation defines.

use std::collections::{HashMap, HashSet};

use super::events::{EventKind, EventRow, HtaEvents};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Two sets of the rows that HTA uses: the rows of the whole trace, and the rows in the window. The rows are given as
/// indexes in [`HtaEvents::rows`], in file order.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// Rows of the whole trace that HTA uses.
    pub(super) all: Vec<u32>,
    /// Rows in the window that HTA uses.
    pub(super) window: Vec<u32>,
    /// Start and end of the window, in us.
    pub(super) span: (i64, i64),
    /// Partner of each row. The partner of GPU work or of a wait is the row of the call that issued it. The partner of
    /// a call is the row of the GPU work or wait that the call issued.
    partners: HashMap<u32, u32>,
}

impl Selection {
    /// If `row` is GPU work or a wait, returns the row of the call that issued it. If `row` is a call, returns the row
    /// of the GPU work or wait that it issued. If several events share a correlation id, HTA keeps the last call and
    /// the last GPU operation or wait.
    pub(super) fn partner(&self, row: u32) -> Option<u32> {
        self.partners.get(&row).copied()
    }
}

/// Whether HTA looks for the call that issued this trace event.
fn is_launched(events: &HtaEvents, row: &EventRow) -> bool {
    let is_wait_of_host = || matches!(events.name(row.name), "Event Sync" | "Context Sync");
    row.correlation.is_some() && row.stream.is_some() || row.kind == EventKind::Sync && is_wait_of_host()
}

/// Selects the rows of the whole trace and of the window.
///
/// # Errors
/// `Format` if no event has the annotation, or if the annotation has fewer instances than requested.
pub(super) fn select(events: &HtaEvents, annotation: &str, instances: (usize, usize)) -> Result<Selection> {
    let partners = find_partners(events);
    let (all, is_filtered) = without_last_step(events);
    let mut selection = Selection { all, partners, ..Selection::default() };
    selection.span = window_span(events, &selection.all, is_filtered, annotation, instances)?;
    let (from, to) = selection.span;
    let row = |at: u32| &events.rows[at as usize];
    let is_in_window = |at: u32| (from..=to).contains(&row(at).start) && row(at).end > row(at).start;
    let launched: HashSet<u32> = selection
        .all
        .iter()
        .filter(|at| row(**at).stream.is_none() && is_in_window(**at))
        .filter_map(|at| selection.partner(*at))
        .collect();
    let is_wanted = |at: u32| match row(at).stream {
        None => is_in_window(at),
        Some(_) => launched.contains(&at) || events.name(row(at).name) == "Stream Wait Event",
    };
    selection.window = selection.all.iter().copied().filter(|at| is_wanted(*at)).collect();
    Ok(selection)
}

fn find_partners(events: &HtaEvents) -> HashMap<u32, u32> {
    let (mut calls, mut launched) = (HashMap::new(), HashMap::new());
    for (at, row) in (0..).zip(&events.rows) {
        let Some(correlation) = row.correlation else { continue };
        let side = if is_launched(events, row) { &mut launched } else { &mut calls };
        side.insert(correlation, at);
    }
    let mut partners = HashMap::new();
    for (at, row) in (0..).zip(&events.rows) {
        let Some(correlation) = row.correlation else { continue };
        let side = if is_launched(events, row) { &calls } else { &launched };
        if let Some(partner) = side.get(&correlation) {
            partners.insert(at, *partner);
        }
    }
    partners
}

/// Returns the rows that do not belong to the profiler's last step, and whether the trace has several steps.
fn without_last_step(events: &HtaEvents) -> (Vec<u32>, bool) {
    let is_step = |name: &str| {
        name.strip_prefix("ProfilerStep#").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let all = 0..events.rows.len() as u32;
    if events.names().filter(|name| is_step(name)).count() < 2 {
        return (all.collect(), false);
    }
    let on_host = |row: &&EventRow| !is_launched(events, row);
    let steps = events.rows.iter().filter(on_host).filter(|row| is_step(events.name(row.name)));
    let Some(last) = steps.map(|row| row.start).max() else { return (all.collect(), false) };
    let kept = |row: &&EventRow| on_host(row) && row.start < last;
    let calls: HashSet<Option<u64>> = events.rows.iter().filter(kept).map(|row| row.correlation).collect();
    let is_kept = |at: &u32| {
        let row = &events.rows[*at as usize];
        if is_launched(events, row) { calls.contains(&row.correlation) } else { row.start < last }
    };
    (all.filter(is_kept).collect(), true)
}

/// Returns the time span of the instances of an annotation. An empty annotation means the whole trace.
fn window_span(
    events: &HtaEvents,
    all: &[u32],
    is_filtered: bool,
    annotation: &str,
    (first, last): (usize, usize),
) -> Result<(i64, i64)> {
    let fails = |what: String| Err(Error::new(ErrorKind::Format, what));
    let mut named: Vec<&EventRow> = all
        .iter()
        .map(|at| &events.rows[*at as usize])
        .filter(|row| annotation.is_empty() || events.name(row.name).contains(annotation))
        .collect();
    if is_filtered {
        // After HTA has removed the last step, it lists GPU work before host events.
        named.sort_by_key(|row| !is_launched(events, row));
    }
    if named.is_empty() {
        return fails(format!(
            "no event's name contains `{annotation}`; name another --annotation, or '' for the whole trace"
        ));
    }
    let chosen = match annotation {
        "" => &named[..],
        _ => &named[first.min(named.len())..last.saturating_add(1).min(named.len())],
    };
    match chosen.iter().map(|row| row.start).min().zip(chosen.iter().map(|row| row.end).max()) {
        Some(span) => Ok(span),
        None => fails(format!(
            "`{annotation}` has {} instances, so --instance is at most {}",
            named.len(),
            named.len() - 1
        )),
    }
}
