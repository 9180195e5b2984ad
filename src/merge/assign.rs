//! The best one-to-one assignment of points on a line: as near as possible in all, none beyond a limit.
//!
//! Minimises the sum over all pairs of their distance, where a point of ours without a partner costs the
//! limit. Points of both sides are taken in order, and each may take back what was decided before:
//!
//! - a *seat* is what a later point of ours can still get, for `its position + cost`: one of theirs that
//!   is free, or one that is taken, whose owner then falls back to what it had before;
//! - a *regret* is what a later point of theirs can offer to one of ours that is badly off.
//!
//! Each point makes one of either, so this is `n log n` (the problem is known as mice and holes). Which
//! points are in a pair follows from who stands at the ends of such chains; who with whom then follows
//! from the order, since crossing pairs are never nearer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a chain of changed decisions ends in: the point that gains or loses its partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Ours(usize),
    Theirs(usize),
}

/// The pairs (position in `ours`, position in `theirs`), both sorted. Pairs lie nearer than `limit`.
pub fn assign(ours: &[i64], theirs: &[i64], limit: u64) -> Vec<(usize, usize)> {
    let limit = i128::from(limit);
    let mut is_paired = (vec![false; ours.len()], vec![false; theirs.len()]);
    let mut toggle = |end: End| match end {
        End::Ours(at) => is_paired.0[at] = !is_paired.0[at],
        End::Theirs(at) => is_paired.1[at] = !is_paired.1[at],
    };
    let mut seats: BinaryHeap<Reverse<(i128, End)>> = BinaryHeap::new();
    let mut regrets: BinaryHeap<Reverse<(i128, End)>> = BinaryHeap::new();
    let (mut our, mut their) = (0, 0);
    while our < ours.len() || their < theirs.len() {
        if their == theirs.len() || (our < ours.len() && ours[our] <= theirs[their]) {
            let at = i128::from(ours[our]);
            let (cost, end) = match seats.peek() {
                Some(&Reverse((seat, end))) if at + seat < limit => {
                    seats.pop();
                    toggle(End::Ours(our));
                    toggle(end);
                    (at + seat, end)
                }
                _ => (limit, End::Ours(our)),
            };
            regrets.push(Reverse((-at - cost, end)));
            our += 1;
        } else {
            let at = i128::from(theirs[their]);
            let (gain, end) = match regrets.peek() {
                Some(&Reverse((regret, end))) if at + regret < 0 => {
                    regrets.pop();
                    toggle(End::Theirs(their));
                    toggle(end);
                    (at + regret, end)
                }
                _ => (0, End::Theirs(their)),
            };
            seats.push(Reverse((-at - gain, end)));
            their += 1;
        }
    }
    let paired =
        |is_paired: Vec<bool>| is_paired.into_iter().enumerate().filter(|(_, is)| *is).map(|(at, _)| at);
    paired(is_paired.0).zip(paired(is_paired.1)).collect()
}
