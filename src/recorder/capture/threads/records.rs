//! Encodes launches and launch contexts (stacks with their API call) as 64-bit words for a thread's logs, and decodes
//! these words.

use gpuflame_model::record::{
    ContextFlags, ContextId, CorrelationId, Frame, HostCallSpan, Launch, Nanos, OutsideLaunches, Row,
    ThreadId,
};

use super::outside::OutsideReader;

/// Encodes a launch as three words, which are `time`, `duration | correlation << 32`, `within | context << 32`.
#[inline]
pub(crate) fn launch_words(launch: &Launch) -> [u64; 3] {
    [
        launch.time.0,
        u64::from(launch.duration) | u64::from(launch.correlation.0) << 32,
        u64::from(launch.within.0) | u64::from(launch.context.0) << 32,
    ]
}

/// Encodes a range of launches outside windows as three words, like a launch. The words are `over`, `count | last <<
/// 32`, `first | OUTSIDE << 32`.
pub(crate) fn outside_words(range: &OutsideLaunches) -> [u64; 3] {
    [
        range.over.0,
        u64::from(range.count) | u64::from(range.last.0) << 32,
        u64::from(range.first.0) | u64::from(ContextId::OUTSIDE.0) << 32,
    ]
}

/// Encodes a host call, which launches nothing, as three words, like a launch. The words are `ended`, `duration`,
/// `NO_LAUNCH | context << 32`.
pub(crate) fn called_words(called: &HostCallSpan) -> [u64; 3] {
    [called.ended.0, called.duration.into(), NO_LAUNCH | u64::from(called.context.0) << 32]
}

/// Value of `within` that marks the row of a call that launches nothing. If a row of a launch has this value of
/// `within`, its correlation id is not 0.
const NO_LAUNCH: u64 = u32::MAX as u64;

/// Decodes the words of a launch log. Passes three kinds of rows to `each`: launches, calls that launch nothing, and
/// ranges of launches outside windows. The launches in a range that the collector has already read are not counted
/// again.
pub(super) fn read_launches(
    words: &[u64],
    outside_reader: &mut OutsideReader,
    each: &mut impl FnMut(&Row<'_>),
) {
    for record in words.chunks_exact(3) {
        if (record[2] >> 32) as u32 == ContextId::OUTSIDE.0 {
            let range = OutsideLaunches {
                first: CorrelationId(record[2] as u32),
                last: CorrelationId((record[1] >> 32) as u32),
                count: record[1] as u32,
                over: Nanos(record[0]),
            };
            if let Some(new) = outside_reader.ended(range) {
                each(&Row::Outside(new));
            }
            continue;
        }
        let context = ContextId((record[2] >> 32) as u32);
        if record[2] & NO_LAUNCH == NO_LAUNCH && record[1] >> 32 == 0 {
            each(&Row::HostCallSpan(HostCallSpan {
                ended: Nanos(record[0]),
                duration: record[1] as u32,
                context,
            }));
            continue;
        }
        each(&Row::Launch(Launch {
            time: Nanos(record[0]),
            duration: record[1] as u32,
            correlation: CorrelationId((record[1] >> 32) as u32),
            within: CorrelationId(record[2] as u32),
            context,
        }));
    }
}

/// Encodes the head of a launch context as two words. In the log, the frames of the context follow this head, leaf
/// first.
#[inline]
pub(crate) fn context_words(id: ContextId, thread: ThreadId, flags: ContextFlags, frames: usize) -> [u64; 2] {
    [u64::from(id.0) | (frames as u64) << 32, u64::from(thread.0) | u64::from(flags.0) << 32]
}

/// Encodes the id and the name of a thread for the context log. The words have the form of a context without an id. The
/// name is in the kernel's format: up to 15 bytes and a NUL.
pub(super) fn thread_words(id: ThreadId, name: [u64; 2]) -> [u64; 4] {
    let [head, thread] = context_words(ContextId::NONE, id, ContextFlags::default(), name.len());
    [head, thread, name[0], name[1]]
}

fn read_thread(id: ThreadId, name: &[u64], each: &mut impl FnMut(&Row<'_>)) {
    let bytes: Vec<u8> = name.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    each(&Row::Thread { id, name: &String::from_utf8_lossy(name) });
}

/// Decodes the words of a context log, and passes a row for each context and each thread to `each`.
pub(super) fn read_contexts(mut words: &[u64], each: &mut impl FnMut(&Row<'_>)) {
    while let [ids, flags, rest @ ..] = words {
        let count = (ids >> 32) as usize;
        if rest.len() < count {
            debug_assert!(false, "a context was split over two chunks");
            return;
        }
        let (frames, rest) = rest.split_at(count);
        words = rest;
        let (id, thread) = (ContextId(*ids as u32), ThreadId(*flags as u32));
        if id == ContextId::NONE {
            read_thread(thread, frames, each);
            continue;
        }
        let flags = ContextFlags((flags >> 32) as u32);
        each(&Row::Context { id, thread, flags, frames: as_frames(frames) });
    }
}

fn as_frames(words: &[u64]) -> &[Frame] {
    // SAFETY: `Frame` is a transparent wrapper of `u64`.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
}

/// Returns the frames as words that can be written to a log.
#[inline]
pub(crate) fn as_words(frames: &[Frame]) -> &[u64] {
    // SAFETY: as in `as_frames`, `Frame` is a transparent wrapper of `u64`.
    unsafe { std::slice::from_raw_parts(frames.as_ptr().cast(), frames.len()) }
}
