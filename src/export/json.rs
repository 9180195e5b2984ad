//! Separators for JSON that is written item by item. Large JSON files are never built as a tree in memory.

/// Returns the separator that is written before the item with index `at` of a list.
pub fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}
