//! A cache of the paths that walks took on stacks other than the thread's own (coroutines). A later walk along a cached
//! path reads the stack in place, instead of copying it through the kernel (`unwind::copy`). A copy takes at least 2 us
//! per launch. This is the time for the system call itself, and for reloading the cache lines and branch predictions
//! that the system call evicts. The cache works because programs with many coroutines launch from the same few places
//! in each coroutine.
//!
//! A path can be stored only if a walk through a copy took only plain steps and reached the root. For each frame, a
//! path contains the frame's offset above the first frame, its return address, and its rule. A path does not contain
//! the address of the stack, so thousands of coroutines with the same frames share one path. A path is stored when it
//! is walked for the second time.
//!
//! All stack words that a path reads are on the page that contains our own outermost frame. No thread can unmap that
//! page without crashing our own code. If a stack's frames extend beyond the page of our own outermost frame, the stack
//! is copied each time. For such a stack, asking the kernel whether the next page is readable would cost only a tenth
//! of a copy, but would not be safe. First, the next page may no longer be part of the stack, even if its words still
//! equal the words of the earlier stack. Second, another thread may unmap the next page between the kernel's answer and
//! the read.
//!
//! If a stack differs from its cached path, the walk starts again and reads the stack through a copy.

use std::hint::select_unpredictable;
use std::ptr::NonNull;

use super::rule::{Rule, RuleKind};
use super::stub::StubRegisters;
use super::walk::{WalkResult, WalkStep};
use super::walk_end::WalkEnd;
use crate::loader_state::LoaderState;
use crate::memory;

/// Number of cached paths per thread. The cache takes 256 KiB, but a thread touches only the paths that it uses. Only
/// threads that launch from coroutines have this cache.
const PATHS: usize = 128;
/// Maximum number of frames per path.
const MAX_PATH_FRAMES: usize = 84;
const PAGE: u64 = 4096;

/// The paths of one thread. Zeroed memory is an empty cache.
#[derive(Debug, Default)]
pub(super) struct ForeignPathCache(Option<NonNull<[ForeignPath; PATHS]>>);

#[derive(Debug)]
#[repr(C)]
struct ForeignPath {
    /// Code address of the first frame, and the offset of its stack pointer in the page. The offset in the page is
    /// enough to find equal stacks, because stacks start at page boundaries.
    pc: u64,
    offset: u64,
    /// Offset in bytes from the first frame's stack pointer to the end of the outermost frame. If the outermost frame
    /// has no return address, this field is instead the offset to the outermost frame's stack pointer.
    end_offset: u64,
    /// The loader's unload count when the path was stored.
    unloads: u32,
    /// Number of frames; 0 if the path was walked only once.
    len: u32,
    frames: [CachedFrame; MAX_PATH_FRAMES],
}

const _: () = assert!(size_of::<ForeignPath>() == 2048, "a page holds two paths");

/// A frame of a path.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct CachedFrame {
    pc: u64,
    /// Distance in bytes from the first frame's stack pointer up to this frame's stack pointer.
    above: u64,
    rule: Rule,
}

impl ForeignPathCache {
    /// Follows the cached path that starts at `entry`, and writes its steps to `steps`, leaf first. Returns `None` if
    /// no path is cached for `entry`, or if the stack differs from the path.
    #[inline]
    pub(super) fn follow(
        &self,
        entry: &StubRegisters,
        state: LoaderState,
        steps: &mut [WalkStep],
    ) -> Option<WalkResult> {
        // SAFETY: `insert` mapped the paths zeroed, and they stay mapped as long as `self` lives.
        let paths = unsafe { self.0?.as_ref() };
        let (frame_pc, sp) = (entry.pc, entry.sp());
        let path = &paths[slot_of(frame_pc, sp)];
        if !path.starts_at(frame_pc, sp, state) {
            return None;
        }
        let end = path.follow(entry, state, steps)?;
        Some(WalkResult { count: path.len as usize, end, is_guessed: false, is_plain: false })
    }

    /// Inserts the result of a walk through a copy. The first walk along a path only reserves a slot; the second walk
    /// stores the path.
    #[inline(never)]
    pub(super) fn insert(&mut self, steps: &[WalkStep], end: WalkEnd, state: LoaderState) {
        let Some((first, end_of_walk)) = steps.first().zip(end_of_walk(steps, end)) else { return };
        if self.0.is_none() {
            self.0 = memory::map(size_of::<[ForeignPath; PATHS]>()).map(NonNull::cast);
        }
        // SAFETY: the paths are mapped with this size, all-zero paths are valid, and only this thread uses them.
        let Some(paths) = self.0.as_mut().map(|paths| unsafe { paths.as_mut() }) else { return };
        let path = &mut paths[slot_of(first.pc, first.sp)];
        if !path.starts_at(first.pc, first.sp, state) {
            (path.pc, path.offset, path.len) = (first.pc, first.sp % PAGE, 0);
            path.unloads = state.unloads();
            return;
        }
        (path.end_offset, path.len) = (end_of_walk - first.sp, steps.len() as u32);
        for (cached, step) in path.frames.iter_mut().zip(steps) {
            *cached = CachedFrame { pc: step.pc, above: step.sp - first.sp, rule: step.rule };
        }
    }

    /// Releases the memory of the paths.
    pub(super) fn release(&mut self) {
        if let Some(paths) = self.0.take() {
            // SAFETY: `insert` mapped the paths with this size, and no reference to them is left.
            unsafe { memory::unmap(paths.cast(), size_of::<[ForeignPath; PATHS]>()) };
        }
    }
}

/// Returns the end address of the walk's outermost frame. Returns `None` if this walk cannot be cached as a path.
fn end_of_walk(steps: &[WalkStep], end: WalkEnd) -> Option<u64> {
    let (root, others) = steps.split_last()?;
    let first = steps.first()?;
    let end_of_walk = match end {
        WalkEnd::ZeroReturn(end_of_walk) if root.rule.is_plain() => end_of_walk,
        WalkEnd::Bottom => root.sp,
        // A walk ends with `NoInformation` because of the value of rbp; no word in memory affects this.
        WalkEnd::NoInformation
            if root.rule.kind() == RuleKind::Unknown
                && !root.rule.may_be_replaced()
                && is_not_frame_pointer(root.bp, root.sp) =>
        {
            root.sp
        }
        _ => return None,
    };
    let is_even = |address: u64| address.is_multiple_of(8);
    let is_plain =
        others.iter().all(|step| step.rule.is_plain()) && steps.iter().all(|step| is_even(step.sp));
    let is_near = (first.sp..=page_end(first.sp)).contains(&end_of_walk);
    (is_plain && is_even(end_of_walk) && is_near && steps.len() <= MAX_PATH_FRAMES).then_some(end_of_walk)
}

/// Returns the end of the page that contains the word below `sp`. Our own frames are on this page, too.
#[inline(always)]
fn page_end(sp: u64) -> u64 {
    sp.next_multiple_of(PAGE)
}

/// Returns true if `bp` cannot be the address of a saved rbp, for a frame whose stack pointer is `sp`. In code without
/// unwind information, a walk does not follow a value that cannot be a frame pointer.
fn is_not_frame_pointer(bp: u64, sp: u64) -> bool {
    !bp.is_multiple_of(8) || bp < sp
}

impl ForeignPath {
    #[inline(always)]
    fn starts_at(&self, frame_pc: u64, sp: u64, state: LoaderState) -> bool {
        (self.pc == frame_pc) & (self.offset == sp % PAGE) & (self.unloads == state.unloads())
    }

    /// Follows this path, which starts at `entry`, to its root.
    #[inline(always)]
    fn follow(&self, entry: &StubRegisters, state: LoaderState, steps: &mut [WalkStep]) -> Option<WalkEnd> {
        let frames = self.frames.get(..self.len as usize)?;
        let (root, others) = frames.split_last()?;
        let first = entry.sp();
        let (mut frame_pc, mut bp) = (entry.pc, entry.rbp);
        for ((cached, caller), step) in others.iter().zip(&frames[1..]).zip(steps.iter_mut()) {
            let (sp, cfa) = (first + cached.above, first + caller.above);
            if frame_pc != cached.pc || cfa_by(cached.rule, sp, bp) != cfa {
                return None;
            }
            *step = WalkStep { pc: frame_pc, sp, bp, rule: cached.rule };
            // SAFETY: `insert` stores a path only if each stack word that the path reads is in our own frames, or on
            // the page that contains our own outermost frame.
            let (saved, pc) = unsafe { (memory::word(cfa - cached.rule.saved()), memory::word(cfa - 8)) };
            (frame_pc, bp) = (pc, select_unpredictable(cached.rule.restores_bp(), saved, bp));
        }
        let sp = first + root.above;
        *steps.get_mut(others.len())? = WalkStep { pc: frame_pc, sp, bp, rule: root.rule };
        if frame_pc == root.pc { self.end(root.rule, (sp, bp), first + self.end_offset, state) } else { None }
    }

    /// Returns how the walk ends at its outermost frame, whose stack pointer is `sp`. Returns `None` if the stored walk
    /// ended in another way.
    #[inline(always)]
    fn end(&self, rule: Rule, (sp, bp): (u64, u64), end_of_walk: u64, state: LoaderState) -> Option<WalkEnd> {
        match rule.kind() {
            RuleKind::End => Some(WalkEnd::Bottom),
            RuleKind::Step
                if cfa_by(rule, sp, bp) == end_of_walk
                    // SAFETY: `insert` stores a path only if each stack word that the path reads is in our own frames,
                    // or on the page that contains our own outermost frame.
                    && unsafe { memory::word(end_of_walk - 8) } == 0 =>
            {
                Some(WalkEnd::ZeroReturn(end_of_walk))
            }
            RuleKind::Unknown if rule.loads() == state.loads() && is_not_frame_pointer(bp, sp) => {
                Some(WalkEnd::NoInformation)
            }
            _ => None,
        }
    }
}

/// Returns the caller's stack pointer, for a frame with a plain rule.
#[inline(always)]
fn cfa_by(rule: Rule, sp: u64, bp: u64) -> u64 {
    select_unpredictable(rule.is_bp_based(), bp, sp).wrapping_add_signed(rule.offset())
}

/// Returns the slot of the path that starts at this code address and stack pointer.
#[inline(always)]
fn slot_of(frame_pc: u64, sp: u64) -> usize {
    let mixed = (frame_pc ^ (sp % PAGE).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 57) as usize % PATHS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_FRAMES;

    const FIRST: u64 = 0x1000;
    const WORDS: usize = 2 * PAGE as usize / 8;

    /// A test stack of two pages, and one page above it. The stub's registers are stored directly below `sp`. The
    /// frames start at `sp` and have 16 bytes each. Each frame's return address is in the code of the next frame.
    struct Stack {
        memory: NonNull<u8>,
        sp: u64,
    }

    impl Stack {
        /// Creates a stack with `frames` frames. The frames end `above` bytes above the start of the second page.
        fn new(frames: usize, above: usize) -> Self {
            let memory = memory::map(3 * PAGE as usize).expect("memory for three pages");
            let sp = memory.as_ptr() as u64 + PAGE + above as u64 - 16 * frames as u64;
            let mut stack = Self { memory, sp };
            for frame in 0..frames {
                let caller = if frame + 1 == frames { 0 } else { FIRST + frame as u64 + 1 };
                stack.set(2 * frame + 1, caller);
            }
            stack
        }

        /// Writes the word that is `at` words above the stack pointer.
        fn set(&mut self, at: usize, word: u64) {
            assert!(at < WORDS);
            // SAFETY: the word is inside the mapping.
            unsafe { (self.sp as *mut u64).add(at).write(word) };
        }

        fn entry(&self, bp: u64) -> &StubRegisters {
            let place = (self.sp - size_of::<StubRegisters>() as u64) as *mut StubRegisters;
            // SAFETY: the mapping has room for an entry below the stack pointer.
            unsafe {
                (&raw mut (*place).pc).write(FIRST);
                (&raw mut (*place).rbp).write(bp);
                &*place
            }
        }

        fn protect(&self, page: u64, protection: i32) {
            let place = (self.memory.as_ptr() as u64 + page * PAGE) as *mut _;
            // SAFETY: the page is ours.
            assert_eq!(unsafe { libc::mprotect(place, PAGE as usize, protection) }, 0);
        }
    }

    impl Drop for Stack {
        fn drop(&mut self) {
            // SAFETY: the mapping is ours, and the test no longer uses it.
            unsafe { memory::unmap(self.memory, 3 * PAGE as usize) };
        }
    }

    fn rule() -> Rule {
        Rule::step(false, 16, 1)
    }

    /// Returns the result of a walk of the test stack through a copy.
    fn walked(stack: &Stack, frames: usize) -> (Vec<WalkStep>, WalkEnd) {
        let step = |at| WalkStep { pc: FIRST + at, sp: stack.sp + 16 * at, bp: 0, rule: rule() };
        ((0..frames as u64).map(step).collect(), WalkEnd::ZeroReturn(stack.sp + 16 * frames as u64))
    }

    /// Returns the cache of a thread that has walked this stack twice.
    fn filled(stack: &Stack, frames: usize) -> ForeignPathCache {
        let mut paths = ForeignPathCache::default();
        let (steps, end) = walked(stack, frames);
        for _ in 0..2 {
            assert!(followed(&paths, stack, LoaderState::default()).is_none());
            paths.insert(&steps, end, LoaderState::default());
        }
        paths
    }

    type Followed = (Vec<(u64, u64)>, WalkEnd);

    fn followed(paths: &ForeignPathCache, stack: &Stack, state: LoaderState) -> Option<Followed> {
        followed_with(0, paths, stack, state)
    }

    fn followed_with(
        bp: u64,
        paths: &ForeignPathCache,
        stack: &Stack,
        state: LoaderState,
    ) -> Option<Followed> {
        let nothing = WalkStep { pc: 0, sp: 0, bp: 0, rule: rule() };
        let mut steps = [nothing; MAX_FRAMES];
        let walked = paths.follow(stack.entry(bp), state, &mut steps)?;
        Some((steps[..walked.count].iter().map(|step| (step.pc, step.sp)).collect(), walked.end))
    }

    #[test]
    fn a_foreign_path_is_followed_from_its_third_time_on() {
        let stack = Stack::new(6, 0);
        let mut paths = filled(&stack, 6);
        let (steps, end) = walked(&stack, 6);
        let steps: Vec<_> = steps.iter().map(|step| (step.pc, step.sp)).collect();
        assert_eq!(followed(&paths, &stack, LoaderState::default()), Some((steps, end)));
        // A walk of another stack with the same contents also follows the cached path.
        let other = Stack::new(6, 0);
        assert_eq!(followed(&paths, &other, LoaderState::new(1, 0)).map(|(steps, _)| steps.len()), Some(6));
        // After an unload, other code may be at the path's code addresses.
        assert_eq!(followed(&paths, &stack, LoaderState::new(0, 1)), None);
        paths.release();
    }

    #[test]
    fn a_stack_with_a_changed_word_does_not_follow_the_foreign_path() {
        let mut stack = Stack::new(6, 0);
        let mut paths = filled(&stack, 6);
        for (at, word) in [(1, FIRST + 2), (9, FIRST + 9), (11, FIRST + 6)] {
            let before = if at == 11 { 0 } else { FIRST + at as u64 / 2 + 1 };
            stack.set(at, word);
            assert_eq!(followed(&paths, &stack, LoaderState::default()), None, "word {at}");
            stack.set(at, before);
            assert!(followed(&paths, &stack, LoaderState::default()).is_some(), "word {at}");
        }
        paths.release();
    }

    #[test]
    fn a_foreign_path_is_followed_only_with_the_same_frame_pointer() {
        let stack = Stack::new(6, 0);
        let (mut steps, end) = walked(&stack, 6);
        (steps[0].rule, steps[0].bp) = (Rule::step(true, 16, 1), stack.sp);
        let mut paths = ForeignPathCache::default();
        (0..2).for_each(|_| paths.insert(&steps, end, LoaderState::default()));
        for (bp, is_followed) in [(stack.sp, true), (stack.sp + 16, false), (0, false)] {
            assert_eq!(followed_with(bp, &paths, &stack, LoaderState::default()).is_some(), is_followed);
        }
        paths.release();
    }

    #[test]
    fn a_foreign_path_never_reads_past_the_stack_pointers_page() {
        // The outermost frame's return address is in the last word of the first page, in the first word of the second
        // page, or in a later word.
        for (above, is_cached) in [(0, true), (8, false), (64, false)] {
            let stack = Stack::new(6, above);
            let mut paths = filled(&stack, 6);
            assert_eq!(followed(&paths, &stack, LoaderState::default()).is_some(), is_cached, "{above}");
            stack.protect(1, libc::PROT_NONE);
            assert_eq!(followed(&paths, &stack, LoaderState::default()).is_some(), is_cached, "{above}");
            paths.release();
        }
    }

    #[test]
    fn incomplete_or_unusual_walks_are_not_inserted() {
        let stack = Stack::new(6, 0);
        let (steps, end) = walked(&stack, 6);
        assert!(end_of_walk(&steps, end).is_some());
        assert_eq!(end_of_walk(&[], end), None);
        for end in [WalkEnd::Lost, WalkEnd::TooDeep, WalkEnd::NoInformation] {
            assert_eq!(end_of_walk(&steps, end), None);
        }
        let with = |change: fn(&mut WalkStep)| {
            let mut steps = steps.clone();
            change(&mut steps[3]);
            steps
        };
        assert_eq!(end_of_walk(&with(|step| step.rule = Rule::SIGNAL), end), None);
        assert_eq!(end_of_walk(&with(|step| step.sp += 4), end), None);
        assert_eq!(end_of_walk(&steps, WalkEnd::ZeroReturn(stack.sp.next_multiple_of(PAGE) + 8)), None);
        let many: Vec<_> = steps.iter().cycle().take(MAX_PATH_FRAMES + 1).copied().collect();
        assert_eq!(end_of_walk(&many, end), None);
    }
}
