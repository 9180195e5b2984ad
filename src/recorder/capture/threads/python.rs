//! The Python frames of a thread, the hash that identifies these frames, and the process-wide numbers of Python
//! functions.

use std::ptr::NonNull;

use gpuflame_model::record::{CodeId, CodeObject, Loss, Row};
use gpuflame_unwind::python::{Description, MergedStack, PythonUnwinder, WALKS, WalkOutcome};
use gpuflame_unwind::{Captured, memory};

use super::thread_counters::ThreadCounters;
use crate::capture::ids::intern::{Hash, PrefixHashes};
use crate::capture::ids::text_table::{MAX_TEXTS, TextTable};

/// Descriptions of all Python functions that have occurred in a stack, and their numbers.
static CODES: TextTable = TextTable::new();

/// Python frames of one thread.
pub(crate) struct PythonFrames {
    frames: PythonUnwinder,
    /// Hashes of the frames, in a separate mapping.
    hashes: NonNull<FrameHashes>,
    /// Hash over the frames of the last walk.
    hash: Hash,
    /// Whether the last walk found frames.
    has_frames: bool,
    /// Number of the cached walk that was recognised, so that its frames are the current frames. `None` if the last
    /// walk found the current frames.
    cached_walk: Option<usize>,
}

/// Hashes of frames.
#[repr(C)]
struct FrameHashes {
    /// `prefix[n]` = hash over the `n` frames next to the root that the last walk found.
    prefix: PrefixHashes,
    /// Hashes over the frames of cached walks, by the number of the walk.
    cached: [Hash; WALKS],
}

impl PythonFrames {
    /// Creates the state of the calling thread; `None` if there is no readable interpreter. Call this only when a stack
    /// is new, because the first stack that goes through an interpreter is always new.
    #[cold]
    pub(crate) fn of_this_thread() -> Option<Self> {
        let frames = PythonUnwinder::of_this_thread()?;
        let mut hashes = memory::map(size_of::<FrameHashes>())?.cast::<FrameHashes>();
        // SAFETY: `hashes` is a fresh mapping of that size, and its zero bytes are valid hashes.
        unsafe { hashes.as_mut() }.prefix[0] = Hash::ROOT;
        Some(Self { frames, hashes, hash: Hash::ROOT, has_frames: false, cached_walk: None })
    }

    /// Returns the hash that identifies the thread's current Python frames, combined with the hash `others`. Without
    /// Python frames, returns `others`. `native` is the number of the native frames in the unwinder's cache, if that
    /// number is known.
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

    /// Returns the hash over the frames that the last walk found. If the walker has cached this walk, caches the hash
    /// too.
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
        // SAFETY: the hashes are mapped as long as `self` lives, and only `self` refers to them.
        unsafe { self.hashes.as_mut() }
    }

    /// Computes the hash over the frames that the last walk found. The unchanged frames at the root are not hashed
    /// again.
    #[inline(always)]
    fn rehash(&mut self) -> Hash {
        // SAFETY: as in `hashes`; `frames`, which is borrowed below, is stored outside of the mapping.
        let prefix = &mut unsafe { self.hashes.as_mut() }.prefix;
        let (kept, words) = self.frames.words();
        let mut hash = prefix[kept];
        for (word, slot) in words.zip(&mut prefix[kept + 1..]) {
            hash = hash.then(word);
            *slot = hash;
        }
        hash
    }

    /// If the last `hash` recognised a cached walk instead of walking the frames, walks the frames now.
    #[cold]
    fn walk_uncached(&mut self, counters: &ThreadCounters) {
        if self.cached_walk.take().is_some() {
            match self.frames.walk_uncached(number_of) {
                WalkOutcome::Unchanged => {}
                WalkOutcome::Changed => self.hash = self.rehash(),
                // The preceding call of `hash` found frames, so their absence now is counted as a loss.
                WalkOutcome::Cached(_) | WalkOutcome::NoFrames | WalkOutcome::Unreadable => {
                    self.has_frames = false;
                    counters.lose(Loss::PythonDropped);
                }
            }
        }
    }

    /// If the last `hash` recognised a cached walk, checks that a new walk finds the same frames. A difference is
    /// counted.
    #[cold]
    pub(crate) fn verify(&mut self, counters: &ThreadCounters) {
        if let Some(number) = self.cached_walk {
            self.walk_uncached(counters);
            let kept = self.hashes().cached[number];
            let is_same = self.has_frames && self.hash == kept;
            counters.verified.unlike_plain.add(u64::from(!is_same));
        }
    }

    /// Merges the Python frames that the last `hash` found with the native frames of `captured`. Returns `None` if
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

/// Returns the number of the Python function with this description; [`CodeId::OTHER`] if there are too many functions.
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

/// Passes a row for each new Python function to `each`. Because contexts refer to functions, call in this order: first
/// mark the ends of the context logs, then call this function, and then pass on the contexts up to the marks. Only one
/// thread may call this at a time.
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
