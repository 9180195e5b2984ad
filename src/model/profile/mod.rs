//! A profile is the data that all exporters read. A profile contains launch contexts (a stack and a thread), samples
//! (amounts that are attributed to stacks), names, and counts of losses.
//!
//! While the program runs, [`Profile::push`] processes the rows that define ids, and each distinct value is stored
//! once. Stacks are stored in a prefix tree, so a new context costs about 16 bytes for each frame that its stack does
//! not share with other stacks. Module `aggregate` sets the profile's samples, and module `symbolize` sets its
//! displayed names. The modules `aggregate` and `symbolize` may replace their data repeatedly while the profile grows.
//! This module does not depend on a clock, a path or a file format.

mod cause;
mod coverage;
mod dense_id_map;
mod eviction;
mod frame;
mod functions;
mod generated;
mod index;
mod json_string;
mod kernels;
mod missing;
mod pauses;
mod python_code;
mod sample;
mod steps;
mod strings;
mod sums;
mod tree;
pub mod views;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use cause::Cause;
pub use coverage::{BesideLost, Coverage, LateWaits, LaunchCoverage};
pub use eviction::{OTHER_KERNELS, OTHER_STACKS, OTHER_THREADS};
pub use frame::{PYTHON_NOT_READ, ShownFrame, ShownFrameId, ShownFrameKind, SourceLocation, Unnamed};
pub use json_string::is_bidi_control;
pub use json_string::json_string;
pub use pauses::SharedFrames;
pub use sample::{Leaf, LeafFrame, MAX_SAMPLE_VALUES, RootMark, Sample, SampleSite, Values, add_values};
pub use steps::{SingleStep, StepGroup, StepKind, StepSeries};
pub use strings::{StringId, StringTable};
pub use sums::{
    BusyIdle, CopyPath, Dependencies, DeviceTime, DeviceUse, DurationSpread, LaunchDelays, MAX_PLAUSIBLE_NS,
    RowFacts, SteadyPart, SteadyRule, StepTotals, StreamUse, Weight, WorkDelays, WorkStats,
};
pub use views::{Measure, VIEWS, Value, View, format_nanos};

use kernels::{KernelName, Kernels};

use crate::record::{
    CodeId, ContextFlags, ContextId, Frame, IdMap, LabelId, Loss, Module, NameId, Nanos, Provenance, RangeId,
    Row, ThreadId, WindowEdge, hash_one, map_bytes,
};
use crate::sorting;
pub use dense_id_map::DenseIdMap;
pub use index::Index;
pub use tree::{NodeId, PrefixTree};

/// Returns the sum of `values`. The sum saturates instead of wrapping, because malformed records can contain any value.
pub fn saturating_sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

/// Adds `more` to `sum`. If the addition overflows, `sum` saturates.
pub fn add_to(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Maximum number of facts about the origin of a recording. This number of facts is enough for a machine with 16 GPUs,
/// and for merged recordings of several ranks.
const MAX_PROVENANCE_FACTS: usize = 256;

/// Id of a distinct captured frame of a profile. Ids are consecutive, in order of first occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(u32);

impl FrameId {
    /// Returns the index of the frame in [`Profile::frames`], for tables with one entry per frame.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Id of a distinct captured stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(NodeId);

impl StackId {
    /// Returns the node of [`Profile::stack_tree`] at which the stack ends.
    pub fn node(self) -> NodeId {
        self.0
    }
}

/// Id of a distinct displayed stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShownStackId(NodeId);

/// A launch context: the thread that launched work, and its stack at that time. A [`ContextId`] identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Thread that made the launches.
    pub thread: ThreadId,
    /// Flags for the defects of the stack.
    pub flags: ContextFlags,
    /// The captured stack, before frames are named or hidden.
    pub stack: StackId,
}

/// Data that all exporters read; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    strings: StringTable,
    frames: Vec<Frame>,
    frame_index: Index,
    stacks: PrefixTree,
    contexts: IdMap<ContextId, Context>,
    /// For each combination of stack, flags and thread, the launch context that was added first. This launch context
    /// represents all other contexts with the same combination of stack, flags and thread. If contexts of different
    /// threads are merged, the thread in each key is 0.
    first_with: IdMap<(NodeId, ContextFlags, ThreadId), ContextId>,
    labels: IdMap<LabelId, StringId>,
    ranges: IdMap<RangeId, StringId>,
    codes: IdMap<CodeId, python_code::PythonCode>,
    /// Names of generated functions (code that is in no file), by address.
    generated: BTreeMap<u64, Box<str>>,
    /// Functions of native frames, as the recorded process found them.
    functions: BTreeMap<Frame, functions::Functions>,
    kernels: Kernels,
    /// Number of bytes that kernel names take in the string table.
    kernel_text: usize,
    process: Option<(u32, StringId)>,
    /// Facts about the origin of the recording (such as host and driver version), in order of arrival.
    provenance: Vec<(Provenance, String)>,
    threads: BTreeMap<ThreadId, StringId>,
    /// Threads whose names arrived most recently. The stacks of recently named threads may not be known yet.
    newest_threads: Vec<ThreadId>,
    modules: Vec<Module>,
    windows: Vec<(WindowEdge, Nanos)>,
    losses: BTreeMap<Loss, u64>,
    coverage: Coverage,
    /// Samples of each view, keyed by the view's name.
    samples: BTreeMap<&'static str, Vec<Sample>>,
    works: Vec<WorkStats>,
    spreads: Vec<DurationSpread>,
    delays: Vec<WorkDelays>,
    copies: Vec<(CopyPath, Weight)>,
    devices: Vec<DeviceUse>,
    times: Vec<DeviceTime>,
    dependencies: Dependencies,
    streams: Vec<StreamUse>,
    steps: StepTotals,
    step_series: StepSeries,
    steady: Option<SteadyPart>,
    row_facts: Option<RowFacts>,
    shown_frames: Vec<ShownFrame>,
    shown_index: Index,
    shown: PrefixTree,
    shown_contexts: IdMap<ContextId, ShownStackId>,
    /// Number of frames that the stacks before and after a pause have in common. The key is a pair: the context of the
    /// call before the pause, and the context of the call after the pause.
    pauses: BTreeMap<(ContextId, ContextId), SharedFrames>,
    /// Number of times that frames, stacks and strings may have been renumbered.
    renumbered: u32,
}

/// Methods that fill a profile from rows.
impl Profile {
    /// Adds a fact about the origin of the recording. Merged recordings contain duplicate facts, which are dropped. The
    /// number of stored facts is limited, because a recording may contain any number of facts.
    fn add_provenance(&mut self, what: Provenance, text: &str) {
        let is_known = self.provenance.iter().any(|(known, said)| *known == what && said == text);
        if !is_known && self.provenance.len() < MAX_PROVENANCE_FACTS {
            self.provenance.push((what, text.to_owned()));
        }
    }

    /// Processes a row that defines an id, opens or closes a window, or reports a loss. Ignores launches and
    /// activities. If two rows define the same id, the first row is used.
    pub fn push(&mut self, row: &Row<'_>) {
        match row {
            Row::Context { id, thread, flags, frames } => self.add_context(*id, *thread, *flags, frames),
            Row::Name { id, text } => {
                self.kernel_text += strings::bytes(text);
                let symbol = self.strings.intern(text);
                self.kernels.add(*id, KernelName { symbol, shown: None });
            }
            Row::Label { id, text } => {
                let text = self.strings.intern(text);
                self.labels.entry(*id).or_insert(text);
            }
            Row::Range { id, domain, text } => {
                let text = self.strings.intern(&range_frame(domain, text));
                self.ranges.entry(*id).or_insert(text);
            }
            Row::Code(code) => self.add_code(code),
            Row::Generated { address, name } => self.add_generated(*address, name),
            Row::Function { frame, function } => self.add_function(*frame, function),
            Row::Process { id, name } => {
                let name = self.strings.intern(name);
                self.process.get_or_insert((*id, name));
            }
            Row::Provenance { what, text } => self.add_provenance(*what, text),
            Row::Thread { id, name } => {
                let name = self.strings.intern(name);
                self.threads.entry(*id).or_insert(name);
                self.note_newest_thread(*id);
            }
            Row::Module(module) => self.modules.push(module.clone()),
            Row::Window { edge, time } => self.add_window(*edge, *time),
            Row::Loss { loss, count } => *self.losses.entry(*loss).or_default() += count,
            Row::Launch(_)
            | Row::Outside(_)
            | Row::Activity(_)
            | Row::HostState(_)
            | Row::HostCallSpan(_)
            | Row::Sampled(_)
            | Row::Blocked(_)
            | Row::Wait(_)
            | Row::Memory(_)
            | Row::EventRecord(_)
            | Row::Sync(_)
            | Row::EventCall(_)
            | Row::Unified(_)
            | Row::Instant(_)
            | Row::Step(_)
            | Row::CallbacksSwitched { .. }
            | Row::GraphNode { .. }
            | Row::GraphClone { .. }
            | Row::GraphUpdate { .. }
            | Row::GraphEnd { .. }
            | Row::GraphEdge(_)
            | Row::HostNode(_)
            | Row::LaunchAttributes(_)
            | Row::Sum { .. } => {}
        }
    }

    /// Adds a context as [`Profile::push`] does, but merges the context with an existing one that has the same stack,
    /// flags and thread. With `any_thread`, contexts on different threads are merged as well. If contexts on different
    /// threads were not merged, the profile of a program that starts one thread per request would fill with copies of
    /// the same stacks. Returns the id that the caller must use from now on: `id`, or the id of the existing context.
    pub fn merge_context(
        &mut self,
        id: ContextId,
        thread: ThreadId,
        flags: ContextFlags,
        leaf_first: &[Frame],
        any_thread: bool,
    ) -> ContextId {
        let node = self.intern_stack(leaf_first);
        let apart = if any_thread { ThreadId::default() } else { thread };
        let first = *self.first_with.entry((node, flags, apart)).or_insert(id);
        if first == id {
            self.contexts.entry(id).or_insert(Context { thread, flags, stack: StackId(node) });
        }
        first
    }

    /// Replaces the counts of launches with and without GPU work.
    pub fn set_coverage(&mut self, coverage: Coverage) {
        self.coverage = coverage;
    }

    /// Returns the counts of launches with and without GPU work.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Replaces all losses by `losses`.
    pub fn set_losses(&mut self, losses: BTreeMap<Loss, u64>) {
        self.losses = losses;
    }

    fn add_context(&mut self, id: ContextId, thread: ThreadId, flags: ContextFlags, leaf_first: &[Frame]) {
        if self.contexts.contains_key(&id) {
            return;
        }
        let node = self.intern_stack(leaf_first);
        self.contexts.insert(id, Context { thread, flags, stack: StackId(node) });
    }

    fn intern_stack(&mut self, leaf_first: &[Frame]) -> NodeId {
        let Self { frames, frame_index, stacks, .. } = self;
        let root_first = leaf_first.iter().rev();
        stacks.chain(NodeId::ROOT, root_first.map(|frame| intern_frame(frames, frame_index, *frame)))
    }

    /// Adds the opening or closing of a window. Only the first opening and the last closing of the run are stored,
    /// because a list of all windows would grow in a program that opens one window per step.
    fn add_window(&mut self, edge: WindowEdge, time: Nanos) {
        match self.windows.iter_mut().find(|(kept, _)| *kept == edge) {
            None => self.windows.push((edge, time)),
            Some((_, kept)) if edge == WindowEdge::Close => *kept = time.max(*kept),
            Some((_, kept)) => *kept = time.min(*kept),
        }
    }
}

/// Returns the position of `frame` in the table `frames`. If the table does not contain `frame` yet, adds it.
fn intern_frame(frames: &mut Vec<Frame>, index: &mut Index, frame: Frame) -> u32 {
    let hash = hash_one(&frame);
    if let Some(at) = index.find(hash, |at| frames[at as usize] == frame) {
        return at;
    }
    let at = frames.len() as u32;
    index.insert(hash, at, |at| hash_one(&frames[at as usize]));
    frames.push(frame);
    at
}

/// Returns the displayed name of a range: `[range]step`, or `[range nccl]AllReduce` if the range has the domain `nccl`.
fn range_frame(domain: &str, text: &str) -> String {
    if domain.is_empty() { format!("[range]{text}") } else { format!("[range {domain}]{text}") }
}

/// Methods that return definitions (such as stacks and names), as they were read from rows.
impl Profile {
    /// Returns the interned strings.
    pub fn strings(&self) -> &StringTable {
        &self.strings
    }

    /// Returns all distinct captured frames. The position of a frame is its [`FrameId::index`].
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the definition of a context, or `None` if the row that defines the context was lost.
    pub fn context(&self, id: ContextId) -> Option<&Context> {
        self.contexts.get(&id)
    }

    /// Returns all contexts with their definitions, in no particular order.
    pub fn all_contexts(&self) -> impl ExactSizeIterator<Item = (ContextId, &Context)> {
        self.contexts.iter().map(|(&id, context)| (id, context))
    }

    /// Returns all context ids, in ascending order.
    pub fn contexts(&self) -> Vec<ContextId> {
        let mut ids: Vec<_> = self.contexts.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the prefix tree of all captured stacks. The symbols in the tree are positions in [`Profile::frames`].
    pub fn stack_tree(&self) -> &PrefixTree {
        &self.stacks
    }

    /// Returns the frames of a captured stack, leaf first.
    pub fn stack(&self, stack: StackId) -> impl Iterator<Item = FrameId> {
        self.stacks.symbols_to_root(stack.0).map(FrameId)
    }

    /// Returns the text of a label, or `None` if the row that defines the label was lost.
    pub fn label(&self, id: LabelId) -> Option<&str> {
        self.labels.get(&id).map(|&id| self.strings.get(id))
    }

    /// Returns all label texts, in no particular order.
    pub fn labels(&self) -> impl Iterator<Item = (LabelId, &str)> {
        self.labels.iter().map(|(&id, &text)| (id, self.strings.get(text)))
    }

    /// Returns all displayed range names, in no particular order.
    pub fn ranges(&self) -> impl Iterator<Item = (RangeId, &str)> {
        self.ranges.iter().map(|(&id, &text)| (id, self.strings.get(text)))
    }

    /// Returns the displayed name of a range, which contains the range's domain. Returns `None` if the row that defines
    /// the range was lost.
    pub fn range(&self, id: RangeId) -> Option<&str> {
        self.ranges.get(&id).map(|&id| self.strings.get(id))
    }

    /// Returns the facts about the origin of the recording, in order of arrival.
    pub fn provenance(&self) -> impl ExactSizeIterator<Item = (Provenance, &str)> {
        self.provenance.iter().map(|(what, text)| (*what, text.as_str()))
    }

    /// Returns the process id and the name of the program, or `None` if there was no process row.
    pub fn process(&self) -> Option<(u32, &str)> {
        self.process.map(|(id, name)| (id, self.strings.get(name)))
    }

    /// Returns the name of a kernel as the tracer reported it, or `None` if the row that defines the kernel's name was
    /// lost.
    pub fn symbol(&self, id: NameId) -> Option<&str> {
        self.kernels.get(id).map(|name| self.strings.get(name.symbol))
    }

    /// Returns all kernel names as the tracer reported them, in no particular order.
    pub fn kernel_names(&self) -> impl Iterator<Item = (NameId, &str)> {
        self.kernels.iter().map(|(id, name)| (id, self.strings.get(name.symbol)))
    }

    /// Returns all kernel names as the tracer reported them, in ascending order of id.
    pub fn kernels(&self) -> Vec<(NameId, StringId)> {
        let mut kernels: Vec<_> = self.kernels.iter().map(|(id, name)| (id, name.symbol)).collect();
        sorting::sort(&mut kernels);
        kernels
    }

    /// Returns the name of a thread, if the name is known.
    pub fn thread(&self, id: ThreadId) -> Option<&str> {
        self.threads.get(&id).map(|&id| self.strings.get(id))
    }

    /// Returns all threads with a known name.
    pub fn threads(&self) -> impl Iterator<Item = (ThreadId, &str)> {
        self.threads.iter().map(|(&id, &name)| (id, self.strings.get(name)))
    }

    /// Returns the modules, in the order of their rows.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Returns the first opening and the last closing of a window, if there are any.
    pub fn windows(&self) -> &[(WindowEdge, Nanos)] {
        &self.windows
    }

    /// Returns the kinds of loss that occurred, with their counts, in the order of [`Loss::ALL`].
    pub fn losses(&self) -> impl Iterator<Item = (Loss, u64)> {
        self.losses.iter().filter(|(_, count)| **count > 0).map(|(&loss, &count)| (loss, count))
    }
}

/// Methods for samples and for all further sums of a profile.
impl Profile {
    /// Replaces the samples of `view`. The samples are sorted, so that outputs do not depend on the order in which
    /// activity buffers arrived.
    pub fn set_samples(&mut self, view: &View, mut samples: Vec<Sample>) {
        samples.sort_unstable();
        self.samples.insert(view.word, samples);
    }

    /// Drops the samples of every view, and the sums for kinds of work, devices and streams. The dropped sums are empty
    /// until they are set again.
    pub fn forget_sums(&mut self) {
        self.samples = BTreeMap::new();
        (self.works, self.devices, self.spreads) = (Vec::new(), Vec::new(), Vec::new());
        (self.delays, self.copies) = (Vec::new(), Vec::new());
        (self.times, self.streams) = (Vec::new(), Vec::new());
        (self.steps, self.step_series) = (StepTotals::default(), StepSeries::default());
        (self.steady, self.row_facts) = (None, None);
    }

    /// Drops the times at which windows opened and closed.
    pub fn forget_windows(&mut self) {
        self.windows = Vec::new();
    }

    /// Returns the samples of `view`. There is one sample for each combination of stack, leaf frames and GPU. If
    /// streams were requested, there is one sample for each combination of stack, leaf frames, GPU and stream.
    pub fn samples(&self, view: &View) -> &[Sample] {
        self.samples.get(view.word).map_or(&[], Vec::as_slice)
    }

    /// Whether the profile has samples of `view`. If `view` combines several views, the first of these views is not
    /// checked, because every profile has samples of the first one.
    pub fn has(&self, view: &View) -> bool {
        let mut others = view.parts.iter().skip(1);
        !self.samples(view).is_empty() || others.any(|(part, _)| self.has(part))
    }

    /// Replaces the duration statistics of each kind of work, and the totals of each device. The statistics and the
    /// totals are sorted.
    pub fn set_works(&mut self, mut works: Vec<WorkStats>, mut devices: Vec<DeviceUse>) {
        sorting::sort_by_key(&mut works, |w| (w.work, w.device));
        sorting::sort_by_key(&mut devices, |d| d.device);
        (self.works, self.devices) = (works, devices);
    }

    /// Replaces the launch delays, and the sums of copies by direction and kinds of memory.
    pub fn set_delays_and_copies(&mut self, delays: Vec<WorkDelays>, copies: Vec<(CopyPath, Weight)>) {
        (self.delays, self.copies) = (delays, copies);
    }

    /// Returns the launch delays by kind of work and device. The returned list is empty unless the profile contains the
    /// final sums of a process.
    pub fn delays(&self) -> &[WorkDelays] {
        &self.delays
    }

    /// Returns the sums of copies by direction and kinds of memory. The returned list is empty unless the profile
    /// contains the final sums of a process.
    pub fn copies(&self) -> &[(CopyPath, Weight)] {
        &self.copies
    }

    /// Replaces the sums of durations and of squared durations, by stack and kind of work.
    pub fn set_spreads(&mut self, spreads: Vec<DurationSpread>) {
        self.spreads = spreads;
    }

    /// Returns the sums of durations and of squared durations, by stack and kind of work. The returned list is empty if
    /// squared durations were not summed.
    pub fn spreads(&self) -> &[DurationSpread] {
        &self.spreads
    }

    /// Replaces the busy and idle times of devices, and the busy times of streams. The entries for devices and for
    /// streams are sorted.
    pub fn set_times(&mut self, mut times: Vec<DeviceTime>, mut streams: Vec<StreamUse>) {
        sorting::sort_by_key(&mut times, |time| time.device);
        sorting::sort(&mut streams);
        (self.times, self.streams) = (times, streams);
    }

    /// Replaces the counts of API calls and tracer records that concern CUDA events and waits.
    pub fn set_dependencies(&mut self, dependencies: Dependencies) {
        self.dependencies = dependencies;
    }

    /// Replaces the steady part of the run (the run without start-up and shutdown).
    pub fn set_steady(&mut self, steady: Option<SteadyPart>) {
        self.steady = steady;
    }

    /// Returns the steady part of the run (the run without start-up and shutdown). Returns `None` if no steady part was
    /// found.
    pub fn steady(&self) -> Option<SteadyPart> {
        self.steady
    }

    /// Replaces the counts of launches and activities with certain properties.
    pub fn set_row_facts(&mut self, facts: Option<RowFacts>) {
        self.row_facts = facts;
    }

    /// Returns the counts of launches and activities with certain properties. Returns `None` if the counts are unknown,
    /// for example because an earlier version of gpuflame wrote the sums.
    pub fn row_facts(&self) -> Option<RowFacts> {
        self.row_facts
    }

    /// Replaces the totals over all steps of the program.
    pub fn set_steps(&mut self, steps: StepTotals) {
        self.steps = steps;
    }

    /// Returns the totals over all steps of the program.
    pub fn steps(&self) -> StepTotals {
        self.steps
    }

    /// Replaces the durations and the GPU work of the steps.
    pub fn set_step_series(&mut self, series: StepSeries) {
        self.step_series = series;
    }

    /// Returns the durations and the GPU work of the steps. The returned data are empty if the profile describes a
    /// single window.
    pub fn step_series(&self) -> &StepSeries {
        &self.step_series
    }

    /// Returns the counts of API calls and tracer records that concern CUDA events and waits.
    pub fn dependencies(&self) -> &Dependencies {
        &self.dependencies
    }

    /// Returns statistics of durations for each kind of work and device.
    pub fn works(&self) -> &[WorkStats] {
        &self.works
    }

    /// Returns the devices that ran any GPU work, with the totals of this work.
    pub fn devices(&self) -> &[DeviceUse] {
        &self.devices
    }

    /// Returns the busy and idle time of each device.
    pub fn times(&self) -> &[DeviceTime] {
        &self.times
    }

    /// Returns the busy time of each stream.
    pub fn streams(&self) -> &[StreamUse] {
        &self.streams
    }
}

/// Methods for displayed frames and names. Exporters show addresses until names are set.
impl Profile {
    /// Interns a string. Call this function before the setters below, because they take string ids.
    pub fn intern(&mut self, text: &str) -> StringId {
        self.strings.intern(text)
    }

    /// Returns the id of a displayed frame. A frame that is new is interned.
    pub fn intern_shown(&mut self, frame: ShownFrame) -> ShownFrameId {
        let hash = hash_one(&frame);
        if let Some(at) = self.shown_index.find(hash, |at| self.shown_frames[at as usize] == frame) {
            return ShownFrameId(at);
        }
        let at = self.shown_frames.len() as u32;
        self.shown_index.insert(hash, at, |at| hash_one(&self.shown_frames[at as usize]));
        self.shown_frames.push(frame);
        ShownFrameId(at)
    }

    /// Sets the displayed stack of `context`, root first.
    pub fn set_shown(&mut self, context: ContextId, root_first: impl IntoIterator<Item = ShownFrameId>) {
        let node = self.shown.chain(NodeId::ROOT, root_first.into_iter().map(|frame| frame.0));
        self.shown_contexts.insert(context, ShownStackId(node));
    }

    /// Reserves capacity for the displayed stacks of `count` more contexts.
    pub fn reserve_shown(&mut self, count: usize) {
        self.shown_contexts.reserve(count);
    }

    /// Drops all displayed stacks, so that the symbolizer can set them again.
    pub fn forget_shown(&mut self) {
        self.shown = PrefixTree::default();
        self.shown_contexts.clear();
        self.pauses.clear();
    }

    /// Returns the displayed stack of `context`, or `None` if [`Profile::set_shown`] was not called for the context.
    pub fn shown(&self, context: ContextId) -> Option<ShownStackId> {
        self.shown_contexts.get(&context).copied()
    }

    /// Returns the frames of a displayed stack, leaf first.
    pub fn shown_stack(&self, shown: ShownStackId) -> impl Iterator<Item = ShownFrameId> {
        self.shown.symbols_to_root(shown.0).map(ShownFrameId)
    }

    /// Returns all distinct displayed frames.
    pub fn shown_frames(&self) -> &[ShownFrame] {
        &self.shown_frames
    }

    /// Returns the displayed frame with this id.
    pub fn shown_frame(&self, id: ShownFrameId) -> &ShownFrame {
        &self.shown_frames[id.0 as usize]
    }

    /// Sets the displayed name of a kernel. This function has no effect if the row that defines the kernel's name was
    /// lost.
    pub fn set_shown_kernel(&mut self, kernel: NameId, text: StringId) {
        let Some(name) = self.kernels.get_mut(kernel) else { return };
        let before = name.shown.replace(text).unwrap_or(name.symbol);
        if before != text {
            self.kernel_text += strings::bytes(self.strings.get(text));
        }
    }

    /// Returns the displayed name of a kernel. If no displayed name was set, returns the name that the tracer reported.
    /// Returns `None` if the row that defines the kernel was lost.
    pub fn kernel(&self, id: NameId) -> Option<&str> {
        self.kernel_text(id).map(|text| self.strings.get(text))
    }

    /// Returns the string id of a kernel's displayed name.
    pub fn kernel_text(&self, id: NameId) -> Option<StringId> {
        self.kernels.get(id).map(KernelName::text)
    }

    /// Whether [`Profile::set_shown_kernel`] was called for the kernel.
    pub fn has_shown_kernel(&self, id: NameId) -> bool {
        self.kernels.get(id).is_some_and(|name| name.shown.is_some())
    }

    /// Returns the number of heap bytes that the profile holds. The memory for the paths of modules is not counted.
    pub fn heap_bytes(&self) -> usize {
        self.strings.heap_bytes()
            + self.context_bytes()
            + self.shown_bytes()
            + map_bytes(&self.labels)
            + map_bytes(&self.ranges)
            + self.code_bytes()
            + self.generated_bytes()
            + self.function_bytes()
            + self.kernels.heap_bytes()
            + self.modules.capacity() * size_of::<Module>()
            + self.works.capacity() * size_of::<WorkStats>()
            + self.spreads.capacity() * size_of::<DurationSpread>()
            + self.streams.capacity() * size_of::<StreamUse>()
    }
}
