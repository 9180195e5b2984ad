//! Copies JSON text that other tools wrote, and changes it so that every JSON reader accepts it. Words that are not
//! valid JSON, for example `nan` and `-inf`, become strings. Control characters in strings are replaced by escapes.

use gpuflame_model::profile::is_bidi_control;

/// Returns `text` as strictly valid JSON.
pub(super) fn strict(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    put_strict(&mut out, text.as_bytes());
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends `text` as strictly valid JSON.
pub(super) fn put_strict(out: &mut Vec<u8>, text: &[u8]) {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let rest = &text[at..];
        let length = match byte {
            b'"' => string_length(rest),
            byte if is_in_word(byte) => rest.iter().take_while(|byte| is_in_word(byte)).count(),
            _ => 1,
        };
        let part = &rest[..length];
        match byte {
            b'"' => put_string(out, part),
            byte if is_in_word(byte) && !is_json_word(part) => {
                out.push(b'"');
                out.extend_from_slice(part);
                out.push(b'"');
            }
            _ => out.extend_from_slice(part),
        }
        at += length;
    }
}

/// Appends JSON text. Characters that control a terminal, and bytes that are not UTF-8, are written as escapes. JSON
/// allows escapes only in strings. Escapes are sufficient, because characters that need an escape occur only in
/// strings.
pub(super) fn put_printable(out: &mut Vec<u8>, text: &[u8]) {
    if text.iter().all(|byte| matches!(byte, b'\n' | b'\t' | b'\r' | b' '..=b'~')) {
        out.extend_from_slice(text);
        return;
    }
    for chunk in text.utf8_chunks() {
        for letter in chunk.valid().chars() {
            let is_blank = matches!(letter, '\n' | '\t' | '\r');
            let ends_a_line = matches!(letter, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}');
            if ends_a_line || is_bidi_control(letter) || letter.is_control() && !is_blank {
                out.extend_from_slice(format!("\\u{:04x}", letter as u32).as_bytes());
            } else {
                out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        for byte in chunk.invalid() {
            out.extend_from_slice(format!("\\\\x{byte:02x}").as_bytes());
        }
    }
}

fn is_in_word(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_')
}

/// Returns the length in bytes of the string at the beginning of `text`, including its quotes.
fn string_length(text: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = text.iter().skip(1).position(|byte| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    let mut from = 0;
    for (at, byte) in text.iter().enumerate().filter(|(_, byte)| **byte < b' ') {
        put_printable(out, &text[from..at]);
        out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
        from = at + 1;
    }
    put_printable(out, &text[from..]);
}

fn is_json_word(word: &[u8]) -> bool {
    let Ok(word) = std::str::from_utf8(word) else { return false };
    matches!(word, "true" | "false" | "null") || is_number(word.strip_prefix('-').unwrap_or(word))
}

fn is_number(word: &str) -> bool {
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = split(word, ['e', 'E']);
    let (whole, fraction) = split(mantissa, ['.', '.']);
    are_digits(whole)
        && (whole.len() == 1 || !whole.starts_with('0'))
        && fraction.is_none_or(are_digits)
        && exponent.is_none_or(|power| are_digits(power.strip_prefix(['+', '-']).unwrap_or(power)))
}

fn split(text: &str, at: [char; 2]) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_and_the_rest_becomes_strings_and_escapes() {
        for text in [r#"[1, -2.5e-3, "a\"nan", true, null, {"inf": 0}, [], 1E5, ""]"#, "\"é\\\\\"", "17"] {
            assert_eq!(strict(text), text);
        }
        for (text, expected) in [
            (
                "[nan, -inf, NaN,-Infinity, +1, 007, 1.]",
                r#"["nan", "-inf", "NaN","-Infinity", "+1", "007", "1."]"#,
            ),
            ("{\"a\x1b[1m\": \"b\tc\n\"}", r#"{"a\u001b[1m": "b\u0009c\u000a"}"#),
            ("[\"\\\\\", nan]", r#"["\\", "nan"]"#),
        ] {
            assert_eq!(strict(text), expected);
        }
    }
}
