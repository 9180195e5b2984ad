//! What a trace tells, kept until all of it was read: operations, calls, the slices of threads and what they say.
//!
//! `rows` makes rows of it.

use super::capture::{Captured, Does, Noted};
use super::edges::Edges;
use super::frames::StackFrames;
use super::model::*;
use super::slices::{Interval, NOBODY, Rank};
use super::told::{Operator, Told};
use super::work::{CallRecord, OpRecord};
use super::{NameNumbers, Text};
use crate::record::{
    CopyDetail, CopyKind, Created, Detail, IdMap, KernelDetail, MemoryKind, Missing, NameId, SetDetail,
    SyncKind,
};

/// A [`Sink`] that keeps what rows are made of.
#[derive(Debug, Default)]
pub struct Collect {
    pub(super) kernels: NameNumbers,
    pub(super) labels: NameNumbers,
    ids: NameNumbers,
    processes: IdMap<(u8, i64), u32>,
    threads: IdMap<(u32, (u8, i64)), u32>,
    /// Process, number where it has one, and name of each thread.
    pub(super) thread_facts: Vec<(u32, Option<u32>, Box<str>)>,
    pub(super) ops: Vec<OpRecord>,
    pub(super) syncs: Vec<SyncRecord>,
    /// Of operations, by position: the stack on which a graph's node was made, by its number among given stacks; `None`
    /// where nobody knows.
    pub(super) created: IdMap<u32, Option<u32>>,
    /// Why operations have no launch.
    pub(super) reasons: IdMap<u32, Missing>,
    /// Graphs that other files captured; what calls do about graphs is noted only then.
    pub(super) captured: Option<Captured>,
    pub(super) noted: Vec<Noted>,
    pub(super) steps: u64,
    pub(super) last_step: i64,
    pub(super) step_times: Vec<(i64, i64)>,
    pub(super) waits: u64,
    pub(super) backward_under_forward: bool,
    pub(super) told: Told,
    /// Python functions as arguments of operators have them, by number as in `told`.
    pub(super) call_stacks: NameNumbers,
    /// Whole stacks, as calls have them in our own exports.
    pub(super) given_stacks: NameNumbers,
    /// And frames that they refer to.
    pub(super) frames: StackFrames,
    pub(super) has_python: bool,
    /// Kernels that are parts of collectives.
    pub(super) collectives: IdMap<u32, ()>,
    pub(super) calls: Vec<CallRecord>,
    pub(super) intervals: Vec<Vec<Interval>>,
    /// Slices so far that are no calls.
    slices: u32,
    /// Who was looked up last: process and thread as the trace has them, and the thread's number here.
    last_thread: Option<(i64, i64, u32)>,
    /// What names of calls say, by the number of the label.
    call_facts: Vec<Option<CallFacts>>,
    /// Calls with a stack of their own, by number: that stack among the given ones.
    pub(super) given: IdMap<u32, u32>,
    /// Of each thread: where slices begin and end whose ends are events of their own.
    pub(super) edges: Vec<Edges>,
    /// How many events there were of each category that is not known, by its number.
    pub(super) categories: NameNumbers,
    pub(super) others: Vec<u64>,
}

impl Sink for Collect {
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
            Event::Op(op) => self.op(op),
            Event::Call(call) => self.call(call),
            Event::Cpu(op) => self.cpu(op),
            Event::Python(frame) => {
                self.has_python = true;
                let rank = Rank::Python;
                self.interval(frame.name, frame.start, frame.end, frame.process, frame.thread, rank);
            }
            Event::Begin(begin) => self.begin(begin),
            Event::End(end) => {
                let thread = self.thread(end.process, end.thread);
                self.edges[thread as usize].end(end.time);
            }
            Event::Property(property) if property.key.raw() == b"stackFrames" => {
                self.frames = StackFrames::read(property.value);
            }
            Event::Flow(flow) => {
                let thread = self.thread(flow.process, flow.thread);
                self.told.flow(flow.id, flow.begins, thread, flow.time);
            }
            Event::Other(category) => self.other(*category),
            Event::Sync(sync) => self.syncs.push(SyncRecord {
                start: sync.start,
                end: sync.end,
                kind: sync_kind(&sync.name.decode()),
                context: sync.context.unwrap_or(0),
                stream: sync.stream,
                event: sync.event,
            }),
            Event::Thread(named) if named.thread != Id::None => {
                let thread = self.thread(named.process, named.thread);
                self.thread_facts[thread as usize].2 = named.name.decode().into();
            }
            _ => {}
        }
    }
}

impl Collect {
    /// With what other files told of captured graphs, if they were asked.
    pub(super) fn new(backward_under_forward: bool, captured: Option<Captured>) -> Self {
        Self { backward_under_forward, captured, ..Self::default() }
    }

    fn op(&mut self, op: &Op<'_>) {
        let detail = match op.kind {
            OpKind::Kernel => Detail::Kernel(KernelDetail {
                name: NameId(self.kernel(op)),
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
            OpKind::Set => {
                Detail::Set(SetDetail { memory: MemoryKind(0), value: 0, bytes: op.bytes, is_async: false })
            }
        };
        let process = self.process(op.process);
        if !op.created.raw().is_empty() || !op.reason.raw().is_empty() {
            self.ours(op);
        }
        self.ops.push(OpRecord {
            start: op.start,
            end: op.end,
            correlation: op.correlation.unwrap_or(0),
            process,
            call: None,
            device: op.device.unwrap_or(0),
            context: op.context.unwrap_or(0),
            stream: op.stream.unwrap_or(0),
            graph: op.graph.unwrap_or(0),
            graph_node: op.graph_node.unwrap_or(0),
            detail,
        });
    }

    /// What only our own exports say of an operation.
    #[cold]
    fn ours(&mut self, op: &Op<'_>) {
        let at = self.ops.len() as u32;
        match &*op.created.decode() {
            "" => {}
            text if Some(text) == Created::BeforeRecording.label() => {}
            text if Some(text) == Created::Unknown.label() => {
                self.created.insert(at, None);
            }
            _ => {
                let stack = given_number(op.created, op.created_kinds, &mut self.given_stacks);
                self.created.insert(at, Some(stack));
            }
        }
        let words = [Missing::LaunchedBefore, Missing::DeviceGraph, Missing::NoStack];
        if let Some(missing) = words.into_iter().find(|missing| missing.word().as_bytes() == op.reason.raw())
        {
            self.reasons.insert(at, missing);
        }
    }

    fn kernel(&mut self, op: &Op<'_>) -> u32 {
        let number = self.kernels.number(op.name);
        if op.collective {
            self.collectives.insert(number, ());
        }
        number
    }

    fn cpu(&mut self, op: &CpuOp<'_>) {
        if op.kind == CpuKind::Step {
            self.steps += 1;
            self.last_step = self.last_step.max(op.start);
            self.step_times.push((op.start, op.end));
        }
        let thread = self.thread(op.process, op.thread);
        let (label, rank) = (self.labels.number(op.name), Rank::of(SliceKind::Cpu(op.kind)));
        let number = self.place();
        if self.backward_under_forward || !op.call_stack.raw().is_empty() {
            self.told(op, thread, number);
        }
        self.intervals[thread as usize].push(Interval::new((op.start, op.end), label, rank, number));
    }

    /// The place of a slice that is no call.
    fn place(&mut self) -> u32 {
        self.slices += 1;
        self.slices - 1
    }

    /// What is told of an operator, whose slice has this number.
    fn told(&mut self, op: &CpuOp<'_>, thread: u32, slice: u32) {
        let list =
            if op.call_stack.raw().is_empty() { NOBODY } else { self.call_stacks.number(op.call_stack) };
        let forward_thread = op.forward_thread.unwrap_or(0);
        self.told.add(Operator {
            slice,
            thread,
            start: op.start,
            list,
            sequence: op.sequence,
            forward_thread,
            is_backward: forward_thread > 0
                || op.name.raw().starts_with(b"autograd::engine::evaluate_function"),
        });
    }

    fn call(&mut self, call: &Call<'_>) {
        let (interval, thread) = self.called(call);
        self.intervals[thread as usize].push(interval);
    }

    /// Keeps a call; gives its slice, and whose it is.
    fn called(&mut self, call: &Call<'_>) -> (Interval, u32) {
        let thread = self.thread(call.process, call.thread);
        let number = self.calls.len() as u32;
        let label = self.labels.number(call.name);
        let facts = self.call_facts(label);
        self.waits += u64::from(facts.waits);
        if self.captured.is_some()
            && let Some(does) = facts.does
        {
            let kernel = (!call.kernel.raw().is_empty()).then(|| self.kernels.number(call.kernel));
            let (stream, node) = (call.stream, call.graph_node);
            self.noted.push(Noted { call: number, does, kernel, stream, node });
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
            let stack = given_number(call.stack, call.stack_kinds, &mut self.given_stacks);
            self.given.insert(number, stack);
        }
        (Interval::new((call.start, call.end), label, Rank::Call, number), thread)
    }

    fn call_facts(&mut self, label: u32) -> CallFacts {
        let at = label as usize;
        if self.call_facts.len() <= at {
            self.call_facts.resize(at + 1, None);
        }
        *self.call_facts[at].get_or_insert_with(|| CallFacts::of(self.labels.text(label)))
    }

    fn begin(&mut self, begin: &Begin<'_>) {
        let &Begin { kind, name, time, process, thread, correlation } = begin;
        let (interval, thread) = match kind {
            SliceKind::Call => {
                let (start, end) = (time, time);
                self.called(&Call { name, start, end, process, thread, correlation, ..Call::default() })
            }
            _ => {
                let (label, rank) = (self.labels.number(name), Rank::of(kind));
                let number = self.place();
                (Interval::new((time, time), label, rank, number), self.thread(process, thread))
            }
        };
        self.edges[thread as usize].begin(interval);
    }

    /// An event of a category that nobody knows here, unless it has none.
    fn other(&mut self, category: Text<'_>) {
        if category.raw().is_empty() {
            return;
        }
        let number = self.categories.number(category) as usize;
        self.others.resize(self.others.len().max(number + 1), 0);
        self.others[number] += 1;
    }

    fn interval(
        &mut self,
        name: Text<'_>,
        start: i64,
        end: i64,
        process: Id<'_>,
        thread: Id<'_>,
        rank: Rank,
    ) {
        let thread = self.thread(process, thread);
        let label = self.labels.number(name);
        let number = self.place();
        self.intervals[thread as usize].push(Interval::new((start, end), label, rank, number));
    }

    /// 0 where the trace does not say.
    fn process(&mut self, id: Id<'_>) -> u32 {
        let Some(key) = self.key(id) else { return 0 };
        let next = self.processes.len() as u32 + 1;
        *self.processes.entry(key).or_insert(next)
    }

    fn thread(&mut self, process: Id<'_>, id: Id<'_>) -> u32 {
        let numbers = match (process, id) {
            (Id::Number(process), Id::Number(thread)) => Some((process, thread)),
            _ => None,
        };
        // Most events are of the thread of the one before.
        if let (Some((process, thread)), Some((last_process, last_thread, number))) =
            (numbers, self.last_thread)
            && (process, thread) == (last_process, last_thread)
        {
            return number;
        }
        let thread = self.find_thread(process, id);
        self.last_thread = numbers.map(|(process, id)| (process, id, thread));
        thread
    }

    fn find_thread(&mut self, process: Id<'_>, id: Id<'_>) -> u32 {
        let process = self.process(process);
        let key = (process, self.key(id).unwrap_or((0, 0)));
        let next = self.thread_facts.len() as u32;
        let thread = *self.threads.entry(key).or_insert(next);
        if thread == next {
            let number = match id {
                Id::Number(number) => u32::try_from(number).ok(),
                _ => None,
            };
            self.thread_facts.push((process, number, Box::default()));
            self.intervals.push(Vec::new());
            self.edges.push(Edges::default());
        }
        thread
    }

    fn key(&mut self, id: Id<'_>) -> Option<(u8, i64)> {
        match id {
            Id::None => None,
            Id::Number(number) => Some((1, number)),
            Id::Text(text) => Some((2, i64::from(self.ids.number(text)))),
        }
    }
}

/// What the trace says of a wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) kind: SyncKind,
    pub(super) context: u32,
    pub(super) stream: Option<u32>,
    pub(super) event: Option<u32>,
}

/// `Stream Sync`, `STREAM_SYNCHRONIZE`, `cudaStreamSynchronize`.
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

/// The number of a stack that the trace gives, with what its frames are.
fn given_number(stack: Text<'_>, kinds: Text<'_>, numbers: &mut NameNumbers) -> u32 {
    match kinds.raw() {
        b"" => numbers.number(stack),
        _ => numbers.number(Text::from(&*format!("{}\n{}", kinds.decode(), stack.decode()))),
    }
}

/// What the name of a call says.
#[derive(Clone, Copy, Debug)]
struct CallFacts {
    /// It waits, or has a stream wait.
    waits: bool,
    /// It starts work on a GPU whenever it is made.
    launches: bool,
    does: Option<Does>,
}

impl CallFacts {
    fn of(name: &str) -> Self {
        let waits = name.contains("Synchronize") || name.contains("WaitEvent");
        Self { waits, launches: is_launch(name), does: Does::of(name) }
    }
}

/// Whether a call of this name starts work on a GPU whenever it is made.
fn is_launch(name: &str) -> bool {
    name.contains("LaunchKernel") || name.contains("GraphLaunch")
}

fn copy_kind(name: &str) -> CopyKind {
    const KINDS: [CopyKind; 5] =
        [CopyKind::HTOD, CopyKind::DTOH, CopyKind::DTOD, CopyKind::HTOH, CopyKind::PTOP];
    let upper = name.to_ascii_uppercase();
    KINDS.into_iter().find(|kind| upper.contains(&kind.label().to_ascii_uppercase())).unwrap_or(CopyKind(0))
}
