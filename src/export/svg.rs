//! A flame graph as one SVG file that searches and zooms in a browser, through the `inferno` crate.

use std::fmt::Write as _;
use std::io::Write;

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, TextTruncateDirection};

use super::clean;
use super::flame::{Flame, SMALL};
use super::format::Format;
use super::frame::Label;
use super::options::{Options, Unit};
use crate::error::Result;
use crate::profile::{Cause, Kind, Measure, Profile, View};
use crate::record::{Loss, hash_one};

/// A picture. Where nothing has any width it says so in words.
pub static SVG: Format = Format::of_views("svg", &[".svg"], write, "A flame graph (.svg)");

/// Frames narrower than one ten-thousandth of the picture are drawn together: no screen shows them, and
/// it keeps the file (and what it takes to make it) small however many stacks there are.
const SHARE: u64 = 10_000;

/// What `inferno` calls the frame below all others.
const WHOLE: &str = "";
const WHOLE_COLOR: Color = Color { r: 205, g: 210, b: 205 };

fn write(profile: &Profile, view: &View, options: &Options, out: &mut dyn Write) -> Result<()> {
    let mut subtitle = (view.summary)(profile);
    add_lost(&mut subtitle, profile.lost());
    let title = options.title(view);
    let flame = Flame::of(profile, view, options);
    if flame.total() == 0 {
        return write_empty(title, (view.nothing)(profile), &subtitle, out);
    }
    let mut lines = Vec::new();
    flame.lines(flame.total() / SHARE, Label::name_first, |stack, weight| {
        lines.push(format!("{stack} {weight}"));
        Ok(())
    })?;
    let mut colors = palette(flame.labels());
    let value = &view.values[options.unit.value(view)];
    let unit = match value.unit {
        Measure::Nanos => options.unit,
        Measure::Bytes | Measure::Count => Unit::Count,
    };
    let mut inferno = inferno(title, subtitle, unit, value.words);
    inferno.palette_map = Some(&mut colors);
    inferno.min_width = 100.0 / SHARE as f64;
    flamegraph::from_lines(&mut inferno, lines.iter().map(String::as_str), out)?;
    Ok(())
}

/// Goes on with what was lost.
pub(super) fn add_lost(subtitle: &mut String, lost: impl Iterator<Item = (Loss, u64)>) {
    for (loss, count) in lost {
        let _ = write!(subtitle, ", {count} {}", loss.label().replace('_', " "));
    }
}

/// How all our pictures look. `words` is what so many are called in the unit of counts.
pub(super) fn inferno<'a>(title: &str, subtitle: String, unit: Unit, words: &str) -> flamegraph::Options<'a> {
    let mut inferno = flamegraph::Options::default();
    inferno.title = clean::text(title);
    inferno.subtitle = Some(subtitle);
    inferno.bgcolors = Some(BackgroundColor::Grey);
    inferno.text_truncate_direction = TextTruncateDirection::Right;
    inferno.name_type = "Frame:".to_owned();
    (inferno.count_name, inferno.factor) = match unit {
        Unit::Nanos => ("ns".to_owned(), 1.0),
        Unit::Micros => ("us".to_owned(), 0.001),
        Unit::Count => (words.to_owned(), 1.0),
    };
    inferno
}

/// A colour for each of the frames.
pub(super) fn palette<'a>(labels: impl IntoIterator<Item = &'a Label>) -> PaletteMap {
    let mut colors = PaletteMap::default();
    for label in labels {
        colors.insert(label.name_first(), color(&label.text, label.kind));
    }
    // A frame that has no colour here gets one by chance.
    colors.insert(WHOLE, WHOLE_COLOR);
    colors.insert(SMALL, WHOLE_COLOR);
    colors
}

/// Warm for kernels, yellow for graphs, blue for copies, purple for fills, grey for what is missing, teal for
/// ranges, and a quiet green for the CPU's side; idle time is orange where the host was late, yellow while a
/// launch was under way, blue where work waited. Names shade it a little, so that neighbours can be told apart.
fn color(name: &str, kind: Kind) -> Color {
    let shade = |range: u64| (hash_one(name) >> 20) % range;
    let (r, g, b) = match kind {
        Kind::Kernel => (235 + shade(20), 95 + shade(80), 50),
        Kind::Copy | Kind::Unified => (80 + shade(30), 140 + shade(40), 225),
        Kind::Graph => (225 + shade(20), 185 + shade(20), 75),
        Kind::Set => (165 + shade(25), 110 + shade(30), 215),
        Kind::Idle(Cause::HostLate) => (235 + shade(15), 120 + shade(25), 40),
        Kind::Idle(Cause::LaunchLatency) => (240 + shade(12), 190 + shade(20), 60),
        Kind::Idle(Cause::Dependency) => (110 + shade(25), 150 + shade(30), 215),
        Kind::Marker | Kind::Loss | Kind::Idle(Cause::Unknown) => {
            (165 + shade(12), 165 + shade(12), 165 + shade(12))
        }
        Kind::Allocation => (225 + shade(20), 110 + shade(30), 60 + shade(20)),
        Kind::Free => (120 + shade(25), 165 + shade(25), 215),
        Kind::Root => (200 + shade(12), 190 + shade(12), 175 + shade(12)),
        Kind::Range => (70 + shade(25), 165 + shade(25), 160 + shade(25)),
        Kind::Code | Kind::Python | Kind::Call => (170 + shade(35), 205 + shade(20), 165 + shade(25)),
    };
    Color { r: r as u8, g: g as u8, b: b as u8 }
}

/// A picture that says that there is nothing to draw. (`inferno` would call it an error.)
fn write_empty(title: &str, why: &str, subtitle: &str, out: &mut dyn Write) -> Result<()> {
    let text = |y: u32, size: u32, text: &str| {
        format!(
            "<text x=\"600\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"middle\">{}</text>\n",
            escape(text)
        )
    };
    write!(
        out,
        "<?xml version=\"1.0\" standalone=\"no\"?>\n\
         <svg version=\"1.1\" width=\"1200\" height=\"110\" viewBox=\"0 0 1200 110\" \
         xmlns=\"http://www.w3.org/2000/svg\" font-family=\"monospace\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#f4f4f4\"/>\n{}{}{}</svg>\n",
        text(30, 17, &clean::text(title)),
        text(62, 14, why),
        text(90, 12, subtitle),
    )?;
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
