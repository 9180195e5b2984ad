//! Writes a table of all activities in a recording or in another tool's trace. All rows must be in memory before the
//! table is written.

use gpuflame_export::ActivityTable;
use gpuflame_export::format::Format;
use gpuflame_model::record::Row;

/// Table with one row for each activity.
pub(super) static CSV: Format = Format::of_events(
    "csv",
    &[".csv"],
    |profile, events, _, out| {
        let mut table = ActivityTable::new(out, str::to_owned)?;
        for (id, _) in profile.kernels() {
            table.row(&Row::Name { id, text: profile.kernel(id).unwrap_or_default() });
        }
        events.unified().iter().for_each(|one| table.row(&Row::Unified(*one)));
        for event in events.activities() {
            let id = events.source_id(event.activity.correlation);
            table.activity_with_id(&event.activity, event.origin, id);
        }
        profile.lost().for_each(|(loss, count)| table.row(&Row::Loss { loss, count }));
        table.finish().map(drop)
    },
    "A row for each activity (.csv)",
);
