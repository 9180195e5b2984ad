//! Finds GPU work that overlaps other work on the same track. Viewers silently drop one of two overlapping slices, so
//! overlapping work is moved to a separate track.

use std::collections::HashMap;

use gpuflame_export::chrome::Lanes;
use gpuflame_model::profile::json_string;
use gpuflame_traces::import::{Event, Flow, Id, Sink, Wants};

/// First numeric id that is assigned to processes and threads whose ids are text.
const FIRST_NAMED: u32 = 1 << 29;

/// A [`Sink`] that collects the times of all GPU work. The sink takes 48 bytes of memory per operation.
#[derive(Debug, Default)]
pub struct TrackFinder {
    works: Vec<Work>,
    numbers: Numbers,
}

/// Correlation id and new track of a GPU operation.
type FlowEnd = (Option<u64>, u32);

#[derive(Clone, Copy, Debug)]
struct Work {
    lane: (u32, u32),
    start: i64,
    end: i64,
    /// Number of GPU operations that precede this operation in the file.
    at: u64,
    correlation: Option<u64>,
}

/// New tracks of the GPU work that overlaps other work and is therefore moved to a separate track.
#[derive(Debug, Default)]
pub struct Tracks {
    by_work: HashMap<u64, u32>,
    /// GPU operations at which a flow can end, keyed by their track and start time in the original trace. This map
    /// contains a key only if at least one operation with the key's track and start is moved.
    by_start: HashMap<((u32, u32), i64), Vec<FlowEnd>>,
    names: Vec<(String, u32, String)>,
    numbers: Numbers,
}

/// Numeric ids of processes and threads. If a process or thread id is a number in the trace, it stays the same.
#[derive(Debug, Default)]
struct Numbers {
    named: HashMap<String, u32>,
    /// Original ids of the processes, as JSON.
    processes: HashMap<u32, String>,
}

impl Numbers {
    fn lane(&mut self, process: Id<'_>, thread: Id<'_>) -> (u32, u32) {
        let number = self.number(process);
        self.processes.entry(number).or_insert_with(|| match process {
            Id::None => "0".to_owned(),
            Id::Number(number) => number.to_string(),
            Id::Text(text) => json_string(&text.decode()),
        });
        (number, self.number(thread))
    }

    /// Returns the name of an additional track, for example `stream 7 (overlapping)`. If the id of the stream is text
    /// in the trace, the name contains this text.
    fn name_of_track(&self, name: String) -> String {
        let Some((number, rest)) = name.strip_prefix("stream ").and_then(|rest| rest.split_once(' ')) else {
            return name;
        };
        let own = self.named.iter().find(|(_, named)| number.parse() == Ok(**named));
        own.map(|(text, _)| format!("{text} {rest}")).unwrap_or(name)
    }

    fn number(&mut self, id: Id<'_>) -> u32 {
        let text = match id {
            Id::None => return 0,
            Id::Number(number) if (0..i64::from(FIRST_NAMED)).contains(&number) => return number as u32,
            Id::Number(number) => number.to_string(),
            Id::Text(text) => text.decode().into_owned(),
        };
        let next = FIRST_NAMED + self.named.len() as u32;
        *self.named.entry(text).or_insert(next)
    }
}

impl Sink for TrackFinder {
    fn wants(&self) -> Wants {
        Wants::OPS
    }

    fn event(&mut self, event: &Event<'_>) {
        if let Event::Op(op) = event {
            let lane = self.numbers.lane(op.lane.0, op.lane.1);
            let at = self.works.len() as u64;
            self.works.push(Work { lane, start: op.start, end: op.end, at, correlation: op.correlation });
        }
    }
}

impl TrackFinder {
    /// Assigns a track to each GPU operation.
    pub fn tracks(mut self) -> Tracks {
        self.works.sort_by_key(|work| (work.start, work.at));
        let first = self.works.first().map_or(0, |work| work.start);
        let mut tracks = Tracks::default();
        let mut lanes = Lanes::default();
        for work in &self.works {
            let [start, end] = [work.start, work.end].map(|time| time.abs_diff(first));
            let track = lanes.track(work.lane, start, end.max(start));
            if track != work.lane.1 {
                tracks.by_work.insert(work.at, track);
                tracks.by_start.entry((work.lane, work.start)).or_default();
            }
        }
        for work in &self.works {
            if let Some(ends) = tracks.by_start.get_mut(&(work.lane, work.start)) {
                let track = tracks.by_work.get(&work.at).copied().unwrap_or(work.lane.1);
                ends.push((work.correlation, track));
            }
        }
        let process = |number: u32| self.numbers.processes.get(&number).cloned().unwrap_or_default();
        let names = lanes.names().into_iter();
        tracks.names = names
            .map(|(number, track, name)| (process(number), track, self.numbers.name_of_track(name)))
            .collect();
        tracks.numbers = self.numbers;
        tracks
    }
}

impl Tracks {
    /// Returns the new track of a GPU operation, if the operation moves to another track. `at` is the number of GPU
    /// operations that precede this operation in the file.
    pub(super) fn of_work(&self, at: u64) -> Option<u32> {
        self.by_work.get(&at).copied()
    }

    /// Returns the new track at which a flow ends, if the GPU work at the flow's end is moved to another track.
    pub(super) fn of_flow(&mut self, flow: &Flow<'_>) -> Option<u32> {
        if flow.begins || self.by_start.is_empty() {
            return None;
        }
        let lane = self.numbers.lane(flow.process, flow.thread);
        let ends = self.by_start.get(&(lane, flow.time))?;
        let own = ends.iter().find(|(correlation, _)| *correlation == Some(flow.id));
        let track = own.or(ends.first().filter(|_| ends.len() == 1))?.1;
        (track != lane.1).then_some(track)
    }

    /// Returns the process, track id and name of each additional track, and clears the list of additional tracks.
    pub(super) fn take_names(&mut self) -> Vec<(String, u32, String)> {
        std::mem::take(&mut self.names)
    }
}
