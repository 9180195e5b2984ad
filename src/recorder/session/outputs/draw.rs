//! Writes a profile to outputs in the formats that the settings request.

use std::cell::Cell;
use std::io::Write;
use std::path::Path;

use crate::capture;
use gpuflame_config::Outputs;
use gpuflame_config::settings::{Output, Settings};
use gpuflame_explain::symbolize::SymbolizeOptions;
use gpuflame_explain::{FinishedSums, Ledger, describe_set};
use gpuflame_export::{self as export, Drawing};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::options::{Backward, PythonFrames};
use gpuflame_model::profile::Profile;

use super::growing_outputs::{GrowingOutputs, never_opened_error};
use super::output_files::{self, WriteReport, WrittenFile};

/// Maximum number of frames in the text about the GPU's idle time. Without this limit, the text would be the largest
/// output file. For example, for 2,000 stacks of 60 frames, the text would have 4.4 MB. The recording always contains
/// all frames of these stacks.
const MAX_IDLE_FRAMES: usize = 10_000;

/// Returns the options for naming frames that follow from the settings.
pub(crate) fn symbolize_options(settings: &Settings) -> SymbolizeOptions {
    SymbolizeOptions {
        internal_frames: settings.internal_frames,
        python_lines: settings.python == PythonFrames::Lines,
        python_only: settings.python == PythonFrames::Only,
        backward_under_forward: settings.backward == Backward::Forward,
    }
}

/// Inputs, besides the profile, from which the recording of the sums is written.
#[derive(Clone, Copy, Default)]
pub(crate) struct SumsOptions<'a> {
    /// Encoded rows that contain the function names of native frames in the profile.
    pub(crate) functions: &'a [u8],
    /// Whether the recording may replace a file that already exists.
    pub(crate) is_replaceable: bool,
    /// Whether another output could not be written.
    pub(crate) has_failed: bool,
}

/// Writes a profile in the formats that `wanted` lists. The frames of the profile must already have names. `ours` is an
/// existing file that belongs to the same set of outputs. `growing` contains the outputs that were already written
/// while the application ran. The files cover all windows, or only the window `window` if it is given.
pub(crate) fn write_files(
    profile: &Profile,
    settings: &Settings,
    wanted: &[Output],
    (outputs, ours): (&Outputs, Option<&Path>),
    (window, ledger): (Option<u64>, &Ledger),
    sums: SumsOptions<'_>,
    mut growing: Option<&mut GrowingOutputs>,
) -> WriteReport {
    let has_failed = Cell::new(sums.has_failed);
    let Settings { unit, graph, ref root, .. } = *settings;
    // If the settings request a frame per thread, each thread gets its own frame. Threads with similar names are not
    // merged here. Only the `gpuflame` command merges such threads, when it compares runs.
    let names = export::NameFolding::Kept;
    let whole_kernels = settings.internal_frames;
    let root = root.clone();
    let max_idle_frames = Some(MAX_IDLE_FRAMES);
    let options = export::Options {
        unit,
        graph,
        root,
        names,
        whole_kernels,
        max_idle_frames,
        ..export::Options::default()
    };
    let mut drawing = None;
    let mut make = |output, path: &Path, growing: Option<&mut GrowingOutputs>| match output {
        Output::View(view, format) => {
            let known = drawing.take().filter(|known: &Drawing<'_>| known.view() == view);
            let drawing = drawing.insert(known.unwrap_or_else(|| Drawing::new(profile, view, &options)));
            output_files::write_file(path, |out| write_drawing(drawing, format, out)).map(WrittenFile::from)
        }
        Output::Table => {
            // The drawing is dropped before the table is written, because both must not be in memory at the same time.
            drawing = None;
            output_files::write_file(path, |out| export::write_csv(profile, out)).map(WrittenFile::from)
        }
        Output::Stacks => {
            drawing = None;
            output_files::write_file(path, |out| export::write_stacks_csv(profile, out))
                .map(WrittenFile::from)
        }
        Output::Sums => {
            drawing = None;
            let content = FinishedSums {
                profile,
                ledger,
                functions: sums.functions,
                are_threads_merged: settings.merges_threads(),
                outputs_failed: has_failed.get(),
                time: capture::now(),
            };
            let ours = ours.filter(|_| sums.is_replaceable);
            output_files::write_replacing(path, ours, |out| content.write(out)).map(WrittenFile::from)
        }
        Output::Activities | Output::Chrome | Output::CuptiText | Output::Recording => growing
            .map_or_else(|| Err(never_opened_error()), |growing| growing.publish(output, path, profile)),
    };
    // If a file cannot be written, the disk may be full. Therefore the incomplete file of a failed recording is removed
    // to free disk space, and then the output is written again.
    let made = |output: Output, path: &Path| {
        make(output, path, growing.as_deref_mut())
            .or_else(|error| {
                let has_room = !output.is_streamed()
                    && growing.as_mut().is_some_and(|growing| growing.remove_failed_recording());
                if has_room { make(output, path, None) } else { Err(error) }
            })
            .inspect_err(|_| has_failed.set(true))
    };
    output_files::write_all(wanted, outputs, ours, made, |files| describe_set(profile, ledger, window, files))
}

fn write_drawing(drawing: &Drawing<'_>, format: &str, out: &mut impl Write) -> Result<()> {
    let unknown = || Error::new(ErrorKind::Setting, format!("unknown format {format}"));
    let known = export::FORMATS.iter().find(|known| known.word == format);
    known.ok_or_else(unknown)?.write(drawing, out)
}
