//! Defines a frame of an exported stack, and the forms in which formats write the frame's text.

use std::borrow::Cow;

use super::clean;
use super::short_names::short_kernel;
use gpuflame_model::profile::{ShownFrameId, ShownFrameKind};

/// Separator between the short and the full name of a kernel in pictures. Names never contain the separator, because
/// cleaning replaces it by a blank.
pub(super) const SEPARATOR: char = '\u{2028}';

/// A frame of a stack that `compose` returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComposedFrame<'a> {
    pub(super) kind: ShownFrameKind,
    /// Text of the frame in a folded stack, before cleaning.
    pub text: Cow<'a, str>,
    /// Length of the tag at the start of the text, such as `[GPU_Kernel]` in `[GPU_Kernel]gemm`.
    pub(super) tag: usize,
    /// Id of the frame in the profile, if it has one. The profile stores the frame's source location and module under
    /// the id.
    pub id: Option<ShownFrameId>,
}

impl<'a> ComposedFrame<'a> {
    pub(super) fn new(kind: ShownFrameKind, text: impl Into<Cow<'a, str>>) -> Self {
        Self { kind, text: text.into(), tag: 0, id: None }
    }

    /// Returns the kind of the frame.
    pub fn kind(&self) -> ShownFrameKind {
        self.kind
    }

    /// Returns the cleaned text of the frame as a label of folded stacks.
    pub fn cleaned<'t>(&self, text: &'t mut String) -> Label<'t> {
        text.clear();
        text.push_str(&clean::frame(&self.text));
        Label::new(self.kind, text, self.tag)
    }

    /// Returns the text for formats that gpuflame can read back. `exact` only replaces characters that must not be
    /// between two `;`. A number at the end of the text is kept, because formats that gpuflame can read back store
    /// weights elsewhere. `exact` does not fold numbers in names, because readers fold them.
    pub fn exact(&self) -> String {
        clean::text(&self.text).replace(';', "\u{ff1b}")
    }

    /// Returns a letter that encodes the kind of the frame: `p` for Python, `r` for a range, `c` for a call or code.
    pub fn letter(&self) -> char {
        match self.kind {
            ShownFrameKind::Python => 'p',
            ShownFrameKind::Range => 'r',
            _ => 'c',
        }
    }
}

/// Cleaned text of a frame. Formats write the text in one of two forms: as in folded stacks, or as in pictures.
#[derive(Clone, Copy, Debug)]
pub struct Label<'a> {
    /// Kind of the frame, which decides its colour.
    pub kind: ShownFrameKind,
    /// Text in the form of folded stacks: the tag, then the name.
    pub text: &'a str,
    /// Length in bytes of the tag in `text`.
    pub tag: usize,
}

impl<'a> Label<'a> {
    /// Creates a label from text that is already clean.
    pub fn new(kind: ShownFrameKind, text: &'a str, tag: usize) -> Self {
        Self { kind, text, tag }
    }

    /// Returns the text in the form of folded stacks.
    pub fn text(self) -> Cow<'a, str> {
        self.text.into()
    }

    /// Returns the tag and the full name, if the frame is a kernel.
    pub fn kernel(self) -> Option<(&'a str, &'a str)> {
        self.text.split_at_checked(self.tag).filter(|_| self.kind == ShownFrameKind::Kernel)
    }

    /// Returns the text in the form of pictures: `gemm [GPU_Kernel]`. In pictures, the tag is at the end of the text,
    /// because a narrow frame shows only the start of its text. The colour of the frame already shows that the frame is
    /// a kernel. For a template kernel, the text contains the short and the full name. A picture shows the short name
    /// in the frame, and the full name as a tooltip.
    pub fn name_first(self) -> Cow<'a, str> {
        match self.text.split_at_checked(self.tag) {
            Some((tag, name)) if !tag.is_empty() && !name.is_empty() => {
                match self.kernel().and_then(|(_, name)| short_kernel(name)) {
                    Some(short) => format!("{short} {tag}{SEPARATOR}{name} {tag}").into(),
                    None => format!("{name} {tag}").into(),
                }
            }
            _ => self.text.into(),
        }
    }
}
