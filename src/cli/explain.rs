//! From a source to a profile with names: the same join, sums and names as in the process itself.

use super::Console;
use super::input::{Facts, Source};
use crate::aggregate::{Aggregate, HostSums};
use crate::error::Result;
use crate::graphs::Graphs;
use crate::import::Opened;
use crate::join::{Join, Sink, Tally};
use crate::profile::Profile;
use crate::record::Row;
use crate::symbolize::{SymbolizeOptions, Symbolizer};
use crate::timeline::Timeline;

/// What a source holds, explained.
pub(super) struct Explained {
    pub(super) profile: Profile,
    pub(super) tally: Tally,
    /// What was found while reading.
    pub(super) facts: Facts,
    /// Frames of code that have no symbol.
    pub(super) unnamed: u64,
}

/// Reads `source` to its end; `sink` is shown all that is joined, before there are names.
pub(super) fn explain(
    source: &Source,
    options: SymbolizeOptions,
    console: Console,
    sink: impl Sink,
) -> Result<Explained> {
    explain_opened(source, source.open()?, options, console, Aggregate::default(), sink)
}

/// The same for a source that is open, with sums that the caller chose.
pub(super) fn explain_opened(
    source: &Source,
    opened: Opened,
    options: SymbolizeOptions,
    console: Console,
    mut aggregate: Aggregate,
    mut sink: impl Sink,
) -> Result<Explained> {
    let (mut join, mut profile) = (Join::default(), Profile::default());
    let (mut graphs, mut timeline, mut host) = (Graphs::default(), Timeline::default(), HostSums::default());
    let facts = source.rows(opened, console, &mut |row| {
        let mut sinks = (&mut aggregate, (&mut timeline, &mut sink));
        graphs.push(row);
        match row {
            Row::Activity(activity) => {
                let mut activity = *activity;
                graphs.resolve(&mut activity);
                join.push_activity(&activity, &mut sinks);
            }
            Row::Unified(unified) => sinks.unified(unified),
            _ => join.push(row, &mut sinks),
        }
        timeline.row(row);
        host.row(row);
        profile.push(row);
    })?;
    join.finish(&mut (&mut aggregate, (&mut timeline, &mut sink)));
    aggregate.fill(&mut profile);
    timeline.fill(&mut profile);
    host.fill(&mut profile);
    let mut symbolizer = Symbolizer::new(options);
    symbolizer.name(&mut profile);
    Ok(Explained { profile, tally: *join.tally(), facts, unnamed: symbolizer.misses() })
}
