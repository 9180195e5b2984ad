//! The collector stores the contents of a trace (operations, calls, slices and their arguments) until the whole trace
//! has been read. After that, module `rows` converts the contents to rows.

use super::call_records::CallRecords;
use super::copies::{copy_kind, memory_kinds, set_memory};
use super::graph_captures::{GraphCall, GraphCaptures, GraphRole};
use super::graph_edges::{FIRST_DEPENDENCY_FLOW, GraphFlows};
use super::launch_flows::{FlowEnd, LaunchFlows};
use super::model::*;
use super::op_records::{OpRecords, OpShape};
use super::operator_links::{Operator, OperatorLinks};
use super::slice_edges::{EdgeKind, SliceEdge, SliceEdges, UnpairedEdges};
use super::slice_runs::SliceRuns;
use super::slices::{FrameClass, NONE, Slice};
use super::stack_frames::StackFrames;
use super::sync_records::{RecordedEvent, SyncRecord};
use super::work::{CallRecord, CallUse, LinkedStream};
use super::{NameTable, Text};
use gpuflame_model::record::{
    CopyDetail, CopyKind, Created, Detail, DeviceId, IdMap, KernelDetail, Missing, NameId, SetDetail,
};

/// A [`Sink`] that stores all data in a trace from which rows are made.
#[derive(Debug, Default)]
pub struct TraceCollector {
    pub(super) kernels: NameTable,
    pub(super) labels: NameTable,
    pub(super) ids: NameTable,
    pub(super) processes: IdMap<(u8, i64), u32>,
    /// Index of each device, keyed by the number that represents this device in process fields.
    device_processes: IdMap<i64, u32>,
    pub(super) threads: IdMap<(u32, (u8, i64)), u32>,
    /// Index of each lane, keyed by the lane. A lane is the pair of process field and thread field in the trace event
    /// of a GPU operation or of a flow.
    pub(super) lanes: IdMap<(u32, (u8, i64)), u32>,
    /// Lane of each thread. The index of an entry is the thread.
    pub(super) thread_lanes: Vec<u32>,
    /// Lane of the most recent look-up: its process field, its thread field and its index.
    last_lane: Option<(i64, i64, u32)>,
    pub(super) launch_flows: LaunchFlows,
    pub(super) graph_flows: GraphFlows,
    /// External ids of those calls that have no correlation id, each with the index of the call.
    pub(super) external_calls: Vec<(u64, u32)>,
    /// External ids of those operations that have no correlation id, each with the index of the operation.
    pub(super) external_ops: Vec<(u64, u32)>,
    /// Process, numeric id (if the trace contains one) and name of each thread. The index of an entry is the thread.
    pub(super) thread_facts: Vec<(u32, Option<u32>, Box<str>)>,
    pub(super) ops: OpRecords,
    pub(super) syncs: Vec<SyncRecord>,
    pub(super) event_records: Vec<RecordedEvent>,
    /// Kinds of streams, each with the process that the stream belongs to.
    pub(super) stream_flags: Vec<(u32, LinkedStream)>,
    /// Indexes of calls in which a thread waits for other threads.
    pub(super) thread_waits: Vec<u32>,
    /// Indexes of calls in which, according to their names, the host waits for a GPU.
    pub(super) host_waits: Vec<u32>,
    /// Stack that created the graph node of each operation, as an index in `given_stacks`; `None` if the stack is
    /// unknown. The key is the operation's index.
    pub(super) created: IdMap<u32, Option<u32>>,
    /// Reason why an operation has no launch, keyed by the operation's index.
    pub(super) reasons: IdMap<u32, Missing>,
    /// Captures of graphs that were found in capture traces. `graph_calls` is filled only if captures were found.
    pub(super) graph_captures: Option<GraphCaptures>,
    pub(super) graph_calls: Vec<GraphCall>,
    /// Calls that begin or end the capture of a graph. Each entry contains the index of the call, and whether the call
    /// begins a capture.
    pub(super) capture_edges: Vec<(u32, bool)>,
    /// Steps that the profiler marked, as (start, end, label, thread).
    pub(super) steps: Vec<(i64, i64, u32, u32)>,
    pub(super) wait_calls: u64,
    /// Number of calls that make a stream wait for a CUDA event.
    pub(super) event_wait_calls: u64,
    /// Indexes of calls that submit a host function to a stream.
    pub(super) host_function_calls: Vec<u32>,
    /// Number of launches whose launch attributes are not in the trace.
    pub(super) attribute_launches: u64,
    /// Whether a launch is programmatic (its kernel may begin before the previous kernel ends), keyed by the call's
    /// index.
    pub(super) programmatic: IdMap<u32, bool>,
    /// Start and end of each period in which a profiler worked on the program's threads.
    pub(super) profiler_work: Vec<(i64, i64)>,
    pub(super) ops_without_stream: u64,
    pub(super) backward_under_forward: bool,
    pub(super) kernel_gaps: bool,
    pub(super) between_launches: usize,
    /// Whether no states of threads are emitted.
    pub(super) without_thread_states: bool,
    /// Whether named ranges and their times are returned.
    pub(super) keeps_ranges: bool,
    pub(super) operator_links: OperatorLinks,
    /// Python call stacks in the arguments of operators. An index in this table is also an index in
    /// `operator_links.python_stacks`.
    pub(super) call_stacks: NameTable,
    /// Complete stacks of calls and of graph nodes, which gpuflame's exports contain.
    pub(super) given_stacks: NameTable,
    /// The trace's table of frames. Complete stacks may refer to these frames.
    pub(super) stack_frames: StackFrames,
    /// Time in ns since 1970 to which the times in the file are relative, if the file contains this time.
    pub(super) base: Option<i64>,
    pub(super) has_python: bool,
    /// Indexes of the names of kernels that are parts of collectives according to the trace.
    pub(super) collectives: IdMap<u32, ()>,
    pub(super) calls: CallRecords,
    pub(super) slices: Vec<SliceRuns>,
    /// Number of slices so far that are not calls.
    slice_count: u32,
    /// Thread of the most recent look-up: the ids of the process and the thread in the trace, and the thread's index.
    last_thread: Option<(i64, i64, u32)>,
    /// Properties of calls that follow from the name of the called function. The index of an entry is the label of the
    /// name.
    call_facts: Vec<Option<CallFacts>>,
    /// Stack of each call for which the trace contains a complete stack, as an index in `given_stacks`. The key is the
    /// call's index.
    pub(super) given_stack_of_call: IdMap<u32, u32>,
    /// Begin and end events of slices. The index of an entry is the thread.
    pub(super) edges: Vec<SliceEdges>,
    pub(super) unpaired_edges: UnpairedEdges,
    /// Number of slices that were left out of all stacks, because they cross too many other slices.
    pub(super) crossing_slices: u64,
    /// Number of Python functions that seem to outlive their callers, because the profiler missed the end of the
    /// function.
    pub(super) unclosed_functions: u64,
    /// Categories of events that no known dialect contains. `category_counts` contains the number of events for each
    /// category.
    pub(super) unknown_categories: NameTable,
    pub(super) category_counts: Vec<u64>,
}

impl Sink for TraceCollector {
    fn wants(&self) -> Wants {
        let work = Wants::OPS.and(Wants::CALLS).and(Wants::SYNCS).and(Wants::NAMES).and(Wants::OTHER);
        let slices = Wants::CPU.and(Wants::STEPS).and(Wants::PYTHON).and(Wants::EDGES);
        let all = work.and(slices).and(Wants::FLOWS);
        if self.backward_under_forward { all.and(Wants::DETAILS) } else { all }
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
                let words = (self.word(end.category), self.word(end.name));
                let kind = EdgeKind::End(end.correlation);
                self.edges[thread as usize].add(SliceEdge { time: end.time, words, kind });
            }
            Event::Property(property) if property.key.raw() == b"stackFrames" => {
                self.stack_frames = StackFrames::parse(property.value);
            }
            Event::Property(property) if property.key.raw() == b"baseTimeNanoseconds" => {
                let value = std::str::from_utf8(property.value).ok();
                self.base = value.and_then(|value| value.trim().parse().ok()).filter(|base| *base > 0);
            }
            Event::Flow(flow) => self.add_flow(flow),
            Event::Other(category) => self.count_unknown(*category),
            Event::Sync(sync) => {
                let process = self.process_number(sync.process);
                self.syncs.push(SyncRecord::new(sync, process));
            }
            Event::EventRecord(record) => {
                let process = self.process_number(record.process);
                self.event_records.push(RecordedEvent::new(record, process));
            }
            Event::Stream(StreamFlag { process, context, stream: Some(stream), flag: Some(flag) }) => {
                let (process, context) = (self.process_number(*process), context.unwrap_or(0));
                self.stream_flags.push((process, LinkedStream { context, stream: *stream, flag: *flag }));
            }
            Event::IdleNode(node) => {
                let lane = self.lane_number(node.run.lane);
                self.graph_flows.add_idle(lane, node);
            }
            Event::Thread(named) if named.thread != Id::None => {
                let thread = self.thread_number(named.process, named.thread);
                self.thread_facts[thread as usize].2 = named.name.decode().into();
            }
            _ => {}
        }
    }
}

impl TraceCollector {
    /// Creates a collector. `graph_captures` contains the captures that were found in capture traces, if there are any.
    pub(super) fn new(backward_under_forward: bool, graph_captures: Option<GraphCaptures>) -> Self {
        Self { backward_under_forward, graph_captures, ..Self::default() }
    }

    fn add_op(&mut self, op: &Op<'_>) {
        let number = self.store_op(op);
        if let Some(id) = op.flow {
            let (lane, kind) = (self.ops.get(number).shape.lane, FlowKind::Launch);
            let end = FlowEnd { id, time: op.start, lane, number, kind, enclosed: true };
            self.launch_flows.add(end, false);
        }
    }

    /// Stores a GPU operation. Returns the index of the operation.
    fn store_op(&mut self, op: &Op<'_>) -> u32 {
        let detail = match op.kind {
            OpKind::Kernel => Detail::Kernel(KernelDetail {
                name: NameId(self.intern_kernel(op)),
                grid: op.grid,
                block: op.block,
                registers: op.registers.try_into().unwrap_or(u16::MAX),
                static_shared: 0,
                dynamic_shared: op.shared,
            }),
            OpKind::Copy => {
                let name = op.name.decode();
                let kind = match copy_kind(&name) {
                    CopyKind(0) => copy_kind(&op.direction.decode()),
                    known => known,
                };
                let (from, to) = op.memory.unwrap_or_else(|| memory_kinds(&name));
                let peers = op.peers.map(|(from, to)| (DeviceId(from), DeviceId(to)));
                Detail::Copy(CopyDetail {
                    kind,
                    from,
                    to,
                    peers,
                    copies: 1,
                    bytes: op.bytes,
                    is_async: false,
                })
            }
            OpKind::Graph => Detail::Graph,
            OpKind::Set => {
                let memory = op.memory.map_or_else(|| set_memory(&op.name.decode()), |(_, written)| written);
                Detail::Set(SetDetail { memory, value: 0, bytes: op.bytes, is_async: false })
            }
        };
        let process = self.process_number(op.process);
        let device = op.device.unwrap_or_else(|| self.device_of(op.process));
        if !op.created.raw().is_empty() || !op.reason.raw().is_empty() {
            self.read_own_fields(op);
        }
        self.ops_without_stream += u64::from(op.stream.is_none());
        self.graph_flows.has_moved |= op.is_moved;
        let (lane, number) = (self.lane_number(op.lane), self.ops.len() as u32);
        if let (None, Some(external)) = (op.correlation, op.external) {
            self.external_ops.push((external, number));
        }
        let shape = OpShape {
            process,
            place_in_lane: op.device.is_none() && op.stream.is_none(),
            lane,
            device,
            context: op.context.unwrap_or(0),
            stream: op.stream.unwrap_or(0),
            graph: op.graph.unwrap_or(0),
            graph_node: op.graph_node.unwrap_or(0),
            detail,
        };
        self.ops.push((op.start, op.end), op.correlation.unwrap_or(0), shape)
    }

    /// Stores the start or end of a flow, unless the flow's id is equal to the correlation id of the previous event.
    fn add_flow(&mut self, flow: &Flow<'_>) {
        let &Flow { kind, id, begins, enclosed, time, process, thread } = flow;
        if kind == FlowKind::Backward {
            if self.backward_under_forward {
                let thread = self.thread_number(process, thread);
                self.operator_links.add_flow(id, begins, thread, time);
            }
            return;
        }
        let lane = self.lane_number((process, thread));
        let call = self
            .calls
            .last()
            .filter(|call| call.start == time && self.thread_lanes[call.thread as usize] == lane);
        let number = match begins {
            true => call.map(|call| (call.correlation, self.calls.len())),
            false => self.ops.last().and_then(|op| {
                let is_here = op.start == time && op.shape.lane == lane;
                is_here.then_some((op.correlation, self.ops.len()))
            }),
        };
        // Kineto writes the end of a flow even at a call that launched no work. The end of a flow at such a call is
        // ignored.
        let ends_at_call = !begins && number.is_none() && call.is_some_and(|call| call.correlation == id);
        if kind == FlowKind::Launch && ends_at_call {
            return;
        }
        let correlation = number.map(|(correlation, _)| correlation);
        let number = number.map_or(NONE, |(_, count)| count as u32 - 1);
        let end = FlowEnd { id, time, lane, number, kind, enclosed };
        match kind == FlowKind::Launch && id >= FIRST_DEPENDENCY_FLOW {
            true => self.graph_flows.add(end, correlation, begins),
            false => self.add_launch_flow(end, correlation, begins),
        }
    }

    /// Stores the start or end of a flow. `correlation` is the correlation id of the trace event to which this start or
    /// end is attached.
    pub(super) fn add_launch_flow(&mut self, end: FlowEnd, correlation: Option<u64>, begins: bool) {
        if let (FlowKind::Launch, Some(correlation)) = (end.kind, correlation)
            && self.launch_flows.is_repeated(end.id, correlation, begins)
        {
            if !begins && self.ops.get(end.number).shape.graph_node != 0 {
                self.graph_flows.note_launch_flow(end.number);
            }
            return;
        }
        self.launch_flows.add(end, begins);
    }

    /// Returns the index of the device for an operation whose trace event contains a process but no device. A number in
    /// the process field that is too large for a process id represents a device. Devices that are known only by such
    /// numbers get indexes in file order.
    fn device_of(&mut self, process: Id<'_>) -> u32 {
        match process {
            Id::Number(number) if number > i64::from(i32::MAX) => {
                let next = self.device_processes.len() as u32;
                *self.device_processes.entry(number).or_insert(next)
            }
            _ => 0,
        }
    }

    /// Reads the fields of an operation that only gpuflame's exports contain.
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
        match op.kind {
            CpuKind::Step => self.steps.push((op.start, op.end, label, thread)),
            CpuKind::Overhead if !self.labels.text(label).contains("Loading") => {
                self.profiler_work.push((op.start, op.end));
            }
            _ => {}
        }
        let number = self.next_slice_number();
        if self.backward_under_forward || !op.call_stack.raw().is_empty() {
            self.add_operator(op, thread, number);
        }
        self.slices[thread as usize].push(Slice::new((op.start, op.end), label, class, number));
    }

    /// Returns the number of trace events on CPU threads so far.
    pub(super) fn cpu_events(&self) -> u64 {
        self.calls.len() as u64 + u64::from(self.slice_count)
    }

    /// Returns the index for the next slice that is not a call.
    fn next_slice_number(&mut self) -> u32 {
        self.slice_count += 1;
        self.slice_count - 1
    }

    /// Stores the arguments of the operator whose slice has the index `slice`.
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

    /// Stores an API call. Returns the slice that represents the call, and its thread.
    fn store_call(&mut self, call: &Call<'_>) -> (Slice, u32) {
        let thread = self.thread_number(call.process, call.thread);
        let number = self.calls.len() as u32;
        let label = self.labels.intern(call.name);
        let facts = self.call_facts(label);
        self.wait_calls += u64::from(facts.waits);
        self.event_wait_calls += u64::from(facts.waits_for_event);
        if facts.waits_for_thread {
            self.thread_waits.push(number);
        }
        if facts.waits && !facts.waits_for_event {
            self.host_waits.push(number);
        }
        if facts.submits_host_function {
            self.host_function_calls.push(number);
        }
        match call.programmatic {
            Some(is_programmatic) => drop(self.programmatic.insert(number, is_programmatic)),
            None => self.attribute_launches += u64::from(facts.has_attributes),
        }
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
            starts: facts.starts,
            ambiguous: false,
            encloses: false,
        });
        if let (None, Some(external)) = (call.correlation, call.external) {
            self.external_calls.push((external, number));
        }
        if let Some(id) = call.flow {
            let (lane, kind) = (self.lane_number((call.process, call.thread)), FlowKind::Launch);
            let start = FlowEnd { id, time: call.start, lane, number, kind, enclosed: true };
            self.launch_flows.add(start, true);
        }
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
        let &Begin { kind, category, name, time, process, thread, correlation, ref work } = begin;
        let words = (self.word(category), self.word(name));
        let (kind, thread) = match (kind, work) {
            (SliceKind::Call, _) => {
                let (start, end) = (time, time);
                let call = Call { name, start, end, process, thread, correlation, ..Call::default() };
                let (slice, thread) = self.store_call(&call);
                (EdgeKind::Slice(slice), thread)
            }
            (SliceKind::Work, Some(work)) => {
                (EdgeKind::Work(self.store_op(work)), self.thread_number(process, thread))
            }
            (SliceKind::Unknown | SliceKind::Work, _) => {
                self.count_unknown(category);
                (EdgeKind::Unknown, self.thread_number(process, thread))
            }
            (SliceKind::Cpu(_) | SliceKind::Python, _) => {
                self.has_python |= kind == SliceKind::Python;
                let (label, class) = (self.labels.intern(name), FrameClass::from_kind(kind));
                let number = self.next_slice_number();
                let slice = Slice::new((time, time), label, class, number);
                (EdgeKind::Slice(slice), self.thread_number(process, thread))
            }
        };
        self.edges[thread as usize].add(SliceEdge { time, words, kind });
    }

    /// Returns an index for the category or name of a trace event; 0 if the event has no category or name.
    fn word(&mut self, text: Text<'_>) -> u32 {
        match text.raw() {
            [] => 0,
            raw if raw.contains(&b'\\') => 1 + self.ids.intern(Text::from(&*text.decode())),
            _ => 1 + self.ids.intern(text),
        }
    }

    /// Counts a trace event of an unknown category. Events that have no category are not counted.
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

    /// Returns the index of a process; 0 if the trace does not contain the process.
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
        // Check the thread of the previous event first, because most events belong to the same thread.
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
            let lane = self.lanes.len() as u32;
            self.thread_lanes.push(*self.lanes.entry(key).or_insert(lane));
            self.slices.push(SliceRuns::default());
            self.edges.push(SliceEdges::default());
        }
        thread
    }

    fn lane_number(&mut self, (process, thread): (Id<'_>, Id<'_>)) -> u32 {
        let numbers = match (process, thread) {
            (Id::Number(process), Id::Number(thread)) => Some((process, thread)),
            _ => None,
        };
        if let (Some((process, thread)), Some((last_process, last_thread, lane))) = (numbers, self.last_lane)
            && (process, thread) == (last_process, last_thread)
        {
            return lane;
        }
        let process = self.process_number(process);
        let key = (process, self.id_key(thread).unwrap_or((0, 0)));
        let next = self.lanes.len() as u32;
        let lane = *self.lanes.entry(key).or_insert(next);
        self.last_lane = numbers.map(|(process, thread)| (process, thread, lane));
        lane
    }

    fn id_key(&mut self, id: Id<'_>) -> Option<(u8, i64)> {
        match id {
            Id::None => None,
            Id::Number(number) => Some((1, number)),
            Id::Text(text) => Some((2, i64::from(self.ids.intern(text)))),
        }
    }
}

/// Interns a stack that the trace contains as text, together with the kinds of its frames. Returns the index of this
/// stack.
fn intern_given_stack(stack: Text<'_>, kinds: Text<'_>, numbers: &mut NameTable) -> u32 {
    match kinds.raw() {
        b"" => numbers.intern(stack),
        _ => numbers.intern(Text::from(&*format!("{}\n{}", kinds.decode(), stack.decode()))),
    }
}

/// Properties of a call that follow from the name of the called function.
#[derive(Clone, Copy, Debug)]
struct CallFacts {
    /// Whether the call waits, or makes a stream wait.
    waits: bool,
    /// Whether the call makes a stream wait for a CUDA event.
    waits_for_event: bool,
    /// Whether the call submits a host function to a stream.
    submits_host_function: bool,
    /// Whether a thread may wait for another thread in the call.
    waits_for_thread: bool,
    /// Whether the call launches a kernel with launch attributes.
    has_attributes: bool,
    /// Whether the call always starts GPU work.
    launches: bool,
    role: Option<GraphRole>,
    starts: CallUse,
}

impl CallFacts {
    fn from_name(name: &str) -> Self {
        let waits_for_event = name.contains("WaitEvent");
        let waits = name.contains("Synchronize") || waits_for_event;
        let submits_host_function = name.contains("LaunchHostFunc");
        let waits_for_thread = name.starts_with("pthread_");
        let has_attributes = name.contains("LaunchKernelEx");
        let (launches, starts) = (is_launch(name), CallUse::from_name(name));
        let role = GraphRole::from_name(name);
        Self {
            waits,
            waits_for_event,
            submits_host_function,
            waits_for_thread,
            has_attributes,
            launches,
            role,
            starts,
        }
    }
}

/// Whether every call of the function `name` starts GPU work.
fn is_launch(name: &str) -> bool {
    name.contains("LaunchKernel") || name.contains("GraphLaunch") || name.contains("KernelLaunch")
}
