//! Events to rows: the same rows that our own capture makes, so that everything behind the join works on
//! other tools' traces.
//!
//! A launch's stack is what its thread was in at the time: Python frames, ranges and operators, told by the
//! times that enclose the call (`stack`). An operation's launch is told by its correlation id (`link`).
//! Ids are numbered anew, since those of a trace may be larger than ours, repeat between processes, or
//! belong to calls that the trace does not have: each launch comes right before its operations, operations
//! launched before the trace began have ids below all launches, and others without a launch ids beyond.

use std::cmp::Reverse;

use super::capture::{self, Captured, Does, Made, Noted};
use super::edges::Edges;
use super::late::{self, Late};
use super::link::{self, Linked};
use super::model::*;
use super::slices::{Interval, NOBODY, ROOT, Rank, StackTree};
use super::stack::Stacks;
use super::told::{Operator, Told};
use super::work::{CallRecord, OpRecord};
use super::{Backward, Kind, NameNumbers, Opened, Options, Text};
use crate::error::{Error, ErrorKind, Result};
use crate::record::{
    Activity, ContextFlags, ContextId, CopyDetail, CopyKind, CorrelationId, Created, Detail, DeviceId,
    EventId, Frame, GpuContextId, GraphId, GraphNodeId, IdMap, Inside, KernelDetail, LabelId, LabelKind,
    Launch, MemoryKind, Missing, NameId, Nanos, Row, SetDetail, StreamId, SyncKind, ThreadId,
};

/// Reads any trace that has GPU operations, and calls `each` with its rows. Our own recordings have rows
/// already: see [`recording`](super::recording()).
///
/// # Errors
/// As [`Opened::read`]; `Format` for folded stacks, which have no operations.
pub fn rows(opened: Opened, options: &Options, each: &mut dyn FnMut(&Row<'_>)) -> Result<Linked> {
    let path = opened.path().display();
    if let kind @ (Kind::Folded | Kind::ExtendedFolded) = opened.kind() {
        let what =
            format!("{path}: {kind} have no GPU operations; `gpuflame flamegraph` draws them as they are");
        return Err(Error::new(ErrorKind::Format, what));
    }
    let mut collect = Collect { backward: options.backward, ..Collect::default() };
    if !options.graph_captures.is_empty() {
        collect.captured = Some(captures(options)?);
    }
    let seen = opened.read(options, &mut collect)?;
    Ok(Linked { seen, ..collect.finish(each) })
}

/// What the traces of captures tell.
fn captures(options: &Options) -> Result<Captured> {
    let mut captured = Captured::default();
    for path in &options.graph_captures {
        let opened = super::open(path)?;
        let mut collect = Collect { captured: Some(captured), ..Collect::default() };
        let before = collect.captured.as_ref().map(Captured::counts);
        opened
            .read(&Options { graph_captures: Vec::new(), progress: None, ..options.clone() }, &mut collect)?;
        captured = collect.into_captured();
        if Some(captured.counts()) == before {
            let what = "no capture of a graph is in it (calls between cudaStreamBeginCapture and cudaStreamEndCapture, or \
                        hip's); give the trace that was taken while the graphs were captured";
            return Err(Error::new(ErrorKind::Format, what).within(path.display()));
        }
    }
    Ok(captured)
}

/// A [`Sink`] that keeps what rows are made of.
#[derive(Debug, Default)]
pub struct Collect {
    kernels: NameNumbers,
    labels: NameNumbers,
    ids: NameNumbers,
    processes: IdMap<(u8, i64), u32>,
    threads: IdMap<(u32, (u8, i64)), u32>,
    /// Process, number where it has one, and name of each thread.
    thread_facts: Vec<(u32, Option<u32>, Box<str>)>,
    ops: Vec<OpRecord>,
    syncs: Vec<SyncRecord>,
    /// Of operations, by position: the stack on which a graph's node was made, by its number among given stacks; `None`
    /// where nobody knows.
    created: IdMap<u32, Option<u32>>,
    /// Why operations have no launch.
    reasons: IdMap<u32, Missing>,
    /// Graphs that other files captured; what calls do about graphs is noted only then.
    captured: Option<Captured>,
    noted: Vec<Noted>,
    steps: u64,
    last_step: i64,
    step_times: Vec<(i64, i64)>,
    waits: u64,
    backward: Backward,
    told: Told,
    /// Python functions as arguments of operators have them, by number as in `told`.
    call_stacks: NameNumbers,
    /// Whole stacks, as calls have them in our own exports.
    given_stacks: NameNumbers,
    has_python: bool,
    /// Kernels that are parts of collectives.
    collectives: IdMap<u32, ()>,
    calls: Vec<CallRecord>,
    intervals: Vec<Vec<Interval>>,
    /// Slices so far that are no calls.
    slices: u32,
    /// Who was looked up last: process and thread as the trace has them, and the thread's number here.
    last_thread: Option<(i64, i64, u32)>,
    /// What names of calls say, by the number of the label.
    call_facts: Vec<Option<CallFacts>>,
    /// Calls with a stack of their own, by number: that stack among the given ones.
    given: IdMap<u32, u32>,
    /// Of each thread: where slices begin and end whose ends are events of their own.
    edges: Vec<Edges>,
    /// How many events there were of each category that is not known, by its number.
    categories: NameNumbers,
    others: Vec<u64>,
}

impl Sink for Collect {
    fn wants(&self) -> Wants {
        let work = Wants::OPS.and(Wants::CALLS).and(Wants::SYNCS).and(Wants::NAMES).and(Wants::OTHER);
        let slices = Wants::CPU.and(Wants::STEPS).and(Wants::PYTHON).and(Wants::EDGES);
        match self.backward {
            Backward::Autograd => work.and(slices),
            Backward::Forward => work.and(slices).and(Wants::FLOWS).and(Wants::DETAILS),
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
        if (self.backward, op.call_stack.raw()) != (Backward::Autograd, b"") {
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

    /// Links, and calls `each` with all rows.
    pub fn finish(mut self, each: &mut dyn FnMut(&Row<'_>)) -> Linked {
        for (edges, intervals) in self.edges.iter_mut().zip(&mut self.intervals) {
            edges.slices(&mut self.calls, intervals);
        }
        let mut linked = {
            let processes: Vec<u32> = self.thread_facts.iter().map(|(process, ..)| *process).collect();
            link::all(&mut self.ops, &mut self.calls, &processes)
        };
        (linked.syncs, linked.steps, linked.waits) = (self.syncs.len() as u64, self.steps, self.waits);
        linked.unknown =
            self.categories.texts().map(str::to_owned).zip(self.others.iter().copied()).collect();
        linked.unknown.sort_by_key(|(category, count)| (Reverse(*count), category.clone()));
        let times = self.ops.iter().map(|op| op.start).chain(self.calls.iter().map(|call| call.start));
        let times = times.chain(self.syncs.iter().map(|sync| sync.start));
        linked.offset = times.min().map_or(0, |first| 1_i64.saturating_sub(first).max(0));
        if self.backward == Backward::Forward {
            self.told.tie();
        }
        if !self.has_python {
            self.split_call_stacks();
        }
        let mut stacks = StackTree::default();
        let spans = late::spans(&self.ops, &self.calls, self.intervals.len());
        let insides = self.find_stacks(&mut stacks, spans);
        if self.backward == Backward::Forward {
            let mark = self.labels.number(Text::from("[backward]"));
            self.told.hang(mark, &mut self.calls, &mut stacks);
            linked.backward = Some(self.told.nanos(&self.ops));
        }
        let given: Vec<u32> = std::mem::take(&mut self.given_stacks)
            .texts()
            .map(|stack| given_stack(stack, &mut self.labels, &mut stacks))
            .collect();
        for (&call, &stack) in &self.given {
            self.calls[call as usize].stack = given[stack as usize];
        }
        let created =
            self.created.iter().map(|(&op, number)| (op, number.map(|number| given[number as usize])));
        let mut created = created.collect();
        linked.captured = self.tie(&mut stacks, &mut created);
        linked.last_step = (self.steps > 1).then(|| self.last_step.saturating_add(linked.offset));
        self.step_times.sort_unstable();
        self.step_times.dedup();
        let shown =
            |&(start, end): &(i64, i64)| (shifted(start, linked.offset).0, shifted(end, linked.offset).0);
        linked.step_times = self.step_times.iter().map(shown).collect();
        linked.collectives =
            self.collectives.keys().map(|&kernel| self.kernels.text(kernel).to_owned()).collect();
        self.name_rows(each);
        let contexts = self.context_rows(&stacks, insides, created, linked.offset, each);
        self.work_rows(&contexts, &mut linked, each);
        linked
    }

    /// Finds the stacks of all calls, and what threads were in at the times that `spans` ask for.
    fn find_stacks(&mut self, stacks: &mut StackTree, spans: Vec<Vec<(i64, i64)>>) -> Vec<Vec<(i64, u32)>> {
        let mut insides = Vec::new();
        let mut names = late::Names::new(std::mem::take(&mut self.labels));
        for (intervals, spans) in std::mem::take(&mut self.intervals).into_iter().zip(spans) {
            let mut late = Late::new(spans, names);
            let mut of_thread = Stacks { tree: &mut *stacks, told: &mut self.told, late: &mut late };
            of_thread.thread(intervals, &mut self.calls);
            insides.push(late.found);
            names = late.names;
        }
        self.labels = names.into_labels();
        insides
    }

    /// What this file tells of captured graphs, and those before it.
    fn into_captured(mut self) -> Captured {
        let mut captured = self.captured.take().unwrap_or_default();
        for (edges, intervals) in self.edges.iter_mut().zip(&mut self.intervals) {
            edges.slices(&mut self.calls, intervals);
        }
        if !self.has_python {
            self.split_call_stacks();
        }
        let mut stacks = StackTree::default();
        let nowhere = vec![Vec::new(); self.intervals.len()];
        self.find_stacks(&mut stacks, nowhere);
        captured.add(&self.noted, &self.calls, &self.kernels, &stacks, &self.labels);
        // Our own exports say of each operation of a graph where its node was made.
        for (&op, &given) in &self.created {
            let node = self.ops[op as usize].graph_node;
            if let (Some(given), true) = (given, node != 0) {
                let text = self.given_stacks.text(given).to_owned();
                let stack = given_stack(&text, &mut self.labels, &mut stacks);
                let stack = captured.stack(&stacks, &self.labels, stack);
                captured.node(node, stack);
            }
        }
        captured
    }

    /// Hangs what graphs launched under the stacks of the files that captured them; `created` is where each operation was
    /// made, or that nobody knows.
    fn tie(
        &mut self,
        stacks: &mut StackTree,
        created: &mut IdMap<u32, Option<u32>>,
    ) -> Option<capture::Tied> {
        let captured = self.captured.take()?;
        let launches = self.noted.iter().filter(|note| note.does == Does::Launch);
        let launches: Vec<u32> = launches.map(|note| note.call).collect();
        let (made, tied) = captured.tie(&launches, &self.ops, &self.calls, &self.kernels);
        for (op, made) in made {
            let stack = match made {
                Made::Unknown => None,
                Made::By(stack, guessed) => {
                    let mut node = ROOT;
                    for (name, rank) in captured.frames(stack) {
                        node = stacks.child((node, self.labels.number(Text::from(name)), rank));
                    }
                    if guessed {
                        node = stacks.child((
                            node,
                            self.labels.number(Text::from(capture::GUESSED)),
                            Rank::Call,
                        ));
                    }
                    Some(node)
                }
            };
            created.insert(op, stack);
        }
        Some(tied)
    }

    /// Has the Python functions in arguments of operators be labels, outermost first.
    fn split_call_stacks(&mut self) {
        for functions in std::mem::take(&mut self.call_stacks).texts() {
            let functions = functions.split(';').rev().filter(|function| !function.is_empty());
            self.told
                .lists
                .push(functions.map(|function| self.labels.number(Text::from(function))).collect());
        }
    }

    fn name_rows(&self, each: &mut dyn FnMut(&Row<'_>)) {
        for (id, text) in (0..).zip(self.kernels.texts()) {
            each(&Row::Name { id: NameId(id), text });
        }
        for (id, text) in (0..).zip(self.labels.texts()) {
            each(&Row::Label { id: LabelId(id), text });
        }
    }

    /// A context for each (stack, thread) that launched, or that a GPU waited in, and when it did. Gives them by call.
    fn context_rows(
        &self,
        stacks: &StackTree,
        insides: Vec<Vec<(i64, u32)>>,
        created: IdMap<u32, Option<u32>>,
        offset: i64,
        each: &mut dyn FnMut(&Row<'_>),
    ) -> Contexts {
        let threads = self.thread_numbers();
        for (&id, (_, _, name)) in threads.iter().zip(&self.thread_facts) {
            if !name.is_empty() {
                each(&Row::Thread { id, name });
            }
        }
        let mut known: IdMap<(u32, u32), ContextId> = IdMap::default();
        let mut frames = Vec::new();
        let mut context = |stack: u32, thread: u32, each: &mut dyn FnMut(&Row<'_>)| {
            let next = ContextId(known.len() as u32 + ContextId::FIRST.0);
            let id = *known.entry((stack, thread)).or_insert(next);
            if id == next {
                frames.clear();
                frames.extend(stacks.leaf_first(stack).map(frame));
                let thread = threads[thread as usize];
                each(&Row::Context { id, thread, flags: ContextFlags::default(), frames: &frames });
            }
            id
        };
        for (number, inside) in (0..).zip(insides) {
            for (since, stack) in inside {
                let context = match stack {
                    ROOT => ContextId::NONE,
                    stack => context(stack, number, each),
                };
                let (thread, since) = (threads[number as usize], shifted(since, offset));
                each(&Row::Inside(Inside { thread, since, context }));
            }
        }
        let shown = self.calls.iter().filter(|call| call.is_shown());
        let calls = shown.map(|call| context(call.stack, call.thread, each)).collect();
        let mut made: Vec<(u32, Option<u32>)> = created.into_iter().collect();
        made.sort_unstable();
        let mut created = IdMap::default();
        for (op, stack) in made {
            let thread = self.ops[op as usize].call.map_or(0, |call| self.calls[call as usize].thread);
            let context = stack.map(|stack| context(stack, thread, each));
            created.insert(op, context.map_or(Created::Unknown, Created::Context));
        }
        Contexts { calls, created }
    }

    /// The threads' own numbers, and others for those that have none, or one that another process uses.
    fn thread_numbers(&self) -> Vec<ThreadId> {
        let mut used: IdMap<ThreadId, ()> = IdMap::default();
        let mut spare = 1 << 31;
        let number = |(_, number, _): &(u32, Option<u32>, Box<str>)| {
            let mut id = ThreadId(number.unwrap_or(spare));
            while used.insert(id, ()).is_some() {
                spare += 1;
                id = ThreadId(spare);
            }
            id
        };
        self.thread_facts.iter().map(number).collect()
    }

    fn work_rows(&self, contexts: &Contexts, linked: &mut Linked, each: &mut dyn FnMut(&Row<'_>)) {
        let offset = linked.offset;
        let nanos = |time: i64| shifted(time, offset);
        // By call, and by time within each.
        let mut order: Vec<u32> = (0..self.ops.len() as u32).collect();
        order.sort_by_key(|&at| {
            let op = &self.ops[at as usize];
            (op.call, op.start)
        });
        let mut correlation = linked.before as u32;
        let mut before = 0;
        let first_linked = order.partition_point(|&at| self.ops[at as usize].call.is_none());
        let (orphans, mut rest) = order.split_at(first_linked);
        let mut calls: Vec<(u32, ContextId)> = (0..)
            .zip(&self.calls)
            .filter(|(_, call)| call.is_shown())
            .map(|(at, _)| at)
            .zip(contexts.calls.iter().copied())
            .collect();
        calls.sort_by_key(|&(at, _)| at);
        for (at, context) in calls {
            let call = &self.calls[at as usize];
            correlation += 1;
            let id = CorrelationId(correlation);
            let duration = u32::try_from(call.end.saturating_sub(call.start).max(0)).unwrap_or(u32::MAX);
            each(&Row::Launch(Launch {
                time: nanos(call.start),
                duration,
                correlation: id,
                within: id,
                context,
            }));
            linked.pending += u64::from(call.ops == 0);
            let count = call.ops as usize;
            let (own, others) = rest.split_at(count);
            for &at in own {
                let created = contexts.created.get(&at).copied();
                each(&Row::Activity(Activity { created, ..activity(&self.ops[at as usize], id, &nanos) }));
            }
            rest = others;
        }
        for &at in orphans {
            let op = &self.ops[at as usize];
            let reason = self.reasons.get(&at);
            let id =
                if reason.map_or_else(|| linked.launched_before(op), |why| *why == Missing::LaunchedBefore) {
                    before += 1;
                    before
                } else {
                    correlation += 1;
                    correlation
                };
            each(&Row::Activity(Activity {
                created: contexts.created.get(&at).copied(),
                device_launched: reason == Some(&Missing::DeviceGraph),
                ..activity(op, CorrelationId(id), &nanos)
            }));
        }
        let mut syncs: Vec<&SyncRecord> = self.syncs.iter().collect();
        syncs.sort_by_key(|sync| (sync.start, sync.end));
        for sync in syncs {
            correlation = correlation.wrapping_add(1);
            each(&Row::Sync(crate::record::Sync {
                kind: sync.kind,
                start: nanos(sync.start),
                end: nanos(sync.end),
                correlation: CorrelationId(correlation),
                context: GpuContextId(sync.context),
                stream: sync.stream.map(StreamId),
                event: sync.event.map(EventId),
                sync: None,
                result: 0,
            }));
        }
    }
}

/// Of what the rows about work refer to.
struct Contexts {
    /// Those of the calls that are shown, in their order.
    calls: Vec<ContextId>,
    /// Where operations of graphs were made, by position.
    created: IdMap<u32, Created>,
}

/// What the trace says of a wait.
#[derive(Clone, Copy, Debug)]
struct SyncRecord {
    start: i64,
    end: i64,
    kind: SyncKind,
    context: u32,
    stream: Option<u32>,
    event: Option<u32>,
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

/// The stack whose frames are in this text, root first, behind a letter for each: `p` of Python, `r` a range. Where there
/// are none, ranges are told as we write them.
fn given_stack(text: &str, labels: &mut NameNumbers, tree: &mut StackTree) -> u32 {
    let (kinds, stack) = text.split_once('\n').unwrap_or(("", text));
    let mut kinds = kinds.bytes();
    stack.split(';').fold(ROOT, |node, frame| {
        let rank = match kinds.next() {
            Some(b'p') => Rank::Python,
            Some(b'r') => Rank::Range,
            None if frame.starts_with("[range") => Rank::Range,
            _ => Rank::Call,
        };
        tree.child((node, labels.number(Text::from(frame)), rank))
    })
}

/// A time of the trace as rows have it.
fn shifted(time: i64, offset: i64) -> Nanos {
    Nanos(time.saturating_add(offset).max(0) as u64)
}

fn frame((label, rank): (u32, Rank)) -> Frame {
    let kind = match rank {
        Rank::Python => LabelKind::Python,
        Rank::Range => LabelKind::Range,
        Rank::Operator | Rank::Call => LabelKind::Call,
    };
    Frame::label_of(kind, LabelId(label))
}

fn activity(op: &OpRecord, correlation: CorrelationId, nanos: &impl Fn(i64) -> Nanos) -> Activity {
    Activity {
        correlation,
        device: DeviceId(op.device),
        context: GpuContextId(op.context),
        stream: StreamId(op.stream),
        channel: None,
        start: nanos(op.start),
        end: nanos(op.end),
        graph: GraphId(op.graph),
        graph_node: GraphNodeId(op.graph_node),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail: op.detail,
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
