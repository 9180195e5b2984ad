//! Puts CPU stacks that one tool took at launches (an eBPF probe on `cudaLaunchKernel`) onto the kernels
//! that another tool recorded: by id where the stacks carry one, else by order, else by time.
//!
//! A recording of ours never needs this. What is matched by order or time is a guess, and the
//! [`Report`] says how good a guess: how many stacks have another launch within reach, and how far the two
//! clocks seem to be apart compared with the gaps between launches.

mod assign;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

pub use assign::assign;

/// A stack that was taken at a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// When, in nanoseconds.
    pub time: i64,
    /// The process.
    pub process: i64,
    /// The thread.
    pub thread: i64,
    /// The correlation id, where the probe could see it.
    pub correlation: Option<u64>,
    /// The frames, root first; a number of the caller's table.
    pub frames: u32,
}

/// A call that launched GPU work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// When it began, ns.
    pub time: i64,
    /// The process; `None` where the trace does not say.
    pub process: Option<i64>,
    /// The thread; `None` where the trace does not say.
    pub thread: Option<i64>,
    /// The id that its work carries.
    pub correlation: u64,
}

/// How a stack found its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By its correlation id: certain.
    Id,
    /// By its place in the order of its thread, of as many launches as stacks.
    Order,
    /// The nearest launch by time, within a tolerance.
    Time,
}

/// How stacks and launches are matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Stacks and launches farther apart than this are no pair, in nanoseconds. Default: 10 ms.
    pub tolerance: u64,
    /// Added to the times of the stacks. Default: 0.
    pub offset: i64,
}

impl Default for Options {
    fn default() -> Self {
        Self { tolerance: 10_000_000, offset: 0 }
    }
}

/// What was matched, and how sure it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Matched by id, by order and by time.
    pub by: [u64; 3],
    /// Stacks without a launch.
    pub unmatched: u64,
    /// Launches without a stack.
    pub left: u64,
    /// Of those matched by order or time: another launch of the same threads was within the tolerance.
    pub ambiguous: u64,
    /// Of those matched by time: would have another nearest launch if the clocks were off by as much as they seem
    /// to be.
    pub doubtful: u64,
    /// How far the launches' clock seems to be ahead, of those matched by order or time: the distance of a stack
    /// to a launch that most stacks have to one. Not that of the pairs, which are as near as can be, right or wrong.
    pub distance: i64,
    /// The median gap between launches.
    pub gap: u64,
}

/// Gives for each stack the position of its launch.
pub fn merge(
    stacks: &[Stack],
    launches: &[Launch],
    options: &Options,
) -> (Vec<Option<(usize, Way)>>, Report) {
    let mut pairs: Vec<Option<(usize, Way)>> = vec![None; stacks.len()];
    let mut taken = vec![false; launches.len()];
    by_id(stacks, launches, &mut pairs, &mut taken);
    let mut report = Report::default();
    let (mut votes, mut gaps, mut close) = (Vec::new(), Vec::new(), Vec::new());
    for (mut ours, mut theirs) in groups(stacks, launches, &pairs, &taken) {
        ours.sort_by_key(|&at| stacks[at].time);
        theirs.sort_by_key(|&at| launches[at].time);
        let ours_at: Vec<i64> =
            ours.iter().map(|&at| stacks[at].time.saturating_add(options.offset)).collect();
        let theirs_at: Vec<i64> = theirs.iter().map(|&at| launches[at].time).collect();
        gaps.extend(theirs_at.windows(2).map(|pair| pair[1].abs_diff(pair[0])));
        let (way, found) = match ours.len() == theirs.len() {
            true => (Way::Order, (0..ours.len()).map(|at| (at, at)).collect()),
            false => (Way::Time, assign(&ours_at, &theirs_at, options.tolerance)),
        };
        for (our, their) in found {
            pairs[ours[our]] = Some((theirs[their], way));
            taken[theirs[their]] = true;
            let near = nearest_two(&theirs_at, ours_at[our]);
            report.ambiguous += u64::from(near[1].is_some_and(|second| second < options.tolerance));
            if way == Way::Time {
                close.push(near);
            }
        }
        vote(&ours_at, &theirs_at, options.tolerance, &mut votes);
    }
    report.gap = median(&mut gaps);
    report.distance = most_voted(&mut votes, (report.gap / 8).max(1_000));
    let far = report.distance.unsigned_abs().max(1);
    // Twice the shift is what makes the second nearest the nearest.
    report.doubtful = close
        .iter()
        .filter(|near| matches!(near, [Some(first), Some(second)] if second - first <= 2 * far))
        .count() as u64;
    for pair in &pairs {
        match pair {
            Some((_, way)) => report.by[*way as usize] += 1,
            None => report.unmatched += 1,
        }
    }
    report.left = taken.iter().filter(|taken| !**taken).count() as u64;
    (pairs, report)
}

/// Ids are unique within a process. Processes are compared where both sides name one that the other
/// knows as well.
fn by_id(stacks: &[Stack], launches: &[Launch], pairs: &mut [Option<(usize, Way)>], taken: &mut [bool]) {
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
            *pair = Some((at, Way::Id));
            taken[at] = true;
        }
    }
}

/// What may belong together: the same thread; what is left over of the same process, since tools number
/// threads differently; and what is left over of that.
fn groups(
    stacks: &[Stack],
    launches: &[Launch],
    pairs: &[Option<(usize, Way)>],
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
        sort_out(group, &mut groups, processes.entry(process).or_default());
    }
    let mut rest = Group::default();
    for (_, group) in processes {
        sort_out(group, &mut groups, &mut rest);
    }
    groups.push(rest);
    groups
}

/// A group with two sides stands by itself; one side alone goes to those `beyond`.
fn sort_out(
    group: (Vec<usize>, Vec<usize>),
    groups: &mut Vec<(Vec<usize>, Vec<usize>)>,
    beyond: &mut (Vec<usize>, Vec<usize>),
) {
    if group.0.is_empty() || group.1.is_empty() {
        beyond.0.extend(group.0);
        beyond.1.extend(group.1);
    } else {
        groups.push(group);
    }
}

/// The distances of the two times nearest to `time`, of sorted ones.
fn nearest_two(times: &[i64], time: i64) -> [Option<u64>; 2] {
    let at = times.partition_point(|&other| other < time);
    let near = &times[at.saturating_sub(2)..times.len().min(at + 2)];
    let mut distances: Vec<u64> = near.iter().map(|other| other.abs_diff(time)).collect();
    distances.sort_unstable();
    [distances.first().copied(), distances.get(1).copied()]
}

/// So many stacks of a group vote for the distance of the two clocks.
const VOTERS: usize = 1_000;
/// Each for its distances to so many launches before and behind it: among them is the true one, if the clocks are
/// not farther apart than so many launches take.
const CHOICES: usize = 64;

fn vote(ours: &[i64], theirs: &[i64], tolerance: u64, votes: &mut Vec<i64>) {
    for &time in ours.iter().step_by(ours.len().div_ceil(VOTERS).max(1)) {
        let at = theirs.partition_point(|&other| other < time);
        let near = &theirs[at.saturating_sub(CHOICES)..theirs.len().min(at + CHOICES)];
        let distances = near.iter().map(|other| other.saturating_sub(time));
        votes.extend(distances.filter(|distance| distance.unsigned_abs() <= tolerance));
    }
}

/// The middle of the `width` that has most votes; of several the one nearest to 0, as where all gaps are alike.
fn most_voted(votes: &mut [i64], width: u64) -> i64 {
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
