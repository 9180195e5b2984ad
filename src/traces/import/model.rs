//! The event model into which all readers of foreign traces convert, regardless of tool and format.
//!
//! Events borrow from the reader's buffer. Times are nanoseconds on the trace's own clock. The clock's zero may be at
//! any time, so times may be negative. Fields that a trace does not provide are `None`.

use super::Text;
use gpuflame_model::record::MemoryKind;

/// An event of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Work done by a GPU: a kernel, a copy, a fill or a whole graph.
    Op(Op<'a>),
    /// A call of the runtime or the driver, including the calls that launched GPU operations.
    Call(Call<'a>),
    /// An operator, a range or a step on the CPU.
    Cpu(CpuOp<'a>),
    /// A call of a Python function.
    Python(PythonFrame<'a>),
    /// Start of a slice whose end is a separate event.
    Begin(Begin<'a>),
    /// End of a slice that a [`Begin`] opened on the thread.
    End(End<'a>),
    /// Start or end of a flow: from a forward operator to a backward operator, or from a call to its GPU work.
    Flow(Flow<'a>),
    /// A wait for an event, a stream or a device.
    Sync(Sync<'a>),
    /// A record of an event on a stream.
    EventRecord(EventRecord<'a>),
    /// A run of a graph node that does no GPU work, or of a host function of a stream.
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

/// Process or thread of an event, which traces give as a number or as text.
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

/// Kind of work of an [`Op`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// A kernel.
    #[default]
    Kernel,
    /// A copy. The direction of the copy may be known only from the operation's name.
    Copy,
    /// A fill of memory with a value.
    Set,
    /// A whole graph, without operations for its nodes.
    Graph,
}

/// Work that a GPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Op<'a> {
    /// The kind of operation.
    pub kind: OpKind,
    /// Name of the operation, as written in the file.
    pub name: Text<'a>,
    /// Start, in ns on the trace's clock.
    pub start: i64,
    /// End of the operation. In a malformed trace, the end may be before `start`.
    pub end: i64,
    /// Process that launched the operation. Kineto does not give this process, because the process field of its GPU
    /// work holds the device.
    pub process: Id<'a>,
    /// GPU that ran the operation.
    pub device: Option<u32>,
    /// GPU context in which the operation ran.
    pub context: Option<u32>,
    /// Stream on which the operation ran.
    pub stream: Option<u32>,
    /// Correlation id of the call that launched the operation. Several operations may share one id.
    pub correlation: Option<u64>,
    /// External id of the CPU operator that encloses the launching call.
    pub external: Option<u64>,
    /// Graph whose launch started the operation.
    pub graph: Option<u32>,
    /// Graph node that the operation belongs to.
    pub graph_node: Option<u64>,
    /// Bytes moved or set; 0 if unknown.
    pub bytes: u64,
    /// Blocks in x, y, z; 0 if unknown.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z; 0 if unknown.
    pub block: [u32; 3],
    /// Registers per thread.
    pub registers: u32,
    /// Shared memory in bytes per block.
    pub shared: u32,
    /// Whether the trace marks the operation as part of a collective.
    pub collective: bool,
    /// Process group of a collective, if the trace gives it.
    pub process_group: Text<'a>,
    /// Stack on which the operation's graph node was created, as written by gpuflame's exports: all frames, root first,
    /// separated by `;`. If there is no stack, a single frame gives the reason.
    pub created: Text<'a>,
    /// Kinds of the frames in `created`, one letter each: `p` Python, `r` range, `c` call or code. A single `f` means
    /// that `created` is not a stack but the id of the stack's innermost frame in the [`Property`] `stackFrames`.
    pub created_kinds: Text<'a>,
    /// Whether the operation's exact times are among its arguments, where Paddle writes them.
    pub in_args: bool,
    /// Reason why the operation has no launch, given by the word that gpuflame's exports use.
    pub reason: Text<'a>,
    /// Process and thread fields of the event. In Kineto's traces they hold the device and the stream.
    pub lane: (Id<'a>, Id<'a>),
    /// Id of the flow that ends at the operation, if the event itself contains the id.
    pub flow: Option<u64>,
    /// Whether the trace shows the operation on another stream than its own, as Cuspy does with nodes of graphs.
    pub is_moved: bool,
    /// Direction of a copy, if the trace gives it as an argument and not only as part of the name.
    pub direction: Text<'a>,
    /// Source and destination GPU of a copy between GPUs.
    pub peers: Option<(u32, u32)>,
    /// Kinds of memory that the operation reads and writes, if the trace gives them outside of the name.
    pub memory: Option<(MemoryKind, MemoryKind)>,
}

/// A call of the GPU's runtime or driver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Call<'a> {
    /// Name of the function.
    pub name: Text<'a>,
    /// Start, in ns on the trace's clock.
    pub start: i64,
    /// Time at which the call returned, in ns on the trace's clock.
    pub end: i64,
    /// Calling process.
    pub process: Id<'a>,
    /// Calling thread.
    pub thread: Id<'a>,
    /// Correlation id that the call shares with its GPU operations.
    pub correlation: Option<u64>,
    /// External id of the CPU operator that encloses the call.
    pub external: Option<u64>,
    /// Whether the call is a driver call, which may be nested in a runtime call.
    pub driver: bool,
    /// Complete stack of the call, as written by gpuflame's exports: frames, root first, separated by `;`.
    pub stack: Text<'a>,
    /// Kinds of the frames in `stack`, as in [`Op::created_kinds`].
    pub stack_kinds: Text<'a>,
    /// Kernel that the call launches, if the trace gives it.
    pub kernel: Text<'a>,
    /// Whether the call launched a kernel that may begin before the previous kernel ends. `None` if the trace does not
    /// contain this, for example a trace of torch.profiler.
    pub programmatic: Option<bool>,
    /// Stream on which the call launches work, if the trace gives it.
    pub stream: Option<u32>,
    /// Graph node that the call creates, if the trace gives it.
    pub graph_node: Option<u64>,
    /// Whether the trace marks the call as a launch although it contains no operation for the call.
    pub pending: bool,
    /// Id of the flow that starts at the call, if the event itself contains the id.
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
    /// Work of a profiler (`Instrumentation`), or loading of code (`Lazy Function Loading`).
    Overhead,
}

/// A span of time on a CPU thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuOp<'a> {
    /// The kind of CPU operation.
    pub kind: CpuKind,
    /// Name as written in the file.
    pub name: Text<'a>,
    /// Start, in ns on the trace's clock.
    pub start: i64,
    /// End, in ns on the trace's clock.
    pub end: i64,
    /// Process of the event, as named in the trace.
    pub process: Id<'a>,
    /// Thread of the event, as named in the trace.
    pub thread: Id<'a>,
    /// External id, shared with the calls and GPU operations made inside this operator.
    pub external: Option<u64>,
    /// Number that PyTorch gave to the execution of the operator. It is also in the operator's node in an execution
    /// trace.
    pub record_function: Option<u64>,
    /// Python functions that called the operator, innermost first, separated by `;`.
    pub call_stack: Text<'a>,
    /// Sequence number that a forward operator shares with its backward operator.
    pub sequence: Option<u64>,
    /// Whether the operator's exact times are among its arguments.
    pub in_args: bool,
    /// Thread of the forward operator, as numbered by the profiler. Only backward operators have this field.
    pub forward_thread: Option<u64>,
}

/// A call of a Python function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PythonFrame<'a> {
    /// File, line and function of the frame, in the form in which the trace writes them.
    pub name: Text<'a>,
    /// Time at which the function was entered.
    pub start: i64,
    /// Time at which the function returned.
    pub end: i64,
    /// Process of the event, as named in the trace.
    pub process: Id<'a>,
    /// Thread of the event, as named in the trace.
    pub thread: Id<'a>,
    /// Number of the Python frame.
    pub id: Option<u64>,
    /// Number of the calling Python frame.
    pub parent: Option<u64>,
}

/// Kind of the slice that a [`Begin`] opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceKind {
    /// A call of the runtime or the driver.
    Call,
    /// An operator, a range or a step.
    Cpu(CpuKind),
    /// A Python function.
    Python,
    /// Work of a GPU.
    Work,
    /// A slice of an unknown category or without a category.
    Unknown,
}

/// Start of a slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin<'a> {
    /// Kind of the slice.
    pub kind: SliceKind,
    /// Category of the slice; empty if the event has none.
    pub category: Text<'a>,
    /// Name as written in the file.
    pub name: Text<'a>,
    /// Start, in ns on the trace's clock.
    pub time: i64,
    /// Process of the event, as named in the trace.
    pub process: Id<'a>,
    /// Thread of the event, as named in the trace.
    pub thread: Id<'a>,
    /// Correlation id, if the slice is a call.
    pub correlation: Option<u64>,
    /// The work, if the slice is GPU work. The end is not known yet.
    pub work: Option<Op<'a>>,
}

/// End of a slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End<'a> {
    /// Category of the slice that ends; empty if the event has none.
    pub category: Text<'a>,
    /// Name of the slice that ends; empty if the event has none.
    pub name: Text<'a>,
    /// Correlation id, if the event has one.
    pub correlation: Option<u64>,
    /// End, in ns on the trace's clock.
    pub time: i64,
    /// Process of the event, as named in the trace.
    pub process: Id<'a>,
    /// Thread of the event, as named in the trace.
    pub thread: Id<'a>,
}

/// Purpose of a [`Flow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowKind {
    /// From a forward operator to its backward operator.
    Backward,
    /// Link from a call to the GPU work that the call launched.
    Launch,
    /// Any other purpose, or an unknown one.
    Unknown,
}

/// Start or end of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow<'a> {
    /// Purpose of the flow, taken from the event's category.
    pub kind: FlowKind,
    /// Id that the start and the end of the flow share.
    pub id: u64,
    /// Whether this event is the start of the flow.
    pub begins: bool,
    /// Whether the flow ends in the slice that is open at `time`. If not, it ends in the slice that begins next.
    pub enclosed: bool,
    /// Time in ns on the trace's clock.
    pub time: i64,
    /// Process of the event, as named in the trace.
    pub process: Id<'a>,
    /// Thread of the event, as named in the trace.
    pub thread: Id<'a>,
}

/// A wait for an event, a stream or a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sync<'a> {
    /// Kind of wait, as named by the trace.
    pub name: Text<'a>,
    /// Start, in ns on the trace's clock.
    pub start: i64,
    /// End, in ns on the trace's clock.
    pub end: i64,
    /// GPU on which the wait took place.
    pub device: Option<u32>,
    /// Context of that device.
    pub context: Option<u32>,
    /// Stream that waited.
    pub stream: Option<u32>,
    /// Event that the host or stream waited for, in CUPTI's numbering.
    pub event: Option<u32>,
    /// Correlation id of the call that caused the wait.
    pub correlation: Option<u64>,
    /// Stream whose work the waiting stream waited for.
    pub on_stream: Option<u32>,
    /// Correlation id of the call that recorded the event.
    pub record_correlation: Option<u64>,
    /// Process that waited, if correlation ids are unique only within a process.
    pub process: Id<'a>,
    /// Number of the record of the event, as in [`EventRecord::number`].
    pub record: Option<u64>,
}

/// A run of a graph node that does no GPU work, or of a host function of a stream, which is in no graph.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IdleNode<'a> {
    /// Whether the node runs a function on the host. Otherwise it records an event, which takes no time.
    pub is_host: bool,
    /// The run, described in the same way as an operation. It has no kind and no name.
    pub run: Op<'a>,
}

/// Kind of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamFlag<'a> {
    /// Process, if contexts are unique only within a process.
    pub process: Id<'a>,
    /// Context of the stream.
    pub context: Option<u32>,
    /// Stream.
    pub stream: Option<u32>,
    /// Kind, in the numbers of CUPTI's CUpti_ActivityStreamFlag.
    pub flag: Option<u32>,
}

/// A record of an event on a stream. The event happens when the earlier work of the stream is done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EventRecord<'a> {
    /// Process that recorded the event, if correlation ids are unique only within a process.
    pub process: Id<'a>,
    /// Context of the stream.
    pub context: Option<u32>,
    /// Stream on which the event was recorded.
    pub stream: Option<u32>,
    /// Event, in CUPTI's numbering.
    pub event: Option<u32>,
    /// Correlation id of the call that recorded the event.
    pub correlation: Option<u64>,
    /// Number of this record within the process; `None` if waits name only the event.
    pub number: Option<u64>,
}

/// Name of a thread, or of a process if `thread` is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadName<'a> {
    /// Process of the event, as named in the trace.
    pub process: Id<'a>,
    /// Thread; `None` if the name belongs to the process itself.
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

/// A stack with its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Folded<'a> {
    /// Frames, root first, separated by `;`.
    pub frames: Text<'a>,
    /// Weight, in a unit that the file does not name.
    pub weight: u64,
}

/// A stack with the time of the sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StackLine<'a> {
    /// Time of the sample, in ns on the trace's clock.
    pub time: i64,
    /// Name of the program.
    pub comm: Text<'a>,
    /// Process of the event, as named in the trace.
    pub process: u32,
    /// Thread of the event, as named in the trace.
    pub thread: u32,
    /// Processor; -1 if unknown.
    pub cpu: i32,
    /// Frames, root first, separated by `;`.
    pub frames: Text<'a>,
}

/// Kinds of events that a [`Sink`] requests. A reader may skip all other events without parsing them, because most of
/// a trace consists of arguments that no sink needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants(u16);

impl Wants {
    /// [`Event::Op`].
    pub const OPS: Self = Self(1);
    /// [`Event::Call`].
    pub const CALLS: Self = Self(1 << 1);
    /// [`Event::Cpu`] other than steps.
    pub const CPU: Self = Self(1 << 2);
    /// [`Event::Cpu`] of [`CpuKind::Step`].
    pub const STEPS: Self = Self(1 << 3);
    /// [`Event::Python`].
    pub const PYTHON: Self = Self(1 << 4);
    /// [`Event::Sync`] and [`Event::EventRecord`].
    pub const SYNCS: Self = Self(1 << 5);
    /// [`Event::Thread`] and [`Event::Property`].
    pub const NAMES: Self = Self(1 << 6);
    /// [`Event::Folded`] and [`Event::Stack`].
    pub const STACKS: Self = Self(1 << 7);
    /// [`Event::Other`]; the reader reports every such event.
    pub const OTHER: Self = Self(1 << 8);
    /// [`Event::Begin`] and [`Event::End`].
    pub const EDGES: Self = Self(1 << 9);
    /// [`Event::Flow`].
    pub const FLOWS: Self = Self(1 << 10);
    /// Arguments of CPU slices other than times and Python functions: ids and sequence numbers.
    pub const DETAILS: Self = Self(1 << 11);
    /// Text of every event, passed to [`Sink::raw`]. Only the readers of Chrome's JSON provide it.
    pub const RAW: Self = Self(1 << 12);
    /// Everything but [`Wants::OTHER`], [`Wants::FLOWS`], [`Wants::EDGES`] and [`Wants::RAW`].
    pub const ALL: Self = Self(((1 << 8) - 1) | Self::DETAILS.0);

    /// Returns the union of `self` and `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all kinds in `other` are requested.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A consumer of events, which arrive in file order.
pub trait Sink {
    /// Events that this sink needs. The reader calls this function once. Other events may arrive nevertheless.
    fn wants(&self) -> Wants {
        Wants::ALL
    }

    /// Receives the next event.
    fn event(&mut self, event: &Event<'_>);

    /// Receives the text of an event. If the event was also requested, [`Sink::event`] receives it first.
    fn raw(&mut self, _event: RawEvent<'_>) {}
}

/// An event of Chrome's JSON as it is written in the file.
#[derive(Clone, Copy, Debug)]
pub struct RawEvent<'a> {
    /// The event with its braces.
    pub text: &'a [u8],
    /// Category; empty if the event has none.
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

/// A sink that several threads can fill: each thread fills one sink with the events of one part of the file. The joined
/// result must equal the result of one sink that receives all events.
pub trait Fork: Sink + Send + Sized {
    /// Creates an empty sink for a later part of the file.
    fn fork(&self) -> Self;

    /// Appends the contents of `later`. The part of the file that `later` received comes after the part that `self`
    /// received.
    fn join(&mut self, later: Self);
}
