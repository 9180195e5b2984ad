//! Folded stacks as data: several merged profiles, or stacks that another tool folded. The kinds of frames are stored
//! with the stacks, so that a picture has the same colours as a picture drawn from a profile.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use gpuflame_export::clean::frame as clean_frame;
use gpuflame_export::flame::{Detail, Flame};
use gpuflame_export::folded::{lost, shown};
use gpuflame_export::frame::Label;
use gpuflame_export::options::{Options, Unit};
use gpuflame_model::error::Result;
use gpuflame_model::profile::{Profile, ShownFrameKind, View};
use gpuflame_model::record::Loss;

/// Sorted stacks, with frames separated by `;`, and their weights.
#[derive(Clone, Debug, Default)]
pub struct FoldedStacks {
    weights: BTreeMap<String, u64>,
    /// Kind and tag length of each frame, keyed by the frame's text.
    frames: HashMap<String, (ShownFrameKind, usize)>,
    lost: BTreeMap<Loss, u64>,
}

impl FoldedStacks {
    /// Returns the stacks of `view`, including stacks of weight 0. Weights are in nanoseconds, or in the unit that the
    /// options select.
    pub fn from_profile(profile: &Profile, view: &View, options: &Options) -> Self {
        let flame = Flame::build(profile, view, options);
        let mut lines = Self::default();
        let mut add = |stack: &str, weight| {
            lines.weights.insert(stack.to_owned(), weight);
            Ok(())
        };
        flame.lines(Detail::ALL, &Label::text, &mut add).expect("nothing is written");
        lines.lost = profile.lost().collect();
        lines.frames = flame.labels().map(|label| (label.text.to_owned(), (label.kind, label.tag))).collect();
        lines
    }

    /// Adds the stacks of `other` under the root frame `root`, which must be clean text.
    pub fn add_under(&mut self, root: &str, other: Self) {
        let root = root.to_owned();
        for (stack, weight) in other.weights {
            let sum = self.weights.entry(format!("{root};{stack}")).or_default();
            *sum = sum.saturating_add(weight);
        }
        for (loss, count) in other.lost {
            *self.lost.entry(loss).or_default() += count;
        }
        self.frames.entry(root).or_insert((ShownFrameKind::Root, 0));
        for (text, frame) in other.frames {
            self.frames.entry(text).or_insert(frame);
        }
    }

    /// Adds a stack that another tool folded. The kinds of the stack's frames are derived from the text of the frames.
    pub fn add_folded(&mut self, stack: &str, weight: u64) {
        let frames: Vec<_> = stack.split(';').map(clean_frame).collect();
        let sum = self.weights.entry(frames.join(";")).or_default();
        *sum = sum.saturating_add(weight);
        for frame in frames {
            self.frames.entry(frame.into_owned()).or_insert_with_key(|text| read(text));
        }
    }

    /// Returns the stacks and their weights.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.weights.iter().map(|(stack, weight)| (stack.as_str(), *weight))
    }

    /// Returns the counts of dropped data in the profiles from which the stacks were taken.
    pub fn lost(&self) -> impl Iterator<Item = (Loss, u64)> {
        self.lost.iter().map(|(&loss, &count)| (loss, count))
    }

    /// Whether there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Returns the number of stacks.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Returns the total weight.
    pub(super) fn total(&self) -> u64 {
        self.weights.values().fold(0, |sum, weight| sum.saturating_add(*weight))
    }

    pub(super) fn get(&self, stack: &str) -> Option<u64> {
        self.weights.get(stack).copied()
    }

    /// Returns all distinct frames.
    pub(super) fn labels(&self) -> impl Iterator<Item = Label<'_>> {
        self.frames.keys().filter_map(|text| self.label(text))
    }

    fn label(&self, text: &str) -> Option<Label<'_>> {
        let (text, &(kind, tag)) = self.frames.get_key_value(text)?;
        Some(Label::new(kind, text, tag))
    }

    /// Returns `stack` with frame texts as pictures show them.
    pub(super) fn name_first(&self, stack: &str) -> String {
        let frames = stack.split(';');
        let drawn = frames.map(|text| self.label(text).map_or(text.into(), Label::name_first));
        drawn.collect::<Vec<_>>().join(";")
    }
}

/// Returns the kind and tag length of a frame, derived from its text as `FOLDED` writes it.
fn read(text: &str) -> (ShownFrameKind, usize) {
    match text.strip_prefix("[GPU") {
        Some(rest) if rest.contains("_Kernel]") => {
            (ShownFrameKind::Kernel, text.find(']').map_or(0, |end| end + 1))
        }
        Some(rest) if rest.contains("_Memcpy") => (ShownFrameKind::Copy, 0),
        Some(rest) if rest.contains("_Memset") => (ShownFrameKind::Set, 0),
        _ if text.starts_with('[') => (ShownFrameKind::Loss, 0),
        _ => (ShownFrameKind::Code, 0),
    }
}

/// Writes folded stacks that do not belong to a profile. `unit` selects whether times are written in nanoseconds or
/// microseconds.
///
/// # Errors
/// Fails if writing to `out` fails.
pub fn write_lines_folded(lines: &FoldedStacks, unit: Unit, out: &mut dyn Write) -> Result<()> {
    lost(lines.lost(), out)?;
    for (stack, weight) in lines.iter() {
        writeln!(out, "{stack} {}", shown(weight, unit == Unit::Micros))?;
    }
    Ok(())
}
