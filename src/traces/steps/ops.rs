//! Defines a sink that collects only the GPU operations and the steps of a trace.

use crate::import::{CpuKind, CpuOp, Event, Fork, NameTable, Op, Sink, Wants};

/// A GPU operation in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedOp {
    /// Start time of the operation, in ns.
    pub start: i64,
    /// End time of the operation, in ns.
    pub end: i64,
    /// Index in [`Ops::names`] of the operation's name.
    pub name: u32,
    /// Ids of the operation's device and stream. An id is 0 if the trace does not contain this id.
    pub stream: (u32, u32),
}

/// A step that the profiler marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedStep {
    /// Start time of the step, in ns.
    pub start: i64,
    /// End time of the step, in ns.
    pub end: i64,
    /// Index in [`Ops::names`] of the step's name.
    pub name: u32,
}

/// A [`Sink`] that collects GPU operations and, on request, steps. The sink can be limited to the operations in a time
/// range.
#[derive(Clone, Debug, Default)]
pub struct Ops {
    range: Option<(i64, i64)>,
    with_steps: bool,
    /// Whether only trace events are collected that contain exact times in their arguments.
    only_exact_times: bool,
    /// GPU operations, in file order.
    pub ops: Vec<TracedOp>,
    /// Steps, in file order.
    pub steps: Vec<TracedStep>,
    /// Names of the operations and steps.
    pub names: NameTable,
    /// Number of all GPU operations, inside and outside the time range.
    pub total: u64,
    /// Earliest start and latest end of all GPU operations, in ns; `None` if there are no GPU operations.
    pub span: Option<(i64, i64)>,
}

impl Ops {
    /// Creates a sink that collects all operations and all steps.
    pub fn with_steps() -> Self {
        Self { with_steps: true, ..Self::default() }
    }

    /// Creates a sink that collects only operations that are completely in the time range from `first` to `last`
    /// (inclusive).
    pub fn within(first: i64, last: i64) -> Self {
        Self { range: Some((first, last)), ..Self::default() }
    }

    /// Makes the sink ignore trace events that do not contain exact times in their arguments, as the tool
    /// `kernel_extractor` does.
    #[must_use]
    pub fn with_exact_times(self, only_exact_times: bool) -> Self {
        Self { only_exact_times, ..self }
    }

    fn add_op(&mut self, op: &Op<'_>) {
        self.total += 1;
        self.add_span(op.start, op.end);
        if self.range.is_some_and(|(first, last)| op.start < first || op.end > last) {
            return;
        }
        let name = self.names.intern(op.name);
        let stream = (op.device.unwrap_or(0), op.stream.unwrap_or(0));
        self.ops.push(TracedOp { start: op.start, end: op.end, name, stream });
    }

    fn add_span(&mut self, start: i64, end: i64) {
        let (first, last) = self.span.unwrap_or((start, end));
        self.span = Some((first.min(start), last.max(end)));
    }

    fn add_step(&mut self, step: &CpuOp<'_>) {
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
            Event::Op(op) if op.in_args || !self.only_exact_times => self.add_op(op),
            Event::Cpu(step)
                if step.kind == CpuKind::Step
                    && self.with_steps
                    && (step.in_args || !self.only_exact_times) =>
            {
                self.add_step(step);
            }
            _ => {}
        }
    }
}

impl Fork for Ops {
    fn fork(&self) -> Self {
        let &Self { range, with_steps, only_exact_times, .. } = self;
        Self { range, with_steps, only_exact_times, ..Self::default() }
    }

    fn join(&mut self, later: Self) {
        let numbers = self.names.append(later.names);
        let renamed = |name: u32| numbers[name as usize];
        self.ops.extend(later.ops.into_iter().map(|op| TracedOp { name: renamed(op.name), ..op }));
        self.steps.extend(later.steps.into_iter().map(|s| TracedStep { name: renamed(s.name), ..s }));
        self.total += later.total;
        if let Some((start, end)) = later.span {
            self.add_span(start, end);
        }
    }
}
