//! Writes activity records as bytes. The offsets of the fields were measured on real records. If the struct of a CUPTI
//! version lacks a field, the field is not written, because its bytes would be past the end of that version's record.

use crate::deps::Dependency;
use crate::faults::{Fault, UNKNOWN_KIND};
use crate::unified::Move;
use crate::version::{CuptiVersion, kind};
use crate::work::{Memory, NodeRun, Work, WorkKind};

/// Offset of `start` in every activity record of GPU work; `end` is 8 bytes later.
pub const START: usize = 16;
/// Offset of `completed`, which only kernel records have.
pub const COMPLETED: usize = 32;

/// An activity record under construction. All bytes of the new record are zero, and the record has the size that this
/// CUPTI version uses for its kind.
pub struct Record<'a>(pub &'a mut [u8]);

impl Record<'_> {
    /// Writes a field unless the record is too short to contain it.
    pub fn put<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        if let Some(field) = self.0.get_mut(offset..offset + N) {
            field.copy_from_slice(&bytes);
        }
    }

    fn u8(&mut self, offset: usize, value: u8) {
        self.put(offset, [value]);
    }

    fn u32(&mut self, offset: usize, value: u32) {
        self.put(offset, value.to_ne_bytes());
    }

    fn u64(&mut self, offset: usize, value: u64) {
        self.put(offset, value.to_ne_bytes());
    }
}

/// Returns the activity kind with which GPU work is recorded, given the enabled kinds; `None` if no enabled kind
/// records such work.
pub fn record_kind(work: WorkKind, enabled: u64) -> Option<u32> {
    let candidates: &[u32] = match work {
        WorkKind::Kernel => &[kind::CONCURRENT_KERNEL, kind::KERNEL],
        WorkKind::Memcpy => &[kind::MEMCPY],
        WorkKind::Memset => &[kind::MEMSET],
        WorkKind::MemcpyP2p => &[kind::MEMCPY2],
        WorkKind::Graph => &[kind::GRAPH_TRACE],
    };
    candidates.iter().copied().find(|k| enabled & (1 << k) != 0)
}

/// Bits of the activity kinds with which GPU work can be recorded; [`record_kind`] reads these bits of the enabled
/// kinds.
pub const WORK_KINDS: u64 = 1 << kind::CONCURRENT_KERNEL
    | 1 << kind::KERNEL
    | 1 << kind::MEMCPY
    | 1 << kind::MEMSET
    | 1 << kind::MEMCPY2
    | 1 << kind::GRAPH_TRACE;

/// Writes the activity record of `work` without times, because the work is not complete yet. `out` is zeroed and has
/// the size of the record. `name` is the value of the record's name pointer.
pub fn write(record_kind: u32, work: &Work, name: u64, out: &mut [u8]) {
    let mut r = Record(out);
    r.u32(0, record_kind);
    match work.kind {
        WorkKind::Kernel => write_kernel(work, name, &mut r),
        WorkKind::Memcpy => {
            write_copy_head(work, &mut r);
            r.u32(44, work.record_correlation());
            write_channel(work, 76, COPY_CHANNEL, &mut r);
            r.u64(88, work.copies);
            write_node(work, 64, 72, 96, &mut r);
        }
        WorkKind::MemcpyP2p => {
            write_copy_head(work, &mut r);
            let peers = [work.peer_source, work.peer_target];
            for (offset, peer) in [44, 52].into_iter().zip(peers) {
                r.u32(offset, peer.device);
                r.u32(offset + 4, peer.context);
            }
            r.u32(60, work.record_correlation());
            write_channel(work, 84, COPY_CHANNEL, &mut r);
            r.u64(72, work.graph.node);
            r.u32(80, work.graph.graph);
        }
        WorkKind::Memset => {
            r.u32(4, work.value);
            r.u64(8, work.bytes);
            write_place(work, 32, &mut r);
            r.u32(44, work.record_correlation());
            r.put(48, u16::from(work.asynchronous).to_ne_bytes());
            r.put(50, (work.target as u16).to_ne_bytes());
            write_node(work, 64, 72, 88, &mut r);
            write_channel(work, 76, COMPUTE_CHANNEL, &mut r);
        }
        WorkKind::Graph => {
            r.u32(4, work.record_correlation());
            r.u32(24, work.place.device);
            r.u32(28, work.graph.graph);
            r.u32(32, work.place.context);
            r.u32(36, work.stream);
            r.u32(48, work.place.device); // endDeviceId and endContextId, which exist since CUPTI 12.3.
            r.u32(52, work.place.context);
        }
    }
}

fn write_kernel(work: &Work, name: u64, r: &mut Record<'_>) {
    const REGISTERS: u16 = 32;
    r.put(6, REGISTERS.to_ne_bytes());
    write_place(work, 40, r);
    for (i, extent) in work.grid.iter().chain(&work.block).enumerate() {
        r.u32(52 + 4 * i, *extent);
    }
    r.u32(80, work.shared_bytes);
    r.u32(92, work.record_correlation());
    r.u64(96, u64::from(work.correlation)); // gridId
    r.u64(104, name);
    write_channel(work, 168, COMPUTE_CHANNEL, r);
    write_node(work, 144, 156, 232, r);
    // isDeviceLaunched, which exists since CUPTI 13.0.
    r.u8(208, u8::from(work.fault == Some(Fault::DeviceGraph) && work.enter == 0));
}

fn write_copy_head(work: &Work, r: &mut Record<'_>) {
    const ASYNC: u8 = 1;
    r.u8(4, work.copy as u8);
    r.u8(5, work.source as u8);
    r.u8(6, work.target as u8);
    r.u8(7, if work.asynchronous { ASYNC } else { 0 });
    r.u64(8, work.bytes);
    write_place(work, 32, r);
}

/// Writes the id of the graph node at offset `node`, and the id of its graph at offset `graph`. At offset `source`
/// (since CUPTI 13.4), writes the ids of the graph and the node from which the node was created or updated.
fn write_node(work: &Work, node: usize, graph: usize, source: usize, r: &mut Record<'_>) {
    r.u64(node, work.graph.node);
    r.u32(graph, work.graph.graph);
    r.u32(source, work.graph.source_graph);
    r.u64(source + 8, work.graph.source_node);
}

/// CUpti_ChannelType
const COMPUTE_CHANNEL: u32 = 1;
const COPY_CHANNEL: u32 = 2;

/// Writes the fields that describe the channel. The channel's id is the stream's id.
fn write_channel(work: &Work, offset: usize, kind: u32, r: &mut Record<'_>) {
    r.u32(offset, work.stream);
    r.u32(offset + 4, kind);
}

/// Returns the offset of `start` in an activity record; `end` is 8 bytes later.
pub fn times_at(record_kind: u32) -> usize {
    if record_kind == kind::GRAPH_TRACE { 8 } else { START }
}

fn write_place(work: &Work, offset: usize, r: &mut Record<'_>) {
    r.u32(offset, work.place.device);
    r.u32(offset + 4, work.place.context);
    r.u32(offset + 8, work.stream);
}

const YEAR: u64 = 365 * 86_400 * 1_000_000_000;

/// Returns the start and end to write into the activity record. If a fault requires it, the start and end are wrong on
/// purpose.
pub fn recorded_times(work: &Work) -> (u64, u64) {
    match work.fault {
        Some(Fault::ZeroTimestamps) => (0, 0),
        Some(Fault::Reversed) => (work.end, work.start),
        Some(Fault::EarlyStart) => {
            let start = work.enter - 1_000_000;
            (start, start + (work.end - work.start))
        }
        Some(Fault::NextYear) => (work.start + YEAR, work.end + YEAR),
        Some(Fault::Endless) => (work.start, work.end + 100 * YEAR),
        Some(Fault::Epoch) => (1, 1 + (work.end - work.start)),
        _ => (work.start, work.end),
    }
}

/// Returns the value of the activity record's name pointer. If a fault requires it, the name is wrong on purpose.
pub fn recorded_name(work: &Work) -> u64 {
    static BAD: &[u8] = b"_Z\xff\xfe\x80kernel\0";
    static LONG: [u8; 4097] = {
        let mut long = [b'k'; 4097];
        long[4096] = 0;
        long
    };
    match work.fault {
        Some(Fault::NameNull) => 0,
        Some(Fault::NameBadUtf8) => BAD.as_ptr() as u64,
        Some(Fault::Name4k) => LONG.as_ptr() as u64,
        _ => work.name().map_or(0, |name| name.as_ptr() as u64),
    }
}

/// Returns the kind and the content of the additional record that a fault adds after the work's own record.
pub fn extra_record(record_kind: u32, work: &Work) -> Option<(u32, Work)> {
    match work.fault? {
        Fault::Duplicate => Some((record_kind, *work)),
        Fault::UnmatchedCorrelation => {
            let never_handed_out = work.correlation ^ 0x8000_0000;
            Some((record_kind, Work { correlation: never_handed_out, nested_correlation: 0, ..*work }))
        }
        Fault::UnknownKind => Some((UNKNOWN_KIND, *work)),
        Fault::DeviceGraph if work.graph.node != 0 => {
            let never_handed_out = work.correlation.wrapping_add(1 << 30);
            let no_call = Work { correlation: never_handed_out, nested_correlation: 0, enter: 0, ..*work };
            Some((record_kind, no_call))
        }
        Fault::UnknownNode if work.graph.node != 0 => {
            let graph = NodeRun { node: work.graph.node + (1 << 40), source_node: 0, ..work.graph };
            Some((record_kind, Work { graph, ..*work }))
        }
        _ => None,
    }
}

/// Contents of an activity record of kind 4 or 5, for an API call. The start and end of the call are known when the
/// record is made.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // the fields have the names of the record's fields
pub struct ApiCall {
    pub domain: u32,
    pub cbid: u32,
    pub start: u64,
    pub end: u64,
    pub tid: u32,
    pub correlation: u32,
    pub result: u32,
}

/// Writes the 40-byte activity record of an API call.
pub fn write_api(call: &ApiCall, thread_id: u32, out: &mut [u8]) {
    let mut r = Record(out);
    r.u32(0, if call.domain == crate::callback_ids::DRIVER { kind::DRIVER } else { kind::RUNTIME });
    r.u32(4, call.cbid);
    r.u64(8, call.start);
    r.u64(16, call.end);
    r.u32(24, std::process::id());
    r.u32(28, thread_id);
    r.u32(32, call.correlation);
    r.u32(36, call.result);
}

/// Writes the 24-byte activity record that associates an external id, which a client pushed, with an API call.
pub fn write_external(external_kind: u32, id: u64, correlation: u32, out: &mut [u8]) {
    let mut r = Record(out);
    r.u32(0, kind::EXTERNAL_CORRELATION);
    r.u32(4, external_kind);
    r.u64(8, id);
    r.u32(16, correlation);
}

/// Writes the activity record of a recorded CUDA event or of a wait.
pub fn write_dependency(dependency: &Dependency, out: &mut [u8]) {
    let mut r = Record(out);
    r.u32(0, dependency.kind);
    if dependency.kind == kind::CUDA_EVENT {
        r.u32(4, dependency.correlation);
        r.u32(8, dependency.context);
        r.u32(12, dependency.stream);
        r.u32(16, dependency.event);
        r.u64(48, dependency.sync_id); // since 12.8
        return;
    }
    r.u32(4, dependency.wait);
    r.u64(8, dependency.start);
    r.u64(16, dependency.end);
    r.u32(24, dependency.correlation);
    r.u32(28, dependency.context);
    r.u32(32, dependency.stream);
    r.u32(36, dependency.event);
    r.u64(40, dependency.sync_id); // since 12.8
    r.u32(48, dependency.result);
}

/// Writes the activity record of a migration of unified memory.
pub fn write_move(one: &Move, out: &mut [u8]) {
    let mut r = Record(out);
    r.u32(0, kind::UNIFIED_MEMORY_COUNTER);
    r.u32(4, one.direction as u32);
    r.u64(8, one.bytes);
    r.u64(16, one.start);
    r.u64(24, one.end);
    r.u64(32, one.address);
    r.u32(40, one.source);
    r.u32(44, one.target);
    r.u32(48, one.stream);
    r.u32(52, std::process::id());
    const PREFETCH: u32 = 2;
    r.u32(56, PREFETCH);
}

/// Returns the size of the activity record that starts with `bytes`, for `cuptiActivityGetNextRecord`. The size depends
/// only on the record's kind.
pub fn size_at(version: CuptiVersion, bytes: [u8; 4]) -> Option<usize> {
    version.record_size(u32::from_ne_bytes(bytes))
}

/// Returns the memory kinds of a copy's source and target.
pub fn ends(copy: crate::work::Copy, host: Memory) -> (Memory, Memory) {
    use crate::work::Copy;
    match copy {
        Copy::HtoD => (host, Memory::Device),
        Copy::DtoH => (Memory::Device, host),
        Copy::HtoH => (host, host),
        Copy::HtoA => (host, Memory::Array),
        Copy::AtoH => (Memory::Array, host),
        Copy::AtoA => (Memory::Array, Memory::Array),
        Copy::AtoD => (Memory::Array, Memory::Device),
        Copy::DtoA => (Memory::Device, Memory::Array),
        Copy::DtoD | Copy::PtoP | Copy::None => (Memory::Device, Memory::Device),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{Copy, NodeRun, Place};

    fn work(kind: WorkKind) -> Work {
        Work {
            kind,
            copy: Copy::HtoD,
            source: Memory::Pinned,
            target: Memory::Device,
            asynchronous: true,
            fault: None,
            correlation: 0x0102_0304,
            nested_correlation: 0,
            tid: 9,
            place: Place { device: 1, context: 2 },
            stream: 7,
            bytes: 4096,
            copies: 1,
            start: 100,
            end: 250,
            enter: 5_000_000,
            site: None,
            api: std::ptr::null(),
            kernel: None,
            grid: [1, 2, 3],
            block: [4, 5, 6],
            shared_bytes: 64,
            value: 0xab,
            peer_source: Place { device: 0, context: 1 },
            peer_target: Place { device: 1, context: 2 },
            graph: NodeRun { graph: 3, node: 44, source_graph: 2, source_node: 40, created: None },
            tally: 0,
        }
    }

    fn u32_at(bytes: &[u8], offset: usize) -> u32 {
        u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
    }

    #[test]
    fn the_correlation_id_is_at_the_documented_offset_of_each_kind() {
        for (kind, record_kind, offset) in [
            (WorkKind::Kernel, 10, 92),
            (WorkKind::Memcpy, 1, 44),
            (WorkKind::MemcpyP2p, 22, 60),
            (WorkKind::Memset, 2, 44),
        ] {
            let mut bytes = vec![0; CuptiVersion::V13_0.record_size(record_kind).unwrap()];
            write(record_kind, &work(kind), 0, &mut bytes);
            assert_eq!(u32_at(&bytes, 0), record_kind);
            assert_eq!(u32_at(&bytes, offset), 0x0102_0304, "{kind:?}");
        }
    }

    #[test]
    fn a_field_beyond_the_end_of_the_record_is_omitted() {
        let mut short = vec![0; CuptiVersion::V11_8.record_size(1).unwrap()];
        write(1, &work(WorkKind::Memcpy), 0, &mut short);
        let mut long = vec![0; CuptiVersion::V12_9.record_size(1).unwrap()];
        write(1, &work(WorkKind::Memcpy), 0, &mut long);
        assert_eq!((short.len(), long.len()), (88, 96));
        assert_eq!(u32_at(&long, 88), 1, "copyCount came with 12.8");
    }

    #[test]
    fn the_graph_node_and_its_source_are_at_each_kinds_offsets() {
        let u64_at = |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        for (kind, record_kind, node, graph, source) in [
            (WorkKind::Kernel, 10, 144, 156, 232),
            (WorkKind::Memcpy, 1, 64, 72, 96),
            (WorkKind::Memset, 2, 64, 72, 88),
            (WorkKind::MemcpyP2p, 22, 72, 80, usize::MAX),
        ] {
            let mut bytes = vec![0; CuptiVersion::V13_4.record_size(record_kind).unwrap()];
            write(record_kind, &work(kind), 0, &mut bytes);
            assert_eq!((u64_at(&bytes, node), u32_at(&bytes, graph)), (44, 3), "{kind:?}");
            if source < usize::MAX {
                assert_eq!((u32_at(&bytes, source), u64_at(&bytes, source + 8)), (2, 40), "{kind:?}");
            }
        }
    }

    #[test]
    fn kernel_records_contain_grid_and_block() {
        let mut bytes = vec![0; 216];
        write(10, &work(WorkKind::Kernel), 0, &mut bytes);
        let extents: Vec<u32> = (0..6).map(|i| u32_at(&bytes, 52 + 4 * i)).collect();
        assert_eq!(extents, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn faults_change_only_the_record() {
        let mut w = work(WorkKind::Kernel);
        for (fault, times) in [
            (Fault::ZeroTimestamps, (0, 0)),
            (Fault::Reversed, (250, 100)),
            (Fault::EarlyStart, (4_000_000, 4_000_150)),
            (Fault::NextYear, (100 + YEAR, 250 + YEAR)),
            (Fault::Endless, (100, 250 + 100 * YEAR)),
            (Fault::Epoch, (1, 151)),
        ] {
            w.fault = Some(fault);
            assert_eq!(recorded_times(&w), times);
        }
        w.fault = Some(Fault::NameNull);
        assert_eq!(recorded_name(&w), 0);
    }

    #[test]
    fn concurrent_kernel_records_take_precedence_over_serialised_ones() {
        assert_eq!(record_kind(WorkKind::Kernel, 1 << 3 | 1 << 10), Some(10));
        assert_eq!(record_kind(WorkKind::Kernel, 1 << 3), Some(3));
        assert_eq!(record_kind(WorkKind::Memset, 1 << 3), None);
    }
}
