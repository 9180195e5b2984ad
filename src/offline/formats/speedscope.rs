//! Writes speedscope's JSON: the stacks of all GPUs together, the stacks of each GPU if there are several, and the
//! counts of dropped data, if any.

use std::io::Write;

use super::sorted_stacks::{Granularity, SortedStacks, StackRow};
use gpuflame_export::format::{Drawing, Format};
use gpuflame_export::json::comma;
use gpuflame_model::error::Result;
use gpuflame_model::profile::{Measure, Profile, View, json_string, saturating_sum};
use gpuflame_model::record::DeviceId;

/// Format of <https://www.speedscope.app>. Stacks of weight 0 are omitted, because they would have no width.
pub(super) static SPEEDSCOPE: Format =
    Format::of_views("speedscope", &[".speedscope.json"], write, "speedscope's JSON (.speedscope.json)");

fn write(drawing: &Drawing<'_>, out: &mut dyn Write) -> Result<()> {
    let &Drawing { profile, view, options, .. } = drawing;
    // The viewer draws each frame of the frame table as a separate box. To draw a function as one box, all lines of the
    // function share one frame.
    let SortedStacks { frames, samples } = SortedStacks::new(profile, view, options, Granularity::Functions);
    write!(
        out,
        "{{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"exporter\":\"gpuflame\",\
         \"name\":{},\"activeProfileIndex\":0,\"shared\":{{\"frames\":[",
        json_string(options.name.as_deref().unwrap_or("gpuflame"))
    )?;
    for (at, frame) in frames.iter().enumerate() {
        write!(out, "{}{{\"name\":{}", comma(at), json_string(&frame.name))?;
        if !frame.file.is_empty() {
            write!(out, ",\"file\":{}", json_string(&frame.file))?;
        }
        if frame.line > 0 {
            write!(out, ",\"line\":{}", frame.line)?;
        }
        write!(out, "}}")?;
    }
    let lost_at = frames.len();
    for (at, (loss, count)) in profile.lost().enumerate() {
        let name = format!("[lost: {count} {}]", loss.label());
        write!(out, "{}{{\"name\":{}}}", comma(lost_at + at), json_string(&name))?;
    }
    write!(out, "]}},\"profiles\":[")?;
    let value = options.unit.value(view);
    let weights = WeightedView { value, unit: view.values[value].unit };
    weights.write_profile(heading(view), &samples, |_| true, out)?;
    if profile.devices().len() > 1 && view.has_devices {
        for device in profile.devices() {
            write!(out, ",")?;
            let is_it = |on: Option<DeviceId>| on == Some(device.device);
            weights.write_profile(&format!("GPU {}", device.device.0), &samples, is_it, out)?;
        }
    }
    write_losses(profile, lost_at, out)?;
    writeln!(out, "]}}")?;
    Ok(())
}

/// Writes the counts of dropped data as a separate profile. Each kind of dropped data is a frame whose width is the
/// count.
fn write_losses(profile: &Profile, first_frame: usize, out: &mut dyn Write) -> Result<()> {
    let counts: Vec<u64> = profile.lost().map(|(_, count)| count).collect();
    if counts.is_empty() {
        return Ok(());
    }
    let list = |all: Vec<String>| all.join(",");
    write!(
        out,
        ",{{\"type\":\"sampled\",\"name\":\"lost\",\"unit\":\"none\",\"startValue\":0,\"endValue\":{},\
         \"samples\":[{}],\"weights\":[{}]}}",
        counts.iter().fold(0_u64, |sum, count| sum.saturating_add(*count)),
        list((0..counts.len()).map(|at| format!("[{}]", first_frame + at)).collect()),
        list(counts.iter().map(u64::to_string).collect()),
    )?;
    Ok(())
}

fn heading(view: &View) -> &'static str {
    if view == &gpuflame_model::profile::views::GPU { "GPU time by stack" } else { view.title }
}

/// Index of the value that serves as the weight of a sample, and the unit of this value.
struct WeightedView {
    value: usize,
    unit: Measure,
}

impl WeightedView {
    fn write_profile(
        &self,
        name: &str,
        samples: &[StackRow],
        is_wanted: impl Fn(Option<DeviceId>) -> bool,
        out: &mut dyn Write,
    ) -> Result<()> {
        let weights = samples.iter().map(|sample| (sample, sample.values[self.value]));
        let weights: Vec<_> =
            weights.filter(|(sample, weight)| *weight > 0 && is_wanted(sample.device)).collect();
        let total = saturating_sum(weights.iter().map(|(_, weight)| *weight));
        write!(
            out,
            "{{\"type\":\"sampled\",\"name\":{},\"unit\":\"{}\",\"startValue\":0,\"endValue\":{total},\
             \"samples\":[",
            json_string(name),
            match self.unit {
                Measure::Count => "none",
                unit => unit.word(),
            },
        )?;
        for (at, (sample, _)) in weights.iter().enumerate() {
            let frames: Vec<_> = sample.frames.iter().map(u32::to_string).collect();
            write!(out, "{}[{}]", comma(at), frames.join(","))?;
        }
        write!(out, "],\"weights\":[")?;
        for (at, (_, weight)) in weights.iter().enumerate() {
            write!(out, "{}{weight}", comma(at))?;
        }
        write!(out, "]}}")?;
        Ok(())
    }
}
