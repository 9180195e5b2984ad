//! Reads a finished run from its recording or from another tool's trace, and sums the GPU time of each stack.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::analysis::StepCoverage;
use gpuflame_explain::join::Sink;
use gpuflame_explain::symbolize::{BackwardTime, SymbolizeOptions, Symbolizer};
use gpuflame_explain::{self as explain, Explain, Ledger};
use gpuflame_export::{self as export, Format};
use gpuflame_model::error::{Error, Result};
use gpuflame_model::profile::{Profile, Unnamed, View};
use gpuflame_model::record::{Row, StepSpans, WriterId};
use gpuflame_traces::import::{self, Kind};

/// Number of rows that are read between two checks of the memory limit.
const ROWS_PER_MEMORY_CHECK: usize = 4096;

/// Options for reading a run: which samples to distinguish, and which frames to show.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Whether samples of different streams are kept separate, as needed to draw stream frames. Default: false.
    pub by_stream: bool,
    /// Whether stacks include the frames inside CUDA's libraries and the frames below `main`. Default: false.
    pub internal_frames: bool,
    /// Whether a Python frame is shown with the executed line. Default: false. If false, a Python frame is shown with
    /// the first line of its function.
    pub python_lines: bool,
    /// Whether stacks with Python frames omit native frames. Default: false.
    pub python_only: bool,
    /// Maximum memory of the sums in bytes. If the sums need more memory than this, rare stacks are merged into "other"
    /// entries, and the ledger states the total of these entries. Default: unlimited.
    pub max_memory: Option<usize>,
    /// Whether GPU work of a backward pass is attributed to the forward pass. Attribution to the forward pass works for
    /// traces of torch.profiler, and for recordings with the NVTX ranges of `emit_nvtx`. Default: false. If false, GPU
    /// work of a backward pass is attributed to autograd, which launched the work.
    pub backward_under_forward: bool,
    /// Whether the states of the host's threads are also read for times in which a GPU executed a copy but no kernel.
    /// Default: false.
    pub kernel_gaps: bool,
    /// Maximum total number of calls and GPU operations up to which the states of the host's threads are read for all
    /// times between launches. Default: 0.
    pub between_launches: usize,
    /// Whether reading a run skips the states of the host's threads and the search for the culprits of idle time.
    /// Default: false.
    pub without_host_states: bool,
    /// Whether the squares of durations are also summed for each stack and kernel. The comparison of two runs needs the
    /// sums of the squares of durations. Default: false.
    pub has_squares: bool,
    /// Whether the named ranges of a trace are also returned, with their times. Default: false.
    pub ranges: bool,
    /// Traces that were recorded during the capture of CUDA graphs that this run launches. GPU work in these graphs is
    /// attributed to the stacks in the traces. Default: none.
    pub graph_captures: Vec<PathBuf>,
}

/// A run recorded by gpuflame or by another tool: its GPU time for each stack, and how much of the GPU work was
/// recorded.
#[derive(Debug)]
pub struct Run {
    profile: Profile,
    ledger: Ledger,
    unnamed: BTreeMap<Unnamed, u64>,
    tied: BackwardTime,
    remarks: Vec<String>,
}

/// Reads a recording (`.gfr`), or a trace of torch.profiler, Nsight Systems, rocprofv3 or another tool, plain or
/// compressed. The file's format is detected from its content. The path `-` means standard input.
///
/// Code addresses are symbolized immediately, using the files that the recording names. Frames whose name is not found
/// keep their address.
///
/// # Errors
/// Returns `Io` or `Format`, with the cause, the place and a remedy, if nothing can be read. If a file is damaged, its
/// readable part is read, and [`Run::remarks`] lists the damage.
pub fn read(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Run> {
    let path = path.as_ref();
    let opened = import::open(path)?;
    let mut remarks = Vec::new();
    let (mut coverage, mut steps) = (StepCoverage::default(), StepSpans::default());
    let is_trace = opened.kind() != Kind::Recording;
    let mut host_function_calls = 0;
    let (mut run, has_only_sums) = Run::explained(options, &mut coverage, |each| {
        let each = &mut |row: &Row<'_>| {
            steps.add_row(row);
            each(row);
        };
        match opened.kind() {
            Kind::Recording => {
                let options = &import::Options::default();
                let mut remark = |error: Error| remarks.push(error.within(path.display()).to_string());
                let read = import::recording(opened, options, is_writer_alive, &mut remark, each);
                read.map(|read| read.has_only_sums).map_err(|error| error.within(path.display()))
            }
            _ => {
                let import_options = import::Options {
                    backward_under_forward: options.backward_under_forward,
                    graph_captures: options.graph_captures.clone(),
                    ..import::Options::default()
                };
                let linked = import::rows(opened, &import_options, each)?;
                let place = |remark: &String| format!("{}: {remark}", path.display());
                remarks.extend(linked.counts.remarks.iter().map(place));
                host_function_calls = linked.host_function_calls;
                Ok(false)
            }
        }
    })?;
    // A recording that contains only sums has no launch times, so the coverage of such a run comes from the sums.
    if !has_only_sums {
        if host_function_calls > 0 {
            coverage.note_host_functions();
        }
        run.profile.set_coverage(coverage.coverage(&run.profile, &steps, is_trace));
    }
    run.remarks = remarks;
    Ok(run)
}

/// Whether the thread that writes a recording is still running; `None` if this machine cannot determine it.
pub fn is_writer_alive(writer: &WriterId) -> Option<bool> {
    #[cfg(target_os = "linux")]
    {
        let WriterId { process, thread, started, namespace, boot } = writer.clone();
        gpuflame_os::process_liveness::ThreadIdentity { process, thread, started, namespace, boot }.is_alive()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = writer;
        None
    }
}

impl Run {
    /// Creates a run from the rows that `rows` emits: joins the rows, sums them, and symbolizes the stacks. The second
    /// part of the returned pair is the value that `rows` returned. The joined rows are passed to `sink` before
    /// symbolization.
    pub fn explained<T>(
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
            without_host_states,
            has_squares,
            ..
        } = options;
        let explain_options = explain::Options {
            by_stream,
            ceiling: max_memory,
            without_culprits: without_host_states,
            has_squares,
            ..explain::Options::default()
        };
        let mut explain = Explain::new(explain_options);
        let mut count = 0_usize;
        let result = rows(&mut |row| {
            explain.push_row_of_file(row, &mut sink);
            count += 1;
            if count.is_multiple_of(ROWS_PER_MEMORY_CHECK) {
                explain.fit(0);
            }
        })?;
        explain.fit_exports(explain.heap_bytes());
        let ledger = explain.finish_file(&mut sink).ledger;
        let mut profile = explain.into_profile();
        let naming = SymbolizeOptions { internal_frames, python_lines, python_only, backward_under_forward };
        let mut symbolizer = Symbolizer::new(naming);
        symbolizer.name(&mut profile);
        let unnamed = symbolizer.misses().clone();
        let tied = symbolizer.backward_time();
        Ok((Self { profile, ledger, unnamed, tied, remarks: Vec::new() }, result))
    }

    /// Returns the counts of all rows that were read, matched and dropped.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Writes a view of the run in the given format.
    ///
    /// # Errors
    /// Fails if writing to `out` fails, or with `Setting` if the format needs single activities instead of sums.
    pub fn draw(
        &self,
        view: &View,
        format: &Format,
        options: &export::Options,
        out: &mut dyn Write,
    ) -> Result<()> {
        format.draw(&self.profile, view, options, out)
    }

    /// Returns the number of code frames without a name, for each reason.
    pub fn unnamed(&self) -> &BTreeMap<Unnamed, u64> {
        &self.unnamed
    }

    /// Returns remarks about the file. Each remark is a sentence about a damaged or missing part.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Returns the profile: stacks, samples and names. All formats are written from the profile.
    #[doc(hidden)]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the run's profile, its ledger and its other parts.
    pub fn into_parts(self) -> (Profile, Ledger, BTreeMap<Unnamed, u64>, BackwardTime) {
        (self.profile, self.ledger, self.unnamed, self.tied)
    }
}
