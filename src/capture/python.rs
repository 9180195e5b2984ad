//! A thread's Python frames: what identifies them, and the numbers that their functions have in the whole process.

use std::ptr::NonNull;

use crate::record::{Code, CodeId, Loss, Row};
use crate::unwind::python::{Description, Found, Merged, Python, WALKS};
use crate::unwind::{Captured, memory};

use super::counts::Counts;
use super::intern::{Hash, Prefix};
use super::texts::{MOST_TEXTS, Texts};

/// What is said of each function that stood in a stack.
static CODES: Texts = Texts::new();

/// The Python frames of one thread.
pub(super) struct PythonFrames {
    frames: Python,
    /// In a mapping of its own.
    hashes: NonNull<Hashes>,
    /// Over the frames of the last walk.
    hash: Hash,
    /// Whether there were any.
    any: bool,
    /// The number of the kept walk that they are of; `None`: they are the last one's.
    met: Option<usize>,
}

/// Of frames.
#[repr(C)]
struct Hashes {
    /// Over so many at the root of the last walk.
    prefix: Prefix,
    /// Over those of kept walks, by their numbers.
    kept: [Hash; WALKS],
}

impl PythonFrames {
    /// For the calling thread; `None` where there is no interpreter that can be read. To be asked for when a stack is
    /// new, as the first one through an interpreter is.
    #[cold]
    pub(super) fn of_this_thread() -> Option<Self> {
        let frames = Python::of_this_thread()?;
        let mut hashes = memory::map(size_of::<Hashes>())?.cast::<Hashes>();
        // SAFETY: a fresh mapping of that size, where zeroes are valid hashes.
        unsafe { hashes.as_mut() }.prefix[0] = Hash::ROOT;
        Some(Self { frames, hashes, hash: Hash::ROOT, any: false, met: None })
    }

    /// What identifies the frames that the thread is in now, with what does so beside them (`others`). `None`: nothing
    /// does. `native` says which native frames it is in, as far as that is known.
    #[inline(always)]
    pub(super) fn hash(&mut self, others: Option<Hash>, native: usize, tally: &Counts) -> Option<Hash> {
        let found = self.frames.walk(native, number_of);
        self.met = None;
        let hash = match found {
            Found::Again(number) => {
                self.met = Some(number);
                self.hashes().kept[number]
            }
            Found::Same | Found::Other => self.hash_of_last(found),
            Found::Nothing | Found::Lost => {
                self.any = false;
                if found == Found::Lost {
                    tally.lose(Loss::PythonDropped);
                }
                return others;
            }
        };
        self.any = true;
        Some(others.map_or(hash, |others| hash.and(others)))
    }

    /// Over the frames of the last walk, which may be kept.
    #[inline(always)]
    fn hash_of_last(&mut self, found: Found) -> Hash {
        if found == Found::Other {
            self.hash = self.hash_anew();
        }
        if let Some(number) = self.frames.keep() {
            self.hashes().kept[number] = self.hash;
        }
        self.hash
    }

    fn hashes(&mut self) -> &mut Hashes {
        // SAFETY: mapped as long as `self` lives, and nobody else knows it.
        unsafe { self.hashes.as_mut() }
    }

    /// Over the frames of the last walk, of which those at the root that were the same before are not looked at.
    #[inline(always)]
    fn hash_anew(&mut self) -> Hash {
        // SAFETY: as above; `frames` lies elsewhere.
        let prefix = &mut unsafe { self.hashes.as_mut() }.prefix;
        let (kept, words) = self.frames.words();
        let mut hash = prefix[kept];
        for (word, place) in words.zip(&mut prefix[kept + 1..]) {
            hash = hash.then(word);
            *place = hash;
        }
        hash
    }

    /// Has the last walk be one along the frames that `hash` saw, where those are a kept walk's.
    #[cold]
    fn walk_plainly(&mut self, tally: &Counts) {
        if self.met.take().is_some() {
            match self.frames.walk_plainly(number_of) {
                Found::Same => {}
                Found::Other => self.hash = self.hash_anew(),
                // They were there a moment ago.
                Found::Again(_) | Found::Nothing | Found::Lost => {
                    self.any = false;
                    tally.lose(Loss::PythonDropped);
                }
            }
        }
    }

    /// Looks whether the frames that `hash` saw by their number are those that a walk finds.
    #[cold]
    pub(super) fn verify(&mut self, tally: &Counts) {
        if let Some(number) = self.met {
            self.walk_plainly(tally);
            let kept = self.hashes().kept[number];
            let is_same = self.any && self.hash == kept;
            tally.verified.unlike_plain.add(u64::from(!is_same));
        }
    }

    /// The frames that `hash` saw among those of `captured`; `None` where there were none.
    #[cold]
    pub(super) fn merge(&mut self, captured: &Captured<'_>, tally: &Counts) -> Option<Merged<'_>> {
        self.walk_plainly(tally);
        if !self.any {
            return None;
        }
        let merged = self.frames.merge(captured);
        if !merged.is_sure {
            tally.lose(Loss::PythonUnsure);
        }
        Some(merged)
    }
}

impl Drop for PythonFrames {
    fn drop(&mut self) {
        // SAFETY: mapped, and goes with its owner.
        unsafe { memory::unmap(self.hashes.cast(), size_of::<Hashes>()) };
    }
}

/// The number of a function, from what is said of it; [`CodeId::OTHER`] where there are too many.
#[cold]
fn number_of(description: Description<'_>) -> CodeId {
    let text = description.0;
    let hash = text.chunks(8).fold(Hash::ROOT.then(text.len() as u64), |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.then(u64::from_le_bytes(word))
    });
    CODES.number_of(hash, 0, text, MOST_TEXTS).map_or(CodeId::OTHER, CodeId)
}

/// Hands over the functions that are new. To be called after the contexts that hold them were marked, and before they
/// are handed over; by one thread at a time.
pub(super) fn drain_codes(each: &mut impl FnMut(&Row<'_>)) {
    CODES.tell(|number, _, text| {
        let id = CodeId(number);
        if id == CodeId::OTHER {
            let name = "(one of too many functions)";
            return each(&Row::Code(Code { id, version: 0, first_line: 0, file: "", name, lines: &[] }));
        }
        let Some(parts) = Description(text).parts() else { return };
        let [file, name] = [parts.file, parts.name].map(String::from_utf8_lossy);
        each(&Row::Code(Code {
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
    fn a_function_has_one_number_and_is_told_once() {
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
