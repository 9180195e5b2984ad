//! Creates the finding about clocks that differ between ranks.

use super::super::arrivals::CollectiveKernels;
use super::Cost;
use super::thresholds::MIN_RANK_CLOCK_NS;
use gpuflame_model::profile::format_nanos;

/// Returns the finding about the two ranks whose clocks differ most. A collective ends at the same time on all ranks.
/// So the difference between the ends recorded on two ranks is the difference between the clocks of the ranks.
pub(super) fn clock_difference(ranks: &[(u32, &CollectiveKernels)]) -> Option<Cost> {
    let mut worst: Option<(i64, u32, u32)> = None;
    for (at, (one, first)) in ranks.iter().enumerate() {
        for (other, second) in &ranks[at + 1..] {
            let Some(difference) = clock_offset(first, second) else { continue };
            if worst.is_none_or(|(known, ..)| difference.unsigned_abs() > known.unsigned_abs()) {
                worst = Some((difference, *one, *other));
            }
        }
    }
    let (difference, first, second) = worst.filter(|(most, ..)| most.unsigned_abs() >= MIN_RANK_CLOCK_NS)?;
    let (ahead, behind) = if difference > 0 { (second, first) } else { (first, second) };
    let why = format!(
        "collectives end {} apart: the clock of rank {ahead} is ahead of that of rank {behind}, and no two ranks differ more; do not compare times between ranks, except with `merge-ranks`, `stragglers` and `critical-path`, which align the clocks",
        format_nanos(difference.unsigned_abs()),
    );
    Some(Cost {
        id: "clocks_of_ranks",
        nanos: 0,
        count: 1,
        why,
        words: format!("rank {ahead} and rank {behind}"),
        ..Cost::default()
    })
}

/// Returns the time in ns by which the ends of collectives are later on the clock of `second` than on the clock of
/// `first`. Returns `None` if the two ranks have no collectives in common, or if the difference varies too much between
/// collectives.
pub(super) fn clock_offset(first: &CollectiveKernels, second: &CollectiveKernels) -> Option<i64> {
    let mut differences: Vec<i64> = Vec::new();
    for (name, kernels) in second {
        let Some(others) = first.get(name).filter(|others| others.len() == kernels.len()) else {
            continue;
        };
        differences.extend(kernels.iter().zip(others).map(|(one, other)| one.end.saturating_sub(other.end)));
    }
    differences.sort_unstable();
    let quarter = |number: usize| differences.get(differences.len() * number / 4).copied();
    let (low, middle, high) = (quarter(1)?, quarter(2)?, quarter(3)?);
    let is_constant = high.abs_diff(low).saturating_mul(4) <= middle.unsigned_abs();
    is_constant.then_some(middle)
}
