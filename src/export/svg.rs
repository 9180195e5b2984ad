//! Writes a flame graph as one SVG file, which can be searched and zoomed in a browser.

use std::fmt::Write as _;
use std::io::Write;

use super::flame::MERGED_FRAME_END;
use super::format::{Drawing, Format};
use super::frame::Label;
use super::options::Unit;
use super::picture::{Colors, Line, MIN_WIDTH_FRACTION, Picture, Weights, draw, draw_nothing, frame_kinds};
use super::title::picture_title;
use gpuflame_model::error::Result;
use gpuflame_model::profile::Measure;
use gpuflame_model::record::Loss;

/// A flame graph picture. If all frames have a width of 0, the picture contains the reason instead of frames.
pub static SVG: Format = Format::of_views("svg", &[".svg"], write, "A flame graph (.svg)");

/// Maximum number of frames that are shown. Regardless of the number and depth of the stacks, `MAX_SHOWN_FRAMES` limits
/// the size of the file (to about 1 MB) and the time to draw the picture. For example, the default files of a program
/// with 2,000 stacks of 60 frames take less than 5 MB. The folded stacks take half of these 5 MB.
const MAX_SHOWN_FRAMES: usize = 3_700;

fn write(drawing: &Drawing<'_>, out: &mut dyn Write) -> Result<()> {
    let &Drawing { profile, view, options, .. } = drawing;
    let mut subtitle = (view.summary)(profile);
    add_lost(&mut subtitle, profile.lost());
    let title = options.title.clone().unwrap_or_else(|| picture_title(profile, view));
    let flame = drawing.flame();
    if flame.total() == 0 {
        return Ok(draw_nothing(&title, (view.nothing)(profile), &subtitle, out)?);
    }
    let detail = flame.detail(flame.total() / MIN_WIDTH_FRACTION, MAX_SHOWN_FRAMES);
    let mut lines = Vec::new();
    flame.lines(detail, &Label::name_first, &mut |stack, weight| {
        lines.push(Line::new(stack.to_owned(), weight));
        Ok(())
    })?;
    let kinds = frame_kinds(flame.labels_with(detail));
    let value = &view.values[options.unit.value(view)];
    let unit = match value.unit {
        Measure::Nanos => options.unit,
        Measure::Bytes | Measure::Count => Unit::Count,
    };
    let picture = Picture {
        title: &title,
        subtitle: &subtitle,
        weights: weights(unit, value.words),
        colors: Colors::Kinds(&kinds),
        has_merged: lines.iter().any(|line| line.stack.ends_with(MERGED_FRAME_END)),
    };
    Ok(draw(&picture, &lines, out)?)
}

/// Returns the unit in which a picture's weights are shown. `words` is the plural noun for counted things.
pub fn weights(unit: Unit, words: &str) -> Weights<'_> {
    match unit {
        Unit::Nanos | Unit::Micros => Weights::Nanos,
        Unit::Count => Weights::Counted(words),
    }
}

/// Appends the kinds of losses that occurred, with their counts, to the subtitle.
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
