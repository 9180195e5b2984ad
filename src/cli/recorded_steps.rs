//! Converts a recording to trace events, for the verbs that were designed for other tools' traces. Each activity
//! becomes an operation, and each step of the recording becomes a step of the trace. If there are no steps, each
//! recording window becomes a step.

use gpuflame_explain::symbolize::kernel_name;
use gpuflame_model::record::{Activity, Detail, IdMap, NameId, Row, StepSpans};
use gpuflame_traces::import::{CpuKind, CpuOp, Event, Op, OpKind, Sink, Text};

/// Converts the rows of a recording to trace events, which it passes to `sink`.
pub(super) struct RecordedEvents<'a, S> {
    sink: &'a mut S,
    names: IdMap<NameId, String>,
    steps: StepSpans,
    /// Number of activities that were skipped because they have no usable times.
    pub(super) untimed: u64,
}

impl<'a, S: Sink> RecordedEvents<'a, S> {
    pub(super) fn new(sink: &'a mut S) -> Self {
        Self { sink, names: IdMap::default(), steps: StepSpans::default(), untimed: 0 }
    }

    pub(super) fn add_row(&mut self, row: &Row<'_>) {
        match row {
            Row::Name { id, text } => drop(self.names.insert(*id, kernel_name(text).into_owned())),
            Row::Activity(activity) => self.op(activity),
            _ => {}
        }
        self.steps.add_row(row);
    }

    fn op(&mut self, activity: &Activity) {
        if activity.duration().is_none() {
            self.untimed += 1;
            return;
        }
        let copy;
        let (kind, name) = match activity.detail {
            Detail::Kernel(kernel) => {
                let name = self.names.get(&kernel.name).map_or("[kernel without a name]", String::as_str);
                (OpKind::Kernel, name)
            }
            Detail::Graph => (OpKind::Graph, "[graph]"),
            Detail::Set(_) => (OpKind::Set, "Memset"),
            Detail::Copy(detail) => {
                copy = format!("Memcpy {}", detail.kind.label());
                (OpKind::Copy, &*copy)
            }
        };
        self.sink.event(&Event::Op(Op {
            kind,
            name: Text::from(name),
            start: activity.start.0 as i64,
            end: activity.end.0 as i64,
            device: Some(activity.device.0),
            stream: Some(activity.stream.0),
            ..Op::default()
        }));
    }

    /// Passes the steps to the sink. `add_steps` must be called after the last row.
    pub(super) fn add_steps(&mut self) {
        let word = if self.steps.has_steps() { "Step" } else { "Window" };
        for (number, (start, end)) in (1..).zip(self.steps.spans()) {
            let name = format!("{word}#{number}");
            let (start, end) = (start as i64, end as i64);
            let step =
                CpuOp { kind: CpuKind::Step, name: Text::from(&*name), start, end, ..CpuOp::default() };
            self.sink.event(&Event::Cpu(step));
        }
    }
}
