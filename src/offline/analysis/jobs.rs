//! Decides whether several files come from ranks of one job, and which ranks are missing.
//!
//! Files are rejected only if there is proof that they belong to different programs. Two facts are such a proof: the
//! files state different numbers of ranks, or some files have no kernel name in common with the rest of the files.
//! Ranks of one program may run different kernels, for example in the stages of a pipeline. But each rank of a program
//! has kernels in common with at least one further rank.

use std::collections::{BTreeMap, BTreeSet};

/// Properties of a rank that are used to decide whether the rank belongs to a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobMember {
    /// Id of the rank.
    pub rank: u32,
    /// Number of ranks of the job, if the rank's file states it.
    pub world_size: Option<u32>,
    /// Names of the kernels that the rank ran.
    pub kernels: BTreeSet<String>,
}

/// Proof that two members of an assumed job, given by their indexes, belong to different programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobDifference {
    /// The files of the two members state different numbers of ranks.
    WorldSize(usize, usize),
    /// The two members have no kernel in common, not even indirectly through other members.
    NoCommonKernel(usize, usize),
}

/// Returns proof that the members belong to different programs, or `None` if no proof exists.
pub fn find_difference(members: &[JobMember]) -> Option<JobDifference> {
    let mut sized = (0..).zip(members).filter_map(|(at, member)| Some((at, member.world_size?)));
    if let Some((first, size)) = sized.next()
        && let Some((other, _)) = sized.find(|(_, other)| *other != size)
    {
        return Some(JobDifference::WorldSize(first, other));
    }
    let mut groups: Vec<usize> = (0..members.len()).collect();
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, member) in members.iter().enumerate() {
        for kernel in &member.kernels {
            let owner = *owners.entry(kernel).or_insert(at);
            let (one, other) = (group_of(&mut groups, owner), group_of(&mut groups, at));
            groups[one.max(other)] = one.min(other);
        }
    }
    let mut with_kernels = (0..members.len()).filter(|at| !members[*at].kernels.is_empty());
    let first = with_kernels.next()?;
    let group = group_of(&mut groups, first);
    let other = with_kernels.find(|at| group_of(&mut groups, *at) != group)?;
    Some(JobDifference::NoCommonKernel(first, other))
}

/// Returns the smallest index in the group that contains `at`. The smallest index of a group identifies the group.
fn group_of(groups: &mut [usize], mut at: usize) -> usize {
    while groups[at] != at {
        groups[at] = groups[groups[at]];
        at = groups[at];
    }
    at
}

/// Returns the missing ranks of a job with `world_size` ranks, as ranges (first, last). Returns `None` if any rank in
/// `ranks` is `world_size` or larger.
pub fn find_missing(ranks: &BTreeSet<u32>, world_size: u32) -> Option<Vec<(u32, u32)>> {
    if ranks.last().is_some_and(|last| *last >= world_size) {
        return None;
    }
    let (mut missing, mut next) = (Vec::new(), 0);
    for end in ranks.iter().copied().chain([world_size]) {
        if next < end {
            missing.push((next, end - 1));
        }
        next = end.saturating_add(1);
    }
    Some(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(world_size: impl Into<Option<u32>>, kernels: &[&str]) -> JobMember {
        let kernels = kernels.iter().map(|name| (*name).to_owned()).collect();
        JobMember { rank: 0, world_size: world_size.into(), kernels }
    }

    #[test]
    fn programs_differ_by_number_of_ranks_or_by_all_kernels() {
        use JobDifference::{NoCommonKernel, WorldSize};
        for (members, expected) in [
            (vec![member(8, &["a"]), member(8, &["a", "b"])], None),
            (vec![member(8, &["a"]), member(None, &["a"]), member(2, &["a"])], Some(WorldSize(0, 2))),
            (vec![member(None, &["a"]), member(None, &["b"])], Some(NoCommonKernel(0, 1))),
            // The members are stages of a pipeline. The first and the second stage share no kernel, but the third stage
            // shares kernels with both.
            (vec![member(None, &["a", "b"]), member(None, &["c", "d"]), member(None, &["b", "c"])], None),
            (
                vec![member(None, &["a", "b"]), member(None, &["c"]), member(None, &["b"])],
                Some(NoCommonKernel(0, 1)),
            ),
            // A rank without kernels does not show that the files belong to different programs.
            (vec![member(None, &["a"]), member(None, &[]), member(None, &["a"])], None),
            (vec![member(None, &[]), member(None, &[])], None),
            (vec![member(4, &["a"])], None),
            (Vec::new(), None),
        ] {
            assert_eq!(find_difference(&members), expected, "{members:?}");
        }
    }

    #[test]
    fn missing_ranks_are_ranges() {
        let missing = |ranks: &[u32], size| find_missing(&ranks.iter().copied().collect(), size);
        assert_eq!(missing(&[0, 1], 8), Some(vec![(2, 7)]));
        assert_eq!(missing(&[1, 4, 5], 8), Some(vec![(0, 0), (2, 3), (6, 7)]));
        assert_eq!(missing(&[0, 1, 2], 3), Some(vec![]));
        assert_eq!(missing(&[], 2), Some(vec![(0, 1)]));
        assert_eq!(missing(&[8], 8), None);
        assert_eq!(missing(&[u32::MAX - 1], u32::MAX), Some(vec![(0, u32::MAX - 2)]));
    }
}
