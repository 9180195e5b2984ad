//! Turns events into rows. The rows are of the kinds that our own capture records, so that all code after the join
//! works on other tools' traces.
//!
//! The stack of a launch consists of the slices that enclose the call on its thread: Python frames, ranges and
//! operators (`call_stacks`). The launch of an operation is found by correlation id (`link`). Ids are renumbered,
//! because the ids of a trace may exceed our range, repeat between processes, or belong to calls that the trace
//! lacks. In the new numbering each launch comes directly before its operations. Operations launched before the trace
//! began get ids below all launches, and other operations without a launch get ids above all launches.

use std::cmp::Reverse;

use super::file_ids::FileIds;
use super::graph_captures::{CaptureCoverage, GUESSED, GraphCaptures, GraphRole, NodeOrigin};
use super::graph_edges::GraphEdges;
use super::host_delays;
use super::link::{LinkReport, Linking};
use super::op_order::OpOrder;
use super::op_records::OpRecord;
use super::slices::{FrameClass, ROOT, StackTree};
use super::stack_frames::StackFrames;
use super::sync_rows::SyncCalls;
use super::thread_stacks::{FoundStacks, ThreadSlices};
use super::thread_states::ThreadStates;
use super::trace_collector::TraceCollector;
use super::{Kind, NameTable, Opened, Options, Text};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::MAX_PLAUSIBLE_NS;
use gpuflame_model::record::{
    Activity, ContextFlags, ContextId, CorrelationId, Created, Detail, DeviceId, Frame, GpuContextId,
    GraphId, GraphNodeId, HostState, IdMap, LabelId, LabelKind, Launch, LaunchAttributes, Loss, Missing,
    NameId, Nanos, Row, Step, StreamId, ThreadId, Wait,
};

/// A start of 0 means "not recorded" if all other starts are later than this time, in ns on the trace's clock.
const MIN_GAP_AFTER_ZERO_NS: i64 = 60_000_000_000;

/// Maximum number of frames of a stack; the frames at the root of deeper stacks are left out, and the stack is marked as
/// truncated. Without the limit, slices that are nested by the thousand would make stacks with millions of frames.
const MAX_FRAMES: usize = 2048;

/// Minimum number of calls for which a second thread is started.
const MIN_CALLS_FOR_THREAD: usize = 1 << 14;

/// Reads any trace that has GPU operations, and calls `each` with the trace's rows. Our own recordings already
/// contain rows: see [`recording`](super::recording()).
///
/// # Errors
/// As [`Opened::read`]; `Format` for folded stacks, because they have no operations.
pub fn rows(opened: Opened, options: &Options, each: &mut dyn FnMut(&Row<'_>)) -> Result<LinkReport> {
    let path = opened.path().display();
    if let kind @ (Kind::Folded | Kind::ExtendedFolded) = opened.kind() {
        let what = format!(
            "{path}: {kind} have no GPU operations; draw them with `gpuflame flamegraph`, or make a recording with \
             `gpuflame run --rows`, which every command can read"
        );
        return Err(Error::new(ErrorKind::Format, what));
    }
    let mut collector = TraceCollector::new(options.backward_under_forward, None);
    collector.kernel_gaps = options.kernel_gaps;
    collector.without_thread_states = options.without_thread_states;
    collector.keeps_ranges = options.ranges;
    if !options.graph_captures.is_empty() {
        collector.graph_captures = Some(read_captures(options)?);
    }
    let counts = opened.read(options, &mut collector)?;
    Ok(LinkReport { counts, ..collector.emit_rows(each) })
}

/// Reads the graph captures from the capture traces.
fn read_captures(options: &Options) -> Result<GraphCaptures> {
    let mut captured = GraphCaptures::default();
    for path in &options.graph_captures {
        let opened = super::open(path)?;
        let mut collector = TraceCollector::new(false, Some(captured));
        let before = collector.graph_captures.as_ref().map(GraphCaptures::counts);
        opened.read(
            &Options { graph_captures: Vec::new(), progress: None, ..options.clone() },
            &mut collector,
        )?;
        captured = collector.into_graph_captures();
        if Some(captured.counts()) == before {
            let what = "contains no capture of a graph (calls between cudaStreamBeginCapture and cudaStreamEndCapture, \
                        or HIP's); give the trace that was taken while the graphs were captured";
            return Err(Error::new(ErrorKind::Format, what).within(path.display()));
        }
    }
    Ok(captured)
}

impl TraceCollector {
    /// Links the operations to calls, and calls `each` with all rows.
    pub fn emit_rows(mut self, each: &mut dyn FnMut(&Row<'_>)) -> LinkReport {
        self.ops.finish();
        self.pair_edges();
        let unset = self.clear_missing_starts();
        self.separate_contexts();
        let edges = self.find_graph_edges();
        self.mark_host_functions(&edges);
        let (mut linked, found) = self.link_operations_and_stacks();
        // In a trace of several processes, graphs with one id may be different ones.
        let edges = if linked.renumbered_devices.is_empty() { edges } else { GraphEdges::default() };
        linked.unpaired_edges = (self.unpaired_edges.begins, self.unpaired_edges.ends);
        linked.cpu_events = self.cpu_events();
        (linked.sync_records, linked.wait_calls) = (self.syncs.len() as u64, self.wait_calls);
        linked.event_wait_calls = self.event_wait_calls;
        let known = edges.host_function_calls();
        let is_unknown = |call: &&u32| !known.contains(&self.calls.correlation_of(**call));
        linked.host_function_calls = self.host_function_calls.iter().filter(is_unknown).count() as u64;
        linked.streams = self.stream_flags.iter().map(|(_, stream)| *stream).collect();
        linked.attribute_launches = self.attribute_launches;
        let to_rows = |time| to_row_time(time, linked.offset).0;
        linked.profiler_work =
            self.profiler_work.iter().map(|&(start, end)| (to_rows(start), to_rows(end))).collect();
        linked.ops_without_stream = self.ops_without_stream;
        let captured = self.remove_captured_launches();
        let is_captured = |at: u32| !self.calls.get(at).is_shown();
        let programmatic = self.programmatic.iter().filter(|(at, is_set)| **is_set && is_captured(**at));
        linked.captured_programmatic_launches = programmatic.count() as u64;
        if captured > 0 {
            each(&Row::Loss { loss: Loss::LaunchesCaptured, count: captured });
        }
        linked.unknown_categories = self
            .unknown_categories
            .texts()
            .map(str::to_owned)
            .zip(self.category_counts.iter().copied())
            .collect();
        linked.unknown_categories.sort_by_key(|(category, count)| (Reverse(*count), category.clone()));
        let times = self.ops.starts().chain(self.calls.starts());
        let times = times.chain(self.syncs.iter().map(|sync| sync.start));
        let times = times.filter(|time| unset != Some(*time));
        linked.offset = times.min().map_or(0, |first| 1_i64.saturating_sub(first).max(0));
        if self.keeps_ranges {
            linked.ranges = self.named_ranges(&|time| to_row_time(time, linked.offset));
        }
        let found = found.unwrap_or_else(|| {
            let spans = self.delay_spans();
            self.take_slices().find_stacks(spans)
        });
        let (mut stacks, delay_states) = self.keep_stacks(found);
        linked.crossing_slices = self.crossing_slices;
        if self.backward_under_forward {
            let mark = self.labels.intern(Text::from("[backward]"));
            self.operator_links.attach_to_forward(mark, &mut self.calls, &mut stacks);
            linked.backward_ns = Some(self.operator_links.backward_nanos(&self.ops));
        }
        let given: Vec<Option<u32>> = std::mem::take(&mut self.given_stacks)
            .texts()
            .map(|stack| parse_given_stack(stack, &self.stack_frames, &mut self.labels, &mut stacks))
            .collect();
        for (&call, &stack) in &self.given_stack_of_call {
            if let Some(stack) = given[stack as usize] {
                self.calls.set_stack(call, stack);
            }
        }
        let created =
            self.created.iter().map(|(&op, number)| (op, number.and_then(|number| given[number as usize])));
        let mut created = created.collect();
        linked.capture_coverage = self.attribute_graph_ops(&mut stacks, &mut created);
        let last_step = self.steps.iter().map(|(start, ..)| *start).max();
        let last_step = last_step.filter(|_| self.steps.len() > 1);
        linked.last_step = last_step.map(|start| start.saturating_add(linked.offset));
        linked.collectives =
            self.collectives.keys().map(|&kernel| self.kernels.text(kernel).to_owned()).collect();
        self.number_event_records();
        self.emit_names(each);
        self.emit_steps(linked.offset, each);
        let contexts = self.emit_contexts(&stacks, delay_states, created, linked.offset, each);
        self.emit_work(contexts, &edges, &mut linked, each);
        linked
    }

    /// Removes the launches that a thread made while it captured a graph and that started no work, because their work
    /// became a part of the graph. Returns the number of removed launches.
    fn remove_captured_launches(&mut self) -> u64 {
        let mut edges: Vec<(u32, i64, bool)> = self
            .capture_edges
            .iter()
            .map(|&(call, begins)| {
                let call = self.calls.get(call);
                (call.thread, if begins { call.start } else { call.end }, begins)
            })
            .collect();
        edges.sort_unstable();
        // Captures by thread and time. A capture without an end, or an end without a beginning, is ignored.
        let captures: Vec<(u32, i64, i64)> = edges
            .windows(2)
            .filter(|pair| pair[0].0 == pair[1].0 && pair[0].2 && !pair[1].2)
            .map(|pair| (pair[0].0, pair[0].1, pair[1].1))
            .collect();
        let mut captured = 0;
        for at in self.calls.numbers() {
            let call = self.calls.get(at);
            if captures.is_empty() || !call.launches || call.ops > 0 {
                continue;
            }
            let after =
                captures.partition_point(|&(thread, begin, _)| (thread, begin) <= (call.thread, call.start));
            let capture = after.checked_sub(1).map(|at| captures[at]);
            if capture.is_some_and(|(thread, _, end)| thread == call.thread && call.start < end) {
                self.calls.set_launches(at, false);
                captured += 1;
            }
        }
        captured
    }

    /// Clears the end of operations whose start is 0, if all other starts are long after 0, because the start was then
    /// not recorded. Such an operation has no duration, instead of a duration of decades. Returns the start that means
    /// "not recorded".
    fn clear_missing_starts(&mut self) -> Option<i64> {
        let starts = self.ops.starts().chain(self.calls.starts());
        let first = starts.filter(|start| *start != 0).min()?;
        if first <= MIN_GAP_AFTER_ZERO_NS {
            return None;
        }
        self.ops.set_ends_of(0, 0);
        Some(0)
    }

    fn pair_edges(&mut self) {
        for (edges, slices) in self.edges.iter_mut().zip(&mut self.slices) {
            edges.pair_into_slices(&mut self.calls, &mut self.ops, slices, &mut self.unpaired_edges);
        }
    }

    /// Finds the edges of graphs. The other flows with such ids become those of launches.
    fn find_graph_edges(&mut self) -> GraphEdges {
        let flows = std::mem::take(&mut self.graph_flows);
        let mut others = Vec::new();
        let edges = flows.resolve(&self.ops, self.launch_flows.ends(), &mut |end, correlation, begins| {
            others.push((end, correlation, begins));
        });
        self.launch_flows.remove_ends(&edges.idle_places());
        others
            .into_iter()
            .for_each(|(end, correlation, begins)| self.add_launch_flow(end, correlation, begins));
        edges
    }

    /// Marks the outermost calls that submitted the host functions of streams as launches.
    fn mark_host_functions(&mut self, edges: &GraphEdges) {
        let known = edges.host_function_calls();
        let mut outermost: IdMap<u64, u32> = IdMap::default();
        for &at in &self.host_function_calls {
            let call = self.calls.get(at);
            if known.contains(&call.correlation) {
                let first = outermost.entry(call.correlation).or_insert(at);
                let other = self.calls.get(*first);
                if (call.start, -call.end) < (other.start, -other.end) {
                    *first = at;
                }
            }
        }
        outermost.values().for_each(|at| self.calls.set_launches(*at, true));
    }

    /// Links the operations to calls.
    fn link_operations(&mut self) -> LinkReport {
        let processes: Vec<u32> = self.thread_facts.iter().map(|(process, ..)| *process).collect();
        let (homes, renumbered_devices) = self.settle_places(&processes);
        let flows =
            std::mem::take(&mut self.launch_flows).resolve(&self.ops, &self.calls, &self.thread_lanes);
        let linking = Linking {
            ops: &mut self.ops,
            calls: &mut self.calls,
            process_of_thread: &processes,
            homes: &homes.sets,
            home_of_shape: &homes.of_shape,
            flows,
            external_calls: std::mem::take(&mut self.external_calls),
            external_ops: std::mem::take(&mut self.external_ops),
        };
        LinkReport { renumbered_devices, ..linking.link() }
    }

    /// Returns the spans of time, by thread, in which a GPU waited for the thread's next launch.
    fn delay_spans(&self) -> Vec<Vec<(i64, i64)>> {
        let threads = self.slices.len();
        if self.without_thread_states {
            return vec![Vec::new(); threads];
        }
        let order = host_delays::ops_by_device(&self.ops, &self.calls);
        let ops = || order.iter().map(|at| self.ops.get(*at));
        let mut spans = host_delays::delay_spans(ops(), &self.calls, threads, |_| true);
        if self.kernel_gaps {
            let is_kernel = |op: &OpRecord<'_>| {
                matches!(op.shape.detail, Detail::Kernel(_) | Detail::Graph)
                    && op.end.saturating_sub(op.start) <= MAX_PLAUSIBLE_NS as i64
            };
            let more = host_delays::delay_spans(ops(), &self.calls, threads, is_kernel);
            let more = host_delays::since_last_launch(more, &self.calls);
            spans.iter_mut().zip(more).for_each(|(spans, more)| spans.extend(more));
        }
        spans
    }

    /// Links the operations to calls. If it is not needed when the GPUs waited for threads, the stacks of the calls are found at
    /// the same time by another thread, and returned.
    fn link_operations_and_stacks(&mut self) -> (LinkReport, Option<FoundStacks>) {
        if !self.without_thread_states || self.keeps_ranges || self.calls.len() < MIN_CALLS_FOR_THREAD {
            return (self.link_operations(), None);
        }
        let (spans, slices) = (self.delay_spans(), self.take_slices());
        std::thread::scope(|scope| {
            let stacks = scope.spawn(|| slices.find_stacks(spans));
            let linked = self.link_operations();
            (linked, Some(stacks.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
        })
    }

    /// Takes the slices, and everything else that is needed to find the stacks of calls.
    fn take_slices(&mut self) -> ThreadSlices {
        if self.backward_under_forward {
            self.operator_links.link_forward();
        }
        if !self.has_python {
            self.split_call_stacks();
        }
        ThreadSlices {
            of_threads: std::mem::take(&mut self.slices),
            labels: std::mem::take(&mut self.labels),
            links: std::mem::take(&mut self.operator_links),
            calls: self.calls.len(),
        }
    }

    /// Notes the stacks of the calls. Returns the tree of all stacks, and the stacks that threads were in while a GPU waited.
    fn keep_stacks(&mut self, found: FoundStacks) -> (StackTree, Vec<ThreadStates>) {
        (self.labels, self.operator_links) = (found.labels, found.links);
        self.crossing_slices += found.left_out;
        for (call, stack) in self.calls.numbers().zip(found.of_calls) {
            self.calls.set_stack(call, stack);
        }
        (found.tree, found.delay_states)
    }

    /// Adds the graph captures of this trace to the captures of the previous traces.
    fn into_graph_captures(mut self) -> GraphCaptures {
        let mut captured = self.graph_captures.take().unwrap_or_default();
        self.pair_edges();
        let no_spans = vec![Vec::new(); self.slices.len()];
        let found = self.take_slices().find_stacks(no_spans);
        let (mut stacks, _) = self.keep_stacks(found);
        captured.add_captures(&self.graph_calls, &self.calls, &self.kernels, &stacks, &self.labels);
        // Our own exports give the stack that created the node of a graph operation.
        for (&op, &given) in &self.created {
            let node = self.ops.get(op).shape.graph_node;
            if let (Some(given), true) = (given, node != 0) {
                let text = self.given_stacks.text(given).to_owned();
                let Some(stack) = parse_given_stack(&text, &self.stack_frames, &mut self.labels, &mut stacks)
                else {
                    continue;
                };
                let stack = captured.intern_stack(&stacks, &self.labels, stack);
                captured.add_node(node, stack);
            }
        }
        captured
    }

    /// Attributes the operations of graph launches to the stacks that captured the operations. Stores the creating
    /// stack of an operation in `created`, or `None` if the stack is unknown.
    fn attribute_graph_ops(
        &mut self,
        stacks: &mut StackTree,
        created: &mut IdMap<u32, Option<u32>>,
    ) -> Option<CaptureCoverage> {
        let captured = self.graph_captures.take()?;
        let launches = self.graph_calls.iter().filter(|graph_call| graph_call.role == GraphRole::Launch);
        let launches: Vec<u32> = launches.map(|graph_call| graph_call.call).collect();
        let (origins, coverage) = captured.attribute(&launches, &self.ops, &self.calls, &self.kernels);
        for (op, origin) in origins {
            let stack = match origin {
                NodeOrigin::Unknown => None,
                NodeOrigin::CapturedBy(stack, guessed) => {
                    let mut node = ROOT;
                    for (name, class) in captured.frames(stack) {
                        node = stacks.child((node, self.labels.intern(Text::from(name)), class));
                    }
                    if guessed {
                        node =
                            stacks.child((node, self.labels.intern(Text::from(GUESSED)), FrameClass::Call));
                    }
                    Some(node)
                }
            };
            created.insert(op, stack);
        }
        Some(coverage)
    }

    /// Splits the Python call stacks from operator arguments into labels, outermost first.
    fn split_call_stacks(&mut self) {
        for functions in std::mem::take(&mut self.call_stacks).texts() {
            let innermost = functions.split(';').find(|function| !function.is_empty());
            let opens_range = innermost.is_some_and(|function| {
                function
                    .strip_suffix("__enter__")
                    .is_some_and(|place| place.is_empty() || place.ends_with(' '))
            });
            self.operator_links.opens_range.push(opens_range);
            let functions = functions.split(';').rev().filter(|function| !function.is_empty());
            self.operator_links
                .python_stacks
                .push(functions.map(|function| self.labels.intern(Text::from(function))).collect());
        }
    }

    fn emit_names(&self, each: &mut dyn FnMut(&Row<'_>)) {
        for (id, text) in (0..).zip(self.kernels.texts()) {
            each(&Row::Name { id: NameId(id), text });
        }
        for (id, text) in (0..).zip(self.labels.texts()) {
            each(&Row::Label { id: LabelId(id), text });
        }
    }

    /// Emits the steps. A step that several threads report is emitted once.
    fn emit_steps(&mut self, offset: i64, each: &mut dyn FnMut(&Row<'_>)) {
        let threads = self.thread_numbers();
        self.steps.sort_unstable();
        self.steps.dedup_by_key(|&mut (start, end, ..)| (start, end));
        for (number, &(start, end, label, thread)) in (1..).zip(&self.steps) {
            let (time, end) = (to_row_time(start, offset), Some(to_row_time(end, offset)));
            let (thread, name) = (threads[thread as usize], self.labels.text(label));
            each(&Row::Step(Step { time, end, thread, number, name }));
        }
    }

    /// Emits a context for each (stack, thread) that launched work or that a GPU waited for, and the times of the
    /// GPU's waits. Sets the contexts of the calls that become rows, and returns all others.
    fn emit_contexts(
        &mut self,
        stacks: &StackTree,
        delay_states: Vec<ThreadStates>,
        created: IdMap<u32, Option<u32>>,
        offset: i64,
        each: &mut dyn FnMut(&Row<'_>),
    ) -> RowContexts {
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
                frames.extend(stacks.leaf_first(stack).take(MAX_FRAMES + 1).map(to_frame));
                let is_truncated = frames.len() > MAX_FRAMES;
                frames.truncate(MAX_FRAMES);
                let flags = ContextFlags(if is_truncated { ContextFlags::TRUNCATED } else { 0 });
                each(&Row::Context { id, thread: threads[thread as usize], flags, frames: &frames });
            }
            id
        };
        for (number, states) in (0..).zip(delay_states) {
            for (since, stack) in states.iter() {
                let context = match stack {
                    ROOT => ContextId::NONE,
                    stack => context(stack, number, each),
                };
                let (thread, since) = (threads[number as usize], to_row_time(since, offset));
                each(&Row::HostState(HostState { thread, since, context }));
            }
        }
        let mut sync_calls = SyncCalls::find(self);
        let stacks_of = |numbers: &[u32]| -> Vec<(u32, u32, u32)> {
            let calls = numbers.iter().map(|number| (*number, self.calls.get(*number)));
            calls.map(|(number, call)| (number, call.stack, call.thread)).collect()
        };
        let (waiting, thread_waits) = (stacks_of(&sync_calls.numbers()), stacks_of(&self.thread_waits));
        for number in self.calls.numbers() {
            let call = self.calls.get(number);
            if call.is_shown() {
                self.calls.set_stack(number, context(call.stack, call.thread, each).0);
            }
        }
        for (number, stack, thread) in waiting.into_iter().filter(|(_, stack, _)| *stack != u32::MAX) {
            sync_calls.contexts.insert(number, context(stack, thread, each));
        }
        let mut made: Vec<(u32, Option<u32>)> = created.into_iter().collect();
        made.sort_unstable();
        let mut created = IdMap::default();
        for (op, stack) in made {
            let thread = self.ops.get(op).call().map_or(0, |call| self.calls.thread_of(call));
            let context = stack.map(|stack| context(stack, thread, each));
            created.insert(op, context.map_or(Created::Unknown, Created::Context));
        }
        let thread_waits = thread_waits.into_iter().filter(|(_, stack, _)| *stack != u32::MAX);
        let thread_waits =
            thread_waits.map(|(at, stack, thread)| (at, context(stack, thread, each))).collect();
        RowContexts { sync_calls, thread_waits, created }
    }

    /// Returns thread ids: the trace's own, or a new id if the thread has no number or another process uses its
    /// number.
    pub(super) fn thread_numbers(&self) -> Vec<ThreadId> {
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

    fn emit_work(
        &mut self,
        contexts: RowContexts,
        edges: &GraphEdges,
        linked: &mut LinkReport,
        each: &mut dyn FnMut(&Row<'_>),
    ) {
        let offset = linked.offset;
        let nanos = |time: i64| to_row_time(time, offset);
        let order = OpOrder::of(&self.ops);
        let mut next = 0;
        let is_before = |at: u32| match self.reasons.get(&at) {
            Some(reason) => *reason == Missing::LaunchedBefore,
            None => linked.launched_before(self.ops.get(at)),
        };
        let (before, other): (Vec<u32>, Vec<u32>) = order.orphans().iter().partition(|at| is_before(**at));
        let mut file_ids = FileIds::default();
        file_ids.push(0);
        file_ids.extend(before.iter().map(|at| self.ops.get(*at).correlation));
        let mut correlation = before.len() as u32;
        let mut sync_ids = IdMap::default();
        let mut host_launches = edges.host_launches();
        let host_functions = edges.host_function_calls();
        for (at, call) in (0..).zip(self.calls.iter()).filter(|(_, call)| call.is_shown()) {
            correlation += 1;
            let (id, context) = (CorrelationId(correlation), ContextId(call.stack));
            let own = next..next + call.ops as usize;
            next = own.end;
            // A call without a correlation id may have been linked by a flow or an external id; then the id of its
            // first operation is used.
            let of_ops = || own.clone().next().map_or(0, |at| self.ops.get(order.linked(at)).correlation);
            file_ids.push(if call.correlation == 0 { of_ops() } else { call.correlation });
            if contexts.sync_calls.contexts.contains_key(&at) {
                sync_ids.insert(at, id);
            }
            if let Some(known) = host_launches.get_mut(&call.correlation) {
                *known = Some(id);
            }
            let duration = u32::try_from(call.end.saturating_sub(call.start).max(0)).unwrap_or(u32::MAX);
            each(&Row::Launch(Launch {
                time: nanos(call.start),
                duration,
                correlation: id,
                within: id,
                context,
            }));
            if let Some(&is_programmatic) = self.programmatic.get(&at) {
                each(&Row::LaunchAttributes(LaunchAttributes { correlation: id, is_programmatic }));
            }
            linked.launches_without_op +=
                u64::from(call.ops == 0 && !host_functions.contains(&call.correlation));
            for at in own.map(|at| order.linked(at)) {
                if order.is_as_stored() {
                    self.ops.free_before(at);
                }
                let created = contexts.created.get(&at).copied();
                each(&Row::Activity(Activity { created, ..to_activity(self.ops.get(at), id, &nanos) }));
            }
        }
        let numbered = (1..).zip(before).chain((correlation + 1..).zip(other.iter().copied()));
        for (id, at) in numbered {
            let op = self.ops.get(at);
            each(&Row::Activity(Activity {
                created: contexts.created.get(&at).copied(),
                device_launched: self.reasons.get(&at) == Some(&Missing::DeviceGraph),
                ..to_activity(op, CorrelationId(id), &nanos)
            }));
        }
        file_ids.extend(other.iter().map(|at| self.ops.get(*at).correlation));
        let mut sync_calls = contexts.sync_calls;
        sync_calls.ids = sync_ids;
        self.emit_syncs(sync_calls, &mut file_ids, &nanos, each);
        edges.emit(&host_launches, &nanos, each);
        self.emit_thread_waits(contexts.thread_waits, &mut file_ids, &nanos, each);
        linked.file_ids = file_ids;
    }
}

impl TraceCollector {
    /// Emits the calls that wait for other threads. They have no ids in the trace.
    fn emit_thread_waits(
        &self,
        waits: Vec<(u32, ContextId)>,
        file_ids: &mut FileIds,
        nanos: &dyn Fn(i64) -> Nanos,
        each: &mut dyn FnMut(&Row<'_>),
    ) {
        for (at, context) in waits {
            let call = self.calls.get(at);
            let (time, duration) = (nanos(call.start), call.end.saturating_sub(call.start).max(0) as u64);
            let correlation = CorrelationId(file_ids.len() as u32);
            file_ids.push(0);
            each(&Row::Wait(Wait { time, duration, correlation, context }));
        }
    }
}

/// Contexts that rows refer to, other than those of launches.
struct RowContexts {
    /// Calls that waited or recorded an event.
    sync_calls: SyncCalls,
    /// Calls that waited for other threads, with their contexts.
    thread_waits: Vec<(u32, ContextId)>,
    /// Origin of the graph nodes of operations, by index of the operation.
    created: IdMap<u32, Created>,
}

/// Parses a stack given as text: a letter per frame (`p` Python, `r` range), a line break, and the frames, root
/// first. Without letters, ranges are recognised by the form in which we write them. A lone letter `f` means that the
/// text is the id of the innermost frame in `stackFrames`. Returns `None` if that frame does not exist.
fn parse_given_stack(
    text: &str,
    frames: &StackFrames,
    labels: &mut NameTable,
    tree: &mut StackTree,
) -> Option<u32> {
    let (kinds, stack) = text.split_once('\n').unwrap_or(("", text));
    if kinds == "f" {
        let stack = frames.find_stack(stack)?.into_iter();
        return Some(
            stack.fold(ROOT, |node, (frame, class)| {
                tree.child((node, labels.intern(Text::from(frame)), class))
            }),
        );
    }
    let mut kinds = kinds.bytes();
    Some(stack.split(';').fold(ROOT, |node, frame| {
        let class = match kinds.next() {
            Some(b'p') => FrameClass::Python,
            Some(b'r') => FrameClass::Range,
            None if frame.starts_with("[range") => FrameClass::Range,
            _ => FrameClass::Call,
        };
        tree.child((node, labels.intern(Text::from(frame)), class))
    }))
}

/// Converts a time of the trace to the clock of the rows.
pub(super) fn to_row_time(time: i64, offset: i64) -> Nanos {
    Nanos(time.saturating_add(offset).max(0) as u64)
}

fn to_frame((label, class): (u32, FrameClass)) -> Frame {
    let kind = match class {
        FrameClass::Python => LabelKind::Python,
        FrameClass::Range => LabelKind::Range,
        FrameClass::Operator | FrameClass::Call => LabelKind::Call,
    };
    Frame::label_of(kind, LabelId(label))
}

fn to_activity(op: OpRecord<'_>, correlation: CorrelationId, nanos: &impl Fn(i64) -> Nanos) -> Activity {
    let shape = op.shape;
    Activity {
        correlation,
        device: DeviceId(shape.device),
        context: GpuContextId(shape.context),
        stream: StreamId(shape.stream),
        channel: None,
        start: nanos(op.start),
        end: nanos(op.end),
        graph: GraphId(shape.graph),
        graph_node: GraphNodeId(shape.graph_node),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail: shape.detail,
    }
}
