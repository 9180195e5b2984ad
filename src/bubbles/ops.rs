//! The operations and steps of a trace, and nothing else of it.

use crate::import::{CpuKind, CpuOp, Event, Fork, Op, Sink, Text, Wants};
use crate::record::IdMap;

/// A GPU operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedOp {
    /// When it began, in nanoseconds.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// Its name's number in [`Names`].
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
    /// Its name's number in [`Names`].
    pub name: u32,
}

/// Names, each once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    texts: Vec<Box<str>>,
    numbers: IdMap<Box<[u8]>, u32>,
}

impl Names {
    /// The number of `text`.
    pub(super) fn number(&mut self, text: Text<'_>) -> u32 {
        if let Some(&number) = self.numbers.get(text.raw()) {
            return number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.decode().into());
        self.numbers.insert(text.raw().into(), number);
        number
    }

    /// The text of a number that this table gave.
    pub fn text(&self, number: u32) -> &str {
        &self.texts[number as usize]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Takes in the names of a later stretch; gives the new number of each.
    fn join(&mut self, later: Self) -> Vec<u32> {
        let mut raw = vec![Box::<[u8]>::default(); later.texts.len()];
        later.numbers.into_iter().for_each(|(text, number)| raw[number as usize] = text);
        let texts = raw.into_iter().zip(later.texts);
        texts
            .map(|(raw, text)| match self.numbers.get(&raw) {
                Some(&number) => number,
                None => {
                    let number = self.texts.len() as u32;
                    self.texts.push(text);
                    self.numbers.insert(raw, number);
                    number
                }
            })
            .collect()
    }
}

/// A [`Sink`] that keeps GPU operations, within a window if there is one, and steps if they are wanted.
#[derive(Clone, Debug, Default)]
pub struct Ops {
    window: Option<(i64, i64)>,
    with_steps: bool,
    /// In the order of the file.
    pub ops: Vec<TracedOp>,
    /// In the order of the file.
    pub steps: Vec<TracedStep>,
    /// What they are called.
    pub names: Names,
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

    fn op(&mut self, op: &Op<'_>) {
        self.all += 1;
        if self.window.is_some_and(|(first, last)| op.start < first || op.end > last) {
            return;
        }
        let name = self.names.number(op.name);
        let stream = (op.device.unwrap_or(0), op.stream.unwrap_or(0));
        self.ops.push(TracedOp { start: op.start, end: op.end, name, stream });
    }

    fn step(&mut self, step: &CpuOp<'_>) {
        let name = self.names.number(step.name);
        self.steps.push(TracedStep { start: step.start, end: step.end, name });
    }
}

impl Sink for Ops {
    fn wants(&self) -> Wants {
        if self.with_steps { Wants::OPS.and(Wants::STEPS) } else { Wants::OPS }
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Op(op) => self.op(op),
            Event::Cpu(step) if step.kind == CpuKind::Step && self.with_steps => self.step(step),
            _ => {}
        }
    }
}

impl Fork for Ops {
    fn fork(&self) -> Self {
        Self { window: self.window, with_steps: self.with_steps, ..Self::default() }
    }

    fn join(&mut self, later: Self) {
        let numbers = self.names.join(later.names);
        let renamed = |name: u32| numbers[name as usize];
        self.ops.extend(later.ops.into_iter().map(|op| TracedOp { name: renamed(op.name), ..op }));
        self.steps.extend(later.steps.into_iter().map(|s| TracedStep { name: renamed(s.name), ..s }));
        self.all += later.all;
    }
}
