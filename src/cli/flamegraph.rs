//! `gpuflame flamegraph`: a recording, a trace or folded stacks as a flame graph, or as folded stacks; one
//! of them, or two against each other.

use std::io::{IsTerminal, stdout};

use clap::{Args, ValueEnum};

use super::explain::explain_opened;
use super::input::Source;
use super::output::Target;
use super::{Console, Ended, Outcome, usage};
use crate::error::{Error, ErrorKind, Result};
use crate::explain;
use crate::export::{
    FoldedOptions, GraphStacks, Lines, Root, SvgOptions, Unit, clean_frame, lines, write_diff_folded,
    write_diff_svg, write_folded, write_idle_folded, write_idle_svg, write_lines_folded, write_lines_svg,
    write_memory_folded, write_memory_svg, write_svg, write_wait_folded, write_wait_svg,
};
use crate::import::{self, Event, Kind, Opened, Wants};
use crate::symbolize::SymbolizeOptions;

/// Draw GPU time by launching stack.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame flamegraph run.gfr -o run.svg\n  \
    gpuflame flamegraph trace.json.gz | grep matmul\n  \
    gpuflame flamegraph --diff before.gfr after.gfr -o diff.svg")]
pub(super) struct Flamegraph {
    /// The recording, trace or folded stacks (`-`: standard input).
    #[arg(required_unless_present = "diff")]
    input: Option<Source>,
    /// Draw the second of two instead; what grew since the first is red, what shrank is blue.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with = "input")]
    diff: Vec<Source>,
    /// Where to write [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    output: Option<Target>,
    /// What to write [default: by the ending of FILE; folded on standard output].
    #[arg(short, long)]
    format: Option<Format>,
    /// Draw the time in which GPUs were idle, by the stack whose launch ended it.
    #[arg(long)]
    idle: bool,
    /// Draw the time in which the host waited for a GPU, where it was recorded with the format `wait`.
    #[arg(long, conflicts_with = "idle")]
    wait: bool,
    /// Draw bytes allocated and freed, where they were recorded with the format `alloc`.
    #[arg(long, conflicts_with_all = ["idle", "wait"])]
    alloc: bool,
    /// What the width means: ns, us, or count (of activities or, with --idle, of gaps).
    #[arg(short, long, default_value = "ns")]
    unit: Unit,
    /// Which stacks the work of a graph hangs under: both, capture (where it was captured or added), or launch.
    #[arg(short, long, default_value = "both")]
    graph: GraphStacks,
    /// Frames at the root of every stack, in this order: process, thread, device, stream.
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    root: Vec<Root>,
    /// The heading of the picture.
    #[arg(long)]
    title: Option<String>,
    /// Show the frames inside CUDA's libraries and those below `main` as well.
    #[arg(long)]
    internal_frames: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A picture that zooms and searches in a browser.
    Svg,
    /// A line for each stack, as flame graph tools read them.
    Folded,
}

impl Flamegraph {
    pub(super) fn run(&self, console: Console) -> Outcome {
        let target = self.output.clone().unwrap_or(Target::Stdout);
        let format = self.format.unwrap_or_else(|| match target.ending() {
            None | Some("folded" | "txt" | "collapsed") => Format::Folded,
            Some(_) => Format::Svg,
        });
        if format == Format::Svg && self.output.is_none() && stdout().is_terminal() {
            return Err(usage("a picture is no use on a terminal; add `-o flame.svg`"));
        }
        let options = SymbolizeOptions { internal_frames: self.internal_frames };
        if let [before, after] = &self.diff[..] {
            self.diff(before, after, format, &target, console)?;
            return Ok(Ended::Well);
        }
        let input = self.input.as_ref().ok_or_else(|| usage("name a recording or a trace"))?;
        let opened = input.open()?;
        if is_folded(&opened) {
            self.folded(input, opened, format, &target, console)?;
            return Ok(Ended::Well);
        }
        let apart = self.kept_apart();
        let profile = explain_opened(input, opened, options, console, apart, ())?.profile;
        let folded = self.folded_options();
        let (svg, folds) = (self.svg_options(), format == Format::Folded);
        target.write(console, |mut out| match (self.idle, self.wait, self.alloc) {
            (true, ..) if folds => write_idle_folded(&profile, &folded, &mut out),
            (true, ..) => write_idle_svg(&profile, &svg, &mut out),
            (_, true, _) if folds => write_wait_folded(&profile, &folded, &mut out),
            (_, true, _) => write_wait_svg(&profile, &svg, &mut out),
            (_, _, true) if folds => write_memory_folded(&profile, &folded, &mut out),
            (_, _, true) => write_memory_svg(&profile, &svg, &mut out),
            _ if folds => write_folded(&profile, &folded, &mut out),
            _ => write_svg(&profile, &svg, &mut out),
        })?;
        Ok(Ended::Well)
    }

    fn diff(
        &self,
        before: &Source,
        after: &Source,
        format: Format,
        target: &Target,
        console: Console,
    ) -> Result<()> {
        if self.idle || self.wait || self.alloc {
            return Err(usage("--diff compares what ran; leave --idle, --wait and --alloc away"));
        }
        let (before, after) = (self.lines(before, console)?, self.lines(after, console)?);
        let mut options = self.svg_options();
        if self.title.is_none() {
            options.title = "GPU time by launching stack, after against before".to_owned();
        }
        target.write(console, |mut out| match format {
            Format::Folded => write_diff_folded(&before, &after, &mut out),
            Format::Svg => write_diff_svg(&before, &after, &options, &mut out),
        })
    }

    fn folded_options(&self) -> FoldedOptions {
        FoldedOptions { unit: self.unit, graph: self.graph, root: self.root.clone() }
    }

    fn kept_apart(&self) -> explain::Options {
        explain::Options { by_stream: self.root.contains(&Root::Stream), ..explain::Options::default() }
    }

    fn lines(&self, source: &Source, console: Console) -> Result<Lines> {
        let opened = source.open()?;
        if is_folded(&opened) {
            return stacks(source, opened, self.unit);
        }
        let options = SymbolizeOptions { internal_frames: self.internal_frames };
        let explained = explain_opened(source, opened, options, console, self.kept_apart(), ())?;
        Ok(lines(&explained.profile, &self.folded_options()))
    }

    /// Stacks that somebody folded are drawn as they are.
    fn folded(
        &self,
        input: &Source,
        opened: Opened,
        format: Format,
        target: &Target,
        console: Console,
    ) -> Result<()> {
        if self.idle || self.wait || self.alloc {
            return Err(usage(format!("{input}: folded stacks do not say when the GPU was idle")));
        }
        let lines = stacks(input, opened, self.unit)?;
        target.write(console, |mut out| match format {
            Format::Folded => write_lines_folded(&lines, self.unit, &mut out),
            Format::Svg => write_lines_svg(&lines, &self.svg_options(), &mut out),
        })
    }

    fn svg_options(&self) -> SvgOptions {
        let mut options = match (self.idle, self.wait, self.alloc) {
            (true, ..) => SvgOptions::idle(),
            (_, true, _) => SvgOptions::waits(),
            (_, _, true) => SvgOptions::memory(),
            _ => SvgOptions::default(),
        };
        (options.unit, options.graph) = (self.unit, self.graph);
        options.root.clone_from(&self.root);
        options.title = self.title.clone().unwrap_or(options.title);
        options
    }
}

fn is_folded(opened: &Opened) -> bool {
    matches!(opened.kind(), Kind::Folded | Kind::ExtendedFolded)
}

/// Folded stacks, those that are there twice added up. Extended ones count one a line.
fn stacks(source: &Source, opened: Opened, unit: Unit) -> Result<Lines> {
    let mut stacks = Stacks { lines: Lines::new(), scale: if unit == Unit::Micros { 1000 } else { 1 } };
    opened.read(&import::Options::default(), &mut stacks)?;
    if stacks.lines.is_empty() {
        return Err(Error::new(ErrorKind::Format, format!("{source}: has no stacks in it")));
    }
    Ok(stacks.lines)
}

struct Stacks {
    lines: Lines,
    /// Weights are kept in nanoseconds.
    scale: u64,
}

impl import::Sink for Stacks {
    fn wants(&self) -> Wants {
        Wants::STACKS
    }

    fn event(&mut self, event: &Event<'_>) {
        let (frames, weight) = match event {
            Event::Folded(line) => (line.frames.decode(), line.weight.saturating_mul(self.scale)),
            Event::Stack(line) => (line.frames.decode(), self.scale),
            _ => return,
        };
        let frames: Vec<_> = frames.split(';').map(clean_frame).collect();
        let sum = self.lines.entry(frames.join(";")).or_default();
        *sum = sum.saturating_add(weight);
    }
}
