//! `gpuflame convert --to chrome`: copies a trace that is already in Chrome's format, or converts a recording. The
//! operators of a torch.profiler trace can be merged into a converted recording.

use std::io::Write;

use clap::Args;

use super::console::{Console, usage_error};
use super::explain::explain_opened;
use super::input::Source;
use super::output::Target;
use gpuflame_explain::events::JoinedRows;
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_export::Format;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::record::{Activity, CorrelationId, Instant, Nanos, Row, Unified};
use gpuflame_offline::formats::{
    Addition, ChromeCopy, ChromeOptions, Operators, TrackFinder, Tracks, chrome_metadata,
    has_calls_in_operators, write_chrome, write_chrome_events,
};
use gpuflame_offline::run::ReadOptions;
use gpuflame_traces::import::{Kind, Opened};

/// Flags that apply to the format `chrome` only.
#[derive(Debug, Args)]
pub(super) struct ChromeFlags {
    /// Trace of CPU activity alone, which torch.profiler took while the input was recorded. The output contains the
    /// events of TRACE, and calls and GPU work have the External id of their operator. Only for the format chrome.
    #[arg(long, value_name = "TRACE")]
    operators: Option<Source>,
    /// Convert only calls that began in this time, in ns since 1970, and the work that they started. Only for the
    /// format chrome.
    #[arg(long, value_name = "FROM,TO", value_parser = parse_window)]
    window: Option<Window>,
    /// Leave out the stacks of calls. Only for the format chrome.
    #[arg(long)]
    no_stacks: bool,
}

/// Time range of the calls to convert. A call is converted if it began in this time range.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: Nanos,
    to: Nanos,
}

fn parse_window(text: &str) -> std::result::Result<Window, String> {
    let ends =
        text.split_once(',').and_then(|(from, to)| from.trim().parse().ok().zip(to.trim().parse().ok()));
    let (from, to) = ends.ok_or(
        "give two numbers of nanoseconds since 1970, such as 1700000000000000000,1700000001000000000",
    )?;
    if from > to {
        return Err("the window ends before it begins".to_owned());
    }
    Ok(Window { from: Nanos(from), to: Nanos(to) })
}

impl ChromeFlags {
    fn first_given(&self) -> Option<&'static str> {
        [
            (self.operators.is_some(), "--operators"),
            (self.window.is_some(), "--window"),
            (self.no_stacks, "--no-stacks"),
        ]
        .into_iter()
        .find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Returns an error if a flag for the format `chrome` was given but the output has a different format.
    ///
    /// # Errors
    /// Returns `Setting`.
    pub(super) fn require_none(&self, format: &Format) -> Result<()> {
        match self.first_given() {
            Some(flag) => {
                Err(usage_error(format!("{flag}: applies to `--format chrome`, not to {}", format.word)))
            }
            None => Ok(()),
        }
    }

    /// Writes `input` to `output` in Chrome's format.
    pub(super) fn write(
        &self,
        input: &Source,
        output: &Target,
        reading: &ReadOptions,
        console: Console,
    ) -> Result<()> {
        let opened = input.open()?;
        match opened.kind() {
            Kind::Chrome => match self.first_given() {
                Some(flag) => {
                    Err(usage_error(format!("{flag}: needs a recording (.gfr); {input} is a trace")))
                }
                None => copy(input, opened, output, console),
            },
            kind => {
                if let Some(flag) = self.first_given().filter(|_| kind != Kind::Recording) {
                    return Err(usage_error(format!("{flag}: needs a recording (.gfr); {input} is {kind}")));
                }
                self.write_rows(input, opened, output, reading, console)
            }
        }
    }

    fn write_rows(
        &self,
        input: &Source,
        opened: Opened,
        output: &Target,
        reading: &ReadOptions,
        console: Console,
    ) -> Result<()> {
        let operators = self.operators.as_ref().map(|from| read_operators(from, console)).transpose()?;
        let mut rows = JoinedRows::default();
        let sink = InWindow { rows: &mut rows, window: self.window };
        let mut explained = explain_opened(input, opened, reading, console, sink)?;
        explained.facts.give_source_ids(&mut rows);
        explained.facts.require_work(input)?;
        explained.facts.require_rows(input)?;
        rows.sort();
        let profile = &explained.profile;
        let options = ChromeOptions { operators: operators.as_ref(), without_stacks: self.no_stacks };
        let Some(from) = &self.operators else {
            return output.write(console, |mut out| write_chrome(profile, &rows, &options, &mut out));
        };
        if operators.as_ref().is_some_and(|all| !has_calls_in_operators(profile, &rows, all)) {
            console.remark(format!("no call is in an operator of {from}: is it of another run or process?"));
        }
        let opened = from.open()?;
        output.write(console, |mut out| {
            let events =
                Box::new(|mut out: &mut dyn Write| write_chrome_events(profile, &rows, &options, &mut out));
            let more = Addition { events, property: chrome_metadata(profile, &rows) };
            let mut copy = ChromeCopy::new(&mut out, Tracks::default(), Some(more));
            from.events(opened, console, &mut copy)?;
            copy.finish()
        })
    }
}

/// Reads the operators of a torch.profiler trace.
fn read_operators(from: &Source, console: Console) -> Result<Operators> {
    let refusal = |what: &str| Err(Error::new(ErrorKind::Format, format!("{from}: {what}")));
    if from == &Source::Stdin {
        return Err(usage_error("--operators: is read twice, so it cannot be standard input"));
    }
    let opened = from.open()?;
    if opened.kind() != Kind::Chrome {
        return refusal("is not a trace of torch.profiler, which --operators needs");
    }
    let mut operators = Operators::default();
    from.events(opened, console, &mut operators)?;
    if operators.works() > 0 {
        return refusal(
            "has GPU work of its own; give a trace with CPU activity alone, or convert it without a recording",
        );
    }
    if let Some(base) = operators.unknown_base() {
        return refusal(&format!(
            "baseTimeNanoseconds is {base}, not a whole number of ns since 1970; record the operators again"
        ));
    }
    operators.sort();
    Ok(operators)
}

/// Copies a trace that is already in Chrome's format. A first pass finds GPU work that overlaps on one track. The
/// second pass moves this work to other tracks. Standard input can be read only once, so a trace from standard input is
/// copied without moving GPU work to other tracks.
fn copy(input: &Source, opened: Opened, output: &Target, console: Console) -> Result<()> {
    let is_file = matches!(input, Source::File(path) if path.is_file());
    let (opened, tracks) = match is_file {
        true => {
            let mut finder = TrackFinder::default();
            // The second pass over the trace prints the remarks.
            input.events(opened, Console { quiet: true, ..console }, &mut finder)?;
            (input.open()?, finder.tracks())
        }
        false => (opened, Tracks::default()),
    };
    output.write(console, |mut out| {
        let mut copy = ChromeCopy::new(&mut out, tracks, None);
        input.events(opened, console, &mut copy)?;
        copy.finish()
    })
}

/// A [`Sink`] that stores the calls that began within `window`, and the GPU work that these calls launched, even if the
/// work ran later.
struct InWindow<'a> {
    rows: &'a mut JoinedRows,
    window: Option<Window>,
}

impl InWindow<'_> {
    fn has(&self, time: Nanos) -> bool {
        self.window.is_none_or(|window| window.from <= time && time <= window.to)
    }
}

impl Sink for InWindow<'_> {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        let time = match origin {
            Origin::Launch(launched) => launched.time,
            Origin::Missing(_) => activity.start,
        };
        if self.has(time) {
            self.rows.activity(activity, origin);
        }
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        if self.has(launched.time) {
            self.rows.pending(id, launched);
        }
    }

    fn unified(&mut self, unified: &Unified) {
        self.rows.unified(unified);
    }

    fn host(&mut self, row: &Row<'_>) {
        let time = match row {
            Row::Wait(wait) => Some(wait.time),
            Row::EventCall(call) => Some(call.time),
            Row::Sync(sync) => Some(sync.start),
            _ => None,
        };
        if time.is_none_or(|time| self.has(time)) {
            self.rows.host(row);
        }
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        if self.has(instant.time) {
            self.rows.instant(instant);
        }
    }
}
