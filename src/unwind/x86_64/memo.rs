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
//! * Frames below the stack pointer are gone, whatever their words say.
//! * The newest frames are the first to go, so the words of a walk are worked out only when the next
//!   capture finds that everything behind them still stands, and no further than they do themselves. So
//!   where stacks share nothing the memo costs what a plain walk does, and need not step aside.
//! * Only words of the thread's own stack are kept: it stays mapped. Other stacks are walked plainly.
//! * The instructions of generated code decide about the walk too, and are not verified: see `generated`.
//! * A signal frame and what it interrupted are barriers: they, and what lies leafward of them, are not kept.
//!   Nor is a stack with a frame that needs the slow walk (each capture of it is one), that was cut for another
//!   reason than rbp, or that is too deep.
//! * When objects were loaded or unloaded, everything is dropped.

use super::ADDRESS;
use super::end::End;
use super::rule::{Kind, Rule};
use super::walk::{Cursor, Join, Step};
use crate::record::Frame;
use crate::unwind::MAX_FRAMES;
use crate::unwind::bounds::Stack;
use crate::unwind::counts::Counts;
use crate::unwind::memory::word;

/// A step reads at most two words beside the return address: rbp, and the CFA of a realigned frame. And one
/// place for a word that does not matter.
const MAX_WORDS: usize = 2 * MAX_FRAMES + 1;

/// The last stack of a thread. Zeroed memory must be cleared before it is a memo.
///
/// What belongs to one frame lies in several arrays, because verification, which goes over all frames on
/// every capture, needs little of it: 12 bytes a frame. The root is the last frame: what stays stays in
/// place. Places on the stack are kept as distances from its low end.
#[repr(C)]
pub(super) struct Memo {
    /// The loader state that the rules belong to.
    counts: Counts,
    /// The bits of a frame that are its address. A compiler would make the constant anew for every four frames.
    mask: u64,
    /// The thread's own stack.
    stack: Stack,
    /// Index of the leafmost frame that may be joined; `MAX_FRAMES` = none.
    first: usize,
    /// How many words beside return addresses were read from `first` to the root.
    word_count: usize,
    /// How many steps of the last walk, leafward of `first`, have not been worked out yet.
    pending: usize,
    /// How that walk ended.
    end: End,
    /// Whether the walk of this stack ended for want of information.
    is_cut: bool,
    /// The captured frames. Those from `first` on hold return addresses only.
    pub(super) frames: [Frame; MAX_FRAMES],
    /// The frames' stack pointers. Right below each lies the return address in `frames`.
    places: [u32; MAX_FRAMES],
    states: [State; MAX_FRAMES],
    /// Words beside return addresses that steps read, root first: where, what, and by which frame.
    word_places: [u32; MAX_WORDS],
    word_values: [u64; MAX_WORDS],
    word_readers: [u16; MAX_WORDS],
}

/// What else decides about the callers of a frame.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct State {
    bp: u64,
    /// How many other words were read from here to the root, and three bits: whether `bp` decides about
    /// anything from here to the root, and the marks of the steps on that way.
    rest: u64,
}

/// Part of the last stack that still stands, and the way to find out whether a walk has reached it.
pub(super) struct Standing<'a> {
    memo: &'a Memo,
    /// The leafmost frame that stands and that the walk has not passed.
    next: usize,
    /// Its stack pointer.
    limit: u64,
}

/// What a step led to: the caller of the frame whose words are being noted.
#[derive(Clone, Copy, Debug)]
struct Outer {
    pc: u64,
    sp: u64,
    state: State,
}

/// All that decided about a stack: where it begins, rbp there if that matters, and words.
pub(super) struct Read<'a> {
    pub(super) pc: u64,
    pub(super) sp: u64,
    pub(super) bp: Option<u64>,
    memo: &'a Memo,
}

impl Read<'_> {
    /// Where the words lie.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        let memo = self.memo;
        let callers = memo.places[memo.first + 1..].iter();
        let returns = callers.map(move |place| memo.address(*place).wrapping_sub(8));
        returns.chain(memo.word_places[..memo.word_count].iter().map(move |place| memo.address(*place)))
    }
}

impl Memo {
    /// Makes zeroed memory a memo of nothing, for a thread with this stack.
    pub(super) fn prepare(&mut self, stack: Stack) {
        self.stack = Stack { lo: stack.lo.max(stack.hi.saturating_sub(u64::from(u32::MAX))), ..stack };
        self.clear(Counts::default());
    }

    /// Forgets the last stack, and starts over in the loader state `counts`.
    pub(super) fn clear(&mut self, counts: Counts) {
        self.counts = counts;
        self.mask = ADDRESS;
        self.first = MAX_FRAMES;
        self.word_count = 0;
        self.pending = 0;
        self.end = End::Lost;
        self.is_cut = false;
    }

    /// Forgets the last stack if its rules may be out of date.
    #[inline(always)]
    pub(super) fn expire(&mut self, counts: Counts) {
        if self.counts != counts {
            self.clear(counts);
        }
    }

    /// The part of the last stack that still stands, now that the stack pointer is `sp`. `steps` are those
    /// of the last walk.
    #[inline(always)]
    pub(super) fn verify(&mut self, steps: &[Step; MAX_FRAMES], sp: u64) -> Standing<'_> {
        if self.sp(self.first) < sp {
            self.drop_below(sp);
        }
        let mut next = self.first_standing();
        if self.pending != 0 {
            if next == self.first {
                next = self.work_out(&steps[..self.pending], sp);
            }
            self.pending = 0;
        }
        Standing { next, limit: self.sp(next), memo: self }
    }

    /// Forgets frames that are gone, for the stack ends above them: our own frames lie there by now.
    fn drop_below(&mut self, sp: u64) {
        while self.sp(self.first) < sp {
            self.first += 1;
        }
        self.word_count = self.states.get(self.first).map_or(0, State::words);
        self.pending = 0;
    }

    #[inline(always)]
    fn first_standing(&self) -> usize {
        let by_returns = self.first_standing_by_returns();
        let by_words = match self.word_readers[..self.word_count].get(self.count_standing_words()) {
            None => self.first,
            // The frame that read a changed word does not stand; its caller does.
            Some(reader) => usize::from(*reader) + 1,
        };
        by_returns.max(by_words)
    }

    /// The leafmost frame that still has all its callers, to the root, by their return addresses.
    #[inline(always)]
    fn first_standing_by_returns(&self) -> usize {
        // Where the leafmost frame itself was reached from does not matter.
        let callers = (self.first + 1).min(MAX_FRAMES)..MAX_FRAMES;
        let (some_places, places) = self.places[callers.clone()].as_rchunks::<4>();
        let (some_frames, frames) = self.frames[callers].as_rchunks::<4>();
        let change = |(place, frame): (&u32, &Frame)| {
            self.word(self.address(*place).wrapping_sub(8)) ^ (frame.0 & self.mask)
        };
        let mut at = MAX_FRAMES;
        let mut last = (some_places, some_frames);
        for (places, frames) in places.iter().zip(frames).rev() {
            if places.iter().zip(frames).map(change).fold(0, |all, one| all | one) != 0 {
                last = (places, frames);
                break;
            }
            at -= 4;
        }
        at -= last.0.iter().zip(last.1).rev().take_while(|pair| change(*pair) == 0).count();
        at.saturating_sub(1).max(self.first)
    }

    /// How many of the other words, from the root on, still hold what they held.
    #[inline(always)]
    fn count_standing_words(&self) -> usize {
        let places = &self.word_places[..self.word_count];
        let values = &self.word_values[..self.word_count];
        let change = |(place, value): (&u32, &u64)| self.word(self.address(*place)) ^ value;
        let (place_chunks, _) = places.as_chunks::<4>();
        let (value_chunks, _) = values.as_chunks::<4>();
        let is_standing = |(places, values): &(&[u32; 4], &[u64; 4])| {
            places.iter().zip(*values).map(change).fold(0, |all, one| all | one) == 0
        };
        let whole = place_chunks.iter().zip(value_chunks).take_while(is_standing).count() * 4;
        let others = places[whole..].iter().zip(&values[whole..]).take(4);
        whole + others.take_while(|pair| change(*pair) == 0).count()
    }

    #[inline(always)]
    fn address(&self, place: u32) -> u64 {
        self.stack.lo.wrapping_add(u64::from(place))
    }

    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        // SAFETY: a walk read this address of the thread's own stack, which stays mapped as long as it runs.
        unsafe { word(address) }
    }

    /// Takes in a walk that ended so after `count` steps, on the thread's own stack. With the frames that it
    /// joined they are no more than `MAX_FRAMES`.
    #[inline(always)]
    pub(super) fn extend(&mut self, count: usize, end: End) {
        match end {
            End::Joined(frame) => {
                self.first = frame;
                self.word_count = self.states[frame].words();
            }
            End::Bottom | End::NoInformation | End::ZeroReturn(_) => {
                self.first = MAX_FRAMES;
                self.word_count = 0;
                self.is_cut = end == End::NoInformation;
            }
            End::Lost | End::TooDeep | End::Elsewhere => return self.clear(self.counts),
        }
        self.pending = count;
        self.end = end;
    }

    /// Works out the steps of the last walk now, and not when the next capture finds that they still stand.
    pub(super) fn work_out_now(&mut self, steps: &[Step; MAX_FRAMES]) {
        let pending = std::mem::take(&mut self.pending);
        if let Some((leaf, _)) = steps[..pending].split_first() {
            self.work_out(&steps[..pending], leaf.sp);
        }
    }

    /// What the last walk read from its leaf on, the frame `leaf`; `None`: not all of it is kept.
    pub(super) fn read_from(&self, leaf: usize) -> Option<Read<'_>> {
        let is_whole = self.first == leaf && leaf < MAX_FRAMES && self.pending == 0;
        is_whole.then(|| {
            let Outer { pc, sp, state } = self.outer(leaf);
            Read { pc, sp, bp: state.bp_is_live().then_some(state.bp), memo: self }
        })
    }

    /// Works out the pending steps (leaf first), as far as their words still hold what they held, and gives
    /// the leafmost frame of which that is so.
    #[inline(never)]
    fn work_out(&mut self, steps: &[Step], sp: u64) -> usize {
        let end = self.end;
        let mut outer = match end {
            End::Joined(frame) => self.outer(frame),
            End::ZeroReturn(sp) => Outer { pc: 0, sp, state: State::NOTHING },
            _ => Outer { pc: 0, sp: 0, state: State::NOTHING },
        };
        for step in steps.iter().rev() {
            let step = step.by_words();
            let place = step.sp.wrapping_sub(self.stack.lo);
            if step.sp < sp || place > u64::from(u32::MAX) {
                break;
            }
            let (state, change) = if step.rule.is_plain() && self.first != MAX_FRAMES {
                self.work_out_plain(&step, &outer)
            } else {
                let Some(worked_out) = self.work_out_special(&step, &outer, end) else { break };
                worked_out
            };
            if change != 0 {
                break;
            }
            self.first -= 1;
            self.places[self.first] = place as u32;
            self.states[self.first] = state;
            outer = Outer { pc: step.pc, sp: step.sp, state };
        }
        self.word_count = outer.state.words();
        self.first
    }

    /// The state of a plain step to `outer`, and not 0 if one of its words has changed. Like the step
    /// itself, without a branch that depends on the rule.
    #[inline(always)]
    fn work_out_plain(&mut self, step: &Step, outer: &Outer) -> (State, u64) {
        let bp_slot = outer.sp.wrapping_sub(step.rule.saved());
        let restores = step.rule.restores_bp();
        let matters = restores & outer.state.bp_is_live();
        self.note(outer.state.words(), bp_slot, outer.state.bp);
        let bp_change = (self.word(bp_slot) ^ outer.state.bp) & u64::from(matters).wrapping_neg();
        let words = outer.state.words() + usize::from(matters);
        let bp_is_live = step.rule.is_bp_based() | (!restores & outer.state.bp_is_live());
        let state = State::new(step.bp, words, bp_is_live, outer.state.marks());
        (state, bp_change | self.return_change(outer))
    }

    /// The same for a step that is the root, or is not plain; `None` where it is a barrier.
    #[cold]
    fn work_out_special(&mut self, step: &Step, outer: &Outer, end: End) -> Option<(State, u64)> {
        if step.rule.is_exact() {
            return None;
        }
        let is_root = self.first == MAX_FRAMES;
        let mut words = outer.state.words();
        let mut change = 0;
        let mut note = |address, value| {
            self.note(words, address, value);
            words += 1;
            change |= self.word(address) ^ value;
        };
        match step.rule.kind() {
            Kind::Signal | Kind::Slow => return None,
            Kind::End => return Some((State::new(step.bp, words, false, 0), 0)),
            Kind::Unknown if is_root && end == End::NoInformation => {
                let state = State::new(step.bp, words, true, State::marks_of(step.rule) & !State::IS_GUESSED);
                return Some((state, 0));
            }
            Kind::Step | Kind::Unknown => {}
            Kind::Realigned => note(step.bp.wrapping_add_signed(step.rule.offset()), outer.sp),
        }
        // Return addresses are compared by frame; but what lies beyond the root is no frame.
        if is_root {
            note(outer.sp.wrapping_sub(8), outer.pc);
        }
        let bp_slot = step.rule.bp_slot(step.bp, outer.sp);
        if let Some(slot) = bp_slot.filter(|_| outer.state.bp_is_live()) {
            note(slot, outer.state.bp);
        }
        if !is_root {
            change |= self.return_change(outer);
        }
        let bp_is_live = step.rule.reads_bp() || (bp_slot.is_none() && outer.state.bp_is_live());
        let marks = outer.state.marks() | State::marks_of(step.rule);
        Some((State::new(step.bp, words, bp_is_live, marks), change))
    }

    /// Notes what the next frame read, as the word `at`.
    #[inline(always)]
    fn note(&mut self, at: usize, address: u64, value: u64) {
        self.word_places[at] = address.wrapping_sub(self.stack.lo) as u32;
        self.word_values[at] = value;
        self.word_readers[at] = (self.first - 1) as u16;
    }

    /// Not 0 if `outer` has another return address by now.
    #[inline(always)]
    fn return_change(&self, outer: &Outer) -> u64 {
        self.word(outer.sp.wrapping_sub(8)) ^ outer.pc
    }

    #[inline(always)]
    fn outer(&self, frame: usize) -> Outer {
        Outer { pc: self.frames[frame].0 & self.mask, sp: self.sp(frame), state: self.states[frame] }
    }

    /// The loader state that the rules belong to.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether the stack whose frames these are ended for want of information.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether a step from `frame` to the root was a guess.
    pub(super) fn is_guessed(&self, frame: usize) -> bool {
        self.states.get(frame).is_some_and(State::is_guessed)
    }

    /// Whether `frame`, or one between it and the root, is of code that may be replaced.
    pub(super) fn is_generated(&self, frame: usize) -> bool {
        self.states.get(frame).is_some_and(State::is_generated)
    }

    /// The stack pointer of a frame; the end of memory for that beyond the root.
    #[inline(always)]
    pub(super) fn sp(&self, frame: usize) -> u64 {
        self.places.get(frame).map_or(u64::MAX, |place| self.address(*place))
    }
}

impl State {
    /// What is known beyond the root.
    const NOTHING: Self = Self { bp: 0, rest: 0 };
    const BP_IS_LIVE: u64 = 1 << 32;
    /// Marks: a step was a guess; its code may be replaced.
    const IS_GUESSED: u64 = 1 << 33;
    const IS_GENERATED: u64 = 1 << 34;

    #[inline(always)]
    fn new(bp: u64, words: usize, bp_is_live: bool, marks: u64) -> Self {
        Self { bp, rest: words as u64 | u64::from(bp_is_live) << 32 | marks }
    }

    /// Marks of a step by `rule`.
    fn marks_of(rule: Rule) -> u64 {
        let mark = |is_so: bool, mark| if is_so { mark } else { 0 };
        mark(rule.kind() == Kind::Unknown, Self::IS_GUESSED)
            | mark(rule.may_be_replaced(), Self::IS_GENERATED)
    }

    #[inline(always)]
    fn marks(&self) -> u64 {
        self.rest & (Self::IS_GUESSED | Self::IS_GENERATED)
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

    #[inline(always)]
    fn is_generated(&self) -> bool {
        self.rest & Self::IS_GENERATED != 0
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
        while self.limit < cursor.sp && self.next < MAX_FRAMES {
            self.next += 1;
            self.limit = self.memo.sp(self.next);
        }
        let state = self.memo.states.get(self.next)?;
        let is_same = self.limit == cursor.sp
            && self.memo.frames[self.next].0 & self.memo.mask == cursor.pc()
            && !cursor.is_exact()
            && (state.bp == cursor.bp || !state.bp_is_live());
        is_same.then_some(self.next)
    }
}
