//! From a source to a profile with names: the same join, sums and names as in the process itself.

use std::collections::BTreeMap;

use super::Console;
use super::input::{Facts, Source};
use crate::error::Result;
use crate::explain::Ledger;
use crate::import::Opened;
use crate::join::Sink;
use crate::profile::{Profile, Unnamed};
use crate::run::{ReadOptions, Run};

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
pub(super) fn explain(source: &Source, console: Console, sink: impl Sink) -> Result<Explained> {
    explain_opened(source, source.open()?, &ReadOptions::default(), console, sink)
}

/// The same for a source that is open, with what the caller wants kept apart and shown.
pub(super) fn explain_opened(
    source: &Source,
    opened: Opened,
    options: &ReadOptions,
    console: Console,
    sink: impl Sink,
) -> Result<Explained> {
    let (run, facts) = Run::explained(options, sink, |each| source.rows(opened, console, each))?;
    let (profile, ledger, unnamed) = run.into_parts();
    Ok(Explained { profile, ledger, facts, unnamed })
}
