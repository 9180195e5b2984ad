//! Returns the separating comma for JSON that is streamed, because large files are never built as a tree.

/// Separator before item number `at` of a list.
pub fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}
