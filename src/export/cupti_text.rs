//! The text that the CUPTI tracer of eunomia's tutorial prints, so that its parser and merger can be used
//! on what we recorded. Calls come first, then activities; both in the order of time.

use std::io::Write;

use super::callers::Callers;
use super::clean;
use super::format::Format;
use crate::error::Result;
use crate::events::{Call, Events, JoinedActivity};
use crate::profile::Profile;
use crate::record::{Detail, MemoryKind, Work};

/// Kernels keep the names that the tracer gave them; what the format asks for and nobody recorded is 0.
pub(super) static CUPTI_TEXT: Format = Format::of_events(
    "cupti-text",
    &[".cupti.txt"],
    |profile, events, mut out| write(profile, events, &mut out),
    "What the CUPTI tracer of eunomia's tutorial prints (.cupti.txt)",
);

fn write(profile: &Profile, events: &Events, out: &mut impl Write) -> Result<()> {
    for (loss, count) in profile.lost() {
        writeln!(out, "# lost: {count} {}", loss.label())?;
    }
    let callers = Callers::of(profile);
    for call in events.calls() {
        write_call(&callers, call, out)?;
    }
    for event in events.activities() {
        write_activity(profile, event, out)?;
    }
    Ok(())
}

fn write_call(callers: &Callers<'_>, call: &Call, out: &mut impl Write) -> Result<()> {
    let caller = callers.get(call.launched.context);
    let is_driver = caller.call.starts_with("cu") && !caller.call.starts_with("cuda");
    let (begin, duration) = (call.launched.time.0, u64::from(call.launched.duration));
    writeln!(
        out,
        "{} [ {begin}, {} ] duration {duration}, \"{}\", cbid 0, processId {}, threadId {}, correlationId {}",
        if is_driver { "DRIVER" } else { "RUNTIME" },
        begin + duration,
        clean::text(&caller.call),
        callers.process(),
        caller.thread.0,
        call.id.0,
    )?;
    Ok(())
}

fn write_activity(profile: &Profile, event: &JoinedActivity, out: &mut impl Write) -> Result<()> {
    let activity = &event.activity;
    let (start, end, id) = (activity.start.0, activity.end.0, activity.correlation.0);
    let time = format!("[ {start}, {end} ] duration {}", activity.duration().unwrap_or(0));
    match activity.detail {
        Detail::Kernel(kernel) => {
            let symbol = match activity.work() {
                Work::Kernel(name) => profile.symbol(name).map_or_else(|| "?".to_owned(), clean::text),
                Work::Copy(_) | Work::Set | Work::Graph => String::new(),
            };
            let ([gx, gy, gz], [bx, by, bz]) = (kernel.grid, kernel.block);
            writeln!(
                out,
                "CONCURRENT_KERNEL {time}, \"{symbol}\", correlationId {id}, cacheConfigRequested 0, \
                 cacheConfigExecuted 0\n\tgrid [ {gx}, {gy}, {gz} ], block [ {bx}, {by}, {bz} ], \
                 cluster [ 0, 0, 0 ], sharedMemory (static {}, dynamic {})",
                kernel.static_shared, kernel.dynamic_shared,
            )?;
            place(event, true, out)
        }
        Detail::Copy(copy) => {
            writeln!(
                out,
                "MEMCPY \"{}\" {time}, size {}, copyCount 1, srcKind {}, dstKind {}, correlationId {id}",
                copy.kind.label(),
                copy.bytes,
                memory(copy.from),
                memory(copy.to),
            )?;
            place(event, false, out)
        }
        Detail::Set(set) => {
            writeln!(out, "MEMSET {time}, value {}, size {}, correlationId {id}", set.value, set.bytes)?;
            place(event, false, out)
        }
        Detail::Graph => {
            writeln!(out, "GRAPH_TRACE {time}, correlationId {id}")?;
            place(event, true, out)
        }
    }
}

/// The line that says where.
fn place(event: &JoinedActivity, with_graph: bool, out: &mut impl Write) -> Result<()> {
    let activity = &event.activity;
    write!(
        out,
        "\tdeviceId {}, contextId {}, streamId {}",
        activity.device.0, activity.context.0, activity.stream.0
    )?;
    if with_graph {
        write!(out, ", graphId {}, graphNodeId {}", activity.graph.0, activity.graph_node.0)?;
    }
    writeln!(out, ", channelId {}, channelType COMPUTE", activity.channel.unwrap_or(0))?;
    Ok(())
}

fn memory(kind: MemoryKind) -> String {
    kind.label().to_uppercase()
}
