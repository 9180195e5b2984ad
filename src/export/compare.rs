//! Several profiles in one picture: two against each other, or the ranks of a job side by side.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use inferno::flamegraph::color::{BackgroundColor, PaletteMap};
use inferno::flamegraph::{self, TextTruncateDirection};

use super::flame::Flame;
use super::leaf::Kind;
use super::svg::{self, SvgOptions, name_first};
use super::{FoldedOptions, Unit, clean};
use crate::error::{Error, ErrorKind, Result};
use crate::profile::Profile;

/// Folded stacks: frames with `;` in between, and their weight in nanoseconds, or as a count.
pub type Lines = BTreeMap<String, u64>;

/// The folded stacks of `profile`, those of no weight as well.
pub fn lines(profile: &Profile, options: &FoldedOptions) -> Lines {
    let mut lines = Lines::new();
    let add = |stack: &str, weight| {
        lines.insert(stack.to_owned(), weight);
        Ok(())
    };
    Flame::of(profile, options.unit, options.graph, &options.root).lines(0, add).expect("nothing is written");
    lines
}

/// Writes folded stacks, as [`write_folded`](super::write_folded) does those of a profile.
///
/// # Errors
/// What `out` reports.
pub fn write_lines_folded(lines: &Lines, unit: Unit, out: &mut impl Write) -> Result<()> {
    for (stack, weight) in lines {
        writeln!(out, "{stack} {}", in_unit(*weight, unit))?;
    }
    Ok(())
}

fn in_unit(weight: u64, unit: Unit) -> u64 {
    if unit == Unit::Micros { weight / 1000 + u64::from(weight % 1000 >= 500) } else { weight }
}

/// Writes `STACK BEFORE AFTER` for each stack of either, as differential flame graphs are made of.
///
/// # Errors
/// What `out` reports.
pub fn write_diff_folded(before: &Lines, after: &Lines, out: &mut impl Write) -> Result<()> {
    for (stack, a, b) in both(before, after) {
        writeln!(out, "{stack} {a} {b}")?;
    }
    Ok(())
}

/// Draws `after`; what grew is red, what shrank is blue. Stacks that are gone have no width: swap the two
/// to see them.
///
/// # Errors
/// What `out` reports; `Format` where `after` has no width at all.
pub fn write_diff_svg(
    before: &Lines,
    after: &Lines,
    options: &SvgOptions,
    out: &mut impl Write,
) -> Result<()> {
    let lines: Vec<_> = both(before, after)
        .into_iter()
        .map(|(stack, a, b)| format!("{} {a} {b}", name_first(stack)))
        .collect();
    let mut inferno = inferno(options);
    inferno.subtitle = Some(difference(before, after, options.unit));
    draw(&mut inferno, &lines, sum(after), out)
}

/// Draws folded stacks that are no longer a profile.
///
/// # Errors
/// What `out` reports; `Format` where they have no width at all.
pub fn write_lines_svg(lines: &Lines, options: &SvgOptions, out: &mut impl Write) -> Result<()> {
    let texts: Vec<_> =
        lines.iter().map(|(stack, weight)| format!("{} {weight}", name_first(stack))).collect();
    let mut colors = PaletteMap::default();
    for name in lines.keys().flat_map(|stack| stack.split(';')) {
        colors.insert(name_first(name), svg::color(name, kind(name)));
    }
    colors.insert(svg::WHOLE, svg::WHOLE_COLOR);
    let mut inferno = inferno(options);
    inferno.palette_map = Some(&mut colors);
    inferno.subtitle = Some(format!("{} in {} stacks", shown(sum(lines), options.unit), lines.len()));
    draw(&mut inferno, &texts, sum(lines), out)
}

/// One line that says how much there was and is, and what cannot be seen.
fn difference(before: &Lines, after: &Lines, unit: Unit) -> String {
    let (was, is) = (sum(before), sum(after));
    let mut text = format!("{} before, {} after", shown(was, unit), shown(is, unit));
    if was > 0 {
        let percent = 100.0 * (is as f64 - was as f64) / was as f64;
        let _ = write!(text, " ({percent:+.1} %)");
    }
    text.push_str("; red grew, blue shrank");
    let gone = before.iter().filter(|(stack, weight)| **weight > 0 && !after.contains_key(*stack));
    let (count, weight) = gone.fold((0, 0_u64), |(count, sum), (_, weight)| (count + 1, sum + weight));
    if count > 0 {
        let _ = write!(text, "; not shown: {count} stacks that are gone ({})", shown(weight, unit));
    }
    text
}

fn shown(weight: u64, unit: Unit) -> String {
    match unit {
        Unit::Nanos | Unit::Micros => svg::human(weight),
        Unit::Count => weight.to_string(),
    }
}

fn sum(lines: &Lines) -> u64 {
    lines.values().fold(0, |sum, weight| sum.saturating_add(*weight))
}

fn both<'a>(before: &'a Lines, after: &'a Lines) -> Vec<(&'a str, u64, u64)> {
    let mut both: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    before.iter().for_each(|(stack, weight)| both.entry(stack).or_default().0 = *weight);
    after.iter().for_each(|(stack, weight)| both.entry(stack).or_default().1 = *weight);
    both.into_iter().map(|(stack, (a, b))| (stack, a, b)).collect()
}

fn inferno<'a>(options: &SvgOptions) -> flamegraph::Options<'a> {
    let mut inferno = flamegraph::Options::default();
    inferno.title = clean::text(&options.title);
    inferno.bgcolors = Some(BackgroundColor::Grey);
    inferno.min_width = 0.01;
    inferno.text_truncate_direction = TextTruncateDirection::Right;
    inferno.name_type = "Frame:".to_owned();
    (inferno.count_name, inferno.factor) = match options.unit {
        Unit::Nanos => ("ns".to_owned(), 1.0),
        Unit::Micros => ("us".to_owned(), 0.001),
        Unit::Count => ("activities and launches".to_owned(), 1.0),
    };
    inferno
}

fn draw(
    inferno: &mut flamegraph::Options<'_>,
    lines: &[String],
    total: u64,
    out: &mut impl Write,
) -> Result<()> {
    if total == 0 {
        return Err(Error::new(ErrorKind::Format, "there is no GPU time to draw; see `gpuflame info`"));
    }
    flamegraph::from_lines(inferno, lines.iter().map(String::as_str), out)?;
    Ok(())
}

/// What a frame stands for, as far as its name tells.
fn kind(name: &str) -> Kind {
    match name.strip_prefix("[GPU") {
        Some(rest) if rest.contains("_Kernel]") => Kind::Kernel,
        Some(rest) if rest.contains("_Memcpy") => Kind::Copy,
        Some(rest) if rest.contains("_Memset") => Kind::Set,
        _ if name.starts_with('[') => Kind::Loss,
        _ => Kind::Cpu,
    }
}
