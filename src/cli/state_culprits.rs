//! Builds the table of `gpuflame states --culprits`, which shows the code to which idle time is charged.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::rc::Rc;

use gpuflame_export::{NameFolding, folded_names};
use gpuflame_model::profile::{Profile, SampleSite};
use gpuflame_offline::analysis::{StreamKey, StreamStates};

pub(super) const CULPRIT_COLUMNS: [&str; 7] =
    ["device", "context", "stream", "time_ns", "share_percent", "gaps", "stack"];

/// Idle time of a stream that is charged to one stack, in ns.
pub(super) struct CulpritRow {
    pub(super) key: StreamKey,
    pub(super) nanos: u64,
    pub(super) gaps: u64,
    pub(super) stack: Rc<str>,
    /// One of the sample sites that have this stack.
    pub(super) site: SampleSite,
}

/// Returns the culprits of the streams' idle time, sorted by time in descending order. Sites whose stacks have the same
/// text share one row, as in `top --by idle`.
pub(super) fn culprit_rows<'a>(
    streams: impl Iterator<Item = &'a StreamStates>,
    profile: &Profile,
) -> Vec<CulpritRow> {
    let mut names: HashMap<SampleSite, Rc<str>> = HashMap::new();
    let mut stack_of = |site| {
        let name = || folded_names(profile, site, NameFolding::default()).join(";").into();
        Rc::clone(names.entry(site).or_insert_with(name))
    };
    let mut rows = Vec::new();
    for stream in streams {
        let mut sums: HashMap<Rc<str>, CulpritRow> = HashMap::new();
        for culprit in &stream.culprits {
            let (stack, site, key) = (stack_of(culprit.site), culprit.site, stream.key);
            let row =
                sums.entry(Rc::clone(&stack)).or_insert(CulpritRow { key, nanos: 0, gaps: 0, stack, site });
            row.nanos = row.nanos.saturating_add(culprit.nanos);
            row.gaps += culprit.gaps;
        }
        rows.extend(sums.into_values());
    }
    rows.sort_by(|a, b| (Reverse(a.nanos), a.key, &a.stack).cmp(&(Reverse(b.nanos), b.key, &b.stack)));
    rows
}
