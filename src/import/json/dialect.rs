//! What an event is, from its category and phase, and what its arguments mean, in each dialect.
//!
//! | dialect | GPU categories | calls | id | times |
//! |---|---|---|---|---|
//! | Paddle | Kernel Memcpy Memset | CudaRuntime | `correlation id` | text in `args` (`ts` is cut to us) |
//! | Kineto 2021 | Kernel Memcpy Memset | Runtime | `correlation` | whole us |
//! | Kineto 2022 | kernel gpu_memcpy gpu_memset | cuda_runtime | `correlation` | whole us |
//! | Kineto 2024 | the same | and cuda_driver | `correlation` | us with three digits |
//! | Kineto ROCm | the same | cuda_runtime, hip names | `correlation` | us with digits |
//! | eunomia | GPU_Kernel MemCopy | CUDA_Runtime CUDA_Driver | `correlationId` | us with digits |
//! | MTIA | mtia_ccp_events, by name | mtia_runtime | `correlation` | us with digits |
//! | XPU | as Kineto | xpu_runtime xpu_driver | `correlation` | us with digits |
//! | Ascend | none: `Task Type` in `args` | cpu_op alone | - | text |
//! | JAX | none: `kernel_details`, `memcpy_details` in `args` | `correlation_id` in `args` | `correlation_id` | us with digits |

use super::super::Text;
use super::super::model::*;
use super::Seen;
use super::cursor::{self, Shape, Value, blanks};
use super::fields::Fields;
use super::mask::Level;
use super::number::{integer, micros, unsigned};

/// In the place of what frames are: it is one frame, among `stackFrames`.
const FRAME: Text<'static> = Text::plain(b"f");

/// What an event may be, by its category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Op(OpKind),
    Call {
        driver: bool,
    },
    Cpu(CpuKind),
    Python,
    Sync,
    Flow,
    /// Of MTIA: its name tells what it is.
    Mtia,
    /// Of no category: its arguments may tell what it is.
    Bare,
    Other,
}

fn class(category: &[u8]) -> Class {
    match category {
        b"kernel" | b"Kernel" | b"GPU_Kernel" => Class::Op(OpKind::Kernel),
        b"gpu_memcpy" | b"Memcpy" | b"MemCopy" => Class::Op(OpKind::Copy),
        b"gpu_memset" | b"Memset" | b"MemSet" => Class::Op(OpKind::Set),
        b"cuda_runtime"
        | b"Runtime"
        | b"CudaRuntime"
        | b"CUDA_Runtime"
        | b"mtia_runtime"
        | b"privateuse1_runtime"
        | b"xpu_runtime"
        | b"hpu_runtime" => Class::Call { driver: false },
        b"cuda_driver" | b"CUDA_Driver" | b"privateuse1_driver" | b"xpu_driver" => {
            Class::Call { driver: true }
        }
        b"cpu_op" | b"Operator" | b"OperatorInner" => Class::Cpu(CpuKind::Operator),
        b"user_annotation" | b"UserDefined" | b"PythonUserDefined" | b"Forward" | b"Backward"
        | b"Optimization" | b"Dataloader" | b"Communication" | b"PythonOp" => Class::Cpu(CpuKind::Range),
        b"ProfileStep" => Class::Cpu(CpuKind::Step),
        b"python_function" => Class::Python,
        b"cuda_sync" => Class::Sync,
        b"fwdbwd" => Class::Flow,
        b"mtia_ccp_events" => Class::Mtia,
        _ => Class::Other,
    }
}

/// Hands the event to `sink` if it was asked for.
#[inline(always)]
pub(super) fn emit<L: Level>(
    bytes: &[u8],
    fields: &Fields,
    wants: Wants,
    seen: &mut Seen,
    sink: &mut impl Sink,
) {
    let class = match fields.category.shape {
        Shape::String => class(fields.category.of(bytes)),
        Shape::Escaped => class(text(bytes, fields.category).decode().as_bytes()),
        Shape::Missing => Class::Bare,
        _ => Class::Other,
    };
    let phase = fields.phase.of(bytes);
    let is_complete = phase == b"X";
    let mut event = Reading::<L> { bytes, fields, seen, level: std::marker::PhantomData };
    let event = match class {
        Class::Op(kind) if is_complete && wants.has(Wants::OPS) => event.op(kind),
        Class::Call { driver } if is_complete && wants.has(Wants::CALLS) => event.call(driver),
        Class::Cpu(kind) if is_complete && event.wants_cpu(kind, wants) => event.cpu(kind, wants),
        Class::Python if is_complete && wants.has(Wants::PYTHON) => event.python(wants),
        Class::Sync if is_complete && wants.has(Wants::SYNCS) => event.sync(),
        Class::Mtia if is_complete && (wants.has(Wants::OPS) || wants.has(Wants::SYNCS)) => event.mtia(),
        Class::Bare if is_complete && wants.has(Wants::OPS) => event.bare(),
        Class::Other | Class::Bare if phase == b"M" && wants.has(Wants::NAMES) => event.thread(),
        _ if phase == b"E" && wants.has(Wants::EDGES) => event.end(),
        Class::Flow if wants.has(Wants::FLOWS) => event.flow(),
        Class::Other | Class::Bare if wants.has(Wants::OTHER) => {
            Some(Event::Other(text(bytes, fields.category)))
        }
        Class::Op(_) if wants.has(Wants::OPS) => event.unusable(),
        Class::Call { .. } | Class::Cpu(_) | Class::Python if phase == b"B" && wants.has(Wants::EDGES) => {
            event.begin(class)
        }
        _ => None,
    };
    if let Some(event) = event {
        sink.event(&event);
    }
}

struct Reading<'a, L> {
    bytes: &'a [u8],
    fields: &'a Fields,
    seen: &'a mut Seen,
    level: std::marker::PhantomData<L>,
}

impl<'a, L: Level> Reading<'a, L> {
    #[inline(always)]
    fn op(&mut self, kind: OpKind) -> Option<Event<'a>> {
        let mut op = Op { kind, name: text(self.bytes, self.fields.name), ..Op::default() };
        let mut times = (Value::default(), Value::default());
        let bytes = self.bytes;
        for_each::<L>(bytes, self.fields.args, |key, value| match key {
            b"correlation" | b"correlation id" | b"correlationId" => op.correlation = known_id(bytes, value),
            b"External id" | b"external id" => op.external = known_id(bytes, value),
            b"device" | b"deviceId" => op.device = small(bytes, value),
            b"context" | b"contextId" => op.context = small(bytes, value),
            b"stream" | b"streamId" => op.stream = small(bytes, value),
            b"graph id" | b"graphId" => op.graph = small(bytes, value).filter(|&id| id != 0),
            b"graph node id" | b"graphNodeId" => op.graph_node = known_id(bytes, value),
            b"bytes" | b"size" => op.bytes = unsigned(value.of(bytes)).unwrap_or(0),
            b"grid" => op.grid = triple(value.of(bytes)),
            b"block" => op.block = triple(value.of(bytes)),
            b"registers per thread" => op.registers = small(bytes, value).unwrap_or(0),
            b"shared memory" => op.shared = small(bytes, value).unwrap_or(0),
            b"Collective name" => op.collective = true,
            b"created_stack" => op.created = text(bytes, value),
            b"created_kinds" => op.created_kinds = text(bytes, value),
            b"created_sf" => (op.created, op.created_kinds) = (text(bytes, value), FRAME),
            b"gpuflame" => op.reason = text(bytes, value),
            b"start_time" => times.0 = value,
            b"end_time" => times.1 = value,
            _ => {}
        });
        op.in_args = are_there(times);
        (op.start, op.end) = self.times(times)?;
        let process = id(bytes, self.fields.process);
        // In Kineto a GPU operation's process is its device, which eunomia writes as `Device_0`.
        op.process = match process {
            Id::Number(number) if op.device.map(i64::from) != Some(number) => process,
            _ => Id::None,
        };
        if let Some(name) = op.name.raw().strip_prefix(b"Kernel: ") {
            op.name = Text::json(name, true);
        }
        Some(Event::Op(op))
    }

    /// What an accelerator of MTIA did: programs and copies are work; the rest of its stream is waiting.
    #[cold]
    fn mtia(&mut self) -> Option<Event<'a>> {
        let name = text(self.bytes, self.fields.name);
        match name.raw() {
            b"event_wait" => self.sync(),
            b"event_record" => Some(Event::Other(Text::default())),
            b"pe_exe" | b"merge" | b"remote" => self.mtia_op(OpKind::Kernel, None),
            b"dma_request" => {
                let mut direction = Text::default();
                for_each::<L>(self.bytes, self.fields.args, |key, value| {
                    if key == b"direction" {
                        direction = text(self.bytes, value);
                    }
                });
                let name = match direction.raw() {
                    b"HOST_TO_DEVICE" => "HtoD",
                    b"DEVICE_TO_HOST" => "DtoH",
                    _ => "DtoD",
                };
                self.mtia_op(OpKind::Copy, Some(name))
            }
            _ => Some(Event::Other(text(self.bytes, self.fields.category))),
        }
    }

    /// Work of MTIA, whose process is its device.
    fn mtia_op(&mut self, kind: OpKind, name: Option<&'static str>) -> Option<Event<'a>> {
        Some(match self.op(kind)? {
            Event::Op(op) => Event::Op(Op {
                name: name.map_or(op.name, Text::from),
                process: Id::None,
                device: small(self.bytes, self.fields.process),
                ..op
            }),
            other => other,
        })
    }

    /// An event without a category, as profilers of JAX and Ascend write all of theirs: work where its arguments are those
    /// of work.
    #[cold]
    fn bare(&mut self) -> Option<Event<'a>> {
        let bytes = self.bytes;
        let (mut kind, mut is_call, mut stream, mut correlation) = (None, false, None, None);
        for_each::<L>(bytes, self.fields.args, |key, value| match key {
            b"kernel_details" => kind = Some(OpKind::Kernel),
            b"memcpy_details" => kind = Some(OpKind::Copy),
            b"memset_details" => kind = Some(OpKind::Set),
            b"Task Type" => kind = kind.or_else(|| task_kind(value.of(bytes))),
            b"Physic Stream Id" | b"Stream Id" => stream = small(bytes, value),
            b"correlation_id" => {
                correlation = known_id(bytes, value);
                is_call = true;
            }
            _ => {}
        });
        let name = text(bytes, self.fields.name);
        match (kind, name.raw()) {
            (Some(kind), _) => Some(match self.op(kind)? {
                Event::Op(op) => Event::Op(Op {
                    stream: stream.or(op.stream).or_else(|| small(bytes, self.fields.thread)),
                    correlation: correlation.or(op.correlation),
                    process: Id::None,
                    device: op.device.or_else(|| small(bytes, self.fields.process)),
                    ..op
                }),
                other => other,
            }),
            // JAX's own mark for functions of Python.
            (None, [b'$', ..]) => self.python(Wants::PYTHON),
            (None, [b'c', b'u', ..] | [b'h', b'i', b'p', ..]) if is_call => Some(match self.call(true)? {
                Event::Call(call) => Event::Call(Call { correlation, ..call }),
                other => other,
            }),
            _ => Some(Event::Other(Text::default())),
        }
    }

    #[inline(always)]
    fn call(&mut self, driver: bool) -> Option<Event<'a>> {
        let mut call = Call { driver, ..Call::default() };
        let mut times = (Value::default(), Value::default());
        let bytes = self.bytes;
        for_each::<L>(bytes, self.fields.args, |key, value| match key {
            b"correlation" | b"correlation id" | b"correlationId" => {
                call.correlation = known_id(bytes, value)
            }
            b"External id" | b"external id" => call.external = known_id(bytes, value),
            b"stack" if matches!(value.shape, Shape::String | Shape::Escaped) => {
                call.stack = text(bytes, value)
            }
            b"stack_kinds" => call.stack_kinds = text(bytes, value),
            b"kernel" => call.kernel = text(bytes, value),
            b"stream" => call.stream = small(bytes, value),
            b"graph node id" | b"graphNodeId" => call.graph_node = known_id(bytes, value),
            b"gpuflame" => call.pending = value.of(bytes) == b"launch_pending",
            b"start_time" => times.0 = value,
            b"end_time" => times.1 = value,
            _ => {}
        });
        (call.start, call.end) = self.times(times)?;
        (call.process, call.thread) = (id(bytes, self.fields.process), id(bytes, self.fields.thread));
        call.name = text(bytes, self.fields.name);
        if self.fields.frame.shape != Shape::Missing && call.stack.is_empty() {
            (call.stack, call.stack_kinds) = (text(bytes, self.fields.frame), FRAME);
        }
        if let Some(bare) =
            [&b"Runtime: "[..], b"Driver: "].iter().find_map(|p| call.name.raw().strip_prefix(*p))
        {
            call.name = Text::json(bare, true);
        }
        Some(Event::Call(call))
    }

    #[inline(always)]
    fn wants_cpu(&self, kind: CpuKind, wants: Wants) -> bool {
        wants.has(Wants::CPU) || (wants.has(Wants::STEPS) && self.kind(kind) == CpuKind::Step)
    }

    /// A step is told by its name where its category does not.
    #[inline(always)]
    fn kind(&self, kind: CpuKind) -> CpuKind {
        let name = self.fields.name.of(self.bytes);
        if name.starts_with(b"ProfilerStep#") || name.starts_with(b"ProfileStep#") {
            CpuKind::Step
        } else {
            kind
        }
    }

    /// Whether the arguments of a CPU slice hold what is read of all: its times, as Paddle has them, or Python functions.
    /// Looking for two words takes a fifth of the time that reading them key by key does.
    fn has_more(&self) -> bool {
        match std::str::from_utf8(self.fields.args.of(self.bytes)) {
            Ok(args) => {
                let stack = args.split_once("\"Call stack\"").map_or("", |(_, stack)| stack);
                let is_empty = stack.trim_start_matches([':', ' ']).starts_with("\"\"");
                !(stack.is_empty() || is_empty) || args.contains("start_time")
            }
            Err(_) => true,
        }
    }

    // Compiled by itself it would not have the instructions of its level, and call each of them.
    #[inline(always)]
    fn cpu(&mut self, kind: CpuKind, wants: Wants) -> Option<Event<'a>> {
        let (mut external, mut sequence, mut forward_thread) = (None, None, None);
        let mut call_stack = Text::default();
        let mut times = (Value::default(), Value::default());
        let bytes = self.bytes;
        let args =
            if wants.has(Wants::DETAILS) || self.has_more() { self.fields.args } else { Value::default() };
        for_each::<L>(bytes, args, |key, value| match key {
            b"External id" | b"external id" => external = known_id(bytes, value),
            b"Call stack" => call_stack = text(bytes, value),
            b"Sequence number" => sequence = unsigned(value.of(bytes)),
            b"Fwd thread id" => forward_thread = known_id(bytes, value),
            b"start_time" => times.0 = value,
            b"end_time" => times.1 = value,
            _ => {}
        });
        let in_args = are_there(times);
        let (start, end) = self.times(times)?;
        let (process, thread) = (id(bytes, self.fields.process), id(bytes, self.fields.thread));
        let name = text(bytes, self.fields.name);
        let kind = self.kind(kind);
        Some(Event::Cpu(CpuOp {
            kind,
            name,
            start,
            end,
            process,
            thread,
            external,
            call_stack,
            sequence,
            in_args,
            forward_thread,
        }))
    }

    fn python(&mut self, wants: Wants) -> Option<Event<'a>> {
        let (mut number, mut parent) = (None, None);
        let bytes = self.bytes;
        let args = if wants.has(Wants::DETAILS) { self.fields.args } else { Value::default() };
        for_each::<L>(bytes, args, |key, value| match key {
            b"Python id" => number = known_id(bytes, value),
            b"Python parent id" => parent = known_id(bytes, value),
            _ => {}
        });
        let (start, end) = self.times(Default::default())?;
        let (process, thread) = (id(bytes, self.fields.process), id(bytes, self.fields.thread));
        let name = text(bytes, self.fields.name);
        Some(Event::Python(PythonFrame { name, start, end, process, thread, id: number, parent }))
    }

    /// A slice whose end is an event of its own.
    #[cold]
    fn begin(&mut self, class: Class) -> Option<Event<'a>> {
        let bytes = self.bytes;
        let kind = match class {
            Class::Call { .. } => SliceKind::Call,
            Class::Python => SliceKind::Python,
            Class::Cpu(kind) => SliceKind::Cpu(self.kind(kind)),
            _ => return None,
        };
        let mut correlation = None;
        for_each::<L>(bytes, self.fields.args, |key, value| {
            if matches!(key, b"correlation" | b"correlation id" | b"correlationId") {
                correlation = known_id(bytes, value);
            }
        });
        let time = self.moment()?;
        let (process, thread) = (id(bytes, self.fields.process), id(bytes, self.fields.thread));
        Some(Event::Begin(Begin {
            kind,
            name: text(bytes, self.fields.name),
            time,
            process,
            thread,
            correlation,
        }))
    }

    #[cold]
    fn end(&mut self) -> Option<Event<'a>> {
        let time = self.moment()?;
        let (process, thread) = (id(self.bytes, self.fields.process), id(self.bytes, self.fields.thread));
        Some(Event::End(End { time, process, thread }))
    }

    #[cold]
    fn flow(&mut self) -> Option<Event<'a>> {
        let bytes = self.bytes;
        let begins = match self.fields.phase.of(bytes) {
            b"s" => true,
            b"f" => false,
            _ => return None,
        };
        let id_of_both = unsigned(self.fields.id.of(bytes))?;
        let (time, _) = moment(bytes, self.fields.time)?;
        let (process, thread) = (id(bytes, self.fields.process), id(bytes, self.fields.thread));
        Some(Event::Flow(Flow { id: id_of_both, begins, time, process, thread }))
    }

    fn moment(&mut self) -> Option<i64> {
        match moment(self.bytes, self.fields.time) {
            Some((time, fraction)) => {
                self.count(fraction);
                Some(time)
            }
            None => {
                self.seen.untimed += 1;
                None
            }
        }
    }

    /// GPU work that is no event with a duration: nobody knows how long it took. Where its end is an event of its own,
    /// that is not counted once more.
    #[cold]
    fn unusable(&mut self) -> Option<Event<'a>> {
        self.seen.untimed += u64::from(!matches!(self.fields.phase.of(self.bytes), b"E" | b"e"));
        None
    }

    fn sync(&mut self) -> Option<Event<'a>> {
        let mut sync = Sync { name: text(self.bytes, self.fields.name), ..Sync::default() };
        let bytes = self.bytes;
        for_each::<L>(bytes, self.fields.args, |key, value| match key {
            b"correlation" => sync.correlation = known_id(bytes, value),
            b"device" => sync.device = small(bytes, value),
            b"context" => sync.context = small(bytes, value),
            b"stream" => sync.stream = small(bytes, value),
            b"wait_on_cuda_event_id" => sync.event = small(bytes, value),
            _ => {}
        });
        (sync.start, sync.end) = self.times(Default::default())?;
        Some(Event::Sync(sync))
    }

    /// `process_name` and `thread_name`; other metadata is passed over.
    fn thread(&mut self) -> Option<Event<'a>> {
        let bytes = self.bytes;
        let thread = match self.fields.name.of(bytes) {
            b"process_name" => Id::None,
            b"thread_name" => id(bytes, self.fields.thread),
            _ => return None,
        };
        let mut name = Text::default();
        for_each::<L>(bytes, self.fields.args, |key, value| {
            if key == b"name" {
                name = text(bytes, value);
            }
        });
        Some(Event::Thread(ThreadName { process: id(bytes, self.fields.process), thread, name }))
    }

    /// Start and end: from `ts` and `dur`, or exactly from what Paddle puts into the arguments.
    #[inline(always)]
    fn times(&mut self, exact: (Value, Value)) -> Option<(i64, i64)> {
        let exact = match exact {
            (start, end) if are_there((start, end)) => moment(self.bytes, start).zip(moment(self.bytes, end)),
            _ => None,
        };
        if let Some(((start, fraction), (end, _))) = exact {
            self.count(fraction);
            return Some((start, end));
        }
        let time = moment(self.bytes, self.fields.time);
        let Some(((start, fraction), (duration, _))) = time.zip(moment(self.bytes, self.fields.duration))
        else {
            self.seen.untimed += 1;
            return None;
        };
        self.count(fraction);
        Some((start, start.saturating_add(duration)))
    }

    #[inline(always)]
    fn count(&mut self, fraction: bool) {
        self.seen.fractions += u64::from(fraction);
        self.seen.whole += u64::from(!fraction);
    }
}

/// Whether both values stand in the event.
#[inline(always)]
fn are_there((start, end): (Value, Value)) -> bool {
    start.shape != Shape::Missing && end.shape != Shape::Missing
}

/// A time, which may be text with blanks around it and a unit behind it (`"12.345 us"`).
#[inline(always)]
fn moment(bytes: &[u8], value: Value) -> Option<(i64, bool)> {
    let number = match value.of(bytes) {
        raw @ [.., b'0'..=b'9'] => micros(raw),
        _ => None,
    };
    number.or_else(|| micros(text(bytes, value).decode().split_ascii_whitespace().next()?.as_bytes()))
}

#[inline(always)]
fn text(bytes: &[u8], value: Value) -> Text<'_> {
    match value.shape {
        Shape::Missing => Text::default(),
        Shape::Escaped => Text::json(value.of(bytes), true),
        _ => Text::plain(value.of(bytes)),
    }
}

/// The number of a process or thread: by itself, in quotes, or with a remark (`"123(Python)"`).
fn id(bytes: &[u8], value: Value) -> Id<'_> {
    let raw = value.of(bytes);
    if let Some(number) = integer(raw) {
        return Id::Number(number);
    }
    match value.shape {
        Shape::Missing | Shape::Word | Shape::Nested => Id::None,
        Shape::String | Shape::Escaped => {
            let digits = raw.iter().take_while(|byte| byte.is_ascii_digit()).count();
            match raw.get(digits) {
                Some(b'(') if digits > 0 => integer(&raw[..digits]).map_or(Id::None, Id::Number),
                _ => Id::Text(text(bytes, value)),
            }
        }
    }
}

/// What a task of Ascend is: of its cores for matrices and vectors, or of what moves memory.
fn task_kind(word: &[u8]) -> Option<OpKind> {
    match word {
        b"AI_CORE" | b"AI_VECTOR_CORE" | b"AI_CPU" | b"MIX_AIC" | b"MIX_AIV" | b"KERNEL_AICORE" => {
            Some(OpKind::Kernel)
        }
        b"MEMCPY_ASYNC" | b"SDMA" => Some(OpKind::Copy),
        _ => None,
    }
}

/// An id; 0 is none.
#[inline(always)]
fn known_id(bytes: &[u8], value: Value) -> Option<u64> {
    unsigned(value.of(bytes)).filter(|&id| id != 0)
}

#[inline(always)]
fn small(bytes: &[u8], value: Value) -> Option<u32> {
    unsigned(value.of(bytes)).and_then(|value| u32::try_from(value).ok())
}

/// `[1, 2, 3]`.
fn triple(text: &[u8]) -> [u32; 3] {
    let mut all = [0; 3];
    let mut numbers = text.split(|byte| !byte.is_ascii_digit()).filter(|word| !word.is_empty());
    for place in &mut all {
        *place = numbers.next().and_then(unsigned).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    }
    all
}

/// Calls `take` with the keys and values of an object. It was stepped over before, but not looked into: one
/// that makes no sense ends there.
#[inline(always)]
fn for_each<L: Level>(bytes: &[u8], object: Value, mut take: impl FnMut(&[u8], Value)) {
    if object.shape != Shape::Nested || bytes[object.start as usize] != b'{' {
        return;
    }
    let mut at = blanks(bytes, object.start as usize + 1);
    while bytes[at] == b'"' && at < object.end as usize {
        let Ok(key) = cursor::string::<L>(bytes, at + 1) else { return };
        let Ok(behind) = cursor::colon(bytes, key.end as usize + 1) else { return };
        let Ok((value, next)) = cursor::value::<L>(bytes, behind) else { return };
        match key.shape {
            Shape::Escaped => take(text(bytes, key).decode().as_bytes(), value),
            _ => take(key.of(bytes), value),
        }
        at = blanks(bytes, next);
        if bytes[at] != b',' {
            return;
        }
        at = blanks(bytes, at + 1);
    }
}
