//! Attributes the idle time of streams to places in the code. If a launch was late, these places are the calls and
//! functions that the launching thread executed before the launch. Idle time of a stream is attributed by the same
//! rules as idle time of a whole GPU.
//!
//! For a trace, states of threads are known only for times in which a whole GPU was idle. So if a stream is idle while
//! other streams of the GPU are busy, its idle time is attributed to the late launch itself.

use super::super::findings::HostStates;
use super::collect::StreamRows;
use super::host_activity::HostActivity;
use super::state::Interval;
use gpuflame_explain::join::Launched;
use gpuflame_explain::timeline::LateLaunches;
use gpuflame_model::profile::{Profile, SampleSite};
use gpuflame_model::record::{Caller, ContextId, DeviceId, IdMap, ThreadId, WindowEdge};

/// Idle time of a stream that is attributed to one stack, or to the time between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleCulprit {
    /// Stack to which the idle time is attributed, or the two calls between which the idle time passed.
    pub site: SampleSite,
    /// Idle time in ns that is attributed to `site`.
    pub nanos: u64,
    /// Number of gaps of which `site` accounts for the largest part.
    pub gaps: u64,
}

/// Finds the culprits of idle time, and sums up their idle times for each stream.
pub(super) struct Culprits<'a> {
    profile: &'a Profile,
    states: HostStates,
    calls: LateLaunches,
    /// Threads that launch work on each GPU.
    threads: Vec<(DeviceId, Vec<ThreadId>)>,
    /// Times at which recording windows opened.
    opened: Vec<u64>,
    /// Parts of the interval that `charge` currently divides, as (site, ns).
    parts: Vec<(SampleSite, u64)>,
    sums: IdMap<SampleSite, (u64, u64)>,
}

impl<'a> Culprits<'a> {
    pub(super) fn new(activity: HostActivity, rows: &StreamRows, profile: &'a Profile) -> Self {
        let HostActivity { states, calls } = activity;
        let thread = |context| profile.context(context).map(|context| context.thread);
        let threads = if calls.is_empty() { Vec::new() } else { launching_threads(rows, &thread) };
        let calls = calls.into_iter().filter_map(|call| Some((thread(call.context)?, call))).collect();
        let opens = profile.windows().iter().filter(|(edge, _)| *edge == WindowEdge::Open);
        Self {
            profile,
            states,
            calls: LateLaunches::new(calls),
            threads,
            opened: opens.map(|(_, time)| time.0).collect(),
            parts: Vec::new(),
            sums: IdMap::default(),
        }
    }

    /// Attributes an idle interval to places in the code. Returns the place that accounts for the largest part of the
    /// interval.
    pub(super) fn charge(&mut self, device: DeviceId, interval: &Interval) -> Option<SampleSite> {
        let launched = interval.late?;
        self.divide(device, launched, (interval.start, interval.end));
        let longest = self.parts.iter().copied().max_by_key(|(_, nanos)| *nanos)?.0;
        for (site, nanos) in self.parts.drain(..) {
            let sum = self.sums.entry(site).or_default();
            *sum = (sum.0.saturating_add(nanos), sum.1);
        }
        self.sums.entry(longest).or_default().1 += 1;
        Some(longest)
    }

    fn divide(&mut self, device: DeviceId, launched: Launched, (from, to): (u64, u64)) {
        let caller = Caller::from(launched.context);
        let itself = caller.launched().map_or_else(SampleSite::Missing, SampleSite::Context);
        let thread = self.profile.context(launched.context).map(|context| context.thread);
        let Some(thread) = thread else { return self.parts.push((itself, to - from)) };
        if self.states.is_empty() {
            let at = self.opened.partition_point(|opened| *opened <= from);
            let opened = at.checked_sub(1).map_or(0, |at| self.opened[at]);
            let threads = self.threads.iter().find(|(other, _)| *other == device);
            let threads = threads.map_or(&[][..], |(_, threads)| threads);
            let times = (opened, from, to);
            self.parts.extend(self.calls.culprits((thread, launched.context), times, threads));
            return;
        }
        let mut done = from;
        for (begin, end, context) in self.states.during(thread, from, to) {
            let state = if context == ContextId::NONE { itself } else { SampleSite::Context(context) };
            self.parts.extend([(itself, begin - done), (state, end - begin)]);
            done = end;
        }
        self.parts.push((itself, to - done));
        self.parts.retain(|(_, nanos)| *nanos > 0);
    }

    /// Returns the culprits of the current stream, sorted by idle time, the longest first. Also clears the sums, so
    /// that the idle time of the next stream can be added.
    pub(super) fn take_sums(&mut self) -> Vec<IdleCulprit> {
        let sums = self.sums.drain();
        let mut culprits: Vec<_> =
            sums.map(|(site, (nanos, gaps))| IdleCulprit { site, nanos, gaps }).collect();
        culprits.sort_unstable_by_key(|one| (std::cmp::Reverse(one.nanos), one.site));
        culprits
    }
}

/// Returns, for each GPU, the threads that launch work on it.
fn launching_threads(
    rows: &StreamRows,
    thread: &dyn Fn(ContextId) -> Option<ThreadId>,
) -> Vec<(DeviceId, Vec<ThreadId>)> {
    let mut all: Vec<(DeviceId, Vec<ThreadId>)> = Vec::new();
    for (number, key) in (0..).zip(&rows.keys) {
        if all.last().is_none_or(|(device, _)| *device != key.0) {
            all.push((key.0, Vec::new()));
        }
        let Some((_, threads)) = all.last_mut() else { continue };
        let contexts: IdMap<ContextId, ()> = rows.ops_of(number).map(|op| (op.context, ())).collect();
        threads.extend(contexts.keys().filter_map(|context| thread(*context)));
        threads.sort_unstable();
        threads.dedup();
    }
    all
}
