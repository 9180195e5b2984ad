//! Reads a new code object by copying it through the kernel, and writes the object's description.

use super::code_texts::CodeTexts;
use super::description::{Description, HEAD, MAX_BYTES};
use super::{CachedCode, CodeFingerprint, MAX_LINE_TABLE_BYTES, MAX_TEXT_CHARS};
use crate::python::interpreter::Types;
use crate::python::layout::{self, Layout};
use crate::python::pages::copy_into;

/// Buffer for the description of one code object.
#[derive(Debug)]
#[repr(C)]
pub(in crate::python) struct Scratch {
    bytes: [u8; MAX_BYTES],
}

impl Scratch {
    /// Allocates a buffer on the heap. Call this function only on gpuflame's own threads.
    pub(in crate::python) fn allocate() -> Box<Self> {
        // SAFETY: zeroes are valid bytes.
        unsafe { Box::new_zeroed().assume_init() }
    }
}

/// Writes the description of one code object into a buffer.
struct DescriptionWriter<'a> {
    bytes: &'a mut [u8; MAX_BYTES],
    at: usize,
}

/// The parts of a code object, copied from the object's memory. The parts are the addresses of the object's texts (0 if
/// a text is missing), and the object's numbers, such as its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::python) struct CodeParts {
    name: u64,
    file: u64,
    lines: u64,
    first_line: u32,
    version: u32,
    /// See [`CachedCode::traceable`].
    pub(in crate::python) traceable: u32,
    /// Size of the instructions in bytes, if the instructions are inside the object.
    pub(in crate::python) instruction_bytes: u32,
}

/// Copies the parts of the code object at `code`, without checking the types of its texts. Returns `None` if the
/// memory at this address does not contain a code object.
pub(in crate::python) fn copy_parts(code: u64, layout: &Layout, types: &Types) -> Option<CodeParts> {
    let mut copied = [0; layout::MAX_CODE_BYTES];
    let object = copied.get_mut(..layout.code.bytes as usize)?;
    if !copy_into(code, object) || word(object, layout::TYPE)? != types.code {
        return None;
    }
    let at = |offset: u32| word(object, offset.into());
    let optional = |offset: u32| if offset == 0 { Some(0) } else { Some(at(offset)? as u32) };
    Some(CodeParts {
        name: at(layout.code.name)?,
        file: at(layout.code.file)?,
        lines: at(layout.code.lines)?,
        first_line: at(layout.code.first_line)? as u32,
        version: optional(layout.code.version)?,
        // The number at this offset is a count of instructions, which take two bytes each.
        traceable: optional(layout.code.traceable)?.wrapping_mul(2),
        instruction_bytes: (word(object, layout::LENGTH)? as u32).wrapping_mul(2),
    })
}

impl CodeParts {
    /// Computes a hash that distinguishes code objects. The hash covers all fields of `CodeParts` except the size of
    /// the instructions. If the code object has no version number, the hash also covers the beginnings of its name and
    /// path and the length of its line table. All memory is read through the kernel, so the object may already be
    /// freed.
    pub(in crate::python) fn hash(&self) -> u64 {
        let Self { name, file, lines, first_line, version, traceable, .. } = *self;
        let numbers = [name, file, lines, u64::from(first_line) << 32 | u64::from(version), traceable.into()];
        let and = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let mut hash = numbers.into_iter().fold(0, and);
        if version == 0 {
            for (object, bytes) in [(name, 64), (file, 64), (lines, 24)] {
                let mut head = [0; 64];
                // Skip the first two words of the object, which are its reference count and its type. If some of the
                // `bytes` bytes are unreadable, use only 40 bytes, because the shortest string has 41 bytes.
                let is_copied = copy_into(object, &mut head[..bytes]) || copy_into(object, &mut head[..40]);
                let (words, _) = head[16..].as_chunks::<8>();
                hash = words
                    .iter()
                    .fold(and(hash, is_copied.into()), |hash, word| and(hash, u64::from_ne_bytes(*word)));
            }
        }
        hash
    }

    /// Writes the description of the code object. All memory is read through the kernel. If a part is missing or has
    /// an unexpected type, its address is set to 0.
    pub(in crate::python) fn describe<'a>(
        &mut self,
        layout: &Layout,
        types: &Types,
        scratch: &'a mut Scratch,
    ) -> Description<'a> {
        let mut out = DescriptionWriter { bytes: &mut scratch.bytes, at: HEAD };
        // A program may replace a part by an object of another type. A part that has an unexpected type or is
        // unreadable is treated as missing.
        let Self { name, file, lines, first_line, .. } = *self;
        self.file = if is_of(file, types.text) && out.text(file, layout) { file } else { out.unknown() };
        let file_length = out.at - HEAD;
        self.name = if is_of(name, types.text) && out.text(name, layout) { name } else { out.unknown() };
        let name_length = out.at - HEAD - file_length;
        self.lines = if is_of(lines, types.bytes) && out.lines(lines) { lines } else { 0 };
        let DescriptionWriter { bytes, at } = out;
        let head = [u32::from(layout.version), first_line, file_length as u32, name_length as u32];
        for (place, number) in bytes.chunks_exact_mut(4).zip(head) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        Description(&bytes[..at])
    }
}

/// Reads the code object at `code`. Returns `None` if the memory at this address does not contain a code object.
pub(in crate::python) fn read<'a>(
    code: u64,
    layout: &Layout,
    types: &Types,
    scratch: &'a mut Scratch,
    texts: &mut CodeTexts,
) -> Option<(CachedCode, Description<'a>)> {
    let mut parts = copy_parts(code, layout, types)?;
    let description = parts.describe(layout, types, scratch);
    let CodeParts { name, file, lines, first_line, version, traceable, .. } = parts;
    let fingerprint = match version {
        // SAFETY: each part is null, or an object that was just read and has the part's type.
        0 => unsafe { CodeFingerprint::new((name, file, lines), first_line, layout, texts) },
        _ => {
            CodeFingerprint { name, file, lines, first_line: first_line.into(), ..CodeFingerprint::default() }
        }
    };
    let cached = CachedCode { code, fingerprint, version, number: 0, traceable };
    Some((cached, description))
}

/// Whether the object at the address `object` has exactly the type `kind`.
fn is_of(object: u64, kind: u64) -> bool {
    let mut head = [0; 40];
    copy_into(object, &mut head) && word(&head, layout::TYPE) == Some(kind)
}

fn word(bytes: &[u8], at: u64) -> Option<u64> {
    bytes.get(at as usize..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

/// Converts the beginning of a string to UTF-8, and passes it to `each` piece by piece. Returns `None` if the string
/// is unreadable.
fn letters(text: u64, layout: &Layout, mut each: impl FnMut(&[u8])) -> Option<()> {
    let mut head = [0; 40];
    if !copy_into(text, &mut head) {
        return None;
    }
    let state = word(&head, layout::STATE)? as u32;
    let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 != 0, state >> 6 & 1 != 0);
    let count = (word(&head, layout::LENGTH)? as usize).min(MAX_TEXT_CHARS);
    if !is_compact || !matches!(kind, 1 | 2 | 4) {
        return None;
    }
    let (kind, start) = (kind as usize, if is_ascii { layout.text.ascii } else { layout.text.wide });
    let mut from = text + u64::from(start);
    let mut left = count * kind;
    let mut piece = [0; 256];
    while left > 0 {
        let piece = &mut piece[..left.min(256)];
        if !copy_into(from, piece) {
            return None;
        }
        for letter in piece.chunks_exact(kind) {
            let letter = letter.iter().rev().fold(0, |letter, byte| letter << 8 | u32::from(*byte));
            // Lone surrogates in a path represent the bytes of the path that are not UTF-8.
            let letter = char::from_u32(letter).unwrap_or(char::REPLACEMENT_CHARACTER);
            each(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
        from += piece.len() as u64;
        left -= piece.len();
    }
    Some(())
}

impl DescriptionWriter<'_> {
    fn push(&mut self, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }

    /// Appends the beginning of a string as UTF-8. Returns false, and appends nothing, if the string is unreadable.
    fn text(&mut self, text: u64, layout: &Layout) -> bool {
        let begin = self.at;
        let is_read = letters(text, layout, |letters| self.push(letters)).is_some();
        self.at = if is_read { self.at } else { begin };
        is_read
    }

    /// Appends a question mark in place of a missing part.
    fn unknown(&mut self) -> u64 {
        self.push(b"?");
        0
    }

    /// Appends a line table, unless it is too long. Returns false if the line table is unreadable.
    fn lines(&mut self, lines: u64) -> bool {
        let mut head = [0; 24];
        let length = copy_into(lines, &mut head).then(|| word(&head, layout::LENGTH)).flatten();
        let Some(length) = length.map(|length| length as usize) else { return false };
        if length > MAX_LINE_TABLE_BYTES {
            return copy_into(lines + layout::BYTES + MAX_LINE_TABLE_BYTES as u64, &mut [0; 8]);
        }
        let place = self.bytes.get_mut(self.at..self.at + length);
        let is_read = place.is_some_and(|place| copy_into(lines + layout::BYTES, place));
        self.at += if is_read { length } else { 0 };
        is_read
    }
}

#[cfg(test)]
mod tests {
    use super::super::NEVER_MATCHES;
    use super::*;
    use crate::memory;

    #[test]
    fn memory_that_is_not_a_code_object_is_rejected() {
        let types = Types { code: 77, text: 78, bytes: 79, frame: 80 };
        let layout = Layout::for_version(0x030b_0000, &[0; layout::TABLE_BYTES]).unwrap();
        let memory = memory::map(size_of::<Scratch>()).unwrap();
        // SAFETY: the mapping has room for a `Scratch`, and zeroes are a valid value.
        let scratch = unsafe { memory.cast::<Scratch>().as_mut() };
        let mut texts = CodeTexts::for_test();
        let words = [1u64; 64];
        for address in [0, 8, words.as_ptr() as u64, 1 << 46, u64::MAX - 7] {
            assert!(read(address, &layout, &types, scratch, &mut texts).is_none(), "{address:x}");
        }
        let mut object = [0u64; 64];
        object[1] = 77;
        object[9] = 5;
        let (cached, description) =
            read(object.as_ptr() as u64, &layout, &types, scratch, &mut texts).unwrap();
        let parts = description.parts().unwrap();
        assert_eq!(
            (cached.fingerprint.length, parts.first_line, parts.file, parts.name),
            (NEVER_MATCHES, 5, &b"?"[..], &b"?"[..])
        );
    }
}
