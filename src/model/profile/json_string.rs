//! Encodes JSON strings. This module is written by hand, because no other code of the shared library needs a JSON
//! library.

use std::fmt::Write;

/// Encodes `text` as a JSON string, with terminal controls and bidirectional marks escaped. A JSON parser restores the
/// text exactly.
pub fn json_string(text: &str) -> String {
    let mut json_string = String::with_capacity(text.len() + 2);
    json_string.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => json_string.extend(['\\', letter]),
            letter if letter.is_control() || is_bidi_control(letter) => {
                let _ = write!(json_string, "\\u{:04x}", letter as u32);
            }
            letter => json_string.push(letter),
        }
    }
    json_string.push('"');
    json_string
}

/// Whether the character is a bidirectional control character. A bidirectional control character can reverse the order
/// in which the following text is displayed.
pub fn is_bidi_control(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::json_string;

    #[test]
    fn quoted_text_survives_a_json_round_trip() {
        for text in [
            "",
            "gemm<float, 128>",
            "a\"b\\c",
            "\u{0}\n\t\u{7f}\u{85}\u{9f}",
            "\u{2028}é😀",
            "\\u0041",
            "a\u{202e}b\u{61c}\u{2069}",
        ] {
            assert_eq!(serde_json::from_str::<String>(&json_string(text)).unwrap(), text);
        }
    }

    #[test]
    fn control_and_bidirectional_characters_are_escaped() {
        assert_eq!(json_string("\x1b[31m\u{202e}b\u{61c}\u{2069}"), r#""\u001b[31m\u202eb\u061c\u2069""#);
    }
}
