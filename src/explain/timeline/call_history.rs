//! Stores the API calls of each thread, and the pauses between them, to find out why a launch of the thread was late. A
//! pause is described by the call before it and the call after it.
//!
//! ```text
//!   thread   ---P---|        busy elsewhere           |---L---     P, L: two calls, one after another
//!   GPU      ####|. . . . . . . . . . . . . . . . . . . . . |###   earlier work          work of L
//!            to P | between P and L: activity is not known  |
//! ```
//!
//! Only long calls and long pauses are stored. Old calls and pauses are dropped, because each gap in a GPU's work is
//! accounted for soon after it ends. A *piece* is one long call or one long pause.

use std::collections::VecDeque;

use super::idle_culprit::IdleCulprit;
use super::stretches::LaunchSpan;
use gpuflame_model::record::{Caller, ContextId, IdMap, ThreadId, map_bytes};

/// Minimum duration in ns of a call or pause that is stored. If a program makes launches without a break, about 100,000
/// per second, all its calls and pauses are shorter than this duration.
const MIN_PIECE_NS: u64 = 10_000;
/// Maximum number of pieces (calls and pauses) that are stored. A piece (call or pause) takes 24 bytes.
const MAX_PIECES: usize = (1 << 17) - 2;
/// When this number is reached, calls and pauses that cannot overlap any future gap are dropped.
const PIECES_HIGH_WATER: usize = 1 << 13;
/// Maximum number of threads whose calls are stored, and maximum number of culprit threads that are reported
/// separately.
const MAX_THREADS: usize = 4096;
const MAX_CULPRIT_THREADS: usize = 64;
/// Number of threads that are searched for a culprit. The thread that made the most recent launch is searched first.
const MAX_RECENT_THREADS: usize = 16;

/// Long calls and long pauses of all threads. See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct CallHistory {
    threads: IdMap<ThreadId, ThreadHistory>,
    /// The threads that made the most recent launches, newest first.
    recent: Vec<ThreadId>,
    /// Total number of stored pieces (calls and pauses) of all threads.
    pieces: usize,
    /// When this number of pieces (calls and pauses) is reached, unneeded pieces are dropped again.
    drop_at: usize,
    max_pieces: usize,
}

/// Culprit threads, which are threads that delayed the launches of other threads. At most [`MAX_CULPRIT_THREADS`]
/// culprit threads are distinguished.
#[derive(Clone, Debug, Default)]
pub(super) struct CulpritThreads(Vec<ThreadId>);

impl CulpritThreads {
    /// Returns `thread`, or `ThreadId::OTHERS` if the maximum number of threads is already reported separately.
    fn name(&mut self, thread: ThreadId) -> ThreadId {
        let is_known = self.0.contains(&thread);
        if !is_known && self.0.len() < MAX_CULPRIT_THREADS {
            self.0.push(thread);
            return thread;
        }
        if is_known { thread } else { ThreadId::OTHERS }
    }
}

#[derive(Clone, Debug, Default)]
struct ThreadHistory {
    last: Option<CallSpan>,
    /// The latest sequence of short calls with short pauses: the start time and the context of its first call.
    run: Option<(u64, ContextId)>,
    /// Pieces of the thread in order of time. The calls and pauses of a thread do not overlap.
    pieces: VecDeque<HistoryPiece>,
}

/// An API call, with the times at which it began and ended.
#[derive(Clone, Copy, Debug)]
struct CallSpan {
    begun: u64,
    ended: u64,
    call: ContextId,
}

/// A long period in a thread's history: either a call, or the pause between two calls.
#[derive(Clone, Copy, Debug)]
struct HistoryPiece {
    since: u64,
    until: u64,
    /// Context of the call. For a pause, context of the call after the pause.
    call: ContextId,
    /// Context of the call before the pause. The value is [`HistoryPiece::CALL`] if this piece of the history is a
    /// call. The value is [`HistoryPiece::BEGINNING`] if this piece is the pause before the thread's first call.
    after: ContextId,
}

const _: () = assert!(size_of::<HistoryPiece>() == 24, "a piece grew: up to 131,072 pieces are stored");

impl HistoryPiece {
    const CALL: ContextId = ContextId::NONE;
    const BEGINNING: ContextId = ContextId::OUTSIDE;

    fn is_call(&self) -> bool {
        self.after == Self::CALL
    }

    /// Returns the context of the call before the pause, if it is known.
    fn after(&self) -> Option<ContextId> {
        (self.after >= ContextId::FIRST).then_some(self.after)
    }
}

impl Default for CallHistory {
    fn default() -> Self {
        Self {
            threads: IdMap::default(),
            recent: Vec::new(),
            pieces: 0,
            drop_at: PIECES_HIGH_WATER,
            max_pieces: MAX_PIECES,
        }
    }
}

impl CallHistory {
    /// Creates a history that uses at most about `bytes` bytes.
    pub(super) fn bounded(bytes: usize) -> Self {
        let max_pieces = (bytes / size_of::<HistoryPiece>()).min(MAX_PIECES);
        Self { max_pieces, drop_at: PIECES_HIGH_WATER.min(max_pieces), ..Self::default() }
    }

    /// Adds a call that has returned, or a launch that is still in progress. The calls of each thread must be added in
    /// order of time.
    pub(super) fn add(&mut self, id: ThreadId, begun: u64, ended: u64, call: ContextId) {
        self.add_any(id, (begun, ended), call, false);
    }

    fn add_any(&mut self, id: ThreadId, (begun, ended): (u64, u64), call: ContextId, launches: bool) {
        if !self.threads.contains_key(&id) && self.threads.len() >= MAX_THREADS {
            self.forget_threads();
        }
        let thread = self.threads.entry(id).or_default();
        let count_before = thread.pieces.len();
        let last_until = thread.pieces.back().map_or(0, |piece| piece.until);
        if thread.continue_run((begun, ended), call, launches) {
            thread.last = Some(CallSpan { begun, ended, call });
            self.pieces += thread.pieces.len() - count_before;
            return;
        }
        match thread.last {
            None => {
                thread.push(HistoryPiece { since: 0, until: begun, call, after: HistoryPiece::BEGINNING })
            }
            // If a call began before the previous call that was added for its thread, its row was delayed, or the clock
            // was set.
            Some(last) if ended < last.ended => return,
            // After a long call, even a short pause is stored, because the call at the end of the pause shows which
            // thread made the next launch.
            Some(CallSpan { ended: since, call: after, .. })
                if begun >= since.saturating_add(MIN_PIECE_NS) || since == last_until && begun > since =>
            {
                thread.push(HistoryPiece { since, until: begun, call, after });
            }
            _ => {}
        }
        if ended.saturating_sub(begun) >= MIN_PIECE_NS {
            thread.push(HistoryPiece { since: begun, until: ended, call, after: HistoryPiece::CALL });
        }
        thread.last = Some(CallSpan { begun, ended, call });
        self.pieces += thread.pieces.len() - count_before;
    }

    /// Adds a launch. The calls and launches of each thread must be added in order of time, as for
    /// [`CallHistory::add`].
    pub(super) fn add_launch(&mut self, id: ThreadId, begun: u64, ended: u64, call: ContextId) {
        self.add_any(id, (begun, ended), call, true);
        if self.recent.first() != Some(&id) {
            self.recent.retain(|other| *other != id);
            self.recent.truncate(MAX_RECENT_THREADS - 1);
            self.recent.insert(0, id);
        }
    }

    /// Returns the thread that made the late launch `call`. Returns `None` if this thread is unknown.
    pub(super) fn launching_thread(&self, call: &LaunchSpan) -> Option<ThreadId> {
        if let [only] = self.recent[..] {
            return Some(only);
        }
        let by = call.caller.launched().ok()?;
        let is_it =
            |id: &&ThreadId| self.threads.get(*id).is_some_and(|thread| thread.was_busy_until(call.time, by));
        self.recent.iter().find(is_it).copied()
    }

    /// Divides the time `from..to`, during which the launch `call` was late, among the culprits (calls and pauses
    /// between calls). Returns the culprits in order of time. `opened` is the time at which the window opened. Calls
    /// before `opened` are ignored. `threads` contains the threads that launch on the same GPU; `None` means all
    /// threads.
    pub(super) fn blame(
        &self,
        call: &LaunchSpan,
        (opened, from, to): (u64, u64, u64),
        threads: Option<&[ThreadId]>,
        culprit_threads: &mut CulpritThreads,
    ) -> Vec<(IdleCulprit, u64)> {
        match self.launching_thread(call) {
            Some(id) => self.blame_thread((id, call.caller), (opened, from, to), threads, culprit_threads),
            None => vec![(IdleCulprit::Caller(call.caller), to - from)],
        }
    }

    /// Divides the time `from..to` as [`CallHistory::blame`] does, for a late launch that the thread `id` made.
    pub(super) fn blame_thread(
        &self,
        (id, caller): (ThreadId, Caller),
        (opened, from, to): (u64, u64, u64),
        threads: Option<&[ThreadId]>,
        culprit_threads: &mut CulpritThreads,
    ) -> Vec<(IdleCulprit, u64)> {
        let itself = IdleCulprit::Caller(caller);
        let Some(thread) = self.threads.get(&id) else { return vec![(itself, to - from)] };
        let others = threads.unwrap_or(&self.recent).iter().filter(|other| **other != id);
        let (mut blamed, mut done) = (Vec::new(), from);
        for piece in thread.overlapping(from, to) {
            let (since, until) = (piece.since.max(from), piece.until.min(to));
            blamed.push((itself, since - done));
            done = until;
            if piece.is_call() {
                blamed.push((IdleCulprit::Caller(piece.call.into()), until - since));
                continue;
            }
            // Calls before the window opened were not recorded.
            let own = piece.after().filter(|_| piece.since >= opened);
            let returned = own.map_or(opened, |_| piece.since);
            let made = others
                .clone()
                .filter_map(|other| Some((*other, self.threads.get(other)?.last_call_at(since)?)));
            let later = made.filter(|(_, made)| made.ended > returned).max_by_key(|(_, made)| made.ended);
            let pause =
                |after, thread, nanos| (IdleCulprit::Pause { after, thread, before: piece.call }, nanos);
            match (later, own) {
                (None, Some(call)) => blamed.push(pause(call, None, until - since)),
                (None, None) => blamed.push((itself, until - since)),
                (Some((other, made)), _) => {
                    let ended = made.ended.clamp(since, until);
                    blamed.push((IdleCulprit::Caller(made.call.into()), ended - since));
                    blamed.push(pause(made.call, Some(culprit_threads.name(other)), until - ended));
                }
            }
        }
        blamed.push((itself, to - done));
        blamed.retain(|(_, nanos)| *nanos > 0);
        blamed
    }

    /// Whether so many calls and pauses are stored that [`CallHistory::forget`] should be called.
    pub(super) fn is_crowded(&self) -> bool {
        self.pieces >= self.drop_at
    }

    /// Calls `is_over` with the time of each call and pause, and drops those for which it returns true. `is_over` must
    /// return true only if no future gap can overlap the time. If too many calls and pauses remain, the older half of
    /// them is dropped.
    pub(super) fn forget(&mut self, is_over: impl Fn(u64, u64) -> bool) {
        for thread in self.threads.values_mut() {
            thread.pieces.retain(|piece| !is_over(piece.since, piece.until));
            thread.pieces.shrink_to(2 * thread.pieces.len());
        }
        self.count_pieces();
        if self.pieces >= self.max_pieces {
            for thread in self.threads.values_mut() {
                thread.pieces.drain(..thread.pieces.len() / 2);
            }
            self.count_pieces();
        }
        self.drop_at = (2 * self.pieces).clamp(PIECES_HIGH_WATER.min(self.max_pieces), self.max_pieces);
    }

    /// Replaces each context by the context that the function `context` returns for it.
    pub(super) fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        for thread in self.threads.values_mut() {
            if let Some(last) = &mut thread.last {
                last.call = context(last.call);
            }
            if let Some((_, call)) = &mut thread.run {
                *call = context(*call);
            }
            for piece in &mut thread.pieces {
                piece.call = context(piece.call);
                if let Some(after) = piece.after() {
                    piece.after = context(after);
                }
            }
        }
    }

    /// Drops the half of the threads that have made no call for the longest time. Threads that have made no call for a
    /// long time have usually exited.
    fn forget_threads(&mut self) {
        let mut ends: Vec<u64> = self.threads.values().map(ThreadHistory::ended).collect();
        let (_, &mut middle, _) = ends.select_nth_unstable(MAX_THREADS / 2);
        self.threads.retain(|_, thread| thread.ended() > middle);
        self.count_pieces();
    }

    fn count_pieces(&mut self) {
        self.pieces = self.threads.values().map(|thread| thread.pieces.len()).sum();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let pieces = self.threads.values().map(|thread| thread.pieces.capacity() * size_of::<HistoryPiece>());
        pieces.sum::<usize>() + map_bytes(&self.threads)
    }
}

impl ThreadHistory {
    /// If a short call directly follows a sequence of short calls, adds it to the sequence. A sequence is stored as one
    /// long call with the context of its first call, because a thread that polls a thousand times is as busy as in one
    /// long call. Returns false if the call does not belong to a sequence that lasted at least [`MIN_PIECE_NS`]. A
    /// launch never belongs to a sequence, because consecutive launches do not explain idle time.
    fn continue_run(&mut self, (begun, ended): (u64, u64), call: ContextId, launches: bool) -> bool {
        let is_short = !launches && ended.saturating_sub(begun) < MIN_PIECE_NS;
        let continues = self
            .last
            .is_some_and(|last| ended >= last.ended && begun < last.ended.saturating_add(MIN_PIECE_NS));
        self.run = match self.run {
            _ if !is_short => None,
            Some(run) if continues => Some(run),
            _ => Some((begun, call)),
        };
        let Some((since, first)) = self.run.filter(|(since, _)| ended >= since.saturating_add(MIN_PIECE_NS))
        else {
            return false;
        };
        match self.pieces.back_mut().filter(|piece| piece.since == since && piece.is_call()) {
            Some(piece) => piece.until = ended,
            None => self.push(HistoryPiece { since, until: ended, call: first, after: HistoryPiece::CALL }),
        }
        true
    }

    fn push(&mut self, piece: HistoryPiece) {
        // If the previous piece overlaps the new piece, the previous piece is a call that was added before its end was
        // known.
        if let Some(last) = self.pieces.back_mut()
            && last.until > piece.since
        {
            last.until = piece.since;
        }
        self.pieces.push_back(piece);
    }

    /// Whether this history contains a pause that ended at `time`, when the thread began `call`.
    fn was_busy_until(&self, time: u64, call: ContextId) -> bool {
        let at = self.pieces.partition_point(|piece| piece.until < time);
        let ending_now = self.pieces.range(at..).take_while(|piece| piece.until == time);
        ending_now.into_iter().any(|piece| !piece.is_call() && piece.call == call)
    }

    fn ended(&self) -> u64 {
        self.last.map_or(0, |last| last.ended)
    }

    /// Returns the calls and pauses of the thread that overlap the time `from..to`.
    fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = &HistoryPiece> {
        let first = self.pieces.partition_point(|piece| piece.until <= from);
        self.pieces.range(first..).take_while(move |piece| piece.since < to)
    }

    /// Returns the latest call that the thread began at or before `time`, or `None` if this call is unknown.
    fn last_call_at(&self, time: u64) -> Option<CallSpan> {
        let behind = self.pieces.partition_point(|piece| piece.since <= time);
        match behind.checked_sub(1).map(|at| self.pieces[at]).filter(|piece| piece.until > time) {
            Some(piece) if piece.is_call() => {
                Some(CallSpan { begun: piece.since, ended: piece.until, call: piece.call })
            }
            Some(piece) => Some(CallSpan { begun: piece.since, ended: piece.since, call: piece.after()? }),
            None => self.last.filter(|last| last.begun <= time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// Begin and end of a launch in us, and the id of the launch's context.
    type Times = (u64, u64, u32);

    /// Returns a history in which each thread of `known` makes the launches given for it.
    fn calls(known: &[(u32, &[Times])]) -> CallHistory {
        let mut calls = CallHistory::default();
        for (thread, all) in known {
            for &(begun, ended, call) in *all {
                calls.add_launch(ThreadId(*thread), begun * US, ended * US, ContextId(call));
            }
        }
        calls
    }

    /// Returns the culprits for the gap `from..to`, which ended with the launch `call` at `to`. The times in the result
    /// are in us.
    fn blame(
        calls: &CallHistory,
        (opened, from, to): (u64, u64, u64),
        call: u32,
        threads: &[u32],
    ) -> Vec<String> {
        let threads: Vec<_> = threads.iter().copied().map(ThreadId).collect();
        let call = LaunchSpan { time: to * US, duration: 1, caller: ContextId(call).into() };
        let times = (opened * US, from * US, to * US);
        let blamed = calls.blame(&call, times, Some(&threads), &mut CulpritThreads::default());
        let text = |(who, nanos): (IdleCulprit, u64)| {
            assert_eq!(nanos % US, 0);
            let what = match who {
                IdleCulprit::Caller(by) => by.launched().unwrap().0.to_string(),
                IdleCulprit::Pause { after, thread: None, before } => format!("{}-{}", after.0, before.0),
                IdleCulprit::Pause { after, thread: Some(thread), before } => {
                    format!("{}/{}-{}", thread.0, after.0, before.0)
                }
            };
            format!("{what} {}", nanos / US)
        };
        blamed.into_iter().map(text).collect()
    }

    #[test]
    fn a_gap_is_split_into_the_first_calls_own_time_and_the_rest() {
        // In each test case below, the gap ends with call 102 at 500 us. Call 101 ended at 70 us.
        let calls = calls(&[(1, &[(0, 5, 100), (20, 70, 101), (500, 505, 102)])]);
        assert_eq!(blame(&calls, (0, 50, 500), 102, &[1]), ["101 20", "101-102 430"]);
        assert_eq!(blame(&calls, (0, 100, 500), 102, &[1]), ["101-102 400"]);
        assert_eq!(blame(&calls, (60, 100, 500), 102, &[1]), ["101-102 400"], "call 101 ended in the window");
        assert_eq!(
            blame(&calls, (80, 100, 500), 102, &[1]),
            ["102 400"],
            "calls before the window are unknown"
        );
    }

    #[test]
    fn a_gap_is_split_at_calls_inside_it() {
        let calls = calls(&[(1, &[(0, 5, 100), (200, 260, 103), (262, 263, 104), (300, 304, 102)])]);
        assert_eq!(
            blame(&calls, (0, 10, 300), 102, &[1]),
            ["100-103 190", "103 60", "103-104 2", "102 1", "104-102 37"]
        );
    }

    #[test]
    fn a_thread_that_makes_short_calls_in_a_row_is_busy_with_the_first_of_them() {
        let mut calls = CallHistory::default();
        let mut add = |begun: u64, ended: u64, call| {
            calls.add(ThreadId(1), begun * US, ended * US, ContextId(call));
        };
        // The thread makes calls of 3 us every 4 us from 100 to 499 us, then pauses for 40 us, and then makes one more
        // call.
        (0..100).for_each(|at| add(100 + 4 * at, 103 + 4 * at, 103 + (at % 2) as u32));
        add(539, 541, 105);
        calls.add_launch(ThreadId(1), 600 * US, 605 * US, ContextId(102));
        assert_eq!(
            blame(&calls, (0, 90, 600), 102, &[1]),
            ["102 10", "103 399", "104-105 40", "102 2", "105-102 59"]
        );
        assert_eq!(calls.pieces, 4);
    }

    #[test]
    fn another_threads_last_gpu_call_is_the_culprit_if_it_is_later() {
        let all: [(u32, &[Times]); 2] =
            [(1, &[(0, 5, 100), (900, 905, 102)]), (2, &[(300, 305, 200), (306, 330, 201)])];
        let one = calls(&all);
        assert_eq!(blame(&one, (0, 340, 900), 102, &[1, 2]), ["2/201-102 560"]);
        assert_eq!(blame(&one, (0, 310, 900), 102, &[1, 2]), ["201 20", "2/201-102 570"]);
        assert_eq!(blame(&one, (0, 340, 900), 102, &[1]), ["100-102 560"], "thread 2 uses another GPU");
        assert_eq!(blame(&one, (0, 200, 900), 102, &[1, 2]), ["100-102 700"], "thread 2 had not begun");
        // Thread 2 made its first call after the call of thread 1.
        assert_eq!(blame(&one, (0, 100, 300), 200, &[1, 2]), ["1/100-200 200"]);
        assert_eq!(blame(&one, (6, 100, 300), 200, &[1, 2]), ["200 200"], "call 100 is before the window");
    }

    #[test]
    fn short_calls_use_constant_memory() {
        let mut calls = CallHistory::default();
        for at in 0..1_000_000_u64 {
            calls.add_launch(ThreadId(1), at * 9 * US, at * 9 * US + 3 * US, ContextId(7));
        }
        assert_eq!(calls.pieces, 1);
        assert!(calls.heap_bytes() < 1 << 14, "{}", calls.heap_bytes());
    }

    #[test]
    fn stored_calls_are_bounded_even_if_none_can_be_forgotten() {
        let mut calls = CallHistory::default();
        let mut max_pieces = 0;
        for at in 0..1_000_000_u64 {
            let thread = if at % 3 == 0 { 1 } else { 10 + at as u32 };
            calls.add_launch(ThreadId(thread), at * 50 * US, at * 50 * US + 20 * US, ContextId(7));
            if calls.is_crowded() {
                calls.forget(|_, until| until < at.saturating_sub(1000) * 50 * US);
            }
            max_pieces = max_pieces.max(calls.pieces);
        }
        assert!(max_pieces <= PIECES_HIGH_WATER && calls.threads.len() <= MAX_THREADS, "{max_pieces}");
        for at in 0..1_000_000_u64 {
            calls.add(ThreadId(1), at * 50 * US, at * 50 * US + 20 * US, ContextId(7));
            if calls.is_crowded() {
                calls.forget(|_, _| false);
            }
            max_pieces = max_pieces.max(calls.pieces);
        }
        assert!(
            max_pieces <= MAX_PIECES + 2 && calls.heap_bytes() <= 5 << 20,
            "{max_pieces} in {}",
            calls.heap_bytes()
        );
    }
}
