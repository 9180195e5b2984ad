//! A cache of the thread's last stack. At the next capture, the cache determines how many of the last stack's outer
//! frames are unchanged.
//!
//! The result of a walk depends only on its starting state (pc, sp, rbp), on the unwind rules, and on the stack words
//! that it reads. Suppose that a new walk reaches a state of the last walk, and that all words that the last walk read
//! between that state and the root are unchanged. Under these two conditions, the rest of the new stack is the same as
//! the rest of the last stack, step by step. The comparison with the last stack uses no heuristic. The cache uses this
//! property of walks as follows:
//!
//! * A new walk must *reach* a state of the last walk. Unchanged words in memory are not enough, because the words of a
//!   frame often stay unchanged after the frame's function has returned.
//! * The value of rbp must match only if rbp is *live*, that is, if a rule nearer to the root reads rbp before another
//!   rule restores it. In code without frame pointers, rbp is an ordinary register with a different value every time.
//! * Words are verified before the walk, in order from the root to the leaf, with loads that do not depend on each
//!   other. The verification stops at the first changed word. Because the words were verified before, the walk itself
//!   compares only one stack pointer per frame.
//! * The functions of frames below the present stack pointer have returned, even if the words of these frames are
//!   unchanged.
//! * The newest frames are the first to return, so recording the words of these frames would often be wasted work.
//!   Therefore a walk's words are recorded only at the next capture, from the root up to the first changed word, and
//!   only if all older frames are unchanged. Therefore, if stacks have no frames in common, a capture with this cache
//!   costs no more than a walk without it, and the cache needs no back-off.
//! * Only words of the thread's own stack are stored, because only that stack is sure to stay mapped. Other stacks are
//!   walked without this cache.
//! * The instructions of generated code also affect the walk, but this cache does not verify instructions: see
//!   `generated`.
//! * A signal frame and the frame that the signal interrupted are barriers: these two frames, and all frames on their
//!   leaf side, are not stored. A stack is not stored at all if it is too deep, or if it was cut for any reason other
//!   than the value of rbp. A stack with a frame that needs the slow walk is not stored either, so each of its
//!   captures is a slow walk.
//! * When an object is loaded or unloaded, the whole cache is dropped.

use super::ADDRESS;
use super::rule::{Rule, RuleKind};
use super::walk::{Cursor, JoinTarget, WalkStep};
use super::walk_end::WalkEnd;
use crate::MAX_FRAMES;
use crate::bounds::StackBounds;
use crate::loader_state::LoaderState;
use crate::memory::word;
use gpuflame_model::record::Frame;

/// Maximum number of stored words. A step reads at most two words in addition to the return address: rbp, and the CFA
/// of a realigned frame. One additional slot receives words that are not needed, so that storing a word needs no
/// branch.
const MAX_WORDS: usize = 2 * MAX_FRAMES + 1;

/// The last stack of a thread. [`LastStack::prepare`] turns zeroed memory into a valid, empty cache.
///
/// The data of each frame is spread over several arrays, because every capture verifies all frames, and the
/// verification needs only 12 bytes per frame. The root is the last element, so the index of a frame does not change
/// while the frame stays on the stack. Stack addresses are stored as offsets from the stack's low end.
#[repr(C)]
pub(super) struct LastStack {
    /// The loader state to which the walk's rules belong.
    loader_state: LoaderState,
    /// Mask that selects the address bits of a frame. The mask is in memory, because otherwise the compiler would
    /// rebuild the constant for every four frames.
    mask: u64,
    /// The thread's own stack.
    stack: StackBounds,
    /// Index of the leafmost recorded frame. A new walk can join the last stack at this frame, or at a frame nearer to
    /// the root. The value is `MAX_FRAMES` if no frame is recorded.
    leafmost: usize,
    /// Number of words that the walk read in the frames from `leafmost` to the root, not counting the return addresses.
    word_count: usize,
    /// Number of steps of the last walk whose words are not recorded yet. These steps belong to the frames on the leaf
    /// side of `leafmost`.
    pending: usize,
    /// The way in which the last walk ended.
    end: WalkEnd,
    /// Whether the walk of this stack ended for lack of unwind information.
    is_cut: bool,
    /// The captured frames. The elements that start at the index `leafmost` contain only return addresses.
    pub(super) frames: [Frame; MAX_FRAMES],
    /// The frames' stack pointers, as offsets from the stack's low end. The word directly below each stack pointer is
    /// the return address in `frames`.
    offsets: [u32; MAX_FRAMES],
    states: [FrameState; MAX_FRAMES],
    /// The words that steps read (except for the return addresses), root first. For each word, these three arrays
    /// contain its address (as an offset from the stack's low end), its value, and the index of the frame whose step
    /// read the word.
    word_offsets: [u32; MAX_WORDS],
    word_values: [u64; MAX_WORDS],
    word_readers: [u16; MAX_WORDS],
}

/// The state at a frame that, together with pc and sp, determines the frame's callers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct FrameState {
    bp: u64,
    /// The lower half is the number of words that the steps from this frame to the root read, not counting the return
    /// addresses. The upper half has three flags for the steps from this frame to the root: whether `bp` affects a
    /// step, whether a step is a guess, and whether a frame is in code that may be replaced.
    rest: u64,
}

/// The unchanged outer frames of the last stack, and a cursor that detects when the current walk reaches these frames.
pub(super) struct UnchangedSuffix<'a> {
    last_stack: &'a LastStack,
    /// Index of the leafmost unchanged frame that the walk has not yet passed.
    next: usize,
    /// Stack pointer of the frame `next`.
    next_sp: u64,
}

/// The caller's frame at which a step arrived. This struct is used while the words that the step read are being
/// recorded.
#[derive(Clone, Copy, Debug)]
struct StepTarget {
    pc: u64,
    sp: u64,
    state: FrameState,
}

/// All values that determine the result of a walk: the starting pc and sp, rbp if its value matters, and the words
/// that the walk reads.
pub(super) struct WalkInputs<'a> {
    pub(super) pc: u64,
    pub(super) sp: u64,
    pub(super) bp: Option<u64>,
    last_stack: &'a LastStack,
}

impl WalkInputs<'_> {
    /// Addresses of the words that the walk read.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        let last_stack = self.last_stack;
        let callers = last_stack.offsets[last_stack.leafmost + 1..].iter();
        let returns = callers.map(move |offset| last_stack.address(*offset).wrapping_sub(8));
        returns.chain(
            last_stack.word_offsets[..last_stack.word_count]
                .iter()
                .map(move |offset| last_stack.address(*offset)),
        )
    }
}

impl LastStack {
    /// Initializes zeroed memory as an empty cache for a thread with this stack.
    pub(super) fn prepare(&mut self, stack: StackBounds) {
        self.stack = StackBounds { lo: stack.lo.max(stack.hi.saturating_sub(u64::from(u32::MAX))), ..stack };
        self.clear(LoaderState::default());
    }

    /// Forgets the last stack. Sets the loader state of the empty cache to `loader_state`.
    pub(super) fn clear(&mut self, loader_state: LoaderState) {
        self.loader_state = loader_state;
        self.mask = ADDRESS;
        self.leafmost = MAX_FRAMES;
        self.word_count = 0;
        self.pending = 0;
        self.end = WalkEnd::Lost;
        self.is_cut = false;
    }

    /// Forgets the last stack if the rules of its walk may be out of date.
    #[inline(always)]
    pub(super) fn clear_if_outdated(&mut self, loader_state: LoaderState) {
        if self.loader_state != loader_state {
            self.clear(loader_state);
        }
    }

    /// Returns the unchanged frames of the last stack, for a capture that begins at the stack pointer `sp`. `steps` are
    /// the steps of the last walk.
    #[inline(always)]
    pub(super) fn verify(&mut self, steps: &[WalkStep; MAX_FRAMES], sp: u64) -> UnchangedSuffix<'_> {
        if self.sp(self.leafmost) < sp {
            self.drop_returned(sp);
        }
        let mut next = self.first_unchanged();
        if self.pending != 0 {
            if next == self.leafmost {
                next = self.record_steps(&steps[..self.pending], sp);
            }
            self.pending = 0;
        }
        UnchangedSuffix { next, next_sp: self.sp(next), last_stack: self }
    }

    /// Forgets the frames below `sp`. The functions of these frames have returned, and our own frames overwrite the
    /// words of these frames.
    fn drop_returned(&mut self, sp: u64) {
        while self.sp(self.leafmost) < sp {
            self.leafmost += 1;
        }
        self.word_count = self.states.get(self.leafmost).map_or(0, FrameState::words);
        self.pending = 0;
    }

    #[inline(always)]
    fn first_unchanged(&self) -> usize {
        let by_returns = self.first_with_unchanged_returns();
        let by_words = match self.word_readers[..self.word_count].get(self.count_unchanged_words()) {
            None => self.leafmost,
            // The frame whose step read the changed word is no longer valid, but that frame's caller is still valid.
            Some(reader) => usize::from(*reader) + 1,
        };
        by_returns.max(by_words)
    }

    /// Returns the leafmost frame such that the return addresses of all its callers up to the root are unchanged.
    #[inline(always)]
    fn first_with_unchanged_returns(&self) -> usize {
        // The return address into the leafmost frame itself need not be checked, because a walk that reaches this
        // frame has read that return address.
        let callers = (self.leafmost + 1).min(MAX_FRAMES)..MAX_FRAMES;
        let (offset_chunks, offsets) = self.offsets[callers.clone()].as_rchunks::<4>();
        let (frame_chunks, frames) = self.frames[callers].as_rchunks::<4>();
        let change = |(offset, frame): (&u32, &Frame)| {
            self.word(self.address(*offset).wrapping_sub(8)) ^ (frame.0 & self.mask)
        };
        let mut at = MAX_FRAMES;
        let mut last = (offset_chunks, frame_chunks);
        for (offsets, frames) in offsets.iter().zip(frames).rev() {
            if offsets.iter().zip(frames).map(change).fold(0, |all, one| all | one) != 0 {
                last = (offsets, frames);
                break;
            }
            at -= 4;
        }
        at -= last.0.iter().zip(last.1).rev().take_while(|pair| change(*pair) == 0).count();
        at.saturating_sub(1).max(self.leafmost)
    }

    /// Returns the number of unchanged words from the root up to the first changed word, not counting the return
    /// addresses.
    #[inline(always)]
    fn count_unchanged_words(&self) -> usize {
        let offsets = &self.word_offsets[..self.word_count];
        let values = &self.word_values[..self.word_count];
        let change = |(offset, value): (&u32, &u64)| self.word(self.address(*offset)) ^ value;
        let (offset_chunks, _) = offsets.as_chunks::<4>();
        let (value_chunks, _) = values.as_chunks::<4>();
        let is_unchanged = |(offsets, values): &(&[u32; 4], &[u64; 4])| {
            offsets.iter().zip(*values).map(change).fold(0, |all, one| all | one) == 0
        };
        let chunked = offset_chunks.iter().zip(value_chunks).take_while(is_unchanged).count() * 4;
        let others = offsets[chunked..].iter().zip(&values[chunked..]).take(4);
        chunked + others.take_while(|pair| change(*pair) == 0).count()
    }

    #[inline(always)]
    fn address(&self, offset: u32) -> u64 {
        self.stack.lo.wrapping_add(u64::from(offset))
    }

    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        // SAFETY: a walk read this address of the thread's own stack, which stays mapped as long as the thread
        // runs.
        unsafe { word(address) }
    }

    /// Records that a walk of the thread's own stack ended with `end` after `count` steps. The words that these steps
    /// read are recorded later. There are at most `MAX_FRAMES` recorded steps and joined frames in total.
    #[inline(always)]
    pub(super) fn extend(&mut self, count: usize, end: WalkEnd) {
        match end {
            WalkEnd::Joined(frame) => {
                self.leafmost = frame;
                self.word_count = self.states[frame].words();
            }
            WalkEnd::Bottom | WalkEnd::NoInformation | WalkEnd::ZeroReturn(_) => {
                self.leafmost = MAX_FRAMES;
                self.word_count = 0;
                self.is_cut = end == WalkEnd::NoInformation;
            }
            WalkEnd::Lost | WalkEnd::TooDeep | WalkEnd::Elsewhere => return self.clear(self.loader_state),
        }
        self.pending = count;
        self.end = end;
    }

    /// Records the words of the last walk now, instead of at the next capture.
    pub(super) fn record_steps_now(&mut self, steps: &[WalkStep; MAX_FRAMES]) {
        let pending = std::mem::take(&mut self.pending);
        if let Some((leaf, _)) = steps[..pending].split_first() {
            self.record_steps(&steps[..pending], leaf.sp);
        }
    }

    /// Returns all values that determined the last stack. The leaf of this stack has the index `leaf`. Returns `None`
    /// if some of these values were not recorded.
    pub(super) fn walk_inputs(&self, leaf: usize) -> Option<WalkInputs<'_>> {
        let is_complete = self.leafmost == leaf && leaf < MAX_FRAMES && self.pending == 0;
        is_complete.then(|| {
            let StepTarget { pc, sp, state } = self.caller(leaf);
            WalkInputs { pc, sp, bp: state.is_bp_live().then_some(state.bp), last_stack: self }
        })
    }

    /// Records the words of the pending steps `steps` (leaf first), from the root up to the first step with a changed
    /// word. Returns the index of the leafmost recorded frame.
    #[inline(never)]
    fn record_steps(&mut self, steps: &[WalkStep], sp: u64) -> usize {
        let end = self.end;
        let mut caller = match end {
            WalkEnd::Joined(frame) => self.caller(frame),
            WalkEnd::ZeroReturn(sp) => StepTarget { pc: 0, sp, state: FrameState::NONE },
            _ => StepTarget { pc: 0, sp: 0, state: FrameState::NONE },
        };
        for step in steps.iter().rev() {
            let step = step.by_words();
            let offset = step.sp.wrapping_sub(self.stack.lo);
            if step.sp < sp || offset > u64::from(u32::MAX) {
                break;
            }
            let (state, change) = if step.rule.is_plain() && self.leafmost != MAX_FRAMES {
                self.record_plain_step(&step, &caller)
            } else {
                let Some(recorded) = self.record_special_step(&step, &caller, end) else { break };
                recorded
            };
            if change != 0 {
                break;
            }
            self.leafmost -= 1;
            self.offsets[self.leafmost] = offset as u32;
            self.states[self.leafmost] = state;
            caller = StepTarget { pc: step.pc, sp: step.sp, state };
        }
        self.word_count = caller.state.words();
        self.leafmost
    }

    /// Records the word that a plain step to `caller` read. Returns the state at the frame that the step left. Also
    /// returns a nonzero value if a word has changed since the step read it. Like the step itself, this function has
    /// no branch that depends on the rule.
    #[inline(always)]
    fn record_plain_step(&mut self, step: &WalkStep, caller: &StepTarget) -> (FrameState, u64) {
        let bp_slot = caller.sp.wrapping_sub(step.rule.saved());
        let restores = step.rule.restores_bp();
        let matters = restores & caller.state.is_bp_live();
        self.record_word(caller.state.words(), bp_slot, caller.state.bp);
        let bp_change = (self.word(bp_slot) ^ caller.state.bp) & u64::from(matters).wrapping_neg();
        let words = caller.state.words() + usize::from(matters);
        let is_bp_live = step.rule.is_bp_based() | (!restores & caller.state.is_bp_live());
        let state = FrameState::new(step.bp, words, is_bp_live, caller.state.marks());
        (state, bp_change | self.return_change(caller))
    }

    /// Does the same as [`LastStack::record_plain_step`], but for a step that is not plain, or for the root's step.
    /// Returns `None` if the frame is a barrier, that is, if it must not be stored.
    #[cold]
    fn record_special_step(
        &mut self,
        step: &WalkStep,
        caller: &StepTarget,
        end: WalkEnd,
    ) -> Option<(FrameState, u64)> {
        if step.rule.is_exact() {
            return None;
        }
        let is_root = self.leafmost == MAX_FRAMES;
        let mut words = caller.state.words();
        let mut change = 0;
        let mut note = |address, value| {
            self.record_word(words, address, value);
            words += 1;
            change |= self.word(address) ^ value;
        };
        match step.rule.kind() {
            RuleKind::Signal | RuleKind::Slow => return None,
            RuleKind::End => return Some((FrameState::new(step.bp, words, false, 0), 0)),
            RuleKind::Unknown if is_root && end == WalkEnd::NoInformation => {
                let state = FrameState::new(
                    step.bp,
                    words,
                    true,
                    FrameState::marks_of(step.rule) & !FrameState::IS_GUESSED,
                );
                return Some((state, 0));
            }
            RuleKind::Step | RuleKind::Unknown => {}
            RuleKind::Realigned => note(step.bp.wrapping_add_signed(step.rule.offset()), caller.sp),
        }
        // Record the root's return address as an ordinary word. Other return addresses are stored in the element of
        // the frame's caller, but the root has no caller.
        if is_root {
            note(caller.sp.wrapping_sub(8), caller.pc);
        }
        let bp_slot = step.rule.bp_slot(step.bp, caller.sp);
        if let Some(slot) = bp_slot.filter(|_| caller.state.is_bp_live()) {
            note(slot, caller.state.bp);
        }
        if !is_root {
            change |= self.return_change(caller);
        }
        let is_bp_live = step.rule.reads_bp() || (bp_slot.is_none() && caller.state.is_bp_live());
        let marks = caller.state.marks() | FrameState::marks_of(step.rule);
        Some((FrameState::new(step.bp, words, is_bp_live, marks), change))
    }

    /// Stores the word with the index `at`. The word was read by the step of the frame directly on the leaf side of
    /// `leafmost`.
    #[inline(always)]
    fn record_word(&mut self, at: usize, address: u64, value: u64) {
        self.word_offsets[at] = address.wrapping_sub(self.stack.lo) as u32;
        self.word_values[at] = value;
        self.word_readers[at] = (self.leafmost - 1) as u16;
    }

    /// Returns a nonzero value if the return address into `caller` has changed in memory.
    #[inline(always)]
    fn return_change(&self, caller: &StepTarget) -> u64 {
        self.word(caller.sp.wrapping_sub(8)) ^ caller.pc
    }

    #[inline(always)]
    fn caller(&self, frame: usize) -> StepTarget {
        StepTarget { pc: self.frames[frame].0 & self.mask, sp: self.sp(frame), state: self.states[frame] }
    }

    /// The loader state to which the walk's rules belong.
    pub(super) fn loader_state(&self) -> LoaderState {
        self.loader_state
    }

    /// Whether the walk of this stack ended for lack of unwind information.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether any step from `frame` to the root was a guess.
    pub(super) fn is_guessed(&self, frame: usize) -> bool {
        self.states.get(frame).is_some_and(FrameState::is_guessed)
    }

    /// Whether `frame`, or any frame between `frame` and the root, is in code that may be replaced.
    pub(super) fn is_generated(&self, frame: usize) -> bool {
        self.states.get(frame).is_some_and(FrameState::is_generated)
    }

    /// Stack pointer of a frame, or `u64::MAX` if the index is beyond the root.
    #[inline(always)]
    pub(super) fn sp(&self, frame: usize) -> u64 {
        self.offsets.get(frame).map_or(u64::MAX, |offset| self.address(*offset))
    }
}

impl FrameState {
    /// The state beyond the root, where no further frame exists.
    const NONE: Self = Self { bp: 0, rest: 0 };
    const BP_IS_LIVE: u64 = 1 << 32;
    /// Flags of a step: whether the step was a guess, and whether the frame's code may be replaced.
    const IS_GUESSED: u64 = 1 << 33;
    const IS_GENERATED: u64 = 1 << 34;

    #[inline(always)]
    fn new(bp: u64, words: usize, is_bp_live: bool, marks: u64) -> Self {
        Self { bp, rest: words as u64 | u64::from(is_bp_live) << 32 | marks }
    }

    /// Returns those of the flags `IS_GUESSED` and `IS_GENERATED` that apply to a step by `rule`.
    fn marks_of(rule: Rule) -> u64 {
        let mark = |is_so: bool, mark| if is_so { mark } else { 0 };
        mark(rule.kind() == RuleKind::Unknown, Self::IS_GUESSED)
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
    fn is_bp_live(&self) -> bool {
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

impl JoinTarget for UnchangedSuffix<'_> {
    #[inline(always)]
    fn reached(&mut self, cursor: &Cursor) -> Option<usize> {
        if cursor.sp < self.next_sp { None } else { self.compare(cursor) }
    }
}

impl UnchangedSuffix<'_> {
    #[inline(always)]
    fn compare(&mut self, cursor: &Cursor) -> Option<usize> {
        while self.next_sp < cursor.sp && self.next < MAX_FRAMES {
            self.next += 1;
            self.next_sp = self.last_stack.sp(self.next);
        }
        let state = self.last_stack.states.get(self.next)?;
        let is_same = self.next_sp == cursor.sp
            && self.last_stack.frames[self.next].0 & self.last_stack.mask == cursor.pc()
            && !cursor.is_exact()
            && (state.bp == cursor.bp || !state.is_bp_live());
        is_same.then_some(self.next)
    }
}
