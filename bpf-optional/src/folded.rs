//! Writes the launches as folded stacks: a line for each stack, or, in the extended form, a line for each launch.

use std::collections::BTreeMap;
use std::io::Write;

use gpuflame_model::error::Result;

use crate::launched::{Launch, Seen};
use crate::names::{self, Names};
use crate::spaces::Place;

/// Options of the output.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// Whether to write a line for each launch (`TIME COMM PID TID CPU main;cudaLaunchKernel;[correlation 7]`).
    /// Default: false, so that each stack has a line with the number of its launches.
    pub(crate) extended: bool,
    /// Whether to include calls that CUDA made as a part of other calls. Default: false.
    pub(crate) nested: bool,
}

/// Writes all launches, and returns how many launches were written.
pub(crate) fn write(seen: &Seen, options: Options, out: &mut impl Write) -> Result<usize> {
    let mut shown: Vec<&Launch> = seen.launches.iter().filter(|launch| is_shown(launch, options)).collect();
    shown.sort_by_key(|launch| launch.time);
    let texts = texts(seen, &shown);
    if options.extended {
        for launch in &shown {
            let Launch { time, pid, tid, cpu, .. } = launch;
            let stack = &texts[&(launch.stack, launch.probe)];
            write!(out, "{time} {} {pid} {tid} {cpu} {stack}", seen.comms.get(launch.comm))?;
            match launch.correlation {
                Some(id) => writeln!(out, ";[correlation {id}]")?,
                None => writeln!(out)?,
            }
        }
    } else {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for launch in &shown {
            *counts.entry(&texts[&(launch.stack, launch.probe)]).or_default() += 1;
        }
        for (stack, count) in counts {
            writeln!(out, "{stack} {count}")?;
        }
    }
    out.flush()?;
    Ok(shown.len())
}

fn is_shown(launch: &Launch, options: Options) -> bool {
    options.nested || !launch.nested
}

/// Returns the stacks of these launches as text, by stack and probe.
fn texts(seen: &Seen, launches: &[&Launch]) -> BTreeMap<(u32, u32), String> {
    let mut names = Names::new();
    let mut texts = BTreeMap::new();
    for launch in launches {
        texts.entry((launch.stack, launch.probe)).or_insert_with(|| text(seen, launch, &mut names));
    }
    texts
}

/// Returns a stack whose last frame is the function's name as it was probed. If one address has several names, the
/// probed name is used.
fn text(seen: &Seen, launch: &Launch, names: &mut Names) -> String {
    let places = seen.stacks.get(launch.stack);
    let kernel = places.iter().take_while(|place| place.file == Place::KERNEL).count();
    let (kernel, user) = places.split_at(kernel);
    let mut frames = names.frames(&seen.files, user.get(1..).unwrap_or_default());
    frames.push(names::clean(&seen.probes[launch.probe as usize].name));
    frames.extend(names.frames(&seen.files, kernel));
    frames.join(";")
}
