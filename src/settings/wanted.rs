//! The files that are written at exit, as `GPUFLAME_FORMATS` names them.

use std::path::PathBuf;

use crate::profile::{VIEWS, View};

/// The suffix of the file beside a set that says whose it is, and which files are in it.
pub const ABOUT: &str = ".set.json";

/// The suffix of the file that holds the ledger and messages which stderr did not take.
pub const LEDGER: &str = ".ledger.txt";

/// A file to write at exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A view, drawn in the format of this word.
    Drawn(&'static View, &'static str),
    /// A row per kernel, copy or fill name and device.
    Table,
    /// A row per activity.
    Activities,
    /// What the stacks in it are.
    Stacks,
    /// Chrome's trace events.
    Chrome,
    /// What the CUPTI tracer of eunomia's tutorial prints.
    CuptiText,
    /// The recording: every row, to be explained later.
    Recording,
}

impl Output {
    /// All there are, in the order in which they are written.
    pub fn all() -> Vec<Self> {
        let drawn = |view: &'static View| view.at_exit.iter().map(move |format| Self::Drawn(view, format));
        let (first, others) = VIEWS.split_first().expect("there is a view");
        let mut all: Vec<_> = drawn(first).chain([Self::Table]).collect();
        all.extend(others.iter().copied().flat_map(drawn));
        all.extend([Self::Activities, Self::Stacks, Self::Chrome, Self::CuptiText, Self::Recording]);
        all
    }

    /// Whether it grows with the run, and is of all windows.
    pub fn grows(self) -> bool {
        matches!(self, Self::Activities | Self::Chrome | Self::CuptiText | Self::Recording)
    }

    /// Whether frames have names in it.
    pub fn has_names(self) -> bool {
        !self.grows() || self == Self::Chrome
    }

    /// The word in `GPUFLAME_FORMATS`: the first view has one for each format, each other view one for all of
    /// its formats.
    pub fn word(self) -> &'static str {
        match self {
            Self::Drawn(view, format) if view == VIEWS[0] => format,
            Self::Drawn(view, _) => view.word,
            Self::Table => "csv",
            Self::Activities | Self::Stacks => "activities",
            Self::Chrome => "chrome",
            Self::CuptiText => "cupti-text",
            Self::Recording => "gfr",
        }
    }

    /// The suffix that names its file.
    pub fn suffix(self) -> String {
        match self {
            Self::Drawn(view, format) if view == VIEWS[0] => format!(".{format}"),
            Self::Drawn(view, format) => format!(".{}.{format}", view.word),
            Self::Activities => ".activities.csv".to_owned(),
            Self::Stacks => ".stacks.csv".to_owned(),
            Self::Chrome => ".json".to_owned(),
            Self::CuptiText => ".cupti.txt".to_owned(),
            Self::Table | Self::Recording => format!(".{}", self.word()),
        }
    }
}

/// Where the text goes that `CUPTI_TRACE_OUTPUT_FILE` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceFile {
    /// To the program's standard output, as far as that takes it.
    Stdout,
    /// To this file.
    Path(PathBuf),
}
