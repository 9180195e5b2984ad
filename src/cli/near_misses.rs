//! If a user gives a name that does not exist, suggests similar names that exist.

use std::collections::BTreeSet;

/// Maximum number of names that a message suggests.
const MAX_NAMES: usize = 3;
/// Maximum number of characters of a suggested name.
const MAX_CHARS: usize = 60;
/// Maximum number of existing names that are compared with the wrong name.
const MAX_COMPARED: usize = 10_000;
/// Maximum number of characters of each name that are compared.
const MAX_COMPARED_CHARS: usize = 120;
/// Minimum similarity, from 0 to 1, of a suggested name to the wrong name.
const MIN_SIMILARITY: f64 = 0.6;

/// Returns at most three names that are most similar to `wrong`. Case is ignored. Both the whole name and each of its
/// words are compared with `wrong`.
pub(super) fn near_misses<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wrong: String = wrong.to_lowercase().chars().take(MAX_COMPARED_CHARS).collect();
    let names: BTreeSet<&str> = names.into_iter().take(MAX_COMPARED).collect();
    let scored = names.into_iter().map(|name| (similarity(&wrong, name), name));
    let mut scored: Vec<_> = scored.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    scored.into_iter().take(MAX_NAMES).map(|(_, name)| name).collect()
}

/// Returns the similarity of two names, from 0 to 1.
fn similarity(wrong: &str, name: &str) -> f64 {
    let name: String = name.to_lowercase().chars().take(MAX_COMPARED_CHARS).collect();
    if !wrong.is_empty() && name.contains(wrong) {
        return 1.0;
    }
    let words = name.split(|c: char| !c.is_alphanumeric()).filter(|word| word.chars().count() > 2);
    let best = words.map(|word| strsim::normalized_damerau_levenshtein(wrong, word)).fold(0.0, f64::max);
    best.max(strsim::normalized_damerau_levenshtein(wrong, &name))
}

/// Formats names for a message, each in backquotes and cut to a readable length: `a`, `b`.
pub(super) fn quoted(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{}`", cut(name))).collect();
    match &quoted[..] {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{}, {last}", first.join(", ")),
    }
}

fn cut(name: &str) -> String {
    match name.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_names_come_first() {
        let names = ["GPUFLAME_MAX_MEM", "GPUFLAME_FORMATS", "GPUFLAME_MAX_BYTES", "GPUFLAME_DELAY"];
        assert_eq!(near_misses("GPUFLAME_FORMAT", names)[0], "GPUFLAME_FORMATS");
        assert_eq!(near_misses("mem", names), ["GPUFLAME_MAX_MEM"]);
        let kernels = ["void cutlass::Kernel2<float>(int)", "add", "ampere_sgemm_128x64"];
        assert_eq!(near_misses("segmm", kernels), ["ampere_sgemm_128x64"]);
        assert_eq!(near_misses("KERNEL2", kernels), ["void cutlass::Kernel2<float>(int)"]);
        assert!(near_misses("zzz", kernels).is_empty());
        assert_eq!(quoted(&["a", "b", "c"]), "`a`, `b`, `c`");
        assert_eq!(quoted(&[&"x".repeat(99)]), format!("`{}...`", "x".repeat(60)));
    }
}
