//! Cleans names for output. Symbols come from arbitrary binaries, so they may contain any characters.

use std::borrow::Cow;

use gpuflame_model::profile::is_bidi_control;

/// Cleans `name` for use as a frame of a folded stack. Readers split folded stacks at `;`, at line ends and at the last
/// blank:
///
/// | in the name | in the frame | reason |
/// |---|---|---|
/// | `;` | `；` (U+FF1B) | it separates frames; a `:` would make `f<A;B>` and `f<A:B>` one frame |
/// | control characters, U+2028, U+2029, U+FFFE, U+FFFF | a blank | they end lines, control terminals, or are invalid in XML |
/// | marks of direction (U+202E and similar) | a blank | the following text would be shown backwards |
/// | a last word that is a number | `_` instead of the blank before it | readers would take it for a weight |
/// | `#` at the start | `_#` | the line would be a comment |
/// | empty, or blanks only | `?` | readers drop empty frames |
pub fn frame(name: &str) -> Cow<'_, str> {
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
    clean.replace(';', "\u{ff1b}").into()
}

/// Cleans `name` for a field of a table. The cleaned name is one line and never empty.
pub fn text(name: &str) -> String {
    field(name).into_owned()
}

/// Like [`text`], but does not copy names that are already clean. Nearly all names are clean, so most names need no
/// copy.
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

/// Cleans `name` like `field`, and prevents spreadsheets from interpreting the name as a formula; see [`guarded`].
pub fn cell(name: &str) -> Cow<'_, str> {
    match field(name) {
        Cow::Borrowed(clean) => guarded(clean),
        Cow::Owned(clean) => guarded(&clean).into_owned().into(),
    }
}

/// If a spreadsheet might interpret a text as a formula, puts a `'` before the text, as spreadsheets themselves do. If
/// the text already begins with one or more `'` and a formula follows, another `'` is added. To recover the original
/// text, a reader removes one `'` if the run of `'` at the start is followed by `=`, `+`, `-` or `@`.
pub fn guarded(clean: &str) -> Cow<'_, str> {
    let is_formula = clean.trim_start_matches('\'').starts_with(['=', '+', '-', '@']);
    if is_formula { format!("'{clean}").into() } else { clean.into() }
}

/// Cleans text for a line of a terminal: replaces each control character with a blank.
pub fn line(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return text.into();
    }
    text.chars().map(|c| if is_printable(c) { c } else { ' ' }).collect()
}

/// Whether the name is already clean. Nearly all names are clean. Testing the bytes takes a tenth of the time of
/// testing the characters. The loop does not stop at the first unclean byte, so that the compiler can compare many
/// bytes at once.
fn is_clean(name: &[u8]) -> bool {
    let is_trimmed = !matches!(name, [] | [b' ', ..] | [.., b' ']);
    is_trimmed && name.iter().fold(true, |is_clean, byte| is_clean & (b' '..=b'~').contains(byte))
}

/// Whether `c` is harmless. A harmless character does not end a line, control a terminal or change the direction of
/// text, and it is valid in XML.
fn is_printable(c: char) -> bool {
    let ends_a_line = matches!(c, '\u{2028}' | '\u{2029}');
    !(c.is_control() || ends_a_line || is_bidi_control(c) || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

/// Whether a reader of folded files would interpret `word` at the end of a line as a weight.
fn is_number(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_line_keeps_its_words_and_loses_control_characters() {
        assert_eq!(line(" a: 1\x1b[31m\r\u{202e}b\u{2028}"), " a: 1 [31m  b ");
        assert!(matches!(line("gemm, 22 us, \u{e9}"), Cow::Borrowed(_)));
    }

    #[test]
    fn ordinary_names_are_unchanged() {
        for name in ["main", "gemm<float, 128>", "operator()", "déjà::vu", "[GPU_Memcpy HtoD]", "a b"] {
            assert_eq!(frame(name), name);
        }
    }

    #[test]
    fn separators_and_control_characters_are_replaced() {
        assert_eq!(frame("a;b\nc\rd\te\0f\x1b[31m\u{85}\u{2028}\u{ffff}x"), "a\u{ff1b}b c d e f [31m   x");
        assert_eq!(frame("<[u8; 4]>::len"), "<[u8\u{ff1b} 4]>::len");
        assert_ne!(frame("f<A;B>"), frame("f<A:B>"));
        assert_eq!(text("a;b\nc"), "a;b c");
        assert_eq!(frame("gemm\u{202e}mmeg\u{2066}x\u{200f}"), "gemm mmeg x");
    }

    #[test]
    fn no_cell_is_a_formula() {
        for formula in ["=1+2", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)"] {
            assert_eq!(cell(formula), format!("'{formula}"));
        }
        assert_eq!(cell("\t=1"), "'=1", "leading blanks are trimmed first");
        assert_eq!(cell("gemm<float, 128>"), "gemm<float, 128>");
    }

    /// Recovers the original text from a cell as the documentation of `guarded` describes.
    fn read(cell: &str) -> &str {
        match cell.strip_prefix('\'') {
            Some(name) if name.trim_start_matches('\'').starts_with(['=', '+', '-', '@']) => name,
            _ => cell,
        }
    }

    #[test]
    fn guarded_cells_can_be_read_back_and_are_not_formulas() {
        for text in ["=1", "'=1", "''-2", "-", "'", "'quoted'", "@", "a'=b", "", "+3 %", "''"] {
            let cell = guarded(text);
            assert!(!cell.starts_with(['=', '+', '-', '@']), "{cell}");
            assert_eq!(read(&cell), text);
        }
    }

    #[test]
    fn no_frame_ends_with_a_number_as_last_word() {
        assert_eq!(frame("kernel 12"), "kernel_12");
        assert_eq!(frame("kernel 1 2.5"), "kernel 1_2.5");
        assert_eq!(frame("kernel -1\n"), "kernel_-1");
        assert_eq!(frame("12"), "12", "a number without a blank is the whole frame");
    }

    #[test]
    fn no_frame_is_empty_or_begins_a_comment() {
        assert_eq!(frame(""), "?");
        assert_eq!(frame(" \n "), "?");
        assert_eq!(frame("# lost"), "_# lost");
    }
}
