//! Assigns an index to each stream of a run, and applies the rule of default streams. By the rule of default streams,
//! work on the default stream of a CUDA context waits for the context's other streams, and work on the other streams
//! waits for the default stream.

use super::super::instructions::{Instruction, InstructionDetail, InstructionList};
use super::super::states::StreamKey;
use super::graph::MomentId;
use gpuflame_model::record::{DeviceId, GpuContextId, IdMap, StreamId};

/// Id that CUPTI gives to the legacy default stream of a CUDA context.
pub(super) const DEFAULT_STREAM: StreamId = StreamId(7);

/// Index that means "no stream".
pub(super) const NO_STREAM: u32 = u32::MAX;
/// Index that means "no moment".
const NO_MOMENT: MomentId = MomentId::MAX;

/// Streams of a run. Both the stream of an instruction and the default stream are looked up for every instruction. To
/// make this fast, streams are stored by index.
#[derive(Default)]
pub(super) struct Streams {
    numbers: IdMap<StreamKey, u32>,
    streams: Vec<Stream>,
    /// Position of each CUDA context in `contexts`.
    context_numbers: IdMap<(DeviceId, GpuContextId), u32>,
    contexts: Vec<Context>,
    /// Stream that was looked up last, because most instructions run on the same stream as the previous instruction.
    last: Option<(StreamKey, u32)>,
    of_instruction: Vec<u32>,
}

/// A stream of a GPU.
struct Stream {
    key: StreamKey,
    /// Index of the stream's CUDA context in [`Streams::contexts`].
    context: u32,
    /// Latest end of the stream's work that was added so far. The field `end` is used only to find the streams that are
    /// exempt from the rule of default streams.
    end: u64,
    /// Whether the stream is exempt from the rule of default streams. An exempt stream and the default stream of its
    /// CUDA context do not wait for each other.
    is_exempt: bool,
    /// Moment at which the stream's last added work ends. The field `last_work` is used only while edges are added.
    last_work: MomentId,
}

/// Streams of a CUDA context.
struct Context {
    default: u32,
    /// Indexes of all streams of the CUDA context, sorted by stream id.
    members: Vec<u32>,
}

impl Streams {
    /// Returns the index of a stream, and adds the stream if it is new.
    fn number(&mut self, key: StreamKey) -> u32 {
        if let Some((last, number)) = self.last
            && last == key
        {
            return number;
        }
        let next = self.streams.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.add(key);
        }
        self.last = Some((key, number));
        number
    }

    fn add(&mut self, key: StreamKey) {
        let number = self.streams.len() as u32;
        let next = self.contexts.len() as u32;
        let context = *self.context_numbers.entry((key.0, key.1)).or_insert(next);
        if context == next {
            self.contexts.push(Context { default: NO_STREAM, members: Vec::new() });
        }
        self.streams.push(Stream { key, context, end: 0, is_exempt: false, last_work: NO_MOMENT });
        let Context { default, members } = &mut self.contexts[context as usize];
        if key.2 == DEFAULT_STREAM {
            *default = number;
        }
        let at = members.partition_point(|other| self.streams[*other as usize].key.2 < key.2);
        members.insert(at, number);
    }

    /// Adds the stream of the next instruction. Also exempts streams from the rule of default streams. A stream is
    /// exempt if its work ran at the same time as work on the default stream of its CUDA context.
    pub(super) fn note(&mut self, instruction: &Instruction<'_>) {
        let number = key_of(instruction).map_or(NO_STREAM, |key| self.number(key));
        self.of_instruction.push(number);
        if let InstructionDetail::Graph { streams: Some(streams), .. } = instruction.detail {
            for key in streams {
                self.number(*key);
            }
        }
        let (Some((begin, end)), false) = (instruction.ran, number == NO_STREAM) else { return };
        let context = &self.contexts[self.streams[number as usize].context as usize];
        if number == context.default {
            for other in context.members.iter().filter(|other| **other != number) {
                let other = &mut self.streams[*other as usize];
                other.is_exempt |= other.end > begin.0;
            }
        } else if let Some(default) = self.streams.get(context.default as usize)
            && default.end > begin.0
        {
            self.streams[number as usize].is_exempt = true;
        }
        let known = &mut self.streams[number as usize].end;
        *known = end.0.max(*known);
    }

    /// Exempts the streams that are recorded as non-blocking from the rule of default streams. Call
    /// `exempt_non_blocking` once, after the last instruction was added.
    pub(super) fn exempt_non_blocking(&mut self, list: &InstructionList) {
        for stream in &mut self.streams {
            stream.is_exempt |= list.is_blocking(stream.key.1, stream.key.2) == Some(false);
        }
    }

    /// Returns the index of an instruction's stream, or [`NO_STREAM`] if the instruction has no stream.
    pub(super) fn of(&self, instruction: u32) -> u32 {
        self.of_instruction[instruction as usize]
    }

    /// Returns the device of a stream.
    pub(super) fn device(&self, stream: u32) -> DeviceId {
        self.streams[stream as usize].key.0
    }

    /// Returns the ends of the work for which an instruction on this stream waits because of the rule of default
    /// streams.
    pub(super) fn default_stream_ends(&self, stream: u32) -> impl Iterator<Item = MomentId> {
        let none: &[u32] = &[];
        let others = match self.streams.get(stream as usize) {
            None => none,
            Some(own) => match &self.contexts[own.context as usize] {
                context if context.default == stream => context.members.as_slice(),
                _ if own.is_exempt => none,
                context => std::slice::from_ref(&context.default),
            },
        };
        let others = others.iter().filter(move |other| **other != stream);
        let others = others.filter_map(|other| self.streams.get(*other as usize));
        let others = others.filter(|other| other.key.2 == DEFAULT_STREAM || !other.is_exempt);
        others.map(|other| other.last_work).filter(|end| *end != NO_MOMENT)
    }

    /// Stores `end` as the end of the last work on each stream that the instruction uses.
    pub(super) fn note_last_work(&mut self, instruction: &Instruction<'_>, end: MomentId) {
        match instruction.detail {
            InstructionDetail::Graph { streams: Some(streams), .. } => {
                for key in streams {
                    let number = self.number(*key);
                    self.streams[number as usize].last_work = end;
                }
            }
            _ => {
                let number = self.of(instruction.number) as usize;
                if let Some(stream) = self.streams.get_mut(number) {
                    stream.last_work = end;
                }
            }
        }
    }
}

/// Returns the stream of an instruction, or `None` if the instruction has no stream or several streams.
pub(super) fn key_of(instruction: &Instruction<'_>) -> Option<StreamKey> {
    Some((instruction.device?, instruction.context?, instruction.stream?))
}
