//! The events that foreign traces are made of, whatever the tool and the format.
//!
//! All borrow from the reader's buffer. Times are nanoseconds on the trace's own clock, which may begin
//! anywhere, also below zero. What a trace does not say is `None`.

use super::Text;

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A GPU did something: a kernel, a copy, a fill.
    Op(Op<'a>),
    /// A call of the runtime or the driver; among others those that launched the GPU operations.
    Call(Call<'a>),
    /// An operator, a range or a step on the CPU.
    Cpu(CpuOp<'a>),
    /// A Python function ran.
    Python(PythonFrame<'a>),
    /// A slice of a thread begins whose end is an event of its own.
    Begin(Begin<'a>),
    /// The slice of a thread ends that began last and has not ended.
    End(End<'a>),
    /// An arrow from an operator of the forward pass to one of the backward pass begins or ends.
    Flow(Flow<'a>),
    /// Something waited for something on a GPU.
    Sync(Sync<'a>),
    /// What a process or a thread is called.
    Thread(ThreadName<'a>),
    /// Something about the trace as a whole.
    Property(Property<'a>),
    /// A line of a folded file: a stack and its weight, without times.
    Folded(Folded<'a>),
    /// A line of an extended folded file: a stack at a time.
    Stack(StackLine<'a>),
    /// An event that is none of these, a flow, a counter; of a category that we do not know where it has one.
    Other(Text<'a>),
}

/// Who an event belongs to: a process or a thread, which traces give as numbers or as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Id<'a> {
    /// The trace does not say.
    #[default]
    None,
    /// A number, also where it stands in quotes (`"25738"`) or has a remark (`"123(Python)"`).
    Number(i64),
    /// Anything else (`Device_0`, `stream 7`).
    Text(Text<'a>),
}

/// What kind of work an [`Op`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// A kernel.
    #[default]
    Kernel,
    /// A copy; its name says from where to where, if anything does.
    Copy,
    /// A fill.
    Set,
}

/// Work that a GPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Op<'a> {
    /// The kind of operation.
    pub kind: OpKind,
    /// The name as it stands in the file.
    pub name: Text<'a>,
    /// When it began, ns of the trace's clock.
    pub start: i64,
    /// When it ended; before `start` where the trace says so.
    pub end: i64,
    /// The process that launched it. Kineto does not say: there its process field is the device.
    pub process: Id<'a>,
    /// The GPU.
    pub device: Option<u32>,
    /// The context on it.
    pub context: Option<u32>,
    /// The stream of that context.
    pub stream: Option<u32>,
    /// The id of the call that launched it. Several operations may have the same.
    pub correlation: Option<u64>,
    /// The id of the CPU operator around that call.
    pub external: Option<u64>,
    /// The graph it was launched by.
    pub graph: Option<u32>,
    /// The node of that graph.
    pub graph_node: Option<u64>,
    /// Bytes moved or set; 0 where unknown.
    pub bytes: u64,
    /// Blocks in x, y, z; 0 where unknown.
    pub grid: [u32; 3],
    /// Threads a block in x, y, z; 0 where unknown.
    pub block: [u32; 3],
    /// Registers of each thread.
    pub registers: u32,
    /// Shared memory, bytes a block.
    pub shared: u32,
    /// Whether the trace says that it is a part of a collective.
    pub collective: bool,
    /// All frames of the stack on which its graph node was made, root first, with `;` between them, or the frame that
    /// says why there is none, where the trace has it, as ours do.
    pub created: Text<'a>,
    /// What those frames are: a letter for each, `p` of Python, `r` a range, `c` a call or code. `f`: it is no stack but the
    /// name of its innermost frame, and what that is the trace says in its [`Property`] `stackFrames`.
    pub created_kinds: Text<'a>,
    /// Whether its times stand among its arguments, as Paddle has them.
    pub in_args: bool,
    /// Why it has no launch, in the word that our own exports have for it.
    pub reason: Text<'a>,
}

/// A call of the GPU's runtime or driver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Call<'a> {
    /// The function that was called.
    pub name: Text<'a>,
    /// When it began, ns of the trace's clock.
    pub start: i64,
    /// When it returned, ns of the trace's clock.
    pub end: i64,
    /// The process that called.
    pub process: Id<'a>,
    /// The thread that called.
    pub thread: Id<'a>,
    /// The id that the GPU operations of this call carry.
    pub correlation: Option<u64>,
    /// The id of the CPU operator around it.
    pub external: Option<u64>,
    /// Whether it is a call of the driver, which may lie inside one of the runtime.
    pub driver: bool,
    /// All frames of its stack, root first, with `;` between them, where the trace has them itself, as ours do.
    pub stack: Text<'a>,
    /// What those frames are, as in [`Op::created_kinds`].
    pub stack_kinds: Text<'a>,
    /// The kernel that it launches, where the trace says so.
    pub kernel: Text<'a>,
    /// The stream that it launches on, where the trace says so.
    pub stream: Option<u32>,
    /// The node that it makes of a graph, where the trace says so.
    pub graph_node: Option<u64>,
    /// Whether the trace says that it launches, though there is no operation of it.
    pub pending: bool,
}

/// What a [`CpuOp`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CpuKind {
    /// An operator of a framework (`aten::mm`).
    #[default]
    Operator,
    /// A range that somebody marked (`record_function`, NVTX).
    Range,
    /// A step of the profiler (`ProfilerStep#5`, `ProfileStep#5[15.2 ms]`).
    Step,
}

/// A stretch of time on a CPU thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuOp<'a> {
    /// The kind of CPU operation.
    pub kind: CpuKind,
    /// The name as it stands in the file.
    pub name: Text<'a>,
    /// When it began, ns of the trace's clock.
    pub start: i64,
    /// When it ended, ns of the trace's clock.
    pub end: i64,
    /// The process, as the trace names it.
    pub process: Id<'a>,
    /// The thread, as the trace names it.
    pub thread: Id<'a>,
    /// The id that calls and GPU operations made within it carry.
    pub external: Option<u64>,
    /// The Python functions that called it, innermost first, with `;` between them.
    pub call_stack: Text<'a>,
    /// The number that an operator of the forward pass and its partner of the backward pass share.
    pub sequence: Option<u64>,
    /// Whether its times stand among its arguments.
    pub in_args: bool,
    /// Of a backward operator: the thread of the forward pass, as the profiler numbers it.
    pub forward_thread: Option<u64>,
}

/// A Python function's stay on the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PythonFrame<'a> {
    /// File, line and function, as the trace writes them.
    pub name: Text<'a>,
    /// When it was entered.
    pub start: i64,
    /// When it was left.
    pub end: i64,
    /// The process, as the trace names it.
    pub process: Id<'a>,
    /// The thread, as the trace names it.
    pub thread: Id<'a>,
    /// The frame's number.
    pub id: Option<u64>,
    /// The number of the frame that called it.
    pub parent: Option<u64>,
}

/// What a slice is that [`Begin`] tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceKind {
    /// A call of the runtime or the driver.
    Call,
    /// An operator, a range or a step.
    Cpu(CpuKind),
    /// A Python function.
    Python,
}

/// The beginning of a slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin<'a> {
    /// The kind of slice.
    pub kind: SliceKind,
    /// The name as it stands in the file.
    pub name: Text<'a>,
    /// When it began, ns of the trace's clock.
    pub time: i64,
    /// The process, as the trace names it.
    pub process: Id<'a>,
    /// The thread, as the trace names it.
    pub thread: Id<'a>,
    /// Of a call: the id that its GPU operations carry.
    pub correlation: Option<u64>,
}

/// The end of a slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End<'a> {
    /// When it ended, ns of the trace's clock.
    pub time: i64,
    /// The process, as the trace names it.
    pub process: Id<'a>,
    /// The thread, as the trace names it.
    pub thread: Id<'a>,
}

/// One end of an arrow from the forward pass to the backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow<'a> {
    /// What both ends share.
    pub id: u64,
    /// Whether it begins here, at an operator of the forward pass.
    pub begins: bool,
    /// When, ns of the trace's clock.
    pub time: i64,
    /// The process, as the trace names it.
    pub process: Id<'a>,
    /// The thread, as the trace names it.
    pub thread: Id<'a>,
}

/// A wait for an event, a stream or a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sync<'a> {
    /// What kind of wait, in the trace's words.
    pub name: Text<'a>,
    /// When it began, ns of the trace's clock.
    pub start: i64,
    /// When it ended, ns of the trace's clock.
    pub end: i64,
    /// The GPU.
    pub device: Option<u32>,
    /// The context of that GPU.
    pub context: Option<u32>,
    /// The stream that waited.
    pub stream: Option<u32>,
    /// The event that was waited for, as CUPTI numbers it.
    pub event: Option<u32>,
    /// The id of the call.
    pub correlation: Option<u64>,
}

/// The name of a process (no thread) or a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadName<'a> {
    /// The process, as the trace names it.
    pub process: Id<'a>,
    /// The thread; `None` where the process itself is named.
    pub thread: Id<'a>,
    /// The thread's name.
    pub name: Text<'a>,
}

/// A key of the whole trace and its value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Property<'a> {
    /// The property's key.
    pub key: Text<'a>,
    /// The value as it stands in the file (JSON).
    pub value: &'a [u8],
}

/// A stack and its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Folded<'a> {
    /// The frames, root first, with `;` between them.
    pub frames: Text<'a>,
    /// The weight in the file's unit, which it does not say.
    pub weight: u64,
}

/// A stack at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StackLine<'a> {
    /// When the stack was taken, ns of the trace's clock.
    pub time: i64,
    /// The program's name.
    pub comm: Text<'a>,
    /// The process, as the trace names it.
    pub process: u32,
    /// The thread, as the trace names it.
    pub thread: u32,
    /// The processor; -1 where it is unknown.
    pub cpu: i32,
    /// The frames, root first, with `;` between them.
    pub frames: Text<'a>,
}

/// Kinds of events that a [`Sink`] asks for. Others may be passed over without being read: most of a trace
/// is arguments that nobody wants.
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
    /// [`Event::Sync`].
    pub const SYNCS: Self = Self(1 << 5);
    /// [`Event::Thread`] and [`Event::Property`].
    pub const NAMES: Self = Self(1 << 6);
    /// [`Event::Folded`] and [`Event::Stack`].
    pub const STACKS: Self = Self(1 << 7);
    /// [`Event::Other`], once for each.
    pub const OTHER: Self = Self(1 << 8);
    /// [`Event::Begin`] and [`Event::End`].
    pub const EDGES: Self = Self(1 << 9);
    /// [`Event::Flow`].
    pub const FLOWS: Self = Self(1 << 10);
    /// What arguments of CPU slices tell beside their times and Python functions: ids, sequence numbers.
    pub const DETAILS: Self = Self(1 << 11);
    /// Everything but [`Wants::OTHER`], [`Wants::FLOWS`] and [`Wants::EDGES`].
    pub const ALL: Self = Self(((1 << 8) - 1) | Self::DETAILS.0);

    /// What either of the two wants.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is asked for.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A consumer of events, which come in the order of the file.
pub trait Sink {
    /// What to hand on. Asked once; events that were not asked for may come nevertheless.
    fn wants(&self) -> Wants {
        Wants::ALL
    }

    /// The next event.
    fn event(&mut self, event: &Event<'_>);
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn wants(&self) -> Wants {
        (**self).wants()
    }

    fn event(&mut self, event: &Event<'_>) {
        (**self).event(event);
    }
}

/// A sink that several threads can fill, each with a stretch of the file. The result must be the same as
/// that of one sink which gets everything.
pub trait Fork: Sink + Send + Sized {
    /// An empty sink for a later stretch of the file.
    fn fork(&self) -> Self;

    /// Takes in what `later` got, all of which stands behind what this one got.
    fn join(&mut self, later: Self);
}
