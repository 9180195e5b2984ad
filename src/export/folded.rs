//! Folded stacks: a line for each stack, `main;decode;cudaLaunchKernel;[GPU_Kernel]gemm 3099632`.
//!
//! What every flame graph tool reads. Lines stand in the order of their frames' names. Comments begin
//! with `# ` and never end in a number, since some readers look at nothing else.

use std::io::Write;

use super::flame::{Flame, HostPart};
use super::{GraphStacks, Root, Unit, missing};
use crate::error::Result;
use crate::profile::{DeviceTime, Profile};

/// How to write folded stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoldedOptions {
    /// The unit of the weights. Default: nanoseconds.
    pub unit: Unit,
    /// Which stacks of a graph node to show. Default: both.
    pub graph: GraphStacks,
    /// The frames below all stacks. Default: none.
    pub root: Vec<Root>,
}

/// Writes `profile` as folded stacks. In nanoseconds the weights add up to the durations of all GPU
/// activities, exactly; stacks of no weight (launches without an activity, activities without times) have
/// a line as well. An empty profile gives an empty file.
///
/// # Errors
/// What `out` reports.
pub fn write_folded(profile: &Profile, options: &FoldedOptions, out: &mut impl Write) -> Result<()> {
    for (loss, count) in missing::losses(profile) {
        writeln!(out, "# lost: {count} {}", loss.label())?;
    }
    write_lines(&Flame::of(profile, options.unit, options.graph, &options.root), options.unit, out)
}

/// Writes the idle time of all devices as folded stacks, a comment for each device first. In nanoseconds
/// the weights add up to the idle time of all of them, exactly; as counts they are gaps.
///
/// # Errors
/// What `out` reports.
pub fn write_idle_folded(profile: &Profile, options: &FoldedOptions, out: &mut impl Write) -> Result<()> {
    for time in profile.times() {
        let (gpu, late) = (time.device.0, time.late);
        let DeviceTime { window, busy, idle, .. } = time;
        writeln!(out, "# GPU {gpu}: window {window} ns = busy {busy} ns + idle {idle} ns; late {late} ns")?;
    }
    for (loss, count) in missing::losses(profile) {
        writeln!(out, "# lost: {count} {}", loss.label())?;
    }
    write_lines(&Flame::idle(profile, options.unit, &options.root), options.unit, out)
}

/// Writes the time in which the host waited for a GPU as folded stacks.
///
/// # Errors
/// What `out` reports.
pub fn write_wait_folded(profile: &Profile, options: &FoldedOptions, out: &mut impl Write) -> Result<()> {
    for (loss, count) in missing::losses(profile) {
        writeln!(out, "# lost: {count} {}", loss.label())?;
    }
    write_lines(&Flame::host(profile, HostPart::Waits, options.unit, &options.root), options.unit, out)
}

/// Writes what was allocated and freed as folded stacks, in bytes, or in calls if counts are the unit.
///
/// # Errors
/// What `out` reports.
pub fn write_memory_folded(profile: &Profile, options: &FoldedOptions, out: &mut impl Write) -> Result<()> {
    for (loss, count) in missing::losses(profile) {
        writeln!(out, "# lost: {count} {}", loss.label())?;
    }
    write_lines(&Flame::host(profile, HostPart::Memory, options.unit, &options.root), Unit::Count, out)
}

fn write_lines(flame: &Flame, unit: Unit, out: &mut impl Write) -> Result<()> {
    flame.lines(0, |stack, weight| {
        let weight = match unit {
            Unit::Micros => weight / 1000 + u64::from(weight % 1000 >= 500),
            Unit::Nanos | Unit::Count => weight,
        };
        writeln!(out, "{stack} {weight}")
    })?;
    Ok(())
}
