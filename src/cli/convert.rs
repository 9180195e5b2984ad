//! `gpuflame convert`: converts a recording or trace to the format of another tool.

use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::added_tracks::AddedTracks;
use super::chrome_flags::ChromeFlags;
use super::console::{Console, Outcome, usage_error};
use super::explain::{Explained, explain, explain_sums};
use super::flamegraph::parse_view;
use super::input::Source;
use super::name_flags::NameFlags;
use super::output::Target;
use super::ranks::{self, SameRank};
use gpuflame_explain::events::JoinedRows;
use gpuflame_export::{self as export, Format, Unit, Writes};
use gpuflame_model::error::{Error, Result};
use gpuflame_model::profile::View;
use gpuflame_model::profile::views::GPU;
use gpuflame_offline::formats::FORMATS;
use gpuflame_offline::run::ReadOptions;
use gpuflame_os::file::Draft;

/// Formats whose weights are in the unit that `--unit` selects.
const UNIT_FORMATS: [&str; 3] = ["folded", "svg", "speedscope"];
/// Table formats with one row per GPU activity, and no rows for CUDA calls.
const ACTIVITY_TABLES: [&str; 3] = ["arrow", "csv", "parquet"];

/// Convert a recording or trace to the format of another tool.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame convert run.gfr -o run.pftrace\n  \
    gpuflame convert trace.json.gz --format chrome | gzip > small.json.gz\n  \
    gpuflame convert job/ --format parquet -o data --run A")]
pub(super) struct Convert {
    /// Recording or trace (`-`: standard input). With `--format parquet`: several files, or a folder.
    #[arg(required_unless_present = "from")]
    inputs: Vec<Source>,
    /// Input, given as an option.
    #[arg(short = 'i', value_name = "INPUT", conflicts_with = "inputs", id = "from")]
    input: Option<Source>,
    /// Output file (`-`: standard output). For parquet: a file whose name ends in `.parquet`, or a folder, in which
    /// `run=RUN/rank=N/activities.parquet` is created.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: Target,
    /// Output format [default: by the ending of FILE].
    #[arg(
        short = 'f',
        long = "format",
        visible_alias = "to",
        visible_short_alias = 't',
        value_name = "FORMAT",
        value_parser = format_parser()
    )]
    to: Option<&'static Format>,
    /// Unit of a stack's weight, for the formats folded, svg and speedscope: ns, us, or count [default: ns].
    #[arg(short, long)]
    unit: Option<Unit>,
    /// View to write, for formats of sums: gpu, idle, wait, alloc, unified, cpu, off-cpu or together.
    #[arg(long, value_name = "VIEW", default_value = "gpu", value_parser = parse_view)]
    view: &'static View,
    /// Name of the run, for the folders of parquet.
    #[arg(long, default_value = "0", value_name = "RUN")]
    run: String,
    /// Rank, for the folders of parquet [default: from the content or the name of the input].
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Leave out `[correlation N]`, the last frame of each line of extended folded stacks. The tutorial's first merger
    /// takes `[correlation N]` for a function.
    #[arg(long)]
    no_correlation: bool,
    /// Show frames that are hidden by default: frames inside CUDA's libraries, below `main`, of the Python interpreter,
    /// of PyTorch's dispatcher and the internals of its operators, and frames that call modules and decorated
    /// functions. Folded stacks then contain complete kernel names.
    #[arg(long, visible_alias = "all-frames")]
    internal_frames: bool,
    /// With the format perfetto: add a track with the parts of the critical path, each with its class and the reason why it
    /// begins.
    #[arg(long)]
    critical_path: bool,
    /// With the format perfetto: add a track for each stream with its states and their causes. The states are running,
    /// waiting for an event or a collective, pending, and idle.
    #[arg(long)]
    states: bool,
    #[command(flatten)]
    chrome: ChromeFlags,
    #[command(flatten)]
    names: NameFlags,
}

impl Convert {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let format = self.format()?;
        self.check_tracks(format)?;
        let inputs =
            ranks::expand_folders(self.input.as_ref().map_or(&self.inputs[..], std::slice::from_ref))?;
        if let ("parquet", Target::File(folder)) = (format.word, &self.output)
            && !folder.to_string_lossy().ends_with(".parquet")
        {
            self.write_dataset(format, &inputs, folder, console)?;
            return Ok(Outcome::Clean);
        }
        let [input] = &inputs[..] else {
            return Err(usage_error(
                "several inputs need `--format parquet -o FOLDER`, or `gpuflame merge-ranks`",
            ));
        };
        if self.view != &GPU && !format.is_of_views() {
            return Err(usage_error(format!(
                "{} contains single activities, not views; drop `--view`",
                format.word
            )));
        }
        if self.unit.is_some() && !UNIT_FORMATS.contains(&format.word) {
            return Err(usage_error(format!(
                "--unit: {} has units of its own; --unit applies to {}",
                format.word,
                UNIT_FORMATS.join(", ")
            )));
        }
        if format.is_binary && self.output == Target::Stdout && stdout().is_terminal() {
            return Err(usage_error("this format is binary; write it to a file with `-o FILE`"));
        }
        if format.word == "chrome" {
            self.chrome.write(input, &self.output, &self.read_options(), console)?;
            return Ok(Outcome::Clean);
        }
        self.chrome.require_none(format)?;
        if self.critical_path || self.states {
            let tracks = AddedTracks { path: self.critical_path, states: self.states };
            tracks.write(input, &self.output, &self.read_options(), console)?;
            return Ok(Outcome::Clean);
        }
        let (explained, events) = read(input, format, self.read_options(), console)?;
        if format.is_of_views() {
            explained.need_samples(input, self.view)?;
        }
        let options = gpuflame_export::Options {
            names: self.names.names(),
            whole_kernels: self.internal_frames || self.names.whole_kernels(),
            without_correlation: self.no_correlation,
            unit: self.unit.unwrap_or_default(),
            ..options(input)
        };
        self.output.write(console, |out| write(format, self.view, &options, &explained, &events, out))?;
        if let ("csv", Target::File(path)) = (format.word, &self.output)
            && path.extension().is_some()
        {
            // A second output file lists the stacks with their ids. The main output file refers to stacks by these ids.
            let stacks = Target::File(path.with_extension("stacks.csv"));
            stacks.write(console, |mut out| export::write_stacks_csv(&explained.profile, &mut out))?;
        }
        Ok(Outcome::Clean)
    }

    /// Returns an error if `--critical-path` or `--states` is given for a format that has no tracks.
    fn check_tracks(&self, format: &Format) -> Result<()> {
        let (flag, what) = match (self.critical_path, self.states) {
            (true, _) => ("critical-path", "track for the path"),
            (_, true) => ("states", "tracks for states"),
            _ => return Ok(()),
        };
        if format.word == "perfetto" {
            return Ok(());
        }
        let word = format.word;
        Err(usage_error(format!("--{flag}: {word} has no {what}; use `--to perfetto`, or `gpuflame {flag}`")))
    }

    fn read_options(&self) -> ReadOptions {
        ReadOptions { internal_frames: self.internal_frames, ..self.names.read_options() }
    }

    fn format(&self) -> Result<&'static Format> {
        let by_name = || match &self.output {
            Target::Stdout => None,
            Target::File(path) => format_by_ending(&path.to_string_lossy()),
        };
        self.to.or_else(by_name).ok_or_else(|| match &self.output {
            Target::Stdout => usage_error(format!(
                "name an output format, such as `--format chrome`; formats: {}",
                FORMATS.iter().map(|format| format.word).collect::<Vec<_>>().join(", ")
            )),
            Target::File(path) => usage_error(format!(
                "{}: unknown file extension; end the name in {}, or add --format, such as `--format chrome`",
                path.display(),
                list_endings()
            )),
        })
    }

    /// Writes one Parquet file per input below `folder`.
    fn write_dataset(
        &self,
        format: &Format,
        inputs: &[Source],
        folder: &Path,
        console: Console,
    ) -> Result<()> {
        if self.run.is_empty() || self.run.contains(['/', '=']) {
            return Err(usage_error(
                "`--run` becomes a folder name: it must not be empty or contain `/` or `=`",
            ));
        }
        let ranks = match self.rank {
            Some(rank) if inputs.len() == 1 => vec![rank],
            Some(_) => return Err(usage_error("`--rank` needs exactly one input")),
            None if inputs.len() == 1 => vec![0],
            // Ranks are used only in the names of folders here, so input files without a rank are numbered in the order
            // of the command line.
            None => ranks::assign_ranks(inputs, false, SameRank::Refused)
                .or_else(|_| ranks::assign_ranks(inputs, true, SameRank::Refused))?,
        };
        let mut written = Partitions::default();
        for (input, rank) in inputs.iter().zip(ranks) {
            let (explained, events) = read(input, format, self.read_options(), console)?;
            let partition = folder.join(format!("run={}", self.run)).join(format!("rank={rank}"));
            let options = gpuflame_export::Options::default();
            written.add(partition, |out| write(format, &GPU, &options, &explained, &events, out))?;
        }
        written.publish(console)
    }
}

/// Files of a data set that is being written. The files of a data set get their final names only when all files are
/// complete. If `Partitions` is dropped before all files are complete, the files are removed.
#[derive(Default)]
struct Partitions(Vec<(PathBuf, Draft)>);

impl Partitions {
    /// Creates the folder `partition`, and calls `content` to write the file in this folder. Until the data set is
    /// complete, the new file has a name that DuckDB and Spark ignore.
    fn add(
        &mut self,
        partition: PathBuf,
        content: impl FnOnce(&mut (dyn Write + Send)) -> Result<()>,
    ) -> Result<()> {
        let file = partition.join("activities.parquet");
        let refusal = |error: Error| error.within(format!("{} was not written", file.display()));
        fs::create_dir_all(&partition).map_err(|error| refusal(error.into()))?;
        let mut draft = Draft::create(&file).map_err(|error| refusal(error.into()))?;
        let filled = draft.fill(|out| content(out)).map_err(refusal);
        self.0.push((partition, draft));
        filled
    }

    fn publish(mut self, console: Console) -> Result<()> {
        for (partition, draft) in std::mem::take(&mut self.0) {
            draft.publish()?;
            console.remark(format!("wrote {}", partition.join("activities.parquet").display()));
        }
        Ok(())
    }
}

impl Drop for Partitions {
    fn drop(&mut self) {
        for (partition, draft) in self.0.drain(..) {
            drop(draft);
            // Removes only empty folders: the folder of the rank, then the folders of the run and of the data set above
            // it.
            let _ = partition.ancestors().take(3).try_for_each(fs::remove_dir);
        }
    }
}

fn read(
    input: &Source,
    format: &Format,
    reading: ReadOptions,
    console: Console,
) -> Result<(Explained, JoinedRows)> {
    let mut events = JoinedRows::default();
    let mut explained = match format.is_of_views() {
        true => explain_sums(input, reading, console)?,
        false => explain(input, &reading, console, &mut events)?,
    };
    explained.facts.give_source_ids(&mut events);
    explained.facts.require_work(input)?;
    if !format.is_of_views() {
        explained.facts.require_rows(input)?;
    }
    match ACTIVITY_TABLES.contains(&format.word) {
        true => events.sort_without_calls(),
        false => events.sort(),
    }
    Ok((explained, events))
}

/// Returns a parser for the word that selects a format. The parser makes the help text list all formats with their
/// purposes.
fn format_parser() -> impl TypedValueParser<Value = &'static Format> {
    let known = FORMATS.iter().map(|format| PossibleValue::new(format.word).help(format.about));
    PossibleValuesParser::new(known)
        .map(|word| gpuflame_offline::formats::format(&word).expect("it is one of the possible values"))
}

/// Returns a list of all formats, with the file name ending and the word of each format: `.folded (folded), .svg
/// (svg)`.
fn list_endings() -> String {
    let with_word = |format: &&Format| Some(format!("{} ({})", format.endings.first()?, format.word));
    FORMATS.iter().filter_map(with_word).collect::<Vec<_>>().join(", ")
}

/// Returns the format whose file ending is the ending of `name`. If the endings of several formats match, the format
/// with the longest ending is returned.
fn format_by_ending(name: &str) -> Option<&'static Format> {
    let endings =
        FORMATS.iter().flat_map(|format| format.endings.iter().map(move |ending| (ending, *format)));
    let fit = endings.filter(|(ending, _)| name.ends_with(**ending));
    fit.max_by_key(|(ending, _)| ending.len()).map(|(_, format)| format)
}

fn options(input: &Source) -> gpuflame_export::Options {
    let name = match input {
        Source::Stdin => None,
        Source::File(path) => path.file_name().map(|name| name.to_string_lossy().into_owned()),
    };
    gpuflame_export::Options { name, ..gpuflame_export::Options::default() }
}

fn write(
    format: &Format,
    view: &View,
    options: &gpuflame_export::Options,
    explained: &Explained,
    events: &JoinedRows,
    mut out: &mut (dyn Write + Send),
) -> Result<()> {
    match format.writes {
        Writes::View(_) => format.draw(&explained.profile, view, options, &mut out),
        Writes::Events(write) => write(&explained.profile, events, options, out),
    }
}
