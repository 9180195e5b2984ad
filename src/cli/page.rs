//! Defines the properties of the destination of text output. A terminal has a width and possibly colours. Text for a
//! pipe or file has every column and complete names.

use std::io::{IsTerminal, stdout};

use super::console::{ColorChoice, Console};
use super::output::Target;

/// Assumed width, in characters, of a terminal that does not report its width.
const DEFAULT_COLUMNS: usize = 80;
/// Minimum width, in characters, to which tables are fitted. A narrower terminal wraps the lines.
const MIN_COLUMNS: usize = 24;
/// Maximum width, in characters, to which tables are fitted. A larger number in the environment variable COLUMNS is
/// reduced to this width.
const MAX_COLUMNS: usize = 2000;

/// Width and colours of the destination of text output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// Maximum number of characters per line. `None`: no limit, and the text has the format that scripts parse.
    pub(super) columns: Option<usize>,
    pub(super) has_colors: bool,
}

impl Page {
    /// Properties of a pipe or a file.
    pub(super) const UNBOUNDED: Self = Self { columns: None, has_colors: false };

    /// Returns the page properties for text that is written to `target`.
    pub(super) fn of(target: &Target, console: Console) -> Self {
        let is_terminal = *target == Target::Stdout && stdout().is_terminal();
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let has_colors = match console.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                is_terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
            }
        };
        let wanted = || set("COLUMNS")?.to_str()?.parse().ok().filter(|columns| *columns > 0);
        let own = || terminal_size::terminal_size_of(stdout()).map(|(width, _)| usize::from(width.0));
        let columns = is_terminal.then(|| {
            let columns = wanted().or_else(|| own().filter(|columns| *columns > 0));
            columns.unwrap_or(DEFAULT_COLUMNS).clamp(MIN_COLUMNS, MAX_COLUMNS)
        });
        Self { columns, has_colors }
    }

    /// Returns `text` in the given style, if the page has colours.
    pub(super) fn paint(self, style: Style, text: &str) -> String {
        if !self.has_colors || style == Style::Plain || text.trim().is_empty() {
            return text.to_owned();
        }
        // The blanks that align a column are written outside the escape codes, so that these blanks are neither
        // underlined nor coloured.
        let inner = text.trim();
        let start = text.len() - text.trim_start().len();
        let (before, after) = (&text[..start], &text[start + inner.len()..]);
        format!("{before}\x1b[{}m{inner}\x1b[0m{after}", style.code())
    }
}

/// Meaning of a piece of text, which determines its colour. Each kind of GPU work has the same colour as in flame
/// graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// Emphasized text: headings, column titles, totals, and functions of the user's own code.
    Strong,
    /// Less important text: empty cells, gaps, notes.
    Faint,
    Kernel,
    Graph,
    Copy,
    Set,
    Communication,
    Bad,
    Warning,
    Good,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Strong => "1",
            Self::Faint => "2",
            Self::Kernel | Self::Warning => "33",
            Self::Graph => "93",
            Self::Copy => "94",
            Self::Set => "35",
            Self::Communication => "36",
            Self::Bad => "31",
            Self::Good => "32",
        }
    }
}
