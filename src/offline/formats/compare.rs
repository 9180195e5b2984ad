//! Writes pictures of several profiles: the difference between two profiles, or the ranks of a job next to each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;

use super::folded_stacks::FoldedStacks;
use gpuflame_export::frame::Label;
use gpuflame_export::options::{Options, Unit};
use gpuflame_export::picture::{self, Colors, Line, Picture, frame_kinds};
use gpuflame_export::short_names::short_kernel;
use gpuflame_export::svg;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::format_nanos;
use gpuflame_model::profile::views::GPU;

/// Writes `STACK BEFORE AFTER` for each stack in either profile. Tools for differential flame graphs read this format.
///
/// # Errors
/// Fails if writing to `out` fails.
pub fn write_diff_folded(before: &FoldedStacks, after: &FoldedStacks, out: &mut dyn Write) -> Result<()> {
    for (when, lines) in [("before", before), ("after", after)] {
        for (loss, count) in lines.lost() {
            writeln!(out, "# lost {when}: {count} {}", loss.label())?;
        }
    }
    for (stack, a, b) in merge_weights(before, after) {
        writeln!(out, "{stack} {a} {b}")?;
    }
    Ok(())
}

/// Draws `after`. Stacks that grew are orange, and stacks that shrank are blue. Stacks that disappeared have no width;
/// swap the two profiles to see them.
///
/// # Errors
/// Fails if writing to `out` fails, or with `Format` if the stacks of `after` have no weight.
pub fn write_diff_svg(
    before: &FoldedStacks,
    after: &FoldedStacks,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let line = |(stack, before, weight)| Line { before, ..Line::new(after.name_first(stack), weight) };
    let lines: Vec<Line> = merge_weights(before, after).into_iter().map(line).collect();
    draw(lines, Colors::Changes, &difference_subtitle(before, after, options.unit), options, out)
}

/// Returns the reason why two sets of folded stacks cannot be compared, or `None` if they can. Two sets of stacks
/// cannot be compared if only one of them has short kernel names. Two sets also cannot be compared if they have kernels
/// but no stacks in common, for example because only one set was written with `--all-frames`.
pub fn explain_mismatch(before: &FoldedStacks, after: &FoldedStacks) -> Option<String> {
    let ([was, is], advice) =
        ([before, after].map(kernel_names), "compare recordings, or write both files with the same options");
    for (short, whole, when, other) in [(&was, &is, "before", "after"), (&is, &was, "after", "before")] {
        let only_whole = whole.difference(short).filter_map(|name| short_kernel(name));
        let count = only_whole.filter(|name| short.contains(&name[..]) && !whole.contains(&name[..])).count();
        if count > 0 {
            return Some(format!(
                "{count} kernels have short names {when} and full names {other}, so their stacks do not \
                 match; {advice}"
            ));
        }
    }
    let (shared, meets) = (was.intersection(&is).count(), |(stack, _)| after.get(stack).is_some());
    (shared > 0 && !before.iter().any(meets)).then(|| {
        format!(
            "the files share {shared} kernels but no stack: one may have other frames (--all-frames, \
             --python, --root); {advice}"
        )
    })
}

/// Returns the names of all kernels. A kernel that ran on several GPUs occurs only once in the returned names.
fn kernel_names(lines: &FoldedStacks) -> BTreeSet<&str> {
    lines.labels().filter_map(Label::kernel).map(|(_, name)| name).collect()
}

/// Draws folded stacks that do not belong to a profile.
///
/// # Errors
/// Fails if writing to `out` fails, or with `Format` if the stacks have no weight.
pub fn write_lines_svg(lines: &FoldedStacks, options: &Options, out: &mut dyn Write) -> Result<()> {
    let kinds = frame_kinds(lines.labels());
    let mut subtitle = format!("{} in {} stacks", show_weight(lines.total(), options.unit), lines.len());
    svg::add_lost(&mut subtitle, lines.lost());
    let all = lines.iter().map(|(stack, weight)| Line::new(lines.name_first(stack), weight)).collect();
    draw(all, Colors::Kinds(&kinds), &subtitle, options, out)
}

/// Returns the picture's subtitle: the totals before and after, and the stacks that are not drawn.
fn difference_subtitle(before: &FoldedStacks, after: &FoldedStacks, unit: Unit) -> String {
    let (was, is) = (before.total(), after.total());
    let mut text = format!("{} before, {} after", show_weight(was, unit), show_weight(is, unit));
    if was > 0 {
        let percent = 100.0 * (is as f64 - was as f64) / was as f64;
        let _ = write!(text, " ({percent:+.1} %)");
    }
    text.push_str("; orange grew, blue shrank");
    let gone = before.iter().filter(|(stack, weight)| *weight > 0 && after.get(stack).is_none());
    let (count, weight) =
        gone.fold((0, 0_u64), |(count, sum), (_, weight)| (count + 1, sum.saturating_add(weight)));
    if count > 0 {
        let _ = write!(text, "; not shown: {count} stacks that are gone ({})", show_weight(weight, unit));
    }
    for (when, lines) in [("before", before), ("after", after)] {
        if lines.lost().count() > 0 {
            let _ = write!(text, "; {when}");
            svg::add_lost(&mut text, lines.lost());
        }
    }
    text
}

fn show_weight(weight: u64, unit: Unit) -> String {
    match unit {
        Unit::Nanos | Unit::Micros => format_nanos(weight),
        Unit::Count => weight.to_string(),
    }
}

fn merge_weights<'a>(before: &'a FoldedStacks, after: &'a FoldedStacks) -> Vec<(&'a str, u64, u64)> {
    let mut both: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    before.iter().for_each(|(stack, weight)| both.entry(stack).or_default().0 = weight);
    after.iter().for_each(|(stack, weight)| both.entry(stack).or_default().1 = weight);
    both.into_iter().map(|(stack, (a, b))| (stack, a, b)).collect()
}

fn draw(
    mut lines: Vec<Line>,
    colors: Colors<'_>,
    subtitle: &str,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    if lines.iter().all(|line| line.weight == 0) {
        return Err(Error::new(ErrorKind::Format, "there is no GPU time to draw; see `gpuflame info`"));
    }
    // Sorting the stacks puts stacks that begin with the same frames next to each other.
    lines.sort_by(|one, other| one.stack.split(';').cmp(other.stack.split(';')));
    let picture = Picture {
        title: options.title(&GPU),
        subtitle,
        weights: svg::weights(options.unit, GPU.values[1].words),
        colors,
        has_merged: false,
    };
    Ok(picture::draw(&picture, &lines, out)?)
}
