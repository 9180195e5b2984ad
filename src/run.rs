//! A run that is over: its recording, or the trace that another tool took of it, read and explained.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::explain::{self, Explain, Ledger};
use crate::export::{self, Format};
use crate::import::{self, Kind};
use crate::join::Sink;
use crate::profile::{Profile, Unnamed, View};
use crate::record::Row;
use crate::symbolize::{SymbolizeOptions, Symbolizer, Tied};

/// Rows after which the ceiling on memory is looked at.
const ROWS_BETWEEN_LOOKS: usize = 4096;

/// What to keep apart, and what to show, when a run is read.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Whether samples of the streams of a device are kept apart, as drawing frames of streams needs it.
    /// Default: false.
    pub by_stream: bool,
    /// Whether stacks show the frames inside CUDA's libraries and those below `main`. Default: false.
    pub internal_frames: bool,
    /// Whether a frame of Python is shown with the line that was executed. Default: with that in which its function
    /// begins.
    pub python_lines: bool,
    /// Whether stacks with frames of Python are shown without native frames. Default: no.
    pub python_only: bool,
    /// How many bytes of memory sums may take: beyond it what is rare is added up as others, and the ledger says how
    /// much that was. Default: as many as there are.
    pub max_memory: Option<usize>,
    /// Whether the work of a backward pass hangs under the forward pass, of traces of torch.profiler and of recordings with
    /// the ranges of `emit_nvtx`. Default: false, where autograd launched it.
    pub backward_under_forward: bool,
    /// Traces of the captures of graphs that this one launches, whose stacks work of graphs hangs under. Default: none.
    pub graph_captures: Vec<PathBuf>,
}

/// A run that was recorded by gpuflame, or by another tool: where its GPU time comes from, and how much of it is
/// known.
#[derive(Debug)]
pub struct Run {
    profile: Profile,
    ledger: Ledger,
    unnamed: BTreeMap<Unnamed, u64>,
    tied: Tied,
    remarks: Vec<String>,
}

/// Reads a recording (`.gfr`), or a trace of another tool: of torch.profiler, Nsight Systems, rocprofv3 and others, plain
/// or gzipped, told by content. `-` is standard input.
///
/// Names of code are looked up now, in the files that the recording names; what has no name keeps its address.
///
/// # Errors
/// `Io` or `Format`, with what, where and what next, if there is nothing to be had. Of what is damaged the rest is read,
/// and [`Run::remarks`] says what is missing.
pub fn read(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Run> {
    let path = path.as_ref();
    let opened = import::open(path)?;
    let mut remarks = Vec::new();
    let (mut run, ()) = Run::explained(options, (), |each| match opened.kind() {
        Kind::Recording => {
            let mut remark = |error: Error| remarks.push(error.within(path.display()).to_string());
            let read = import::recording(opened, &import::Options::default(), &mut remark, each);
            read.map(drop).map_err(|error| error.within(path.display()))
        }
        _ => {
            let reading = import::Options {
                backward_under_forward: options.backward_under_forward,
                graph_captures: options.graph_captures.clone(),
                ..import::Options::default()
            };
            import::rows(opened, &reading, each).map(drop)
        }
    })?;
    run.remarks = remarks;
    Ok(run)
}

impl Run {
    /// What the rows that `rows` hands over come to, with names, and what `rows` says; `sink` is shown all that is
    /// joined, before there are names.
    pub(crate) fn explained<T>(
        options: &ReadOptions,
        mut sink: impl Sink,
        rows: impl FnOnce(&mut dyn FnMut(&Row<'_>)) -> Result<T>,
    ) -> Result<(Self, T)> {
        let &ReadOptions {
            by_stream,
            internal_frames,
            python_lines,
            python_only,
            max_memory,
            backward_under_forward,
            ..
        } = options;
        let apart = explain::Options { by_stream, ceiling: max_memory, ..explain::Options::default() };
        let mut explain = Explain::new(apart);
        let mut count = 0_usize;
        let said = rows(&mut |row| {
            explain.push(row, &mut sink);
            count += 1;
            if count.is_multiple_of(ROWS_BETWEEN_LOOKS) {
                explain.fit(0);
            }
        })?;
        explain.fit_exports(explain.heap_bytes());
        let ledger = explain.finish(&[], &mut sink).ledger;
        let mut profile = explain.into_profile();
        let naming = SymbolizeOptions { internal_frames, python_lines, python_only, backward_under_forward };
        let mut symbolizer = Symbolizer::new(naming);
        symbolizer.name(&mut profile);
        let unnamed = symbolizer.misses().clone();
        let tied = symbolizer.tied();
        Ok((Self { profile, ledger, unnamed, tied, remarks: Vec::new() }, said))
    }

    /// How much was seen, what became of it and what was lost.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Writes what `view` holds, as `format`.
    ///
    /// # Errors
    /// What `out` reports; `Setting` for a format that is made of single activities and not of sums.
    pub fn draw(
        &self,
        view: &View,
        format: &Format,
        options: &export::Options,
        out: &mut dyn Write,
    ) -> Result<()> {
        format.draw(&self.profile, view, options, out)
    }

    /// How many frames of code have no name, and why.
    pub fn unnamed(&self) -> &BTreeMap<Unnamed, u64> {
        &self.unnamed
    }

    /// What is to be known of the file: a sentence for each thing that is damaged or missing.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Stacks, samples, names: all that formats are made of.
    #[doc(hidden)]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The same, taken apart.
    pub(crate) fn into_parts(self) -> (Profile, Ledger, BTreeMap<Unnamed, u64>, Tied) {
        (self.profile, self.ledger, self.unnamed, self.tied)
    }
}
