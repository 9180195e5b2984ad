//! A frame as formats show it, and its text in the variants that they need.

use std::borrow::Cow;

use super::clean;
use super::short::short_kernel;
use super::short_name_svg::SEPARATOR;
use crate::profile::{Kind, ShownFrameId};

/// A frame of a composed stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: Kind,
    /// Text as in a folded stack, before cleaning.
    pub(super) text: Cow<'a, str>,
    /// Length of the tag at the start of the text: `[GPU_Kernel]` of `[GPU_Kernel]gemm`.
    pub(super) tag: usize,
    /// Id in the profile, if it has one; source and module are stored there.
    pub(super) id: Option<ShownFrameId>,
}

impl<'a> Frame<'a> {
    pub(super) fn new(kind: Kind, text: impl Into<Cow<'a, str>>) -> Self {
        Self { kind, text: text.into(), tag: 0, id: None }
    }

    /// Text for formats that are read again, with everything that is allowed between two `;`: there a number at its
    /// end is not a weight, and is folded on reading.
    pub(super) fn exact(&self) -> String {
        clean::text(&self.text).replace(';', ":")
    }

    /// Kind: `p` Python, `r` range, `c` call or code.
    pub(super) fn letter(&self) -> char {
        match self.kind {
            Kind::Python => 'p',
            Kind::Range => 'r',
            _ => 'c',
        }
    }
}

/// Cleaned text of a frame, which is written in two forms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label<'a> {
    pub(super) kind: Kind,
    /// Text in the form of folded stacks: the tag first.
    pub(super) text: &'a str,
    /// Length of the tag.
    pub(super) tag: usize,
}

impl<'a> Label<'a> {
    /// Creates a label from clean text.
    pub(super) fn new(kind: Kind, text: &'a str, tag: usize) -> Self {
        Self { kind, text, tag }
    }

    /// Text in the form of folded stacks.
    pub(super) fn text(self) -> Cow<'a, str> {
        self.text.into()
    }

    /// Tag and whole name, if it is a kernel.
    pub(super) fn kernel(self) -> Option<(&'a str, &'a str)> {
        self.text.split_at_checked(self.tag).filter(|_| self.kind == Kind::Kernel)
    }

    /// Text in the form of pictures: `gemm [GPU_Kernel]`. A narrow frame loses the end of its text, and the colour
    /// already marks it as a kernel. A template kernel has both its short and its whole name, from which
    /// `short_name_svg` makes the visible text and the tooltip.
    pub(super) fn name_first(self) -> Cow<'a, str> {
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
