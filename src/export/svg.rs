//! A flame graph as one SVG file that searches and zooms in a browser, through the `inferno` crate.

use std::fmt::Write as _;
use std::io::Write;

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Options, TextTruncateDirection};

use super::flame::Flame;
use super::leaf::Kind;
use super::{GraphStacks, Unit, clean, missing};
use crate::error::Result;
use crate::profile::Profile;
use crate::record::hash_one;

/// How to draw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SvgOptions {
    /// What the width means. Default: nanoseconds.
    pub unit: Unit,
    /// The heading. Default: `GPU time by launching stack`.
    pub title: String,
    /// Which stacks of a graph node to show. Default: both.
    pub graph: GraphStacks,
}

impl Default for SvgOptions {
    fn default() -> Self {
        Self {
            unit: Unit::default(),
            title: "GPU time by launching stack".to_owned(),
            graph: GraphStacks::default(),
        }
    }
}

/// Frames narrower than one ten-thousandth of the picture are drawn together: no screen shows them, and
/// it keeps the file (and what it takes to make it) small however many stacks there are.
const SHARE: u64 = 10_000;

/// What `inferno` calls the frame below all others.
const WHOLE: &str = "";

/// Draws `profile`. Where nothing has any width the picture says so in words.
///
/// # Errors
/// What `out` reports.
pub fn write_svg(profile: &Profile, options: &SvgOptions, out: &mut impl Write) -> Result<()> {
    let flame = Flame::of(profile, options.unit, options.graph);
    if flame.total() == 0 {
        return write_empty(profile, options, out);
    }
    let mut lines = Vec::new();
    flame.lines(flame.total() / SHARE, |stack, weight| {
        lines.push(format!("{stack} {weight}"));
        Ok(())
    })?;
    let mut colors = PaletteMap::default();
    for (name, kind) in flame.kinds() {
        colors.insert(name, color(name, kind));
    }
    colors.insert(WHOLE, Color { r: 205, g: 210, b: 205 });
    let mut inferno = Options::default();
    inferno.title = clean::text(&options.title);
    inferno.subtitle = Some(subtitle(profile));
    inferno.palette_map = Some(&mut colors);
    inferno.bgcolors = Some(BackgroundColor::Grey);
    inferno.min_width = 100.0 / SHARE as f64;
    inferno.text_truncate_direction = TextTruncateDirection::Right;
    inferno.name_type = "Frame:".to_owned();
    (inferno.count_name, inferno.factor) = match options.unit {
        Unit::Nanos => ("ns".to_owned(), 1.0),
        Unit::Micros => ("us".to_owned(), 0.001),
        Unit::Count => ("activities and launches".to_owned(), 1.0),
    };
    flamegraph::from_lines(&mut inferno, lines.iter().map(String::as_str), out)?;
    Ok(())
}

/// Warm for kernels, yellow for graphs, blue for copies, purple for fills, grey for what is missing, and a quiet green for
/// the CPU's side. Names shade it a little, so that neighbours can be told apart.
fn color(name: &str, kind: Kind) -> Color {
    let shade = |range: u64| (hash_one(name) >> 20) % range;
    let (r, g, b) = match kind {
        Kind::Kernel => (235 + shade(20), 95 + shade(80), 50),
        Kind::Copy => (80 + shade(30), 140 + shade(40), 225),
        Kind::Graph => (225 + shade(20), 185 + shade(20), 75),
        Kind::Set => (165 + shade(25), 110 + shade(30), 215),
        Kind::Loss => (165 + shade(12), 165 + shade(12), 165 + shade(12)),
        Kind::Cpu => (170 + shade(35), 205 + shade(20), 165 + shade(25)),
    };
    Color { r: r as u8, g: g as u8, b: b as u8 }
}

/// One line that says how much there is, and what is missing.
fn subtitle(profile: &Profile) -> String {
    let devices = profile.devices();
    let nanos = devices.iter().fold(0_u64, |sum, d| sum.saturating_add(d.nanos));
    let count = devices.iter().map(|d| d.count).sum::<u64>();
    let gpus = if devices.len() == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", devices.len()) };
    let mut text = format!("{} of GPU time, {count} activities on {gpus}", human(nanos));
    for (missing, weight) in missing::all(profile) {
        let _ = write!(text, ", {} {}", weight.count, missing.label());
    }
    for (loss, count) in missing::losses(profile) {
        let _ = write!(text, ", {count} {}", loss.label().replace('_', " "));
    }
    text
}

fn human(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.3} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", nanos as f64 / 1e6),
        _ => format!("{:.3} s", nanos as f64 / 1e9),
    }
}

/// A picture that says that there is nothing to draw. (`inferno` would call it an error.)
fn write_empty(profile: &Profile, options: &SvgOptions, out: &mut impl Write) -> Result<()> {
    let why = match profile.devices().is_empty() {
        true => "No GPU activity was recorded.",
        false => "GPU activities were recorded, but none has any width.",
    };
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
        text(30, 17, &clean::text(&options.title)),
        text(62, 14, why),
        text(90, 12, &subtitle(profile)),
    )?;
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
