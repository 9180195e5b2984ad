//! Encodes and decodes the payload of an activity row.

use super::fields::Fields;
use super::payload::Payload;
use super::{
    Activity, CopyDetail, CopyKind, CorrelationId, Detail, DeviceId, GpuContextId, GraphId, GraphNodeId,
    KernelDetail, MemoryKind, NameId, Nanos, SetDetail, StreamId,
};

pub(super) fn put_activity(out: &mut Payload<'_>, activity: &Activity) {
    out.u32(activity.correlation.0).u32(activity.device.0).u32(activity.context.0).u32(activity.stream.0);
    out.option(activity.channel).u64(activity.start.0).u64(activity.end.0);
    out.u32(activity.graph.0).u64(activity.graph_node.0).u64(activity.source_node.0);
    out.u8(u8::from(activity.device_launched));
    match &activity.detail {
        Detail::Kernel(kernel) => {
            out.u8(0).u32(kernel.name.0);
            for &size in kernel.grid.iter().chain(&kernel.block) {
                out.u32(size);
            }
            out.u16(kernel.registers).u32(kernel.static_shared).u32(kernel.dynamic_shared);
        }
        Detail::Copy(copy) => {
            out.u8(1).u8(copy.kind.0).u16(copy.from.0).u16(copy.to.0).u64(copy.bytes);
            out.u8(u8::from(copy.is_async));
            out.option(copy.peers.map(|(from, _)| from.0)).option(copy.peers.map(|(_, to)| to.0));
            out.u32(copy.copies);
        }
        Detail::Set(set) => {
            out.u8(2).u16(set.memory.0).u32(set.value).u64(set.bytes).u8(u8::from(set.is_async));
        }
        Detail::Graph => {
            out.u8(3);
        }
    }
}

/// Decodes an activity. Returns `Ok(None)` if the payload is too short. Returns an error with the reason if the payload
/// is long enough but invalid.
pub(super) fn decode_activity(fields: &mut Fields<'_>) -> Result<Option<Activity>, &'static str> {
    let Some(mut activity) = decode_activity_head(fields) else { return Ok(None) };
    let Some(kind) = fields.u8() else { return Ok(None) };
    let detail = match kind {
        0 => decode_kernel(fields).map(Detail::Kernel),
        1 => decode_copy(fields).map(Detail::Copy),
        2 => decode_set(fields).map(Detail::Set),
        3 => Some(Detail::Graph),
        _ => return Err("is an activity of an unknown kind"),
    };
    Ok(detail.map(|detail| {
        activity.detail = detail;
        activity
    }))
}

/// Decodes all fields of an activity except `detail`, which is the last field.
fn decode_activity_head(fields: &mut Fields<'_>) -> Option<Activity> {
    Some(Activity {
        correlation: CorrelationId(fields.u32()?),
        device: DeviceId(fields.u32()?),
        context: GpuContextId(fields.u32()?),
        stream: StreamId(fields.u32()?),
        channel: fields.option()?,
        start: Nanos(fields.u64()?),
        end: Nanos(fields.u64()?),
        graph: GraphId(fields.u32()?),
        graph_node: GraphNodeId(fields.u64()?),
        source_node: GraphNodeId(fields.u64()?),
        device_launched: fields.u8()? != 0,
        created: None,
        detail: Detail::Set(SetDetail { memory: MemoryKind(0), value: 0, bytes: 0, is_async: false }),
    })
}

fn decode_kernel(fields: &mut Fields<'_>) -> Option<KernelDetail> {
    Some(KernelDetail {
        name: NameId(fields.u32()?),
        grid: [fields.u32()?, fields.u32()?, fields.u32()?],
        block: [fields.u32()?, fields.u32()?, fields.u32()?],
        registers: fields.u16()?,
        static_shared: fields.u32()?,
        dynamic_shared: fields.u32()?,
    })
}

fn decode_copy(fields: &mut Fields<'_>) -> Option<CopyDetail> {
    let kind = CopyKind(fields.u8()?);
    let (from, to) = (MemoryKind(fields.u16()?), MemoryKind(fields.u16()?));
    let (bytes, is_async) = (fields.u64()?, fields.u8()? != 0);
    let peers = fields.option()?.zip(fields.option()?).map(|(from, to)| (DeviceId(from), DeviceId(to)));
    Some(CopyDetail { kind, from, to, peers, bytes, is_async, copies: fields.u32()? })
}

fn decode_set(fields: &mut Fields<'_>) -> Option<SetDetail> {
    let (memory, value) = (MemoryKind(fields.u16()?), fields.u32()?);
    Some(SetDetail { memory, value, bytes: fields.u64()?, is_async: fields.u8()? != 0 })
}
