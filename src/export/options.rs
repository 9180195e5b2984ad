//! What somebody who draws a view may choose.

use std::str::FromStr;

use crate::error::{Error, ErrorKind};
use crate::profile::{Measure, View};

/// How to draw a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What a stack weighs, where a format has one weight. Default: nanoseconds, or what the view counts first.
    pub unit: Unit,
    /// The heading, where a format has one. Default: the view's.
    pub title: Option<String>,
    /// What was recorded, where a format says that. Default: `gpuflame`.
    pub name: Option<String>,
    /// Which stacks of a graph node to show. Default: both.
    pub graph: GraphStacks,
    /// The frames below all stacks. Default: none.
    pub root: Vec<Root>,
}

impl Options {
    pub(super) fn title<'a>(&'a self, view: &View) -> &'a str {
        self.title.as_deref().unwrap_or(view.title)
    }
}

/// What the width of a frame means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// GPU time in nanoseconds. The sum over a folded file is exact.
    #[default]
    Nanos,
    /// GPU time in microseconds. Each line is rounded by itself, half up, so that the sum may be off by
    /// half a microsecond a line.
    Micros,
    /// Activities, and launches that had none.
    Count,
}

impl Unit {
    /// All units.
    pub const ALL: [Self; 3] = [Self::Nanos, Self::Micros, Self::Count];

    /// Which of the values of `view` it shows.
    pub(super) fn value(self, view: &View) -> usize {
        match self {
            Self::Nanos | Self::Micros => 0,
            Self::Count => usize::from(view.values.len() > 1),
        }
    }

    /// Whether it divides what `view` counts by a thousand: nanoseconds, and nothing else.
    pub(super) fn is_micros_of(self, view: &View) -> bool {
        self == Self::Micros && view.values[0].unit == Measure::Nanos
    }

    /// The word that selects it: `ns`, `us` or `count`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nanos => "ns",
            Self::Micros => "us",
            Self::Count => "count",
        }
    }
}

/// Which of the two stacks of a graph node to show: that on which the graph was launched, or that on which
/// the node was made, by the API or by the capture of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphStacks {
    /// The launch, `[graph]`, and what the other does not share with it.
    #[default]
    Both,
    /// Where the node was made. Where that is not known, the launch, and why.
    Capture,
    /// The launch.
    Launch,
}

impl FromStr for GraphStacks {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        match word {
            "both" => Ok(Self::Both),
            "capture" => Ok(Self::Capture),
            "launch" => Ok(Self::Launch),
            _ => Err(Error::new(
                ErrorKind::Setting,
                format!("`{word}` is none of a graph's stacks; use both, capture or launch"),
            )),
        }
    }
}

impl FromStr for Unit {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|unit| unit.word() == word).ok_or_else(|| {
            Error::new(ErrorKind::Setting, format!("`{word}` is no unit; use ns, us or count"))
        })
    }
}

/// What a frame at the root of a stack says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// `[process app 4711]`.
    Process,
    /// `[thread loader]`, the one that launched; with its number where several have the name.
    Thread,
    /// `[GPU 0]`.
    Device,
    /// `[stream 7]`, with its GPU where several have that number. Not of idle time, which is a whole GPU's.
    Stream,
}

impl Root {
    /// All of them, and their words.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Process, "process"),
        (Self::Thread, "thread"),
        (Self::Device, "device"),
        (Self::Stream, "stream"),
    ];
}

impl FromStr for Root {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|(_, known)| *known == word).map(|(root, _)| root).ok_or_else(|| {
            let message = format!("`{word}` is no root; use process, thread, device or stream");
            Error::new(ErrorKind::Setting, message)
        })
    }
}
