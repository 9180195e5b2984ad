//! Texts of a profile as JSON has them: the shared library has no other use for a library of it.

use std::fmt::Write;

/// `text` as a JSON string.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => drop(write!(quoted, "\\u{:04x}", letter as u32)),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use super::quoted;

    #[test]
    fn any_text_is_what_it_was_when_it_is_read_again() {
        for text in
            ["", "gemm<float, 128>", "a\"b\\c", "\u{0}\n\t\u{7f}\u{85}\u{9f}", "\u{2028}é😀", "\\u0041"]
        {
            assert_eq!(serde_json::from_str::<String>(&quoted(text)).unwrap(), text);
        }
    }
}
