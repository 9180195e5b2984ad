//! Finds the first invalid position in a JSON text that seems to end too early. The scanner skips values by counting
//! brackets and quotes, without parsing them. So if a bracket or quote is missing in the middle of the file, the
//! scanner detects the error only at the end of the file. With this module, a second pass over the text finds the real
//! position of the error.

/// Finds the first byte in `text` that is invalid at its position. Returns this position, and the syntax that was
/// expected at it. `text` must begin with a value or with a key of an object. Returns `None` if `text` contains no
/// invalid byte.
pub(super) fn find_first_damage(text: &[u8]) -> Option<(usize, &'static str)> {
    let mut at = skip_blanks(text, 0);
    // One entry per object or array that is not closed yet: true for an object, false for an array.
    let mut open: Vec<bool> = Vec::new();
    let mut next = Next::Value;
    if text.get(at) == Some(&b'"') {
        open.push(true);
        next = Next::Key;
    }
    loop {
        at = skip_blanks(text, at);
        let byte = *text.get(at)?;
        match (next, byte) {
            (Next::Key, b'"') => {
                at = string_end(text, at)?.ok()?;
                next = Next::Colon;
            }
            (Next::Colon, b':') => (at, next) = (at + 1, Next::Value),
            (Next::Value, b'{') => {
                open.push(true);
                (at, next) = (at + 1, Next::KeyOrEnd);
            }
            (Next::Value, b'[') => {
                open.push(false);
                (at, next) = (at + 1, Next::ValueOrEnd);
            }
            (Next::KeyOrEnd, b'"') => next = Next::Key,
            (Next::KeyOrEnd | Next::CommaOrEnd, b'}') if open.last() == Some(&true) => {
                open.pop();
                (at, next) = (at + 1, Next::CommaOrEnd);
            }
            (Next::ValueOrEnd | Next::CommaOrEnd, b']') if open.last() == Some(&false) => {
                open.pop();
                (at, next) = (at + 1, Next::CommaOrEnd);
            }
            (Next::ValueOrEnd, _) => next = Next::Value,
            (Next::Value, b'"') => match string_end(text, at)? {
                Ok(behind) => (at, next) = (behind, Next::CommaOrEnd),
                Err(broken) => return Some((broken, "the end of a string")),
            },
            (Next::Value, b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {
                let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(*byte);
                at += text[at..].iter().take_while(is_word).count();
                next = Next::CommaOrEnd;
            }
            (Next::CommaOrEnd, b',') => {
                at += 1;
                next = if open.last() == Some(&true) { Next::Key } else { Next::Value };
            }
            _ => return Some((at, next.description())),
        }
        if open.is_empty() && next == Next::CommaOrEnd {
            return None;
        }
    }
}

/// The syntax elements that are allowed at the current position.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
}

impl Next {
    fn description(self) -> &'static str {
        match self {
            Self::Value | Self::ValueOrEnd => "a value",
            Self::Key => "a key",
            Self::KeyOrEnd => "a key or a `}`",
            Self::Colon => "a `:`",
            Self::CommaOrEnd => "a `,` or the end of the open value",
        }
    }
}

fn skip_blanks(text: &[u8], at: usize) -> usize {
    at + text[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r')).count()
}

/// Returns the position after the string that begins at `at`. JSON does not allow line breaks in strings. If the string
/// contains a line break, returns the position of the line break as an error. Returns `None` if the text ends inside
/// the string.
fn string_end(text: &[u8], at: usize) -> Option<Result<usize, usize>> {
    let mut at_byte = at + 1;
    loop {
        match *text.get(at_byte)? {
            b'"' => return Some(Ok(at_byte + 1)),
            b'\n' => return Some(Err(at_byte)),
            b'\\' => at_byte += 2,
            _ => at_byte += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_invalid_byte_is_found() {
        for (text, found) in [
            (r#"{"a": {"b": 1, {"ph": "X"}"#, Some((15, "a key"))),
            (r#"{"a": [1, 2, "x", {"b": 3}, {"c": tr"#, None),
            (r#"{"a": 1 "b": 2}"#, Some((8, "a `,` or the end of the open value"))),
            (r#"{"a" 1}"#, Some((5, "a `:`"))),
            (r#"{"a": [1, 2}"#, Some((11, "a `,` or the end of the open value"))),
            ("{\"a\": \"open, \n\"b\": 1}", Some((13, "the end of a string"))),
            (r#""key": {"a": , 1}"#, Some((13, "a value"))),
            (r#"{"a": {}, "b": [], "c": "\"" }, {"#, None),
            ("", None),
        ] {
            assert_eq!(find_first_damage(text.as_bytes()), found, "{text}");
        }
    }
}
