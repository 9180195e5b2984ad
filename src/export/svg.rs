//! A flame graph as one SVG file, which can be searched and zoomed in a browser. It is drawn by the `inferno` crate.

use std::fmt::Write as _;
use std::io::Write;

use inferno::flamegraph::color::BackgroundColor;
use inferno::flamegraph::{self, TextTruncateDirection};

use super::clean;
use super::colors;
use super::flame::MERGED_FRAME_END;
use super::format::{Drawing, Format};
use super::frame::Label;
use super::options::Unit;
use super::short_name_svg::ShortNameSvg;
use super::title::picture_title;
use gpuflame_model::error::Result;
use gpuflame_model::profile::Measure;
use gpuflame_model::record::Loss;

/// A picture. If no frame has any width, the picture contains the reason instead.
pub static SVG: Format = Format::of_views("svg", &[".svg"], write, "A flame graph (.svg)");

/// Frames narrower than 1/10,000 of the picture are merged: half a pixel of a picture that is 5,000 pixels wide, as one of
/// 1,200 pixels is after zooming in four times.
const MIN_WIDTH_FRACTION: u64 = 10_000;

/// Maximum number of frames that are shown. So neither the number of stacks nor their depth determines the size of the
/// file (at most about 1.2 MB) and the time to draw it.
const MAX_SHOWN_FRAMES: usize = 4_000;

fn write(drawing: &Drawing<'_>, out: &mut dyn Write) -> Result<()> {
    let &Drawing { profile, view, options, .. } = drawing;
    let mut subtitle = (view.summary)(profile);
    add_lost(&mut subtitle, profile.lost());
    let title = options.title.clone().unwrap_or_else(|| picture_title(profile, view));
    let flame = drawing.flame();
    if flame.total() == 0 {
        return write_empty(&title, (view.nothing)(profile), &subtitle, out);
    }
    let detail = flame.detail(flame.total() / MIN_WIDTH_FRACTION, MAX_SHOWN_FRAMES);
    let mut lines = Vec::new();
    flame.lines(detail, &Label::name_first, &mut |stack, weight| {
        lines.push((stack.to_owned(), weight));
        Ok(())
    })?;
    let shift = overflow_shift(flame.total(), lines.len());
    let lines: Vec<_> =
        lines.into_iter().map(|(stack, weight)| format!("{stack} {}", weight >> shift)).collect();
    let mut colors = colors::palette(flame.labels_with(detail), &merged_frames(&lines));
    let value = &view.values[options.unit.value(view)];
    let unit = match value.unit {
        Measure::Nanos => options.unit,
        Measure::Bytes | Measure::Count => Unit::Count,
    };
    let mut inferno = inferno_options(&title, subtitle, unit, value.words);
    inferno.palette_map = Some(&mut colors);
    inferno.min_width = 100.0 / MIN_WIDTH_FRACTION as f64;
    inferno.factor *= (1_u128 << shift) as f64;
    draw(&mut inferno, &lines, out)
}

/// Returns the names of the frames that stand for several frames, in lines that end with a weight.
fn merged_frames(lines: &[String]) -> Vec<&str> {
    let last = lines.iter().filter_map(|line| line.rsplit_once(' ')?.0.rsplit(';').next());
    last.filter(|name| name.ends_with(MERGED_FRAME_END)).collect()
}

/// Draws folded stacks with `inferno`, and shows kernels by their short names.
pub fn draw(inferno: &mut flamegraph::Options<'_>, lines: &[String], out: &mut dyn Write) -> Result<()> {
    let mut drawn = ShortNameSvg::new(out, !merged_frames(lines).is_empty());
    flamegraph::from_lines(inferno, lines.iter().map(String::as_str), &mut drawn)?;
    Ok(drawn.finish()?)
}

/// Returns the number of bits by which to shift weights to the right, so that their sum cannot overflow in `inferno`.
/// Damaged recordings may contain any weight.
pub fn overflow_shift(total: u64, lines: usize) -> u32 {
    let fits = total < 1 << 62;
    if fits { 0 } else { usize::BITS - lines.leading_zeros() + 1 }
}

/// Draws a picture and discards it. Libraries make some look-ups only once, which need the loader's lock; this makes
/// them now.
pub fn draw_once() {
    let mut inferno = inferno_options("", String::new(), Unit::Count, "");
    let _ = draw(&mut inferno, &["a;b 1".to_owned()], &mut std::io::sink());
}

/// Appends the kinds of loss that occurred, with their counts, to the subtitle.
pub fn add_lost(subtitle: &mut String, lost: impl Iterator<Item = (Loss, u64)>) {
    let mut is_incomplete = false;
    for (loss, count) in lost {
        let _ = write!(subtitle, ", {count} {}", loss.label().replace('_', " "));
        is_incomplete |= loss.hides_gpu_time() && count > 0;
    }
    if is_incomplete {
        subtitle.push_str("; GPU and idle time are incomplete");
    }
}

/// Returns the options for the look of all our pictures. `words` is the plural noun for the counted things.
pub fn inferno_options<'a>(
    title: &str,
    subtitle: String,
    unit: Unit,
    words: &str,
) -> flamegraph::Options<'a> {
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

/// Writes a picture that contains only the reason why nothing is drawn. (For no stacks, `inferno` would return an
/// error.)
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
