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

/// A frame that a walk may join. The word below `sp` held `pc` when a walk arrived here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Known {
    pc: u64,
    sp: u64,
    bp: u64,
    /// How many other words were read from here to the root, and two bits: whether `bp` decides about
    /// anything from here to the root, and whether a step on that way was a guess.
    rest: u64,
}

const _: () = assert!(size_of::<Known>() == 32, "two known frames fit a cache line");

/// A stack word beside the return addresses that a step read, and what it held.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Word {
    address: u64,
    value: u64,
}

/// A step reads at most two words beside the return address: rbp, and the CFA of a realigned frame. And one
/// place for a word that does not matter.
const MAX_WORDS: usize = 2 * MAX_FRAMES + 1;

/// The last stack of a thread. Zeroed memory must be cleared before it is a memo.
#[repr(C)]
pub(super) struct Memo {
    /// The loader state that the rules belong to.
    counts: Counts,
    /// Index of the leafmost frame that may be joined; `MAX_FRAMES` = none. The root is the last frame.
    first: usize,
    /// How many words beside return addresses were read from `first` to the root.
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
        let by_returns = self.first_standing_by_returns();
        let by_words = match self.readers[..self.word_count].get(self.count_standing_words()) {
            None => self.first,
            // The frame that read a changed word does not stand; its caller does.
            Some(reader) => usize::from(*reader) + 1,
        };
        let next = by_returns.max(by_words);
        let limit = self.known.get(next).map_or(u64::MAX, |known| known.sp);
        Standing { memo: self, next, limit }
    }

    /// The leafmost frame that still has all its callers, to the root, by their return addresses.
    #[inline(always)]
    fn first_standing_by_returns(&self) -> usize {
        // Where the leafmost frame itself was reached from does not matter.
        let Some((_, callers)) = self.known[self.first..].split_first() else { return MAX_FRAMES };
        let (rest, chunks) = callers.as_rchunks::<4>();
        let mut standing = 0;
        for chunk in chunks.iter().rev() {
            if chunk.iter().fold(0, |changed, known| changed | known.return_change()) != 0 {
                return MAX_FRAMES - 1 - standing - standing_at_end(chunk);
            }
            standing += 4;
        }
        MAX_FRAMES - 1 - standing - standing_at_end(rest)
    }

    /// How many of the other words, from the root on, still hold what they held.
    #[inline(always)]
    fn count_standing_words(&self) -> usize {
        let words = &self.words[..self.word_count];
        let (chunks, rest) = words.as_chunks::<4>();
        let changed = |words: &[Word]| words.iter().fold(0, |changed, word| changed | word.change()) != 0;
        let whole = chunks.iter().take_while(|chunk| !changed(*chunk)).count() * 4;
        if whole == words.len() - rest.len() && !changed(rest) {
            return words.len();
        }
        whole + words[whole..].iter().take_while(|word| word.change() == 0).count()
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
        let mut first = joined;
        for step in steps.iter().rev() {
            let step = step.by_words();
            let known = if step.rule.is_plain() && first != MAX_FRAMES {
                // Like the step itself, without a branch that depends on the rule.
                let restores = step.rule.restores_bp();
                self.note(outer.words(), first - 1, outer.sp.wrapping_sub(step.rule.saved()), outer.bp);
                let words = outer.words() + usize::from(restores & outer.bp_is_live());
                let bp_is_live = step.rule.is_bp_based() | (!restores & outer.bp_is_live());
                Known::new(&step, words, bp_is_live, outer.is_guessed())
            } else {
                let Some(known) = self.learn(&step, first, &outer, end) else { break };
                known
            };
            first -= 1;
            self.known[first] = known;
            outer = known;
        }
        self.word_count = outer.words();
        self.first = first;
    }

    /// The frame of a step that is the root, or is not plain; `None` where it is a barrier. `outer` is its
    /// caller, at `caller` in `known`.
    #[inline(never)]
    fn learn(&mut self, step: &Step, caller: usize, outer: &Known, end: End) -> Option<Known> {
        if step.rule.is_exact() {
            return None;
        }
        let is_root = caller == MAX_FRAMES;
        let mut words = outer.words();
        let mut note = |address, value| {
            self.note(words, caller - 1, address, value);
            words += 1;
        };
        if let (true, End::ZeroReturn(sp)) = (is_root, end) {
            note(sp.wrapping_sub(8), 0);
        }
        match step.rule.kind() {
            // Its rbp is live if it is read, for there is a caller; the root's caller needs none.
            Kind::Step => {
                return is_root.then(|| Known::new(step, words, step.rule.is_bp_based(), false));
            }
            Kind::End => return Some(Known::new(step, words, false, false)),
            Kind::Signal | Kind::Slow => return None,
            Kind::Unknown if is_root && end == End::NoInformation => {
                return Some(Known::new(step, words, true, false));
            }
            Kind::Realigned => note(step.bp.wrapping_add_signed(step.rule.offset()), outer.sp),
            Kind::Unknown => {}
        }
        if outer.bp_is_live() {
            note(step.bp, outer.bp);
        }
        let is_guessed = outer.is_guessed() || step.rule.kind() == Kind::Unknown;
        Some(Known::new(step, words, true, is_guessed))
    }

    /// Notes what the frame `reader` read, as the word `at`.
    #[inline(always)]
    fn note(&mut self, at: usize, reader: usize, address: u64, value: u64) {
        self.words[at] = Word { address, value };
        self.readers[at] = reader as u16;
    }

    /// Whether the stack whose frames these are ended for want of information.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether a step from `frame` to the root was a guess.
    pub(super) fn is_guessed(&self, frame: usize) -> bool {
        self.known.get(frame).is_some_and(|known| known.is_guessed())
    }

    /// The stack pointers of the frames from `frame` to the root.
    pub(super) fn stack_pointers(&self, frame: usize) -> impl Iterator<Item = u64> {
        self.known[frame..].iter().map(|known| known.sp)
    }
}

/// How many frames at the end of `frames` still lie where a return address leads to them.
#[inline(always)]
fn standing_at_end(frames: &[Known]) -> usize {
    frames.iter().rev().take_while(|known| known.return_change() == 0).count()
}

impl Known {
    const BP_IS_LIVE: u64 = 1 << 32;
    const IS_GUESSED: u64 = 1 << 33;

    #[inline(always)]
    fn new(step: &Step, words: usize, bp_is_live: bool, is_guessed: bool) -> Self {
        let rest = words as u64 | u64::from(bp_is_live) << 32 | u64::from(is_guessed) << 33;
        Self { pc: step.pc, sp: step.sp, bp: step.bp, rest }
    }

    /// What lies beyond the root, where a walk ended with the stack pointer at `sp`.
    fn nothing(sp: u64) -> Self {
        Self { pc: 0, sp, bp: 0, rest: 0 }
    }

    /// Not 0 if the word below `sp` is another return address by now.
    #[inline(always)]
    fn return_change(&self) -> u64 {
        // SAFETY: the address lies on the thread's own stack, which stays mapped as long as it runs.
        (unsafe { word(self.sp.wrapping_sub(8)) }) ^ self.pc
    }

    #[inline(always)]
    fn words(&self) -> usize {
        self.rest as u32 as usize
    }

    #[inline(always)]
    fn bp_is_live(&self) -> bool {
        self.rest & Self::BP_IS_LIVE != 0
    }

    #[inline(always)]
    fn is_guessed(&self) -> bool {
        self.rest & Self::IS_GUESSED != 0
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
                let is_same = known.pc == cursor.pc()
                    && !cursor.is_exact
                    && (known.bp == cursor.bp || !known.bp_is_live());
                return is_same.then_some(self.next);
            }
            self.next += 1;
        }
        self.limit = u64::MAX;
        None
    }
}
