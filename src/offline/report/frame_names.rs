//! Names of frames, with the kind and source location of each name.

use std::collections::HashMap;

use gpuflame_export::frame::ComposedFrame;
use gpuflame_export::{clean_frame, is_library_frame};
use gpuflame_model::profile::{Profile, ShownFrameKind};

/// Kind of a frame, which determines its colour on the page. The page's script uses the same codes for the kinds of
/// frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum NameKind {
    Native = 0,
    Python = 1,
    Range = 2,
    Call = 3,
    Kernel = 4,
    Copy = 5,
    Cause = 6,
    Root = 7,
    Library = 8,
}

impl NameKind {
    pub(super) fn new(profile: &Profile, frame: &ComposedFrame<'_>) -> Self {
        match frame.kind() {
            ShownFrameKind::Code if is_library_frame(profile, frame) => Self::Library,
            ShownFrameKind::Code => Self::Native,
            ShownFrameKind::Python => Self::Python,
            ShownFrameKind::Range => Self::Range,
            ShownFrameKind::Call | ShownFrameKind::Graph => Self::Call,
            ShownFrameKind::Kernel => Self::Kernel,
            ShownFrameKind::Copy
            | ShownFrameKind::Set
            | ShownFrameKind::Unified
            | ShownFrameKind::Allocation
            | ShownFrameKind::Free => Self::Copy,
            ShownFrameKind::Idle(_) | ShownFrameKind::Marker | ShownFrameKind::Loss => Self::Cause,
            ShownFrameKind::Root => Self::Root,
        }
    }
}

/// Source location of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SourcePlace {
    #[default]
    Unknown,
    /// Source file, and the smallest line of the function that occurs in the data.
    At(String, u32),
    /// Functions in several files have this name, so no single location is known.
    Several,
}

impl SourcePlace {
    pub(super) fn new(profile: &Profile, frame: &ComposedFrame<'_>) -> Self {
        let source = frame.id.and_then(|id| profile.shown_frame(id).source);
        match source {
            Some(source) => {
                Self::At(clean_frame(profile.strings().get(source.file)).into_owned(), source.line)
            }
            None => Self::Unknown,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        *self = match (std::mem::take(self), other) {
            (Self::Unknown, other) => other,
            (known, Self::Unknown) => known,
            (Self::At(file, line), Self::At(other, other_line)) if file == other => {
                let lines = [line, other_line].into_iter().filter(|line| *line > 0);
                Self::At(file, lines.min().unwrap_or(0))
            }
            _ => Self::Several,
        };
    }

    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::At(file, 0) => Some(file.clone()),
            Self::At(file, line) => Some(format!("{file}:{line}")),
            Self::Unknown | Self::Several => None,
        }
    }
}

/// A frame name with its kind and source location.
#[derive(Debug)]
pub(super) struct FrameName {
    pub(super) text: String,
    pub(super) kind: NameKind,
    pub(super) place: SourcePlace,
}

/// All frame names, without duplicates.
#[derive(Debug, Default)]
pub(super) struct FrameNames {
    list: Vec<FrameName>,
    numbers: HashMap<String, u32>,
}

impl FrameNames {
    pub(super) fn list(&self) -> &[FrameName] {
        &self.list
    }

    /// Returns the index of a frame name, and adds the name if it is new. If a name is added again with another kind,
    /// the name keeps its first kind.
    pub(super) fn add(&mut self, name: FrameName) -> u32 {
        if let Some(&known) = self.numbers.get(&name.text) {
            self.list[known as usize].place.add(name.place);
            return known;
        }
        let number = self.list.len() as u32;
        self.numbers.insert(name.text.clone(), number);
        self.list.push(name);
        number
    }
}
