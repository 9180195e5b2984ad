//! The text that the CUPTI tracer of eunomia's tutorial prints, so that its parser and merger can be used
//! on what we recorded. Calls come first, then activities, then waits and events that were put on streams; each in the
//! order of time.

use std::io::Write;

use super::callers::{Caller, Callers};
use super::clean;
use super::format::Format;
use crate::error::Result;
use crate::events::{Call, Events, JoinedActivity};
use crate::profile::Profile;
use crate::record::{Detail, MemoryKind, Sync, SyncKind, Work};

/// Kernels keep the names that the tracer gave them; what the format asks for and nobody recorded is 0.
pub(super) static CUPTI_TEXT: Format = Format::of_events(
    "cupti-text",
    &[".cupti.txt"],
    |profile, events, _, mut out| write(profile, events, &mut out),
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
    for call in events.host_calls() {
        let caller = callers.get(call.context);
        write_call_of(&callers, &caller, call.time.0, call.duration, call.id.0, out)?;
    }
    for event in events.activities() {
        write_activity(profile, event, out)?;
    }
    for sync in events.syncs() {
        write_sync(sync, out)?;
    }
    for record in events.event_records() {
        writeln!(
            out,
            "CUDA_EVENT contextId {}, streamId {}, correlationId {}, eventId {}",
            record.context.0, record.stream.0, record.correlation.0, record.event.0
        )?;
    }
    Ok(())
}

fn write_sync(sync: &Sync, out: &mut impl Write) -> Result<()> {
    let kind = match sync.kind {
        SyncKind::EVENT => "EVENT_SYNCHRONIZE",
        SyncKind::STREAM_WAIT => "STREAM_WAIT_EVENT",
        SyncKind::STREAM => "STREAM_SYNCHRONIZE",
        SyncKind::CONTEXT => "CONTEXT_SYNCHRONIZE",
        _ => "UNKNOWN",
    };
    let (start, end) = (sync.start.0, sync.end.0);
    write!(
        out,
        "SYNCHRONIZATION [ {start}, {end} ] duration {}, type {kind}, contextId {}, ",
        end.saturating_sub(start),
        sync.context.0
    )?;
    // As CUPTI's samples print what there is none of.
    let number = |id: Option<u32>| id.map_or_else(|| "-1".to_owned(), |id| id.to_string());
    let (stream, event) = (number(sync.stream.map(|id| id.0)), number(sync.event.map(|id| id.0)));
    writeln!(out, "streamId {stream}, eventId {event}, correlationId {}", sync.correlation.0)?;
    Ok(())
}

fn write_call(callers: &Callers<'_>, call: &Call, out: &mut impl Write) -> Result<()> {
    let caller = callers.get(call.launched.context);
    write_call_of(callers, &caller, call.launched.time.0, call.launched.duration.into(), call.id.0, out)
}

fn write_call_of(
    callers: &Callers<'_>,
    caller: &Caller,
    begin: u64,
    duration: u64,
    id: u32,
    out: &mut impl Write,
) -> Result<()> {
    let is_driver = caller.call.starts_with("cu") && !caller.call.starts_with("cuda");
    writeln!(
        out,
        "{} [ {begin}, {} ] duration {duration}, \"{}\", cbid 0, processId {}, threadId {}, correlationId {}",
        if is_driver { "DRIVER" } else { "RUNTIME" },
        begin.saturating_add(duration),
        clean::text(&caller.call),
        callers.process(),
        caller.thread.0,
        id,
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
