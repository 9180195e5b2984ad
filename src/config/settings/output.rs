//! Files that are written at exit, as named in `GPUFLAME_FORMATS`.

use std::path::PathBuf;

use gpuflame_model::profile::{VIEWS, View};

/// Suffix of the file that is next to a set of outputs and names the set's owner and files.
pub const SET_SUFFIX: &str = ".set.json";

/// Suffix of the file for the ledger and for messages that could not be written to stderr.
pub const LEDGER_SUFFIX: &str = ".ledger.txt";

/// A file to write at exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A view, drawn in the format with this word.
    View(&'static View, &'static str),
    /// The table with a row per device and kernel, copy or fill name.
    Table,
    /// The table with a row per activity.
    Activities,
    /// Definitions of the stacks in the table of activities.
    Stacks,
    /// Chrome trace events.
    Chrome,
    /// Output in the format of the CUPTI tracer of eunomia's tutorial.
    CuptiText,
    /// Recording of every row, to be explained later.
    Recording,
}

impl Output {
    /// Returns all outputs, in the order in which they are written.
    pub fn all() -> Vec<Self> {
        let drawn = |view: &'static View| view.at_exit.iter().map(move |format| Self::View(view, format));
        let (first, others) = VIEWS.split_first().expect("there is a view");
        let mut all: Vec<_> = drawn(first).chain([Self::Table]).collect();
        all.extend(others.iter().copied().flat_map(drawn));
        all.extend([Self::Activities, Self::Stacks, Self::Chrome, Self::CuptiText, Self::Recording]);
        all
    }

    /// Whether the output's size grows with the run, and the output covers all windows.
    pub fn is_streamed(self) -> bool {
        matches!(self, Self::Activities | Self::Chrome | Self::CuptiText | Self::Recording)
    }

    /// Whether the output contains names of frames.
    pub fn has_names(self) -> bool {
        !self.is_streamed() || self == Self::Chrome
    }

    /// Returns the word in `GPUFLAME_FORMATS`. The first view has a word per format. Every other view has one word
    /// for all its formats.
    pub fn word(self) -> &'static str {
        match self {
            Self::View(view, format) if view == VIEWS[0] => format,
            Self::View(view, _) => view.word,
            Self::Table => "csv",
            Self::Activities | Self::Stacks => "activities",
            Self::Chrome => "chrome",
            Self::CuptiText => "cupti-text",
            Self::Recording => "gfr",
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
            Self::Table | Self::Recording => format!(".{}", self.word()),
        }
    }
}

/// Destination of the text requested with `CUPTI_TRACE_OUTPUT_FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceFile {
    /// The program's standard output, as far as it accepts the text.
    Stdout,
    /// A file with this path.
    Path(PathBuf),
}
