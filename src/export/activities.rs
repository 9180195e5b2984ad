//! Writes the activity table: a CSV file with a row per activity. A row is written as soon as the join has matched the
//! activity to its launch. Rows are not stored in memory, so only names need to be stored.
//!
//! Rows are in the order in which activities were matched to their launches, which is nearly chronological order. If an
//! activity has no launch, its row contains the reason. Rows of the kind `lost` contain the counts of lost data.
//! Launches without an activity have no row. Launches without an activity are counted in the table of stacks
//! (`stack_table`). The columns `stack` and `created_stack` contain ids of stacks in the table of stacks.

use std::fmt::Write as _;
use std::io::Write;

use csv::ByteRecord;

use super::{clean, table};
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::error::{Error, Result};
use gpuflame_model::profile::{OTHER_KERNELS, ShownFrameKind};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Created, Detail, IdMap, Loss, Missing, NameId, Row, Unified,
    UnifiedKind, Work,
};

const HEADER: [&str; 34] = [
    "kind",
    "name",
    "correlation",
    "device",
    "context",
    "stream",
    "channel",
    "start_ns",
    "end_ns",
    "duration_ns",
    "bytes",
    "graph",
    "graph_node",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers",
    "static_shared",
    "dynamic_shared",
    "from",
    "to",
    "from_device",
    "to_device",
    "value",
    "async",
    "copies",
    "stack",
    "launch_ns",
    "launch_duration_ns",
    "created_stack",
    "reason",
];

/// A [`Sink`] that writes the activity table. The row that contains a kernel's name must be passed to
/// [`ActivityTable::row`] before the activities of that kernel.
#[derive(Debug)]
pub struct ActivityTable<W: Write> {
    out: csv::Writer<W>,
    /// Function that converts a kernel's symbol to the name that the table shows.
    show: fn(&str) -> String,
    names: IdMap<NameId, String>,
    /// Whether `keep_kernels` dropped names.
    dropped_names: bool,
    record: ByteRecord,
    text: String,
    failed: Option<csv::Error>,
}

impl<W: Write> ActivityTable<W> {
    /// Starts the table. `show` converts a kernel's symbol, as CUPTI reported it, to the name in the table
    /// (`symbolize::kernel_name`).
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn new(out: W, show: fn(&str) -> String) -> Result<Self> {
        let mut out = csv::Writer::from_writer(out);
        out.write_record(HEADER).map_err(table::error)?;
        let (names, record, text) = (IdMap::default(), ByteRecord::new(), String::new());
        Ok(Self { out, show, names, dropped_names: false, record, text, failed: None })
    }

    /// Stores the kernel's name if the row contains one. Writes a table row if the row is about unified memory or a
    /// loss. Ignores rows of other kinds.
    pub fn row(&mut self, row: &Row<'_>) {
        match row {
            Row::Name { id, text } => {
                self.names.entry(*id).or_insert_with(|| clean::cell(&(self.show)(text)).into_owned());
            }
            Row::Unified(unified) => self.unified(unified),
            // A launch captured into a graph is not a loss, because the captured work runs whenever the graph is
            // launched.
            Row::Loss { loss: Loss::LaunchesCaptured, .. } => {}
            Row::Loss { loss, count } => self.lost(*loss, *count),
            _ => {}
        }
    }

    /// Writes a row for a loss, with the count of lost items in the column `value`.
    fn lost(&mut self, loss: Loss, count: u64) {
        self.field("lost");
        self.field(loss.label());
        self.blank(24);
        self.field(count);
        self.blank(7);
        self.end();
    }

    /// Drops the names of all kernels that `keep` does not select.
    pub fn keep_kernels(&mut self, keep: impl Fn(NameId) -> bool) {
        self.names.retain(|id, _| keep(*id));
        self.names.shrink_to_fit();
        self.dropped_names = true;
    }

    /// Writes a row about unified memory. CUPTI reports no launch for unified memory, so the launch columns are empty.
    /// For page faults, the column `value` contains the number of faults.
    fn unified(&mut self, unified: &Unified) {
        let is_move = unified.kind.is_move();
        self.field("unified");
        self.field(unified.kind.label());
        self.blank(1);
        self.option(unified.device().map(|device| device.0));
        self.blank(3);
        self.field(unified.start);
        self.option(is_move.then_some(unified.end));
        self.option(unified.duration().filter(|_| is_move));
        self.option(is_move.then_some(unified.value));
        self.blank(11);
        self.field("managed");
        self.field("managed");
        let ends = [(UnifiedKind::DTOH, unified.source), (UnifiedKind::HTOD, unified.target)];
        for (kind, device) in ends {
            let is_gpu = unified.kind == kind || unified.kind == UnifiedKind::DTOD;
            self.option(is_gpu.then_some(device.0));
        }
        self.option((!is_move).then_some(unified.value));
        self.blank(7);
        self.end();
    }

    /// Returns the first error that occurred while writing. Later calls of this function return `None`. After an error,
    /// the table is unusable.
    pub fn failure(&mut self) -> Option<Error> {
        self.failed.take().map(table::error)
    }

    /// Finishes the table and returns the writer.
    ///
    /// # Errors
    /// Returns the first error that has occurred since the table was started. Nothing was written after the first
    /// error.
    pub fn finish(mut self) -> Result<W> {
        if let Some(error) = self.failed.take() {
            return Err(table::error(error));
        }
        self.out.into_inner().map_err(|error| error.into_error().into())
    }

    fn field(&mut self, value: impl std::fmt::Display) {
        self.text.clear();
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{value}");
        self.record.push_field(self.text.as_bytes());
    }

    fn blank(&mut self, count: usize) {
        (0..count).for_each(|_| self.record.push_field(b""));
    }

    fn end(&mut self) {
        debug_assert_eq!(self.record.len(), HEADER.len(), "{:?}", self.record);
        if self.failed.is_none() {
            self.failed = self.out.write_byte_record(&self.record).err();
        }
        self.record.clear();
    }

    fn name(&mut self, work: Work) {
        self.record.push_field(ShownFrameKind::for_work(work).word().as_bytes());
        match work {
            Work::Kernel(id) => match self.names.get(&id) {
                Some(name) => self.record.push_field(name.as_bytes()),
                None if self.dropped_names => self.record.push_field(OTHER_KERNELS.as_bytes()),
                None => self.record.push_field(b""),
            },
            Work::Copy(kind) => self.record.push_field(kind.label().as_bytes()),
            Work::Set => self.record.push_field(b"memset"),
            Work::Graph => self.record.push_field(b"graph"),
        }
    }

    fn ids(&mut self, activity: &Activity, correlation: Option<u64>) {
        self.option(correlation);
        self.field(activity.device.0);
        self.field(activity.context.0);
        self.field(activity.stream.0);
        self.option(activity.channel);
    }

    fn option(&mut self, value: Option<impl std::fmt::Display>) {
        match value {
            Some(value) => self.field(value),
            None => self.blank(1),
        }
    }

    /// Writes the columns from `grid_x` to `copies`.
    fn detail(&mut self, detail: &Detail) {
        match detail {
            Detail::Kernel(kernel) => {
                kernel.grid.iter().chain(&kernel.block).for_each(|size| self.field(size));
                self.field(kernel.registers);
                self.field(kernel.static_shared);
                self.field(kernel.dynamic_shared);
                self.blank(7);
            }
            Detail::Copy(copy) => {
                self.blank(9);
                self.field(copy.from.label());
                self.field(copy.to.label());
                self.option(copy.peers.map(|(from, _)| from.0));
                self.option(copy.peers.map(|(_, to)| to.0));
                self.blank(1);
                self.field(u8::from(copy.is_async));
                self.field(copy.copies);
            }
            Detail::Graph => self.blank(15),
            Detail::Set(set) => {
                self.blank(10);
                self.field(set.memory.label());
                self.blank(2);
                self.field(set.value);
                self.field(u8::from(set.is_async));
                self.blank(1);
            }
        }
    }

    /// Writes the columns from `stack` to `launch_duration_ns`.
    fn launched(&mut self, launched: Launched) {
        match launched.context {
            ContextId::NONE => self.blank(1),
            context => self.field(context.0),
        }
        self.field(launched.time);
        self.field(launched.duration);
    }
}

impl<W: Write> ActivityTable<W> {
    /// Writes an activity, with its correlation id in the source.
    pub fn activity_with_id(&mut self, activity: &Activity, origin: Origin, correlation: Option<u64>) {
        self.name(activity.work());
        self.ids(activity, correlation);
        self.field(activity.start);
        self.field(activity.end);
        self.option(activity.duration());
        self.field(activity.bytes());
        self.field(activity.graph.0);
        self.field(activity.graph_node.0);
        self.detail(&activity.detail);
        match origin {
            Origin::Launch(launched) => self.launched(launched),
            Origin::Missing(_) => self.blank(3),
        }
        match activity.created {
            Some(Created::Context(context)) => self.field(context.0),
            _ => self.blank(1),
        }
        let untimed = activity.duration().is_none().then_some(Missing::Untimed);
        let uncreated = activity.created.filter(|created| created.label().is_some()).map(Created::word);
        let reason = origin.context().err().into_iter().chain(untimed).map(Missing::word).chain(uncreated);
        let reason: String = reason.collect::<Vec<_>>().join(" ");
        self.field(reason);
        self.end();
    }
}

impl<W: Write> Sink for ActivityTable<W> {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.activity_with_id(activity, origin, Some(activity.correlation.0.into()));
    }

    /// Does nothing. Launches without an activity are counted in the table of stacks.
    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}
