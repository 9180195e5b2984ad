//! Lists the files that can be written at exit. `GPUFLAME_FORMATS` selects among them.

use std::path::PathBuf;

use gpuflame_model::profile::{VIEWS, View};

/// Suffix of the file that describes a set of outputs, and names the owner and the files of the set.
pub const SET_SUFFIX: &str = ".set.json";

/// Suffix of the file that contains the ledger, and messages that could not be written to stderr.
pub const LEDGER_SUFFIX: &str = ".ledger.txt";

/// A file to write at exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A view, drawn in the format that this word names.
    View(&'static View, &'static str),
    /// The table with one row per device and name (of a kernel, copy or fill).
    Table,
    /// The table with one row per activity.
    Activities,
    /// Definitions of the stacks to which the table of activities refers.
    Stacks,
    /// Chrome trace events.
    Chrome,
    /// Text in the format of the CUPTI tracer in eunomia's tutorial.
    CuptiText,
    /// Recording of every row, from which the command can make the other outputs later.
    Recording,
    /// Recording of the sums of the run, from which the command can make those outputs that do not need single
    /// activities.
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

    /// Whether the output is written while the application runs, and therefore grows with the run. An output that is
    /// written while the application runs covers all windows.
    pub fn is_streamed(self) -> bool {
        matches!(self, Self::Activities | Self::Chrome | Self::CuptiText | Self::Recording)
    }

    /// Whether the output contains names of frames.
    pub fn has_names(self) -> bool {
        !self.is_streamed() || self == Self::Chrome
    }

    /// Returns the word that selects the output in `GPUFLAME_FORMATS`. The first view has one word per format. Every
    /// other view has one word for all its formats.
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
    /// The program's standard output, as far as it accepts the text.
    Stdout,
    /// The file with this path.
    Path(PathBuf),
}
