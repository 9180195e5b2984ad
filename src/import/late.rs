//! What a thread was in while a GPU had nothing to do and waited for its launch.
//!
//! The launch that ended a gap is the victim of whatever its thread did before. So where the host was late the gap is cut
//! wherever the innermost open slice of that thread changes. A slice that only frames what is in it (a range, a step)
//! says little, and no open slice says nothing: there the piece is what lies *between* two slices.

use super::names::NameNumbers;
use super::slices::{Interval, ROOT, Rank, StackTree};
use super::text::Text;
use super::work::{CallRecord, OpRecord};
use crate::record::IdMap;

/// Python's own wait for another thread.
const LOCK: &str = "'acquire' of '_thread.";
/// What stands upon it.
const WAITS: &str = "[waits for another thread]";

/// When a thread was late, and what it was in. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// The times that are asked for, in order and apart.
    spans: Vec<(i64, i64)>,
    /// The first of them that is not over.
    at: usize,
    /// What the thread is in since when.
    now: (i64, Was),
    /// The slice that ended last, at the same depth.
    before: Option<u32>,
    /// What it was in: since when, and in which stack; at the end of a span, in none.
    pub(super) found: Vec<(i64, u32)>,
    /// Names that no slice has.
    pub(super) names: Names,
}

#[derive(Clone, Copy, Debug)]
enum Was {
    /// In this stack.
    In(u32),
    /// In this stack, whose innermost slice is no more than a frame for others.
    Around(u32),
}

impl Default for Was {
    fn default() -> Self {
        Self::Around(ROOT)
    }
}

/// The names of what lies between two slices, and of all slices.
#[derive(Debug, Default)]
pub(super) struct Names {
    labels: NameNumbers,
    /// The labels that we made of two others, and of locks.
    made: IdMap<(u32, u32), u32>,
    waits: IdMap<u32, bool>,
}

const NOTHING: u32 = u32::MAX;

impl Names {
    /// Those of a trace.
    pub(super) fn new(labels: NameNumbers) -> Self {
        Self { labels, ..Self::default() }
    }

    /// The same, and those that were made.
    pub(super) fn into_labels(self) -> NameNumbers {
        self.labels
    }

    fn between(&mut self, before: Option<u32>, after: Option<u32>) -> Option<u32> {
        let (a, b) = (before.unwrap_or(NOTHING), after.unwrap_or(NOTHING));
        if let Some(&made) = self.made.get(&(a, b)) {
            return Some(made);
        }
        let name = |label| self.labels.text(label);
        let text = match (before, after) {
            (Some(before), Some(after)) => format!("[between {} and {}]", name(before), name(after)),
            (Some(before), None) => format!("[after {}]", name(before)),
            (None, Some(after)) => format!("[before {}]", name(after)),
            (None, None) => return None,
        };
        let made = self.labels.number(Text::from(&*text));
        self.made.insert((a, b), made);
        Some(made)
    }

    /// The label that says so where `label` waits for another thread.
    fn waits(&mut self, label: u32) -> Option<u32> {
        let waits = *self.waits.entry(label).or_insert_with(|| self.labels.text(label).contains(LOCK));
        waits.then(|| self.labels.number(Text::from(WAITS)))
    }
}

impl Late {
    /// The spans of one thread, in any order.
    pub(super) fn new(mut spans: Vec<(i64, i64)>, names: Names) -> Self {
        spans.sort_unstable();
        spans.dedup_by(|next, kept| {
            let touch = next.0 <= kept.1;
            if touch {
                kept.1 = kept.1.max(next.1);
            }
            touch
        });
        Self { spans, names, now: (i64::MIN, Was::default()), ..Self::default() }
    }

    /// Whether what happens before `time` is asked for.
    pub(super) fn is_near(&self, time: i64) -> bool {
        self.spans.get(self.at).is_some_and(|(from, _)| *from < time)
    }

    /// A slice begins.
    pub(super) fn begins(&mut self, slice: &Interval, node: u32, tree: &mut StackTree) {
        if self.at == self.spans.len() {
            return;
        }
        self.until(slice.start, Some(slice.label()), tree);
        self.before = None;
        self.now = (slice.start, was(node, slice.rank()));
        if let Some(label) = (slice.rank() == Rank::Python).then(|| self.names.waits(slice.label())).flatten()
        {
            self.now.1 = Was::In(tree.child((node, label, Rank::Call)));
        }
    }

    /// Slices end; of them the one that was innermost, and what is still open.
    pub(super) fn ends(&mut self, time: i64, over: Option<(u32, Option<(u32, Rank)>)>, tree: &mut StackTree) {
        self.until(time, None, tree);
        let Some((label, open)) = over else { return };
        self.before = Some(label);
        self.now = (time, open.map_or_else(Was::default, |(node, rank)| was(node, rank)));
    }

    /// What the thread was in lasted until `time`, at which `next` begins.
    fn until(&mut self, time: i64, next: Option<u32>, tree: &mut StackTree) {
        let (since, was) = self.now;
        while let Some(&(from, to)) = self.spans.get(self.at)
            && from < time
        {
            let begin = from.max(since);
            if begin < to.min(time) {
                let stack = match was {
                    Was::In(stack) => stack,
                    Was::Around(stack) => match self.names.between(self.before, next) {
                        Some(label) => tree.child((stack, label, Rank::Range)),
                        None => stack,
                    },
                };
                self.found.push((begin, stack));
            }
            if to > time {
                return;
            }
            self.found.push((to, ROOT));
            self.at += 1;
        }
    }
}

fn was(node: u32, rank: Rank) -> Was {
    if rank == Rank::Range { Was::Around(node) } else { Was::In(node) }
}

/// By thread, the times in which a GPU had nothing to do and the thread had not yet launched what came next.
pub(super) fn spans(ops: &[OpRecord], calls: &[CallRecord], threads: usize) -> Vec<Vec<(i64, i64)>> {
    let mut spans = vec![Vec::new(); threads];
    let called = |op: &OpRecord| op.call.map(|call| &calls[call as usize]);
    let mut order: Vec<u32> = (0..).zip(ops).filter(|(_, op)| op.end > op.start).map(|(at, _)| at).collect();
    order.sort_unstable_by_key(|&at| {
        let op = &ops[at as usize];
        (op.device, op.start, called(op).map_or(i64::MIN, |call| call.start))
    });
    let mut busy: Option<(u32, i64)> = None;
    for op in order.into_iter().map(|at| &ops[at as usize]) {
        let until = busy.filter(|(device, _)| *device == op.device).map_or(op.start, |(_, until)| until);
        if let Some(call) = called(op) {
            let late = call.start.clamp(until, op.start.max(until));
            if late > until {
                spans[call.thread as usize].push((until, late));
            }
        }
        busy = Some((op.device, until.max(op.end)));
    }
    spans
}
