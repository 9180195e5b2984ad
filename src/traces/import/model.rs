//! The event model: all readers of other tools' traces convert to these events, regardless of tool and format.
//!
//! Events borrow from the reader's buffer. Times are nanoseconds on the trace's own clock. The clock's zero may be at
//! any time, so times may be negative. Fields that a trace does not provide are `None`.

use super::Text;
use gpuflame_model::record::MemoryKind;

/// A trace event.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An operation of a GPU: a kernel, a copy, a fill or a whole CUDA graph.
    Op(Op<'a>),
    /// A call to the CUDA runtime or driver, such as a call that launched a GPU operation.
    Call(Call<'a>),
    /// An operator, an annotated range or a step on the CPU.
    Cpu(CpuOp<'a>),
    /// A call to a Python function.
    Python(PythonFrame<'a>),
    /// Start of a slice whose end is a separate trace event.
    Begin(Begin<'a>),
    /// End of a slice that a [`Begin`] opened on the same thread.
    End(End<'a>),
    /// Start or end of a flow: from a forward operator to a backward operator, or from a call to the GPU operation that
    /// the call launched.
    Flow(Flow<'a>),
    /// A wait for a CUDA event, a stream or a device.
    Sync(Sync<'a>),
    /// A recording of a CUDA event on a stream.
    EventRecord(EventRecord<'a>),
    /// An execution of a graph node that does no GPU work, or of a host function that was submitted to a stream.
    IdleNode(IdleNode<'a>),
    /// Kind of a stream.
    Stream(StreamFlag<'a>),
    /// Name of a process or a thread.
    Thread(ThreadName<'a>),
    /// A property of the whole trace, as key and value.
    Property(Property<'a>),
    /// A line of a folded file: a stack and its weight, without times.
    Folded(Folded<'a>),
    /// A line of an extended folded file: a stack with its time.
    Stack(StackLine<'a>),
    /// Any other event, such as a counter, with the event's category if it has one.
    Other(Text<'a>),
}

/// Id of a process or thread. Traces give such ids as numbers or as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Id<'a> {
    /// The trace does not give the process or thread.
    #[default]
    None,
    /// A number, including a quoted one (`"25738"`) and one with a suffix (`"123(Python)"`).
    Number(i64),
    /// Any other text (`Device_0`, `stream 7`).
    Text(Text<'a>),
}

/// Kind of an [`Op`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// A kernel.
    #[default]
    Kernel,
    /// A copy. The direction of the copy may be known only from the operation's name.
    Copy,
    /// A fill of memory with a value.
    Set,
    /// A whole CUDA graph, whose nodes are not separate operations.
    Graph,
}

/// An operation of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Op<'a> {
    /// Kind of the operation.
    pub kind: OpKind,
    /// Name of the operation, as written in the file.
    pub name: Text<'a>,
    /// Start time, in ns on the trace's clock.
    pub start: i64,
    /// End time, in ns on the trace's clock. In a malformed trace, the end may be before `start`.
    pub end: i64,
    /// Process that launched the operation. Kineto's traces do not give this process: the process field of their GPU
    /// events contains the device.
    pub process: Id<'a>,
    /// Index of the GPU that ran the operation.
    pub device: Option<u32>,
    /// Id of the CUDA context in which the operation ran.
    pub context: Option<u32>,
    /// Id of the stream on which the operation ran.
    pub stream: Option<u32>,
    /// Correlation id of the call that launched the operation. Several operations may share one id.
    pub correlation: Option<u64>,
    /// External id of the CPU operator that encloses the launching call.
    pub external: Option<u64>,
    /// Id of the CUDA graph whose launch started the operation.
    pub graph: Option<u32>,
    /// Id of the graph node that the operation belongs to.
    pub graph_node: Option<u64>,
    /// Number of bytes copied or filled; 0 if unknown.
    pub bytes: u64,
    /// Number of blocks in x, y and z; 0 if unknown.
    pub grid: [u32; 3],
    /// Number of threads per block in x, y and z; 0 if unknown.
    pub block: [u32; 3],
    /// Number of registers per thread.
    pub registers: u32,
    /// Shared memory per block, in bytes.
    pub shared: u32,
    /// Whether the trace marks the operation as part of a collective.
    pub collective: bool,
    /// Name of the process group, if the operation is a collective and the trace gives the group.
    pub process_group: Text<'a>,
    /// Stack that created the operation's graph node, as written by gpuflame's exports: all frames, root first,
    /// separated by `;`. If there is no stack, a single frame contains the reason.
    pub created: Text<'a>,
    /// Kinds of the frames in `created`, one letter each: `p` Python, `r` range, `c` call or code. A single `f` means
    /// that `created` is not a stack but the id of the stack's innermost frame in the [`Property`] `stackFrames`.
    pub created_kinds: Text<'a>,
    /// Whether the operation's exact times are in the arguments of the trace event, as in Paddle's traces.
    pub in_args: bool,
    /// Reason why the operation has no launch, as the word that gpuflame's exports use.
    pub reason: Text<'a>,
    /// Process and thread fields of the trace event. In Kineto's traces they contain the device and the stream.
    pub lane: (Id<'a>, Id<'a>),
    /// Id of the flow that ends at the operation, if the operation's trace event contains it.
    pub flow: Option<u64>,
    /// Whether the trace shows the operation on another stream than its own, as Cuspy does for graph nodes.
    pub is_moved: bool,
    /// Direction of a copy, if the trace gives it as an argument, not only in the name.
    pub direction: Text<'a>,
    /// Indexes of the source and destination GPU, if the operation is a copy between GPUs.
    pub peers: Option<(u32, u32)>,
    /// Kinds of memory that the operation reads and writes, if the trace gives them as arguments, not only in the name.
    pub memory: Option<(MemoryKind, MemoryKind)>,
}

/// A call to the CUDA runtime or driver, or to another vendor's equivalent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Call<'a> {
    /// Name of the API function.
    pub name: Text<'a>,
    /// Start time, in ns on the trace's clock.
    pub start: i64,
    /// Time at which the call returned, in ns on the trace's clock.
    pub end: i64,
    /// Id of the calling process.
    pub process: Id<'a>,
    /// Id of the calling thread.
    pub thread: Id<'a>,
    /// Correlation id that the call shares with the GPU operations that it launched.
    pub correlation: Option<u64>,
    /// External id of the CPU operator that encloses the call.
    pub external: Option<u64>,
    /// Whether the call is a driver call. Driver calls may be nested in runtime calls.
    pub driver: bool,
    /// Complete stack of the call, as written by gpuflame's exports: all frames, root first, separated by `;`.
    pub stack: Text<'a>,
    /// Kinds of the frames in `stack`, as in [`Op::created_kinds`].
    pub stack_kinds: Text<'a>,
    /// Name of the kernel that the call launches, if the trace gives it.
    pub kernel: Text<'a>,
    /// Whether the call launched a kernel that may begin before the previous kernel ends. `None` if the trace does not
    /// contain this information, as in traces of torch.profiler.
    pub programmatic: Option<bool>,
    /// Id of the stream on which the call launches work, if the trace gives it.
    pub stream: Option<u32>,
    /// Id of the graph node that the call creates, if the trace gives it.
    pub graph_node: Option<u64>,
    /// Whether the trace marks the call as a launch although it contains no operation for the call.
    pub pending: bool,
    /// Id of the flow that starts at the call, if the call's trace event contains it.
    pub flow: Option<u64>,
}

/// Kind of a [`CpuOp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CpuKind {
    /// An operator of a framework (`aten::mm`).
    #[default]
    Operator,
    /// A range that the program marked (`record_function`, NVTX).
    Range,
    /// A step of the profiler (`ProfilerStep#5`, `ProfileStep#5[15.2 ms]`).
    Step,
    /// Time spent in a profiler (`Instrumentation`) or in loading code (`Lazy Function Loading`).
    Overhead,
}

/// A span of time on a CPU thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuOp<'a> {
    /// Kind of the span.
    pub kind: CpuKind,
    /// Name of the span, as written in the file.
    pub name: Text<'a>,
    /// Start time, in ns on the trace's clock.
    pub start: i64,
    /// End time, in ns on the trace's clock.
    pub end: i64,
    /// Id of the process that ran the span, as given in the trace.
    pub process: Id<'a>,
    /// Id of the thread that ran the span, as given in the trace.
    pub thread: Id<'a>,
    /// External id, shared with the calls and GPU operations made inside this operator.
    pub external: Option<u64>,
    /// Id that PyTorch gave to this execution of the operator. The operator's node in an execution trace has the same
    /// id.
    pub record_function: Option<u64>,
    /// Python functions that called the operator, innermost first, separated by `;`.
    pub call_stack: Text<'a>,
    /// Sequence number that a forward operator shares with its backward operator.
    pub sequence: Option<u64>,
    /// Whether the operator's exact times are in the arguments of the trace event.
    pub in_args: bool,
    /// Id that the profiler gave to the thread of the forward operator. Only backward operators have this field.
    pub forward_thread: Option<u64>,
}

/// A call to a Python function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PythonFrame<'a> {
    /// File, line and function of the frame, as written in the file.
    pub name: Text<'a>,
    /// Time at which the function was entered, in ns on the trace's clock.
    pub start: i64,
    /// Time at which the function returned, in ns on the trace's clock.
    pub end: i64,
    /// Id of the process that called the function, as given in the trace.
    pub process: Id<'a>,
    /// Id of the thread that called the function, as given in the trace.
    pub thread: Id<'a>,
    /// Id of this Python frame.
    pub id: Option<u64>,
    /// Id of the Python frame that called the function.
    pub parent: Option<u64>,
}

/// Kind of the slice that a [`Begin`] opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceKind {
    /// A call to the CUDA runtime or driver.
    Call,
    /// An operator, an annotated range or a step.
    Cpu(CpuKind),
    /// A Python function.
    Python,
    /// An operation of a GPU.
    Work,
    /// A slice of an unknown category or without a category.
    Unknown,
}

/// Start of a slice whose end is a separate trace event ([`End`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin<'a> {
    /// Kind of the slice.
    pub kind: SliceKind,
    /// Category of the slice; empty if the trace event has none.
    pub category: Text<'a>,
    /// Name of the slice, as written in the file.
    pub name: Text<'a>,
    /// Start time, in ns on the trace's clock.
    pub time: i64,
    /// Id of the process, as given in the trace.
    pub process: Id<'a>,
    /// Id of the thread, as given in the trace.
    pub thread: Id<'a>,
    /// Correlation id, if the slice is a call.
    pub correlation: Option<u64>,
    /// The operation, if the slice is a GPU operation. Its end is not known yet.
    pub work: Option<Op<'a>>,
}

/// End of a slice whose start is a separate trace event ([`Begin`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End<'a> {
    /// Category of the slice that ends; empty if the trace event has none.
    pub category: Text<'a>,
    /// Name of the slice that ends; empty if the trace event has none.
    pub name: Text<'a>,
    /// Correlation id of the slice, if the trace event has one.
    pub correlation: Option<u64>,
    /// End time, in ns on the trace's clock.
    pub time: i64,
    /// Id of the process, as given in the trace.
    pub process: Id<'a>,
    /// Id of the thread, as given in the trace.
    pub thread: Id<'a>,
}

/// Purpose of a [`Flow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowKind {
    /// Link from a forward operator to its backward operator.
    Backward,
    /// Link from a call to the GPU operation that the call launched.
    Launch,
    /// Any other purpose, or an unknown one.
    Unknown,
}

/// Start or end of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow<'a> {
    /// Purpose of the flow, derived from the category of the trace event.
    pub kind: FlowKind,
    /// Id that the start and the end of the flow share.
    pub id: u64,
    /// Whether this is the start of the flow, not the end.
    pub begins: bool,
    /// Whether the flow ends in the slice that is open at `time`. If false, the flow ends in the slice that begins
    /// next.
    pub enclosed: bool,
    /// Time of this start or end, in ns on the trace's clock.
    pub time: i64,
    /// Id of the process, as given in the trace.
    pub process: Id<'a>,
    /// Id of the thread, as given in the trace.
    pub thread: Id<'a>,
}

/// A wait for a CUDA event, a stream or a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sync<'a> {
    /// Kind of wait, as named by the trace.
    pub name: Text<'a>,
    /// Start time of the wait, in ns on the trace's clock.
    pub start: i64,
    /// End time of the wait, in ns on the trace's clock.
    pub end: i64,
    /// Index of the GPU on which the wait took place.
    pub device: Option<u32>,
    /// Id of the CUDA context on that GPU.
    pub context: Option<u32>,
    /// Id of the stream that waited, or for which the host waited.
    pub stream: Option<u32>,
    /// Id that CUPTI gave to the CUDA event for which the host or stream waited.
    pub event: Option<u32>,
    /// Correlation id of the call that caused the wait.
    pub correlation: Option<u64>,
    /// Id of the stream whose work the waiting stream waited for.
    pub on_stream: Option<u32>,
    /// Correlation id of the call that recorded the awaited CUDA event.
    pub record_correlation: Option<u64>,
    /// Id of the process that waited, if correlation ids are unique only within a process.
    pub process: Id<'a>,
    /// Id of the awaited recording of the CUDA event, as in [`EventRecord::number`].
    pub record: Option<u64>,
}

/// An execution of a graph node that does no GPU work, or of a host function that was submitted to a stream outside of
/// any graph.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IdleNode<'a> {
    /// Whether the node runs a function on the host. If false, the node records a CUDA event, which takes no time.
    pub is_host: bool,
    /// The execution, in the form of an operation without a kind and a name.
    pub run: Op<'a>,
}

/// Kind of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamFlag<'a> {
    /// Id of the process, if context ids are unique only within a process.
    pub process: Id<'a>,
    /// Id of the stream's CUDA context.
    pub context: Option<u32>,
    /// Id of the stream.
    pub stream: Option<u32>,
    /// Kind of the stream, as a value of CUPTI's enum CUpti_ActivityStreamFlag.
    pub flag: Option<u32>,
}

/// A recording of a CUDA event on a stream. The CUDA event completes when the earlier work on the stream is done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EventRecord<'a> {
    /// Id of the process that recorded the CUDA event, if correlation ids are unique only within a process.
    pub process: Id<'a>,
    /// Id of the stream's CUDA context.
    pub context: Option<u32>,
    /// Id of the stream on which the CUDA event was recorded.
    pub stream: Option<u32>,
    /// Id that CUPTI gave to the CUDA event.
    pub event: Option<u32>,
    /// Correlation id of the call that recorded the CUDA event.
    pub correlation: Option<u64>,
    /// Id of this recording within the process. `None` if waits refer only to the CUDA event.
    pub number: Option<u64>,
}

/// Name of a thread, or of a process if `thread` is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadName<'a> {
    /// Id of the process, as given in the trace.
    pub process: Id<'a>,
    /// Id of the thread; `None` if the name belongs to the process itself.
    pub thread: Id<'a>,
    /// Name of the thread or process.
    pub name: Text<'a>,
}

/// A property of the whole trace: a key with its value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Property<'a> {
    /// Key of the property.
    pub key: Text<'a>,
    /// Value as written in the file (JSON).
    pub value: &'a [u8],
}

/// A line of a folded file: a stack and its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Folded<'a> {
    /// Frames, root first, separated by `;`.
    pub frames: Text<'a>,
    /// Weight, in a unit that the file does not name.
    pub weight: u64,
}

/// A line of an extended folded file: a sampled stack and the time of the sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StackLine<'a> {
    /// Time of the sample, in ns on the trace's clock.
    pub time: i64,
    /// Name of the program.
    pub comm: Text<'a>,
    /// Id of the sampled process.
    pub process: u32,
    /// Id of the sampled thread.
    pub thread: u32,
    /// Index of the processor; -1 if unknown.
    pub cpu: i32,
    /// Frames, root first, separated by `;`.
    pub frames: Text<'a>,
}

/// Kinds of trace events that a [`Sink`] requests. A reader may skip all other events without parsing them. This saves
/// much time, because most of a trace consists of arguments that no sink needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants(u16);

impl Wants {
    /// Requests [`Event::Op`].
    pub const OPS: Self = Self(1);
    /// Requests [`Event::Call`].
    pub const CALLS: Self = Self(1 << 1);
    /// Requests [`Event::Cpu`] other than steps.
    pub const CPU: Self = Self(1 << 2);
    /// Requests [`Event::Cpu`] of the kind [`CpuKind::Step`].
    pub const STEPS: Self = Self(1 << 3);
    /// Requests [`Event::Python`].
    pub const PYTHON: Self = Self(1 << 4);
    /// Requests [`Event::Sync`] and [`Event::EventRecord`].
    pub const SYNCS: Self = Self(1 << 5);
    /// Requests [`Event::Thread`] and [`Event::Property`].
    pub const NAMES: Self = Self(1 << 6);
    /// Requests [`Event::Folded`] and [`Event::Stack`].
    pub const STACKS: Self = Self(1 << 7);
    /// Requests [`Event::Other`]. The reader then passes every such event.
    pub const OTHER: Self = Self(1 << 8);
    /// Requests [`Event::Begin`] and [`Event::End`].
    pub const EDGES: Self = Self(1 << 9);
    /// Requests [`Event::Flow`].
    pub const FLOWS: Self = Self(1 << 10);
    /// Requests the arguments of CPU slices other than times and Python functions: ids and sequence numbers.
    pub const DETAILS: Self = Self(1 << 11);
    /// Requests the text of every event, which is passed to [`Sink::raw`]. Only the readers of Chrome's JSON provide
    /// the text.
    pub const RAW: Self = Self(1 << 12);
    /// Requests everything except [`Wants::OTHER`], [`Wants::FLOWS`], [`Wants::EDGES`] and [`Wants::RAW`].
    pub const ALL: Self = Self(((1 << 8) - 1) | Self::DETAILS.0);

    /// Returns the union of `self` and `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `self` requests all kinds in `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A consumer of trace events. The events arrive in file order.
pub trait Sink {
    /// Returns the kinds of events that this sink needs. The reader calls this function once. Other events may arrive
    /// as well.
    fn wants(&self) -> Wants {
        Wants::ALL
    }

    /// Receives the next event.
    fn event(&mut self, event: &Event<'_>);

    /// Receives the text of an event. If the event was also requested, [`Sink::event`] receives it first.
    fn raw(&mut self, _event: RawEvent<'_>) {}
}

/// A trace event of Chrome's JSON, as written in the file.
#[derive(Clone, Copy, Debug)]
pub struct RawEvent<'a> {
    /// Text of the event, including the braces.
    pub text: &'a [u8],
    /// Category of the event; empty if it has none.
    pub category: Text<'a>,
    /// Name of the event.
    pub name: Text<'a>,
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn wants(&self) -> Wants {
        (**self).wants()
    }

    fn event(&mut self, event: &Event<'_>) {
        (**self).event(event);
    }

    fn raw(&mut self, event: RawEvent<'_>) {
        (**self).raw(event);
    }
}

/// A sink that several threads can fill. Each thread fills a sink of its own with the events of one part of the file.
/// The joined sinks must equal one sink that received all events.
pub trait Fork: Sink + Send + Sized {
    /// Creates an empty sink for a later part of the file.
    fn fork(&self) -> Self;

    /// Appends the contents of `later`, which received the part of the file after the part that `self` received.
    fn join(&mut self, later: Self);
}
