//! Views: the ways to look at a run. Each is a file here and a line of [`VIEWS`]: what it is called, what it
//! counts, and how it is summed up in a line. What it holds are [`Sample`](super::Sample)s, which somebody who
//! saw the rows puts into the profile. A view knows no format, and every format draws every view.

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

use super::{Profile, Tip};
use crate::record::Loss;

/// All views, in the order in which their files are written.
pub static VIEWS: &[&View] = &[&GPU, &IDLE, &WAITS, &MEMORY, &UNIFIED, &CPU, &OFF_CPU, &TOGETHER];

/// The view of this word.
pub fn view(word: &str) -> Option<&'static View> {
    VIEWS.iter().copied().find(|view| view.word == word)
}

/// A way to look at a run.
pub struct View {
    /// What selects it: lower case, no blanks. Except for the first view, also a part of its files' names.
    pub word: &'static str,
    /// The heading of a picture.
    pub title: &'static str,
    /// What its samples count, at most [`MOST_VALUES`](super::MOST_VALUES): what a width means, how often,
    /// and whatever else.
    pub values: &'static [Value],
    /// Whether its samples lie on GPUs.
    pub has_devices: bool,
    /// Whether they lie on streams.
    pub has_streams: bool,
    /// Other views that it puts side by side, the first of which there is always, each with what stands upon its stacks.
    /// What it shows is then theirs.
    pub parts: &'static [(&'static View, Option<Tip>)],
    /// Formats that are written at exit on request, by their words.
    pub at_exit: &'static [&'static str],
    /// Losses that are themselves something it would have shown: each is a frame.
    pub lost: &'static [(Loss, &'static str)],
    /// What a picture says that has nothing to draw.
    pub nothing: fn(&Profile) -> &'static str,
    /// One line that says how much there is. What was lost is added to it by whoever shows it.
    pub summary: fn(&Profile) -> String,
    /// Lines that go before the stacks where a format has comments.
    pub notes: fn(&Profile) -> Vec<String>,
}

impl View {
    /// What most views are: drawn at exit on request, of no GPU, with no notes and nothing lost that they would have
    /// shown.
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

/// One thing that the samples of a view count.
#[derive(Debug, PartialEq, Eq)]
pub struct Value {
    /// Its name: lower case, no blanks.
    pub name: &'static str,
    /// What it is counted in.
    pub unit: Measure,
    /// What a picture calls so many of it.
    pub words: &'static str,
}

impl Value {
    const fn new(name: &'static str, unit: Measure, words: &'static str) -> Self {
        Self { name, unit, words }
    }
}

/// What a value is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Nanoseconds.
    Nanos,
    /// Bytes.
    Bytes,
    /// How many.
    Count,
}

impl Measure {
    /// In full: `nanoseconds`, `bytes`, `count`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nanos => "nanoseconds",
            Self::Bytes => "bytes",
            Self::Count => "count",
        }
    }
}

/// A span of time with three places, in the unit that suits it.
pub fn human(nanos: u64) -> String {
    let (unit, name) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (1e3, "us"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{:.3} {name}", nanos as f64 / unit)
}

/// `1 GPU`, `2 GPUs`.
fn gpus(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}
