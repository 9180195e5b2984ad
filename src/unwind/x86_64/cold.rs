//! The part of a function that the compiler took out of it, as it is seldom run, and put elsewhere.
//!
//! It has a name in no table that is loaded (`f.cold` is a local symbol), but unwind information of its own. It is known by
//! the branches between the two: from the function to the middle of nowhere, and from there back into the function. The
//! instructions are not decoded: of what looks like a branch and is none, nearly all leads to no code.

use std::ops::Range;

use super::compile::function;
use crate::unwind::loader::Object;

/// So many places are looked at that branches may lead to. Real functions have one or two, and what looks like branches few.
const MOST_PLACES: usize = 16;

/// The cold part of the function `hot`. While the loader is held.
pub(in crate::unwind) fn cold_part(object: &Object, hot: &Range<u64>) -> Option<Range<u64>> {
    let mut places: [(Range<u64>, u32); MOST_PLACES] = std::array::from_fn(|_| (0..0, 0));
    for target in branches(object, hot)?.filter(|(target, _)| !hot.contains(target)) {
        // Without a condition it may be the last call of a function.
        let (target, true) = target else { continue };
        let Some(part) = function(object, target).filter(|part| !overlap(part, hot)) else { continue };
        let place = places.iter_mut().find(|(known, count)| *known == part || *count == 0);
        if let Some((known, count)) = place {
            (*known, *count) = (part, *count + 1);
        }
    }
    let comes_back = |part: &Range<u64>| {
        let mut back = branches(object, part).into_iter().flatten();
        // Others call it by branches, too, but none into its midst.
        back.any(|(target, _)| target > hot.start && target < hot.end)
    };
    let found = places.iter().filter(|(part, count)| *count > 0 && comes_back(part));
    found.max_by_key(|(_, count)| *count).map(|(part, _)| part.clone())
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Where the branches lead whose distance takes four bytes, and whether they have a condition.
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
