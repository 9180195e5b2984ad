//! Where JSON that does not end well stops making sense: what is stepped over by its brackets and quotes is not looked into,
//! so that a bracket or a quote that is missing in mid-file is met at the end of it. There this looks at it once more.

/// The first byte of `text`, which begins with a value or with a key of an object, that cannot stand there, and what could.
/// `None`: what there is of it is sound.
pub(super) fn first(text: &[u8]) -> Option<(usize, &'static str)> {
    let mut at = blanks(text, 0);
    // Of each value that is open, whether it is an object.
    let mut open: Vec<bool> = Vec::new();
    let mut next = Next::Value;
    if text.get(at) == Some(&b'"') {
        open.push(true);
        next = Next::Key;
    }
    loop {
        at = blanks(text, at);
        let byte = *text.get(at)?;
        match (next, byte) {
            (Next::Key, b'"') => {
                at = string(text, at)?.ok()?;
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
            (Next::Value, b'"') => match string(text, at)? {
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
            _ => return Some((at, next.words())),
        }
        if open.is_empty() && next == Next::CommaOrEnd {
            return None;
        }
    }
}

/// What may come next.
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
    fn words(self) -> &'static str {
        match self {
            Self::Value | Self::ValueOrEnd => "a value",
            Self::Key => "a key",
            Self::KeyOrEnd => "a key or a `}`",
            Self::Colon => "a `:`",
            Self::CommaOrEnd => "a `,` or the end of what is open",
        }
    }
}

fn blanks(text: &[u8], at: usize) -> usize {
    at + text[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r')).count()
}

/// The position behind the string that begins at `at`, or that of the line's end in it, which no string may have; `None`
/// where the text ends in it.
fn string(text: &[u8], at: usize) -> Option<Result<usize, usize>> {
    let mut place = at + 1;
    loop {
        match *text.get(place)? {
            b'"' => return Some(Ok(place + 1)),
            b'\n' => return Some(Err(place)),
            b'\\' => place += 2,
            _ => place += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_that_cannot_stand_there_is_told() {
        for (text, found) in [
            (r#"{"a": {"b": 1, {"ph": "X"}"#, Some((15, "a key"))),
            (r#"{"a": [1, 2, "x", {"b": 3}, {"c": tr"#, None),
            (r#"{"a": 1 "b": 2}"#, Some((8, "a `,` or the end of what is open"))),
            (r#"{"a" 1}"#, Some((5, "a `:`"))),
            (r#"{"a": [1, 2}"#, Some((11, "a `,` or the end of what is open"))),
            ("{\"a\": \"open, \n\"b\": 1}", Some((13, "the end of a string"))),
            (r#""key": {"a": , 1}"#, Some((13, "a value"))),
            (r#"{"a": {}, "b": [], "c": "\"" }, {"#, None),
            ("", None),
        ] {
            assert_eq!(first(text.as_bytes()), found, "{text}");
        }
    }
}
