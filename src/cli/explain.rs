//! From a source to a profile with names: the same join, sums and names as in the process itself.

use super::Console;
use super::input::Source;
use crate::aggregate::Aggregate;
use crate::error::Result;
use crate::join::{Join, Sink, Tally};
use crate::profile::Profile;
use crate::symbolize::{SymbolizeOptions, Symbolizer};
use crate::timeline::Timeline;

/// What a source holds, explained.
pub(super) struct Explained {
    pub(super) profile: Profile,
    pub(super) tally: Tally,
    /// Records that could not be read.
    pub(super) damaged: u64,
    /// Frames of code that have no symbol.
    pub(super) unnamed: u64,
}

/// Reads `source` to its end; `sink` is shown all that is joined, before there are names.
pub(super) fn explain(
    source: &Source,
    options: SymbolizeOptions,
    console: Console,
    mut sink: impl Sink,
) -> Result<Explained> {
    let (mut join, mut profile) = (Join::default(), Profile::default());
    let (mut aggregate, mut timeline) = (Aggregate::default(), Timeline::default());
    let damaged = source.rows(console, &mut |row| {
        join.push(row, &mut (&mut aggregate, (&mut timeline, &mut sink)));
        timeline.row(row);
        profile.push(row);
    })?;
    join.finish(&mut (&mut aggregate, (&mut timeline, &mut sink)));
    aggregate.fill(&mut profile);
    timeline.fill(&mut profile);
    let mut symbolizer = Symbolizer::new(options);
    symbolizer.name(&mut profile);
    Ok(Explained { profile, tally: *join.tally(), damaged, unnamed: symbolizer.misses() })
}
