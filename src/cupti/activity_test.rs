//! Tests that read buffers built byte by byte. The tests cover the record sizes of all CUPTI versions from 11.8 to
//! 13.4.
//!
//! The tests use literal numbers as offsets, so that the tests also check the constants for offsets in `cupti-sys`.

use super::*;
use gpuflame_model::record::testing::Rng;
use gpuflame_model::record::{MemoryKind, SyncKind, UnifiedKind, Work};

/// Name of each CUPTI release, and the sizes of its activity records. The sizes are those of the records about a
/// kernel, a copy, a copy between GPUs and a fill. Each size was measured as the distance between two records that the
/// release's own library returned.
const RELEASES: [(&str, RecordSizes); 8] = [
    ("11.8", RecordSizes { kernel: 200, copy: 88, peer_copy: 96, fill: 88 }),
    ("12.0", RecordSizes { kernel: 208, copy: 88, peer_copy: 96, fill: 88 }),
    ("12.8", RecordSizes { kernel: 208, copy: 96, peer_copy: 96, fill: 88 }),
    ("13.0", RecordSizes { kernel: 216, copy: 96, peer_copy: 96, fill: 88 }),
    ("13.1", RecordSizes { kernel: 224, copy: 96, peer_copy: 96, fill: 88 }),
    ("13.3", RecordSizes { kernel: 232, copy: 96, peer_copy: 96, fill: 88 }),
    ("13.4", RecordSizes { kernel: 248, copy: 112, peer_copy: 96, fill: 104 }),
    ("of tomorrow", RecordSizes { kernel: 1024, copy: 256, peer_copy: 512, fill: 128 }),
];

#[derive(Clone, Copy, Debug)]
pub(in super::super) struct RecordSizes {
    pub(in super::super) kernel: usize,
    pub(in super::super) copy: usize,
    pub(in super::super) peer_copy: usize,
    pub(in super::super) fill: usize,
}

impl RecordSizes {
    fn size_of_kind(self, kind: u32) -> Option<usize> {
        match kind {
            3 | 10 => Some(self.kernel),
            1 => Some(self.copy),
            22 => Some(self.peer_copy),
            2 => Some(self.fill),
            4 => Some(40),
            _ => None,
        }
    }

    /// Steps from record to record like `step`, but allows the last record of the buffer to be truncated.
    fn step_within(self, buffer: *mut u8, valid: usize, record: &mut *mut u8) -> Status {
        // SAFETY: the buffer of the test has `valid` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(buffer, valid) };
        let at = if record.is_null() { 0 } else { record.addr() - buffer.addr() };
        let kind_at =
            |at: usize| bytes.get(at..at + 4).map(|kind| u32::from_ne_bytes(kind.try_into().unwrap()));
        let size =
            if record.is_null() { Some(0) } else { kind_at(at).and_then(|kind| self.size_of_kind(kind)) };
        let Some(next) = size.map(|size| at + size) else { return Status::INVALID_KIND };
        match kind_at(next) {
            None => Status::MAX_LIMIT_REACHED,
            Some(kind) if self.size_of_kind(kind).is_none() => Status::INVALID_KIND,
            Some(_) => {
                *record = buffer.wrapping_add(next);
                Status::SUCCESS
            }
        }
    }

    /// Steps from record to record in the same way as the function `cuptiActivityGetNextRecord` of this CUPTI release.
    fn step(self, buffer: *mut u8, valid: usize, record: &mut *mut u8) -> Status {
        // SAFETY: the buffer of the test has `valid` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(buffer, valid) };
        let kind_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut next = 0;
        if !record.is_null() {
            let at = record.addr() - buffer.addr();
            let Some(size) = self.size_of_kind(kind_at(at)) else { return Status::INVALID_KIND };
            next = at + size;
        }
        if next >= valid {
            return Status::MAX_LIMIT_REACHED;
        }
        if self.size_of_kind(kind_at(next)).is_none() {
            return Status::INVALID_KIND;
        }
        *record = buffer.wrapping_add(next);
        Status::SUCCESS
    }
}

/// Bytes of an activity record. All bytes are `0xee`, except those of the fields that the test sets.
struct RecordBytes(Vec<u8>);

impl RecordBytes {
    fn new(kind: u32, size: usize) -> Self {
        Self(vec![0xee; size]).u32(0, kind)
    }

    fn write_at(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Sets a field if the record is long enough to contain it.
    fn write_if_fits(self, at: usize, bytes: &[u8]) -> Self {
        if at + bytes.len() <= self.0.len() { self.write_at(at, bytes) } else { self }
    }

    fn u8(self, at: usize, value: u8) -> Self {
        self.write_at(at, &[value])
    }

    fn u16(self, at: usize, value: u16) -> Self {
        self.write_at(at, &value.to_ne_bytes())
    }

    fn u32(self, at: usize, value: u32) -> Self {
        self.write_at(at, &value.to_ne_bytes())
    }

    fn u64(self, at: usize, value: u64) -> Self {
        self.write_at(at, &value.to_ne_bytes())
    }
}

fn kernel(size: usize, name: &'static std::ffi::CStr) -> Vec<u8> {
    let record = RecordBytes::new(10, size).u16(6, 32).u64(16, 1_000).u64(24, 1_500).u64(32, 0);
    let record = record.u32(40, 1).u32(44, 2).u32(48, 7);
    let record = record.u32(52, 10).u32(56, 11).u32(60, 12).u32(64, 128).u32(68, 2).u32(72, 1);
    let record = record.u32(76, 48).u32(80, 96).u32(84, 0).u32(92, 515);
    let record = record.u64(104, name.as_ptr().expose_provenance() as u64);
    let record = record.u64(144, 77).u32(156, 5).u32(168, 9).u32(172, 1);
    record.write_if_fits(208, &[1]).write_if_fits(240, &70_u64.to_ne_bytes()).0
}

fn copy(size: usize) -> Vec<u8> {
    let record = RecordBytes::new(1, size).u8(4, 1).u8(5, 2).u8(6, 3).u8(7, 1).u64(8, 4096);
    let record = record.u64(16, 2_000).u64(24, 2_100).u32(32, 1).u32(36, 2).u32(40, 13).u32(44, 516);
    record
        .u64(64, 78)
        .u32(72, 6)
        .u32(76, 3)
        .u32(80, 2)
        .write_if_fits(88, &3_u64.to_ne_bytes())
        .write_if_fits(104, &71_u64.to_ne_bytes())
        .0
}

fn peer_copy(size: usize) -> Vec<u8> {
    let record = RecordBytes::new(22, size).u8(4, 10).u8(5, 3).u8(6, 3).u8(7, 0).u64(8, 1 << 33);
    let record = record.u64(16, 3_000).u64(24, 3_100).u32(32, 1).u32(36, 2).u32(40, 13);
    let record = record.u32(44, 1).u32(48, 2).u32(52, 4).u32(56, 8).u32(60, 517);
    record.u64(72, 0).u32(80, 0).u32(84, 0).u32(88, 0).0
}

fn fill(size: usize) -> Vec<u8> {
    let record = RecordBytes::new(2, size).u32(4, 0xabcd).u64(8, 64).u64(16, 4_000).u64(24, 4_010);
    let record = record.u32(32, 0).u32(36, 1).u32(40, 7).u32(44, 518).u16(48, 1).u16(50, 3);
    record.u64(64, 0).u32(72, 0).u32(76, 1).u32(80, 1).write_if_fits(96, &0_u64.to_ne_bytes()).0
}

/// Results of calling `read_records` on a buffer: new names, activities and the tally.
fn read_all(
    buffer: &[u8],
    sizes: RecordSizes,
    names: &mut KernelNames,
) -> (Vec<String>, Vec<Activity>, ReadTally) {
    let step = |buffer: *mut u8, valid: usize, record: &mut *mut u8| sizes.step(buffer, valid, record);
    read_all_with(buffer, &step, names)
}

pub(in super::super) fn read_all_with(
    buffer: &[u8],
    step: &NextRecord<'_>,
    names: &mut KernelNames,
) -> (Vec<String>, Vec<Activity>, ReadTally) {
    let (mut texts, mut activities) = (Vec::new(), Vec::new());
    let mut sink = |row: Row<'_>| match row {
        Row::Name { id, text } => texts.push(format!("{}={text}", id.0)),
        Row::Activity(activity) => activities.push(activity),
        other => panic!("unexpected {other:?}"),
    };
    // SAFETY: the step function knows the buffer's layout, and the names in the buffer are static.
    let tally = unsafe { read_records(buffer, step, names, &mut sink) };
    (texts, activities, tally)
}

pub(in super::super) fn a_buffer_of_each_kind(sizes: RecordSizes) -> Vec<u8> {
    [
        kernel(sizes.kernel, c"_Z4gemmv"),
        copy(sizes.copy),
        peer_copy(sizes.peer_copy),
        fill(sizes.fill),
        kernel(sizes.kernel, c"_Z4gemmv"),
    ]
    .concat()
}

fn expected_rows() -> [Activity; 5] {
    [expected_kernel(), expected_copy(), expected_peer_copy(), expected_fill(), expected_kernel()]
}

#[test]
fn records_read_the_same_in_the_layout_of_every_cupti_release() {
    for (release, sizes) in RELEASES {
        let buffer = a_buffer_of_each_kind(sizes);
        let (texts, rows, tally) = read_all(&buffer, sizes, &mut KernelNames::new());
        assert_eq!(tally, ReadTally { activities: 5, unreadable: 0 }, "{release}");
        assert_eq!(texts, ["0=_Z4gemmv"], "{release}");
        assert_eq!(rows, expected_rows_of(sizes), "{release}");
    }
}

/// Returns the rows of the records in `a_buffer_of_each_kind`. Later CUPTI releases add fields to the records. Since
/// 12.8, the record of a copy also contains the number of copies in a batch. Since 13.0, the record of a kernel also
/// states whether code on a GPU launched the kernel. Since 13.4, the record of a graph node's activity also contains
/// the source node.
pub(in super::super) fn expected_rows_of(sizes: RecordSizes) -> [Activity; 5] {
    expected_rows().map(|mut row| {
        let (is_kernel, is_copy) = (row.correlation.0 == 515, row.correlation.0 == 516);
        let source = if is_kernel && sizes.kernel >= 248 {
            70
        } else if is_copy && sizes.copy >= 112 {
            71
        } else {
            0
        };
        if let (true, Detail::Copy(copy)) = (is_copy && sizes.copy >= 96, &mut row.detail) {
            copy.copies = 3;
        }
        let device_launched = is_kernel && sizes.kernel >= 216;
        Activity { source_node: GraphNodeId(source), device_launched, ..row }
    })
}

fn expected_kernel() -> Activity {
    Activity {
        correlation: CorrelationId(515),
        device: DeviceId(1),
        context: GpuContextId(2),
        stream: StreamId(7),
        channel: Some(9),
        start: Nanos(1_000),
        end: Nanos(1_500),
        graph: GraphId(5),
        graph_node: GraphNodeId(77),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail: Detail::Kernel(KernelDetail {
            name: NameId(0),
            grid: [10, 11, 12],
            block: [128, 2, 1],
            registers: 32,
            static_shared: 48,
            dynamic_shared: 96,
        }),
    }
}

fn expected_copy() -> Activity {
    Activity {
        correlation: CorrelationId(516),
        device: DeviceId(1),
        context: GpuContextId(2),
        stream: StreamId(13),
        channel: Some(3),
        start: Nanos(2_000),
        end: Nanos(2_100),
        graph: GraphId(6),
        graph_node: GraphNodeId(78),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail: Detail::Copy(CopyDetail {
            kind: CopyKind::HTOD,
            from: MemoryKind(2),
            to: MemoryKind(3),
            peers: None,
            bytes: 4096,
            is_async: true,
            copies: 1,
        }),
    }
}

fn expected_peer_copy() -> Activity {
    Activity {
        correlation: CorrelationId(517),
        device: DeviceId(1),
        context: GpuContextId(2),
        stream: StreamId(13),
        channel: None,
        start: Nanos(3_000),
        end: Nanos(3_100),
        graph: GraphId(0),
        graph_node: GraphNodeId(0),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail: Detail::Copy(CopyDetail {
            kind: CopyKind::PTOP,
            from: MemoryKind(3),
            to: MemoryKind(3),
            peers: Some((DeviceId(1), DeviceId(4))),
            bytes: 1 << 33,
            is_async: false,
            copies: 1,
        }),
    }
}

fn expected_fill() -> Activity {
    Activity {
        correlation: CorrelationId(518),
        device: DeviceId(0),
        context: GpuContextId(1),
        stream: StreamId(7),
        channel: Some(1),
        start: Nanos(4_000),
        end: Nanos(4_010),
        graph: GraphId(0),
        graph_node: GraphNodeId(0),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail: Detail::Set(SetDetail { memory: MemoryKind(3), value: 0xabcd, bytes: 64, is_async: true }),
    }
}

/// Reads a record about a CUDA event, a wait or unified memory, and returns the resulting row as text.
fn read_beside(record: &[u8]) -> String {
    let step = |buffer: *mut u8, _: usize, record: &mut *mut u8| {
        if !record.is_null() {
            return Status::MAX_LIMIT_REACHED;
        }
        *record = buffer;
        Status::SUCCESS
    };
    let mut rows = Vec::new();
    // SAFETY: the step function returns the only record, and that record contains no names.
    let tally = unsafe {
        read_records(record, &step, &mut KernelNames::new(), &mut |row: Row<'_>| {
            rows.push(format!("{row:?}"))
        })
    };
    assert_eq!((rows.len(), tally), (1, ReadTally::default()));
    rows.remove(0)
}

#[test]
fn an_event_record_is_read_with_and_without_later_fields() {
    for (size, sync) in [(24, None), (56, Some(SyncId(900))), (80, Some(SyncId(900)))] {
        let record = RecordBytes::new(36, size).u32(4, 515).u32(8, 2).u32(12, 13).u32(16, 4);
        let record = record.write_if_fits(48, &900_u64.to_ne_bytes()).0;
        let expected = EventRecord {
            correlation: CorrelationId(515),
            context: GpuContextId(2),
            stream: StreamId(13),
            event: EventId(4),
            sync,
        };
        assert_eq!(read_beside(&record), format!("{:?}", Row::EventRecord(expected)), "{size} bytes");
    }
}

#[test]
fn a_synchronization_record_is_read_with_and_without_later_fields() {
    for (size, sync, result) in [(40, None, 0), (56, Some(SyncId(900)), 600)] {
        let record = RecordBytes::new(38, size).u32(4, 2).u64(8, 1_000).u64(16, 1_200).u32(24, 515);
        let record = record.u32(28, 2).u32(32, 13).u32(36, 4);
        let record =
            record.write_if_fits(40, &900_u64.to_ne_bytes()).write_if_fits(48, &600_u32.to_ne_bytes()).0;
        let expected = SyncRecord {
            kind: SyncKind::STREAM_WAIT,
            start: Nanos(1_000),
            end: Nanos(1_200),
            correlation: CorrelationId(515),
            context: GpuContextId(2),
            stream: Some(StreamId(13)),
            event: Some(EventId(4)),
            sync,
            result,
        };
        assert_eq!(read_beside(&record), format!("{:?}", Row::Sync(expected)), "{size} bytes");
    }
}

#[test]
fn a_context_synchronization_has_neither_stream_nor_event() {
    let record = RecordBytes::new(38, 56).u32(4, 4).u64(8, 1).u64(16, 2).u32(24, 3).u32(28, 1);
    let record = record.u32(32, u32::MAX).u32(36, u32::MAX).u64(40, 0xffff_ffff).u32(48, 0).0;
    let row = read_beside(&record);
    assert!(row.contains("SyncKind(4)") && row.contains("stream: None, event: None, sync: None"), "{row}");
}

#[test]
fn a_unified_memory_record_reads_the_same_in_both_layouts() {
    for size in [64, 104] {
        let record = RecordBytes::new(25, size).u32(4, 2).u64(8, 65_536).u64(16, 1_000).u64(24, 1_200);
        let record = record.u64(32, 0x7f00_0000_0000).u32(40, 1).u32(44, u32::MAX).u32(56, 3).0;
        let expected = Unified {
            kind: UnifiedKind::DTOH,
            value: 65_536,
            start: Nanos(1_000),
            end: Nanos(1_200),
            address: 0x7f00_0000_0000,
            source: DeviceId(1),
            target: DeviceId(u32::MAX),
            flags: 3,
        };
        assert_eq!(read_beside(&record), format!("{:?}", Row::Unified(expected)), "{size} bytes");
    }
}

const SIZES: RecordSizes = RELEASES[3].1;

#[test]
fn an_empty_buffer_has_no_records() {
    assert_eq!(read_all(&[], SIZES, &mut KernelNames::new()).2, ReadTally::default());
}

#[test]
fn a_kernel_name_is_emitted_once_over_all_buffers() {
    let mut names = KernelNames::new();
    let buffer = [kernel(216, c"one"), kernel(216, c"two"), kernel(216, c"one")].concat();
    assert_eq!(read_all(&buffer, SIZES, &mut names).0, ["0=one", "1=two"]);
    assert_eq!(read_all(&buffer, SIZES, &mut names).0, [""; 0]);
}

#[test]
fn a_kernel_without_a_name_is_an_unnamed_kernel() {
    let mut bytes = kernel(216, c"");
    bytes[104..112].fill(0);
    let (texts, rows, _) = read_all(&bytes, SIZES, &mut KernelNames::new());
    assert_eq!(texts, ["0=[unnamed kernel]"]);
    assert_eq!(rows[0].work(), Work::Kernel(NameId(0)));
}

#[test]
fn a_record_of_an_unrequested_kind_is_counted_and_skipped() {
    let api_call = RecordBytes::new(4, 40).0;
    let buffer = [fill(88), api_call, fill(88)].concat();
    let (_, rows, tally) = read_all(&buffer, SIZES, &mut KernelNames::new());
    assert_eq!((rows.len(), tally), (2, ReadTally { activities: 2, unreadable: 1 }));
}

#[test]
fn a_buffers_rest_counts_as_one_unreadable_record_if_iteration_fails() {
    let buffer = [fill(88), RecordBytes::new(4711, 64).0, fill(88)].concat();
    let tally = read_all(&buffer, SIZES, &mut KernelNames::new()).2;
    assert_eq!(tally, ReadTally { activities: 1, unreadable: 1 });
    let only_garbage = RecordBytes::new(4711, 64).0;
    let tally = read_all(&only_garbage, SIZES, &mut KernelNames::new()).2;
    assert_eq!(tally, ReadTally { activities: 0, unreadable: 1 });
}

#[test]
fn a_record_truncated_by_the_buffers_end_is_unreadable() {
    let whole = kernel(216, c"cut");
    for length in [4, 100, 159] {
        let tally = read_all(&whole[..length], SIZES, &mut KernelNames::new()).2;
        assert_eq!(tally, ReadTally { activities: 0, unreadable: 1 }, "{length} bytes");
    }
}

#[test]
fn a_field_beyond_the_end_of_the_last_record_is_not_read() {
    let rows = read_all(&kernel(216, c"short")[..168], SIZES, &mut KernelNames::new()).1;
    assert_eq!(rows[0].channel, None);
}

#[test]
fn implausible_times_are_passed_on_unchanged() {
    let mut bytes = fill(88);
    bytes[16..24].copy_from_slice(&9_000_u64.to_ne_bytes());
    bytes[24..32].fill(0);
    let rows = read_all(&bytes, SIZES, &mut KernelNames::new()).1;
    assert_eq!((rows[0].start, rows[0].end), (Nanos(9_000), Nanos(0)));
}

#[test]
fn a_step_backwards_or_out_of_the_buffer_ends_the_iteration() {
    let buffer = [fill(88), fill(88)].concat();
    for target in [0_usize, 1 << 20] {
        let step = |buffer: *mut u8, _: usize, record: &mut *mut u8| {
            *record = if record.is_null() { buffer } else { buffer.wrapping_add(target) };
            Status::SUCCESS
        };
        assert_eq!(count_records(&buffer, &step), 2, "a record and a stretch that cannot be stepped through");
    }
}

/// Number of rounds for the tests with damaged bytes: the value of `GPUFLAME_MUTATIONS`, or 2,000 if this variable is
/// not set.
fn turns() -> u64 {
    std::env::var("GPUFLAME_MUTATIONS").map_or(2000, |text| text.parse().unwrap())
}

/// Changes, overwrites or removes a few bytes at random positions of a buffer.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..=rng.below(5) {
        let at = rng.below(bytes.len() as u64) as usize;
        let length = (rng.below(60) as usize).min(bytes.len() - at);
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next_u64() as u8,
            2 => bytes[at..at + length].fill(0xff),
            3 => bytes[at..at + length].fill(0),
            4 if bytes.len() > 64 => bytes.truncate(at.max(8)),
            _ => bytes[at & !3] = [1, 2, 3, 4, 10, 22][rng.below(6) as usize],
        }
    }
}

/// Restores the pointers to kernel names, because `read_records` cannot check pointers and must get valid ones.
fn mend_names(bytes: &mut [u8], sizes: RecordSizes, name: &'static std::ffi::CStr) {
    let (mut at, pointer) = (0, name.as_ptr().expose_provenance() as u64);
    while let Some(kind) = bytes.get(at..at + 4) {
        let kind = u32::from_ne_bytes(kind.try_into().unwrap());
        if let (3 | 10, Some(place)) = (kind, bytes.get_mut(at + 104..at + 112)) {
            place.copy_from_slice(&pointer.to_ne_bytes());
        }
        let Some(size) = sizes.size_of_kind(kind) else { return };
        at += size;
    }
}

#[test]
fn damaged_records_are_read_or_counted_and_never_read_past_their_end() {
    for turn in 0..turns() {
        let mut rng = Rng::new(turn + 1);
        let (release, sizes) = RELEASES[turn as usize % RELEASES.len()];
        let mut buffer = a_buffer_of_each_kind(sizes);
        damage(&mut buffer, &mut rng);
        mend_names(&mut buffer, sizes, c"_Z4gemmv");
        // Copies the bytes to a separate allocation, so that tools can detect a read past the end of the bytes.
        let exact = buffer.into_boxed_slice();
        let honest = |buffer: *mut u8, valid: usize, record: &mut *mut u8| match valid {
            0..4 => Status::MAX_LIMIT_REACHED,
            _ => sizes.step_within(buffer, valid, record),
        };
        let (mut activities, mut others) = (0, 0);
        let mut sink = |row: Row<'_>| match row {
            Row::Activity(_) => activities += 1,
            Row::Name { .. } => {}
            _ => others += 1,
        };
        // SAFETY: the step function knows the buffer's layout, and the names in the buffer are static.
        let tally = unsafe { read_records(&exact, &honest, &mut KernelNames::new(), &mut sink) };
        let most = exact.len() as u64 / 40 + 1;
        assert_eq!(tally.activities, activities, "{release}, turn {turn}");
        assert!(activities + others + tally.unreadable <= most, "{release}, turn {turn}: {tally:?}");
    }
}
