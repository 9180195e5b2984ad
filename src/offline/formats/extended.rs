//! Writes extended folded stacks: one line per call that started GPU work, with the call's time, program, process,
//! thread and processor, in the same format as the profiler in eunomia's tutorial.
//!
//! ```text
//! 1761680628903821454 runcu 3861826 3861826 -1 main;forward;cudaLaunchKernel;[correlation 12]
//! ```
//!
//! The last frame, `[correlation N]`, identifies the launch exactly. An option omits the frame `[correlation N]`,
//! because the tutorial's merge tool treats this frame as a function. Comments begin with `# `. Blanks in the program's
//! name are replaced by `_`, because readers split lines at blanks. gpuflame does not record the processor, so this
//! field is always -1.

use std::io::Write;

use super::callers::Callers;
use gpuflame_explain::events::JoinedRows;
use gpuflame_export::format::Format;
use gpuflame_export::options::Options;
use gpuflame_export::threads;
use gpuflame_model::error::Result;
use gpuflame_model::profile::Profile;

/// Extended folded stacks, with one line per call that has a stack.
pub(super) static EXTENDED: Format = Format::of_events(
    "extended-folded",
    &[".txt"],
    |profile, events, options, mut out| write(profile, events, options, &mut out),
    "A line for each launch with its time, process and thread (.txt)",
);

fn write(profile: &Profile, events: &JoinedRows, options: &Options, out: &mut impl Write) -> Result<()> {
    for (loss, count) in profile.lost() {
        writeln!(out, "# lost: {count} {}", loss.label())?;
    }
    let callers = Callers::new(profile);
    let process = threads::process_id(profile);
    for call in events.calls().iter().filter(|call| call.has_stack()) {
        let caller = callers.get(call.launched.context);
        let comm = match caller.thread_name.as_str() {
            "" => "unknown".to_owned(),
            name => name.replace(char::is_whitespace, "_"),
        };
        write!(out, "{} {comm} {process} {} -1 {}", call.launched.time, caller.thread.0, caller.stack())?;
        match events.source_id(call.id).filter(|_| !options.without_correlation) {
            None => writeln!(out)?,
            Some(id) => writeln!(out, ";[correlation {id}]")?,
        }
    }
    Ok(())
}
