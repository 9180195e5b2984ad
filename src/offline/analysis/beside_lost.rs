//! Finds idle time of GPUs that launches without a recorded activity may explain. A stream runs its operations in
//! order. An operation may begin late although all recorded operations before it had ended. If an operation begins
//! late, unrecorded work may have run on its stream before it. A few launches for which no activity is recorded can
//! account for most of the idle time.
//!
//! Some tools do not record the kernels of graphs. In traces of such tools, the host seems to launch late while a graph
//! runs. So if a graph has no recorded activity, the graph may have run until the next work of the launching thread
//! started, even if this next work was launched late.

use super::work_spans::{WorkSpan, WorkSpans};
use gpuflame_explain::join::Launched;
use gpuflame_explain::timeline::MAX_DELIVERY_NS;
use gpuflame_model::profile::{BesideLost, Coverage, Profile, saturating_sum};
use gpuflame_model::record::{DeviceId, ThreadId};

/// Denominator N of a share: the explained idle time is stored only if it exceeds 1/N of the steady part of the run.
/// The findings about lost time also ignore times below 1/N of the steady part.
const MIN_PART: u64 = 50;

/// A stretch of time on a device, as (device, start, end) with times in ns.
type Stretch = (DeviceId, u64, u64);

/// Stores in `profile` the idle time that launches without an activity may explain. The explained idle time is stored
/// only if it is more than half of the total idle time.
pub fn note_idle_beside_lost(profile: &mut Profile, work: &WorkSpans) {
    let is_trace = profile.coverage().is_trace;
    let is_graph = |launched: &Launched| is_trace && profile.launches_graph(launched.context);
    let lost = |launched: &&Launched| is_graph(launched) || profile.requires_activity(launched.context);
    let place = |launched: &Launched| {
        let thread = profile.context(launched.context)?.thread;
        Some((thread, launched.time.0, is_graph(launched)))
    };
    let lost: Vec<(ThreadId, u64, bool)> = work.pending.iter().filter(lost).filter_map(place).collect();
    if lost.is_empty() || work.skipped() > 0 || profile.idle_doubt().is_some() {
        return;
    }
    let streams = launched_by_stream(profile, work);
    let stretch = |&(thread, time, is_graph): &(ThreadId, u64, bool)| match is_graph {
        true => until_next_work(&streams, thread, time),
        false => longest_wait(&streams, (thread, time)),
    };
    let mut waits: Vec<Stretch> = lost.iter().filter_map(stretch).collect();
    let launches = waits.len() as u64;
    waits.sort_unstable();
    waits.dedup_by(|next, last| {
        let is_same = next.0 == last.0 && next.1 <= last.2;
        if is_same {
            last.2 = last.2.max(next.2);
        }
        is_same
    });
    let all = saturating_sum(waits.iter().map(|(_, from, to)| to - from));
    let nanos = all.saturating_sub(busy_within(work, &waits));
    let times = profile.times();
    let idle = saturating_sum(times.iter().map(|time| time.steady().idle));
    let window = saturating_sum(times.iter().map(|time| time.steady().window()));
    if nanos.saturating_mul(2) > idle && nanos.saturating_mul(MIN_PART) > window {
        let beside_lost = Some(BesideLost { launches, nanos, idle });
        profile.set_coverage(Coverage { beside_lost, ..profile.coverage().clone() });
    }
}

/// Operations that one thread launched on one stream.
struct LaunchedWork {
    thread: ThreadId,
    device: DeviceId,
    /// Launch time, start and latest end for each operation, in launch order. The latest end in an entry of `works` is
    /// the maximum of the ends of the entry's operation and of all operations launched before it.
    works: Vec<(u64, u64, u64)>,
}

fn launched_by_stream(profile: &Profile, work: &WorkSpans) -> Vec<LaunchedWork> {
    let thread = |span: &WorkSpan| {
        let launched = span.launched()?;
        Some((profile.context(launched.context)?.thread, launched.time.0))
    };
    let mut spans: Vec<_> = work
        .spans
        .iter()
        .filter_map(|span| thread(span).map(|(thread, launch)| (thread, span.stream(), launch, span)))
        .collect();
    spans.sort_unstable_by_key(|(thread, stream, launch, span)| (*thread, *stream, *launch, span.start));
    let mut streams = Vec::new();
    for of_stream in spans.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let mut until = 0;
        let works = of_stream.iter().map(|(_, _, launch, span)| {
            until = span.end.max(until);
            (*launch, span.start, until)
        });
        let works = works.collect();
        let (thread, _, _, span) = of_stream[0];
        streams.push(LaunchedWork { thread, device: work.streams.key(span).0, works });
    }
    streams
}

/// Finds the longest unexplained wait that a launch without an activity may have caused. An operation counts as waiting
/// from the end of all operations that were launched before it on its stream until its own start.
fn longest_wait(streams: &[LaunchedWork], (thread, time): (ThreadId, u64)) -> Option<Stretch> {
    let waits = streams.iter().filter(|stream| stream.thread == thread).filter_map(|stream| {
        let next = stream.works.partition_point(|(launch, ..)| *launch <= time);
        let &(launch, start, _) = stream.works.get(next)?;
        let until = next.checked_sub(1).map_or(0, |last| stream.works[last].2);
        let from = until.max(launch.saturating_add(MAX_DELIVERY_NS));
        (from < start).then_some((stream.device, from, start))
    });
    waits.max_by_key(|(_, from, start)| start - from)
}

/// Returns the stretch of time from a launch by `thread` to the start of the first work that `thread` launched
/// afterwards.
fn until_next_work(streams: &[LaunchedWork], thread: ThreadId, time: u64) -> Option<Stretch> {
    let from = time.saturating_add(MAX_DELIVERY_NS);
    let starts = streams.iter().filter(|stream| stream.thread == thread).filter_map(|stream| {
        let next = stream.works.partition_point(|(launch, ..)| *launch <= time);
        let &(_, start, _) = stream.works.get(next)?;
        Some((stream.device, from, start))
    });
    starts.min_by_key(|(.., start)| *start).filter(|(_, from, start)| from < start)
}

/// Returns the total time in ns in which devices were busy during the stretches `waits`. The stretches in `waits` must
/// be sorted and must not overlap.
fn busy_within(work: &WorkSpans, waits: &[Stretch]) -> u64 {
    let mut spans: Vec<Stretch> =
        work.spans.iter().map(|span| (work.streams.key(span).0, span.start, span.end)).collect();
    spans.sort_unstable();
    let mut busy = 0_u64;
    for of_device in waits.chunk_by(|a, b| a.0 == b.0) {
        let from = spans.partition_point(|span| span.0 < of_device[0].0);
        let to = spans.partition_point(|span| span.0 <= of_device[0].0);
        let (mut until, mut first) = (0, 0);
        for &(_, start, end) in &spans[from..to] {
            let start = start.max(until);
            while of_device.get(first).is_some_and(|(_, _, to)| *to <= start) {
                first += 1;
            }
            let within = of_device[first..].iter().take_while(|(_, from, _)| *from < end);
            busy += within.map(|(_, from, to)| end.min(*to).saturating_sub(start.max(*from))).sum::<u64>();
            until = until.max(end);
        }
    }
    busy
}
