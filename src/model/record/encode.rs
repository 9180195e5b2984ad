//! Writes rows to a recording (a `.gfr` file), and documents the format, which `decode` reads.
//!
//! ```text
//! recording := "gpuflame" format:u32 state:u32 row*           format is 2; 1 is the same without tags 39 to 44, 0 also
//!                                                             without tags 25 to 28. state: bit 0 while a mark that
//!                                                             was due cannot be written; bit 1 also once the process
//!                                                             exited and could not write its files; bit 2 if these
//!                                                             are the sums of a process that exited
//! row       := tag:u8 length:u32 payload[length]              unknown tags are skipped by their length; payloads of
//!                                                             known tags may grow at the end
//!  tag  payload
//!   1   launch    time:u64 duration:u32 correlation:u32 within:u32 context:u32
//!   2   activity  correlation:u32 device:u32 context:u32 stream:u32 channel:option start:u64 end:u64
//!                 graph:u32 graph_node:u64 source_node:u64 device_launched:u8 detail
//!   3   context   id:u32 thread:u32 flags:u32 count:u32 frame:u64[count]        leaf first
//!   4   name      id:u32 text
//!   5   label     id:u32 text
//!   6   module    epoch:u16 start:u64 end:u64 bias:u64 path:text build_id:text
//!   7   thread    id:u32 text
//!   8   window    edge:u8 time:u64                                              0 opened, 1 closed
//!   9   loss      loss:u8 count:u64
//!  10   node      graph:u32 node:u64 context:u32                                a graph node was created
//!  11   clone     graph:u32 node:u64 original:u64                              a graph node was copied
//!  12   update    graph:u32 source:u32 correlation:u32
//!  13   end       graph:u32
//!  14   range     id:u32 domain:text text
//!  15   process   id:u32 text
//!  16   wait      time:u64 duration:u64 correlation:u32 context:u32
//!  17   memory    time:u64 correlation:u32 context:u32 address:u64 allocated:u8 memory:u16 bytes:u64
//!  18   event     correlation:u32 context:u32 stream:u32 event:u32 sync:long_option
//!  19   sync      kind:u32 start:u64 end:u64 correlation:u32 context:u32 stream:option event:option
//!                 sync:long_option result:u32
//!  20   call      time:u64 duration:u32 correlation:u32 context:u32 event_use:u8 event:u64 stream:u64
//!  21   unified   kind:u32 value:u64 start:u64 end:u64 address:u64 source:u32 target:u32 flags:u32
//!  22   outside   first:u32 last:u32 count:u32 over:u64
//!  23   complete                                                               the end row: the recording is complete
//!  24   host_state  thread:u32 since:u64 context:u32                           stack of a thread from then on; 0 = unknown
//!  25   chunk     crc:u32 row*                                                 written in one piece; CRC-32 of the rows;
//!                                                                              chunks are not nested
//!  26   sums      entry*                                                       sums that replace single rows
//!  27   mark      began:u64 time:u64 interval_ms:u32 open:u64                  makes all sums before it valid
//!  28   writer    process:u32 thread:u32 started:u64 namespace:u64 boot:text   identity of the writer
//!  29   instant   thread:u32 time:u64 text                                     an instant marked by the program
//!  30   code      id:u32 version:u16 first_line:u32 file:text name:text lines:text    a Python function; its line table
//!                                                                              in that version's encoding
//!  31   callbacks on:u8 time:u64                                               whether launches are seen from then on
//!  32   host_call ended:u64 duration:u32 context:u32                           a call that launched nothing
//!  33   provenance  what:u32 text                                              origin of the recording
//!  34   no_memory                                                              recording stopped here for lack of memory
//!  35   generated address:u64 name:text                                        function at an address without a file;
//!                                                                              empty: several functions shared the address
//!  36   sampled   time:u64 period:u32 thread:u32 context:u32                   a thread was on a CPU
//!  37   blocked   time:u64 duration:u64 thread:u32 context:u32                 a thread waited off-CPU
//!  38   step      time:u64 end:u64 thread:u32 number:u64 name:text             a step of the program begins; an end of 0
//!                                                                              is not known
//!  39   function  frame:u64 start:u64 line:u32 name:text path:u32 file:text    a function at a native frame, found at the
//!                                                                              exit; those inlined into it follow; no
//!                                                                              name: the file has no symbol. Paths are
//!                                                                              numbered from 1: only the first row with a
//!                                                                              number has its text; 0: no number. start is
//!                                                                              2^64 - 1 if it is not known
//!  40   frames    frame:u64*                                                   more frames of the table of frames
//!  41   nodes     node*                                                        more nodes of the tree of stacks
//!  42   stacks    stack*                                                       contexts, as in the context row, whose
//!                                                                              stacks are in the tree
//!  43   final_sums  final*                                                    sums of a recording that is written once
//!  44   packed    stored:varint entry*                                        launches and activities in few bytes
//!  45   edge      graph:u32 from:u64 to:u64                                   a graph node waits for another; from is 0
//!                                                                              if it waits for something unrecorded
//!  46   host_node  correlation:u32 device:u32 context:u32 stream:u32 start:u64 end:u64
//!                 graph:u32 node:u64                                          a graph node ran a function on the host
//!  47   attributes  correlation:u32 programmatic:u8                            of a launch
//!
//! detail    := 0:u8 name:u32 grid:u32[3] block:u32[3] registers:u16 static_shared:u32 dynamic_shared:u32
//!            | 1:u8 kind:u8 from:u16 to:u16 bytes:u64 async:u8 peer_from:option peer_to:option
//!                     copies:u32
//!            | 2:u8 memory:u16 value:u32 bytes:u64 async:u8
//!            | 3:u8                                                             a whole graph
//! node      := parent:varint count:varint frame:varint[count]                 root first; frames are positions in the table;
//!                                                                              nodes are numbered from 1; parent 0: a root
//! stack     := id:varint thread:varint flags:varint node:varint               thread plus 1; 0: as in the previous stack
//! option    := is_there:u8 value:u32
//! text      := length:u32 byte[length]                       UTF-8, but any bytes in paths, build ids and line tables
//! ```
//!
//! All numbers in the file are little-endian. Fields in the file are not aligned.
//!
//! A process that does not record single rows writes a table of sums instead. The table is written repeatedly; each
//! time, only the entries that changed are appended. Readers ignore entries after the last `mark` row, because these
//! entries may be incomplete. A mark also contains the number `open` of launches that had no activity yet, and the time
//! `interval_ms` until the next mark was due.
//!
//! ```text
//! entry  := slot:varint length:u8 key[length] count:u8 value:varint[count]
//!           slots are numbered in order of appearance; length is 0 if the slot already has its key. The values are
//!           totals and replace the previous ones; count is 0 if the sum was removed.
//!
//! final  := before:u8 after:u8 length:u8 middle[length] count:u8 value:varint[count]
//!           a new slot; its key has the first `before` and the last `after` bytes of the key before it in its row, and the
//!           bytes of `middle` between them
//!
//! key    := 1:u8 view:u8 base:u8 place tips:u8 tip[tips] device:option stream     values amount, count, ... of the view
//!         | 2:u8 tip device:u32               a work    count nanoseconds bytes min max p50 p95 p99
//!         | 3:u8 device:u32                   a device  count nanoseconds
//!         | 4:u8 device:u32                   its time  window busy idle late late_count early early_count first last
//!         | 5:u8 device:u32 stream            a stream  count nanoseconds
//!         | 6:u8   launches seen matched graphs pending outside aliases, activities seen matched launched_before
//!                  device_graph no_stack outside untimed early; not_told_ns and the activities of that time;
//!                  duplicate activities; activities with the id of no call
//!         | 7:u8   nodes of graphs: created before_recording unknown
//!         | 8:u8   stacks: distinct truncated guessed cut module_unknown
//!         | 9:u8   allocated bytes: held, peak
//!         | 11:u8 kind:u32                    wait records of a kind
//!         | 12:u8 loss:u8                     losses of a kind
//!         | 13:u8 edge:u8                     an edge of a window, as in the window row
//!         | 14:u8   steps: count first_number, begin of the first and of the last, each as seconds and nanoseconds
//!         | 15:u8   steady part: rule (0 steps, 1 repeated), begin and end, each as seconds and nanoseconds
//!         | 16:u8 device:u32                   its time before and after the steady part: busy idle busy idle
//!         | 17:u8 place tip device:option stream    a work under a stack, once the process has exited: count nanoseconds,
//!                                              sum of squared nanoseconds in three parts of 42 bits, lowest first
//!         | 18:u8 tip device:u32 part:u8      launch delays, once the process has exited. Part 0: sum, maximum, number that
//!                                              began before the call; further parts: bucket count, ... of the histogram
//!         | 19:u8 device:u32 kind:u8 from:u16 to:u16    copies by kinds of memory, once the process has exited: count
//!                                              nanoseconds bytes
//! base   := 0 none, 1 opening, 2 closing, 3 start-up, 4 shutdown (`RootMark`)
//! view   := 0 gpu, 1 idle, 2 wait, 3 alloc, 4 unified, 5 cpu, 6 off-cpu, 7 together (nothing)
//! place  := 0:u8 caller:u32 | 1:u8 launched:u32 created:u32 | 2:u8                a stack; both stacks of a graph node; no stack
//!         | 3:u8 after:u32 thread:option before:u32                             between two calls; the thread of the first,
//!                                                                               if it is a different one
//!           callers are contexts, or reasons, numbered from 2^31 - 1 down (`Caller`)
//! tip    := kind:u8 value:u32        0 kernel, by name; 1 copy, by kind; 2 fill; 3 graph; 4 missing, 0 to 5 in the
//!           order of `Missing`; 5 idle, 0 to 3 in the order of `Cause`; 6 idle to the end; 7 allocated, 8 freed, by
//!           kind of memory; 9 freed, kind unknown; 10 unified, by kind; 11 lost, by loss
//! ```
//!
//! A pack is a row that contains launches and activities in compact form. Times and ids in a pack are stored as
//! differences from the previous row of the same kind in the pack. In the first row of a kind, times and ids are stored
//! as differences from 0. All fields of an activity except its id and times form its *shape*. Shapes are numbered in
//! the order in which they appear in the file. The field `stored` is the number of shapes in earlier packs. When the
//! number of a new shape is a multiple of 1024 (0, 1024, 2048, ...), all earlier shapes are forgotten.
//!
//! ```text
//! entry      := head:u8 fields        the lowest two bits of the head tell the kind
//!   0 launch     time:difference duration:varint correlation:difference? within:difference? context:varint?
//!   1 activity   back:varint times    its shape is the one `back` numbers before the next
//!   2 activity   payload times        the payload of an activity row: its shape, with id and times of 0
//! times      := correlation:difference? start:difference end:difference
//!           start minus the end of the previous activity; end minus start. A field is missing if a bit of the head is set:
//!           bit 2: the correlation is the one before plus 1; bit 3: within is the correlation (otherwise it is the
//!           difference from that); bit 4: the context is the one before
//! difference := varint                modulo 2^64, with the sign in the lowest bit: 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
//! ```

use std::io::Write;

use super::activity_fields::put_activity;
use super::metadata::{CheckpointMark, RecordingState, WriterId};
use super::packed::Packer;
use super::payload::Payload;
use super::{
    Allocation, Frame, FrameFunction, Launch, LaunchAttributes, MemoryKind, Module, Row, WindowEdge,
};
use crate::error::Result;

pub(super) const MAGIC: &[u8; 8] = b"gpuflame";
pub(super) const FORMAT: u32 = 2;

/// Tags of rows, as listed in the module's documentation.
pub(super) mod tag {
    pub(crate) const LAUNCH: u8 = 1;
    pub(crate) const ACTIVITY: u8 = 2;
    pub(crate) const CONTEXT: u8 = 3;
    pub(crate) const NAME: u8 = 4;
    pub(crate) const LABEL: u8 = 5;
    pub(crate) const MODULE: u8 = 6;
    pub(crate) const THREAD: u8 = 7;
    pub(crate) const WINDOW: u8 = 8;
    pub(crate) const LOSS: u8 = 9;
    pub(crate) const GRAPH_NODE: u8 = 10;
    pub(crate) const GRAPH_CLONE: u8 = 11;
    pub(crate) const GRAPH_UPDATE: u8 = 12;
    pub(crate) const GRAPH_END: u8 = 13;
    pub(crate) const RANGE: u8 = 14;
    pub(crate) const PROCESS: u8 = 15;
    pub(crate) const WAIT: u8 = 16;
    pub(crate) const MEMORY: u8 = 17;
    pub(crate) const EVENT_RECORD: u8 = 18;
    pub(crate) const SYNC: u8 = 19;
    pub(crate) const EVENT_CALL: u8 = 20;
    pub(crate) const UNIFIED: u8 = 21;
    pub(crate) const OUTSIDE: u8 = 22;
    pub(crate) const END: u8 = 23;
    pub(crate) const HOST_STATE: u8 = 24;
    pub(crate) const CHUNK: u8 = 25;
    pub(crate) const SUMS: u8 = 26;
    pub(crate) const MARK: u8 = 27;
    pub(crate) const WRITER: u8 = 28;
    pub(crate) const INSTANT: u8 = 29;
    pub(crate) const CODE: u8 = 30;
    pub(crate) const CALLBACKS_SWITCHED: u8 = 31;
    pub(crate) const HOST_CALL_SPAN: u8 = 32;
    pub(crate) const PROVENANCE: u8 = 33;
    pub(crate) const MEMORY_EXHAUSTED: u8 = 34;
    pub(crate) const GENERATED: u8 = 35;
    pub(crate) const SAMPLED: u8 = 36;
    pub(crate) const BLOCKED: u8 = 37;
    pub(crate) const STEP: u8 = 38;
    pub(crate) const FUNCTION: u8 = 39;
    pub(crate) const FRAMES: u8 = 40;
    pub(crate) const NODES: u8 = 41;
    pub(crate) const STACKS: u8 = 42;
    pub(crate) const FINAL_SUMS: u8 = 43;
    pub(crate) const PACKED: u8 = 44;
    pub(crate) const GRAPH_EDGE: u8 = 45;
    pub(crate) const HOST_NODE: u8 = 46;
    pub(crate) const LAUNCH_ATTRIBUTES: u8 = 47;
}

/// Writes rows to a recording. Launches and activities are collected in a pack. The pack is written in three cases:
/// when it is full, before a row of another kind is written, and on a flush. Rows of other kinds are written to the
/// output `W` immediately.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    buffer: Vec<u8>,
    packer: Packer,
    /// Number of bytes that were written to the output `W` so far.
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Starts a recording by writing its file header.
    ///
    /// # Errors
    /// Returns any error from writing to `out`.
    pub fn new(mut out: W) -> Result<Self> {
        let header = header(RecordingState::default());
        out.write_all(&header)?;
        Ok(Self { out, buffer: Vec::new(), packer: Packer::default(), written: header.len() as u64 })
    }

    /// Appends a row.
    ///
    /// # Errors
    /// Returns any error from writing to the output `W`. After an error, the recording may end in a truncated row.
    pub fn row(&mut self, row: &Row<'_>) -> Result<()> {
        match row {
            Row::Launch(launch) => self.packer.launch(launch),
            Row::Activity(activity) => self.packer.activity(activity),
            _ => return self.put(|out| put_row(out, row)),
        }
        if self.packer.is_full() { self.write_pack() } else { Ok(()) }
    }

    /// Writes the identity of the writer.
    ///
    /// # Errors
    /// Returns any error from writing to the output.
    pub fn writer(&mut self, id: &WriterId) -> Result<()> {
        self.put(|out| put_writer(out, id))
    }

    /// Writes a checkpoint mark, which states that all data up to `mark.time` was written.
    ///
    /// # Errors
    /// Returns any error from writing to the output.
    pub fn mark(&mut self, mark: &CheckpointMark) -> Result<()> {
        self.put(|out| put_mark(out, mark))
    }

    /// Writes a row which states that recording stopped because memory was exhausted, although the process continues to
    /// run.
    ///
    /// # Errors
    /// Returns any error from writing to the output.
    pub fn memory_exhausted(&mut self) -> Result<()> {
        self.put(|_| tag::MEMORY_EXHAUSTED)
    }

    /// Writes the pending pack, and after it a row that is not part of a pack.
    fn put(&mut self, put: impl FnOnce(&mut Payload<'_>) -> u8) -> Result<()> {
        self.write_pack()?;
        self.write_now(put)
    }

    fn write_pack(&mut self) -> Result<()> {
        if self.packer.len() == 0 {
            return Ok(());
        }
        let mut packer = std::mem::take(&mut self.packer);
        let written = self.write_now(|out| {
            packer.take(out);
            tag::PACKED
        });
        self.packer = packer;
        written
    }

    fn write_now(&mut self, put: impl FnOnce(&mut Payload<'_>) -> u8) -> Result<()> {
        self.buffer.clear();
        append(&mut self.buffer, put);
        self.written += self.buffer.len() as u64;
        Ok(self.out.write_all(&self.buffer)?)
    }

    /// Returns the size in bytes of all rows so far, including the rows in the pending pack.
    pub fn bytes(&self) -> u64 {
        self.written + self.packer.len() as u64
    }

    /// Writes the pending pack, and flushes the output `W`.
    ///
    /// # Errors
    /// Returns any error from writing to the output.
    pub fn flush(&mut self) -> Result<()> {
        self.write_pack()?;
        Ok(self.out.flush()?)
    }

    /// Writes the end row, flushes the output `W`, and returns the output.
    ///
    /// # Errors
    /// Returns any error from writing to the output.
    pub fn finish(mut self) -> Result<W> {
        self.put(|_| tag::END)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Returns the file header of a recording.
pub(super) fn header(state: RecordingState) -> [u8; 16] {
    let mut header = [0; 16];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..].copy_from_slice(&state.bits().to_le_bytes());
    header
}

/// Appends a row to `bytes`. `put` writes the row's payload and returns the row's tag.
pub(super) fn append(bytes: &mut Vec<u8>, put: impl FnOnce(&mut Payload<'_>) -> u8) {
    let start = bytes.len();
    // Placeholder for the tag and the length, which are not known yet.
    bytes.extend([0; 5]);
    bytes[start] = put(&mut Payload(bytes));
    let length = (bytes.len() - start - 5) as u32;
    bytes[start + 1..start + 5].copy_from_slice(&length.to_le_bytes());
}

pub(super) fn put_writer(out: &mut Payload<'_>, id: &WriterId) -> u8 {
    out.u32(id.process).u32(id.thread).u64(id.started).u64(id.namespace).bytes(id.boot.as_bytes());
    tag::WRITER
}

pub(super) fn put_mark(out: &mut Payload<'_>, mark: &CheckpointMark) -> u8 {
    out.u64(mark.began.0).u64(mark.time.0).u32(mark.interval_ms).u64(mark.open);
    tag::MARK
}

pub(super) fn put_function(
    out: &mut Payload<'_>,
    frame: Frame,
    function: &FrameFunction<'_>,
    path: u32,
) -> u8 {
    out.u64(frame.0).u64(function.start.unwrap_or(u64::MAX)).u32(function.line);
    out.bytes(function.name.as_bytes()).u32(path).bytes(function.file.as_bytes());
    tag::FUNCTION
}

/// Writes the payload of `row` and returns its tag.
pub(super) fn put_row(out: &mut Payload<'_>, row: &Row<'_>) -> u8 {
    match row {
        Row::Launch(launch) => {
            put_launch(out, launch);
            tag::LAUNCH
        }
        Row::Outside(outside) => {
            out.u32(outside.first.0).u32(outside.last.0).u32(outside.count).u64(outside.over.0);
            tag::OUTSIDE
        }
        Row::Activity(activity) => {
            put_activity(out, activity);
            tag::ACTIVITY
        }
        Row::Context { id, thread, flags, frames } => {
            out.u32(id.0).u32(thread.0).u32(flags.0).u32(frames.len() as u32);
            for frame in *frames {
                out.u64(frame.0);
            }
            tag::CONTEXT
        }
        Row::Name { id, text } => {
            out.u32(id.0).bytes(text.as_bytes());
            tag::NAME
        }
        Row::Label { id, text } => {
            out.u32(id.0).bytes(text.as_bytes());
            tag::LABEL
        }
        Row::Range { id, domain, text } => {
            out.u32(id.0).bytes(domain.as_bytes()).bytes(text.as_bytes());
            tag::RANGE
        }
        Row::Code(code) => {
            out.u32(code.id.0).u16(code.version).u32(code.first_line);
            out.bytes(code.file.as_bytes()).bytes(code.name.as_bytes()).bytes(code.lines);
            tag::CODE
        }
        Row::Generated { address, name } => {
            out.u64(*address).bytes(name.as_bytes());
            tag::GENERATED
        }
        Row::Function { frame, function } => put_function(out, *frame, function, 0),
        Row::Process { id, name } => {
            out.u32(*id).bytes(name.as_bytes());
            tag::PROCESS
        }
        Row::Provenance { what, text } => {
            out.u32(what.0).bytes(text.as_bytes());
            tag::PROVENANCE
        }
        Row::HostState(state) => {
            out.u32(state.thread.0).u64(state.since.0).u32(state.context.0);
            tag::HOST_STATE
        }
        Row::HostCallSpan(call) => {
            out.u64(call.ended.0).u32(call.duration).u32(call.context.0);
            tag::HOST_CALL_SPAN
        }
        Row::Sampled(sampled) => {
            out.u64(sampled.time.0).u32(sampled.period).u32(sampled.thread.0).u32(sampled.context.0);
            tag::SAMPLED
        }
        Row::Blocked(blocked) => {
            out.u64(blocked.time.0).u64(blocked.duration).u32(blocked.thread.0).u32(blocked.context.0);
            tag::BLOCKED
        }
        Row::Wait(wait) => {
            out.u64(wait.time.0).u64(wait.duration).u32(wait.correlation.0).u32(wait.context.0);
            tag::WAIT
        }
        Row::Memory(call) => {
            out.u64(call.time.0).u32(call.correlation.0).u32(call.context.0).u64(call.address);
            let Allocation { memory, bytes } =
                call.allocated.unwrap_or(Allocation { memory: MemoryKind(0), bytes: 0 });
            out.u8(u8::from(call.allocated.is_some())).u16(memory.0).u64(bytes);
            tag::MEMORY
        }
        Row::EventRecord(record) => {
            out.u32(record.correlation.0).u32(record.context.0).u32(record.stream.0).u32(record.event.0);
            out.long_option(record.sync.map(|sync| sync.0));
            tag::EVENT_RECORD
        }
        Row::Sync(sync) => {
            out.u32(sync.kind.0).u64(sync.start.0).u64(sync.end.0).u32(sync.correlation.0);
            out.u32(sync.context.0).option(sync.stream.map(|stream| stream.0));
            out.option(sync.event.map(|event| event.0)).long_option(sync.sync.map(|sync| sync.0));
            out.u32(sync.result);
            tag::SYNC
        }
        Row::EventCall(call) => {
            out.u64(call.time.0).u32(call.duration).u32(call.correlation.0).u32(call.context.0);
            out.u8(call.event_use as u8).u64(call.event).u64(call.stream);
            tag::EVENT_CALL
        }
        Row::Unified(unified) => {
            out.u32(unified.kind.0).u64(unified.value).u64(unified.start.0).u64(unified.end.0);
            out.u64(unified.address).u32(unified.source.0).u32(unified.target.0).u32(unified.flags);
            tag::UNIFIED
        }
        Row::Module(module) => {
            put_module(out, module);
            tag::MODULE
        }
        Row::Thread { id, name } => {
            out.u32(id.0).bytes(name.as_bytes());
            tag::THREAD
        }
        Row::Window { edge, time } => {
            out.u8(u8::from(*edge == WindowEdge::Close)).u64(time.0);
            tag::WINDOW
        }
        Row::CallbacksSwitched { on, time } => {
            out.u8(u8::from(*on)).u64(time.0);
            tag::CALLBACKS_SWITCHED
        }
        Row::Instant(instant) => {
            out.u32(instant.thread.0).u64(instant.time.0).bytes(instant.text.as_bytes());
            tag::INSTANT
        }
        Row::Step(step) => {
            out.u64(step.time.0).u64(step.end.map_or(0, |end| end.0)).u32(step.thread.0).u64(step.number);
            out.bytes(step.name.as_bytes());
            tag::STEP
        }
        Row::Loss { loss, count } => {
            out.u8(*loss as u8).u64(*count);
            tag::LOSS
        }
        Row::GraphNode { graph, node, context } => {
            out.u32(graph.0).u64(node.0).u32(context.0);
            tag::GRAPH_NODE
        }
        Row::GraphClone { graph, node, original } => {
            out.u32(graph.0).u64(node.0).u64(original.0);
            tag::GRAPH_CLONE
        }
        Row::GraphUpdate { graph, source, correlation } => {
            out.u32(graph.0).u32(source.0).u32(correlation.0);
            tag::GRAPH_UPDATE
        }
        Row::GraphEnd { graph } => {
            out.u32(graph.0);
            tag::GRAPH_END
        }
        Row::GraphEdge(edge) => {
            out.u32(edge.graph.0).u64(edge.from.map_or(0, |node| node.0)).u64(edge.to.0);
            tag::GRAPH_EDGE
        }
        Row::HostNode(run) => {
            out.u32(run.correlation.0).u32(run.device.0).u32(run.context.0).u32(run.stream.0);
            out.u64(run.start.0).u64(run.end.0).u32(run.graph.0).u64(run.node.0);
            tag::HOST_NODE
        }
        Row::LaunchAttributes(LaunchAttributes { correlation, is_programmatic }) => {
            out.u32(correlation.0).u8(u8::from(*is_programmatic));
            tag::LAUNCH_ATTRIBUTES
        }
        // Only `SumsWriter` writes rows with sums, because it knows which sums have changed.
        Row::Sum { .. } => tag::SUMS,
    }
}

fn put_launch(out: &mut Payload<'_>, launch: &Launch) {
    out.u64(launch.time.0).u32(launch.duration);
    out.u32(launch.correlation.0).u32(launch.within.0).u32(launch.context.0);
}

fn put_module(out: &mut Payload<'_>, module: &Module) {
    out.u16(module.epoch.0).u64(module.start).u64(module.end).u64(module.bias);
    out.bytes(module.path.as_os_str().as_encoded_bytes()).bytes(&module.build_id);
}
