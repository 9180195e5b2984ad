//! Adds edges to host calls that wait for other threads at barriers, locks and thread joins.
//!
//! Tools record barrier and lock calls, but do not record which barrier or lock a call uses. Therefore the times of the
//! calls decide which calls belong to one barrier or lock. Threads that are in barrier calls at the same time are
//! assumed to meet at one barrier. If a call waits for a lock, the lock is assumed to come from the thread that
//! released any lock last during the wait.

use std::collections::{BTreeMap, BTreeSet};

use super::super::instructions::ThreadWait;
use super::graph::{EdgeKind, Graph, HostCall, MAX_LATENCY_NS, MomentId};
use gpuflame_model::record::{IdMap, ThreadId};

/// Calls that wait for other threads or release a lock, each with its kind and its position in [`Graph::calls`].
pub(super) type ThreadCalls = Vec<(ThreadWait, u32)>;

/// Adds edges to the moments at which calls that wait for other threads return. Stores in `waits`, for each waiting
/// call, the time at which its wait ended.
pub(super) fn add_thread_edges(graph: &mut Graph, calls: &ThreadCalls, waits: &mut IdMap<u32, u64>) {
    if calls.is_empty() {
        return;
    }
    let of_kind = |wanted: ThreadWait| {
        let of_kind = calls.iter().filter(|(kind, _)| *kind == wanted);
        let mut calls: Vec<(HostCall, u32)> =
            of_kind.map(|(_, at)| (graph.calls[*at as usize], *at)).collect();
        calls.sort_by_key(|(call, at)| (call.begin, *at));
        calls
    };
    let barriers = of_kind(ThreadWait::Barrier);
    let (locks, unlocks) = (of_kind(ThreadWait::Lock), of_kind(ThreadWait::Unlock));
    let joins = of_kind(ThreadWait::Join);
    let mut found = Vec::new();
    for meeting in meetings(&barriers) {
        for (call, at) in meeting {
            let others = meeting.iter().filter(|(other, _)| other.thread != call.thread);
            found.extend(others.map(|(other, _)| (other.moments.0, *at)));
        }
    }
    for (call, at) in &locks {
        found.extend(release_before(&unlocks, call).map(|release| (release, *at)));
    }
    let last = if joins.is_empty() { BTreeMap::new() } else { last_calls(graph) };
    for (call, at) in &joins {
        // A join is assumed to wait for the threads that make no call after the join.
        let ended = last.iter().filter(|(thread, (end, _))| **thread != call.thread && *end <= call.end);
        found.extend(ended.map(|(_, (_, moment))| (*moment, *at)));
    }
    let locking: BTreeSet<ThreadId> = locks.iter().map(|(call, _)| call.thread).collect();
    graph.shared_locks = if locking.len() > 1 { locks.len() as u64 } else { 0 };
    graph.unclear_thread_waits = count_unclear(graph, &found, [&barriers, &locks, &joins]);
    found.into_iter().for_each(|(cause, at)| add_edge(graph, waits, cause, at));
}

/// Returns the number of waiting calls that returned long after every recorded cause of their return. Nsight Systems
/// does not record short calls, for example the call of the last thread at a barrier, or the release of a lock.
fn count_unclear(graph: &Graph, found: &[(MomentId, u32)], kinds: [&[(HostCall, u32)]; 3]) -> u64 {
    let mut latest: IdMap<u32, u64> = IdMap::default();
    for (cause, at) in found {
        let known = latest.entry(*at).or_default();
        *known = graph.time(*cause).max(*known);
    }
    let is_unclear = |(call, at): &&(HostCall, u32)| {
        let cause = latest.get(at).copied().unwrap_or(0).max(call.begin);
        call.end > cause.saturating_add(MAX_LATENCY_NS)
    };
    kinds.into_iter().flatten().filter(is_unclear).count() as u64
}

/// Divides barrier calls into groups whose calls meet at one barrier. All calls of a group begin before any call of the
/// group returns.
fn meetings(barriers: &[(HostCall, u32)]) -> Vec<&[(HostCall, u32)]> {
    let (mut first_end, mut threads) = (0, BTreeSet::new());
    let (mut groups, mut from) = (Vec::new(), 0);
    for (at, (call, _)) in barriers.iter().enumerate() {
        if at > from && (call.begin > first_end || threads.contains(&call.thread)) {
            groups.push(&barriers[from..at]);
            from = at;
        }
        if at == from {
            threads.clear();
            first_end = u64::MAX;
        }
        threads.insert(call.thread);
        first_end = call.end.min(first_end);
    }
    groups.push(&barriers[from..]);
    groups
}

/// Finds the last release of any lock that another thread began while the call `lock` was waiting, and returns the
/// moment of this begin.
fn release_before(unlocks: &[(HostCall, u32)], lock: &HostCall) -> Option<MomentId> {
    let until = unlocks.partition_point(|(unlock, _)| unlock.begin <= lock.end);
    let during = unlocks[..until].iter().rev().take_while(|(unlock, _)| unlock.begin > lock.begin);
    let mut others = during.filter(|(unlock, _)| unlock.thread != lock.thread);
    others.next().map(|(unlock, _)| unlock.moments.0)
}

/// Returns the end of each thread's last call.
fn last_calls(graph: &Graph) -> BTreeMap<ThreadId, (u64, MomentId)> {
    let mut last: BTreeMap<ThreadId, (u64, MomentId)> = BTreeMap::new();
    for call in &graph.calls {
        let known = last.entry(call.thread).or_insert((call.end, call.moments.1));
        *known = (*known).max((call.end, call.moments.1));
    }
    last
}

fn add_edge(graph: &mut Graph, waits: &mut IdMap<u32, u64>, cause: MomentId, call: u32) {
    let HostCall { begin, end, moments, .. } = graph.calls[call as usize];
    let (time, rank) = (graph.time(cause), graph.moments[cause as usize].rank);
    if time > end {
        return;
    }
    // The moment at which the call returns must sort after the moment that caused the return, even if both moments have
    // the same time.
    let returned = &mut graph.moments[moments.1 as usize];
    returned.rank = returned.rank.max(rank);
    graph.add_edge(cause, moments.1, EdgeKind::ThreadWait, 0);
    if time > begin {
        let until = waits.entry(call).or_insert(time);
        *until = time.max(*until);
    }
}
