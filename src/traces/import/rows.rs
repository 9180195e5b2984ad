//! Converts trace events into rows of the kinds that gpuflame's own capture writes. So all code that reads gpuflame's
//! rows can also process traces of other tools.
//!
//! The stack of a launch consists of the slices that enclose the call on its thread (see `call_stacks`): Python frames,
//! ranges and operators. The launch of an operation is found by correlation id (see `link`). After the operations were
//! linked, `emitted_rows` emits the rows.

use std::cmp::Reverse;

use super::displaced_ops::displaced_ops;
use super::emitted_rows::to_row_time;
use super::graph_captures::{CaptureCoverage, GUESSED, GraphCaptures, GraphRole, NodeOrigin};
use super::graph_edges::GraphEdges;
use super::host_delays;
use super::link::{LinkReport, Linking, are_different};
use super::op_records::OpRecord;
use super::slices::{FrameClass, ROOT, StackTree};
use super::stack_frames::StackFrames;
use super::thread_stacks::{FoundStacks, ThreadSlices};
use super::thread_states::ThreadStates;
use super::trace_collector::TraceCollector;
use super::{Kind, NameTable, Opened, Options, Text};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::MAX_PLAUSIBLE_NS;
use gpuflame_model::record::{Detail, IdMap, Loss, Row};

/// A start time of 0 means "not recorded" if all other start times are later than this time (in ns on the trace's
/// clock).
const MIN_GAP_AFTER_ZERO_NS: i64 = 60_000_000_000;

/// Minimum number of calls in a trace for which a second thread saves time.
const MIN_CALLS_FOR_THREAD: usize = 1 << 14;

/// A time in ns that is not below this value must be relative to 1970. As a time since 1970, the value is in
/// September 2001; as the uptime of a machine, it would be 31 years.
const MIN_ABSOLUTE_NS: i64 = 1_000_000_000_000_000_000;

/// Reads a trace that has GPU operations, in any format, and calls `each` with the rows that are made from it. This
/// function does not read gpuflame's own recordings, which already contain rows: see [`recording`](super::recording()).
///
/// # Errors
/// Returns the same errors as [`Opened::read`]. For folded stacks, returns a `Format` error, because folded stacks
/// contain no operations.
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
    collector.between_launches = options.between_launches;
    collector.without_thread_states = options.without_thread_states;
    collector.keeps_ranges = options.ranges;
    if !options.graph_captures.is_empty() {
        collector.graph_captures = Some(read_captures(options)?);
    }
    let counts = opened.read(options, &mut collector)?;
    Ok(LinkReport { counts, ..collector.emit_rows(each) })
}

/// Reads the captures of graphs from the capture traces that the options list.
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
    /// Links the operations to calls, and passes all rows to `each`.
    pub fn emit_rows(mut self, each: &mut dyn FnMut(&Row<'_>)) -> LinkReport {
        self.ops.finish();
        self.pair_edges();
        let unset = self.clear_missing_starts();
        self.separate_contexts();
        let edges = self.find_graph_edges();
        self.mark_host_functions(&edges);
        let (mut linked, found) = self.link_operations_and_stacks();
        // In a trace of several processes, different graphs may have the same id, so edges are not used.
        let edges = if linked.renumbered_devices.is_empty() { edges } else { GraphEdges::default() };
        let displaced = displaced_ops(&self.ops, &self.calls);
        linked.displaced_ops = displaced.len() as u64;
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
        let first = times.min();
        linked.offset = first.map_or(0, |first| 1_i64.saturating_sub(first).max(0));
        // Some profilers write a base time although their times are already relative to 1970.
        let is_absolute = first.is_some_and(|first| first >= MIN_ABSOLUTE_NS);
        linked.clock_base = if is_absolute { Some(0) } else { self.base };
        if self.keeps_ranges {
            linked.ranges = self.named_ranges(&|time| to_row_time(time, linked.offset));
        }
        let found = found.unwrap_or_else(|| {
            let spans = self.delay_spans();
            self.take_slices().find_stacks(spans)
        });
        let (mut stacks, delay_states) = self.keep_stacks(found);
        linked.crossing_slices = self.crossing_slices;
        linked.unclosed_functions = self.unclosed_functions;
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
        let process_of = |thread: u32| self.thread_facts[thread as usize].0;
        linked.has_steps_of_several_processes =
            are_different(self.steps.iter().map(|(.., thread)| process_of(*thread)));
        linked.last_step = last_step.map(|start| start.saturating_add(linked.offset));
        linked.collectives =
            self.collectives.keys().map(|&kernel| self.kernels.text(kernel).to_owned()).collect();
        self.number_event_records();
        self.emit_names(each);
        self.emit_steps(linked.offset, each);
        let mut contexts = self.emit_contexts(&stacks, delay_states, created, linked.offset, each);
        contexts.displaced = displaced;
        self.emit_work(contexts, &edges, &mut linked, each);
        linked
    }

    /// Removes launches without work that a thread made while it captured a graph, because their work became part of
    /// the graph. Returns the number of launches that were removed.
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
        // Start and end of each capture, sorted by thread and time. A capture without a begin or without an end is
        // ignored.
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

    /// Finds operations whose start time was not recorded: their start is 0, and all other starts are long after 0.
    /// Sets the ends of these operations to 0 as well, so that they have no duration instead of a duration of decades.
    /// Returns the start time that means "not recorded", or `None` if no such operations exist.
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

    /// Finds the edges of all CUDA graphs in the trace. A flow that has an id in the range for edges, but is not an
    /// edge, is treated as a launch flow.
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

    /// Marks the outermost calls by which host functions were submitted to streams. The marked calls count as launches.
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

    /// Links the trace's operations to calls.
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

    /// Returns, for each thread, the time spans in which a GPU waited for the next launch by this thread.
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
        if self.calls.len() + self.ops.len() <= self.between_launches {
            let more = host_delays::between_launches(&self.calls, threads);
            spans.iter_mut().zip(more).for_each(|(spans, more)| spans.extend(more));
        }
        spans
    }

    /// Links the trace's operations to calls. If neither thread states nor ranges are requested, a second thread finds
    /// the stacks of the calls at the same time. In that case, the stacks are returned as well.
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

    /// Moves the slices, and all other data from which the stacks of calls are found, out of the collector.
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

    /// Stores the stack that was found for each call. Returns the tree of all stacks, and the stacks that each thread
    /// had while a GPU waited for it.
    fn keep_stacks(&mut self, found: FoundStacks) -> (StackTree, Vec<ThreadStates>) {
        (self.labels, self.operator_links) = (found.labels, found.links);
        self.crossing_slices += found.left_out;
        self.unclosed_functions += found.unclosed;
        for (call, stack) in self.calls.numbers().zip(found.of_calls) {
            self.calls.set_stack(call, stack);
        }
        (found.tree, found.delay_states)
    }

    /// Adds the graph captures in this trace to the graph captures from earlier traces.
    fn into_graph_captures(mut self) -> GraphCaptures {
        let mut captured = self.graph_captures.take().unwrap_or_default();
        self.pair_edges();
        let no_spans = vec![Vec::new(); self.slices.len()];
        let found = self.take_slices().find_stacks(no_spans);
        let (mut stacks, _) = self.keep_stacks(found);
        captured.add_captures(&self.graph_calls, &self.calls, &self.kernels, &stacks, &self.labels);
        // In gpuflame's own exports, each operation contains the stack that created its graph node.
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

    /// Attributes each operation of a graph launch to the stack that captured it. The stack of each operation is stored
    /// in `created`. An entry of `created` is `None` if the stack is unknown.
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

    /// Splits the Python call stacks in the arguments of operators into labels, outermost function first.
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
}

/// Parses a stack that the trace contains as text. The text consists of one letter per frame (`p` Python, `r` range), a
/// line break, and the frames, root first. If the text contains no letters, ranges are recognized by the form in which
/// gpuflame writes their names. If the text contains only the letter `f`, the rest of the text is the id of the
/// innermost frame in `stackFrames`. Returns `None` if there is no frame with this id.
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
