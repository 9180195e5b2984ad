//! Chooses how many rows and tables of a summary fit on a screen, or within the maximum size of the JSON output.

use gpuflame_model::error::Result;

/// Maximum number of rows of a table in a summary. If the output is too long, tables have fewer rows.
pub(super) const MAX_ROWS: usize = 5;
/// Maximum number of ranks that a summary lists.
pub(super) const MAX_RANKS: usize = 8;
/// Maximum size of the JSON output in bytes.
pub(super) const MAX_JSON_BYTES: usize = 8_000;
/// Maximum number of lines of a summary on the screen.
const MAX_LINES: usize = 40;

/// Number of rows and tables that a summary has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fit {
    /// Maximum number of rows per table.
    pub(super) rows: usize,
    /// Number of tables that are left out, starting with the least important table.
    pub(super) left_out: usize,
}

/// Returns the output with as many rows and tables as the limits permit. `write` creates the output, and `fits` tests
/// whether the output is short enough.
pub(super) fn fitted(
    write: impl Fn(Fit) -> Result<Vec<u8>>,
    fits: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>> {
    let fewer_rows = (MIN_ROWS..=MAX_ROWS).rev().map(|rows| Fit { rows, left_out: 0 });
    let fewer_tables = (1..=TABLES.len()).map(|left_out| Fit { rows: MIN_ROWS, left_out });
    let mut last = Vec::new();
    for fit in fewer_rows.chain(fewer_tables).chain([Fit { rows: 0, left_out: TABLES.len() }]) {
        last = write(fit)?;
        if fits(&last) {
            break;
        }
    }
    Ok(last)
}

/// Names of a summary's tables, in descending order of importance.
pub(super) const TABLES: [&str; 8] =
    ["gpus", "work", "critical_path", "steps", "idle_causes", "copies", "lines", "idle_places"];
/// Number of rows to which tables are shortened before whole tables are left out.
const MIN_ROWS: usize = 2;

pub(super) fn is_one_screen(text: &[u8]) -> bool {
    text.iter().filter(|byte| **byte == b'\n').count() <= MAX_LINES
}
