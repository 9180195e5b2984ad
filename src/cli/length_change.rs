//! Creates the table cells for a duration before and after a change.

use super::table_output::Cell;

/// Returns four cells: the duration before the change in ns, the duration after the change in ns, and their difference
/// in ns and in percent.
pub(super) fn change_row(old: u64, new: u64) -> [Cell; 4] {
    let share = Cell::Share(percent_change(old, new));
    [Cell::Nanos(old), Cell::Nanos(new), Cell::Change(new as i64 - old as i64), share]
}

/// Returns the change as a percentage of the duration before the change.
pub(super) fn percent_change(old: u64, new: u64) -> f64 {
    if old == 0 { 0.0 } else { 100.0 * (new as f64 - old as f64) / old as f64 }
}
