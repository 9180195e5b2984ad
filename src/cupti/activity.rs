//! Reads buffers of activity records, and converts CUPTI's records to rows.
//!
//! Only the loaded CUPTI library knows the length of its own records. Therefore the library's function
//! `cuptiActivityGetNextRecord` steps from record to record. We read the first fields of each record, which are the
//! same in all CUPTI versions. We read a later field only if the record is long enough to contain that field.
//! Timestamps are passed on without a check, because the join of activities with launches checks them.

use super::delivery_counts;
use super::kinds;
use super::names::KernelNames;
use cupti_sys::record::offset::{self, channel, source_graph};
use cupti_sys::record::{
    CudaEvent, GraphTrace, Kernel, Memcpy, MemcpyPeer, Memset, Record, Synchronization, UnifiedMemoryCounter,
};
use cupti_sys::{ActivityKind, ChannelType, Status};
use gpuflame_model::record::{
    Activity, CopyDetail, CopyKind, CorrelationId, Detail, DeviceId, EventId, EventRecord, GpuContextId,
    GraphId, GraphNodeId, KernelDetail, NameId, Nanos, Row, SetDetail, StreamId, SyncId, SyncRecord, Unified,
};

/// Result of reading a buffer: the number of readable and of unreadable activity records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadTally {
    /// Number of activity records that became activity rows.
    pub activities: u64,
    /// Number of activity records that could not be read, because their layout is unknown or we have not enabled their
    /// kind. If CUPTI cannot step through the rest of a buffer, the rest is counted as one unreadable record.
    pub unreadable: u64,
}

/// Bit 0 in the flags of an activity record about a copy or fill. The bit is set if the API call that requested the
/// copy or fill was asynchronous.
const FLAG_ASYNC: u32 = 1;

/// Passes each activity record in `bytes` to `sink` as a row. If the name of an activity's kernel is new, a row with
/// this name is passed first. `step` is the library's function [`NextRecord`].
///
/// # Safety
/// The library that `step` calls must have filled `bytes`, and the names to which these records point must still be
/// readable.
pub(super) unsafe fn read_records(
    bytes: &[u8],
    step: &NextRecord<'_>,
    names: &mut KernelNames,
    sink: &mut impl FnMut(Row<'_>),
) -> ReadTally {
    let mut tally = ReadTally::default();
    let walk = RecordIterator::new(bytes, step);
    for record in walk {
        let Some(record) = record else {
            tally.unreadable += 1;
            continue;
        };
        // SAFETY: the caller guarantees that the names in the record are readable.
        if let Some(activity) = unsafe { activity(record, names, sink) } {
            tally.activities += 1;
            sink(Row::Activity(activity));
        } else if let Some(row) = event_row(record) {
            sink(row);
        } else {
            tally.unreadable += 1;
            if record.kind().is_some_and(is_foreign_kind) {
                delivery_counts::FOREIGN_RECORDS.add_one();
            }
        }
    }
    tally
}

/// Whether `kind` is an activity kind of CUPTI that we never enable. (The highest activity kind in CUPTI 13.5 is 57.)
fn is_foreign_kind(kind: ActivityKind) -> bool {
    const OURS: [ActivityKind; 9] = [
        ActivityKind::CONCURRENT_KERNEL,
        ActivityKind::KERNEL,
        ActivityKind::MEMCPY,
        ActivityKind::MEMCPY2,
        ActivityKind::MEMSET,
        ActivityKind::GRAPH_TRACE,
        ActivityKind::CUDA_EVENT,
        ActivityKind::SYNCHRONIZATION,
        ActivityKind::UNIFIED_MEMORY_COUNTER,
    ];
    (1..64).contains(&kind.0) && !OURS.contains(&kind)
}

/// Returns the number of activity records in `bytes`, counting all kinds.
pub(super) fn count_records(bytes: &[u8], step: &NextRecord<'_>) -> u64 {
    RecordIterator::new(bytes, step).count() as u64
}

/// The function `cuptiActivityGetNextRecord` of the loaded library, in either API version. The arguments are a buffer,
/// the number of valid bytes in the buffer, and a pointer to the previous record, which is null at first. The function
/// replaces this pointer with a pointer to the next record.
pub(super) type NextRecord<'a> = dyn Fn(*mut u8, usize, &mut *mut u8) -> Status + 'a;

/// Iterator over the activity records in a buffer. Each item contains all bytes from the start of a record to the start
/// of the next record. If the library cannot step through the rest of the buffer, the last item of the iterator is
/// `None` and stands for the rest.
struct RecordIterator<'a> {
    bytes: &'a [u8],
    base: *mut u8,
    step: &'a NextRecord<'a>,
    current: WalkState,
}

/// Current position of the iterator over the activity records in a buffer.
#[derive(Clone, Copy)]
enum WalkState {
    Record(*mut u8),
    End,
    Broken,
}

impl<'a> RecordIterator<'a> {
    fn new(bytes: &'a [u8], step: &'a NextRecord<'a>) -> Self {
        // CUPTI declares a mutable pointer for its function, but only reads through this pointer.
        let base = bytes.as_ptr().cast_mut();
        let mut walk = Self { bytes, base, step, current: WalkState::End };
        if !walk.bytes.is_empty() {
            walk.current = walk.step_after(std::ptr::null_mut());
        }
        walk
    }

    /// Returns the activity record after `last`. Checks the pointer that the library returned: the next record must be
    /// after `last` and inside the buffer. If the pointer leads to another place, the iteration ends as `Broken`.
    fn step_after(&self, last: *mut u8) -> WalkState {
        let mut record = last;
        match (self.step)(self.base, self.bytes.len(), &mut record) {
            Status::SUCCESS if record > last && self.offset(record).is_some() => WalkState::Record(record),
            Status::MAX_LIMIT_REACHED => WalkState::End,
            _ => WalkState::Broken,
        }
    }

    fn offset(&self, record: *mut u8) -> Option<usize> {
        record.addr().checked_sub(self.base.addr()).filter(|offset| *offset < self.bytes.len())
    }
}

impl<'a> Iterator for RecordIterator<'a> {
    type Item = Option<Record<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = match self.current {
            WalkState::Record(start) => start,
            WalkState::End => return None,
            WalkState::Broken => {
                self.current = WalkState::End;
                return Some(None);
            }
        };
        self.current = self.step_after(start);
        let end = match self.current {
            WalkState::Record(next) => self.offset(next)?,
            WalkState::End | WalkState::Broken => self.bytes.len(),
        };
        Some(self.bytes.get(self.offset(start)?..end).map(Record::new))
    }
}

/// Returns the row of a GPU activity (a kernel, copy or fill). Returns `None` if the record has another kind, or is too
/// short for its kind.
///
/// # Safety
/// The name to which the record of a kernel points must be readable.
unsafe fn activity(
    record: Record<'_>,
    names: &mut KernelNames,
    sink: &mut impl FnMut(Row<'_>),
) -> Option<Activity> {
    match record.kind()? {
        ActivityKind::CONCURRENT_KERNEL | ActivityKind::KERNEL => {
            let kernel = record.prefix::<Kernel>()?;
            // SAFETY: the caller guarantees that the name of the kernel is readable.
            let name = unsafe { names.intern(kernel.name) };
            if let Some(text) = name.new_text {
                sink(Row::Name { id: name.id, text: &text });
            }
            Some(Activity {
                source_node: source_node(record, source_graph::KERNEL),
                device_launched: record.field(offset::KERNEL_IS_DEVICE_LAUNCHED) == Some(1_u8),
                ..from_kernel(&kernel, name.id, channel(record, channel::KERNEL))
            })
        }
        ActivityKind::MEMCPY => {
            let copies = record
                .field(offset::MEMCPY_COPY_COUNT)
                .map_or(1, |copies: u64| u32::try_from(copies).unwrap_or(u32::MAX));
            let copy =
                from_copy(&record.prefix::<Memcpy>()?, channel(record, channel::MEMCPY), copies.max(1));
            Some(Activity { source_node: source_node(record, source_graph::MEMCPY), ..copy })
        }
        ActivityKind::MEMCPY2 => {
            Some(from_peer_copy(&record.prefix::<MemcpyPeer>()?, channel(record, channel::MEMCPY_PEER)))
        }
        ActivityKind::MEMSET => {
            let fill = from_fill(&record.prefix::<Memset>()?, channel(record, channel::MEMSET));
            Some(Activity { source_node: source_node(record, source_graph::MEMSET), ..fill })
        }
        ActivityKind::GRAPH_TRACE => Some(from_graph(&record.prefix::<GraphTrace>()?)),
        _ => None,
    }
}

/// Returns the row for a record about a CUDA event, a wait or unified memory. Returns `None` for all other records.
fn event_row(record: Record<'_>) -> Option<Row<'static>> {
    match record.kind()? {
        ActivityKind::CUDA_EVENT => {
            let event = record.prefix::<CudaEvent>()?;
            Some(Row::EventRecord(EventRecord {
                correlation: CorrelationId(event.correlation_id),
                context: GpuContextId(event.context_id),
                stream: StreamId(event.stream_id),
                event: EventId(event.event_id),
                sync: sync_id(record, offset::CUDA_EVENT_SYNC_ID),
            }))
        }
        ActivityKind::SYNCHRONIZATION => {
            let sync = record.prefix::<Synchronization>()?;
            let known = |id: u32| Some(id).filter(|id| *id != NOT_APPLICABLE);
            Some(Row::Sync(SyncRecord {
                kind: kinds::sync_kind(sync.sync_type),
                start: Nanos(sync.start),
                end: Nanos(sync.end),
                correlation: CorrelationId(sync.correlation_id),
                context: GpuContextId(sync.context_id),
                stream: known(sync.stream_id).map(StreamId),
                event: known(sync.cuda_event_id).map(EventId),
                sync: sync_id(record, offset::SYNCHRONIZATION_SYNC_ID),
                result: record.field(offset::SYNCHRONIZATION_RESULT).unwrap_or(0),
            }))
        }
        ActivityKind::UNIFIED_MEMORY_COUNTER => {
            let counter = record.prefix::<UnifiedMemoryCounter>()?;
            Some(Row::Unified(Unified {
                kind: kinds::unified_kind(counter.counter_kind.0),
                value: counter.value,
                start: Nanos(counter.start),
                end: Nanos(counter.end),
                address: counter.address,
                source: DeviceId(counter.src_id),
                target: DeviceId(counter.dst_id),
                flags: counter.flags,
            }))
        }
        _ => None,
    }
}

/// Value with which CUPTI states that a record has no stream, no CUDA event or no sync id.
const NOT_APPLICABLE: u32 = u32::MAX;

/// Returns the sync id in a record. A sync id identifies one call that recorded a CUDA event. Returns `None` if the
/// record has no sync id.
fn sync_id(record: Record<'_>, offset: usize) -> Option<SyncId> {
    record.field(offset).filter(|id| *id != u64::from(NOT_APPLICABLE)).map(SyncId)
}

/// Returns the hardware channel on which an activity ran. Returns `None` if the record has no channel field or marks
/// the channel as invalid.
fn channel(record: Record<'_>, offset: usize) -> Option<u32> {
    let kind = ChannelType(record.field(offset + 4)?);
    if kind == ChannelType::INVALID { None } else { record.field(offset) }
}

/// Returns the id of the source node, which is the graph node from which the record's graph node was created or last
/// updated. If the record does not contain this id, returns 0.
fn source_node(record: Record<'_>, offset: usize) -> GraphNodeId {
    GraphNodeId(record.field(offset + 8).unwrap_or(0))
}

/// Builds the row of an activity record. `detail` contains the fields that only this kind of record has; the other
/// fields are the same for all kinds.
macro_rules! row {
    ($record:ident, $channel:ident, $detail:expr) => {
        Activity {
            correlation: CorrelationId($record.correlation_id),
            device: DeviceId($record.device_id),
            context: GpuContextId($record.context_id),
            stream: StreamId($record.stream_id),
            channel: $channel,
            start: Nanos($record.start),
            end: Nanos($record.end),
            graph: GraphId($record.graph_id),
            graph_node: GraphNodeId($record.graph_node_id),
            source_node: GraphNodeId(0),
            device_launched: false,
            created: None,
            detail: $detail,
        }
    };
}

fn from_kernel(kernel: &Kernel, name: NameId, channel: Option<u32>) -> Activity {
    let detail = KernelDetail {
        name,
        grid: kernel.grid.map(|blocks| blocks as u32),
        block: kernel.block.map(|threads| threads as u32),
        registers: kernel.registers_per_thread,
        static_shared: kernel.static_shared_memory as u32,
        dynamic_shared: kernel.dynamic_shared_memory as u32,
    };
    row!(kernel, channel, Detail::Kernel(detail))
}

fn from_copy(copy: &Memcpy, channel: Option<u32>, copies: u32) -> Activity {
    let detail = CopyDetail {
        kind: CopyKind(copy.copy_kind),
        from: kinds::memory_kind(copy.src_kind.into()),
        to: kinds::memory_kind(copy.dst_kind.into()),
        peers: None,
        bytes: copy.bytes,
        is_async: u32::from(copy.flags) & FLAG_ASYNC != 0,
        copies,
    };
    row!(copy, channel, Detail::Copy(detail))
}

fn from_peer_copy(copy: &MemcpyPeer, channel: Option<u32>) -> Activity {
    let detail = CopyDetail {
        kind: CopyKind::PTOP,
        from: kinds::memory_kind(copy.src_kind.into()),
        to: kinds::memory_kind(copy.dst_kind.into()),
        peers: Some((DeviceId(copy.src_device_id), DeviceId(copy.dst_device_id))),
        bytes: copy.bytes,
        is_async: u32::from(copy.flags) & FLAG_ASYNC != 0,
        copies: 1,
    };
    row!(copy, channel, Detail::Copy(detail))
}

fn from_graph(graph: &GraphTrace) -> Activity {
    Activity {
        correlation: CorrelationId(graph.correlation_id),
        device: DeviceId(graph.device_id),
        context: GpuContextId(graph.context_id),
        stream: StreamId(graph.stream_id),
        channel: None,
        start: Nanos(graph.start),
        end: Nanos(graph.end),
        graph: GraphId(graph.graph_id),
        graph_node: GraphNodeId(0),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail: Detail::Graph,
    }
}

fn from_fill(fill: &Memset, channel: Option<u32>) -> Activity {
    let detail = SetDetail {
        memory: kinds::memory_kind(fill.memory_kind),
        value: fill.value,
        bytes: fill.bytes,
        is_async: u32::from(fill.flags) & FLAG_ASYNC != 0,
    };
    row!(fill, channel, Detail::Set(detail))
}

#[cfg(test)]
#[path = "activity_test.rs"]
pub(super) mod tests;
