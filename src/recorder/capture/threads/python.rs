//! Python frames of a thread, the hash that identifies these frames, and the process-wide ids of Python functions.

use std::ptr::NonNull;

use gpuflame_model::record::{CodeId, CodeObject, Loss, Row};
use gpuflame_unwind::python::{Description, MergedStack, PythonUnwinder, WALKS, WalkOutcome};
use gpuflame_unwind::{Captured, memory};

use super::thread_counters::ThreadCounters;
use crate::capture::ids::intern::{Hash, PrefixHashes};
use crate::capture::ids::text_table::{MAX_TEXTS, TextTable};

/// Descriptions and ids of all Python functions that have appeared in a stack.
static CODES: TextTable = TextTable::new();

/// Python frames in the stack of one thread.
pub(crate) struct PythonFrames {
    frames: PythonUnwinder,
    /// Hashes of the frames, which have their own memory mapping.
    hashes: NonNull<FrameHashes>,
    /// Hash over the frames that were found by the last walk of the thread's Python stack.
    hash: Hash,
    /// Whether the last walk of the Python stack found frames.
    has_frames: bool,
    /// Index of the cached walk from which the current frames were taken; `None` if a real walk found them.
    cached_walk: Option<usize>,
}

/// Hashes of the Python frames of one thread.
#[repr(C)]
struct FrameHashes {
    /// `prefix[n]` is the hash over the first `n` frames of the last walk, counted from the root.
    prefix: PrefixHashes,
    /// Hash over the frames of each cached walk, indexed by the index of the walk.
    cached: [Hash; WALKS],
}

impl PythonFrames {
    /// Creates the state of the calling thread. Returns `None` if the process has no Python interpreter that can be
    /// read. Call this function only when a stack is new. The first stack that contains interpreter frames is always
    /// new.
    #[cold]
    pub(crate) fn of_this_thread() -> Option<Self> {
        let frames = PythonUnwinder::of_this_thread()?;
        let mut hashes = memory::map(size_of::<FrameHashes>())?.cast::<FrameHashes>();
        // SAFETY: `hashes` is a fresh mapping of this size, and its zero bytes are valid hashes.
        unsafe { hashes.as_mut() }.prefix[0] = Hash::ROOT;
        Some(Self { frames, hashes, hash: Hash::ROOT, has_frames: false, cached_walk: None })
    }

    /// Returns a hash that identifies the thread's current Python frames, combined with the hash `others`. If there are
    /// no Python frames, returns `others`. `native` is the index of the native frames in the unwinder's cache, if the
    /// cache contains these frames.
    #[inline(always)]
    pub(crate) fn hash(
        &mut self,
        others: Option<Hash>,
        native: usize,
        counters: &ThreadCounters,
    ) -> Option<Hash> {
        let found = self.frames.walk(native, number_of);
        self.cached_walk = None;
        let hash = match found {
            WalkOutcome::Cached(number) => {
                self.cached_walk = Some(number);
                self.hashes().cached[number]
            }
            WalkOutcome::Unchanged | WalkOutcome::Changed => self.hash_of_last(found),
            WalkOutcome::NoFrames | WalkOutcome::Unreadable => {
                self.has_frames = false;
                if found == WalkOutcome::Unreadable {
                    counters.lose(Loss::PythonDropped);
                }
                return others;
            }
        };
        self.has_frames = true;
        Some(others.map_or(hash, |others| hash.and(others)))
    }

    /// Returns the hash over the frames that the last walk found. If the walk is cached, caches its hash too.
    #[inline(always)]
    fn hash_of_last(&mut self, found: WalkOutcome) -> Hash {
        if found == WalkOutcome::Changed {
            self.hash = self.rehash();
        }
        if let Some(number) = self.frames.cache_last() {
            self.hashes().cached[number] = self.hash;
        }
        self.hash
    }

    fn hashes(&mut self) -> &mut FrameHashes {
        // SAFETY: the hashes stay mapped as long as `self` lives, and only `self` refers to them.
        unsafe { self.hashes.as_mut() }
    }

    /// Computes the hash over the frames that the last walk found. For the frames at the root side that have not
    /// changed, reuses the stored hash.
    #[inline(always)]
    fn rehash(&mut self) -> Hash {
        // SAFETY: the reasons in `hashes` apply here too. The mapping of the hashes does not contain `frames`, which is
        // borrowed below.
        let prefix = &mut unsafe { self.hashes.as_mut() }.prefix;
        let (kept, words) = self.frames.words();
        let mut hash = prefix[kept];
        for (word, slot) in words.zip(&mut prefix[kept + 1..]) {
            hash = hash.then(word);
            *slot = hash;
        }
        hash
    }

    /// If the last call to `hash` has only recognised a cached walk, walks the frames now.
    #[cold]
    fn walk_uncached(&mut self, counters: &ThreadCounters) {
        if self.cached_walk.take().is_some() {
            match self.frames.walk_uncached(number_of) {
                WalkOutcome::Unchanged => {}
                WalkOutcome::Changed => self.hash = self.rehash(),
                // The last call to `hash` found frames, so if this walk finds no frames, this is counted as a loss.
                WalkOutcome::Cached(_) | WalkOutcome::NoFrames | WalkOutcome::Unreadable => {
                    self.has_frames = false;
                    counters.lose(Loss::PythonDropped);
                }
            }
        }
    }

    /// If the last call to `hash` has only recognised a cached walk, checks that a new walk finds the same frames.
    /// If the frames differ, counts the difference.
    #[cold]
    pub(crate) fn verify(&mut self, counters: &ThreadCounters) {
        if let Some(number) = self.cached_walk {
            self.walk_uncached(counters);
            let kept = self.hashes().cached[number];
            let is_same = self.has_frames && self.hash == kept;
            counters.verified.unlike_plain.add(u64::from(!is_same));
        }
    }

    /// Merges the Python frames from the last call to `hash` with the native frames in `captured`. Returns `None` if
    /// there are no Python frames.
    #[cold]
    pub(crate) fn merge(
        &mut self,
        captured: &Captured<'_>,
        counters: &ThreadCounters,
    ) -> Option<MergedStack<'_>> {
        self.walk_uncached(counters);
        if !self.has_frames {
            return None;
        }
        let merged = self.frames.merge(captured);
        if !merged.is_sure {
            counters.lose(Loss::PythonUnsure);
        }
        Some(merged)
    }
}

impl Drop for PythonFrames {
    fn drop(&mut self) {
        // SAFETY: `of_this_thread` mapped the hashes, which are dropped with their owner.
        unsafe { memory::unmap(self.hashes.cast(), size_of::<FrameHashes>()) };
    }
}

/// Returns the id of the Python function with this description, or [`CodeId::OTHER`] if there are too many functions.
#[cold]
pub fn number_of(description: Description<'_>) -> CodeId {
    let text = description.0;
    let hash = text.chunks(8).fold(Hash::ROOT.then(text.len() as u64), |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.then(u64::from_le_bytes(word))
    });
    CODES.number_of(hash, 0, text, MAX_TEXTS).map_or(CodeId::OTHER, CodeId)
}

/// Passes a row for each new Python function to `each`. Launch contexts refer to functions, so the following order is
/// required. First mark the ends of the context logs, then call this function, and then pass on the contexts up to
/// these marks. Only one thread may call this function at a time.
pub fn drain_codes(each: &mut impl FnMut(&Row<'_>)) {
    CODES.drain_new(|number, _, text| {
        let id = CodeId(number);
        if id == CodeId::OTHER {
            let name = "(one of too many functions)";
            return each(&Row::Code(CodeObject {
                id,
                version: 0,
                first_line: 0,
                file: "",
                name,
                lines: &[],
            }));
        }
        let Some(parts) = Description(text).parts() else { return };
        let [file, name] = [parts.file, parts.name].map(String::from_utf8_lossy);
        each(&Row::Code(CodeObject {
            id,
            version: parts.version,
            first_line: parts.first_line,
            file: &file,
            name: &name,
            lines: parts.lines,
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_function_has_one_id_and_is_emitted_once() {
        let describe = |name: &str| {
            let mut text = Vec::new();
            for number in [0x030c, 7, 4, name.len() as u32] {
                text.extend(number.to_ne_bytes());
            }
            text.extend_from_slice(b"m.py");
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(&[1, 2, 3]);
            text
        };
        let one = number_of(Description(&describe("step")));
        assert_ne!(one, CodeId::OTHER);
        assert_eq!(number_of(Description(&describe("step"))), one);
        assert_ne!(number_of(Description(&describe("steps"))), one);
        let mut told = Vec::new();
        for _ in 0..2 {
            drain_codes(&mut |row| {
                let Row::Code(code) = row else { panic!("{row:?}") };
                told.push((
                    code.name.to_owned(),
                    code.file.to_owned(),
                    code.first_line,
                    code.lines.to_owned(),
                ));
            });
        }
        let step = |name: &str| (name.to_owned(), "m.py".to_owned(), 7, vec![1, 2, 3]);
        let others = ("(one of too many functions)".to_owned(), String::new(), 0, Vec::new());
        assert_eq!(told, [others, step("step"), step("steps")]);
    }
}
