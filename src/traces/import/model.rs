//! Defines the event model. Every reader of another tool's trace converts the trace to these events, regardless of the
//! tool and the format.
//!
//! The texts in an event are borrowed from the reader's buffer. Times are in nanoseconds on the clock of the trace. The
//! trace's clock may begin at any point in time, so times may be negative. If a trace does not contain a field, the
//! field is `None`.

use super::Text;
use gpuflame_model::record::MemoryKind;

/// An event in a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An operation that a GPU ran: a kernel, a copy, a fill or a whole CUDA graph.
    Op(Op<'a>),
    /// A call to the CUDA runtime or driver, for example a call that launched a GPU operation.
    Call(Call<'a>),
    /// An operator, an annotated range or a step on a CPU thread.
    Cpu(CpuOp<'a>),
    /// A call to a Python function.
    Python(PythonFrame<'a>),
    /// Start of a slice whose end is a separate trace event.
    Begin(Begin<'a>),
    /// End of a slice that was opened by a [`Begin`] on the same thread.
    End(End<'a>),
    /// Start or end of a flow (an arrow between two events). A flow leads from a forward operator to a backward
    /// operator, or from a call to the GPU operation that the call launched.
    Flow(Flow<'a>),
    /// A wait for a CUDA event, a stream or a device.
    Sync(Sync<'a>),
    /// A recording of a CUDA event on a stream.
    EventRecord(EventRecord<'a>),
    /// An execution of a graph node that does no GPU work, or of a host function that was submitted to a stream.
    IdleNode(IdleNode<'a>),
    /// The kind of a stream.
    Stream(StreamFlag<'a>),
    /// The name of a process or a thread.
    Thread(ThreadName<'a>),
    /// A property of the whole trace, as key and value.
    Property(Property<'a>),
    /// A line of a folded-stack file: a stack with its weight, without times.
    Folded(Folded<'a>),
    /// A line of an extended folded-stack file: a stack with the time at which it was sampled.
    Stack(StackLine<'a>),
    /// Any other event, such as a counter. The variant contains the event's category, or empty text for an event
    /// without a category.
    Other(Text<'a>),
}

/// Id of a process or thread in a trace. A trace may contain such ids as numbers or as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Id<'a> {
    /// The trace does not contain the id.
    #[default]
    None,
    /// A number. The number may be in quotes (`"25738"`) and may have a suffix (`"123(Python)"`).
    Number(i64),
    /// Any other text, such as `Device_0` or `stream 7`.
    Text(Text<'a>),
}

/// Kind of a GPU operation ([`Op`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// A kernel.
    #[default]
    Kernel,
    /// A copy. In some traces, only the operation's name contains the direction of the copy.
    Copy,
    /// A fill of memory with a value.
    Set,
    /// A whole CUDA graph, whose nodes are not separate operations.
    Graph,
}

/// An operation that a GPU ran.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Op<'a> {
    /// Kind of the operation.
    pub kind: OpKind,
    /// Name of the operation, as written in the file.
    pub name: Text<'a>,
    /// Start time, in ns on the trace's clock.
    pub start: i64,
    /// End time, in ns on the trace's clock. In a malformed trace, the end may be before the start.
    pub end: i64,
    /// Process that launched the operation. Kineto's traces do not contain this process: the process field of their GPU
    /// events contains the device.
    pub process: Id<'a>,
    /// Index of the GPU that ran the operation.
    pub device: Option<u32>,
    /// Id of the CUDA context in which the operation ran.
    pub context: Option<u32>,
    /// Id of the stream on which the operation ran.
    pub stream: Option<u32>,
    /// Correlation id of the call that launched the operation. Several operations may have the same correlation id.
    pub correlation: Option<u64>,
    /// External id of the CPU operator that encloses the call by which the operation was launched.
    pub external: Option<u64>,
    /// Id of the CUDA graph whose launch started the operation.
    pub graph: Option<u32>,
    /// Id of the graph node that the operation belongs to.
    pub graph_node: Option<u64>,
    /// Number of bytes that were copied or filled; 0 if this number is unknown.
    pub bytes: u64,
    /// Number of blocks in each of the dimensions x, y and z; 0 if it is unknown.
    pub grid: [u32; 3],
    /// Number of threads per block in each of the dimensions x, y and z; 0 if it is unknown.
    pub block: [u32; 3],
    /// Number of registers that each thread uses.
    pub registers: u32,
    /// Size of the shared memory per block, in bytes.
    pub shared: u32,
    /// Whether the operation is part of a collective according to the trace.
    pub collective: bool,
    /// Name of the process group, if the operation is a collective and the trace contains the name.
    pub process_group: Text<'a>,
    /// Stack that created the operation's graph node. gpuflame's exports contain it in this form: all frames, root
    /// first, separated by `;`. If the creating stack is unknown, the text is a single frame that states the reason.
    pub created: Text<'a>,
    /// Kinds of the frames in `created`, as one letter for each frame: `p` means Python, `r` range, and `c` call or
    /// code. A single `f` means that `created` is not a stack, but the id of the stack's innermost frame in the
    /// [`Property`] `stackFrames`.
    pub created_kinds: Text<'a>,
    /// Whether the arguments of the trace event contain the operation's exact times, as in Paddle's traces.
    pub in_args: bool,
    /// Reason why the operation has no launch, given as the word that gpuflame's exports use.
    pub reason: Text<'a>,
    /// Process and thread fields of the trace event. In Kineto's traces, these fields contain the device and the
    /// stream.
    pub lane: (Id<'a>, Id<'a>),
    /// Id of the flow that ends at the operation, if the operation's trace event contains this id.
    pub flow: Option<u64>,
    /// Whether the trace shows the operation on a stream on which it did not run, as Cuspy does for graph nodes.
    pub is_moved: bool,
    /// Direction of a copy, if an argument of the trace event contains it. (Otherwise, only the name may contain the
    /// direction.)
    pub direction: Text<'a>,
    /// Indexes of the source GPU and the destination GPU, if the operation is a copy between two GPUs.
    pub peers: Option<(u32, u32)>,
    /// Kinds of memory that the operation reads and writes, if arguments of the trace event contain them. (Otherwise,
    /// only the name may contain the kinds.)
    pub memory: Option<(MemoryKind, MemoryKind)>,
}

/// A call to the CUDA runtime or driver, or to the equivalent library of another vendor.
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
    /// Correlation id, which the GPU operations that the call launched have as well.
    pub correlation: Option<u64>,
    /// External id of the CPU operator that encloses the call.
    pub external: Option<u64>,
    /// Whether the call is a driver call. A driver call may be nested in a runtime call.
    pub driver: bool,
    /// Complete stack of the call. gpuflame's exports contain it in this form: all frames, root first, separated by
    /// `;`.
    pub stack: Text<'a>,
    /// Kinds of the frames in `stack`, in the form of [`Op::created_kinds`].
    pub stack_kinds: Text<'a>,
    /// Name of the kernel that the call launches, if the trace contains the name.
    pub kernel: Text<'a>,
    /// Whether the call launched a kernel that may begin before the previous kernel ends. The field is `None` if the
    /// trace does not contain this information, as in traces of torch.profiler.
    pub programmatic: Option<bool>,
    /// Id of the stream on which the call launches work, if the trace contains it.
    pub stream: Option<u32>,
    /// Id of the graph node that the call creates, if the trace contains it.
    pub graph_node: Option<u64>,
    /// Whether the call is a launch according to the trace, although the trace contains no operation that it launched.
    pub pending: bool,
    /// Id of the flow that starts at the call, if the call's trace event contains this id.
    pub flow: Option<u64>,
}

/// Kind of a CPU slice ([`CpuOp`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CpuKind {
    /// An operator of a framework, such as `aten::mm`.
    #[default]
    Operator,
    /// A range that the program marked (with `record_function` or NVTX).
    Range,
    /// A step that the profiler marked (`ProfilerStep#5`, `ProfileStep#5[15.2 ms]`).
    Step,
    /// Time that was spent in a profiler (`Instrumentation`) or in loading code (`Lazy Function Loading`).
    Overhead,
}

/// A time span on a CPU thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuOp<'a> {
    /// Kind of the time span.
    pub kind: CpuKind,
    /// Name of the time span, as written in the file.
    pub name: Text<'a>,
    /// Start time, in ns on the trace's clock.
    pub start: i64,
    /// End time, in ns on the trace's clock.
    pub end: i64,
    /// Id of the process of this time span, as written in the trace.
    pub process: Id<'a>,
    /// Id of the thread of this time span, as written in the trace.
    pub thread: Id<'a>,
    /// External id. External id of the operator. The calls inside the operator, and the GPU operations that they
    /// launched, have the same id.
    pub external: Option<u64>,
    /// Id that PyTorch assigned to this execution of the operator. In an execution trace, the node of the operator has
    /// the same id.
    pub record_function: Option<u64>,
    /// Python functions that called the operator, innermost first, separated by `;`.
    pub call_stack: Text<'a>,
    /// Sequence number. A forward operator and its backward operator have the same sequence number.
    pub sequence: Option<u64>,
    /// Whether the arguments of the trace event contain the operator's exact times.
    pub in_args: bool,
    /// Id that the profiler assigned to the thread of the forward operator. Only backward operators have this field.
    pub forward_thread: Option<u64>,
}

/// A call of a Python function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PythonFrame<'a> {
    /// File, line and function of the frame, as written in the file.
    pub name: Text<'a>,
    /// Time at which the function was entered, in ns on the trace's clock.
    pub start: i64,
    /// Time at which the function returned, in ns on the trace's clock.
    pub end: i64,
    /// Id of the process that called the function, as written in the trace.
    pub process: Id<'a>,
    /// Id of the thread that called the function, as written in the trace.
    pub thread: Id<'a>,
    /// Id of the Python frame of this call.
    pub id: Option<u64>,
    /// Id of the Python frame in which the function was called.
    pub parent: Option<u64>,
}

/// Kind of a slice that a [`Begin`] event opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceKind {
    /// A call to the CUDA runtime or driver.
    Call,
    /// An operator, an annotated range or a step.
    Cpu(CpuKind),
    /// A Python function.
    Python,
    /// An operation that a GPU runs.
    Work,
    /// A slice without a category, or with an unknown category.
    Unknown,
}

/// Start of a slice. A separate trace event ([`End`]) contains the end of the slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin<'a> {
    /// Kind of the slice.
    pub kind: SliceKind,
    /// Category of the slice; empty if the trace event has no category.
    pub category: Text<'a>,
    /// Name of the slice, as written in the file.
    pub name: Text<'a>,
    /// Start time, in ns on the trace's clock.
    pub time: i64,
    /// Id of the slice's process, as written in the trace.
    pub process: Id<'a>,
    /// Id of the slice's thread, as written in the trace.
    pub thread: Id<'a>,
    /// Correlation id of the call, if the slice is a call.
    pub correlation: Option<u64>,
    /// The GPU operation, if the slice is one. The end of this operation is not set, because the end is not known yet.
    pub work: Option<Op<'a>>,
}

/// End of a slice. A separate trace event ([`Begin`]) contains the start of the slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End<'a> {
    /// Category of the slice that ends; empty if the trace event has no category.
    pub category: Text<'a>,
    /// Name of the slice that ends; empty if the trace event has no name.
    pub name: Text<'a>,
    /// Correlation id of the slice that ends, if the trace event has one.
    pub correlation: Option<u64>,
    /// Time at which the slice ended, in ns on the trace's clock.
    pub time: i64,
    /// Id of the slice's process, as written in the trace.
    pub process: Id<'a>,
    /// Id of the slice's thread, as written in the trace.
    pub thread: Id<'a>,
}

/// Purpose of an arrow between two events ([`Flow`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowKind {
    /// Connects a forward operator to its backward operator.
    Backward,
    /// Connects a call to the GPU operation that the call launched.
    Launch,
    /// The flow has another purpose, or its purpose is unknown.
    Unknown,
}

/// Start or end of a flow between two events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow<'a> {
    /// Purpose of the flow, which follows from the category of the trace event.
    pub kind: FlowKind,
    /// Id of the flow, which is equal at its start and its end.
    pub id: u64,
    /// Whether this event is the start of the flow, and not its end.
    pub begins: bool,
    /// Whether the flow ends in the slice that is open at `time`. If the field is false, the flow ends in the next
    /// slice that begins.
    pub enclosed: bool,
    /// Time at which the flow starts or ends, in ns on the trace's clock.
    pub time: i64,
    /// Id of the process at this end, as written in the trace.
    pub process: Id<'a>,
    /// Id of the thread at this end, as written in the trace.
    pub thread: Id<'a>,
}

/// A wait for a CUDA event, a stream or a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sync<'a> {
    /// Kind of wait, in the words of the trace.
    pub name: Text<'a>,
    /// Start time of the wait, in ns on the trace's clock.
    pub start: i64,
    /// End time of the wait, in ns on the trace's clock.
    pub end: i64,
    /// Index of the GPU to which the wait belongs.
    pub device: Option<u32>,
    /// Id of the CUDA context on this GPU.
    pub context: Option<u32>,
    /// Id of the stream that waited, or of the stream for which the host waited.
    pub stream: Option<u32>,
    /// CUPTI's id of the CUDA event for which the host or stream waited.
    pub event: Option<u32>,
    /// Correlation id of the call that caused the wait.
    pub correlation: Option<u64>,
    /// Id of the stream for whose work the waiting stream waited.
    pub on_stream: Option<u32>,
    /// Correlation id of the call that recorded the CUDA event for which the host or stream waited.
    pub record_correlation: Option<u64>,
    /// Id of the process that waited. The process is set if correlation ids are unique only within a process.
    pub process: Id<'a>,
    /// Id of the recording of the CUDA event for which the host or stream waited, as in [`EventRecord::number`].
    pub record: Option<u64>,
}

/// An execution of a graph node that does no GPU work, or of a host function that was submitted to a stream outside of
/// any graph.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IdleNode<'a> {
    /// Whether the node or function runs on the host. If the field is false, the node records a CUDA event, which takes
    /// no time.
    pub is_host: bool,
    /// The times and ids of the execution, stored as an operation without a kind and a name.
    pub run: Op<'a>,
}

/// The kind of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamFlag<'a> {
    /// Id of the stream's process. The process is set if context ids are unique only within a process.
    pub process: Id<'a>,
    /// Id of the stream's CUDA context.
    pub context: Option<u32>,
    /// Id of the stream.
    pub stream: Option<u32>,
    /// Kind of the stream, which is a value of CUPTI's enum CUpti_ActivityStreamFlag.
    pub flag: Option<u32>,
}

/// A recording of a CUDA event on a stream. The CUDA event is complete when all earlier work on the stream is done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EventRecord<'a> {
    /// Id of the process that recorded the CUDA event. The process is set if correlation ids are unique only within a
    /// process.
    pub process: Id<'a>,
    /// Id of the stream's CUDA context.
    pub context: Option<u32>,
    /// Id of the stream on which the CUDA event was recorded.
    pub stream: Option<u32>,
    /// CUPTI's id of the CUDA event.
    pub event: Option<u32>,
    /// Correlation id of the call that recorded the CUDA event.
    pub correlation: Option<u64>,
    /// Id of this recording, which is unique within the process. The id is `None` if waits refer to the CUDA event, and
    /// not to one of its recordings.
    pub number: Option<u64>,
}

/// Name of a thread. If `thread` is `None`, the event contains the name of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadName<'a> {
    /// Id of the process, as written in the trace.
    pub process: Id<'a>,
    /// Id of the thread; `None` if the process itself has the name.
    pub thread: Id<'a>,
    /// Name of the thread or process.
    pub name: Text<'a>,
}

/// A property of the whole trace: a key with its value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Property<'a> {
    /// Key of the property.
    pub key: Text<'a>,
    /// Value of the property, which is JSON as written in the file.
    pub value: &'a [u8],
}

/// A line of a folded-stack file: a stack with its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Folded<'a> {
    /// Frames of the stack, root first, separated by `;`.
    pub frames: Text<'a>,
    /// Weight of the stack, in a unit that the file does not contain.
    pub weight: u64,
}

/// A line of an extended folded-stack file: a sampled stack with the time of the sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StackLine<'a> {
    /// Time of the sample, in ns on the trace's clock.
    pub time: i64,
    /// Name of the sampled program.
    pub comm: Text<'a>,
    /// Id of the sampled process.
    pub process: u32,
    /// Id of the sampled thread.
    pub thread: u32,
    /// Index of the processor; -1 if it is unknown.
    pub cpu: i32,
    /// Frames of the stack, root first, separated by `;`.
    pub frames: Text<'a>,
}

/// Kinds of trace events that a [`Sink`] requests. A reader may skip events that were not requested without parsing
/// them. Skipping saves much time, because most of a trace consists of arguments that no sink needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants(u16);

impl Wants {
    /// Requests [`Event::Op`].
    pub const OPS: Self = Self(1);
    /// Requests [`Event::Call`].
    pub const CALLS: Self = Self(1 << 1);
    /// Requests [`Event::Cpu`], except steps.
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
    /// Requests [`Event::Other`]. If [`Event::Other`] is requested, the reader passes every event of this kind to the
    /// sink.
    pub const OTHER: Self = Self(1 << 8);
    /// Requests [`Event::Begin`] and [`Event::End`].
    pub const EDGES: Self = Self(1 << 9);
    /// Requests [`Event::Flow`].
    pub const FLOWS: Self = Self(1 << 10);
    /// Requests that, in addition to times and Python functions, the ids and sequence numbers are read from the
    /// arguments of CPU slices.
    pub const DETAILS: Self = Self(1 << 11);
    /// Requests the text of every trace event. The text is passed to [`Sink::raw`]. Only the readers of Chrome's JSON
    /// format provide this text.
    pub const RAW: Self = Self(1 << 12);
    /// Requests everything except [`Wants::OTHER`], [`Wants::FLOWS`], [`Wants::EDGES`] and [`Wants::RAW`].
    pub const ALL: Self = Self(((1 << 8) - 1) | Self::DETAILS.0);

    /// Returns the kinds that `self`, `other` or both request.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `self` requests all kinds in `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A consumer of the trace events that a reader finds. Events arrive in the order of the file.
pub trait Sink {
    /// Returns the kinds of events that this sink requests. The reader calls this function only once. The sink may
    /// receive other kinds of events as well.
    fn wants(&self) -> Wants {
        Wants::ALL
    }

    /// Receives the next trace event.
    fn event(&mut self, event: &Event<'_>);

    /// Receives the text of a trace event. An event that was itself requested is passed to [`Sink::event`] before its
    /// text is passed to this function.
    fn raw(&mut self, _event: RawEvent<'_>) {}
}

/// A trace event in Chrome's JSON format, as written in the file.
#[derive(Clone, Copy, Debug)]
pub struct RawEvent<'a> {
    /// Text of the event, including the braces around it.
    pub text: &'a [u8],
    /// Category of the event; empty if the event has no category.
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

/// A sink that several threads can fill. Each thread fills its own sink with the events in one part of the file. When
/// all sinks are joined, they must be equal to one sink that received all events.
pub trait Fork: Sink + Send + Sized {
    /// Creates an empty sink for a later part of the file.
    fn fork(&self) -> Self;

    /// Appends the contents of `later` to `self`. `later` must have received the part of the file that follows the part
    /// that `self` received.
    fn join(&mut self, later: Self);
}
