//! Draws a flame graph as one SVG file. In a browser, a script in the file zooms to a clicked frame, searches for
//! frames, and fits the picture to the window. A viewer that does not run scripts shows the same frames with a fixed
//! width. For example, browsers do not run the script if a page embeds the picture as an image.

mod frames;
mod kinds;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use self::frames::{Frame, frames};
use super::clean;
use super::frame::{Label, SEPARATOR};
use super::summary_text::grouped;
use gpuflame_model::profile::{ShownFrameKind, format_nanos};

/// A folded stack and its weight.
pub struct Line {
    /// Frames of the stack, root first, separated by `;`. The texts of the frames are from [`Label::name_first`].
    pub stack: String,
    /// Weight of the stack. The weight determines the width of the stack's frames.
    pub weight: u64,
    /// Weight in an older run, if the picture shows a difference.
    pub before: u64,
}

impl Line {
    /// Creates a stack for a picture that shows no difference.
    pub fn new(stack: String, weight: u64) -> Self {
        Self { stack, weight, before: 0 }
    }
}

/// Kind of each frame, keyed by the frame's name. Frames whose name is not in this map are drawn as missing data.
pub type FrameKinds<'a> = BTreeMap<std::borrow::Cow<'a, str>, ShownFrameKind>;

/// Meaning of the colours of frames.
pub enum Colors<'a> {
    /// The colour shows the kind of the frame.
    Kinds(&'a FrameKinds<'a>),
    /// The colour shows the change of the frame's weight since the older run.
    Changes,
}

/// Unit of the weights.
#[derive(Clone, Copy)]
pub enum Weights<'a> {
    /// Times in ns, shown in a suitable unit.
    Nanos,
    /// Counts, shown with the given plural noun.
    Counted(&'a str),
}

/// Properties of a picture other than its frames.
pub struct Picture<'a> {
    /// Title of the picture.
    pub title: &'a str,
    /// Text below the title, broken into lines if it is long.
    pub subtitle: &'a str,
    /// Unit of the weights.
    pub weights: Weights<'a>,
    /// Meaning of the colours.
    pub colors: Colors<'a>,
    /// Whether the picture contains merged frames. If frames were merged, the search cannot find their names. The
    /// picture states this.
    pub has_merged: bool,
}

/// Returns the kinds of labels for [`Colors::Kinds`]. Labels of different kinds may have the same name: `cudaMalloc`
/// may be a call or a host function. If a name has several kinds, the kind that comes last in the order of
/// [`ShownFrameKind`] is used. Therefore colours do not depend on the order of the labels.
pub fn frame_kinds<'a>(labels: impl IntoIterator<Item = Label<'a>>) -> FrameKinds<'a> {
    let mut kinds = FrameKinds::new();
    for label in labels {
        let known = kinds.entry(label.name_first()).or_insert(label.kind);
        *known = label.kind.max(*known);
    }
    kinds
}

/// Minimum width of a drawn frame, as a fraction of the picture: 1/10,000. In a picture that is 5,000 pixels wide
/// (1,200 pixels, magnified about four times), the minimum is half a pixel.
pub const MIN_WIDTH_FRACTION: u64 = 10_000;

/// Width of the picture if no script runs, and width of the margin at both sides, in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
/// Width, in pixels, of a character in the text of a frame. The font is 12 pixels high, and the characters of common
/// monospaced fonts are 0.6 times as wide as high.
const CHAR_WIDTH: f64 = 7.2;
/// Space between two frames, and minimum width of a frame that has such a space, in pixels. Narrower frames have no
/// space between them, because the space would make such frames look too pale.
const GAP: f64 = 0.6;
const MIN_WIDTH_WITH_GAP: f64 = 2.0;
/// Height of a row of frames, and height of a line of text, in pixels.
const ROW: usize = 16;
const TEXT_LINE: usize = 18;
/// Maximum number of characters in a line of text, and maximum number of lines in a subtitle.
const LINE_CHARS: usize = 160;
const MAX_SUBTITLE_LINES: usize = 4;

const STYLE: &str = include_str!("picture.css");
const SCRIPT: &str = include_str!("picture.js");
/// Text that the picture shows before the result of a search. The first text is for pictures without merged frames, the
/// second text for pictures with merged frames.
const MATCHED: [&str; 2] = ["Matched:", "Matched of the frames shown:"];

/// Draws the frames of `lines`. Lines that begin with the same frames must be adjacent.
///
/// # Errors
/// Errors of `out`.
pub fn draw(picture: &Picture<'_>, lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    let all = frames(lines, MIN_WIDTH_FRACTION);
    let depth = all.iter().map(|frame| frame.depth).max().unwrap_or(0);
    let subtitle = wrapped(picture.subtitle);
    let top = 30 + TEXT_LINE * (subtitle.len() + 1);
    let bottom = top + ROW * (depth + 1);
    write_head(bottom + 42, (picture.title, 22), picture.subtitle, out)?;
    write_subtitle(&subtitle, 22, out)?;
    write_legend(picture, &all, top - TEXT_LINE, out)?;
    writeln!(out, "<g class=\"frames\">")?;
    let total = all.last().map_or(0, |root| root.weight).max(1);
    for frame in &all {
        write_frame(picture, frame, total, bottom - ROW * (frame.depth + 1), out)?;
    }
    write!(
        out,
        "</g>\n<text class=\"details\" x=\"{MARGIN}\" y=\"{}\"> </text>\n\
         <text class=\"reset\" x=\"{MARGIN}\" y=\"{}\">Reset zoom</text>\n\
         <text class=\"matched\" data-word=\"{}\" x=\"{}\" y=\"{}\"> </text>\n\
         <foreignObject class=\"box\" x=\"{}\" y=\"{}\" width=\"300\" height=\"22\"><input \
         xmlns=\"http://www.w3.org/1999/xhtml\" type=\"search\" class=\"search\" aria-label=\"search\" \
         placeholder=\"search: regular expression\"/></foreignObject>\n\
         <script><![CDATA[\n{SCRIPT}]]></script>\n</svg>\n",
        bottom + 16,
        bottom + 35,
        MATCHED[usize::from(picture.has_merged)],
        WIDTH - MARGIN,
        bottom + 16,
        WIDTH - MARGIN - 300.0,
        bottom + 20,
    )?;
    out.flush()
}

/// Writes a picture that contains only the reason why nothing is drawn.
///
/// # Errors
/// Errors of `out`.
pub fn draw_nothing(title: &str, why: &str, subtitle: &str, out: &mut dyn Write) -> io::Result<()> {
    let lines = wrapped(subtitle);
    write_head(80 + TEXT_LINE * lines.len(), (title, 30), subtitle, out)?;
    writeln!(out, "<text class=\"subtitle\" x=\"50%\" y=\"62\">{}</text>", Escaped(why))?;
    write_subtitle(&lines, 72, out)?;
    writeln!(out, "</svg>")
}

/// Writes the beginning of a picture that is `height` pixels high, up to and including the title. `title_y` is the
/// vertical position of the title.
fn write_head(
    height: usize,
    (title, title_y): (&str, usize),
    subtitle: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    write!(
        out,
        "<?xml version=\"1.0\" standalone=\"no\"?>\n\
         <svg version=\"1.1\" class=\"gpuflame\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n<desc>{}</desc>\n<style>\n{STYLE}</style>\n\
         <rect class=\"back\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"50%\" y=\"{title_y}\">{}</text>\n",
        Escaped(&clean::line(subtitle)),
        Escaped(&clean::text(title)),
    )
}

/// Writes the lines of a subtitle below the vertical position `above`.
fn write_subtitle(lines: &[String], above: usize, out: &mut dyn Write) -> io::Result<()> {
    for (at, line) in lines.iter().enumerate() {
        let y = above + TEXT_LINE * (at + 1);
        writeln!(out, "<text class=\"subtitle\" x=\"50%\" y=\"{y}\">{}</text>", Escaped(line))?;
    }
    Ok(())
}

/// Writes the legend: the colours that occur in the picture, and their meanings.
fn write_legend(picture: &Picture<'_>, all: &[Frame<'_>], y: usize, out: &mut dyn Write) -> io::Result<()> {
    let entries: Vec<(&str, &str)> = match picture.colors {
        Colors::Kinds(known) => kinds::legend(all.iter().map(|frame| kinds::class_of(known, frame))),
        Colors::Changes => kinds::CHANGE_LEGEND.to_vec(),
    };
    let mut x = MARGIN;
    for (class, word) in entries {
        writeln!(
            out,
            "<g class=\"legend {class}\"><rect x=\"{x:.1}\" y=\"{y}\" width=\"12\" height=\"12\"/><text x=\"{:.1}\" \
             y=\"{}\">{word}</text></g>",
            x + 16.0,
            y + 10
        )?;
        x += 16.0 + CHAR_WIDTH * (word.len() + 2) as f64;
    }
    Ok(())
}

fn write_frame(
    picture: &Picture<'_>,
    frame: &Frame<'_>,
    total: u64,
    y: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (short, whole) = match frame.name.split_once(SEPARATOR) {
        Some((short, whole)) => (Some(short), whole),
        None => (None, frame.name),
    };
    let class = match picture.colors {
        Colors::Kinds(known) => kinds::class_of(known, frame),
        Colors::Changes => kinds::change_class(frame.weight, frame.before),
    };
    let scale = (WIDTH - 2.0 * MARGIN) / total as f64;
    let (x, width) = (MARGIN + frame.start as f64 * scale, frame.weight as f64 * scale);
    let drawn = if width < MIN_WIDTH_WITH_GAP { width } else { width - GAP };
    write!(out, "<g class=\"{class}\" data-at=\"{} {}\"><title", frame.start, frame.weight)?;
    if let Some(short) = short {
        write!(out, " data-short=\"{}\"", Escaped(short))?;
    }
    write!(out, ">{} ({}", Escaped(whole), picture.weights.text(frame.weight))?;
    write!(out, ", {:.2} %", 100.0 * frame.weight as f64 / total as f64)?;
    if matches!(picture.colors, Colors::Changes) {
        write!(out, "; before {}", picture.weights.text(frame.before))?;
    }
    write!(out, ")</title><rect x=\"{x:.2}\" y=\"{y}\" width=\"{drawn:.2}\" height=\"{}\"/>", ROW - 1)?;
    let room = ((width - 6.0).max(0.0) / CHAR_WIDTH) as usize;
    let label = fitted(short.unwrap_or(whole), room);
    // In a picture with many frames, most frames are too narrow for a text. When a narrow frame becomes wider, the
    // script adds the frame's text.
    if !label.is_empty() {
        write!(out, "<text x=\"{:.2}\" y=\"{}\">{}</text>", x + 3.0, y + 11, Escaped(&label))?;
    }
    writeln!(out, "</g>")
}

impl Weights<'_> {
    fn text(self, weight: u64) -> String {
        match self {
            Self::Nanos => format_nanos(weight),
            Self::Counted(words) => format!("{} {words}", grouped(weight)),
        }
    }
}

/// Shortens a name to at most `room` characters. Returns an empty text if the name is longer and `room` is less than
/// three. If the name of a Python function is too long, its file and line are omitted first.
fn fitted(name: &str, room: usize) -> String {
    let name = match name.char_indices().nth(room) {
        Some(_) => without_place(name),
        None => name,
    };
    match name.char_indices().nth(room) {
        None => name.to_owned(),
        Some(_) if room < 3 => String::new(),
        Some(_) => name.chars().take(room - 1).chain(['…']).collect(),
    }
}

/// Returns `forward` for `model.py(12): forward`, the form in which torch.profiler names Python functions.
fn without_place(name: &str) -> &str {
    let is_place = |place: &str| place == "nn.Module" || (place.contains(".py(") && place.ends_with(')'));
    match name.split_once(": ") {
        Some((place, function)) if is_place(place) && !place.contains(' ') => function,
        _ => name,
    }
}

/// Splits a subtitle into lines at blanks. If the subtitle needs more lines than are permitted, the last line contains
/// the remaining text.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in clean::line(text).split_whitespace() {
        let is_last = lines.len() == MAX_SUBTITLE_LINES;
        let Some(line) = lines.last_mut() else { break };
        match line.is_empty() {
            true => line.push_str(word),
            false if is_last || line.chars().count() + word.chars().count() < LINE_CHARS => {
                let _ = write!(line, " {word}");
            }
            false => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Text that is escaped for XML when it is written. The escaped text is valid between tags and in attributes.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(['&', '<', '>', '"']) {
            out.write_str(&rest[..at])?;
            out.write_str(match rest.as_bytes()[at] {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                _ => "&quot;",
            })?;
            rest = &rest[at + 1..];
        }
        out.write_str(rest)
    }
}

#[cfg(test)]
mod tests;
