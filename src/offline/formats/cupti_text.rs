//! Converts a recording, or another tool's trace, to the text format that the CUPTI tracer in eunomia's tutorial
//! prints.

use std::io::Write;

use gpuflame_explain::events::JoinedRows;
use gpuflame_explain::join::Launched;
use gpuflame_export::cupti_text::{CallLine, activity, lost, record, sync};
use gpuflame_export::format::Format;
use gpuflame_export::threads;
use gpuflame_model::error::Result;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::Work;

use super::callers::Callers;

pub(super) static CUPTI_TEXT: Format = Format::of_events(
    "cupti-text",
    &[".cupti.txt"],
    |profile, events, _, out| write(profile, events, out),
    "Output of the CUPTI tracer of eunomia's tutorial (.cupti.txt)",
);

fn write(profile: &Profile, events: &JoinedRows, out: &mut dyn Write) -> Result<()> {
    let callers = Callers::new(profile);
    let process = threads::process_id(profile);
    let mut text = Vec::new();
    profile.lost().for_each(|(loss, count)| lost(loss, count, &mut text));
    let launches = events.calls().iter().map(|call| {
        let Launched { time, duration, context } = call.launched;
        (call.id, time, u64::from(duration), context)
    });
    let others = events.host_calls().iter().map(|call| (call.id, call.time, call.duration, call.context));
    for (id, begun, nanos, context) in launches.chain(others) {
        let caller = callers.get(context);
        let what = CallLine { name: &caller.call, process, thread: caller.thread, begun, nanos, id };
        what.line(&mut text);
        put(&mut text, out)?;
    }
    for event in events.activities() {
        let symbol = match event.activity.work() {
            Work::Kernel(name) => profile.symbol(name),
            Work::Copy(_) | Work::Set | Work::Graph => None,
        };
        activity(&event.activity, symbol, &mut text);
        put(&mut text, out)?;
    }
    events.syncs().iter().for_each(|one| sync(one, &mut text));
    events.event_records().iter().for_each(|one| record(one, &mut text));
    put(&mut text, out)
}

fn put(text: &mut Vec<u8>, out: &mut dyn Write) -> Result<()> {
    out.write_all(text)?;
    text.clear();
    Ok(())
}
