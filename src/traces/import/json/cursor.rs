//! Functions that skip a part of a JSON text (blanks, strings, numbers, whole values). Each function returns the
//! position after the skipped text.
//!
//! The bytes end with [`PADDING`] zero bytes, which are not part of the trace. If a function reaches an unexpected
//! byte, it stops at this byte. The caller then decides whether the text is damaged, or whether more input may follow.
//! Values that are not needed are skipped without being parsed, so errors in such values are not detected.

use super::super::Text;
use super::buffer::PADDING;
use super::mask::InstructionSet;
use super::number::are_digits;

/// Position at which the scanner stopped, and the syntax that was expected at this position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) at: usize,
    pub(super) expected: &'static str,
}

/// Kind of a JSON value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shape {
    /// The text contains no value at the expected position.
    #[default]
    Missing,
    /// A string that contains no backslash. Start and end do not include the quotes.
    String,
    /// A string that contains a backslash. Start and end do not include the quotes.
    Escaped,
    /// A number, or an unquoted word such as `true`.
    Word,
    /// An object or an array. Start and end include the brackets.
    Nested,
}

/// Position and kind of a JSON value in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) shape: Shape,
}

impl Value {
    /// Returns the bytes of this value. For a string, returns the bytes between the quotes.
    #[inline(always)]
    pub(super) fn slice(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }

    #[inline(always)]
    fn new(start: usize, end: usize, shape: Shape) -> Self {
        Self { start: start as u32, end: end as u32, shape }
    }
}

/// Returns the text of a value. The returned text is empty if there is no value.
#[inline(always)]
pub(super) fn to_text(bytes: &[u8], value: Value) -> Text<'_> {
    match value.shape {
        Shape::Missing => Text::default(),
        Shape::Escaped => Text::json(value.slice(bytes), true),
        _ => Text::plain(value.slice(bytes)),
    }
}

/// Returns the position of the first byte at or after `at` that is not a blank.
///
/// This function and `word_end` advance in a loop with branches. The two functions do not compute the position from a
/// bit mask. The processor nearly always predicts the branches correctly, and continues with later instructions. With a
/// position from a bit mask, the processor would have to wait until the position is computed.
#[inline(always)]
pub(super) fn skip_blanks(bytes: &[u8], mut at: usize) -> usize {
    while bytes[at] <= b' ' {
        if !matches!(bytes[at], b' ' | b'\n' | b'\t' | b'\r') {
            return at;
        }
        at += 1;
        while bytes[at..].starts_with(b"    ") {
            at += 4;
        }
    }
    at
}

/// Skips the colon after a key. `at` is the position after the key's closing quote. Returns the position of the key's
/// value.
#[inline(always)]
pub(super) fn skip_colon(bytes: &[u8], at: usize) -> Result<usize, Stop> {
    // Check first for the spacing after the colon that nearly every writer uses.
    if bytes[at..].starts_with(b": ") && bytes[at + 2] > b' ' {
        return Ok(at + 2);
    }
    let at = skip_blanks(bytes, at);
    if bytes[at] != b':' {
        return Err(Stop { at, expected: "a `:`" });
    }
    Ok(skip_blanks(bytes, at + 1))
}

/// Finds the end of a string. `start` is the position after the opening quote. The end of the returned value is the
/// position of the closing quote.
#[inline(always)]
pub(super) fn read_string<L: InstructionSet>(bytes: &[u8], start: usize) -> Result<Value, Stop> {
    let (quotes, backslashes) = L::string(load_at(bytes, start));
    if quotes != 0 && backslashes & (quotes ^ (quotes - 1)) == 0 {
        return Ok(Value::new(start, start + quotes.trailing_zeros() as usize, Shape::String));
    }
    read_long_string::<L>(bytes, start)
}

#[inline(always)]
fn read_long_string<L: InstructionSet>(bytes: &[u8], start: usize) -> Result<Value, Stop> {
    let end = bytes.len() - PADDING;
    let (mut at, mut shape) = (start, Shape::String);
    let mut escape = Escape::default();
    while at < end {
        let block = L::block(load_at(bytes, at));
        let quotes = block.quotes & !escape.escaped(block.backslashes);
        let before = if quotes == 0 { u64::MAX } else { quotes ^ (quotes - 1) };
        if block.backslashes & before != 0 {
            shape = Shape::Escaped;
        }
        if quotes != 0 {
            return Ok(Value::new(start, at + quotes.trailing_zeros() as usize, shape));
        }
        at += 64;
    }
    Err(Stop { at: end, expected: "the end of a string" })
}

/// Returns the value that begins at `at`, and the position after the value.
#[inline(always)]
pub(super) fn read_value<L: InstructionSet>(bytes: &[u8], at: usize) -> Result<(Value, usize), Stop> {
    match bytes[at] {
        b'"' => {
            let value = read_string::<L>(bytes, at + 1)?;
            Ok((value, value.end as usize + 1))
        }
        b'{' | b'[' => {
            let end = nested_end::<L>(bytes, at)?;
            Ok((Value::new(at, end, Shape::Nested), end))
        }
        b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
            let end = word_end(bytes, at + 1);
            Ok((Value::new(at, end, Shape::Word), end))
        }
        _ => Err(Stop { at, expected: "a value" }),
    }
}

/// Returns the position at which a number or other word ends. `at` is a position inside the word.
#[inline(always)]
fn word_end(bytes: &[u8], mut at: usize) -> usize {
    // The function checks eight bytes in one step, because times have sixteen digits.
    while are_digits(*load_at(bytes, at)) {
        at += 8;
    }
    while bytes[at] != b',' && is_word(bytes[at]) {
        at += 1;
    }
    at
}

#[inline(always)]
fn is_word(byte: u8) -> bool {
    matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'#')
}

/// Returns the position after the bracket that closes the value opened at `start`. Only the number of open brackets is
/// stored, so the nesting depth is practically unlimited. The function does not check whether a `[` is closed by a `]`,
/// and a `{` by a `}`.
#[inline(always)]
fn nested_end<L: InstructionSet>(bytes: &[u8], start: usize) -> Result<usize, Stop> {
    let end = bytes.len() - PADDING;
    let (mut at, mut depth) = (start, 0_u32);
    let mut escape = Escape::default();
    let mut inside = 0_u64;
    while at < end {
        let block = L::block(load_at(bytes, at));
        let quotes = block.quotes & !escape.escaped(block.backslashes);
        let strings = L::prefix_xor(quotes) ^ inside;
        inside = ((strings as i64) >> 63) as u64;
        let opens = block.opens & !strings;
        let closes = block.closes & !strings;
        // The order of the brackets in this block matters only if the nesting depth can become zero in the block.
        if closes.count_ones() >= depth {
            let mut left = closes;
            let mut closed = 0;
            while left != 0 {
                let before = left ^ (left - 1);
                closed += 1;
                if depth + (opens & before).count_ones() == closed {
                    return Ok(at + left.trailing_zeros() as usize + 1);
                }
                left &= left - 1;
            }
        }
        depth = depth + opens.count_ones() - closes.count_ones();
        at += 64;
    }
    Err(Stop { at: end, expected: "a closing bracket" })
}

/// State of backslash escapes at the boundary between two blocks. A byte is escaped if the byte before it is a
/// backslash that is not itself escaped.
#[derive(Clone, Copy, Default)]
struct Escape {
    /// The value is 1 if the first byte of the next block is escaped, otherwise 0.
    next: u64,
}

impl Escape {
    #[inline(always)]
    fn escaped(&mut self, backslashes: u64) -> u64 {
        if backslashes == 0 {
            return std::mem::take(&mut self.next);
        }
        self.runs(backslashes)
    }

    /// Returns a mask of the escaped bytes in a block. The backslashes are examined one by one, because they are rare.
    fn runs(&mut self, backslashes: u64) -> u64 {
        let mut escaped = self.next;
        let mut left = backslashes & !escaped;
        self.next = 0;
        while left != 0 {
            let at = left.trailing_zeros();
            if at == 63 {
                self.next = 1;
                break;
            }
            escaped |= 1 << (at + 1);
            left &= !(3 << at);
        }
        escaped
    }
}

/// Returns `N` bytes that start at `at`. The returned bytes may include the padding after the text, but must not extend
/// beyond the padding.
#[inline(always)]
pub(super) fn load_at<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("padding")
}

#[cfg(test)]
mod tests {
    use super::super::mask::{Job, run_all};
    use super::*;

    #[derive(Clone)]
    struct Step<'a>(&'a [u8], usize);

    impl Job for Step<'_> {
        type Out = Result<(Value, usize), Stop>;
        #[inline(always)]
        fn run<L: InstructionSet>(self) -> Self::Out {
            read_value::<L>(self.0, self.1)
        }
    }

    /// Returns the results of the functions for each instruction set, at 70 offsets from a block boundary.
    fn all(text: &str) -> Vec<(Value, usize)> {
        let mut found = Vec::new();
        for shift in 0..70 {
            let mut bytes = vec![b' '; shift];
            bytes.extend_from_slice(text.as_bytes());
            bytes.extend_from_slice(&[0; PADDING]);
            for (level, value) in run_all(&Step(&bytes, shift)) {
                let (value, next) = value.unwrap_or_else(|stop| panic!("{level}, {shift}: {stop:?}"));
                found.push((
                    Value { start: value.start - shift as u32, end: value.end - shift as u32, ..value },
                    next - shift,
                ));
            }
        }
        found
    }

    #[test]
    fn a_string_ends_at_its_quote_whatever_the_number_of_backslashes_before_it() {
        for length in 0..140 {
            for backslashes in 0..6 {
                let inside = format!("{}{}", "x".repeat(length), "\\".repeat(backslashes));
                let text = format!("\"{inside}\"{}\", tail\"", if backslashes % 2 == 1 { "y" } else { "" });
                let end = 1 + inside.len() + if backslashes % 2 == 1 { 2 } else { 0 };
                for (value, next) in all(&text) {
                    assert_eq!((value.end as usize, next), (end, end + 1), "{text}");
                    assert_eq!(value.shape == Shape::Escaped, backslashes > 0, "{text}");
                }
            }
        }
    }

    #[test]
    fn a_nested_value_ends_where_its_bracket_closes() {
        let long = format!("{{\"k\": \"{}]}}\", \"l\": [[], {{}}]}}", "}".repeat(90));
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        for text in
            ["{}", "[]", r#"{"a": "}"}"#, r#"["\"]", {"x": [1, 2]}]"#, r#"{"\\": "\\\"}"}"#, &long, &deep]
        {
            for (value, next) in all(&format!("{text}, {{}}]")) {
                assert_eq!((value.end as usize, next, value.shape), (text.len(), text.len(), Shape::Nested));
            }
        }
    }

    #[test]
    fn a_truncated_value_stops_at_the_end() {
        for text in ["\"abc", "\"abc\\", "{\"a\": [1, 2]", "[\"]"] {
            let mut bytes = text.as_bytes().to_vec();
            bytes.extend_from_slice(&[0; PADDING]);
            for (level, value) in run_all(&Step(&bytes, 0)) {
                assert_eq!(value.map_err(|stop| stop.at), Err(text.len()), "{level}: {text}");
            }
        }
    }
}
