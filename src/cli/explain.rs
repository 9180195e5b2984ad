//! From a source to a profile with names: the same join, sums and names as in the process itself.

use super::Console;
use super::input::{Facts, Source};
use crate::error::Result;
use crate::explain::{Explain, Options};
use crate::import::Opened;
use crate::join::{Sink, Tally};
use crate::profile::Profile;
use crate::symbolize::{SymbolizeOptions, Symbolizer};

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
    names: SymbolizeOptions,
    console: Console,
    sink: impl Sink,
) -> Result<Explained> {
    explain_opened(source, source.open()?, names, console, Options::default(), sink)
}

/// The same for a source that is open, with what the caller wants kept apart.
pub(super) fn explain_opened(
    source: &Source,
    opened: Opened,
    names: SymbolizeOptions,
    console: Console,
    options: Options,
    mut sink: impl Sink,
) -> Result<Explained> {
    let mut explain = Explain::new(options);
    let facts = source.rows(opened, console, &mut |row| explain.push(row, &mut sink))?;
    explain.finish(&mut sink);
    explain.fill();
    let mut symbolizer = Symbolizer::new(names);
    symbolizer.name(explain.profile_mut());
    let tally = *explain.tally();
    Ok(Explained { profile: explain.into_profile(), tally, facts, unnamed: symbolizer.misses() })
}
