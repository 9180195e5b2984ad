//! Reads a trace event whose class is already known (see `classes`). The arguments of each dialect are mapped to fields
//! as follows:
//!
//! | dialect | GPU categories | calls | id | times |
//! |---|---|---|---|---|
//! | Paddle | Kernel Memcpy Memset | CudaRuntime | `correlation id` | text in `args` (`ts` is truncated to us) |
//! | Kineto 2021 | Kernel Memcpy Memset | Runtime | `correlation` | whole us |
//! | Kineto 2022 | kernel gpu_memcpy gpu_memset | cuda_runtime | `correlation` | whole us |
//! | Kineto 2024 | the same | and cuda_driver | `correlation` | us with three digits |
//! | Kineto ROCm | the same | cuda_runtime, hip names | `correlation` | us with digits |
//! | eunomia | GPU_Kernel MemCopy | CUDA_Runtime CUDA_Driver | `correlationId` | us with digits |
//! | MTIA | mtia_ccp_events, by name | mtia_runtime | `correlation` | us with digits |
//! | XPU | as Kineto | xpu_runtime xpu_driver | `correlation` | us with digits |
//! | Ascend | none: `Task Type` in `args` | cpu_op alone | - | text |
//! | JAX | none: `kernel_details`, `memcpy_details` in `args` | `correlation_id` in `args` | `correlation_id` | us with digits |
//! | unitrace | gpu_op | cpu_op, by name and `id` | `id` in `args` | whole us |
//! | Cuspy | as Kineto; graph_event_node, graph_host_node are no GPU work | as Kineto | `correlation` | us with digits |
//!
//! Events of the following categories are read as well: `cuda_event` (recordings of CUDA events in Kineto's traces),
//! `host_launch` (host functions of streams), and `pthread` (calls that wait for other threads, as rocprofiler-systems
//! names them).

use super::super::Text;
use super::super::model::*;
use super::ReadCounts;
use super::args::{Arg, for_each};
use super::classes::{Class, Classified, step_or, wants_cpu};
use super::cursor::{Shape, Value, to_text};
use super::fields::Fields;
use super::mask::InstructionSet;
use super::number::{parse_integer, parse_micros, parse_unsigned};

/// Placeholder for the kinds of a stack's frames. The placeholder is used if the event refers only to the innermost
/// frame in `stackFrames`.
const FRAME: Text<'static> = Text::plain(b"f");

/// Passes the event to `sink` if the sink has requested this kind of event. `args` contains the event's arguments if an
/// earlier scan has found them.
#[inline(always)]
pub(super) fn emit<L: InstructionSet>(
    bytes: &[u8],
    fields: &Fields,
    (Classified { class, needs_args }, args): (Classified, Option<&[Arg]>),
    wants: Wants,
    counts: &mut ReadCounts,
    sink: &mut impl Sink,
) {
    let phase = fields.phase.slice(bytes);
    let is_complete = phase == b"X";
    let mut event = EventReader::<L> { bytes, fields, args, counts, level: std::marker::PhantomData };
    // Events of the frequent kinds are passed to the sink in separate branches. If all kinds were first stored in one
    // `Option<Event>`, 400 bytes would have to be copied for each event.
    let other = match class {
        Class::Op(kind) if is_complete && wants.has(Wants::OPS) => {
            if let Some(op) = event.read_work(kind, false) {
                pass(sink, &Event::Op(op));
            }
            return;
        }
        Class::Call { driver } if is_complete && wants.has(Wants::CALLS) => {
            if let Some(call) = event.read_call(driver) {
                pass(sink, &Event::Call(call));
            }
            return;
        }
        Class::LevelZero if is_complete && wants.has(Wants::OPS) => event.read_level_zero_op(),
        Class::Cpu(_) if is_complete && event.is_level_zero_call() => event.read_level_zero_call(wants),
        Class::Cpu(kind) if is_complete && wants_cpu(bytes, fields, kind, wants) => {
            if let Some(op) = event.read_cpu(kind, needs_args) {
                pass(sink, &Event::Cpu(op));
            }
            return;
        }
        Class::Python if is_complete && wants.has(Wants::PYTHON) => {
            if let Some(frame) = event.read_python(wants) {
                pass(sink, &Event::Python(frame));
            }
            return;
        }
        Class::Sync if is_complete && wants.has(Wants::SYNCS) => event.read_sync(),
        Class::EventRecord if is_complete && wants.has(Wants::SYNCS) => Some(event.read_event_record()),
        Class::Mtia if is_complete && (wants.has(Wants::OPS) || wants.has(Wants::SYNCS)) => event.read_mtia(),
        Class::Bare if is_complete && wants.has(Wants::OPS) => event.read_bare(),
        Class::Other | Class::Bare if phase == b"M" && wants.has(Wants::NAMES) => event.read_metadata(),
        _ if phase == b"E" && wants.has(Wants::EDGES) => event.read_end(),
        _ if phase == b"B" && wants.has(Wants::EDGES) => event.read_begin(class),
        Class::Flow(kind) if wants.has(Wants::FLOWS) => {
            if let Some(flow) = event.read_flow(kind) {
                pass(sink, &Event::Flow(flow));
            }
            return;
        }
        Class::Other if wants.has(Wants::FLOWS) && matches!(phase, b"s" | b"f") => {
            event.read_flow(FlowKind::Unknown).map(Event::Flow)
        }
        Class::IdleNode { is_host } if is_complete && wants.has(Wants::OPS) => event.read_idle_node(is_host),
        Class::IdleNode { .. } if wants.has(Wants::OTHER) => Some(Event::Other(Text::default())),
        Class::Other | Class::Bare if wants.has(Wants::OTHER) => {
            Some(Event::Other(to_text(bytes, fields.category)))
        }
        Class::Op(_) | Class::LevelZero if wants.has(Wants::OPS) => event.count_untimed(),
        _ => None,
    };
    if let Some(event) = other {
        pass(sink, &event);
    }
}

/// Passes an event to a sink. This function is not inlined, because the sink's code would otherwise be duplicated for
/// each kind of event and each instruction set.
#[inline(never)]
fn pass(sink: &mut impl Sink, event: &Event<'_>) {
    sink.event(event);
}

struct EventReader<'a, L> {
    bytes: &'a [u8],
    fields: &'a Fields,
    args: Option<&'a [Arg]>,
    counts: &'a mut ReadCounts,
    level: std::marker::PhantomData<L>,
}

impl<'a, L: InstructionSet> EventReader<'a, L> {
    #[inline(always)]
    fn read_op(&mut self, kind: OpKind) -> Option<Event<'a>> {
        self.read_work(kind, false).map(Event::Op)
    }

    /// Reads a GPU operation. If `is_begin` is true, a separate trace event contains the end of the operation.
    #[inline(always)]
    fn read_work(&mut self, kind: OpKind, is_begin: bool) -> Option<Op<'a>> {
        let mut op = Op { kind, name: to_text(self.bytes, self.fields.name), ..Op::default() };
        let mut times = (Value::default(), Value::default());
        let mut original_stream = None;
        let mut peers = (None, None);
        let bytes = self.bytes;
        for_each::<L>(bytes, self.fields.args, self.args, |key, value| match key {
            b"correlation" | b"correlation id" | b"correlationId" => {
                op.correlation = parse_nonzero_id(bytes, value)
            }
            b"External id" | b"external id" => op.external = parse_nonzero_id(bytes, value),
            b"device" | b"deviceId" => op.device = parse_u32(bytes, value),
            b"context" | b"contextId" => op.context = parse_u32(bytes, value),
            b"stream" | b"streamId" => op.stream = parse_u32(bytes, value),
            // Cuspy shows the operations of a CUDA graph on artificial streams. The argument `original_stream` contains
            // the real stream.
            b"original_stream" => original_stream = parse_u32(bytes, value),
            b"graph id" | b"graphId" => op.graph = parse_u32(bytes, value).filter(|&id| id != 0),
            b"graph node id" | b"graphNodeId" => op.graph_node = parse_nonzero_id(bytes, value),
            b"copy kind" | b"copy_kind" | b"copyKind" | b"direction" | b"kind" => {
                op.direction = to_text(bytes, value)
            }
            b"fromDevice" => peers.0 = parse_u32(bytes, value),
            b"toDevice" => peers.1 = parse_u32(bytes, value),
            b"bytes" | b"size" => op.bytes = parse_unsigned(value.slice(bytes)).unwrap_or(0),
            b"grid" => op.grid = parse_triple(value.slice(bytes)),
            b"block" => op.block = parse_triple(value.slice(bytes)),
            b"registers per thread" => op.registers = parse_u32(bytes, value).unwrap_or(0),
            b"shared memory" => op.shared = parse_u32(bytes, value).unwrap_or(0),
            b"Collective name" => op.collective = true,
            b"Process Group Name" => op.process_group = to_text(bytes, value),
            b"created_stack" => op.created = to_text(bytes, value),
            b"created_kinds" => op.created_kinds = to_text(bytes, value),
            b"created_sf" => (op.created, op.created_kinds) = (to_text(bytes, value), FRAME),
            b"gpuflame" => op.reason = to_text(bytes, value),
            b"start_time" => times.0 = value,
            b"end_time" => times.1 = value,
            _ => {}
        });
        (op.stream, op.is_moved) = (original_stream.or(op.stream), original_stream.is_some());
        op.in_args = has_both(times);
        (op.start, op.end) = match is_begin {
            true => self.read_time().map(|time| (time, time))?,
            false => self.read_times(times)?,
        };
        op.peers = peers.0.zip(peers.1).filter(|(from, to)| from != to);
        op.flow = self.bound_flow(self.fields.flow_in);
        let process = parse_id(bytes, self.fields.process);
        op.lane = (process, parse_id(bytes, self.fields.thread));
        // In Kineto's events for GPU operations, the process field contains the device. The tool eunomia writes this
        // process field in the form `Device_0`.
        op.process = match process {
            Id::Number(number) if op.device.map(i64::from) != Some(number) => process,
            _ => Id::None,
        };
        if let Some(name) = op.name.raw().strip_prefix(b"Kernel: ") {
            op.name = Text::json(name, true);
        }
        Some(op)
    }

    #[cold]
    fn read_idle_node(&mut self, is_host: bool) -> Option<Event<'a>> {
        let run = Op { name: Text::default(), ..self.read_work(OpKind::Kernel, false)? };
        Some(Event::IdleNode(IdleNode { is_host, run }))
    }

    /// Reads an operation of a device that the tool unitrace recorded. The process field of an event from unitrace is a
    /// number that represents the device.
    #[cold]
    fn read_level_zero_op(&mut self) -> Option<Event<'a>> {
        let name = self.fields.name.slice(self.bytes);
        let has = |word: &str| name.windows(word.len()).any(|window| window == word.as_bytes());
        let kind = match () {
            () if has("AppendMemoryCopy") || has("EnqueueReadBuffer") || has("EnqueueWriteBuffer") => {
                OpKind::Copy
            }
            () if has("AppendMemoryFill") || has("EnqueueFillBuffer") => OpKind::Set,
            () => OpKind::Kernel,
        };
        let correlation = self.read_level_zero_id();
        Some(match self.read_op(kind)? {
            Event::Op(op) => {
                let stream = parse_u32(self.bytes, self.fields.thread).map(|thread| u32::MAX - thread);
                Event::Op(Op { correlation, stream, ..op })
            }
            other => other,
        })
    }

    /// Whether the slice is a Level Zero call that is linked to a device operation by unitrace.
    #[inline(always)]
    fn is_level_zero_call(&self) -> bool {
        self.fields.name.slice(self.bytes).starts_with(b"zeCommand") && self.read_level_zero_id().is_some()
    }

    #[cold]
    fn read_level_zero_call(&mut self, wants: Wants) -> Option<Event<'a>> {
        if !wants.has(Wants::CALLS) {
            return None;
        }
        let correlation = self.read_level_zero_id();
        Some(Event::Call(Call { correlation, ..self.read_call(true)? }))
    }

    /// Returns the id by which unitrace links a call to the device operation that it started.
    #[cold]
    fn read_level_zero_id(&self) -> Option<u64> {
        let mut id = None;
        for_each::<L>(self.bytes, self.fields.args, self.args, |key, value| {
            if key == b"id" {
                id = parse_nonzero_id(self.bytes, value);
            }
        });
        id
    }

    /// Reads an event of an MTIA accelerator. Programs and copies are read as operations, and `event_wait` is read as a
    /// wait. All other events are returned as `Event::Other`.
    #[cold]
    fn read_mtia(&mut self) -> Option<Event<'a>> {
        let name = to_text(self.bytes, self.fields.name);
        match name.raw() {
            b"event_wait" => self.read_sync(),
            b"event_record" => Some(Event::Other(Text::default())),
            b"pe_exe" | b"merge" | b"remote" => self.read_mtia_op(OpKind::Kernel, None),
            b"dma_request" => {
                let mut direction = Text::default();
                for_each::<L>(self.bytes, self.fields.args, self.args, |key, value| {
                    if key == b"direction" {
                        direction = to_text(self.bytes, value);
                    }
                });
                let name = match direction.raw() {
                    b"HOST_TO_DEVICE" => "HtoD",
                    b"DEVICE_TO_HOST" => "DtoH",
                    _ => "DtoD",
                };
                self.read_mtia_op(OpKind::Copy, Some(name))
            }
            _ => Some(Event::Other(to_text(self.bytes, self.fields.category))),
        }
    }

    /// Reads an operation of an MTIA accelerator. The process field of an MTIA event contains the device.
    fn read_mtia_op(&mut self, kind: OpKind, name: Option<&'static str>) -> Option<Event<'a>> {
        Some(match self.read_op(kind)? {
            Event::Op(op) => Event::Op(Op {
                name: name.map_or(op.name, Text::from),
                process: Id::None,
                device: parse_u32(self.bytes, self.fields.process),
                ..op
            }),
            other => other,
        })
    }

    /// Reads an event that has no category. All events from the profilers of JAX and Ascend have no category. An event
    /// with arguments that are typical of GPU work is read as GPU work.
    #[cold]
    fn read_bare(&mut self) -> Option<Event<'a>> {
        let bytes = self.bytes;
        let (mut kind, mut is_call, mut stream, mut correlation) = (None, false, None, None);
        for_each::<L>(bytes, self.fields.args, self.args, |key, value| match key {
            b"kernel_details" => kind = Some(OpKind::Kernel),
            b"memcpy_details" => kind = Some(OpKind::Copy),
            b"memset_details" => kind = Some(OpKind::Set),
            b"Task Type" => kind = kind.or_else(|| task_kind(value.slice(bytes))),
            b"Physic Stream Id" | b"Stream Id" => stream = parse_u32(bytes, value),
            b"correlation_id" => {
                correlation = parse_nonzero_id(bytes, value);
                is_call = true;
            }
            _ => {}
        });
        let name = to_text(bytes, self.fields.name);
        match (kind, name.raw()) {
            (Some(kind), _) => Some(match self.read_op(kind)? {
                Event::Op(op) => Event::Op(Op {
                    stream: stream.or(op.stream).or_else(|| parse_u32(bytes, self.fields.thread)),
                    correlation: correlation.or(op.correlation),
                    process: Id::None,
                    device: op.device.or_else(|| parse_u32(bytes, self.fields.process)),
                    ..op
                }),
                other => other,
            }),
            // JAX writes a `$` before the names of Python functions.
            (None, [b'$', ..]) => self.read_python(Wants::PYTHON).map(Event::Python),
            (None, [b'c', b'u', ..] | [b'h', b'i', b'p', ..]) if is_call => {
                Some(Event::Call(Call { correlation, ..self.read_call(true)? }))
            }
            _ => Some(Event::Other(Text::default())),
        }
    }

    #[inline(always)]
    fn read_call(&mut self, driver: bool) -> Option<Call<'a>> {
        let mut call = Call { driver, ..Call::default() };
        let mut times = (Value::default(), Value::default());
        let bytes = self.bytes;
        for_each::<L>(bytes, self.fields.args, self.args, |key, value| match key {
            b"correlation" | b"correlation id" | b"correlationId" => {
                call.correlation = parse_nonzero_id(bytes, value)
            }
            b"External id" | b"external id" => call.external = parse_nonzero_id(bytes, value),
            b"stack" if matches!(value.shape, Shape::String | Shape::Escaped) => {
                call.stack = to_text(bytes, value)
            }
            b"stack_kinds" => call.stack_kinds = to_text(bytes, value),
            b"kernel" => call.kernel = to_text(bytes, value),
            b"programmatic" => call.programmatic = parse_unsigned(value.slice(bytes)).map(|value| value != 0),
            b"stream" => call.stream = parse_u32(bytes, value),
            b"graph node id" | b"graphNodeId" => call.graph_node = parse_nonzero_id(bytes, value),
            b"gpuflame" => call.pending = value.slice(bytes) == b"launch_pending",
            b"start_time" => times.0 = value,
            b"end_time" => times.1 = value,
            _ => {}
        });
        (call.start, call.end) = self.read_times(times)?;
        (call.process, call.thread) =
            (parse_id(bytes, self.fields.process), parse_id(bytes, self.fields.thread));
        call.name = to_text(bytes, self.fields.name);
        call.flow = self.bound_flow(self.fields.flow_out);
        if self.fields.frame.shape != Shape::Missing && call.stack.is_empty() {
            (call.stack, call.stack_kinds) = (to_text(bytes, self.fields.frame), FRAME);
        }
        if let Some(bare) =
            [&b"Runtime: "[..], b"Driver: "].iter().find_map(|p| call.name.raw().strip_prefix(*p))
        {
            call.name = Text::json(bare, true);
        }
        Some(call)
    }

    // This function is inlined, because a separate function would be compiled without the instruction set `L`, and each
    // intrinsic would then be a function call.
    #[inline(always)]
    fn read_cpu(&mut self, kind: CpuKind, needs_args: bool) -> Option<CpuOp<'a>> {
        let (mut external, mut sequence, mut forward_thread) = (None, None, None);
        let mut record_function = None;
        let mut call_stack = Text::default();
        let mut times = (Value::default(), Value::default());
        let bytes = self.bytes;
        let (args, found) = if needs_args { (self.fields.args, self.args) } else { Default::default() };
        for_each::<L>(bytes, args, found, |key, value| match key {
            b"External id" | b"external id" => external = parse_nonzero_id(bytes, value),
            b"Record function id" => record_function = parse_nonzero_id(bytes, value),
            b"Call stack" => call_stack = to_text(bytes, value),
            b"Sequence number" => sequence = parse_unsigned(value.slice(bytes)),
            b"Fwd thread id" => forward_thread = parse_nonzero_id(bytes, value),
            b"start_time" => times.0 = value,
            b"end_time" => times.1 = value,
            _ => {}
        });
        let in_args = has_both(times);
        let (start, end) = self.read_times(times)?;
        let (process, thread) = (parse_id(bytes, self.fields.process), parse_id(bytes, self.fields.thread));
        let name = to_text(bytes, self.fields.name);
        let kind = step_or(bytes, self.fields, kind);
        Some(CpuOp {
            kind,
            name,
            start,
            end,
            process,
            thread,
            external,
            record_function,
            call_stack,
            sequence,
            in_args,
            forward_thread,
        })
    }

    fn read_python(&mut self, wants: Wants) -> Option<PythonFrame<'a>> {
        let (mut number, mut parent) = (None, None);
        let bytes = self.bytes;
        let args = if wants.has(Wants::DETAILS) { self.fields.args } else { Value::default() };
        for_each::<L>(bytes, args, None, |key, value| match key {
            b"Python id" => number = parse_nonzero_id(bytes, value),
            b"Python parent id" => parent = parse_nonzero_id(bytes, value),
            _ => {}
        });
        let (start, end) = self.read_times(Default::default())?;
        let (process, thread) = (parse_id(bytes, self.fields.process), parse_id(bytes, self.fields.thread));
        let name = to_text(bytes, self.fields.name);
        Some(PythonFrame { name, start, end, process, thread, id: number, parent })
    }

    /// Reads the start of a slice. A separate trace event contains the end.
    #[cold]
    fn read_begin(&mut self, class: Class) -> Option<Event<'a>> {
        let bytes = self.bytes;
        let kind = match class {
            Class::Call { .. } => SliceKind::Call,
            Class::Python => SliceKind::Python,
            Class::Cpu(kind) => SliceKind::Cpu(step_or(bytes, self.fields, kind)),
            Class::Op(_) => SliceKind::Work,
            _ => SliceKind::Unknown,
        };
        let mut work = None;
        if let Class::Op(kind) = class {
            work = Some(self.read_work(kind, true)?);
        }
        let correlation = self.read_correlation();
        let time = self.read_time()?;
        let (process, thread) = (parse_id(bytes, self.fields.process), parse_id(bytes, self.fields.thread));
        Some(Event::Begin(Begin {
            kind,
            category: to_text(bytes, self.fields.category),
            name: to_text(bytes, self.fields.name),
            time,
            process,
            thread,
            correlation,
            work,
        }))
    }

    fn read_correlation(&self) -> Option<u64> {
        let mut correlation = None;
        for_each::<L>(self.bytes, self.fields.args, self.args, |key, value| {
            if matches!(key, b"correlation" | b"correlation id" | b"correlationId") {
                correlation = parse_nonzero_id(self.bytes, value);
            }
        });
        correlation
    }

    /// Returns the id of the flow in `bind_id` if `flag` is set. `flag` is the value of the field `flow_in` or
    /// `flow_out`.
    #[inline(always)]
    fn bound_flow(&self, flag: Value) -> Option<u64> {
        if flag.shape == Shape::Missing || flag.slice(self.bytes) == b"false" {
            return None;
        }
        parse_flow_id(self.bytes, self.fields.flow)
    }

    #[cold]
    fn read_end(&mut self) -> Option<Event<'a>> {
        let time = self.read_time()?;
        let (process, thread) =
            (parse_id(self.bytes, self.fields.process), parse_id(self.bytes, self.fields.thread));
        let (category, name) =
            (to_text(self.bytes, self.fields.category), to_text(self.bytes, self.fields.name));
        Some(Event::End(End { category, name, correlation: self.read_correlation(), time, process, thread }))
    }

    fn read_flow(&mut self, kind: FlowKind) -> Option<Flow<'a>> {
        let bytes = self.bytes;
        let begins = match self.fields.phase.slice(bytes) {
            b"s" => true,
            b"f" => false,
            _ => return None,
        };
        let flow_id = parse_flow_id(bytes, self.fields.id)?;
        let (time, _) = parse_time(bytes, self.fields.time)?;
        let (process, thread) = (parse_id(bytes, self.fields.process), parse_id(bytes, self.fields.thread));
        let enclosed = self.fields.binding.slice(bytes) == b"e";
        Some(Flow { kind, id: flow_id, begins, enclosed, time, process, thread })
    }

    fn read_time(&mut self) -> Option<i64> {
        match parse_time(self.bytes, self.fields.time) {
            Some((time, fraction)) => {
                self.count_precision(fraction);
                Some(time)
            }
            None => {
                self.counts.untimed += 1;
                None
            }
        }
    }

    /// Counts a GPU operation that cannot be used, because its trace event has no duration. For an operation whose end
    /// is in a separate trace event, only the start event is counted.
    #[cold]
    fn count_untimed(&mut self) -> Option<Event<'a>> {
        self.counts.untimed += u64::from(!matches!(self.fields.phase.slice(self.bytes), b"E" | b"e"));
        None
    }

    fn read_sync(&mut self) -> Option<Event<'a>> {
        let mut sync = Sync { name: to_text(self.bytes, self.fields.name), ..Sync::default() };
        let bytes = self.bytes;
        for_each::<L>(bytes, self.fields.args, self.args, |key, value| match key {
            b"correlation" => sync.correlation = parse_nonzero_id(bytes, value),
            b"device" => sync.device = parse_u32(bytes, value),
            b"context" => sync.context = parse_u32(bytes, value),
            b"stream" => sync.stream = parse_u32(bytes, value),
            b"wait_on_cuda_event_id" => sync.event = parse_u32(bytes, value),
            b"wait_on_stream" => sync.on_stream = parse_u32(bytes, value),
            b"wait_on_cuda_event_record_corr_id" => sync.record_correlation = parse_nonzero_id(bytes, value),
            _ => {}
        });
        (sync.start, sync.end) = self.read_times(Default::default())?;
        Some(Event::Sync(sync))
    }

    /// Reads an event about the recording of a CUDA event on a stream. Waits refer to this recording by the correlation
    /// id of the call that recorded the CUDA event.
    #[cold]
    fn read_event_record(&mut self) -> Event<'a> {
        let mut record = EventRecord::default();
        let bytes = self.bytes;
        for_each::<L>(bytes, self.fields.args, self.args, |key, value| match key {
            b"event_id" => record.event = parse_u32(bytes, value),
            b"context" => record.context = parse_u32(bytes, value),
            b"stream" => record.stream = parse_u32(bytes, value),
            b"correlation" => record.correlation = parse_nonzero_id(bytes, value),
            _ => {}
        });
        record.number = record.correlation;
        Event::EventRecord(record)
    }

    /// Reads an event with metadata: the name of a process or thread, or the kind of a stream. All other metadata is
    /// skipped.
    fn read_metadata(&mut self) -> Option<Event<'a>> {
        let bytes = self.bytes;
        let thread = match self.fields.name.slice(bytes) {
            b"process_name" => Id::None,
            b"thread_name" => parse_id(bytes, self.fields.thread),
            b"cuda_stream" => return Some(self.read_stream_flag()),
            _ => return None,
        };
        let mut name = Text::default();
        for_each::<L>(bytes, self.fields.args, self.args, |key, value| {
            if key == b"name" {
                name = to_text(bytes, value);
            }
        });
        Some(Event::Thread(ThreadName { process: parse_id(bytes, self.fields.process), thread, name }))
    }

    #[cold]
    fn read_stream_flag(&mut self) -> Event<'a> {
        let mut stream = StreamFlag::default();
        let bytes = self.bytes;
        for_each::<L>(bytes, self.fields.args, self.args, |key, value| match key {
            b"context" => stream.context = parse_u32(bytes, value),
            b"stream" => stream.stream = parse_u32(bytes, value),
            b"flag" => stream.flag = parse_u32(bytes, value),
            _ => {}
        });
        Event::Stream(stream)
    }

    /// Reads the start and end times from the fields `ts` and `dur`. Exact times in the arguments, as in Paddle's
    /// traces, are used instead of these fields.
    #[inline(always)]
    fn read_times(&mut self, exact: (Value, Value)) -> Option<(i64, i64)> {
        let exact = match exact {
            (start, end) if has_both((start, end)) => {
                parse_time(self.bytes, start).zip(parse_time(self.bytes, end))
            }
            _ => None,
        };
        if let Some(((start, fraction), (end, _))) = exact {
            self.count_precision(fraction);
            return Some((start, end));
        }
        let time = parse_time(self.bytes, self.fields.time);
        let Some(((start, fraction), (duration, _))) = time.zip(parse_time(self.bytes, self.fields.duration))
        else {
            self.counts.untimed += 1;
            return None;
        };
        self.count_precision(fraction);
        Some((start, start.saturating_add(duration)))
    }

    #[inline(always)]
    fn count_precision(&mut self, fraction: bool) {
        self.counts.fractional_times += u64::from(fraction);
        self.counts.whole_times += u64::from(!fraction);
    }
}

/// Whether the event has both a start and an end.
#[inline(always)]
fn has_both((start, end): (Value, Value)) -> bool {
    start.shape != Shape::Missing && end.shape != Shape::Missing
}

/// Parses the time in a field. The field may be text with surrounding blanks and a unit (`"12.345 us"`). The returned
/// flag is true if the time has digits after the decimal point.
#[inline(always)]
fn parse_time(bytes: &[u8], value: Value) -> Option<(i64, bool)> {
    let number = match value.slice(bytes) {
        raw @ [.., b'0'..=b'9'] => parse_micros(raw),
        _ => None,
    };
    number
        .or_else(|| parse_micros(to_text(bytes, value).decode().split_ascii_whitespace().next()?.as_bytes()))
}

/// Parses a process or thread id: a number, a quoted number, a number with a suffix (`"123(Python)"`), or other text.
fn parse_id(bytes: &[u8], value: Value) -> Id<'_> {
    let raw = value.slice(bytes);
    if let Some(number) = parse_integer(raw) {
        return Id::Number(number);
    }
    match value.shape {
        Shape::Missing | Shape::Word | Shape::Nested => Id::None,
        Shape::String | Shape::Escaped => {
            let digits = raw.iter().take_while(|byte| byte.is_ascii_digit()).count();
            match raw.get(digits) {
                Some(b'(') if digits > 0 => parse_integer(&raw[..digits]).map_or(Id::None, Id::Number),
                _ => Id::Text(to_text(bytes, value)),
            }
        }
    }
}

/// Returns the kind of a task on an Ascend device. The kind of a task follows from the unit that runs it (a matrix or
/// vector core, or a copy engine).
fn task_kind(word: &[u8]) -> Option<OpKind> {
    match word {
        b"AI_CORE" | b"AI_VECTOR_CORE" | b"AI_CPU" | b"MIX_AIC" | b"MIX_AIV" | b"KERNEL_AICORE" => {
            Some(OpKind::Kernel)
        }
        b"MEMCPY_ASYNC" | b"SDMA" => Some(OpKind::Copy),
        _ => None,
    }
}

/// Parses the id in a field. Returns `None` if the id is 0, because 0 means that there is no id.
#[inline(always)]
fn parse_nonzero_id(bytes: &[u8], value: Value) -> Option<u64> {
    parse_unsigned(value.slice(bytes)).filter(|&id| id != 0)
}

/// Parses the id of a flow: a number, a hexadecimal number in quotes, or other text. Other text is converted to a hash.
fn parse_flow_id(bytes: &[u8], value: Value) -> Option<u64> {
    let raw = value.slice(bytes);
    if let Some(number) = parse_unsigned(raw) {
        return Some(number);
    }
    if !matches!(value.shape, Shape::String | Shape::Escaped | Shape::Word) || raw.is_empty() {
        return None;
    }
    let hex = raw
        .strip_prefix(b"0x")
        .or(raw.strip_prefix(b"0X"))
        .and_then(|digits| std::str::from_utf8(digits).ok());
    if let Some(number) = hex.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        return Some(number);
    }
    // The hash of the text is computed with FNV-1a. The highest bit of the hash is set, so that the hash differs from
    // numeric ids, which are small.
    let hash = raw.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Some(hash | 1 << 63)
}

#[inline(always)]
fn parse_u32(bytes: &[u8], value: Value) -> Option<u32> {
    parse_unsigned(value.slice(bytes)).and_then(|value| u32::try_from(value).ok())
}

/// Parses an array of three numbers such as `[1, 2, 3]`.
fn parse_triple(text: &[u8]) -> [u32; 3] {
    let mut all = [0; 3];
    let mut numbers = text.split(|byte| !byte.is_ascii_digit()).filter(|word| !word.is_empty());
    for place in &mut all {
        *place = numbers.next().and_then(parse_unsigned).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    }
    all
}
