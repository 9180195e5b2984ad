//! Several profiles in one picture: two against each other, or the ranks of a job side by side.

use std::collections::BTreeMap;
use std::io::Write;

use inferno::flamegraph::color::{BackgroundColor, PaletteMap};
use inferno::flamegraph::{self, TextTruncateDirection};

use super::flame::Flame;
use super::leaf::Kind;
use super::svg::{self, SvgOptions};
use super::{GraphStacks, Unit, clean};
use crate::error::{Error, ErrorKind, Result};
use crate::profile::Profile;

/// Folded stacks: frames with `;` in between, and their weight in nanoseconds, or as a count.
pub type Lines = BTreeMap<String, u64>;

/// The folded stacks of `profile`, those of no weight as well.
pub fn lines(profile: &Profile, unit: Unit, graph: GraphStacks) -> Lines {
    let mut lines = Lines::new();
    let add = |stack: &str, weight| {
        lines.insert(stack.to_owned(), weight);
        Ok(())
    };
    Flame::of(profile, unit, graph).lines(0, add).expect("nothing is written");
    lines
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
    let lines: Vec<_> =
        both(before, after).into_iter().map(|(stack, a, b)| format!("{stack} {a} {b}")).collect();
    let mut inferno = inferno(options);
    let sum = |lines: &Lines| lines.values().sum::<u64>();
    inferno.subtitle = Some(format!("{} before, {} after", sum(before), sum(after)));
    draw(&mut inferno, &lines, sum(after), out)
}

/// Draws folded stacks that are no longer a profile.
///
/// # Errors
/// What `out` reports; `Format` where they have no width at all.
pub fn write_lines_svg(lines: &Lines, options: &SvgOptions, out: &mut impl Write) -> Result<()> {
    let texts: Vec<_> = lines.iter().map(|(stack, weight)| format!("{stack} {weight}")).collect();
    let mut colors = PaletteMap::default();
    for name in lines.keys().flat_map(|stack| stack.split(';')) {
        colors.insert(name, svg::color(name, kind(name)));
    }
    let mut inferno = inferno(options);
    inferno.palette_map = Some(&mut colors);
    draw(&mut inferno, &texts, lines.values().sum(), out)
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
