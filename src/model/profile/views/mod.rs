//! Views: the kinds of results that gpuflame shows for a run, such as GPU time or idle time. Each view has a file in
//! this folder, and an entry in [`VIEWS`] with its name, its values, and its one-line summary. The data of a view are
//! [`Sample`](super::Sample)s. The modules that process the rows of a run store these samples in the profile. Views and
//! output formats are independent: every format can show every view.

mod cpu;
mod gpu;
mod idle;
mod memory;
mod off_cpu;
mod together;
mod unified;
mod waits;

use std::fmt;

pub use cpu::CPU;
pub use gpu::GPU;
pub use idle::{IDLE, idle_word};
pub use memory::MEMORY;
pub use off_cpu::OFF_CPU;
pub use together::TOGETHER;
pub use unified::{UNIFIED, UnifiedSums, unified};
pub use waits::WAITS;

use super::{LeafFrame, Profile};
use crate::record::Loss;

/// All views, in the order in which their output files are written.
pub static VIEWS: &[&View] = &[&GPU, &IDLE, &WAITS, &MEMORY, &UNIFIED, &CPU, &OFF_CPU, &TOGETHER];

/// Returns the view that `word` selects.
pub fn view(word: &str) -> Option<&'static View> {
    VIEWS.iter().copied().find(|view| view.word == word)
}

/// A kind of result that gpuflame shows for a run.
pub struct View {
    /// Word by which users select the view. The word is lower case and has no blanks. The word is a part of the names
    /// of the view's output files, except for the first view.
    pub word: &'static str,
    /// Heading of the picture that shows the view.
    pub title: &'static str,
    /// Amounts that each sample of the view has, at most [`MAX_SAMPLE_VALUES`](super::MAX_SAMPLE_VALUES). The first
    /// amount determines widths, the second amount is the number of occurrences, and further amounts may follow.
    pub values: &'static [Value],
    /// Whether each sample of the view belongs to a GPU.
    pub has_devices: bool,
    /// Whether each sample of the view belongs to a stream.
    pub has_streams: bool,
    /// Other views whose samples this view combines. A leaf frame may be added to the stacks of each combined view.
    /// Every profile has samples of the first of these views.
    pub parts: &'static [(&'static View, Option<LeafFrame>)],
    /// Words for the formats in which the view can be written on exit, if the user requests this.
    pub at_exit: &'static [&'static str],
    /// Kinds of loss that affect this view, each with the name of the frame that shows the loss.
    pub lost: &'static [(Loss, &'static str)],
    /// Returns the text that a picture shows if there are no samples to draw.
    pub nothing: fn(&Profile) -> &'static str,
    /// Returns a one-line summary of the view's totals. The caller of the function appends the counts of losses.
    pub summary: fn(&Profile) -> String,
    /// Returns comment lines for formats that have comments. The comment lines are written before the stacks.
    pub notes: fn(&Profile) -> Vec<String>,
}

impl View {
    /// Defaults that suit most views: the view can be written on exit as folded stacks and SVG, and has no GPUs, notes
    /// or losses.
    const PLAIN: Self = Self {
        word: "",
        title: "",
        values: &[],
        has_devices: false,
        has_streams: false,
        parts: &[],
        at_exit: &["folded", "svg"],
        lost: &[],
        nothing: |_| "",
        summary: |_| String::new(),
        notes: |_| Vec::new(),
    };
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({})", self.word)
    }
}

impl PartialEq for View {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}

impl Eq for View {}

impl PartialOrd for View {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for View {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.word.cmp(other.word)
    }
}

/// A kind of amount that each sample of a view has.
#[derive(Debug, PartialEq, Eq)]
pub struct Value {
    /// Name of the amount. The name is lower case and has no blanks.
    pub name: &'static str,
    /// Unit of the amount.
    pub unit: Measure,
    /// Words that pictures show after an amount of this kind, for example `bytes`.
    pub words: &'static str,
}

impl Value {
    const fn new(name: &'static str, unit: Measure, words: &'static str) -> Self {
        Self { name, unit, words }
    }
}

/// Unit of an amount in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Nanoseconds.
    Nanos,
    /// Bytes.
    Bytes,
    /// A number of items.
    Count,
}

impl Measure {
    /// Returns the unit in full: `nanoseconds`, `bytes`, `count`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nanos => "nanoseconds",
            Self::Bytes => "bytes",
            Self::Count => "count",
        }
    }
}

/// Formats a duration with three decimals, in the unit ns, us, ms or s.
pub fn format_nanos(nanos: u64) -> String {
    let (unit, name) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (1e3, "us"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{:.3} {name}", nanos as f64 / unit)
}

/// Formats a count of GPUs as text: `1 GPU`, `2 GPUs`.
fn gpus(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}
