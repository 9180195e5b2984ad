//! Finds the cold part of a function: rarely executed code that the compiler has moved away from the rest of the
//! function.
//!
//! No symbol table that is loaded into memory contains the cold part (`f.cold` is a local symbol), but the cold part
//! has its own unwind information. A piece of code counts as the cold part if the function branches to the start of
//! the piece, and the piece branches back into the middle of the function. The branches are found by searching the
//! bytes for branch opcodes, without decoding the instructions. Searching the bytes works because nearly all byte
//! sequences that only look like a branch have a target outside all code.

use std::ops::Range;

use super::compile_eh_frame::function;
use crate::loader::Object;

/// Maximum number of branch targets that are examined per function. Real functions have one or two cold parts, and
/// contain few byte sequences that only look like branches.
const MAX_CANDIDATES: usize = 16;

/// Returns the cold part of the function `hot`. Call this function while the loader's lock is held.
pub(crate) fn cold_part(object: &Object, hot: &Range<u64>) -> Option<Range<u64>> {
    let mut candidates: [(Range<u64>, u32); MAX_CANDIDATES] = std::array::from_fn(|_| (0..0, 0));
    for target in branches(object, hot)?.filter(|(target, _)| !hot.contains(target)) {
        // Skip unconditional jumps, because an unconditional jump may be a tail call to another function.
        let (target, true) = target else { continue };
        let Some(part) = function(object, target).filter(|part| !overlap(part, hot)) else { continue };
        let candidate = candidates.iter_mut().find(|(known, count)| *known == part || *count == 0);
        if let Some((known, count)) = candidate {
            (*known, *count) = (part, *count + 1);
        }
    }
    let branches_back = |part: &Range<u64>| {
        let mut back = branches(object, part).into_iter().flatten();
        // Other functions branch only to the start of `hot`, not into its middle.
        back.any(|(target, _)| target > hot.start && target < hot.end)
    };
    let found = candidates.iter().filter(|(part, count)| *count > 0 && branches_back(part));
    found.max_by_key(|(_, count)| *count).map(|(part, _)| part.clone())
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Returns the targets of all branches in `code` that have a four-byte displacement, and whether each branch is
/// conditional.
fn branches(object: &Object, code: &Range<u64>) -> Option<impl Iterator<Item = (u64, bool)>> {
    let bytes = object.rest_of_segment(code.start)?.get(..(code.end - code.start) as usize)?;
    let start = code.start;
    Some((0..bytes.len()).filter_map(move |at| {
        let (distance, is_conditional) = match bytes[at..] {
            [0x0f, 0x80..=0x8f, ..] => (at + 2, true),
            [0xe9, ..] => (at + 1, false),
            _ => return None,
        };
        let by = i32::from_le_bytes(*bytes.get(distance..)?.first_chunk()?);
        Some(((start + distance as u64 + 4).wrapping_add_signed(by.into()), is_conditional))
    }))
}
