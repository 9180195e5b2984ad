//! The thread's last stack, and the proof that its outer part still stands.
//!
//! An unwind is a function of the state it starts from (pc, sp, rbp), of the rules, and of the stack words
//! that it reads. So if a new walk arrives at a state that the last one had, and all words that were read
//! from there to the root still hold what they held, the rest of the stack is the same, step by step.
//! Nothing here is a heuristic. What it takes:
//!
//! * The state must be *reached*, not just found: words of frames that are gone often stay unchanged.
//! * rbp counts only where it is *live*: where some rule further out reads it before another restores
//!   it. In code without frame pointers it is one more register, and different every time.
//! * Words are verified from the root inwards, before the walk: independent loads, one exit. The walk then
//!   compares one stack pointer a frame.
//! * Only words of the thread's own stack are kept: it stays mapped. Other stacks are walked plainly.
//! * A signal frame, what it interrupted, and whatever needs the slow walk are barriers: they, and what
//!   lies leafward of them, are not kept.
//!   Nor is a stack that was cut for another reason than rbp, or is too deep.
//! * When objects were loaded or unloaded, everything is dropped.

use super::rule::Kind;
use super::walk::{Cursor, End, Join, Step};
use crate::unwind::MAX_FRAMES;
use crate::unwind::loader::Counts;
use crate::unwind::memory::word;

/// A stack word that a step read, and what it held.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Word {
    address: u64,
    value: u64,
}

/// A frame that a walk may join.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Known {
    pc: u64,
    sp: u64,
    bp: u64,
    /// How many words were read from here to the root.
    words: u32,
    /// Whether `bp` decides about anything from here to the root.
    bp_is_live: bool,
    /// Whether a step from here to the root was a guess.
    is_guessed: bool,
}

const _: () = assert!(size_of::<Known>() == 32, "two known frames fit a cache line");

/// A step reads at most three words: return address, rbp, and the CFA of a realigned frame.
const MAX_WORDS: usize = 3 * MAX_FRAMES;

/// The last stack of a thread. Zeroed memory must be cleared before it is a memo.
#[repr(C)]
pub(super) struct Memo {
    /// The loader state that the rules belong to.
    counts: Counts,
    /// Index of the leafmost frame that may be joined; `MAX_FRAMES` = none. The root is the last frame.
    first: usize,
    /// How many words were read from `first` to the root.
    word_count: usize,
    /// Whether the walk of this stack ended for want of information.
    is_cut: bool,
    /// Root first.
    words: [Word; MAX_WORDS],
    /// The frame that each word was read by, as an index into `known`.
    readers: [u16; MAX_WORDS],
    /// Leaf first, and the root in the last place: what stays stays in place.
    known: [Known; MAX_FRAMES],
}

/// Part of the last stack that still stands, and the way to find out whether a walk has reached it.
pub(super) struct Standing<'a> {
    memo: &'a Memo,
    /// The leafmost frame that stands and that the walk has not passed.
    next: usize,
    /// Its stack pointer.
    limit: u64,
}

impl Memo {
    /// Forgets the last stack, and starts over in the loader state `counts`.
    pub(super) fn clear(&mut self, counts: Counts) {
        self.counts = counts;
        self.first = MAX_FRAMES;
        self.word_count = 0;
        self.is_cut = false;
    }

    /// Forgets the last stack if its rules may be out of date.
    #[inline(always)]
    pub(super) fn expire(&mut self, counts: Counts) {
        if self.counts != counts {
            self.clear(counts);
        }
    }

    /// The part of the last stack that still stands.
    #[inline(always)]
    pub(super) fn verify(&self) -> Standing<'_> {
        let standing = self.count_standing();
        let next = match self.readers[..self.word_count].get(standing) {
            None => self.first,
            // The frame that read a changed word does not stand; its caller does.
            Some(reader) => usize::from(*reader) + 1,
        };
        let limit = self.known.get(next).map_or(u64::MAX, |known| known.sp);
        Standing { memo: self, next, limit }
    }

    /// How many words, from the root on, still hold what they held.
    #[inline(always)]
    fn count_standing(&self) -> usize {
        let words = &self.words[..self.word_count];
        let (chunks, _) = words.as_chunks::<4>();
        let mut count = 0;
        for chunk in chunks {
            if chunk.iter().fold(0, |changed, word| changed | word.change()) != 0 {
                break;
            }
            count += 4;
        }
        count + words[count..].iter().take(4).take_while(|word| word.change() == 0).count()
    }

    /// Takes in the new steps (leaf first) of a walk that ended so, on the thread's own stack. With the
    /// frames that it joined they are no more than `MAX_FRAMES`.
    pub(super) fn extend(&mut self, steps: &[Step], end: End) {
        let (joined, mut outer) = match end {
            End::Joined(frame) => (frame, self.known[frame]),
            End::Bottom | End::NoInformation => (MAX_FRAMES, Known::nothing(0)),
            End::ZeroReturn(sp) => (MAX_FRAMES, Known::nothing(sp)),
            End::Lost | End::TooDeep => return self.clear(self.counts),
        };
        if joined == MAX_FRAMES {
            self.is_cut = end == End::NoInformation;
        }
        self.first = joined;
        self.word_count = outer.words as usize;
        for step in steps.iter().rev() {
            let is_dead_end = end == End::NoInformation && self.first == MAX_FRAMES;
            let Some(known) = self.learn(step, &outer, is_dead_end) else { break };
            self.first -= 1;
            self.known[self.first] = known;
            outer = known;
        }
    }

    /// Notes the words that `step` read on the way to `outer`; `None` where it is a barrier.
    #[inline(always)]
    fn learn(&mut self, step: &Step, outer: &Known, is_dead_end: bool) -> Option<Known> {
        let rule = step.rule;
        if rule.is_exact() {
            return None;
        }
        let reader = self.first - 1;
        let mut known = Known { pc: step.pc, sp: step.sp, bp: step.bp, ..*outer };
        if rule.is_step() {
            self.note(reader, outer.sp.wrapping_sub(8), outer.pc);
            if rule.saved() != 0 {
                if outer.bp_is_live {
                    self.note(reader, outer.sp.wrapping_sub(rule.saved()), outer.bp);
                }
                known.bp_is_live = false;
            }
            known.bp_is_live |= rule.is_bp_based();
        } else {
            match rule.kind() {
                Kind::End => known.bp_is_live = false,
                Kind::Unknown if is_dead_end => known.bp_is_live = true,
                Kind::Realigned => {
                    self.note(reader, step.bp.wrapping_add_signed(rule.offset()), outer.sp);
                    self.note_pair(reader, step.bp, outer);
                    known.bp_is_live = true;
                }
                Kind::Unknown => {
                    self.note_pair(reader, step.bp, outer);
                    known.bp_is_live = true;
                    known.is_guessed = true;
                }
                Kind::Step | Kind::Signal | Kind::Slow => return None,
            }
        }
        known.words = self.word_count as u32;
        Some(known)
    }

    /// Notes the return address, and rbp where it matters.
    fn note_pair(&mut self, reader: usize, bp_slot: u64, outer: &Known) {
        self.note(reader, outer.sp.wrapping_sub(8), outer.pc);
        if outer.bp_is_live {
            self.note(reader, bp_slot, outer.bp);
        }
    }

    #[inline(always)]
    fn note(&mut self, reader: usize, address: u64, value: u64) {
        self.words[self.word_count] = Word { address, value };
        self.readers[self.word_count] = reader as u16;
        self.word_count += 1;
    }

    /// Whether the stack whose frames these are ended for want of information.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether a step from `frame` to the root was a guess.
    pub(super) fn is_guessed(&self, frame: usize) -> bool {
        self.known.get(frame).is_some_and(|known| known.is_guessed)
    }

    /// The stack pointers of the frames from `frame` to the root.
    pub(super) fn stack_pointers(&self, frame: usize) -> impl Iterator<Item = u64> {
        self.known[frame..].iter().map(|known| known.sp)
    }
}

impl Known {
    /// What lies beyond the root, where a walk ended with the stack pointer at `sp`.
    fn nothing(sp: u64) -> Self {
        Self { pc: 0, sp, bp: 0, words: 0, bp_is_live: false, is_guessed: false }
    }
}

impl Word {
    /// Not 0 if the word holds something else by now.
    #[inline(always)]
    fn change(&self) -> u64 {
        // SAFETY: the address lies on the thread's own stack, which stays mapped as long as it runs.
        (unsafe { word(self.address) }) ^ self.value
    }
}

impl Join for Standing<'_> {
    #[inline(always)]
    fn reached(&mut self, cursor: &Cursor) -> Option<usize> {
        if cursor.sp < self.limit { None } else { self.compare(cursor) }
    }
}

impl Standing<'_> {
    #[inline(always)]
    fn compare(&mut self, cursor: &Cursor) -> Option<usize> {
        while let Some(known) = self.memo.known.get(self.next) {
            self.limit = known.sp;
            if known.sp > cursor.sp {
                return None;
            }
            if known.sp == cursor.sp {
                let is_same =
                    known.pc == cursor.pc && !cursor.is_exact && (known.bp == cursor.bp || !known.bp_is_live);
                return is_same.then_some(self.next);
            }
            self.next += 1;
        }
        self.limit = u64::MAX;
        None
    }
}
