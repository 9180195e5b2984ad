//! Represents text as it is in a trace file: bytes that may contain escapes and may not be UTF-8. A text is decoded
//! only when it is needed, because most names in a trace are never needed.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// A text in a trace, which was not decoded yet.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Text<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> Text<'a> {
    /// Creates a text that contains no escapes.
    pub const fn plain(raw: &'a [u8]) -> Self {
        Self { raw, escaped: false }
    }

    /// Creates a text from the bytes between the quotes of a JSON string. If the bytes may contain a backslash,
    /// `escaped` must be true.
    pub fn json(raw: &'a [u8], escaped: bool) -> Self {
        Self { raw, escaped }
    }

    /// Returns the bytes as written in the file.
    pub fn raw(self) -> &'a [u8] {
        self.raw
    }

    /// Whether the text is empty.
    pub fn is_empty(self) -> bool {
        self.raw.is_empty()
    }

    /// Returns the decoded text. Each byte that is not UTF-8 is replaced by an escape such as `\xff`. Invalid escapes
    /// are left unchanged. So different names are still different after decoding. Control characters are left
    /// unchanged.
    pub fn decode(self) -> Cow<'a, str> {
        if self.escaped && self.raw.contains(&b'\\') {
            Cow::Owned(unescape(self.raw))
        } else {
            decode_bytes(self.raw)
        }
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self::plain(text.as_bytes())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.decode().fmt(f)
    }
}

fn unescape(raw: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|&byte| byte == b'\\') {
        bytes.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let Some((&letter, after)) = rest.split_first() else {
            bytes.push(b'\\');
            break;
        };
        rest = after;
        let decoded = match letter {
            b'n' => Some('\n'),
            b't' => Some('\t'),
            b'r' => Some('\r'),
            b'b' => Some('\u{8}'),
            b'f' => Some('\u{c}'),
            b'"' | b'\\' | b'/' => Some(char::from(letter)),
            b'u' => decode_unicode(&mut rest),
            _ => None,
        };
        match decoded {
            Some(letter) => push_char(&mut bytes, letter),
            None => bytes.extend_from_slice(&[b'\\', letter]),
        }
    }
    bytes.extend_from_slice(rest);
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => decode_bytes(error.as_bytes()).into_owned(),
    }
}

/// Decodes bytes as UTF-8. Each byte that is not part of a valid character is replaced by an escape such as `\xff`.
fn decode_bytes(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // The result is ignored, because writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text.into()
}

/// Decodes the character that follows `\u`. A pair of UTF-16 surrogates requires a second `\u`. If the digits are
/// invalid, returns `None` and leaves `rest` unchanged.
fn decode_unicode(rest: &mut &[u8]) -> Option<char> {
    let first = parse_hex4(rest)?;
    let after = &rest[4..];
    if let 0xd800..0xdc00 = first
        && let Some(low) = after.strip_prefix(b"\\u").and_then(parse_hex4)
        && let 0xdc00..0xe000 = low
    {
        *rest = &after[6..];
        return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00));
    }
    let letter = char::from_u32(first)?;
    *rest = after;
    Some(letter)
}

fn parse_hex4(bytes: &[u8]) -> Option<u32> {
    bytes.get(..4)?.iter().try_fold(0, |code, &digit| Some(code << 4 | char::from(digit).to_digit(16)?))
}

fn push_char(bytes: &mut Vec<u8>, letter: char) {
    bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(raw: &str) -> String {
        Text::json(raw.as_bytes(), true).decode().into_owned()
    }

    #[test]
    fn escapes_are_decoded_as_json_defines_them() {
        for (raw, expected) in [
            (r"plain", "plain"),
            (r#"a\"b\\c\/d"#, "a\"b\\c/d"),
            (r"\b\f\n\r\t", "\u{8}\u{c}\n\r\t"),
            (r"\u00e9t\u00E9", "été"),
            (r"\ud83d\ude00!", "😀!"),
            (r"x\u0000y", "x\0y"),
            ("déjà", "déjà"),
        ] {
            assert_eq!(decoded(raw), expected, "{raw}");
        }
    }

    #[test]
    fn invalid_escapes_and_bytes_stay_different() {
        for text in [r"a\qb", r"a\ud83dx", r"a\u12", "a\\"] {
            assert_eq!(decoded(text), text);
        }
        assert_eq!(decoded("a\nb"), "a\nb");
        assert_eq!(Text::plain(b"a\xff\xe9b").decode(), r"a\xff\xe9b");
        assert_eq!(Text::json(b"\\n\xff", true).decode(), "\n\\xff");
    }
}
