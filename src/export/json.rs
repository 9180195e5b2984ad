//! The two pieces of JSON that are written by hand: what large files are made of is not kept as a tree.

pub(super) fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}

/// `text` as a JSON string.
pub(super) fn json(text: &str) -> String {
    serde_json::to_string(text).expect("a string can be written as JSON")
}
