//! Folded stacks as data: several profiles in one, or what somebody else folded. Kinds of frames are kept beside
//! the stacks, so that a picture of them has the colours of a picture of the profile.

use std::collections::{BTreeMap, HashMap};

use super::clean::frame as clean_frame;
use super::flame::Flame;
use super::frame::Label;
use super::options::Options;
use crate::profile::{Kind, Profile, View};
use crate::record::Loss;

/// Stacks, frames with `;` in between, and their weight, in their order.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    weights: BTreeMap<String, u64>,
    /// What each frame is beside its text, and how much of that is a tag.
    frames: HashMap<String, (Kind, usize)>,
    lost: BTreeMap<Loss, u64>,
}

impl Lines {
    /// The stacks of `view`, those of no weight as well. Weights are in nanoseconds, or what else the options
    /// choose.
    pub fn of(profile: &Profile, view: &View, options: &Options) -> Self {
        let flame = Flame::of(profile, view, options);
        let mut lines = Self::default();
        let add = |stack: &str, weight| {
            lines.weights.insert(stack.to_owned(), weight);
            Ok(())
        };
        flame.lines(0, Label::text, add).expect("nothing is written");
        lines.lost = profile.lost().collect();
        lines.frames = flame.labels().map(|label| (label.text.to_owned(), (label.kind, label.tag))).collect();
        lines
    }

    /// Adds the stacks of `other`, under a frame of their own, whose text is one of ours.
    pub fn add_under(&mut self, root: &str, other: Self) {
        let root = root.to_owned();
        for (stack, weight) in other.weights {
            let sum = self.weights.entry(format!("{root};{stack}")).or_default();
            *sum = sum.saturating_add(weight);
        }
        for (loss, count) in other.lost {
            *self.lost.entry(loss).or_default() += count;
        }
        self.frames.entry(root).or_insert((Kind::Root, 0));
        for (text, frame) in other.frames {
            self.frames.entry(text).or_insert(frame);
        }
    }

    /// Adds a line that somebody folded: what its frames are is told from their text, which is all there is.
    pub fn add_folded(&mut self, stack: &str, weight: u64) {
        let frames: Vec<_> = stack.split(';').map(clean_frame).collect();
        let sum = self.weights.entry(frames.join(";")).or_default();
        *sum = sum.saturating_add(weight);
        for frame in frames {
            self.frames.entry(frame.into_owned()).or_insert_with_key(|text| read(text));
        }
    }

    /// The stacks and their weights.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.weights.iter().map(|(stack, weight)| (stack.as_str(), *weight))
    }

    /// What was lost of the profiles that they are from.
    pub fn lost(&self) -> impl Iterator<Item = (Loss, u64)> {
        self.lost.iter().map(|(&loss, &count)| (loss, count))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// The weight of all together.
    pub(super) fn total(&self) -> u64 {
        self.weights.values().fold(0, |sum, weight| sum.saturating_add(*weight))
    }

    pub(super) fn get(&self, stack: &str) -> Option<u64> {
        self.weights.get(stack).copied()
    }

    /// All frames, each once.
    pub(super) fn labels(&self) -> impl Iterator<Item = Label<'_>> {
        self.frames.keys().filter_map(|text| self.label(text))
    }

    fn label(&self, text: &str) -> Option<Label<'_>> {
        let (text, &(kind, tag)) = self.frames.get_key_value(text)?;
        Some(Label::new(kind, text, tag))
    }

    /// `stack` as pictures have it.
    pub(super) fn name_first(&self, stack: &str) -> String {
        let frames = stack.split(';');
        let drawn = frames.map(|text| self.label(text).map_or(text.into(), Label::name_first));
        drawn.collect::<Vec<_>>().join(";")
    }
}

/// What a frame of a folded file stands for, as `FOLDED` writes them.
fn read(text: &str) -> (Kind, usize) {
    match text.strip_prefix("[GPU") {
        Some(rest) if rest.contains("_Kernel]") => (Kind::Kernel, text.find(']').map_or(0, |end| end + 1)),
        Some(rest) if rest.contains("_Memcpy") => (Kind::Copy, 0),
        Some(rest) if rest.contains("_Memset") => (Kind::Set, 0),
        _ if text.starts_with('[') => (Kind::Loss, 0),
        _ => (Kind::Code, 0),
    }
}
