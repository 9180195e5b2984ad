//! The separating comma of JSON that is streamed: large files are never built as a tree.

pub(super) fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}
