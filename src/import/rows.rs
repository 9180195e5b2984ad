//! Events to rows: the same rows that our own capture makes, so that everything behind the join works on
//! other tools' traces.
//!
//! A launch's stack is what its thread was in at the time: Python frames, ranges and operators, told by the
//! times that enclose the call (`stack`). An operation's launch is told by its correlation id (`link`).
//! Ids are numbered anew, since those of a trace may be larger than ours, repeat between processes, or
//! belong to calls that the trace does not have: each launch comes right before its operations, operations
//! launched before the trace began have ids below all launches, and others without a launch ids beyond.

use std::cmp::Reverse;

use super::capture::{self, Captured, Does, Made};
use super::collect::{Collect, SyncRecord};
use super::frames::StackFrames;
use super::late::{self, Late};
use super::link::{self, Linked};
use super::slices::{ROOT, Rank, StackTree};
use super::stack::Stacks;
use super::work::OpRecord;
use super::{Kind, NameNumbers, Opened, Options, Text};
use crate::error::{Error, ErrorKind, Result};
use crate::record::{
    Activity, ContextFlags, ContextId, CorrelationId, Created, DeviceId, EventId, Frame, GpuContextId,
    GraphId, GraphNodeId, IdMap, Inside, LabelId, LabelKind, Launch, Missing, NameId, Nanos, Row, StreamId,
    ThreadId,
};

/// Reads any trace that has GPU operations, and calls `each` with its rows. Our own recordings have rows
/// already: see [`recording`](super::recording()).
///
/// # Errors
/// As [`Opened::read`]; `Format` for folded stacks, which have no operations.
pub fn rows(opened: Opened, options: &Options, each: &mut dyn FnMut(&Row<'_>)) -> Result<Linked> {
    let path = opened.path().display();
    if let kind @ (Kind::Folded | Kind::ExtendedFolded) = opened.kind() {
        let what = format!(
            "{path}: {kind} have no GPU operations; `gpuflame flamegraph` draws them as they are, and `gpuflame run --formats gfr` \
             leaves a recording, which can be asked for more"
        );
        return Err(Error::new(ErrorKind::Format, what));
    }
    let mut collect = Collect::new(options.backward_under_forward, None);
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
        let mut collect = Collect::new(false, Some(captured));
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

impl Collect {
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
        if self.backward_under_forward {
            self.told.tie();
        }
        if !self.has_python {
            self.split_call_stacks();
        }
        let mut stacks = StackTree::default();
        let spans = late::spans(&self.ops, &self.calls, self.intervals.len());
        let insides = self.find_stacks(&mut stacks, spans);
        if self.backward_under_forward {
            let mark = self.labels.number(Text::from("[backward]"));
            self.told.hang(mark, &mut self.calls, &mut stacks);
            linked.backward = Some(self.told.nanos(&self.ops));
        }
        let given: Vec<Option<u32>> = std::mem::take(&mut self.given_stacks)
            .texts()
            .map(|stack| given_stack(stack, &self.frames, &mut self.labels, &mut stacks))
            .collect();
        for (&call, &stack) in &self.given {
            if let Some(stack) = given[stack as usize] {
                self.calls[call as usize].stack = stack;
            }
        }
        let created =
            self.created.iter().map(|(&op, number)| (op, number.and_then(|number| given[number as usize])));
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
                let Some(stack) = given_stack(&text, &self.frames, &mut self.labels, &mut stacks) else {
                    continue;
                };
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

/// The stack whose frames are in this text, root first, behind a letter for each: `p` of Python, `r` a range. Where there
/// are none, ranges are told as we write them. `f`: a stack of which the innermost frame is named; `None`: there is none of
/// that name.
fn given_stack(
    text: &str,
    frames: &StackFrames,
    labels: &mut NameNumbers,
    tree: &mut StackTree,
) -> Option<u32> {
    let (kinds, stack) = text.split_once('\n').unwrap_or(("", text));
    if kinds == "f" {
        let stack = frames.stack(stack)?.into_iter();
        return Some(
            stack
                .fold(ROOT, |node, (frame, rank)| tree.child((node, labels.number(Text::from(frame)), rank))),
        );
    }
    let mut kinds = kinds.bytes();
    Some(stack.split(';').fold(ROOT, |node, frame| {
        let rank = match kinds.next() {
            Some(b'p') => Rank::Python,
            Some(b'r') => Rank::Range,
            None if frame.starts_with("[range") => Rank::Range,
            _ => Rank::Call,
        };
        tree.child((node, labels.number(Text::from(frame)), rank))
    }))
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
