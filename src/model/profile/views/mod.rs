//! Views: the kinds of results that gpuflame shows of a run, such as GPU time or idle time. Each view is a file in this
//! folder and an entry of [`VIEWS`] with its name, its values, and its one-line summary. The data of a view are
//! [`Sample`](super::Sample)s, which the modules that read the rows of a run put into the profile. Views and formats
//! are independent: every format can show every view.

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

/// All views, in the order in which their files are written.
pub static VIEWS: &[&View] = &[&GPU, &IDLE, &WAITS, &MEMORY, &UNIFIED, &CPU, &OFF_CPU, &TOGETHER];

/// Returns the view with this word.
pub fn view(word: &str) -> Option<&'static View> {
    VIEWS.iter().copied().find(|view| view.word == word)
}

/// A kind of result that gpuflame shows of a run.
pub struct View {
    /// Word that selects the view: lower case, no blanks. Names of output files contain the word, except those of the
    /// first view.
    pub word: &'static str,
    /// Heading of the view's picture.
    pub title: &'static str,
    /// Values of the view's samples, at most [`MAX_SAMPLE_VALUES`](super::MAX_SAMPLE_VALUES): first the value that
    /// determines widths, then the number of occurrences, then other values.
    pub values: &'static [Value],
    /// Whether each sample of the view belongs to a GPU.
    pub has_devices: bool,
    /// Whether each sample of the view belongs to a stream.
    pub has_streams: bool,
    /// Other views whose samples this view shows together, each with the leaf frame to put on top of its stacks, if
    /// any. Every profile has samples of the first of these views.
    pub parts: &'static [(&'static View, Option<LeafFrame>)],
    /// Words of the formats in which the view can be written at exit on request.
    pub at_exit: &'static [&'static str],
    /// Losses of data that belonged to this view, each with the name of the frame that shows it.
    pub lost: &'static [(Loss, &'static str)],
    /// Returns the text to show if a picture has no samples to draw.
    pub nothing: fn(&Profile) -> &'static str,
    /// Returns a one-line summary of the amounts. The caller appends the losses.
    pub summary: fn(&Profile) -> String,
    /// Returns lines for formats that have comments. The lines are printed before the stacks.
    pub notes: fn(&Profile) -> Vec<String>,
}

impl View {
    /// Defaults that suit most views: can be written as folded stacks and SVG at exit, no GPUs, no notes, no losses.
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

/// A quantity that each sample of a view has.
#[derive(Debug, PartialEq, Eq)]
pub struct Value {
    /// Name of the value: lower case, no blanks.
    pub name: &'static str,
    /// Unit of the value.
    pub unit: Measure,
    /// Words that pictures show after an amount of this value, such as `bytes`.
    pub words: &'static str,
}

impl Value {
    const fn new(name: &'static str, unit: Measure, words: &'static str) -> Self {
        Self { name, unit, words }
    }
}

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Nanoseconds.
    Nanos,
    /// Bytes.
    Bytes,
    /// A count.
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

/// Formats a time span with three decimals, in the unit that suits its size.
pub fn format_nanos(nanos: u64) -> String {
    let (unit, name) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (1e3, "us"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{:.3} {name}", nanos as f64 / unit)
}

/// Formats a number of GPUs: `1 GPU`, `2 GPUs`.
fn gpus(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}
