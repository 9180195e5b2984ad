//! The collector stores the contents of a trace (operations, calls, slices and their arguments) until the whole trace
//! is read. Module `rows` then turns the contents into rows.

use super::graph_captures::{GraphCall, GraphCaptures, GraphRole};
use super::model::*;
use super::operator_links::{Operator, OperatorLinks};
use super::slice_edges::SliceEdges;
use super::slices::{FrameClass, NONE, Slice};
use super::stack_frames::StackFrames;
use super::work::{CallRecord, OpRecord};
use super::{NameTable, Text};
use gpuflame_model::record::{
    CopyDetail, CopyKind, Created, Detail, IdMap, KernelDetail, MemoryKind, Missing, NameId, SetDetail,
    SyncKind,
};

/// A [`Sink`] that stores everything from which rows are made.
#[derive(Debug, Default)]
pub struct TraceCollector {
    pub(super) kernels: NameTable,
    pub(super) labels: NameTable,
    ids: NameTable,
    processes: IdMap<(u8, i64), u32>,
    /// Devices, by the numbers that stand for them in the place of processes.
    device_processes: IdMap<i64, u32>,
    threads: IdMap<(u32, (u8, i64)), u32>,
    /// Threads, each as its process, its number if it has one, and its name.
    pub(super) thread_facts: Vec<(u32, Option<u32>, Box<str>)>,
    pub(super) ops: Vec<OpRecord>,
    pub(super) syncs: Vec<SyncRecord>,
    /// Stack that created the graph node of an operation, by index of the operation, as a number in `given_stacks`.
    /// `None` if the stack is unknown.
    pub(super) created: IdMap<u32, Option<u32>>,
    /// Reasons why operations have no launch, by index of the operation.
    pub(super) reasons: IdMap<u32, Missing>,
    /// Graph captures from other traces. If captures are given, `graph_calls` is filled.
    pub(super) graph_captures: Option<GraphCaptures>,
    pub(super) graph_calls: Vec<GraphCall>,
    /// Calls that begin or end the capture of a graph: index of the call, and whether it begins a capture.
    pub(super) capture_edges: Vec<(u32, bool)>,
    /// Steps as (start, end, label, thread).
    pub(super) steps: Vec<(i64, i64, u32, u32)>,
    pub(super) wait_calls: u64,
    pub(super) ops_without_stream: u64,
    pub(super) backward_under_forward: bool,
    pub(super) operator_links: OperatorLinks,
    /// Python call stacks from operator arguments. The numbers of this table index `operator_links.python_stacks`.
    pub(super) call_stacks: NameTable,
    /// Complete stacks, as our own exports attach them to calls.
    pub(super) given_stacks: NameTable,
    /// Frames that the complete stacks refer to.
    pub(super) stack_frames: StackFrames,
    pub(super) has_python: bool,
    /// Kernels that the trace marks as parts of collectives.
    pub(super) collectives: IdMap<u32, ()>,
    pub(super) calls: Vec<CallRecord>,
    pub(super) slices: Vec<Vec<Slice>>,
    /// Number of slices so far that are not calls.
    slice_count: u32,
    /// Last thread that was looked up: process and thread as the trace gives them, and our number of the thread.
    last_thread: Option<(i64, i64, u32)>,
    /// Facts derived from call names, by label.
    call_facts: Vec<Option<CallFacts>>,
    /// Number in `given_stacks` of the stack of a call, for calls with a stack in the trace.
    pub(super) given_stack_of_call: IdMap<u32, u32>,
    /// Begin and end events of slices, by thread.
    pub(super) edges: Vec<SliceEdges>,
    /// Categories that no dialect knows. The number of events per category is in `category_counts`.
    pub(super) unknown_categories: NameTable,
    pub(super) category_counts: Vec<u64>,
}

impl Sink for TraceCollector {
    fn wants(&self) -> Wants {
        let work = Wants::OPS.and(Wants::CALLS).and(Wants::SYNCS).and(Wants::NAMES).and(Wants::OTHER);
        let slices = Wants::CPU.and(Wants::STEPS).and(Wants::PYTHON).and(Wants::EDGES);
        match self.backward_under_forward {
            false => work.and(slices),
            true => work.and(slices).and(Wants::FLOWS).and(Wants::DETAILS),
        }
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Op(op) => self.add_op(op),
            Event::Call(call) => self.add_call(call),
            Event::Cpu(op) => self.add_cpu_op(op),
            Event::Python(frame) => {
                self.has_python = true;
                let class = FrameClass::Python;
                self.add_slice(frame.name, frame.start, frame.end, frame.process, frame.thread, class);
            }
            Event::Begin(begin) => self.begin_slice(begin),
            Event::End(end) => {
                let thread = self.thread_number(end.process, end.thread);
                self.edges[thread as usize].add_end(end.time);
            }
            Event::Property(property) if property.key.raw() == b"stackFrames" => {
                self.stack_frames = StackFrames::parse(property.value);
            }
            Event::Flow(flow) => {
                let thread = self.thread_number(flow.process, flow.thread);
                self.operator_links.add_flow(flow.id, flow.begins, thread, flow.time);
            }
            Event::Other(category) => self.count_unknown(*category),
            Event::Sync(sync) => self.syncs.push(SyncRecord {
                start: sync.start,
                end: sync.end,
                kind: sync_kind(&sync.name.decode()),
                context: sync.context.unwrap_or(0),
                stream: sync.stream,
                event: sync.event,
            }),
            Event::Thread(named) if named.thread != Id::None => {
                let thread = self.thread_number(named.process, named.thread);
                self.thread_facts[thread as usize].2 = named.name.decode().into();
            }
            _ => {}
        }
    }
}

impl TraceCollector {
    /// Creates a collector, with the graph captures of capture traces, if there are any.
    pub(super) fn new(backward_under_forward: bool, graph_captures: Option<GraphCaptures>) -> Self {
        Self { backward_under_forward, graph_captures, ..Self::default() }
    }

    fn add_op(&mut self, op: &Op<'_>) {
        let detail = match op.kind {
            OpKind::Kernel => Detail::Kernel(KernelDetail {
                name: NameId(self.intern_kernel(op)),
                grid: op.grid,
                block: op.block,
                registers: op.registers.try_into().unwrap_or(u16::MAX),
                static_shared: 0,
                dynamic_shared: op.shared,
            }),
            OpKind::Copy => Detail::Copy(CopyDetail {
                kind: copy_kind(&op.name.decode()),
                from: MemoryKind(0),
                to: MemoryKind(0),
                peers: None,
                copies: 1,
                bytes: op.bytes,
                is_async: false,
            }),
            OpKind::Graph => Detail::Graph,
            OpKind::Set => {
                Detail::Set(SetDetail { memory: MemoryKind(0), value: 0, bytes: op.bytes, is_async: false })
            }
        };
        let process = self.process_number(op.process);
        let device = op.device.unwrap_or_else(|| self.device_of(op.process));
        if !op.created.raw().is_empty() || !op.reason.raw().is_empty() {
            self.read_own_fields(op);
        }
        self.ops_without_stream += u64::from(op.stream.is_none());
        self.ops.push(OpRecord {
            start: op.start,
            end: op.end,
            correlation: op.correlation.unwrap_or(0),
            process,
            call: None,
            device,
            context: op.context.unwrap_or(0),
            stream: op.stream.unwrap_or(0),
            graph: op.graph.unwrap_or(0),
            graph_node: op.graph_node.unwrap_or(0),
            detail,
        });
    }

    /// Returns the device of work whose trace gives only a process. Numbers that no process can have stand for devices,
    /// which are numbered in file order.
    fn device_of(&mut self, process: Id<'_>) -> u32 {
        match process {
            Id::Number(number) if number > i64::from(i32::MAX) => {
                let next = self.device_processes.len() as u32;
                *self.device_processes.entry(number).or_insert(next)
            }
            _ => 0,
        }
    }

    /// Reads the fields of an operation that only our own exports have.
    #[cold]
    fn read_own_fields(&mut self, op: &Op<'_>) {
        let at = self.ops.len() as u32;
        match &*op.created.decode() {
            "" => {}
            text if Some(text) == Created::BeforeRecording.label() => {}
            text if Some(text) == Created::Unknown.label() => {
                self.created.insert(at, None);
            }
            _ => {
                let stack = intern_given_stack(op.created, op.created_kinds, &mut self.given_stacks);
                self.created.insert(at, Some(stack));
            }
        }
        let words = [Missing::LaunchedBefore, Missing::DeviceGraph, Missing::NoStack];
        if let Some(missing) = words.into_iter().find(|missing| missing.word().as_bytes() == op.reason.raw())
        {
            self.reasons.insert(at, missing);
        }
    }

    fn intern_kernel(&mut self, op: &Op<'_>) -> u32 {
        let number = self.kernels.intern(op.name);
        if op.collective {
            self.collectives.insert(number, ());
        }
        number
    }

    fn add_cpu_op(&mut self, op: &CpuOp<'_>) {
        let thread = self.thread_number(op.process, op.thread);
        let (label, class) = (self.labels.intern(op.name), FrameClass::from_kind(SliceKind::Cpu(op.kind)));
        if op.kind == CpuKind::Step {
            self.steps.push((op.start, op.end, label, thread));
        }
        let number = self.next_slice_number();
        if self.backward_under_forward || !op.call_stack.raw().is_empty() {
            self.add_operator(op, thread, number);
        }
        self.slices[thread as usize].push(Slice::new((op.start, op.end), label, class, number));
    }

    /// Number of events of CPU threads so far.
    pub(super) fn cpu_events(&self) -> u64 {
        self.calls.len() as u64 + u64::from(self.slice_count)
    }

    /// Takes the next number for a slice that is not a call.
    fn next_slice_number(&mut self) -> u32 {
        self.slice_count += 1;
        self.slice_count - 1
    }

    /// Records the arguments of the operator whose slice has the number `slice`.
    fn add_operator(&mut self, op: &CpuOp<'_>, thread: u32, slice: u32) {
        let python_stack =
            if op.call_stack.raw().is_empty() { NONE } else { self.call_stacks.intern(op.call_stack) };
        let forward_thread = op.forward_thread.unwrap_or(0);
        self.operator_links.add_operator(Operator {
            slice,
            thread,
            start: op.start,
            python_stack,
            sequence: op.sequence,
            forward_thread,
            is_backward: forward_thread > 0
                || op.name.raw().starts_with(b"autograd::engine::evaluate_function"),
        });
    }

    fn add_call(&mut self, call: &Call<'_>) {
        let (slice, thread) = self.store_call(call);
        self.slices[thread as usize].push(slice);
    }

    /// Stores a call. Returns the call's slice and thread.
    fn store_call(&mut self, call: &Call<'_>) -> (Slice, u32) {
        let thread = self.thread_number(call.process, call.thread);
        let number = self.calls.len() as u32;
        let label = self.labels.intern(call.name);
        let facts = self.call_facts(label);
        self.wait_calls += u64::from(facts.waits);
        match facts.role {
            Some(GraphRole::BeginCapture) => self.capture_edges.push((number, true)),
            Some(GraphRole::EndCapture) => self.capture_edges.push((number, false)),
            _ => {}
        }
        if self.graph_captures.is_some()
            && let Some(role) = facts.role
        {
            let kernel = (!call.kernel.raw().is_empty()).then(|| self.kernels.intern(call.kernel));
            let (stream, node) = (call.stream, call.graph_node);
            self.graph_calls.push(GraphCall { call: number, role, kernel, stream, node });
        }
        self.calls.push(CallRecord {
            start: call.start,
            end: call.end,
            correlation: call.correlation.unwrap_or(0),
            thread,
            stack: u32::MAX,
            ops: 0,
            launches: call.pending || facts.launches,
        });
        if !call.stack.raw().is_empty() {
            let stack = intern_given_stack(call.stack, call.stack_kinds, &mut self.given_stacks);
            self.given_stack_of_call.insert(number, stack);
        }
        (Slice::new((call.start, call.end), label, FrameClass::Call, number), thread)
    }

    fn call_facts(&mut self, label: u32) -> CallFacts {
        let at = label as usize;
        if self.call_facts.len() <= at {
            self.call_facts.resize(at + 1, None);
        }
        *self.call_facts[at].get_or_insert_with(|| CallFacts::from_name(self.labels.text(label)))
    }

    fn begin_slice(&mut self, begin: &Begin<'_>) {
        let &Begin { kind, name, time, process, thread, correlation } = begin;
        let (slice, thread) = match kind {
            SliceKind::Call => {
                let (start, end) = (time, time);
                self.store_call(&Call { name, start, end, process, thread, correlation, ..Call::default() })
            }
            _ => {
                let (label, class) = (self.labels.intern(name), FrameClass::from_kind(kind));
                let number = self.next_slice_number();
                (Slice::new((time, time), label, class, number), self.thread_number(process, thread))
            }
        };
        self.edges[thread as usize].add_begin(slice);
    }

    /// Counts an event of an unknown category. Events without a category are not counted.
    fn count_unknown(&mut self, category: Text<'_>) {
        if category.raw().is_empty() {
            return;
        }
        let number = self.unknown_categories.intern(category) as usize;
        self.category_counts.resize(self.category_counts.len().max(number + 1), 0);
        self.category_counts[number] += 1;
    }

    fn add_slice(
        &mut self,
        name: Text<'_>,
        start: i64,
        end: i64,
        process: Id<'_>,
        thread: Id<'_>,
        class: FrameClass,
    ) {
        let thread = self.thread_number(process, thread);
        let label = self.labels.intern(name);
        let number = self.next_slice_number();
        self.slices[thread as usize].push(Slice::new((start, end), label, class, number));
    }

    /// Returns the number of a process; 0 if the trace does not give the process.
    fn process_number(&mut self, id: Id<'_>) -> u32 {
        let Some(key) = self.id_key(id) else { return 0 };
        let next = self.processes.len() as u32 + 1;
        *self.processes.entry(key).or_insert(next)
    }

    fn thread_number(&mut self, process: Id<'_>, id: Id<'_>) -> u32 {
        let numbers = match (process, id) {
            (Id::Number(process), Id::Number(thread)) => Some((process, thread)),
            _ => None,
        };
        // Most events belong to the same thread as the previous event.
        if let (Some((process, thread)), Some((last_process, last_thread, number))) =
            (numbers, self.last_thread)
            && (process, thread) == (last_process, last_thread)
        {
            return number;
        }
        let thread = self.intern_thread(process, id);
        self.last_thread = numbers.map(|(process, id)| (process, id, thread));
        thread
    }

    fn intern_thread(&mut self, process: Id<'_>, id: Id<'_>) -> u32 {
        let process = self.process_number(process);
        let key = (process, self.id_key(id).unwrap_or((0, 0)));
        let next = self.thread_facts.len() as u32;
        let thread = *self.threads.entry(key).or_insert(next);
        if thread == next {
            let number = match id {
                Id::Number(number) => u32::try_from(number).ok(),
                _ => None,
            };
            self.thread_facts.push((process, number, Box::default()));
            self.slices.push(Vec::new());
            self.edges.push(SliceEdges::default());
        }
        thread
    }

    fn id_key(&mut self, id: Id<'_>) -> Option<(u8, i64)> {
        match id {
            Id::None => None,
            Id::Number(number) => Some((1, number)),
            Id::Text(text) => Some((2, i64::from(self.ids.intern(text)))),
        }
    }
}

/// A wait for an event, a stream or a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) kind: SyncKind,
    pub(super) context: u32,
    pub(super) stream: Option<u32>,
    pub(super) event: Option<u32>,
}

/// Returns the kind of a wait, from names such as `Stream Sync`, `STREAM_SYNCHRONIZE`, `cudaStreamSynchronize`.
fn sync_kind(name: &str) -> SyncKind {
    let name = name.to_ascii_lowercase();
    match name {
        _ if name.contains("wait") => SyncKind::STREAM_WAIT,
        _ if name.contains("event") => SyncKind::EVENT,
        _ if name.contains("stream") => SyncKind::STREAM,
        _ if name.contains("context") || name.contains("device") || name.contains("ctx") => SyncKind::CONTEXT,
        _ => SyncKind::OTHER,
    }
}

/// Interns a stack that the trace gives as text, together with the kinds of its frames.
fn intern_given_stack(stack: Text<'_>, kinds: Text<'_>, numbers: &mut NameTable) -> u32 {
    match kinds.raw() {
        b"" => numbers.intern(stack),
        _ => numbers.intern(Text::from(&*format!("{}\n{}", kinds.decode(), stack.decode()))),
    }
}

/// Facts that follow from the name of a call.
#[derive(Clone, Copy, Debug)]
struct CallFacts {
    /// Whether the call blocks the host or makes a stream wait.
    waits: bool,
    /// Whether the call always starts GPU work.
    launches: bool,
    role: Option<GraphRole>,
}

impl CallFacts {
    fn from_name(name: &str) -> Self {
        let waits = name.contains("Synchronize") || name.contains("WaitEvent");
        Self { waits, launches: is_launch(name), role: GraphRole::from_name(name) }
    }
}

/// Whether every call of the function `name` starts GPU work.
fn is_launch(name: &str) -> bool {
    name.contains("LaunchKernel") || name.contains("GraphLaunch")
}

fn copy_kind(name: &str) -> CopyKind {
    const KINDS: [CopyKind; 5] =
        [CopyKind::HTOD, CopyKind::DTOH, CopyKind::DTOD, CopyKind::HTOH, CopyKind::PTOP];
    let upper = name.to_ascii_uppercase();
    KINDS.into_iter().find(|kind| upper.contains(&kind.label().to_ascii_uppercase())).unwrap_or(CopyKind(0))
}
