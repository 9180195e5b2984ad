//! Finds the process and the GPU of each operation, from the process fields of the trace events.
//!
//! A merged trace consists of parts, one part for each process. In such a trace, the process field of an event is, for
//! example, `[TP01] 83` for a process and `[TP01] 0` for GPU 0 of that process. An operation belongs to the calls whose
//! process field begins or ends with the same text as the process field of the operation. GPUs in different parts are
//! different GPUs even if they have the same index, so the GPU that comes later in the file gets a new index. Other
//! tools that merge traces add a large number to all process fields of a part (83 becomes 100083), including the fields
//! of GPUs (0 becomes 100000).

use std::collections::BTreeSet;

use super::link::ANY_PROCESS;
use super::op_records::OpShape;
use super::trace_collector::TraceCollector;
use super::{NameTable, Text};
use gpuflame_model::record::IdMap;

/// Maximum number of GPUs that get new indexes. The number is limited, because each GPU takes memory and time in all
/// sums.
pub const MAX_RENUMBERED_DEVICES: usize = 1024;
/// Maximum number of processes with calls for which the texts of processes are compared. In a trace with more such
/// processes, the texts are not compared.
const MAX_COMPARED_PROCESSES: usize = 1024;
/// Largest number in a process field that can be the index of a GPU. Any larger number is a process id.
const MAX_DEVICE_IN_LANE: i64 = 63;

/// Sets of processes that may have launched an operation.
#[derive(Debug, Default)]
pub(super) struct Homes {
    /// All distinct sets of processes.
    pub(super) sets: Vec<IdMap<u32, ()>>,
    /// For each shape, the index of its set in `sets`, or [`ANY_PROCESS`]. (A shape is a set of properties that many
    /// operations share.)
    pub(super) of_shape: Vec<u32>,
}

/// Key of a process or thread. The key is 1 and the numeric id, or 2 and the index in `TraceCollector::ids` of the text
/// that is used as id.
type Key = (u8, i64);

impl TraceCollector {
    /// Sets the device of each operation. Returns the processes that may have launched each operation, and the GPUs
    /// that were given new indexes. `process_of_thread` contains the process of each thread.
    pub(super) fn settle_places(&mut self, process_of_thread: &[u32]) -> (Homes, Vec<(u32, u32, String)>) {
        let calling: BTreeSet<u32> =
            self.calls.numbers().map(|call| process_of_thread[self.calls.thread_of(call) as usize]).collect();
        let mut processes: Vec<Key> = vec![(0, 0); self.processes.len() + 1];
        self.processes.iter().for_each(|(key, number)| processes[*number as usize] = *key);
        let mut lanes: Vec<(u32, Key)> = vec![(0, (0, 0)); self.lanes.len()];
        self.lanes.iter().for_each(|(lane, number)| lanes[*number as usize] = *lane);
        self.read_lanes(&calling, &processes, &lanes);
        let texts = self.process_texts(&processes);
        let mut parts = NameTable::default();
        let numbered = self.numbered_parts(&calling, &processes, &lanes);
        let part = |(process, text): (usize, &Option<&str>)| match text {
            None => numbered
                .get(&(process as u32))
                .map_or(0, |number| 1 + parts.intern(Text::from(number.to_string().as_str()))),
            Some(text) if calling.contains(&(process as u32)) => 1 + parts.intern(Text::from(*text)),
            Some(text) => {
                let (_, common) = alike(text, &calling, &texts);
                1 + parts.intern(Text::from(if common.is_empty() { part_name(text) } else { common }))
            }
        };
        let part_of_process: Vec<u32> = texts.iter().enumerate().map(part).collect();
        let mut homes = Homes::default();
        let mut known: IdMap<(u32, u32), u32> = IdMap::default();
        for op in self.ops.shapes() {
            let process = lanes[op.lane as usize].0;
            let home = *known.entry((op.process, process)).or_insert_with(|| {
                let set: Vec<u32> = match () {
                    () if op.process != 0 && calling.contains(&op.process) => vec![op.process],
                    () => match texts[process as usize] {
                        Some(_) if calling.contains(&process) => vec![process],
                        Some(text) => alike(text, &calling, &texts).0,
                        None => Vec::new(),
                    },
                };
                if set.is_empty() {
                    return ANY_PROCESS;
                }
                homes.sets.push(set.into_iter().map(|process| (process, ())).collect());
                homes.sets.len() as u32 - 1
            });
            homes.of_shape.push(home);
        }
        let process_of = |op: &OpShape| lanes[op.lane as usize].0;
        let renumbered = renumber_devices(self.ops.shapes_mut(), process_of, &part_of_process);
        let named = |(new, old, part): (u32, u32, u32)| (new, old, parts.text(part - 1).to_owned());
        (homes, renumbered.into_iter().map(named).collect())
    }

    /// Sets the device and stream of an operation from other fields, if the operation's arguments do not contain them.
    /// As in Kineto's traces, the process and thread fields are used, unless a process that made calls has the same
    /// process field.
    fn read_lanes(&mut self, calling: &BTreeSet<u32>, processes: &[Key], lanes: &[(u32, Key)]) {
        if calling.is_empty() {
            return;
        }
        let mut has_stream_now = vec![false; self.ops.shapes().len()];
        let shapes = self.ops.shapes_mut().iter_mut().zip(&mut has_stream_now);
        for (op, has_stream_now) in shapes.filter(|(op, _)| op.place_in_lane) {
            let (process, thread) = lanes[op.lane as usize];
            let device = match processes[process as usize] {
                (1, device @ 0..=MAX_DEVICE_IN_LANE) if !calling.contains(&process) => device,
                _ => continue,
            };
            op.device = device as u32;
            if let (1, stream) = thread {
                op.stream = u32::try_from(stream).unwrap_or(0);
                *has_stream_now = true;
            }
        }
        self.ops_without_stream -= self.ops.count_with(&has_stream_now);
    }

    /// Returns the processes that are parts of a merged trace although their process field is a number and not a text
    /// such as `[TP01] 0`. A process that is such a part made no calls, and its process field is not the device index
    /// of its operations.
    fn numbered_parts(
        &self,
        calling: &BTreeSet<u32>,
        processes: &[Key],
        lanes: &[(u32, Key)],
    ) -> IdMap<u32, i64> {
        let mut numbered = IdMap::default();
        for op in self.ops.shapes().iter().filter(|op| !calling.is_empty() && !op.place_in_lane) {
            let process = lanes[op.lane as usize].0;
            if let (1, number) = processes[process as usize]
                && (MAX_DEVICE_IN_LANE + 1..=i64::from(i32::MAX)).contains(&number)
                && number != i64::from(op.device)
                && !calling.contains(&process)
            {
                numbered.insert(process, number);
            }
        }
        numbered
    }

    /// Returns the text that is the id of each process. The index of an entry is the process. An entry is `None` if the
    /// id of the process is not a text.
    fn process_texts(&self, processes: &[Key]) -> Vec<Option<&str>> {
        let text = |key: &Key| match *key {
            (2, text) => u32::try_from(text).ok().map(|text| self.ids.text(text)),
            _ => None,
        };
        processes.iter().map(text).collect()
    }
}

/// Gives GPUs in different parts of a merged trace different indexes, if they have the same index. `part_of_process`
/// contains the part of each process, or `0` if the process does not belong to any part. For each GPU whose index was
/// changed, returns the new index, the index in the file, and the part.
fn renumber_devices(
    ops: &mut [OpShape],
    process_of_op: impl Fn(&OpShape) -> u32,
    part_of_process: &[u32],
) -> Vec<(u32, u32, u32)> {
    let mut used: BTreeSet<u32> = ops.iter().map(|op| op.device).collect();
    let part_of = |op: &OpShape| part_of_process[process_of_op(op) as usize];
    let mut owner: IdMap<u32, u32> = IdMap::default();
    for op in ops.iter().filter(|op| part_of(op) == 0) {
        owner.insert(op.device, 0);
    }
    let mut numbers: IdMap<(u32, u32), u32> = IdMap::default();
    let (mut renumbered, mut next) = (Vec::new(), 0);
    for op in ops {
        let (part, device) = (part_of(op), op.device);
        if part == 0 || *owner.entry(device).or_insert(part) == part {
            continue;
        }
        if renumbered.len() == MAX_RENUMBERED_DEVICES && !numbers.contains_key(&(part, device)) {
            continue;
        }
        op.device = *numbers.entry((part, device)).or_insert_with(|| {
            while !used.insert(next) {
                next += 1;
            }
            renumbered.push((next, device, part));
            next
        });
    }
    renumbered
}

/// Returns the calling processes whose texts have the longest beginning in common with `text`, and this beginning. A
/// beginning always ends at a character that is neither a letter nor a digit. If the beginnings do not distinguish the
/// processes, the ends of the texts are compared in the same way. If the ends do not distinguish the processes either,
/// returns no process.
fn alike<'a>(text: &'a str, calling: &BTreeSet<u32>, texts: &[Option<&str>]) -> (Vec<u32>, &'a str) {
    if calling.len() > MAX_COMPARED_PROCESSES {
        return (Vec::new(), "");
    }
    let named = || calling.iter().filter_map(|process| Some((*process, texts[*process as usize]?)));
    let is_separator = |byte: u8| !byte.is_ascii_alphanumeric();
    let beginning = |other: &str| {
        let (a, b) = (text.as_bytes(), other.as_bytes());
        let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        a[..same].iter().rposition(|byte| is_separator(*byte)).map_or(0, |at| at + 1)
    };
    let end = |other: &str| {
        let (a, b) = (text.as_bytes(), other.as_bytes());
        let same = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
        let tail = &a[a.len() - same..];
        tail.iter().position(|byte| is_separator(*byte)).map_or(0, |at| tail.len() - at)
    };
    let best = |common: &dyn Fn(&str) -> usize| -> (Vec<u32>, usize) {
        let most = named().map(|(_, other)| common(other)).max().unwrap_or(0);
        let best = named().filter(|(_, other)| most > 0 && common(other) == most);
        (best.map(|(process, _)| process).collect(), most)
    };
    let is_selective = |set: &[u32]| !set.is_empty() && set.len() < calling.len();
    match (best(&beginning), best(&end)) {
        ((set, length), _) if is_selective(&set) => (set, text.get(..length).unwrap_or(text).trim_end()),
        (_, (set, length)) if is_selective(&set) => {
            (set, text.get(text.len() - length..).unwrap_or(text).trim_start())
        }
        _ => (Vec::new(), ""),
    }
}

/// Returns the name of the part of a merged trace that a process belongs to. The name is the text of the process
/// without the number of the process or GPU in this text.
fn part_name(text: &str) -> &str {
    let is_digit = |c: char| c.is_ascii_digit();
    match text.trim_end_matches(is_digit) {
        "" => text,
        cut if cut.len() < text.len() => cut.trim_end(),
        _ => text.trim_start_matches(is_digit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_belong_to_the_processes_whose_text_begins_or_ends_like_theirs() {
        let texts = [None, Some("[TP00] 83"), Some("[TP01] 83"), Some("83_r1"), Some("84_r10"), None];
        let find = |text, calling: &[u32]| alike(text, &calling.iter().copied().collect(), &texts).0;
        assert_eq!(find("[TP01] 0", &[1, 2]), [2]);
        assert_eq!(find("[TP00] GPU 0", &[1, 2]), [1]);
        assert_eq!(find("0_r10", &[3, 4]), [4]);
        assert_eq!(find("0_r1", &[3, 4]), [3]);
        // A text that all processes have in common does not identify a part.
        assert_eq!(find("[TP0", &[1, 2]), []);
        assert_eq!(find("Device_0", &[1, 2]), []);
        assert_eq!(find("[TP00] 0", &[5]), []);
    }

    #[test]
    fn the_part_of_a_merged_trace_is_the_text_without_the_number() {
        for (text, part) in
            [("[TP00] 0", "[TP00]"), ("rank3/1", "rank3/"), ("0@rank3", "0@rank"), ("GPU", "GPU")]
        {
            assert_eq!(part_name(text), part);
        }
        assert_eq!(part_name("17"), "17");
    }
}
