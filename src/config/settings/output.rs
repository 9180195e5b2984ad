//! Lists the files that can be written when the process exits. `GPUFLAME_FORMATS` selects the files to write.

use std::path::PathBuf;

use gpuflame_model::profile::{VIEWS, View};

/// Suffix of the file that describes a set of outputs. The file states which process owns the set, and lists the files
/// of the set.
pub const SET_SUFFIX: &str = ".set.json";

/// Suffix of the file that contains the ledger. The file also contains messages that could not be written to stderr.
pub const LEDGER_SUFFIX: &str = ".ledger.txt";

/// A file to write when the process exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A view, drawn in the format with the given name.
    View(&'static View, &'static str),
    /// The summary table, with one row for each kernel, copy direction and fill on each device.
    Table,
    /// The activity table, which has one row per activity.
    Activities,
    /// The table of stacks, with their ids. The table of activities refers to stacks by their ids.
    Stacks,
    /// Chrome trace events.
    Chrome,
    /// Text in the format of the CUPTI tracer in eunomia's tutorial.
    CuptiText,
    /// Recording that contains every row. The command `gpuflame` can create the other outputs from this recording
    /// later.
    Recording,
    /// Recording that contains only the sums of the run. From this recording, the command `gpuflame` can create every
    /// output that does not list single activities.
    Sums,
}

impl Output {
    /// Returns all outputs, in the order in which they are written.
    pub fn all() -> Vec<Self> {
        let drawn = |view: &'static View| view.at_exit.iter().map(move |format| Self::View(view, format));
        let (first, others) = VIEWS.split_first().expect("there is a view");
        let mut all: Vec<_> = drawn(first).chain([Self::Table]).collect();
        all.extend(others.iter().copied().flat_map(drawn));
        all.extend([
            Self::Activities,
            Self::Stacks,
            Self::Chrome,
            Self::CuptiText,
            Self::Recording,
            Self::Sums,
        ]);
        all
    }

    /// Whether the output is written while the application runs. An output that is written while the application runs
    /// covers all windows.
    pub fn is_streamed(self) -> bool {
        matches!(self, Self::Activities | Self::Chrome | Self::CuptiText | Self::Recording)
    }

    /// Whether the output contains names of frames.
    pub fn has_names(self) -> bool {
        !self.is_streamed() || self == Self::Chrome
    }

    /// Returns the word that selects this output in the value of `GPUFLAME_FORMATS`. The first view has one word for
    /// each of its formats. Every other view has a single word for all its formats.
    pub fn word(self) -> &'static str {
        match self {
            Self::View(view, format) if view == VIEWS[0] => format,
            Self::View(view, _) => view.word,
            Self::Table => "csv",
            Self::Activities | Self::Stacks => "activities",
            Self::Chrome => "chrome",
            Self::CuptiText => "cupti-text",
            Self::Recording => "gfr",
            Self::Sums => "sums",
        }
    }

    /// Returns the suffix of the output's file name.
    pub fn suffix(self) -> String {
        match self {
            Self::View(view, format) if view == VIEWS[0] => format!(".{format}"),
            Self::View(view, format) => format!(".{}.{format}", view.word),
            Self::Activities => ".activities.csv".to_owned(),
            Self::Stacks => ".stacks.csv".to_owned(),
            Self::Chrome => ".json".to_owned(),
            Self::CuptiText => ".cupti.txt".to_owned(),
            Self::Sums => Self::Recording.suffix(),
            Self::Table | Self::Recording => format!(".{}", self.word()),
        }
    }
}

/// Destination of the text that the user requests with `CUPTI_TRACE_OUTPUT_FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceFile {
    /// The program's standard output. Text that standard output does not accept is dropped and counted.
    Stdout,
    /// The file with this path.
    Path(PathBuf),
}
