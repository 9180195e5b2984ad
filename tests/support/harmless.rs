//! Checks that it is harmless to print a text to a terminal or to open it in a spreadsheet.

/// Asserts that `text` contains no characters that control a terminal, end a line early, or reverse the text after
/// them.
pub fn assert_harmless(text: &str, by: &str) {
    let does_something = |c: char| {
        let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let ends_a_line = matches!(c, '\u{2028}' | '\u{2029}');
        turns || ends_a_line || c.is_control() && c != '\n' && c != '\t'
    };
    assert!(!text.contains(does_something), "{by}: {text:?}");
}

/// Asserts that a table contains no characters with an effect on a terminal, and that no cell is a formula for a
/// spreadsheet.
pub fn assert_harmless_tables(text: &str, by: &str) {
    assert_harmless(text, by);
    let mut tables = csv::ReaderBuilder::new();
    let tables = tables.flexible(true).has_headers(false).from_reader(text.as_bytes());
    for row in tables.into_records() {
        for cell in &row.unwrap() {
            let is_number = cell.parse::<f64>().is_ok();
            assert!(is_number || !cell.starts_with(['=', '+', '-', '@', '\t']), "{by}: {cell:?} in {text}");
        }
    }
}
