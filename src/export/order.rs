//! The order of texts that have long beginnings in common, as names of kernels do.
//!
//! A comparison of two such texts goes through what they share each time, and through memory to get there: 80,000 names
//! take 13 ms. Here eight bytes are taken of each, behind what all share, and sorted as numbers; where those are the
//! same, the next eight.

use std::ops::Range;

/// So few are compared as they are.
const FEW: usize = 32;

/// The positions of `texts` in the order of their bytes; equal ones stay as they are.
pub(super) fn of(texts: &[&str]) -> Vec<u32> {
    within(std::iter::once(0..texts.len()), texts)
}

/// The same within each of these parts, which stay where they are.
pub(super) fn within(parts: impl IntoIterator<Item = Range<usize>>, texts: &[&str]) -> Vec<u32> {
    let mut sorted: Vec<(u64, u32)> = (0..texts.len() as u32).map(|at| (0, at)).collect();
    // Those of a part are the same up to a byte.
    let mut parts: Vec<_> = parts.into_iter().map(|part| (part, 0)).collect();
    while let Some((part, known)) = parts.pop() {
        let all = &mut sorted[part.clone()];
        if all.len() <= FEW {
            all.sort_unstable_by_key(|(_, at)| (rest(texts, *at, known), *at));
            continue;
        }
        let shared = known + shared(texts, all, known);
        for (word, at) in &mut *all {
            *word = next(rest(texts, *at, shared));
        }
        all.sort_unstable();
        for run in runs(all, |(a, _), (b, _)| a == b) {
            let (word, _) = all[run.start];
            // Whether a text ends in the word or goes on with zeros, the word does not say.
            if word & 0xff == 0 {
                all[run].sort_unstable_by_key(|(_, at)| (rest(texts, *at, shared), *at));
            } else {
                parts.push((part.start + run.start..part.start + run.end, shared + 8));
            }
        }
    }
    sorted.into_iter().map(|(_, at)| at).collect()
}

/// What comes after the first `known` bytes, which are there.
fn rest<'a>(texts: &[&'a str], at: u32, known: usize) -> &'a [u8] {
    &texts[at as usize].as_bytes()[known..]
}

/// How many bytes all share after the first `known`.
fn shared(texts: &[&str], all: &[(u64, u32)], known: usize) -> usize {
    let first = rest(texts, all[0].1, known);
    all.iter().fold(first.len(), |shared, (_, at)| {
        let other = rest(texts, *at, known);
        match other.starts_with(&first[..shared]) {
            true => shared,
            false => first.iter().zip(other).take_while(|(a, b)| a == b).count(),
        }
    })
}

/// The first eight bytes as a number, zeros behind a text that is shorter.
fn next(rest: &[u8]) -> u64 {
    let mut word = [0; 8];
    let count = rest.len().min(8);
    word[..count].copy_from_slice(&rest[..count]);
    u64::from_be_bytes(word)
}

/// Where several in a row are alike.
pub(super) fn runs<T>(all: &[T], are_alike: impl Fn(&T, &T) -> bool) -> Vec<Range<usize>> {
    let mut start = 0;
    let runs = all.chunk_by(are_alike).map(|run| {
        start += run.len();
        start - run.len()..start
    });
    runs.filter(|run| run.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(texts: &[&str]) {
        let mut expected: Vec<u32> = (0..texts.len() as u32).collect();
        expected.sort_by_key(|at| texts[*at as usize]);
        assert_eq!(of(texts), expected, "{} texts", texts.len());
    }

    #[test]
    fn texts_lie_in_the_order_of_their_bytes_and_equal_ones_as_they_were() {
        check(&[]);
        check(&["b", "a", ""]);
        let names: Vec<String> = (0..5000).map(|i| format!("[GPU_Kernel]gemm_{}", i * 7919 % 5003)).collect();
        check(&names.iter().map(String::as_str).collect::<Vec<_>>());
        // The same ones several times, ends within others, zeros, and what is long and differs at its end.
        let ends = ["", "a", "b", "12345678", "123456789", "\0", "\0\0", "x\0", "é", "\u{10ffff}"];
        let of_turn = |i: usize| "ab".repeat(i % 40) + ends[i % ends.len()] + ends[i / 7 % ends.len()];
        let mixed: Vec<String> = (0..3000).map(of_turn).collect();
        check(&mixed.iter().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn parts_stay_where_they_are() {
        assert_eq!(within([0..2, 3..5], &["b", "a", "0", "d", "c"]), [1, 0, 2, 4, 3]);
    }

    /// Short texts of few letters, from repeatable chance: all ways to be equal, or a part of another.
    #[test]
    fn texts_of_chance_lie_in_order() {
        let mut state = 7_u32;
        let mut below = |limit: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % limit
        };
        for _ in 0..50 {
            let letters = ["a", "b", "\0", "aaaaaaaa"];
            let mut text = || (0..below(12)).map(|_| letters[below(4) as usize]).collect::<String>();
            let texts: Vec<String> = (0..400).map(|_| text()).collect();
            check(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
