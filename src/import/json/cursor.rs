//! Steps over JSON: blanks, strings, numbers and whole values, each from one position to the next.
//!
//! The bytes end in [`PADDING`] zeros, which are no part of the trace: whoever meets one where none belongs
//! stops there, and the caller knows whether more is to come. Values that nobody looks at are only stepped
//! over, so what is wrong inside of them is not found.

use super::buffer::PADDING;
use super::mask::Level;

/// Where the scanner cannot go on, and what it hoped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) at: usize,
    pub(super) wanted: &'static str,
}

/// What kind of value stands somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shape {
    /// There is none.
    #[default]
    Missing,
    /// The inside of a string.
    String,
    /// The inside of a string with a backslash in it.
    Escaped,
    /// A number, or another word without quotes.
    Word,
    /// An object or an array, with its brackets.
    Nested,
}

/// A value's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) shape: Shape,
}

impl Value {
    /// Its bytes: of a string, what stands between the quotes.
    #[inline(always)]
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }

    #[inline(always)]
    fn new(start: usize, end: usize, shape: Shape) -> Self {
        Self { start: start as u32, end: end as u32, shape }
    }
}

/// The first byte from `at` on that is no blank.
///
/// Here, and where words end, it is the branches that step on: what they find is nearly always what they found
/// before, so the processor runs ahead of them, where it would wait for a position that is counted from a mask.
#[inline(always)]
pub(super) fn blanks(bytes: &[u8], mut at: usize) -> usize {
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

/// From behind a key's closing quote to its value.
#[inline(always)]
pub(super) fn colon(bytes: &[u8], at: usize) -> Result<usize, Stop> {
    // As nearly everybody writes it.
    if bytes[at..].starts_with(b": ") && bytes[at + 2] > b' ' {
        return Ok(at + 2);
    }
    let at = blanks(bytes, at);
    if bytes[at] != b':' {
        return Err(Stop { at, wanted: "a `:`" });
    }
    Ok(blanks(bytes, at + 1))
}

/// The string whose inside begins at `start`; its closing quote stands at the value's end.
#[inline(always)]
pub(super) fn string<L: Level>(bytes: &[u8], start: usize) -> Result<Value, Stop> {
    let (quotes, backslashes) = L::string(window(bytes, start));
    if quotes != 0 && backslashes & (quotes ^ (quotes - 1)) == 0 {
        return Ok(Value::new(start, start + quotes.trailing_zeros() as usize, Shape::String));
    }
    long_string::<L>(bytes, start)
}

#[inline(always)]
fn long_string<L: Level>(bytes: &[u8], start: usize) -> Result<Value, Stop> {
    let end = bytes.len() - PADDING;
    let (mut at, mut shape) = (start, Shape::String);
    let mut escape = Escape::default();
    while at < end {
        let block = L::block(window(bytes, at));
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
    Err(Stop { at: end, wanted: "the end of a string" })
}

/// The value that begins at `at`, and the position behind it.
#[inline(always)]
pub(super) fn value<L: Level>(bytes: &[u8], at: usize) -> Result<(Value, usize), Stop> {
    match bytes[at] {
        b'"' => {
            let value = string::<L>(bytes, at + 1)?;
            Ok((value, value.end as usize + 1))
        }
        b'{' | b'[' => {
            let end = nested::<L>(bytes, at)?;
            Ok((Value::new(at, end, Shape::Nested), end))
        }
        b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
            let end = word(bytes, at + 1);
            Ok((Value::new(at, end, Shape::Word), end))
        }
        _ => Err(Stop { at, wanted: "a value" }),
    }
}

/// The end of a number or another word that goes on at `at`.
#[inline(always)]
fn word(bytes: &[u8], mut at: usize) -> usize {
    // Times have sixteen digits.
    while are_digits(*window(bytes, at)) {
        at += 8;
    }
    while bytes[at] != b',' && is_word(bytes[at]) {
        at += 1;
    }
    at
}

/// Whether eight bytes are eight digits.
#[inline(always)]
fn are_digits(bytes: [u8; 8]) -> bool {
    let bytes = u64::from_le_bytes(bytes);
    let high = bytes & 0xf0f0_f0f0_f0f0_f0f0;
    // A digit is 0x30 to 0x39, and is so with 6 added to it.
    let low = bytes.wrapping_add(0x0606_0606_0606_0606) & 0xf0f0_f0f0_f0f0_f0f0;
    high == 0x3030_3030_3030_3030 && low == high
}

#[inline(always)]
fn is_word(byte: u8) -> bool {
    matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'#')
}

/// The position behind the closing bracket of the value that opens at `at`. However deep it is nested, this
/// is one number; whether `[` is closed by `]` nobody asks.
#[inline(always)]
fn nested<L: Level>(bytes: &[u8], start: usize) -> Result<usize, Stop> {
    let end = bytes.len() - PADDING;
    let (mut at, mut depth) = (start, 0_u32);
    let mut escape = Escape::default();
    let mut inside = 0_u64;
    while at < end {
        let block = L::block(window(bytes, at));
        let quotes = block.quotes & !escape.escaped(block.backslashes);
        let strings = L::prefix_xor(quotes) ^ inside;
        inside = ((strings as i64) >> 63) as u64;
        let opens = block.opens & !strings;
        let closes = block.closes & !strings;
        // Only where the depth can get to zero does the order of brackets matter.
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
    Err(Stop { at: end, wanted: "a closing bracket" })
}

/// Which bytes follow a backslash that is not itself escaped, from block to block.
#[derive(Clone, Copy, Default)]
struct Escape {
    /// Whether the first byte of the next block is escaped.
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

    /// Walks from backslash to backslash: they are rare.
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

#[inline(always)]
fn window<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
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
        fn run<L: Level>(self) -> Self::Out {
            value::<L>(self.0, self.1)
        }
    }

    /// The value at each level's hands, from each of 70 alignments to the blocks.
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
    fn a_string_ends_at_its_quote_however_many_backslashes_stand_before_it() {
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
    fn what_is_cut_short_stops_at_the_end() {
        for text in ["\"abc", "\"abc\\", "{\"a\": [1, 2]", "[\"]"] {
            let mut bytes = text.as_bytes().to_vec();
            bytes.extend_from_slice(&[0; PADDING]);
            for (level, value) in run_all(&Step(&bytes, 0)) {
                assert_eq!(value.map_err(|stop| stop.at), Err(text.len()), "{level}: {text}");
            }
        }
    }
}
