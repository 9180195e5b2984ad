//! The rows that instructions are made of.

use gpuflame_explain::events::JoinedRows;
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::record::{Activity, CorrelationId, Row};

/// A [`Sink`] that stores the rows of instructions.
#[derive(Clone, Debug, Default)]
pub struct InstructionRows {
    pub(super) joined: JoinedRows,
    /// Start and end of the work that was launched outside all windows. It is not listed.
    pub(super) outside: Option<(u64, u64)>,
}

impl InstructionRows {
    /// Rows of the run, to which the correlation ids of another tool's trace can be passed.
    pub fn joined_mut(&mut self) -> &mut JoinedRows {
        &mut self.joined
    }
}

impl Sink for InstructionRows {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.joined.activity(activity, origin);
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.joined.pending(id, launched);
    }

    fn outside(&mut self, activity: &Activity, _launched: Launched) {
        if activity.duration().is_some() {
            let (start, end) = self.outside.unwrap_or((u64::MAX, 0));
            self.outside = Some((start.min(activity.start.0), end.max(activity.end.0)));
        }
    }

    fn host(&mut self, row: &Row<'_>) {
        self.joined.host(row);
    }
}
