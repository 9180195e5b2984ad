//! Makes any name fit for a file: symbols come from other people's binaries and may hold anything.

/// `name` as one frame of a folded stack, which readers split at `;`, at line ends and at the last blank:
///
/// | in the name | in the frame | since |
/// |---|---|---|
/// | `;` | `:` | it separates frames (inferno's collapsers do the same) |
/// | control characters, U+2028, U+2029, U+FFFE, U+FFFF | a blank | they end lines, drive terminals, or are no XML |
/// | a last word that is a number | `_` instead of the blank before it | readers would take it for a weight |
/// | `#` at the start | `_#` | the line would be a comment |
/// | nothing, or blanks only | `?` | readers drop empty frames |
pub(crate) fn frame(name: &str) -> String {
    let mut clean = text(name);
    if clean.contains(';') {
        clean = clean.replace(';', ":");
    }
    if clean.starts_with('#') {
        clean.insert(0, '_');
    }
    if let Some(blank) = clean.rfind(' ')
        && is_number(&clean[blank + 1..])
    {
        clean.replace_range(blank..=blank, "_");
    }
    clean
}

/// `name` as a field of a table: on one line, and never empty.
pub(super) fn text(name: &str) -> String {
    if is_clean(name.as_bytes()) {
        return name.to_owned();
    }
    let clean: String = name.chars().map(|c| if is_printable(c) { c } else { ' ' }).collect();
    match clean.trim() {
        "" => "?".to_owned(),
        trimmed if trimmed.len() == clean.len() => clean,
        trimmed => trimmed.to_owned(),
    }
}

/// Whether nothing is to be done, as with nearly all names: a look at each character takes ten times as long.
fn is_clean(name: &[u8]) -> bool {
    let is_trimmed = !matches!(name, [] | [b' ', ..] | [.., b' ']);
    is_trimmed && name.iter().all(|byte| (b' '..=b'~').contains(byte))
}

/// Not what ends a line somewhere, drives a terminal, or is forbidden in XML.
fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}')
}

/// Whether a reader of folded files would take `word` for a weight.
fn is_number(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in ["main", "gemm<float, 128>", "operator()", "déjà::vu", "[GPU_Memcpy HtoD]", "a b"] {
            assert_eq!(frame(name), name);
        }
    }

    #[test]
    fn separators_and_control_characters_cannot_leak() {
        assert_eq!(frame("a;b\nc\rd\te\0f\x1b[31m\u{85}\u{2028}\u{ffff}x"), "a:b c d e f [31m   x");
        assert_eq!(frame("<[u8; 4]>::len"), "<[u8: 4]>::len");
        assert_eq!(text("a;b\nc"), "a;b c");
    }

    #[test]
    fn no_frame_ends_like_a_weight() {
        assert_eq!(frame("kernel 12"), "kernel_12");
        assert_eq!(frame("kernel 1 2.5"), "kernel 1_2.5");
        assert_eq!(frame("kernel -1\n"), "kernel_-1");
        assert_eq!(frame("12"), "12", "without a blank it is the whole frame");
    }

    #[test]
    fn no_frame_is_empty_or_begins_a_comment() {
        assert_eq!(frame(""), "?");
        assert_eq!(frame(" \n "), "?");
        assert_eq!(frame("# lost"), "_# lost");
    }
}
