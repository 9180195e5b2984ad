//! `gpuflame flamegraph`: draws a recording, a trace or folded stacks as a flame graph, or writes folded stacks. The
//! input is either one file, or two files that are compared.

use std::io::{IsTerminal, stdout};

use clap::{Args, ValueEnum};

use super::console::{Console, Outcome, usage_error};
use super::explain::{Explained, explain_opened, max_memory};
use super::input::{Source, print_remarks};
use super::name_flags::NameFlags;
use super::output::Target;
use gpuflame_export::{self, FOLDED, GraphStacks, Root, SVG, Unit};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::View;
use gpuflame_model::profile::views::{self, CPU, GPU, IDLE, MEMORY, OFF_CPU, TOGETHER, UNIFIED, WAITS};
use gpuflame_model::record::ThreadId;
use gpuflame_offline::formats::{
    FORMATS, FoldedStacks, explain_mismatch, write_diff_folded, write_diff_svg, write_lines_folded,
    write_lines_svg,
};
use gpuflame_offline::run::ReadOptions;
use gpuflame_traces::import::{self, Event, Kind, Opened, Wants};

/// Draw GPU time by launching stack.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame flamegraph run.gfr -o run.svg\n  \
    gpuflame flamegraph trace.json.gz | grep matmul\n  \
    gpuflame flamegraph --diff before.gfr after.gfr -o diff.svg")]
pub(super) struct Flamegraph {
    /// Recording, trace or folded stacks (`-`: standard input).
    #[arg(required_unless_present = "diff")]
    input: Option<Source>,
    /// Compare two inputs: draw AFTER, with frames that grew since BEFORE in red and frames that shrank in blue.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with = "input")]
    diff: Vec<Source>,
    /// Output file [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    output: Option<Target>,
    /// Output format [default: by the file extension of FILE; folded on standard output].
    #[arg(short, long)]
    format: Option<PictureFormat>,
    /// Draw the time in which GPUs were idle. The time is drawn under the stack in which the launching thread was, if
    /// the trace has it, otherwise under the two calls around the gap.
    #[arg(long)]
    idle: bool,
    /// Draw the time in which the host waited for a GPU. Needs `wait` among GPUFLAME_FORMATS.
    #[arg(long, conflicts_with = "idle")]
    wait: bool,
    /// Draw the bytes that were allocated and freed. Needs `alloc` among GPUFLAME_FORMATS.
    #[arg(long, conflicts_with_all = ["idle", "wait"])]
    alloc: bool,
    /// Draw this view: gpu, idle, wait, alloc, unified, cpu, off-cpu or together (GPU, CPU and waiting time
    /// side by side).
    #[arg(long, value_name = "WORD", conflicts_with_all = ["idle", "wait", "alloc"], value_parser = parse_view)]
    view: Option<&'static View>,
    /// Unit of the widths: ns, us, or count (of activities or, with --idle, of gaps).
    #[arg(short, long, default_value_t)]
    unit: Unit,
    /// Stacks under which the work of a graph is drawn: both, capture (where it was captured or added), or
    /// launch.
    #[arg(short, long, default_value_t)]
    graph: GraphStacks,
    /// Frames to add at the root of every stack, in the given order: process, thread, device, stream.
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    root: Vec<Root>,
    /// Title of the picture.
    #[arg(long)]
    title: Option<String>,
    /// Show frames that are hidden by default: frames inside CUDA's libraries, below `main`, of the Python interpreter,
    /// of PyTorch's dispatcher and the internals of its operators, and frames that call modules and decorated
    /// functions. With --idle, show the complete stacks of both calls. Folded stacks then contain complete kernel
    /// names.
    #[arg(long, visible_alias = "all-frames")]
    internal_frames: bool,
    /// How to show Python frames: auto (with the first line of the function), lines (with the executed line), or only
    /// (without the native frames around them).
    #[arg(long, value_enum, default_value_t)]
    python: PythonFrames,
    #[command(flatten)]
    names: NameFlags,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum PythonFrames {
    #[default]
    Auto,
    Lines,
    Only,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PictureFormat {
    /// A picture for a browser, with zoom and search.
    Svg,
    /// One line per stack, as flame graph tools read them.
    Folded,
}

impl Flamegraph {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let target = self.output.clone().unwrap_or(Target::Stdout);
        let format = match (self.format, target.ending()) {
            (Some(format), _) => format,
            (None, None | Some("folded" | "txt" | "collapsed")) => PictureFormat::Folded,
            (None, Some("svg")) => PictureFormat::Svg,
            (None, Some(ending)) => {
                let with_dot = format!(".{ending}");
                let is_known = FORMATS.iter().any(|format| format.endings.contains(&with_dot.as_str()));
                let convert = if is_known { "; `gpuflame convert` writes that format" } else { "" };
                return Err(usage_error(format!(
                    "cannot write .{ending} files; end the name in .svg or .folded (.txt, .collapsed), or use \
                     --format{convert}"
                )));
            }
        };
        if format == PictureFormat::Svg && self.output.is_none() && stdout().is_terminal() {
            return Err(usage_error("refusing to write SVG to a terminal; use `-o flame.svg`"));
        }
        if let [before, after] = &self.diff[..] {
            self.draw_diff(before, after, format, &target, console)?;
            return Ok(Outcome::Clean);
        }
        let input = self.input.as_ref().ok_or_else(|| usage_error("name a recording or trace"))?;
        let opened = input.open()?;
        if is_folded(&opened) {
            self.draw_folded(input, opened, format, &target, console)?;
            return Ok(Outcome::Clean);
        }
        let explained = explain_opened(input, opened, &self.read_options(), console, ())?;
        let (view, options) = (self.view(), self.options());
        explained.facts.require_work(input)?;
        explained.need_samples(input, view)?;
        self.require_roots(input, &explained)?;
        let profile = explained.profile;
        if !profile.has(view)
            && let Some(advice) = recording_hint(view)
        {
            return Err(Error::new(
                ErrorKind::Format,
                format!("{input}: {} {advice}", (view.nothing)(&profile)),
            ));
        }
        let drawn_as = if format == PictureFormat::Folded { &FOLDED } else { &SVG };
        target.write(console, |mut out| drawn_as.draw(&profile, view, &options, &mut out))?;
        Ok(Outcome::Clean)
    }

    fn view(&self) -> &'static View {
        let flags = [(self.idle, &IDLE), (self.wait, &WAITS), (self.alloc, &MEMORY)];
        let by_flag = flags.into_iter().find(|(is_set, _)| *is_set).map(|(_, view)| view);
        self.view.or(by_flag).unwrap_or(&GPU)
    }

    fn draw_diff(
        &self,
        before: &Source,
        after: &Source,
        format: PictureFormat,
        target: &Target,
        console: Console,
    ) -> Result<()> {
        if self.view() != &GPU {
            return Err(usage_error("--diff supports GPU time only; drop --idle, --wait, --alloc or --view"));
        }
        let ((before, is_folded), (after, is_folded_too)) =
            (self.read_lines(before, console)?, self.read_lines(after, console)?);
        // The frames of both recordings and traces get their names in this program, by the same rules. Only folded
        // stacks can contain frame names that another tool wrote by different rules.
        if is_folded || is_folded_too {
            explain_mismatch(&before, &after).into_iter().for_each(|what| console.remark(what));
        }
        let mut options = self.options();
        let title = || "GPU time by launching stack, after compared with before".to_owned();
        options.title = options.title.or_else(|| Some(title()));
        target.write(console, |out| match format {
            PictureFormat::Folded => write_diff_folded(&before, &after, out),
            PictureFormat::Svg => write_diff_svg(&before, &after, &options, out),
        })
    }

    fn options(&self) -> gpuflame_export::Options {
        let (root, title, names) = (self.root.clone(), self.title.clone(), self.names.names());
        gpuflame_export::Options {
            unit: self.unit,
            title,
            graph: self.graph,
            root,
            names,
            all_frames: self.internal_frames,
            whole_kernels: self.internal_frames || self.names.whole_kernels(),
            ..gpuflame_export::Options::default()
        }
    }

    fn read_options(&self) -> ReadOptions {
        let by_stream = self.root.contains(&Root::Stream);
        ReadOptions {
            by_stream,
            internal_frames: self.internal_frames,
            python_lines: self.python == PythonFrames::Lines,
            python_only: self.python == PythonFrames::Only,
            max_memory: max_memory(),
            ..self.names.read_options()
        }
    }

    /// Returns an error if `--root` selects streams or threads, but the input has only sums over all streams or
    /// threads.
    ///
    /// # Errors
    /// Returns `Format`.
    fn require_roots(&self, source: &Source, explained: &Explained) -> Result<()> {
        let Explained { profile, facts, .. } = explained;
        let work = profile.samples(&GPU).iter().filter(|sample| sample.device.is_some());
        let lacks_streams = work.clone().any(|sample| sample.stream.is_none());
        let mut threads = work.filter_map(|sample| Some(profile.context(sample.site.launch().ok()?)?.thread));
        let lacks_threads = threads.clone().next().is_some() && threads.all(|id| id == ThreadId::OTHERS);
        let wants = |root: Root| self.root.contains(&root);
        match (wants(Root::Stream) && lacks_streams) || (wants(Root::Thread) && lacks_threads) {
            true => facts.require_rows(source),
            false => Ok(()),
        }
    }

    /// Returns the stacks of one input, and whether that input is a file of folded stacks.
    fn read_lines(&self, source: &Source, console: Console) -> Result<(FoldedStacks, bool)> {
        let opened = source.open()?;
        if is_folded(&opened) {
            return Ok((read_stacks(source, opened, self.unit, console)?, true));
        }
        let explained = explain_opened(source, opened, &self.read_options(), console, ())?;
        self.require_roots(source, &explained)?;
        Ok((FoldedStacks::from_profile(&explained.profile, &GPU, &self.options()), false))
    }

    /// Draws folded stacks that another tool wrote, without changing their frames.
    fn draw_folded(
        &self,
        input: &Source,
        opened: Opened,
        format: PictureFormat,
        target: &Target,
        console: Console,
    ) -> Result<()> {
        if self.view() != &GPU {
            return Err(usage_error(format!(
                "{input}: folded stacks have no views; drop --idle, --wait, --alloc or --view"
            )));
        }
        let lines = read_stacks(input, opened, self.unit, console)?;
        target.write(console, |out| match format {
            PictureFormat::Folded => write_lines_folded(&lines, self.unit, out),
            PictureFormat::Svg => write_lines_svg(&lines, &self.options(), out),
        })
    }
}

/// Returns a hint that explains how to record the data of `view`; `None` if that data is always recorded.
fn recording_hint(view: &View) -> Option<&'static str> {
    let views = [
        (&WAITS, "Waits are recorded with GPUFLAME_FORMATS=sums,wait."),
        (&MEMORY, "Allocations are recorded with GPUFLAME_FORMATS=sums,alloc."),
        (&CPU, "CPU samples are recorded with GPUFLAME_CPU_SAMPLES=99."),
        (&OFF_CPU, "Waiting threads are recorded with GPUFLAME_OFF_CPU=1."),
        (&TOGETHER, "Record with GPUFLAME_CPU_SAMPLES=99 GPUFLAME_OFF_CPU=1."),
        (&UNIFIED, "Unified memory is recorded with GPUFLAME_UNIFIED=1."),
    ];
    views.into_iter().find(|(known, _)| *known == view).map(|(_, advice)| advice)
}

/// Returns the view that `word` selects.
pub(super) fn parse_view(word: &str) -> std::result::Result<&'static View, String> {
    let words = || views::VIEWS.iter().map(|view| view.word).collect::<Vec<_>>().join(", ");
    views::view(word).ok_or_else(|| format!("there is no view `{word}`; use one of {}", words()))
}

fn is_folded(opened: &Opened) -> bool {
    matches!(opened.kind(), Kind::Folded | Kind::ExtendedFolded)
}

/// Reads folded stacks, and sums the weights of lines with the same stack. Each line of extended folded stacks counts
/// as one occurrence of the line's stack.
fn read_stacks(source: &Source, opened: Opened, unit: Unit, console: Console) -> Result<FoldedStacks> {
    let mut stacks =
        FoldedReader { lines: FoldedStacks::default(), scale: if unit == Unit::Micros { 1000 } else { 1 } };
    let options = import::Options { accept_cut: console.accept_cut, ..import::Options::default() };
    print_remarks(source, &opened.read(&options, &mut stacks)?, console);
    if stacks.lines.is_empty() {
        return Err(Error::new(ErrorKind::Format, format!("{source}: contains no stacks")));
    }
    Ok(stacks.lines)
}

struct FoldedReader {
    lines: FoldedStacks,
    /// Factor by which a weight in the file is multiplied to get ns.
    scale: u64,
}

impl import::Sink for FoldedReader {
    fn wants(&self) -> Wants {
        Wants::STACKS
    }

    fn event(&mut self, event: &Event<'_>) {
        let (frames, weight) = match event {
            Event::Folded(line) => (line.frames.decode(), line.weight.saturating_mul(self.scale)),
            Event::Stack(line) => (line.frames.decode(), self.scale),
            _ => return,
        };
        self.lines.add_folded(&frames, weight);
    }
}
