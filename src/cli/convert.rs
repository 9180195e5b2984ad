//! `gpuflame convert`: the same data in the format of another tool.

use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::explain::{Explained, explain};
use super::input::Source;
use super::output::Target;
use super::{Console, Ended, Outcome, ranks, usage};
use crate::error::{Error, Result};
use crate::events::Events;
use crate::export::{self, FoldedOptions, SvgOptions};
use crate::host::file::Draft;
use crate::join::Sink;
use crate::record::Row;
use crate::symbolize::{SymbolizeOptions, kernel_name};

/// Write the same data in the format of another tool.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame convert run.gfr -o run.pftrace\n  \
    gpuflame convert trace.json.gz --to chrome | gzip > small.json.gz\n  \
    gpuflame convert job/ --to parquet -o data --run A")]
pub(super) struct Convert {
    /// The recording or trace (`-`: standard input); several, or a folder of them, with `--to parquet`.
    #[arg(required_unless_present = "from")]
    inputs: Vec<Source>,
    /// The input, for those who are used to `-i`.
    #[arg(short = 'i', value_name = "INPUT", conflicts_with = "inputs", id = "from")]
    input: Option<Source>,
    /// Where to write. For parquet: a folder, in which `run=RUN/rank=N/activities.parquet` is made, or a
    /// file that ends in `.parquet`.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: Target,
    /// What to write [default: by the ending of FILE].
    #[arg(short, long, visible_alias = "format", value_name = "FORMAT")]
    to: Option<Format>,
    /// The name of the run, for parquet's folders.
    #[arg(long, default_value = "0", value_name = "RUN")]
    run: String,
    /// The rank, for parquet's folders [default: what the input says, or its name].
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line for each stack and its GPU time (.folded).
    Folded,
    /// A line for each launch with its time, process and thread (.txt).
    ExtendedFolded,
    /// A flame graph (.svg).
    Svg,
    /// A row for each activity (.csv).
    Csv,
    /// Chrome's trace events, as torch.profiler writes them (.json).
    Chrome,
    /// Perfetto's protobuf, with its native GPU messages (.pftrace).
    Perfetto,
    /// Go's profile format: gpu_time, launches, bytes (.pb.gz, .pprof).
    Pprof,
    /// speedscope's JSON (.speedscope.json).
    Speedscope,
    /// A table for DuckDB and Spark (a folder, or .parquet).
    Parquet,
    /// TraceSmith's binary format (.sbt).
    Sbt,
    /// What the CUPTI tracer of eunomia's tutorial prints (.cupti.txt).
    CuptiText,
}

impl Format {
    fn by_name(name: &str) -> Option<Self> {
        let endings = [
            (".speedscope.json", Self::Speedscope),
            (".json", Self::Chrome),
            (".folded", Self::Folded),
            (".cupti.txt", Self::CuptiText),
            (".txt", Self::ExtendedFolded),
            (".svg", Self::Svg),
            (".csv", Self::Csv),
            (".pftrace", Self::Perfetto),
            (".perfetto-trace", Self::Perfetto),
            (".pb.gz", Self::Pprof),
            (".pprof", Self::Pprof),
            (".parquet", Self::Parquet),
            (".sbt", Self::Sbt),
        ];
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }

    fn is_binary(self) -> bool {
        matches!(self, Self::Perfetto | Self::Pprof | Self::Parquet | Self::Sbt)
    }

    /// Whether sums are enough for it.
    fn is_of_sums(self) -> bool {
        matches!(self, Self::Folded | Self::Svg | Self::Pprof | Self::Speedscope)
    }
}

impl Convert {
    pub(super) fn run(&self, console: Console) -> Outcome {
        let format = self.format()?;
        let inputs = ranks::expand(self.input.as_ref().map_or(&self.inputs[..], std::slice::from_ref))?;
        if let (Format::Parquet, Target::File(folder)) = (format, &self.output)
            && !folder.to_string_lossy().ends_with(".parquet")
        {
            self.dataset(&inputs, folder, console)?;
            return Ok(Ended::Well);
        }
        let [input] = &inputs[..] else {
            return Err(usage(
                "several inputs can only become one with `--to parquet -o FOLDER`, or `merge-ranks`",
            ));
        };
        if format.is_binary() && self.output == Target::Stdout && stdout().is_terminal() {
            return Err(usage("this format is no use on a terminal; add `-o FILE`"));
        }
        let (explained, events) = read(input, format, console)?;
        self.output.write(console, |out| write(format, &title(input), &explained, &events, out))?;
        Ok(Ended::Well)
    }

    fn format(&self) -> Result<Format> {
        let by_name = || match &self.output {
            Target::Stdout => None,
            Target::File(path) => Format::by_name(&path.to_string_lossy()),
        };
        self.to.or_else(by_name).ok_or_else(|| match &self.output {
            Target::Stdout => usage("say what to convert to: `--to chrome`, `--to pprof`, … (see --help)"),
            Target::File(path) => usage(format!(
                "{}: which format? Add `--to chrome`, `--to pprof`, … (see --help)",
                path.display()
            )),
        })
    }

    /// A file for each input below `folder`.
    fn dataset(&self, inputs: &[Source], folder: &Path, console: Console) -> Result<()> {
        if self.run.is_empty() || self.run.contains(['/', '=']) {
            return Err(usage("the name of a run is the name of a folder: no `/`, no `=`, not empty"));
        }
        let ranks = match self.rank {
            Some(rank) if inputs.len() == 1 => vec![rank],
            Some(_) => return Err(usage("`--rank` is for one input")),
            None => ranks::of(inputs),
        };
        let mut written = Partitions::default();
        for (input, rank) in inputs.iter().zip(ranks) {
            let (explained, events) = read(input, Format::Parquet, console)?;
            let partition = folder.join(format!("run={}", self.run)).join(format!("rank={rank}"));
            written.add(partition, |out| write(Format::Parquet, "", &explained, &events, out))?;
        }
        written.publish(console)
    }
}

/// Files of a data set that get their names when all of them are there; until then they go away with this.
#[derive(Default)]
struct Partitions(Vec<(PathBuf, Draft)>);

impl Partitions {
    /// Makes the folder, and has `content` write its file, under no name that DuckDB or Spark would read.
    fn add(
        &mut self,
        partition: PathBuf,
        content: impl FnOnce(&mut (dyn Write + Send)) -> Result<()>,
    ) -> Result<()> {
        let file = partition.join("activities.parquet");
        let refusal = |error: Error| error.within(format!("{} was not written", file.display()));
        fs::create_dir_all(&partition).map_err(|error| refusal(error.into()))?;
        let draft = Draft::create(&file).map_err(|error| refusal(error.into()))?;
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
            // Those that are not empty stay: run, and the data set.
            let _ = partition.ancestors().take(3).try_for_each(fs::remove_dir);
        }
    }
}

fn read(input: &Source, format: Format, console: Console) -> Result<(Explained, Events)> {
    let mut events = Events::default();
    let keep = (!format.is_of_sums()).then_some(&mut events);
    let explained = explain(input, SymbolizeOptions::default(), console, keep)?;
    events.sort();
    Ok((explained, events))
}

fn title(input: &Source) -> String {
    match input {
        Source::Stdin => "gpuflame".to_owned(),
        Source::File(path) => {
            path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        }
    }
}

fn write(
    format: Format,
    title: &str,
    explained: &Explained,
    events: &Events,
    mut out: &mut (dyn Write + Send),
) -> Result<()> {
    let (profile, out) = (&explained.profile, &mut out);
    match format {
        Format::Folded => export::write_folded(profile, &FoldedOptions::default(), out),
        Format::Svg => export::write_svg(profile, &SvgOptions::default(), out),
        Format::Pprof => export::write_pprof(profile, out),
        Format::Speedscope => export::write_speedscope(profile, title, out),
        Format::Chrome => export::write_chrome(profile, events, out),
        Format::Perfetto => export::write_perfetto(profile, events, out),
        Format::Parquet => export::write_parquet(profile, events, out),
        Format::Sbt => export::write_sbt(profile, events, out),
        Format::ExtendedFolded => export::write_extended(profile, events, out),
        Format::CuptiText => export::write_cupti_text(profile, events, out),
        Format::Csv => {
            let mut table = export::ActivityTable::new(out, kernel_name)?;
            for (id, text) in profile.kernels() {
                table.row(&Row::Name { id, text: profile.strings().get(text) });
            }
            events.unified().iter().for_each(|one| table.row(&Row::Unified(*one)));
            events.activities().iter().for_each(|event| table.activity(&event.activity, event.origin));
            let pending = events.calls().iter().filter(|call| call.pending);
            pending.for_each(|call| table.pending(call.id, call.launched));
            table.finish().map(drop)
        }
    }
}
