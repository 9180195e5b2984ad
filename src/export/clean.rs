//! Makes any name fit for a file: symbols come from other people's binaries and may hold anything.

use std::borrow::Cow;

use crate::profile::turns;

/// `name` as one frame of a folded stack, which readers split at `;`, at line ends and at the last blank:
///
/// | in the name | in the frame | since |
/// |---|---|---|
/// | `;` | `:` | it separates frames (inferno's collapsers do the same) |
/// | control characters, U+2028, U+2029, U+FFFE, U+FFFF | a blank | they end lines, drive terminals, or are no XML |
/// | marks of direction (U+202E and its like) | a blank | what follows would be shown backwards |
/// | a last word that is a number | `_` instead of the blank before it | readers would take it for a weight |
/// | `#` at the start | `_#` | the line would be a comment |
/// | nothing, or blanks only | `?` | readers drop empty frames |
pub(crate) fn frame(name: &str) -> Cow<'_, str> {
    let clean = field(name);
    let blank = clean.rfind(' ').filter(|blank| is_number(&clean[blank + 1..]));
    if blank.is_none() && !clean.starts_with('#') && !clean.contains(';') {
        return clean;
    }
    let mut clean = clean.into_owned();
    if let Some(blank) = blank {
        clean.replace_range(blank..=blank, "_");
    }
    if clean.starts_with('#') {
        clean.insert(0, '_');
    }
    clean.replace(';', ":").into()
}

/// `name` as a field of a table: on one line, and never empty.
pub(super) fn text(name: &str) -> String {
    field(name).into_owned()
}

/// The same, not copied if it is clean, as nearly all are.
pub(super) fn field(name: &str) -> Cow<'_, str> {
    if is_clean(name.as_bytes()) {
        return name.into();
    }
    let clean: String = name.chars().map(|c| if is_printable(c) { c } else { ' ' }).collect();
    match clean.trim() {
        "" => "?".into(),
        trimmed if trimmed.len() == clean.len() => clean.into(),
        trimmed => trimmed.to_owned().into(),
    }
}

/// The same for a cell of a table that a spreadsheet might open, see [`guarded`].
pub(crate) fn cell(name: &str) -> Cow<'_, str> {
    match field(name) {
        Cow::Borrowed(clean) => guarded(clean),
        Cow::Owned(clean) => guarded(&clean).into_owned().into(),
    }
}

/// What a spreadsheet might take for a formula gets a `'` before it, as spreadsheets do it. So does what looks like that
/// already: a reader takes one `'` from where after all of them there is a `=`, `+`, `-` or `@`, and has the text.
pub(crate) fn guarded(clean: &str) -> Cow<'_, str> {
    let is_formula = clean.trim_start_matches('\'').starts_with(['=', '+', '-', '@']);
    if is_formula { format!("'{clean}").into() } else { clean.into() }
}

/// Any text on a line of a terminal: its words as they are, and a blank for each character that would do something there.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return text.into();
    }
    text.chars().map(|c| if is_printable(c) { c } else { ' ' }).collect()
}

/// Whether nothing is to be done, as with nearly all names: a look at each character takes ten times as long. All bytes
/// are looked at, many at once.
fn is_clean(name: &[u8]) -> bool {
    let is_trimmed = !matches!(name, [] | [b' ', ..] | [.., b' ']);
    is_trimmed && name.iter().fold(true, |is_clean, byte| is_clean & (b' '..=b'~').contains(byte))
}

/// Not what ends a line somewhere, drives a terminal, turns the direction of what follows, or is forbidden in XML.
fn is_printable(c: char) -> bool {
    let ends_a_line = matches!(c, '\u{2028}' | '\u{2029}');
    !(c.is_control() || ends_a_line || turns(c) || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

/// Whether a reader of folded files would take `word` for a weight.
fn is_number(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_words_and_does_nothing() {
        assert_eq!(line(" a: 1\x1b[31m\r\u{202e}b\u{2028}"), " a: 1 [31m  b ");
        assert!(matches!(line("gemm, 22 us, \u{e9}"), Cow::Borrowed(_)));
    }

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
        assert_eq!(frame("gemm\u{202e}mmeg\u{2066}x\u{200f}"), "gemm mmeg x");
    }

    #[test]
    fn no_cell_is_a_formula() {
        for formula in ["=1+2", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)"] {
            assert_eq!(cell(formula), format!("'{formula}"));
        }
        assert_eq!(cell("\t=1"), "'=1", "blanks at the start are gone by then");
        assert_eq!(cell("gemm<float, 128>"), "gemm<float, 128>");
    }

    /// As the comment at `guarded` says it.
    fn read(cell: &str) -> &str {
        match cell.strip_prefix('\'') {
            Some(name) if name.trim_start_matches('\'').starts_with(['=', '+', '-', '@']) => name,
            _ => cell,
        }
    }

    #[test]
    fn a_reader_has_each_cell_back_and_none_is_a_formula() {
        for text in ["=1", "'=1", "''-2", "-", "'", "'quoted'", "@", "a'=b", "", "+3 %", "''"] {
            let cell = guarded(text);
            assert!(!cell.starts_with(['=', '+', '-', '@']), "{cell}");
            assert_eq!(read(&cell), text);
        }
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
