//! The operations and steps of a trace, and nothing else of it.

use crate::import::{CpuKind, CpuOp, Event, Fork, NameTable, Op, Sink, Wants};

/// A GPU operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedOp {
    /// When it began, in nanoseconds.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// Its name's number in [`NameTable`].
    pub name: u32,
    /// Device and stream; 0 where the trace does not say.
    pub stream: (u32, u32),
}

/// A step of the profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedStep {
    /// When it began, in nanoseconds.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// Its name's number in [`NameTable`].
    pub name: u32,
}

/// A [`Sink`] that keeps GPU operations, within a window if there is one, and steps if they are wanted.
#[derive(Clone, Debug, Default)]
pub struct Ops {
    window: Option<(i64, i64)>,
    with_steps: bool,
    /// Whether only events with times among their arguments count.
    only_args: bool,
    /// In the order of the file.
    pub ops: Vec<TracedOp>,
    /// In the order of the file.
    pub steps: Vec<TracedStep>,
    /// What they are called.
    pub names: NameTable,
    /// GPU operations there were, within the window or not.
    pub all: u64,
}

impl Ops {
    /// Keeps all operations, and steps.
    pub fn with_steps() -> Self {
        Self { with_steps: true, ..Self::default() }
    }

    /// Keeps the operations that lie wholly between `first` and `last`, inclusively.
    pub fn within(first: i64, last: i64) -> Self {
        Self { window: Some((first, last)), ..Self::default() }
    }

    /// The same of events whose times stand among their arguments alone, as `kernel_extractor` has it.
    #[must_use]
    pub fn of_args(self, only_args: bool) -> Self {
        Self { only_args, ..self }
    }

    fn op(&mut self, op: &Op<'_>) {
        self.all += 1;
        if self.window.is_some_and(|(first, last)| op.start < first || op.end > last) {
            return;
        }
        let name = self.names.intern(op.name);
        let stream = (op.device.unwrap_or(0), op.stream.unwrap_or(0));
        self.ops.push(TracedOp { start: op.start, end: op.end, name, stream });
    }

    fn step(&mut self, step: &CpuOp<'_>) {
        let name = self.names.intern(step.name);
        self.steps.push(TracedStep { start: step.start, end: step.end, name });
    }
}

impl Sink for Ops {
    fn wants(&self) -> Wants {
        if self.with_steps { Wants::OPS.and(Wants::STEPS) } else { Wants::OPS }
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Op(op) if op.in_args || !self.only_args => self.op(op),
            Event::Cpu(step)
                if step.kind == CpuKind::Step && self.with_steps && (step.in_args || !self.only_args) =>
            {
                self.step(step);
            }
            _ => {}
        }
    }
}

impl Fork for Ops {
    fn fork(&self) -> Self {
        let &Self { window, with_steps, only_args, .. } = self;
        Self { window, with_steps, only_args, ..Self::default() }
    }

    fn join(&mut self, later: Self) {
        let numbers = self.names.append(later.names);
        let renamed = |name: u32| numbers[name as usize];
        self.ops.extend(later.ops.into_iter().map(|op| TracedOp { name: renamed(op.name), ..op }));
        self.steps.extend(later.steps.into_iter().map(|s| TracedStep { name: renamed(s.name), ..s }));
        self.all += later.all;
    }
}
