//! What a format is called, and the function that writes it.

use std::cell::OnceCell;
use std::fmt;
use std::io::Write;

use super::flame::Flame;
use super::options::Options;
use crate::error::Result;
#[cfg(feature = "cli")]
use crate::error::{Error, ErrorKind};
#[cfg(feature = "cli")]
use crate::events::JoinedRows;
use crate::profile::{Profile, View};

/// A format of files.
pub struct Format {
    /// What selects it: lower case, no blanks.
    pub word: &'static str,
    /// What it is for, in one sentence, with its usual ending.
    pub about: &'static str,
    /// The endings of file names that mean it, with the dot; the first is the one to use.
    pub endings: &'static [&'static str],
    /// Whether it is binary, and so nothing for a terminal.
    pub is_binary: bool,
    /// Who writes it, and of what.
    pub writes: Writes,
}

/// What a format is made of, and the function that does.
#[derive(Clone, Copy)]
pub enum Writes {
    /// From the samples of a view: sums are enough.
    View(DrawView),
    /// Single activities, sorted.
    #[cfg(feature = "cli")]
    Events(WriteEvents),
}

/// Draws the samples of a view.
pub type DrawView = fn(&Drawing<'_>, &mut dyn Write) -> Result<()>;

/// Writes single activities.
#[cfg(feature = "cli")]
pub type WriteEvents = fn(&Profile, &JoinedRows, &Options, &mut (dyn Write + Send)) -> Result<()>;

/// A view that is to be drawn, perhaps in several formats: what these have in common is made once.
pub struct Drawing<'a> {
    pub(super) profile: &'a Profile,
    pub(super) view: &'a View,
    pub(super) options: &'a Options,
    flame: OnceCell<Flame>,
}

impl<'a> Drawing<'a> {
    /// Of what `view` holds of `profile`. Nothing is made yet.
    pub fn new(profile: &'a Profile, view: &'a View, options: &'a Options) -> Self {
        Self { profile, view, options, flame: OnceCell::new() }
    }

    /// What it is of.
    pub fn view(&self) -> &'a View {
        self.view
    }

    pub(super) fn flame(&self) -> &Flame {
        self.flame.get_or_init(|| Flame::of(self.profile, self.view, self.options))
    }
}

impl fmt::Debug for Drawing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Drawing({})", self.view.word)
    }
}

impl Format {
    /// A format of text, made of any view's samples. The first of `endings` is the one to use.
    pub(super) const fn of_views(
        word: &'static str,
        endings: &'static [&'static str],
        write: DrawView,
        about: &'static str,
    ) -> Self {
        Self { word, about, endings, is_binary: false, writes: Writes::View(write) }
    }

    /// A format of text, made of single activities.
    #[cfg(feature = "cli")]
    pub(super) const fn of_events(
        word: &'static str,
        endings: &'static [&'static str],
        write: WriteEvents,
        about: &'static str,
    ) -> Self {
        Self { word, about, endings, is_binary: false, writes: Writes::Events(write) }
    }

    /// The same, but nothing for a terminal.
    #[cfg(feature = "cli")]
    pub(super) const fn binary(self) -> Self {
        Self { is_binary: true, ..self }
    }

    /// Whether it is made of sums, and so of any view.
    pub fn is_of_views(&self) -> bool {
        matches!(self.writes, Writes::View(_))
    }

    /// Draws what `view` holds.
    ///
    /// # Errors
    /// What `out` reports; `Setting` for a format that is not made of sums.
    pub fn draw(&self, profile: &Profile, view: &View, options: &Options, out: &mut dyn Write) -> Result<()> {
        self.write(&Drawing::new(profile, view, options), out)
    }

    /// The same of what may be drawn in other formats as well.
    ///
    /// # Errors
    /// As [`Format::draw`].
    pub fn write(&self, drawing: &Drawing<'_>, out: &mut dyn Write) -> Result<()> {
        match self.writes {
            Writes::View(write) => write(drawing, out),
            #[cfg(feature = "cli")]
            Writes::Events(_) => {
                let message = format!("{} shows single activities and no sums", self.word);
                Err(Error::new(ErrorKind::Setting, message))
            }
        }
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Format({})", self.word)
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}

impl Eq for Format {}
