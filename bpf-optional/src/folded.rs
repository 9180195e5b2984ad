//! Writes the launches as folded stacks. There is one line per distinct stack or, in the extended form, one line per
//! launch.

use std::collections::BTreeMap;
use std::io::Write;

use gpuflame_model::error::Result;

use crate::address_spaces::FileLocation;
use crate::names::{self, Symbols};
use crate::probed_launches::{Launch, ProbedLaunches};

/// Options for writing folded stacks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoldedOptions {
    /// Whether to write one line per launch (`TIME COMM PID TID CPU main;cudaLaunchKernel;[correlation 7]`). Default:
    /// false, which means one line per stack, with the number of its launches.
    pub(crate) extended: bool,
    /// Whether to include nested calls, which CUDA itself has made while it carried out another call. Default: false.
    pub(crate) nested: bool,
}

/// Writes the launches, and returns the number of launches that were written.
pub(crate) fn write(probed: &ProbedLaunches, options: FoldedOptions, out: &mut impl Write) -> Result<usize> {
    let mut shown: Vec<&Launch> = probed.launches.iter().filter(|launch| is_shown(launch, options)).collect();
    shown.sort_by_key(|launch| launch.time);
    let texts = stack_texts(probed, &shown);
    if options.extended {
        for launch in &shown {
            let Launch { time, pid, tid, cpu, .. } = launch;
            let stack = &texts[&(launch.stack, launch.probe)];
            write!(out, "{time} {} {pid} {tid} {cpu} {stack}", probed.comms.get(launch.comm))?;
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

fn is_shown(launch: &Launch, options: FoldedOptions) -> bool {
    options.nested || !launch.nested
}

/// Returns the stacks of these launches as text, keyed by the index of the stack and the index of the probe.
fn stack_texts(probed: &ProbedLaunches, launches: &[&Launch]) -> BTreeMap<(u32, u32), String> {
    let mut names = Symbols::new();
    let mut texts = BTreeMap::new();
    for launch in launches {
        texts.entry((launch.stack, launch.probe)).or_insert_with(|| stack_text(probed, launch, &mut names));
    }
    texts
}

/// Returns the stack of a launch as text. The last frame has the name by which the probe was requested, even if the
/// function's address has several names.
fn stack_text(probed: &ProbedLaunches, launch: &Launch, names: &mut Symbols) -> String {
    let places = probed.stacks.get(launch.stack);
    let kernel = places.iter().take_while(|place| place.file == FileLocation::KERNEL).count();
    let (kernel, user) = places.split_at(kernel);
    let mut frames = names.frames(&probed.files, user.get(1..).unwrap_or_default());
    frames.push(names::clean_name(&probed.probes[launch.probe as usize].name));
    frames.extend(names.frames(&probed.files, kernel));
    frames.join(";")
}
