//! Writes Perfetto's protobuf format, with its native messages for GPU work. GPU work is written on hardware queues
//! (one per stream), kernels have their grid and block sizes, and every call refers to the work that it submitted. The
//! viewer draws these references as flows. Calls include their source location, if it is known.
//!
//! Field numbers are the same as in `protos/perfetto/trace/` of github.com/google/perfetto. The GPU extensions of
//! `InternedData` and `TrackEvent` are defined in `GpuInternedData` and `GpuTrackEvent`.

mod proto;
mod slice_tracks;

use std::collections::BTreeMap;
use std::io::Write;

use prost::Message;

use super::callers::{Caller, Callers};
use gpuflame_explain::events::{JoinedActivity, JoinedRows, LaunchCall};
use gpuflame_explain::join::Origin;
use gpuflame_export::format::Format;
use gpuflame_export::{clean, threads};
use gpuflame_model::error::Result;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{Activity, ContextId, CorrelationId, Detail, IdMap, NameId, Nanos, Work};
pub use slice_tracks::{SliceTrack, TrackSlice};
use slice_tracks::{TrackNumbers, slice_packets, track_packets};

const CUDA: i32 = 4;
const COMPUTE: i32 = 2;
/// Sequence id in all packets, because the trace has only one sequence.
const SEQUENCE: u32 = 1;
/// Flag of the first packet, which resets the interned data. All packets except the first have [`NEEDS_STATE`], because
/// they use the interned data.
const CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;
/// Tag of `Trace.packet` (field 1, a message).
const PACKET: u8 = 0x0a;
/// Names of a kernel's launch parameters. The interned id of a name is its index plus one.
const ARGUMENTS: [&str; 3] = ["registers_per_thread", "shared_mem_static", "shared_mem_dynamic"];

/// Perfetto's protobuf format. Times are in ns since 1970. Activities without times are omitted, because they cannot be
/// placed on a timeline.
pub(super) static PERFETTO: Format = Format::of_events(
    "perfetto",
    &[".pftrace", ".perfetto-trace"],
    |profile, events, _, out| write(profile, events, Vec::new(), out),
    "Perfetto's protobuf, with its native GPU messages (.pftrace)",
)
.binary();

/// Writes Perfetto's protobuf format with additional tracks next to the GPU work.
///
/// # Errors
/// Fails if writing to `out` fails.
pub fn write_perfetto_with_tracks(
    profile: &Profile,
    events: &JoinedRows,
    tracks: Vec<SliceTrack<'_>>,
    out: &mut dyn Write,
) -> Result<()> {
    write(profile, events, tracks, out)
}

fn write(
    profile: &Profile,
    events: &JoinedRows,
    tracks: Vec<SliceTrack<'_>>,
    mut out: &mut dyn Write,
) -> Result<()> {
    let out = &mut out;
    let mut writer = PerfettoWriter { callers: Callers::new(profile), names: InternedNames::default(), out };
    writer.write_names(profile, events)?;
    writer.write_tracks()?;
    writer.write_losses(profile, events.first_time())?;
    writer.write_marks(events)?;
    let mut submitted: IdMap<CorrelationId, Vec<(Nanos, u64)>> = IdMap::default();
    let timed = || events.activities().zip(1_u64..).filter(|(e, _)| e.activity.duration().is_some());
    for (event, id) in timed() {
        if let Origin::Launch(launched) = event.origin {
            submitted.entry(event.activity.correlation).or_default().push((launched.time, id));
        }
    }
    for call in events.calls() {
        let all = submitted.get(&call.id).map_or(&[][..], Vec::as_slice);
        let ids = all.iter().filter(|(time, _)| *time == call.launched.time).map(|(_, id)| *id).collect();
        writer.write_call(call, ids)?;
    }
    for (event, id) in timed() {
        writer.write_activity(&event, id, events.source_id(event.activity.correlation))?;
    }
    writer.write_slice_tracks(tracks)
}

/// Ids of interned data, starting at 1.
#[derive(Default)]
struct InternedNames {
    events: BTreeMap<String, u64>,
    contexts: BTreeMap<(u32, u32), u64>,
    /// Ids of hardware queues, keyed by (device, context, stream). The ids of stages (kernels, or kinds of other GPU
    /// work) follow the ids of the queues.
    queues: BTreeMap<(u32, u32, u32), u64>,
    stages: BTreeMap<Work, u64>,
    kernels: BTreeMap<NameId, u64>,
    stacks: BTreeMap<ContextId, u64>,
    /// Ids of source lines that made calls, keyed by (function, file, line).
    sources: BTreeMap<(String, String, u32), u64>,
}

struct PerfettoWriter<'a, W> {
    callers: Callers<'a>,
    names: InternedNames,
    out: &'a mut W,
}

impl<W: Write> PerfettoWriter<'_, W> {
    fn write_packet(&mut self, packet: proto::Packet) -> Result<()> {
        let flags = packet.sequence_flags.or(Some(NEEDS_STATE));
        let packet = proto::Packet { sequence: Some(SEQUENCE), sequence_flags: flags, ..packet };
        self.out.write_all(&[PACKET])?;
        self.out.write_all(&packet.encode_length_delimited_to_vec())?;
        Ok(())
    }

    /// Assigns ids to all names, stacks and source lines to which the events refer. Also writes the table of these ids.
    fn write_names(&mut self, profile: &Profile, events: &JoinedRows) -> Result<()> {
        let activities = || events.activities().map(|event| event.activity);
        let names = &mut self.names;
        let callers = &self.callers;
        let calls = events.calls().iter().map(|call| call.launched.context);
        names.events = assign_ids(calls.clone().map(|context| callers.get(context).call.clone()));
        names.stacks = assign_ids(calls.clone());
        names.sources = assign_ids(calls.filter_map(|context| caller_source(&callers.get(context))));
        names.contexts = assign_ids(activities().map(|a| (a.device.0, a.context.0)));
        names.queues = assign_ids(activities().map(|activity| queue_key(&activity)));
        names.stages = assign_ids(activities().map(|activity| activity.work()));
        names.stages.values_mut().for_each(|number| *number += names.queues.len() as u64);
        names.kernels = assign_ids(activities().filter_map(|a| match a.work() {
            Work::Kernel(name) => Some(name),
            Work::Copy(_) | Work::Set | Work::Graph => None,
        }));
        let pid = threads::process_id(profile) as i32;
        let queues =
            names.queues.iter().map(|((_, _, stream), &iid)| specification(iid, &format!("stream {stream}")));
        let stages = names.stages.iter().map(|(work, &iid)| specification(iid, &stage_name(profile, *work)));
        let kernel = |(&name, &iid): (&NameId, &u64)| proto::Kernel {
            iid: Some(iid),
            symbol: Some(clean::text(profile.symbol(name).unwrap_or_default())),
            name: Some(clean::text(profile.kernel(name).unwrap_or_default())),
        };
        let interned = proto::Interned {
            event_names: names.events.iter().map(|(name, &iid)| named(iid, &clean::text(name))).collect(),
            contexts: names
                .contexts
                .values()
                .map(|&iid| proto::Context { iid: Some(iid), pid: Some(pid), api: Some(CUDA) })
                .collect(),
            specifications: queues.chain(stages).collect(),
            sources: names
                .sources
                .iter()
                .map(|((function, file, line), &iid)| proto::SourceLocation {
                    iid: Some(iid),
                    file: Some(file.clone()),
                    function: Some(function.clone()),
                    line: Some(*line).filter(|line| *line > 0),
                })
                .collect(),
            texts: names
                .stacks
                .iter()
                .map(|(&context, &iid)| proto::Text {
                    iid: Some(iid),
                    text: Some(callers.get(context).stack().into_bytes()),
                })
                .collect(),
            kernels: names.kernels.iter().map(kernel).collect(),
            arguments: (1..).zip(ARGUMENTS).map(|(iid, name)| named(iid, name)).collect(),
        };
        self.write_packet(proto::Packet {
            timestamp: Some(events.first_time().0),
            interned: Some(interned),
            sequence_flags: Some(CLEARED),
            ..proto::Packet::default()
        })
    }

    /// Writes the track of the process and the tracks of its threads. The track of the process has id 1.
    fn write_tracks(&mut self) -> Result<()> {
        let pid = Some(threads::process_id(self.callers.profile) as i32);
        let process = proto::Process { pid, name: Some("CPU".to_owned()) };
        let track = proto::Track { uuid: Some(1), process: Some(process), ..proto::Track::default() };
        self.write_packet(proto::Packet { track: Some(track), ..proto::Packet::default() })?;
        for (thread, name) in threads::launching_threads(self.callers.profile) {
            let tid = Some(i64::from(thread.0));
            let named = proto::Thread { pid, tid, name: Some(name) };
            let (uuid, parent) = (Some(thread_track(thread.0)), Some(1));
            let track = proto::Track { uuid, parent, thread: Some(named), ..proto::Track::default() };
            self.write_packet(proto::Packet { track: Some(track), ..proto::Packet::default() })?;
        }
        Ok(())
    }

    /// Writes the counts of dropped data as instants of the process, at the beginning of the trace.
    fn write_losses(&mut self, profile: &Profile, begin: Nanos) -> Result<()> {
        for (loss, count) in profile.lost() {
            let lost = proto::TrackEvent {
                kind: Some(3),
                name: Some(format!("lost: {count} {}", loss.label())),
                track: Some(1),
                categories: vec!["gpuflame".to_owned()],
                ..proto::TrackEvent::default()
            };
            let (timestamp, track_event) = (Some(begin.0), Some(lost));
            self.write_packet(proto::Packet { timestamp, track_event, ..proto::Packet::default() })?;
        }
        Ok(())
    }

    /// Writes the instants that the program marked, on the track of the thread that marked each instant. If the thread
    /// that marked the instant launched no work, the instant is on the track of the process.
    fn write_marks(&mut self, events: &JoinedRows) -> Result<()> {
        let threads = threads::launching_threads(self.callers.profile);
        for mark in events.marks() {
            let is_known = threads.iter().any(|(thread, _)| *thread == mark.thread);
            let marked = proto::TrackEvent {
                kind: Some(3),
                name: Some(clean::text(&mark.text)),
                track: Some(if is_known { thread_track(mark.thread.0) } else { 1 }),
                categories: vec!["mark".to_owned()],
                ..proto::TrackEvent::default()
            };
            let (timestamp, track_event) = (Some(mark.time.0), Some(marked));
            self.write_packet(proto::Packet { timestamp, track_event, ..proto::Packet::default() })?;
        }
        Ok(())
    }

    fn write_call(&mut self, call: &LaunchCall, submitted: Vec<u64>) -> Result<()> {
        let context = call.launched.context;
        let caller = self.callers.get(context);
        let track = Some(thread_track(caller.thread.0));
        let id =
            proto::Annotation { number: Some(call.id.0.into()), ..proto::Annotation::named("correlation") };
        let text_iid = self.names.stacks.get(&context).copied();
        let stack = proto::Annotation { text_iid, ..proto::Annotation::named("stack") };
        let begin = proto::TrackEvent {
            annotations: vec![id, stack],
            kind: Some(1),
            name_iid: self.names.events.get(&caller.call).copied(),
            track,
            categories: vec!["cuda".to_owned()],
            name: None,
            source_iid: caller_source(&caller).and_then(|source| self.names.sources.get(&source).copied()),
            correlation: (!submitted.is_empty()).then_some(proto::Correlation { submitted }),
            api: Some(CUDA),
            ..proto::TrackEvent::default()
        };
        let end = proto::TrackEvent { kind: Some(2), track, ..proto::TrackEvent::default() };
        let (from, duration) = (call.launched.time.0, u64::from(call.launched.duration));
        for (time, event) in [(from, begin), (from.saturating_add(duration), end)] {
            let packet =
                proto::Packet { timestamp: Some(time), track_event: Some(event), ..Default::default() };
            self.write_packet(packet)?;
        }
        Ok(())
    }

    /// Writes additional tracks, all below the track of the process.
    fn write_slice_tracks(&mut self, tracks: Vec<SliceTrack<'_>>) -> Result<()> {
        let mut numbers = TrackNumbers::default();
        for track in tracks {
            let (uuid, packets) = track_packets(&mut numbers, &track);
            packets.into_iter().try_for_each(|packet| self.write_packet(packet))?;
            for slice in track.slices {
                for packet in slice_packets(uuid, track.category, slice) {
                    self.write_packet(packet)?;
                }
            }
        }
        Ok(())
    }

    fn write_activity(&mut self, event: &JoinedActivity, id: u64, correlation: Option<u64>) -> Result<()> {
        let activity = &event.activity;
        let (names, work) = (&self.names, activity.work());
        let mut extra: Vec<_> = correlation.map(|id| extra_data("correlation", id)).into_iter().collect();
        if activity.graph.0 != 0 {
            extra.push(extra_data("graph", activity.graph.0));
            extra.push(extra_data("graph_node", activity.graph_node.0));
        }
        if activity.bytes() > 0 {
            extra.push(extra_data("bytes", activity.bytes()));
        }
        if let Err(missing) = event.origin.context() {
            extra.push(extra_data("gpuflame", missing.word()));
        }
        let stage = proto::RenderStage {
            event_id: Some(id),
            duration: activity.duration(),
            context: names.contexts.get(&(activity.device.0, activity.context.0)).copied(),
            extra,
            gpu: Some(activity.device.0 as i32),
            queue: names.queues.get(&queue_key(activity)).copied(),
            stage: names.stages.get(&work).copied(),
            kernel: match work {
                Work::Kernel(name) => names.kernels.get(&name).copied(),
                Work::Copy(_) | Work::Set | Work::Graph => None,
            },
            name_iid: None,
            launch: kernel_launch(activity),
        };
        let timestamp = Some(activity.start.0);
        self.write_packet(proto::Packet { timestamp, gpu: Some(stage), ..proto::Packet::default() })
    }
}

/// Returns the calling function, file and line, if they are known.
fn caller_source(caller: &Caller) -> Option<(String, String, u32)> {
    caller.source().map(|frame| (frame.text.clone(), frame.file.clone(), frame.line))
}

/// Assigns ids to distinct items in sorted order, starting at 1.
fn assign_ids<T: Ord>(things: impl Iterator<Item = T>) -> BTreeMap<T, u64> {
    let mut numbers: BTreeMap<T, u64> = things.map(|thing| (thing, 0)).collect();
    numbers.values_mut().zip(1..).for_each(|(number, iid)| *number = iid);
    numbers
}

fn queue_key(activity: &Activity) -> (u32, u32, u32) {
    (activity.device.0, activity.context.0, activity.stream.0)
}

/// Returns the name of the stage: the kernel's name, `Memcpy HtoD`, `Memset` and so on. Perfetto shows the stage's name
/// as the name of the slice. Perfetto releases without the GPU compute view show a kernel's name only as the name of
/// the slice.
fn stage_name(profile: &Profile, work: Work) -> String {
    match work {
        Work::Kernel(name) => clean::text(profile.kernel(name).unwrap_or_default()),
        Work::Copy(kind) => format!("Memcpy {}", kind.label()),
        Work::Set => "Memset".to_owned(),
        Work::Graph => "Graph".to_owned(),
    }
}

fn kernel_launch(activity: &Activity) -> Option<proto::Launch> {
    let Detail::Kernel(kernel) = activity.detail else { return None };
    let size = |[x, y, z]: [u32; 3]| Some(proto::Size { x: Some(x), y: Some(y), z: Some(z) });
    let values = [kernel.registers.into(), kernel.static_shared, kernel.dynamic_shared].map(u64::from);
    let argument = |(iid, value)| proto::Argument { name_iid: Some(iid), value: Some(value) };
    let arguments = (1..).zip(values).map(argument).collect();
    Some(proto::Launch { grid: size(kernel.grid), block: size(kernel.block), arguments })
}

fn specification(iid: u64, name: &str) -> proto::Specification {
    proto::Specification { iid: Some(iid), name: Some(name.to_owned()), category: Some(COMPUTE) }
}

fn named(iid: u64, name: &str) -> proto::Named {
    proto::Named { iid: Some(iid), name: Some(name.to_owned()) }
}

fn extra_data(name: &str, value: impl std::fmt::Display) -> proto::Extra {
    proto::Extra { name: Some(name.to_owned()), value: Some(value.to_string()) }
}

/// Returns the track id of a thread. The track of the process has id 1, so the ids of thread tracks are higher.
fn thread_track(thread: u32) -> u64 {
    u64::from(thread) + 2
}
