//! Writes folded stacks: a line for each stack, such as `main;decode;cudaLaunchKernel;[GPU_Kernel]gemm 3099632`.
//!
//! All flame graph tools can read folded stacks. Lines are sorted by the full names of their frames. Comments begin
//! with `# ` and never end with a number, because some readers take a number at the end of any line for a weight.
//!
//! Template kernels have short names. If two kernels of the file would have the same short name, even on different
//! GPUs, both have their full names. Therefore the total time of each kernel is the same in files with short names and
//! in files with full names.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;

use super::flame::Detail;
use super::format::{Drawing, Format};
use super::frame::Label;
use super::short_names::short_kernels;
use gpuflame_model::error::Result;
use gpuflame_model::profile::views::IDLE;
use gpuflame_model::record::Loss;

/// Folded stacks. With weights in nanoseconds, the sum of the weights is exactly the total of the view. With weights in
/// microseconds, each line is rounded separately. Stacks with a weight of zero (launches without an activity,
/// activities without times) also have a line. If the view is empty, the file is empty.
pub static FOLDED: Format =
    Format::of_views("folded", &[".folded"], write, "A line for each stack and its GPU time (.folded)");

fn write(drawing: &Drawing<'_>, out: &mut dyn Write) -> Result<()> {
    let &Drawing { profile, view, options, .. } = drawing;
    for note in (view.notes)(profile) {
        writeln!(out, "# {note}")?;
    }
    lost(profile.lost(), out)?;
    let is_micros = options.unit.is_micros_of(view);
    let mut digits = itoa::Buffer::new();
    let flame = drawing.flame();
    let short = match options.whole_kernels {
        true => HashMap::new(),
        false => short_kernels(flame.labels().filter_map(Label::kernel).map(|(_, name)| name)),
    };
    let detail = match options.max_idle_frames {
        Some(max_frames) if *view == IDLE => flame.detail(0, max_frames),
        _ => Detail::ALL,
    };
    flame.lines(detail, &|label| shown_name(label, &short), &mut |stack, weight| {
        let weight = digits.format(shown(weight, is_micros));
        [stack, " ", weight, "\n"].iter().try_for_each(|part| out.write_all(part.as_bytes()))
    })?;
    Ok(())
}

fn shown_name<'a>(label: Label<'a>, short: &HashMap<&str, String>) -> Cow<'a, str> {
    let short = label.kernel().and_then(|(tag, name)| Some(format!("{tag}{}", short.get(name)?).into()));
    short.unwrap_or_else(|| label.text())
}

/// Writes a comment line for each kind of loss that occurred.
pub fn lost(losses: impl Iterator<Item = (Loss, u64)>, out: &mut dyn Write) -> Result<()> {
    for (loss, count) in losses {
        writeln!(out, "# lost: {count} {}", loss.label())?;
    }
    Ok(())
}

/// Returns the weight to write: `weight` in ns unchanged, or, if `is_micros` is true, converted to microseconds and
/// rounded half up.
pub fn shown(weight: u64, is_micros: bool) -> u64 {
    if is_micros { weight / 1000 + u64::from(weight % 1000 >= 500) } else { weight }
}
