//! speedscope's own JSON: the stacks of all GPUs together, and those of each where there are several.

use std::io::Write;

use super::stacks::{Stack, Stacks};
use crate::error::Result;
use crate::profile::Profile;
use crate::record::DeviceId;

/// Writes `profile` for <https://www.speedscope.app>. Weights are nanoseconds of GPU time; stacks of none
/// are left out, since they would have no width.
///
/// # Errors
/// What `out` reports.
pub fn write_speedscope(profile: &Profile, title: &str, out: &mut impl Write) -> Result<()> {
    let Stacks { names, samples } = Stacks::of(profile);
    write!(
        out,
        "{{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"exporter\":\"gpuflame\",\
         \"name\":{},\"activeProfileIndex\":0,\"shared\":{{\"frames\":[",
        json(title)
    )?;
    for (at, name) in names.iter().enumerate() {
        write!(out, "{}{{\"name\":{}}}", comma(at), json(name))?;
    }
    write!(out, "]}},\"profiles\":[")?;
    one_profile("GPU time by stack", None, &samples, out)?;
    if profile.devices().len() > 1 {
        for device in profile.devices() {
            write!(out, ",")?;
            one_profile(&format!("GPU {}", device.device.0), Some(device.device), &samples, out)?;
        }
    }
    writeln!(out, "]}}")?;
    Ok(())
}

fn one_profile(name: &str, device: Option<DeviceId>, samples: &[Stack], out: &mut impl Write) -> Result<()> {
    let wanted = |sample: &&Stack| sample.weight.nanos > 0 && (device.is_none() || sample.device == device);
    let total: u64 = samples.iter().filter(wanted).map(|sample| sample.weight.nanos).sum();
    write!(
        out,
        "{{\"type\":\"sampled\",\"name\":{},\"unit\":\"nanoseconds\",\"startValue\":0,\"endValue\":{total},\
         \"samples\":[",
        json(name)
    )?;
    for (at, sample) in samples.iter().filter(wanted).enumerate() {
        let frames: Vec<_> = sample.frames.iter().map(u32::to_string).collect();
        write!(out, "{}[{}]", comma(at), frames.join(","))?;
    }
    write!(out, "],\"weights\":[")?;
    for (at, sample) in samples.iter().filter(wanted).enumerate() {
        write!(out, "{}{}", comma(at), sample.weight.nanos)?;
    }
    write!(out, "]}}")?;
    Ok(())
}

pub(super) fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}

/// `text` as a JSON string.
pub(super) fn json(text: &str) -> String {
    serde_json::to_string(text).expect("a string can be written as JSON")
}
