//! A flame graph as one SVG file that searches and zooms in a browser, through the `inferno` crate.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write;

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Options, TextTruncateDirection};

use super::flame::{Flame, HostPart};
use super::leaf::Kind;
use super::{GraphStacks, Root, Unit, clean, missing};
use crate::error::Result;
use crate::profile::{Cause, DeviceTime, HostCall, Idle, Profile};
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
    /// The frames below all stacks. Default: none.
    pub root: Vec<Root>,
}

impl Default for SvgOptions {
    fn default() -> Self {
        Self {
            unit: Unit::default(),
            title: "GPU time by launching stack".to_owned(),
            graph: GraphStacks::default(),
            root: Vec::new(),
        }
    }
}

impl SvgOptions {
    /// With the heading for idle time.
    pub fn idle() -> Self {
        Self { title: "GPU idle time by the stack whose launch ended it".to_owned(), ..Self::default() }
    }
}

impl SvgOptions {
    /// With the heading for the time in which the host waited.
    pub fn waits() -> Self {
        Self { title: "Host time waiting for the GPU, by stack".to_owned(), ..Self::default() }
    }

    /// With the heading for memory.
    pub fn memory() -> Self {
        Self { title: "Bytes allocated and freed, by stack".to_owned(), ..Self::default() }
    }
}

/// Frames narrower than one ten-thousandth of the picture are drawn together: no screen shows them, and
/// it keeps the file (and what it takes to make it) small however many stacks there are.
const SHARE: u64 = 10_000;

/// What `inferno` calls the frame below all others.
pub(super) const WHOLE: &str = "";
pub(super) const WHOLE_COLOR: Color = Color { r: 205, g: 210, b: 205 };

/// Draws `profile`. Where nothing has any width the picture says so in words.
///
/// # Errors
/// What `out` reports.
pub fn write_svg(profile: &Profile, options: &SvgOptions, out: &mut impl Write) -> Result<()> {
    let subtitle = subtitle(profile);
    let flame = Flame::of(profile, options.unit, options.graph, &options.root);
    if flame.total() == 0 {
        let why = match profile.devices().is_empty() {
            true => "No GPU activity was recorded.",
            false => "GPU activities were recorded, but none has any width.",
        };
        return write_empty(options, why, &subtitle, out);
    }
    let count = "activities and launches";
    draw(&flame, options, &subtitle, count, out)
}

/// Draws the idle time of all devices: the width of a frame is the GPU time lost because of it.
///
/// # Errors
/// What `out` reports.
pub fn write_idle_svg(profile: &Profile, options: &SvgOptions, out: &mut impl Write) -> Result<()> {
    let subtitle = idle_subtitle(profile);
    let flame = Flame::idle(profile, options.unit, &options.root);
    if flame.total() == 0 {
        let why = match profile.times().is_empty() {
            true => "No GPU activity was recorded.",
            false => "No GPU was idle.",
        };
        return write_empty(options, why, &subtitle, out);
    }
    draw(&flame, options, &subtitle, "gaps", out)
}

/// Draws the time in which the host waited for a GPU, by the stack of the call.
///
/// # Errors
/// What `out` reports.
pub fn write_wait_svg(profile: &Profile, options: &SvgOptions, out: &mut impl Write) -> Result<()> {
    write_host_svg(profile, HostPart::Waits, options, out)
}

/// Draws what was allocated and freed, in bytes unless counts are the unit.
///
/// # Errors
/// What `out` reports.
pub fn write_memory_svg(profile: &Profile, options: &SvgOptions, out: &mut impl Write) -> Result<()> {
    write_host_svg(profile, HostPart::Memory, options, out)
}

fn write_host_svg(
    profile: &Profile,
    part: HostPart,
    options: &SvgOptions,
    out: &mut impl Write,
) -> Result<()> {
    let of = |wanted: fn(HostCall) -> bool| {
        let samples = profile.host().iter().filter(|sample| wanted(sample.call));
        samples.fold((0_u64, 0_u64), |(count, sum), s| (count + s.count, sum.saturating_add(s.amount)))
    };
    let mut subtitle = match part {
        HostPart::Waits => {
            let (count, nanos) = of(|call| call == HostCall::Wait);
            format!("{} in {count} calls", human(nanos))
        }
        HostPart::Memory => {
            let (count, bytes) = of(|call| matches!(call, HostCall::Allocate(_)));
            let (frees, freed) = of(|call| matches!(call, HostCall::Free(_)));
            format!("{bytes} bytes allocated in {count} calls, {freed} freed in {frees}")
        }
    };
    losses(profile, &mut subtitle);
    let flame = Flame::host(profile, part, options.unit, &options.root);
    if flame.total() == 0 {
        let why = match part {
            HostPart::Waits => "No call waited for a GPU.",
            HostPart::Memory => "No memory was allocated or freed.",
        };
        return write_empty(options, why, &subtitle, out);
    }
    match (part, options.unit) {
        (HostPart::Memory, Unit::Nanos | Unit::Micros) => {
            let options = SvgOptions { unit: Unit::Count, ..options.clone() };
            draw(&flame, &options, &subtitle, "bytes", out)
        }
        _ => draw(&flame, options, &subtitle, "calls", out),
    }
}

fn draw(
    flame: &Flame,
    options: &SvgOptions,
    subtitle: &str,
    count: &str,
    out: &mut impl Write,
) -> Result<()> {
    let mut lines = Vec::new();
    flame.lines(flame.total() / SHARE, |stack, weight| {
        lines.push(format!("{} {weight}", name_first(stack)));
        Ok(())
    })?;
    let mut colors = PaletteMap::default();
    for (name, kind) in flame.kinds() {
        colors.insert(name_first(name), color(name, kind));
    }
    colors.insert(WHOLE, WHOLE_COLOR);
    let mut inferno = Options::default();
    inferno.title = clean::text(&options.title);
    inferno.subtitle = Some(subtitle.to_owned());
    inferno.palette_map = Some(&mut colors);
    inferno.bgcolors = Some(BackgroundColor::Grey);
    inferno.min_width = 100.0 / SHARE as f64;
    inferno.text_truncate_direction = TextTruncateDirection::Right;
    inferno.name_type = "Frame:".to_owned();
    (inferno.count_name, inferno.factor) = match options.unit {
        Unit::Nanos => ("ns".to_owned(), 1.0),
        Unit::Micros => ("us".to_owned(), 0.001),
        Unit::Count => (count.to_owned(), 1.0),
    };
    flamegraph::from_lines(&mut inferno, lines.iter().map(String::as_str), out)?;
    Ok(())
}

/// The stack as a picture shows it: `gemm [GPU_Kernel]` for `[GPU_Kernel]gemm`, since where a frame is narrow its
/// end is cut off, and the colour already says that it is a kernel.
pub(super) fn name_first(stack: &str) -> Cow<'_, str> {
    let at = stack.rfind(';').map_or(0, |at| at + 1);
    let (below, leaf) = stack.split_at(at);
    match leaf.find("_Kernel]") {
        Some(end) if leaf.starts_with("[GPU") && !leaf.ends_with("_Kernel]") => {
            let (tag, name) = leaf.split_at(end + "_Kernel]".len());
            Cow::Owned(format!("{below}{name} {tag}"))
        }
        _ => Cow::Borrowed(stack),
    }
}

/// Warm for kernels, yellow for graphs, blue for copies, purple for fills, grey for what is missing, teal for
/// ranges, and a quiet green for the CPU's side; idle time is orange where the host was late, yellow while a
/// launch was under way, blue where work waited. Names shade it a little, so that neighbours can be told apart.
pub(super) fn color(name: &str, kind: Kind) -> Color {
    let shade = |range: u64| (hash_one(name) >> 20) % range;
    let (r, g, b) = match kind {
        Kind::Kernel => (235 + shade(20), 95 + shade(80), 50),
        Kind::Copy => (80 + shade(30), 140 + shade(40), 225),
        Kind::Graph => (225 + shade(20), 185 + shade(20), 75),
        Kind::Set => (165 + shade(25), 110 + shade(30), 215),
        Kind::Idle(Cause::HostLate) => (235 + shade(15), 120 + shade(25), 40),
        Kind::Idle(Cause::LaunchLatency) => (240 + shade(12), 190 + shade(20), 60),
        Kind::Idle(Cause::Dependency) => (110 + shade(25), 150 + shade(30), 215),
        Kind::Loss | Kind::Idle(Cause::Unknown) => (165 + shade(12), 165 + shade(12), 165 + shade(12)),
        Kind::Allocation => (225 + shade(20), 110 + shade(30), 60 + shade(20)),
        Kind::Free => (120 + shade(25), 165 + shade(25), 215),
        Kind::Root => (200 + shade(12), 190 + shade(12), 175 + shade(12)),
        Kind::Range => (70 + shade(25), 165 + shade(25), 160 + shade(25)),
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
    losses(profile, &mut text);
    text
}

fn losses(profile: &Profile, text: &mut String) {
    for (loss, count) in missing::losses(profile) {
        let _ = write!(text, ", {count} {}", loss.label().replace('_', " "));
    }
}

/// One line that says how long the GPUs were idle, and which share of that has which cause.
fn idle_subtitle(profile: &Profile) -> String {
    let times = profile.times();
    let sum = |of: fn(&DeviceTime) -> u64| times.iter().fold(0_u64, |sum, time| sum.saturating_add(of(time)));
    let gpus = if times.len() == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", times.len()) };
    let idle = sum(|t| t.idle);
    let mut text = format!("{} idle of {} on {gpus}", human(idle), human(sum(|t| t.window)));
    let of = |wanted: &dyn Fn(Idle) -> bool| {
        let samples = profile.idle().iter().filter(|sample| wanted(sample.idle));
        samples.fold(0_u64, |sum, sample| sum.saturating_add(sample.nanos))
    };
    let between = |cause| of(&|idle| matches!(idle, Idle::Between(_, because) if because == cause));
    let causes = Cause::ALL.map(|cause| (between(cause), cause.label()));
    let edges = [
        (of(&|idle| matches!(idle, Idle::Opening(..))), "before the first work"),
        (of(&|idle| idle == Idle::Closing), "after the last"),
    ];
    for (nanos, what) in causes.into_iter().chain(edges).filter(|(nanos, _)| *nanos > 0) {
        let _ = write!(text, ", {:.1} % {what}", 100.0 * nanos as f64 / idle as f64);
    }
    let late = sum(|t| t.late_count);
    if late > 0 {
        let _ = write!(text, ", {late} activities came too late to count as busy");
    }
    losses(profile, &mut text);
    text
}

pub(super) fn human(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.3} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", nanos as f64 / 1e6),
        _ => format!("{:.3} s", nanos as f64 / 1e9),
    }
}

/// A picture that says that there is nothing to draw. (`inferno` would call it an error.)
fn write_empty(options: &SvgOptions, why: &str, subtitle: &str, out: &mut impl Write) -> Result<()> {
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
        text(90, 12, subtitle),
    )?;
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
