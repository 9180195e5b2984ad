//! A frame as formats show it, and its text in the ways in which they write it.

use std::borrow::Cow;

use super::clean;
use super::drawn::SEPARATOR;
use super::short::short_kernel;
use crate::profile::{Kind, ShownFrameId};

/// A frame of a composed stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: Kind,
    /// What it is called, as it stands in a folded stack before it is made clean.
    pub(super) text: Cow<'a, str>,
    /// How much of the text is a tag and not a name: `[GPU_Kernel]` of `[GPU_Kernel]gemm`.
    pub(super) tag: usize,
    /// What the profile knows it by, if it does: its source and its module stand there.
    pub(super) id: Option<ShownFrameId>,
}

impl<'a> Frame<'a> {
    pub(super) fn new(kind: Kind, text: impl Into<Cow<'a, str>>) -> Self {
        Self { kind, text: text.into(), tag: 0, id: None }
    }

    /// Its text for formats that are read again, with all that may stand between two `;`: a number at its end is no weight
    /// there, and to be folded when it is read again.
    pub(super) fn exact(&self) -> String {
        clean::text(&self.text).replace(';', ":")
    }

    /// What it is: `p` a function of Python, `r` a range, `c` anything else.
    pub(super) fn letter(&self) -> char {
        match self.kind {
            Kind::Python => 'p',
            Kind::Range => 'r',
            _ => 'c',
        }
    }
}

/// The text of a frame, made clean, which is written in two ways.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label<'a> {
    pub(super) kind: Kind,
    /// As folded stacks have it: the tag first.
    pub(super) text: &'a str,
    /// How much of it is a tag and not a name.
    pub(super) tag: usize,
}

impl<'a> Label<'a> {
    /// Of a text that is clean.
    pub(super) fn new(kind: Kind, text: &'a str, tag: usize) -> Self {
        Self { kind, text, tag }
    }

    /// As folded stacks have it.
    pub(super) fn text(self) -> Cow<'a, str> {
        self.text.into()
    }

    /// Of a kernel: the tag and the whole name.
    pub(super) fn kernel(self) -> Option<(&'a str, &'a str)> {
        self.text.split_at_checked(self.tag).filter(|_| self.kind == Kind::Kernel)
    }

    /// As pictures have it: `gemm [GPU_Kernel]`. Where a frame is narrow its end is cut off, and the colour already
    /// says that it is a kernel. A kernel of a template has its short name and its whole one, of which `drawn` makes what
    /// is seen and what is told.
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
