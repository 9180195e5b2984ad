//! Encodes and decodes the description of a code object: version, first line, file, name and line table.

use super::{MAX_LINE_TABLE_BYTES, MAX_TEXT_CHARS};

/// The description of a code object, as bytes. If two code objects of a process have equal descriptions, they are
/// treated as one code object.
///
/// ```text
/// version:u16 0:u16 first_line:u32 file_length:u32 name_length:u32 file name lines
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description<'a>(pub &'a [u8]);

pub(super) const HEAD: usize = 16;
/// Maximum size of a description in bytes. Each letter of the path and of the name takes at most four bytes in UTF-8.
pub(super) const MAX_BYTES: usize = HEAD + 2 * 4 * MAX_TEXT_CHARS + MAX_LINE_TABLE_BYTES;

/// The parts of a [`Description`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    pub version: u16,
    pub first_line: u32,
    pub file: &'a [u8],
    pub name: &'a [u8],
    pub lines: &'a [u8],
}

impl<'a> Description<'a> {
    /// Splits the description into its parts. Returns `None` if the description is malformed.
    pub fn parts(self) -> Option<Parts<'a>> {
        let (head, rest) = self.0.split_at_checked(HEAD)?;
        let number = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (file, rest) = rest.split_at_checked(number(8) as usize)?;
        let (name, lines) = rest.split_at_checked(number(12) as usize)?;
        Some(Parts { version: number(0) as u16, first_line: number(4), file, name, lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_description_is_parsed_and_a_truncated_one_rejected() {
        let mut bytes = Vec::new();
        for number in [0x030b, 12, 4, 3] {
            bytes.extend(u32::to_ne_bytes(number));
        }
        bytes.extend(b"a.pyrun\x80\x01");
        let parts = Parts { version: 0x030b, first_line: 12, file: b"a.py", name: b"run", lines: &[0x80, 1] };
        assert_eq!(Description(&bytes).parts(), Some(parts));
        assert_eq!(Description(&bytes[..20]).parts(), None);
        assert_eq!(Description(&bytes[..8]).parts(), None);
    }
}
