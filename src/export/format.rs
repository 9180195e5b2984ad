//! Describes a file format: its name, its file extensions, and the function that writes it.

use std::cell::OnceCell;
use std::fmt;
use std::io::Write;

use super::flame::Flame;
use super::options::Options;
use gpuflame_explain::events::JoinedRows;
use gpuflame_model::error::Result;
use gpuflame_model::error::{Error, ErrorKind};
use gpuflame_model::profile::{Profile, View};

/// A file format.
pub struct Format {
    /// Word that selects the format: lower case, no blanks.
    pub word: &'static str,
    /// Purpose of the format in one sentence, including its usual file extension.
    pub about: &'static str,
    /// File extensions that select the format, with the dot; the first extension is the default.
    pub endings: &'static [&'static str],
    /// Whether the format is binary. Binary formats are never written to a terminal.
    pub is_binary: bool,
    /// Function that writes the format.
    pub writes: Writes,
}

/// Function that writes a format. Each variant is for formats with one kind of input.
#[derive(Clone, Copy)]
pub enum Writes {
    /// The format is written from the samples of a view, so only sums are needed.
    View(DrawView),
    /// The format is written from single activities, which must be sorted.
    Events(WriteEvents),
}

/// Function that draws the samples of a view.
pub type DrawView = fn(&Drawing<'_>, &mut dyn Write) -> Result<()>;

/// Function that writes single activities.
pub type WriteEvents = fn(&Profile, &JoinedRows, &Options, &mut (dyn Write + Send)) -> Result<()>;

/// A view to draw, possibly in several formats. All formats use the same flame graph tree.
pub struct Drawing<'a> {
    /// Profile that contains the samples.
    pub profile: &'a Profile,
    /// View to draw.
    pub view: &'a View,
    /// Options that apply to all formats.
    pub options: &'a Options,
    flame: OnceCell<Flame>,
}

impl<'a> Drawing<'a> {
    /// Prepares `view` of `profile` for drawing. The flame graph tree is not built yet.
    pub fn new(profile: &'a Profile, view: &'a View, options: &'a Options) -> Self {
        Self { profile, view, options, flame: OnceCell::new() }
    }

    /// Returns the view to draw.
    pub fn view(&self) -> &'a View {
        self.view
    }

    /// Returns the flame graph tree. The tree is built only once for all formats, when it is first used.
    pub fn flame(&self) -> &Flame {
        self.flame.get_or_init(|| Flame::build(self.profile, self.view, self.options))
    }
}

impl fmt::Debug for Drawing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Drawing({})", self.view.word)
    }
}

impl Format {
    /// Creates a text format that draws the samples of any view. The first of `endings` is the default extension.
    pub const fn of_views(
        word: &'static str,
        endings: &'static [&'static str],
        write: DrawView,
        about: &'static str,
    ) -> Self {
        Self { word, about, endings, is_binary: false, writes: Writes::View(write) }
    }

    /// Creates a text format that writes single activities.
    pub const fn of_events(
        word: &'static str,
        endings: &'static [&'static str],
        write: WriteEvents,
        about: &'static str,
    ) -> Self {
        Self { word, about, endings, is_binary: false, writes: Writes::Events(write) }
    }

    /// Marks the format as binary and returns it.
    pub const fn binary(self) -> Self {
        Self { is_binary: true, ..self }
    }

    /// Whether the format is written from the samples of a view. A format that is written from samples can show any
    /// view.
    pub fn is_of_views(&self) -> bool {
        matches!(self.writes, Writes::View(_))
    }

    /// Draws `view`.
    ///
    /// # Errors Errors of `out`; `Setting` if the format is written from single activities.
    pub fn draw(&self, profile: &Profile, view: &View, options: &Options, out: &mut dyn Write) -> Result<()> {
        self.write(&Drawing::new(profile, view, options), out)
    }

    /// Writes `drawing` in this format.
    ///
    /// # Errors
    /// As [`Format::draw`].
    pub fn write(&self, drawing: &Drawing<'_>, out: &mut dyn Write) -> Result<()> {
        match self.writes {
            Writes::View(write) => write(drawing, out),
            Writes::Events(_) => {
                let message = format!("{} shows single activities, not sums", self.word);
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
