//! The comma of JSON that is written by hand: what large files are made of is not kept as a tree.

pub(super) fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}
