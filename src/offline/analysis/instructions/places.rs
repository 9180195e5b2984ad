//! Finds the CUDA context and the device of a stream, for rows that do not contain them.

use std::collections::BTreeSet;

use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_explain::join::Origin;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{
    CorrelationId, DeviceId, GpuContextId, IdMap, StreamId, SyncKind, SyncRecord, ThreadId,
};

use super::super::states::StreamKey;
use super::blocking_work::BlockingWork;
use super::order::{GraphLaunch, Source, stream_key};

/// Id that CUPTI gives to the legacy default stream of a CUDA context.
const DEFAULT_STREAM: StreamId = StreamId(7);

/// A wait on a stream whose id occurs in several CUDA contexts.
struct Wait {
    id: CorrelationId,
    stream: StreamId,
    /// Start and end of the call that made the stream wait.
    call: (u64, u64),
}

/// CUDA contexts and streams of a run. The contexts and streams are looked up for rows that contain a stream but not
/// its device.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Device of each CUDA context in which work ran. The device is `None` if work in the context ran on several
    /// devices, which happens if the data does not distinguish contexts.
    devices: IdMap<GpuContextId, Option<DeviceId>>,
    streams: IdMap<(GpuContextId, StreamId), ()>,
    /// For each stream id, the CUDA context of the stream, or `None` if the id occurs in several CUDA contexts.
    contexts: IdMap<StreamId, Option<GpuContextId>>,
    /// CUDA contexts of the waits on streams whose ids occur in several CUDA contexts, keyed by the wait's correlation
    /// id. The context is `None` if it is ambiguous.
    of_waits: IdMap<CorrelationId, Option<GpuContextId>>,
    /// Number of waits whose CUDA context is ambiguous.
    pub(super) unclear_waits: u64,
}

impl Places {
    pub(super) fn new(rows: &JoinedRows) -> Self {
        let mut places = Self::default();
        let mut last = None;
        for JoinedActivity { activity, .. } in rows.activities() {
            let place = stream_key(&activity);
            if last.replace(place) == Some(place) {
                continue;
            }
            let known = places.devices.entry(activity.context).or_insert(Some(activity.device));
            *known = known.filter(|device| *device == activity.device);
            places.add_stream(activity.context, activity.stream);
        }
        rows.event_records().iter().for_each(|record| places.add_stream(record.context, record.stream));
        places
    }

    pub(super) fn add_stream(&mut self, context: GpuContextId, stream: StreamId) {
        if self.streams.insert((context, stream), ()).is_none() {
            let known = self.contexts.entry(stream).or_insert(Some(context));
            *known = known.filter(|known| *known == context);
        }
    }

    /// Returns the device of a CUDA context, if it is known.
    pub(super) fn device_of(&self, context: GpuContextId) -> Option<DeviceId> {
        self.devices.get(&context).copied().flatten()
    }

    /// Finds the CUDA contexts of waits on streams whose id occurs in several contexts, for example default streams. A
    /// search is needed because the row of a wait may contain the context of the CUDA event instead of the stream's
    /// context. A thread works in one CUDA context until it changes its device. So a wait is in the CUDA context in
    /// which the waiting thread submitted work before and after the wait. If the contexts before and after the wait
    /// differ, or if other work rules out the context, all CUDA contexts are considered. If all contexts but one are
    /// ruled out, the wait is in the remaining context. If several contexts remain, the context of the wait is
    /// ambiguous.
    pub(super) fn find_contexts_of_waits(
        &mut self,
        (rows, graphs, profile): (&JoinedRows, &[GraphLaunch], &Profile),
        blocking: &IdMap<(GpuContextId, StreamId), bool>,
        sources: &[Source],
    ) {
        let waits = self.contexts_by_thread((rows, graphs, profile), sources);
        if waits.is_empty() {
            return;
        }
        let work = BlockingWork::new(rows, blocking, profile);
        let mut all: BTreeSet<GpuContextId> = self.streams.keys().map(|(context, _)| *context).collect();
        all.extend(rows.syncs().iter().map(|sync| sync.context));
        for (Wait { id, stream, call }, of_thread) in waits {
            // Only the times of operations in the same CUDA context are compared, because the clocks of different
            // devices may differ.
            let is_possible = |context: &GpuContextId| {
                stream != DEFAULT_STREAM
                    || self.device_of(*context).is_none()
                    || !work.rules_out(*context, call)
            };
            let context = of_thread.filter(is_possible).or_else(|| {
                let mut possible = all.iter().copied().filter(is_possible);
                possible.next().filter(|_| possible.next().is_none())
            });
            self.of_waits.insert(id, context);
        }
        self.unclear_waits = self.of_waits.values().filter(|context| context.is_none()).count() as u64;
    }

    /// Returns the waits on streams whose id occurs in several CUDA contexts. Each wait is returned with the CUDA
    /// context in which the thread submitted work before and after it, or with `None` if these two contexts differ.
    fn contexts_by_thread(
        &self,
        (rows, graphs, profile): (&JoinedRows, &[GraphLaunch], &Profile),
        sources: &[Source],
    ) -> Vec<(Wait, Option<GpuContextId>)> {
        let thread_of = |context| profile.context(context).map(|context| context.thread);
        let mut found = Vec::new();
        // For each thread, the CUDA context in which it submitted work last, and its waits after this work.
        let mut threads: IdMap<ThreadId, (Option<GpuContextId>, Vec<Wait>)> = IdMap::default();
        for source in sources {
            let (launched, context) = match *source {
                Source::Work(at, None) => {
                    let JoinedActivity { activity, origin } = rows.activity_at(at);
                    let Origin::Launch(launched) = origin else { continue };
                    (launched.context, activity.context)
                }
                Source::Graph(at) => {
                    let graph = &graphs[at as usize];
                    let Some(stream) = graph.streams.first() else { continue };
                    (graph.launched.context, stream.1)
                }
                Source::Host(call, Some(sync)) => {
                    let (call, sync) = (&rows.host_calls()[call as usize], rows.syncs()[sync as usize]);
                    if sync.kind == SyncKind::STREAM_WAIT
                        && let Some(stream) = sync.stream
                        && self.contexts.get(&stream) == Some(&None)
                        && let Some(thread) = thread_of(call.context)
                    {
                        let call = (call.time.0, call.time.0.saturating_add(call.duration));
                        threads.entry(thread).or_default().1.push(Wait {
                            id: sync.correlation,
                            stream,
                            call,
                        });
                    }
                    continue;
                }
                _ => continue,
            };
            let Some(thread) = thread_of(launched) else { continue };
            let (last, waits) = threads.entry(thread).or_default();
            let context = Some(context);
            let same = context.filter(|_| last.is_none() || *last == context);
            *last = context;
            found.extend(waits.drain(..).map(|wait| (wait, same)));
        }
        for (last, waits) in threads.into_values() {
            found.extend(waits.into_iter().map(|wait| (wait, last)));
        }
        found
    }

    /// Returns the CUDA context of the stream that waits, or `None` if it is ambiguous. The row may contain the context
    /// of the CUDA event instead of the stream's context, and the event may have been recorded on a different GPU. If
    /// the row contains the context of the CUDA event, the stream's context is known only if the stream's id occurs in
    /// a single context.
    pub(super) fn context_of_wait(&self, sync: &SyncRecord, stream: StreamId) -> Option<GpuContextId> {
        let context = self.of_waits.get(&sync.correlation).copied().unwrap_or(Some(sync.context))?;
        match self.streams.contains_key(&(context, stream)) {
            true => Some(context),
            false => match self.contexts.get(&stream) {
                Some(only) => *only,
                None => Some(context).filter(|_| self.devices.len() < 2),
            },
        }
    }

    /// Returns the key of a stream. If no work ran in the stream's CUDA context, the device in the key is `NO_DEVICE`.
    /// Returns `None` if work in the stream's CUDA context ran on several devices.
    pub(super) fn find_stream(&self, context: GpuContextId, stream: StreamId) -> Option<StreamKey> {
        const NO_DEVICE: DeviceId = DeviceId(u32::MAX);
        let device = self.devices.get(&context).copied().unwrap_or(Some(NO_DEVICE))?;
        Some((device, context, stream))
    }
}
