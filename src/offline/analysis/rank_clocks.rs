//! Aligns the clocks of ranks by means of the collectives in which the ranks meet, and computes the maximum error of
//! the alignment.
//!
//! No rank leaves a collective before the last rank has entered it. So if two ranks meet in a collective, neither rank
//! leaves the collective before the second of them has entered it. So the recorded times of each collective of two
//! ranks give a lower and an upper bound for the difference between the clocks of the ranks. The bounds hold regardless
//! of the network. The bounds from all collectives together give an interval of possible clock differences. From the
//! interval of possible clock differences, the module chooses the difference at which the ends of collectives coincide.
//! The ends coincide in reality, because data reaches all ranks within microseconds. The reported error is the distance
//! from the chosen difference to the farther end of the interval. The true clock difference is never farther from the
//! chosen difference than the reported error.
//!
//! The bounds hold for collectives in which each rank needs data from every rank: all-reduce, all-gather,
//! reduce-scatter and all-to-all. The bounds do not hold for a broadcast, and the recorded kernels do not show whether
//! a collective is a broadcast. So the alignment is refused if the ends of collectives do not coincide after the
//! alignment.

/// Maximum difference in ns between the ends of a collective on two ranks after the alignment.
pub const MAX_END_SPREAD_NS: i64 = 50_000;
/// Minimum percentage of collectives whose ends on all ranks must coincide after the alignment.
const MIN_TOGETHER_PERCENT: usize = 90;

/// For each rank, returns the time in ns that must be added to the rank's times to convert them to a common clock.
/// `bases` contains for each rank the time to which the times in the rank's file are relative. If the base of any rank
/// is unknown, returns 0 for all ranks.
pub fn base_shifts(bases: &[Option<i64>]) -> Vec<i64> {
    let Some(known) = bases.iter().copied().collect::<Option<Vec<i64>>>() else {
        return vec![0; bases.len()];
    };
    let first = known.iter().copied().min().unwrap_or(0);
    known.into_iter().map(|base| base.saturating_sub(first)).collect()
}

/// Clocks of all ranks, relative to the clock of the first rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankClocks {
    /// Time by which each rank's clock is ahead of the first rank's clock, in ns.
    pub ahead: Vec<i64>,
    /// Maximum error of `ahead`, in ns.
    pub error: u64,
    /// Maximum time in ns between the ends of a collective on different ranks after the alignment. The 10 % of the
    /// collectives whose ends are farthest apart are ignored.
    pub spread: u64,
    /// Number of collectives that were compared.
    pub collectives: usize,
}

/// Reason why clocks are not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClocksRefused {
    /// There is only one rank, or there is no collective in which all ranks take part.
    NoCollectives,
    /// Two ranks have different numbers of collectives. Each field is the pair (index of the rank, number of
    /// collectives) of one of these ranks.
    Counts((usize, usize), (usize, usize)),
    /// Even after the alignment, the ends of collectives on different ranks are this many ns apart.
    Ends(u64),
    /// For every possible difference between the two clocks, a rank would leave a collective before another rank enters
    /// it. The two fields are the indexes of the ranks.
    Contradiction(usize, usize),
    /// The rank, given by its index, shares no collective with the first rank, not even indirectly through other ranks.
    Apart(usize),
}

/// All collectives of one group of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupCollectives {
    /// Index and collectives of each rank in the group. The collectives are given as (start, end) in ns, in the order
    /// in which they run.
    pub members: Vec<(usize, Vec<(i64, i64)>)>,
}

/// Aligns the clocks of `count` ranks that meet in groups. Each rank is compared with a rank that is already aligned.
/// So the error of a rank's clock is the error of the comparison plus the error of the aligned rank's clock. To keep
/// the errors of the clocks small, groups with many ranks are used before groups with few ranks. In each group, the
/// ranks that are not aligned yet are compared with the aligned rank that has the smallest error.
///
/// # Errors
/// Fails if [`align_ranks`] fails for the ranks in a group. Also fails if no chain of groups connects some rank with
/// the first rank.
pub fn align_groups(count: usize, groups: &[GroupCollectives]) -> Result<RankClocks, ClocksRefused> {
    let mut known: Vec<Option<(i64, u64)>> = vec![None; count];
    if let Some(first) = known.first_mut() {
        *first = Some((0, 0));
    }
    let mut groups: Vec<&GroupCollectives> = groups.iter().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.members.len()));
    let mut spread = 0;
    while let Some(group) = groups.iter().find(|group| {
        let is_known = |member: &(usize, Vec<(i64, i64)>)| known[member.0].is_some();
        group.members.iter().any(is_known) && !group.members.iter().all(is_known)
    }) {
        let with_error = group.members.iter().filter_map(|member| Some((known[member.0]?, member)));
        let Some(((ahead, error), (base, spans))) = with_error.min_by_key(|((_, error), _)| *error) else {
            break;
        };
        for (rank, other) in &group.members {
            if known[*rank].is_some() {
                continue;
            }
            let pair = align_ranks(&[spans.clone(), other.clone()]).map_err(|refused| match refused {
                ClocksRefused::Counts((_, one), (_, two)) => {
                    ClocksRefused::Counts((*base, one), (*rank, two))
                }
                ClocksRefused::Contradiction(..) => ClocksRefused::Contradiction(*base, *rank),
                other => other,
            })?;
            known[*rank] = Some((ahead.saturating_add(pair.ahead[1]), error.saturating_add(pair.error)));
            spread = spread.max(pair.spread);
        }
    }
    if let Some(apart) = known.iter().position(Option::is_none) {
        return Err(ClocksRefused::Apart(apart));
    }
    let known = known.into_iter().flatten();
    let collectives = groups.iter().filter_map(|group| Some(group.members.first()?.1.len())).sum();
    let (ahead, errors): (Vec<i64>, Vec<u64>) = known.unzip();
    Ok(RankClocks { ahead, error: errors.into_iter().max().unwrap_or(0), spread, collectives })
}

/// Aligns the clocks of ranks by means of their collectives. The collectives of each rank are given as (start, end) in
/// ns, in the order in which they ran.
///
/// # Errors
/// Fails if the ranks have different collectives, or if the ends of the collectives do not coincide after the
/// alignment.
pub fn align_ranks(ranks: &[Vec<(i64, i64)>]) -> Result<RankClocks, ClocksRefused> {
    let [first, others @ ..] = ranks else { return Err(ClocksRefused::NoCollectives) };
    if others.is_empty() || first.is_empty() {
        return Err(ClocksRefused::NoCollectives);
    }
    if let Some((at, other)) = ranks.iter().enumerate().find(|(_, rank)| rank.len() != first.len()) {
        return Err(ClocksRefused::Counts((0, first.len()), (at, other.len())));
    }
    let mut clocks = RankClocks { ahead: vec![0], error: 0, spread: 0, collectives: first.len() };
    for (at, rank) in ranks.iter().enumerate().skip(1) {
        let (low, high) = bounds(first, rank);
        if low > high {
            return Err(ClocksRefused::Contradiction(0, at));
        }
        let ahead = median_difference(first, rank).clamp(low, high);
        clocks.ahead.push(ahead);
        clocks.error = clocks.error.max(high.abs_diff(ahead)).max(low.abs_diff(ahead));
    }
    clocks.spread = end_spread(ranks, &clocks.ahead);
    match clocks.spread > MAX_END_SPREAD_NS.unsigned_abs() {
        true => Err(ClocksRefused::Ends(clocks.spread)),
        false => Ok(clocks),
    }
}

/// Returns the minimum and maximum time in ns by which the clock of `other` can be ahead of the clock of `first`.
fn bounds(first: &[(i64, i64)], other: &[(i64, i64)]) -> (i64, i64) {
    let pairs = first.iter().zip(other);
    pairs.fold((i64::MIN, i64::MAX), |(low, high), (first, other)| {
        (low.max(other.0.saturating_sub(first.1)), high.min(other.1.saturating_sub(first.0)))
    })
}

fn median_difference(first: &[(i64, i64)], other: &[(i64, i64)]) -> i64 {
    let mut all: Vec<i64> = first.iter().zip(other).map(|(one, two)| two.1.saturating_sub(one.1)).collect();
    all.sort_unstable();
    all[(all.len() - 1) / 2]
}

/// Returns the 90th percentile, over the collectives, of the time in ns between the first and the last end of a
/// collective.
fn end_spread(ranks: &[Vec<(i64, i64)>], ahead: &[i64]) -> u64 {
    let mut spreads: Vec<u64> = (0..ranks[0].len())
        .map(|at| {
            let ends = ranks.iter().zip(ahead).map(|(rank, ahead)| rank[at].1.saturating_sub(*ahead));
            ends.clone().max().unwrap_or(0).abs_diff(ends.min().unwrap_or(0))
        })
        .collect();
    spreads.sort_unstable();
    spreads[(spreads.len() * MIN_TOGETHER_PERCENT).div_ceil(100) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a rank's collectives after adding `by` (in ns) to all times.
    fn ahead(rank: &[(i64, i64)], by: i64) -> Vec<(i64, i64)> {
        rank.iter().map(|&(start, end)| (start + by, end + by)).collect()
    }

    /// Collectives of two ranks, in ns. Rank 1 enters the first collective last and leaves it 4 us after rank 0. Rank 0
    /// enters the second collective last. Each collective takes 10 us after the last rank has entered it.
    const ZERO: [(i64, i64); 2] = [(0, 50_000), (90_000, 100_000)];
    const ONE: [(i64, i64); 2] = [(40_000, 54_000), (70_000, 100_000)];

    #[test]
    fn clocks_eleven_seconds_apart_are_aligned_and_the_error_is_not_smaller_than_the_true_one() {
        const APART: i64 = 11_500_000_000;
        let clocks = align_ranks(&[ZERO.to_vec(), ahead(&ONE, APART)]).unwrap();
        // The ends on the two ranks differ by 4 us in the first collective and by 0 us in the second collective. The
        // lower of the two differences is used as the median. The first collective gives the lower bound of the clock
        // difference (40 - 50 us), and the second collective gives the upper bound (100 - 90 us).
        assert_eq!(clocks.ahead, [0, APART]);
        assert_eq!((clocks.error, clocks.spread, clocks.collectives), (10_000, 4_000, 2));
        let back = align_ranks(&[ahead(&ONE, APART), ZERO.to_vec()]).unwrap();
        assert_eq!(back.ahead, [0, -APART - 4_000]);
        assert!(back.error >= 4_000 && back.error == 14_000, "{back:?}");
    }

    #[test]
    fn collectives_that_are_not_the_same_ones_refuse_the_alignment() {
        let refused = |ranks: &[Vec<(i64, i64)>]| align_ranks(ranks).unwrap_err();
        assert_eq!(refused(&[ZERO.to_vec()]), ClocksRefused::NoCollectives);
        assert_eq!(refused(&[Vec::new(), Vec::new()]), ClocksRefused::NoCollectives);
        assert_eq!(refused(&[ZERO.to_vec(), ONE[..1].to_vec()]), ClocksRefused::Counts((0, 2), (1, 1)));
        // The second kernel of rank 1 is 300 us early. For every difference between the clocks, the first or the second
        // collective leads to a contradiction.
        let early = [(40_000, 50_000), (-230_000, -200_000)];
        assert_eq!(refused(&[ZERO.to_vec(), early.to_vec()]), ClocksRefused::Contradiction(0, 1));
        // In a test with long kernels, the ends of the first collective are 70 us apart, and the ends of the second
        // collective coincide.
        let (one, two) = ([(0, 500_000), (600_000, 900_000)], [(0, 570_000), (600_000, 900_000)]);
        assert_eq!(refused(&[one.to_vec(), two.to_vec()]), ClocksRefused::Ends(70_000));
    }

    #[test]
    fn clocks_of_ranks_that_meet_through_another_one_are_aligned_and_their_errors_add_up() {
        // Rank 1 meets rank 0 in one group, and meets rank 2 in another group. The clock of rank 1 is 1 ms ahead of
        // rank 0's clock, and the clock of rank 2 is 2 ms ahead of rank 1's clock.
        let group = |one, other| GroupCollectives { members: vec![one, other] };
        let two = [(30_000, 50_000), (95_000, 100_000)];
        let groups = [
            group((1, ahead(&ZERO, 1_000_000)), (2, ahead(&two, 3_000_000))),
            group((0, ZERO.to_vec()), (1, ahead(&ONE, 1_000_000))),
        ];
        let clocks = align_groups(3, &groups).unwrap();
        // The error between the clocks of ranks 0 and 1 is 10 us, as in the test with two ranks. The difference between
        // the clocks of ranks 1 and 2 is at least 95 - 100 us and at most 100 - 90 us.
        assert_eq!(clocks.ahead, [0, 1_000_000, 3_000_000]);
        assert_eq!((clocks.error, clocks.collectives), (10_000 + 10_000, 4));
        assert_eq!(align_groups(3, &groups[1..]), Err(ClocksRefused::Apart(2)));
        assert_eq!(align_groups(2, &[]), Err(ClocksRefused::Apart(1)));
        let odd = group((0, ZERO[..1].to_vec()), (1, ONE.to_vec()));
        assert_eq!(align_groups(2, &[odd]), Err(ClocksRefused::Counts((0, 1), (1, 2))));
    }

    #[test]
    fn extreme_times_stop_nothing() {
        let extreme = vec![(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (0, 0)];
        assert!(align_ranks(&[extreme.clone(), extreme, vec![(1, 2), (3, 4), (5, 6)]]).is_err());
    }
}
