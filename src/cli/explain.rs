//! From a source to a profile with names: the same join, sums and names as in the process itself.

use std::collections::BTreeMap;

use super::console::Console;
use super::input::{Facts, Source, backward_pass};
use crate::error::Result;
use crate::explain::Ledger;
use crate::host::memory;
use crate::import::{Kind, Opened};
use crate::join::Sink;
use crate::profile::{Profile, Unnamed, saturating_sum};
use crate::run::{ReadOptions, Run};
use crate::settings;

/// What a source holds, explained.
pub(super) struct Explained {
    pub(super) profile: Profile,
    pub(super) ledger: Ledger,
    /// What was found while reading.
    pub(super) facts: Facts,
    /// How many frames of code have no name, and why.
    pub(super) unnamed: BTreeMap<Unnamed, u64>,
}

/// Reads `source` to its end, for its sums.
pub(super) fn explain_sums(source: &Source, reading: ReadOptions, console: Console) -> Result<Explained> {
    explain_sums_with(source, reading, console, ())
}

/// The same, and `sink` is shown all that is joined.
pub(super) fn explain_sums_with(
    source: &Source,
    reading: ReadOptions,
    console: Console,
    sink: impl Sink,
) -> Result<Explained> {
    let options = ReadOptions { max_memory: max_memory(), ..reading };
    explain_opened(source, source.open()?, &options, console, sink)
}

/// How many bytes of memory sums may take: as many as in the process that was recorded. Whoever keeps single activities
/// holds more than that, and needs the stack of each.
pub(super) fn max_memory() -> Option<usize> {
    Some(memory::ceiling(settings::from_environment().0.max_mem))
}

/// Reads `source` to its end; `sink` is shown all that is joined, before there are names.
pub(super) fn explain(
    source: &Source,
    reading: &ReadOptions,
    console: Console,
    sink: impl Sink,
) -> Result<Explained> {
    explain_opened(source, source.open()?, reading, console, sink)
}

/// The same for a source that is open, with what the caller wants kept apart and shown.
pub(super) fn explain_opened(
    source: &Source,
    opened: Opened,
    options: &ReadOptions,
    console: Console,
    sink: impl Sink,
) -> Result<Explained> {
    let (run, facts) = Run::explained(options, sink, |each| source.rows(opened, options, console, each))?;
    let (profile, ledger, unnamed, tied) = run.into_parts();
    if facts.kind == Kind::Recording && options.backward_under_forward {
        let all = profile.devices().iter().map(|device| device.nanos);
        let what = backward_pass(tied.all, tied.tied, saturating_sum(all));
        console.remark(format!("{source}: {what}"));
    }
    Ok(Explained { profile, ledger, facts, unnamed })
}
