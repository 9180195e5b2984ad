//! Computes an optimal one-to-one assignment between two lists of points on a line. The assignment minimizes the total
//! distance between the points of all pairs. The two points of a pair must be less than a limit apart.
//!
//! More precisely, the algorithm minimizes a sum of costs. The cost of a pair is the distance between its points. The
//! cost of a point in `ours` without a partner is the limit. The points of both lists are visited together in ascending
//! order, and each point may change earlier decisions:
//!
//! - a *seat* is a partner that is available to a later point in `ours`. The cost of taking the seat is the position of
//!   the later point, plus the number that is stored with the seat. The partner is a free point in `theirs`, or a point
//!   that is taken and whose present owner then returns to its earlier choice;
//! - a *regret* is the amount by which a later point in `theirs` can reduce the cost of a point in `ours` that is badly
//!   matched.
//!
//! Each point adds one seat or one regret, so the algorithm needs `n log n` steps. The problem is known as "mice and
//! holes". After all points were visited, the points that have a partner are known: each chain of changed decisions
//! ends at a point that gained or lost a partner. The points with a partner are paired in ascending order, because
//! pairs that cross each other never have a shorter total distance.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// End of a chain of changed decisions, which is the point that gains or loses a partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Ours(usize),
    Theirs(usize),
}

/// Returns the pairs of the optimal assignment as (index in `ours`, index in `theirs`). Both `ours` and `theirs` must
/// be sorted. The two points of each pair are less than `limit` apart.
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
