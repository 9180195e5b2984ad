//! Assigns CSS classes to frames. `picture.css` defines the colour of each class.

use super::FrameKinds;
use super::frames::{Frame, ROOT_NAME};
use gpuflame_model::profile::{Cause, ShownFrameKind};

/// CSS classes and their meanings, in the order of the legend. The HTML page of a run uses the same colours.
const KINDS: [(&str, &str); 14] = [
    ("code", "host function"),
    ("python", "Python"),
    ("range", "range"),
    ("call", "CUDA call"),
    ("kernel", "kernel"),
    ("copy", "copy or fill"),
    ("graph", "graph"),
    ("late", "idle: host late"),
    ("launch", "idle: launch latency"),
    ("wait", "idle: dependency or sync"),
    ("alloc", "allocation"),
    ("free", "free"),
    ("root", "thread, process or GPU"),
    ("lost", "unknown or left out"),
];

/// CSS classes of changes and their meanings, for pictures that show a difference between two runs.
pub(super) const CHANGE_LEGEND: [(&str, &str); 4] =
    [("c1", "less than before"), ("c4", "unchanged"), ("c7", "more than before"), ("c8", "new")];

/// Returns the CSS class for a frame's kind.
pub(super) fn class_of(known: &FrameKinds<'_>, frame: &Frame<'_>) -> &'static str {
    if frame.depth == 0 && frame.name == ROOT_NAME {
        return "all";
    }
    match known.get(frame.name) {
        Some(ShownFrameKind::Code) => "code",
        Some(ShownFrameKind::Python) => "python",
        Some(ShownFrameKind::Call) => "call",
        Some(ShownFrameKind::Range) => "range",
        Some(ShownFrameKind::Root) => "root",
        Some(ShownFrameKind::Kernel) => "kernel",
        Some(ShownFrameKind::Copy | ShownFrameKind::Set | ShownFrameKind::Unified) => "copy",
        Some(ShownFrameKind::Graph) => "graph",
        Some(ShownFrameKind::Allocation) => "alloc",
        Some(ShownFrameKind::Free) => "free",
        Some(ShownFrameKind::Idle(Cause::HostLate)) => "late",
        Some(ShownFrameKind::Idle(Cause::LaunchLatency)) => "launch",
        Some(ShownFrameKind::Idle(Cause::Dependency)) => "wait",
        Some(ShownFrameKind::Idle(Cause::Unknown) | ShownFrameKind::Marker | ShownFrameKind::Loss) | None => {
            "lost"
        }
    }
}

/// Returns the entries of the legend. Each entry consists of a class in `used` and the meaning of the class. Classes
/// without a meaning are omitted.
pub(super) fn legend<'a>(used: impl Iterator<Item = &'a str> + Clone) -> Vec<(&'static str, &'static str)> {
    KINDS.into_iter().filter(|(class, _)| used.clone().any(|used| used == *class)).collect()
}

/// Returns the CSS class of a change in weight: `c1` to `c3` for less, `c4` for unchanged, `c5` to `c7` for more, `c8`
/// for a new frame.
pub(super) fn change_class(now: u64, before: u64) -> &'static str {
    // The step is 0 for a change of up to one third of the larger weight, 1 for up to two thirds, and 2 for more than
    // two thirds.
    let step = |larger: u64, smaller: u64| {
        let third = larger / 3;
        usize::from(larger - smaller > third) + usize::from(larger - smaller > third.saturating_mul(2))
    };
    match now {
        _ if now == before => "c4",
        _ if before == 0 => "c8",
        _ if now > before => ["c5", "c6", "c7"][step(now, before)],
        _ => ["c3", "c2", "c1"][step(before, now)],
    }
}
