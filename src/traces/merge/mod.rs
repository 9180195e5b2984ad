//! Merges the recordings that two tools made of the same run. The first tool captured CPU stacks at launches (for
//! example with an eBPF probe on `cudaLaunchKernel`), and the second tool recorded kernels. Stacks with correlation ids
//! are matched to launches by these ids. Other stacks are matched by order if possible, and otherwise by time.
//!
//! Recordings of gpuflame do not need this module. A match by order or by time is only a guess. The [`Report`] shows
//! how reliable the guesses are. The report contains the number of stacks with a second launch within the tolerance.
//! The report also contains the difference of the two clocks, and the typical gap between launches for comparison.

mod assign;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

pub use assign::assign;

/// A CPU stack captured at a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Time at which the stack was captured, in ns.
    pub time: i64,
    /// Id of the captured process.
    pub process: i64,
    /// Id of the captured thread.
    pub thread: i64,
    /// Correlation id of the launch, if the probe could read it.
    pub correlation: Option<u64>,
    /// Index in the caller's table of the frames of the stack.
    pub frames: u32,
}

/// A call that launched GPU work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Start time of the call, in ns.
    pub time: i64,
    /// Id of the calling process; `None` if the trace does not contain this id.
    pub process: Option<i64>,
    /// Id of the calling thread; `None` if the trace does not contain this id.
    pub thread: Option<i64>,
    /// Correlation id that the launch shares with its GPU work.
    pub correlation: u64,
}

/// Method by which a stack was matched to its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Matched by correlation id, which makes the match certain.
    Id,
    /// Matched by order: the first stack to the first launch, the second stack to the second launch, and so on. This
    /// method is used if a thread has as many stacks as launches.
    Order,
    /// Matched by time: the total distance between stacks and launches is minimized, within the tolerance.
    Time,
}

/// Options for matching stacks to launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum time in ns between a stack and the launch to which it is matched. Default: 10 ms.
    pub tolerance: u64,
    /// Offset in ns that is added to the times of all stacks. Default: 0.
    pub offset: i64,
}

impl Default for Options {
    fn default() -> Self {
        Self { tolerance: 10_000_000, offset: 0 }
    }
}

/// Counts of matches, and figures that show how certain the matches are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Numbers of matches by id, by order, and by time.
    pub matched: [u64; 3],
    /// Number of stacks without a matching launch.
    pub unmatched: u64,
    /// Number of launches without a matching stack.
    pub launches_left: u64,
    /// Number of stacks matched by order or time for which another launch in the same group is also within the
    /// tolerance.
    pub ambiguous: u64,
    /// Number of matches by time that would be different if the clocks were shifted by `clock_distance`.
    pub doubtful: u64,
    /// Estimated time in ns by which the clock of the launches is ahead of the clock of the stacks. The estimate is the
    /// most frequent difference between the time of a stack and the time of a nearby launch, among the stacks that are
    /// not matched by id. The matched pairs do not show the difference of the clocks. The times of a matched pair are
    /// as close as possible even if the match is wrong.
    pub clock_distance: i64,
    /// Median time between consecutive launches, in ns.
    pub median_gap: u64,
}

/// Returns, for each stack, the index of the launch to which it was matched.
pub fn merge(
    stacks: &[Stack],
    launches: &[Launch],
    options: &Options,
) -> (Vec<Option<(usize, Method)>>, Report) {
    let mut pairs: Vec<Option<(usize, Method)>> = vec![None; stacks.len()];
    let mut taken = vec![false; launches.len()];
    match_by_id(stacks, launches, &mut pairs, &mut taken);
    let mut report = Report::default();
    let (mut votes, mut gaps, mut close) = (Vec::new(), Vec::new(), Vec::new());
    for (mut ours, mut theirs) in group_candidates(stacks, launches, &pairs, &taken) {
        ours.sort_by_key(|&at| stacks[at].time);
        theirs.sort_by_key(|&at| launches[at].time);
        let ours_at: Vec<i64> =
            ours.iter().map(|&at| stacks[at].time.saturating_add(options.offset)).collect();
        let theirs_at: Vec<i64> = theirs.iter().map(|&at| launches[at].time).collect();
        gaps.extend(theirs_at.windows(2).map(|pair| pair[1].abs_diff(pair[0])));
        let (way, found) = match ours.len() == theirs.len() {
            true => (Method::Order, (0..ours.len()).map(|at| (at, at)).collect()),
            false => (Method::Time, assign(&ours_at, &theirs_at, options.tolerance)),
        };
        for (our, their) in found {
            pairs[ours[our]] = Some((theirs[their], way));
            taken[theirs[their]] = true;
            let near = nearest_two(&theirs_at, ours_at[our]);
            report.ambiguous += u64::from(near[1].is_some_and(|second| second < options.tolerance));
            if way == Method::Time {
                close.push(near);
            }
        }
        collect_votes(&ours_at, &theirs_at, options.tolerance, &mut votes);
    }
    report.median_gap = median(&mut gaps);
    report.clock_distance = find_most_voted(&mut votes, (report.median_gap / 8).max(1_000));
    let far = report.clock_distance.unsigned_abs().max(1);
    // If all stacks were shifted by half the difference of the distances to the nearest and the second nearest launch,
    // the second nearest launch would become the nearest.
    report.doubtful = close
        .iter()
        .filter(|near| matches!(near, [Some(first), Some(second)] if second - first <= 2 * far))
        .count() as u64;
    for pair in &pairs {
        match pair {
            Some((_, way)) => report.matched[*way as usize] += 1,
            None => report.unmatched += 1,
        }
    }
    report.launches_left = taken.iter().filter(|taken| !**taken).count() as u64;
    (pairs, report)
}

/// Matches stacks to launches by correlation id. Correlation ids are unique only within one process. So a launch in the
/// process of the stack is preferred.
fn match_by_id(
    stacks: &[Stack],
    launches: &[Launch],
    pairs: &mut [Option<(usize, Method)>],
    taken: &mut [bool],
) {
    if stacks.iter().all(|stack| stack.correlation.is_none()) {
        return;
    }
    let mut by_id: HashMap<(Option<i64>, u64), usize> = HashMap::with_capacity(2 * launches.len());
    for (at, launch) in launches.iter().enumerate() {
        by_id.entry((launch.process, launch.correlation)).or_insert(at);
        by_id.entry((None, launch.correlation)).or_insert(at);
    }
    for (stack, pair) in stacks.iter().zip(pairs) {
        let Some(id) = stack.correlation else { continue };
        let found = by_id.get(&(Some(stack.process), id)).or_else(|| by_id.get(&(None, id)));
        if let Some(&at) = found
            && !taken[at]
        {
            *pair = Some((at, Method::Id));
            taken[at] = true;
        }
    }
}

/// Forms groups of stacks and launches that may belong together. First, stacks and launches are grouped by thread. The
/// stacks or launches of a thread that has only stacks or only launches are grouped by process instead, because the two
/// tools may use different thread ids. All remaining stacks and launches form one group.
fn group_candidates(
    stacks: &[Stack],
    launches: &[Launch],
    pairs: &[Option<(usize, Method)>],
    taken: &[bool],
) -> Vec<(Vec<usize>, Vec<usize>)> {
    let ours = || (0..stacks.len()).filter(|&at| pairs[at].is_none() && stacks[at].correlation.is_none());
    let theirs = || (0..launches.len()).filter(|&at| !taken[at]);
    type Group = (Vec<usize>, Vec<usize>);
    let mut threads: BTreeMap<(i64, Option<i64>), Group> = BTreeMap::new();
    for at in ours() {
        threads.entry((stacks[at].process, Some(stacks[at].thread))).or_default().0.push(at);
    }
    for at in theirs() {
        let launch = &launches[at];
        threads.entry((launch.process.unwrap_or(-1), launch.thread)).or_default().1.push(at);
    }
    let mut groups = Vec::new();
    let mut processes: BTreeMap<i64, Group> = BTreeMap::new();
    for ((process, _), group) in threads {
        keep_if_two_sided(group, &mut groups, processes.entry(process).or_default());
    }
    let mut rest = Group::default();
    for (_, group) in processes {
        keep_if_two_sided(group, &mut groups, &mut rest);
    }
    groups.push(rest);
    groups
}

/// A group that has both stacks and launches is added to `groups`. The stacks or launches of any other group are added
/// to `rest`.
fn keep_if_two_sided(
    group: (Vec<usize>, Vec<usize>),
    groups: &mut Vec<(Vec<usize>, Vec<usize>)>,
    rest: &mut (Vec<usize>, Vec<usize>),
) {
    if group.0.is_empty() || group.1.is_empty() {
        rest.0.extend(group.0);
        rest.1.extend(group.1);
    } else {
        groups.push(group);
    }
}

/// Returns the distances from `time` to the two nearest times in the sorted list `times`.
fn nearest_two(times: &[i64], time: i64) -> [Option<u64>; 2] {
    let at = times.partition_point(|&other| other < time);
    let near = &times[at.saturating_sub(2)..times.len().min(at + 2)];
    let mut distances: Vec<u64> = near.iter().map(|other| other.abs_diff(time)).collect();
    distances.sort_unstable();
    [distances.first().copied(), distances.get(1).copied()]
}

/// Maximum number of stacks per group that vote about the difference of the clocks.
const MAX_VOTERS: usize = 1_000;
/// A stack votes for the differences between its time and the times of the nearest launches: this number of launches
/// before the stack, and this number after the stack. The true difference of the clocks is among these votes, unless
/// the clocks differ by more than the duration of that many launches.
const NEIGHBOURS_PER_VOTE: usize = 64;

fn collect_votes(ours: &[i64], theirs: &[i64], tolerance: u64, votes: &mut Vec<i64>) {
    for &time in ours.iter().step_by(ours.len().div_ceil(MAX_VOTERS).max(1)) {
        let at = theirs.partition_point(|&other| other < time);
        let near =
            &theirs[at.saturating_sub(NEIGHBOURS_PER_VOTE)..theirs.len().min(at + NEIGHBOURS_PER_VOTE)];
        let distances = near.iter().map(|other| other.saturating_sub(time));
        votes.extend(distances.filter(|distance| distance.unsigned_abs() <= tolerance));
    }
}

/// Returns the midpoint of the interval of width `width` that contains most votes. If several intervals contain most
/// votes, the one closest to 0 is used. Several intervals contain most votes if launches are evenly spaced, because a
/// shift by any multiple of the gap then fits equally well.
fn find_most_voted(votes: &mut [i64], width: u64) -> i64 {
    votes.sort_unstable();
    let (mut first, mut best) = (0, (0, std::cmp::Reverse(u64::MAX), 0));
    for last in 0..votes.len() {
        while votes[last].abs_diff(votes[first]) > width {
            first += 1;
        }
        let middle = votes[first + (last - first) / 2];
        best = best.max((last - first + 1, std::cmp::Reverse(middle.unsigned_abs()), middle));
    }
    best.2
}

fn median<T: Ord + Copy + Default>(values: &mut [T]) -> T {
    let middle = values.len() / 2;
    if values.is_empty() { T::default() } else { *values.select_nth_unstable(middle).1 }
}
