//! `gpuflame report`: writes one HTML page that explains why a run is slow, with sentences, bars, findings, flame
//! graphs and tables. The page is one file without references to other files or servers.
//!
//! `page.js` and `page.css` are built from the repository's folder `page`.

mod bars;
mod comparison;
mod first_screen;
mod html;
mod job;
mod panels;
mod path_panel;
mod rank_panel;
mod remedies;
mod step_panel;
mod words;
mod work_panels;

use std::path::{Path, PathBuf};

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::input::Source;
use super::name_flags::NameFlags;
use super::open_file::open_in_browser;
use super::output::Target;
use super::ranks::RankFlags;
use gpuflame_model::error::Result;
use gpuflame_offline::report::write_data;
pub(super) use html::escaped;
use job::Job;

/// Maximum size in bytes of the compressed data in a page. Data of this size takes 15 MB after encoding as base64,
/// which needs four characters for three bytes.
const MAX_DATA_BYTES: usize = 15_000_000 / 4 * 3;
/// Maximum size in bytes of the timeline's slices within the compressed data. The compressed data also contains flame
/// graphs and tables, so the slices must leave room for them.
const MAX_TIMELINE_BYTES: usize = MAX_DATA_BYTES / 3 * 2;
/// Endings of compressed traces. In a file name, the ending of the trace format comes before the ending of the
/// compression format.
const COMPRESSIONS: [&str; 4] = ["gz", "zst", "xz", "zip"];

/// Write one page in HTML that explains why a run is slow: open it in any browser.
///
/// The page shows why the GPUs were idle, what cost time, and which command shows more. Below these answers, the page
/// has flame graphs of every recorded view, a timeline, kernels, functions, steps and ranks. The page is one file that
/// loads nothing from elsewhere. Several files are the ranks of a job. Without --output, the page is written next to
/// the first input, as NAME.html.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gpuflame report run.gfr\n  gpuflame report trace.json.gz -o report.html --open\n  \
        gpuflame report rank-*.json.gz -o job.html\n  gpuflame report new.gfr --against old.gfr -o diff.html"
)]
pub(super) struct Report {
    /// Recording or trace (`-`: standard input), or the files of all ranks of a job.
    #[arg(required = true)]
    inputs: Vec<Source>,
    /// Older run, or the ranks of an older job, to compare with. The flame graph then shows the changes, and a table
    /// shows whether kernels changed by more than chance.
    #[arg(long, value_name = "OLD", num_args = 1..)]
    against: Vec<Source>,
    /// Output file, which ends in .html (`-`: standard output) [default: next to the first input].
    #[arg(short, long, value_name = "FILE")]
    output: Option<Target>,
    /// Open the page in a browser.
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    ranks: RankFlags,
    #[command(flatten)]
    names: NameFlags,
}

impl Report {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let sources = self.ranks.sources(&self.inputs, console)?;
        let target = self.target(&sources)?;
        if self.open && target == Target::Stdout {
            return Err(usage_error("--open needs a file; name one with `-o report.html`"));
        }
        let old = match self.against.is_empty() {
            true => Vec::new(),
            false => self.ranks.sources(&self.against, console)?,
        };
        let page = page_bytes(&sources, &old, self.ranks, &self.names, console)?;
        target.write(console, |out| Ok(out.write_all(&page)?))?;
        if let (Target::File(path), true) = (&target, self.open) {
            open_in_browser(path, console);
        }
        Ok(Outcome::Clean)
    }

    fn target(&self, sources: &[Source]) -> Result<Target> {
        match &self.output {
            Some(target) => match target.ending() {
                None if *target == Target::Stdout => Ok(Target::Stdout),
                Some("html" | "htm") => Ok(target.clone()),
                _ => Err(usage_error(
                    "a report is a page in HTML; end the name in .html, or use `gpuflame flamegraph` for pictures",
                )),
            },
            None => match sources.first() {
                Some(Source::File(path)) => Ok(Target::File(page_path(path))),
                _ => Err(usage_error("standard input has no name; name the page with `-o report.html`")),
            },
        }
    }
}

/// Returns the path of the page for a recording or trace: `run.gfr` and `run.json.gz` become `run.html`.
pub(super) fn page_path(input: &Path) -> PathBuf {
    let is_compressed =
        input.extension().and_then(|it| it.to_str()).is_some_and(|it| COMPRESSIONS.contains(&it));
    let name = if is_compressed { input.with_extension("") } else { input.to_owned() };
    name.with_extension("html")
}

/// Reads the runs and returns the bytes of their page. Several sources are the ranks of a job. `old` is the older run
/// to compare with; empty if there is no older run.
fn page_bytes(
    sources: &[Source],
    old: &[Source],
    flags: RankFlags,
    names: &NameFlags,
    console: Console,
) -> Result<Vec<u8>> {
    let read = |sources: &[Source]| Job::read(sources, flags, names, console);
    let mut job = read(sources)?;
    let old = if old.is_empty() { None } else { Some(read(old)?) };
    let head = first_screen::head(&job, old.as_ref());
    let mut members = format!("{},\"panels\":{}", head.json(), panels::all(&job, old.as_ref()));
    let timeline = (!job.timeline.is_empty()).then(|| job.timeline.data(MAX_TIMELINE_BYTES)).transpose()?;
    if let Some(timeline) = &timeline {
        members += &format!(",\"timeline\":{}", timeline.json);
    }
    let slices = timeline.map_or_else(Vec::new, |timeline| timeline.slices);
    let max_bytes = MAX_DATA_BYTES - slices.len();
    let data = write_data(&members, &job.views, old.as_ref().map(|old| &old.views), max_bytes)?;
    let mut page = Vec::new();
    html::Page { head: &head, data: &data, slices: &slices }.write(&mut page)?;
    Ok(page)
}

/// Returns the page of a run, or of the ranks of a job. Prints no remarks.
pub(super) fn job_page(sources: &[Source], console: Console) -> Result<Vec<u8>> {
    page_bytes(sources, &[], RankFlags::default(), &NameFlags::default(), Console { quiet: true, ..console })
}

/// Writes the page of a run that has just ended. Prints no remarks, because `gpuflame run` has already printed them.
pub(super) fn write_run_page(sources: &[Source], target: &Target, console: Console) -> Result<()> {
    let page = job_page(sources, console)?;
    target.write(console, |out| Ok(out.write_all(&page)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_next_to_its_input() {
        for (input, page) in [
            ("a/run.gfr", "a/run.html"),
            ("app.4711.gfr", "app.4711.html"),
            ("trace.json.gz", "trace.html"),
            ("trace.json", "trace.html"),
            ("trace", "trace.html"),
        ] {
            assert_eq!(page_path(Path::new(input)), Path::new(page), "{input}");
        }
    }
}
