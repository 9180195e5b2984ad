//! From a source to a profile with names: the same join, sums and names as in the process itself.

use std::collections::BTreeMap;

use super::Console;
use super::input::{Facts, Source};
use crate::error::Result;
use crate::explain::{Explain, Ledger, Options};
use crate::import::Opened;
use crate::join::Sink;
use crate::profile::{Profile, Unnamed};
use crate::symbolize::{SymbolizeOptions, Symbolizer};

/// What a source holds, explained.
pub(super) struct Explained {
    pub(super) profile: Profile,
    pub(super) ledger: Ledger,
    /// What was found while reading.
    pub(super) facts: Facts,
    /// How many frames of code have no name, and why.
    pub(super) unnamed: BTreeMap<Unnamed, u64>,
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
    let ledger = explain.snapshot(&[], &mut sink).ledger;
    let mut profile = explain.into_profile();
    let mut symbolizer = Symbolizer::new(names);
    symbolizer.name(&mut profile);
    Ok(Explained { profile, ledger, facts, unnamed: symbolizer.misses().clone() })
}
