//! `gpuflame flamegraph`: a recording as a flame graph, or as the folded stacks that it is made of.

use std::io::{IsTerminal, stdout};

use clap::{Args, ValueEnum};

use super::explain::explain_with;
use super::input::Source;
use super::output::Target;
use super::{Console, Ended, Outcome, usage};
use crate::aggregate::Aggregate;
use crate::export::{
    FoldedOptions, GraphStacks, Root, SvgOptions, Unit, write_folded, write_idle_folded, write_idle_svg,
    write_memory_folded, write_memory_svg, write_svg, write_wait_folded, write_wait_svg,
};
use crate::symbolize::SymbolizeOptions;

/// Draw GPU time by launching stack.
#[derive(Debug, Args)]
pub(super) struct Flamegraph {
    /// The recording or trace (`-`: standard input).
    input: Source,
    /// Where to write [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    output: Option<Target>,
    /// What to write [default: by the ending of FILE, else svg].
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
            Some("folded" | "txt" | "collapsed") => Format::Folded,
            _ => Format::Svg,
        });
        if format == Format::Svg && self.output.is_none() && stdout().is_terminal() {
            return Err(usage("a picture is no use on a terminal; add `-o flame.svg`, or `--format folded`"));
        }
        let options = SymbolizeOptions { internal_frames: self.internal_frames };
        let sums = match self.root.contains(&Root::Stream) {
            true => Aggregate::by_stream(),
            false => Aggregate::default(),
        };
        let profile = explain_with(&self.input, options, console, sums, None::<Aggregate>)?.profile;
        let folded = FoldedOptions { unit: self.unit, graph: self.graph, root: self.root.clone() };
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
