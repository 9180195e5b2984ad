//! Walks of stacks that are not the thread's own which came to the stack's end before, so that one that goes the same way
//! reads its words where they lie. The copy that the kernel makes of such a stack (`unwind::copy`) costs a launch 2 us and
//! more: the call itself, the caches that it goes through, and the returns that the processor then foresees wrongly.
//! Programs whose coroutines take turns launch from the same few places in each of them.
//!
//! A route is what a walk through a copy found, if it took plain steps only and came to an end that is one: where each frame
//! lay above the first, its return address, its rule. Which stack it was is not part of it, so thousands of coroutines
//! that do the same have one route. It is kept if it is met a second time.
//!
//! All words of a route are on the page that our own frames reach up to: no thread can take that away without ending us. A
//! stack of more pages is copied each time. To ask the kernel whether a page can be read costs a tenth of a copy, but the
//! page may be unmapped between the answer and the read, where what looks like the stack of before is not in use.
//!
//! A stack that differs from the route starts over through a copy.

use std::hint::select_unpredictable;
use std::ptr::NonNull;

use super::end::End;
use super::rule::{Kind, Rule};
use super::stub::Entry;
use super::walk::{Step, Walked};
use crate::unwind::counts::Counts;
use crate::unwind::memory;

/// How many routes are kept: 256 KiB, of which a program touches what it uses, on threads that have such stacks.
const ROUTES: usize = 128;
/// How many frames of one.
const LONGEST: usize = 84;
const PAGE: u64 = 4096;

/// The routes of one thread. Zeroed memory holds none.
#[derive(Debug, Default)]
pub(super) struct Routes(Option<NonNull<[Route; ROUTES]>>);

#[derive(Debug)]
#[repr(C)]
struct Route {
    /// Where it begins, and the place of the stack pointer in its page: stacks begin at pages.
    place: u64,
    offset: u64,
    /// How far above the first frame the outermost ends; its stack pointer if it has no return address.
    top: u64,
    /// How many objects had been unloaded when it was kept.
    unloads: u32,
    /// How many frames it has. 0: it was met once.
    len: u32,
    frames: [Known; LONGEST],
}

const _: () = assert!(size_of::<Route>() == 2048, "a page holds two routes");

/// A frame of a route.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Known {
    place: u64,
    /// How far above the first frame it lies.
    above: u64,
    rule: Rule,
}

impl Routes {
    /// Walks from `entry` on by the route that begins there, and writes the steps, leaf first. `None`: there is none, or the
    /// stack is another.
    #[inline]
    pub(super) fn follow(&self, entry: &Entry, counts: Counts, steps: &mut [Step]) -> Option<Walked> {
        // SAFETY: `learn` mapped them, zeroed, and they stay as long as `self` does.
        let routes = unsafe { self.0?.as_ref() };
        let (place, sp) = (entry.pc, entry.sp());
        let route = &routes[home(place, sp)];
        if !route.begins(place, sp, counts) {
            return None;
        }
        let end = route.follow(entry, counts, steps)?;
        Some(Walked { count: route.len as usize, end, is_guessed: false, is_plain: false })
    }

    /// Keeps what a walk through a copy found, if it is met again.
    #[inline(never)]
    pub(super) fn learn(&mut self, steps: &[Step], end: End, counts: Counts) {
        let Some((first, top)) = steps.first().zip(top(steps, end)) else { return };
        if self.0.is_none() {
            self.0 = memory::map(size_of::<[Route; ROUTES]>()).map(NonNull::cast);
        }
        // SAFETY: mapped with this size, where zeroes are no routes, and this thread's alone.
        let Some(routes) = self.0.as_mut().map(|routes| unsafe { routes.as_mut() }) else { return };
        let route = &mut routes[home(first.pc, first.sp)];
        if !route.begins(first.pc, first.sp, counts) {
            (route.place, route.offset, route.len) = (first.pc, first.sp % PAGE, 0);
            route.unloads = counts.unloads();
            return;
        }
        (route.top, route.len) = (top - first.sp, steps.len() as u32);
        for (known, step) in route.frames.iter_mut().zip(steps) {
            *known = Known { place: step.pc, above: step.sp - first.sp, rule: step.rule };
        }
    }

    /// Gives the memory back.
    pub(super) fn give_back(&mut self) {
        if let Some(routes) = self.0.take() {
            // SAFETY: `learn` mapped them with this size, and nobody has them any more.
            unsafe { memory::unmap(routes.cast(), size_of::<[Route; ROUTES]>()) };
        }
    }
}

/// Where the outermost frame of a walk ends, if it may be a route.
fn top(steps: &[Step], end: End) -> Option<u64> {
    let (root, others) = steps.split_last()?;
    let first = steps.first()?;
    let top = match end {
        End::ZeroReturn(top) if root.rule.is_plain() => top,
        End::Bottom => root.sp,
        // Decided by the value of rbp, with nothing read.
        End::NoInformation if root.rule.kind() == Kind::Unknown && is_no_pointer(root.bp, root.sp) => root.sp,
        _ => return None,
    };
    let is_even = |address: u64| address.is_multiple_of(8);
    let is_plain =
        others.iter().all(|step| step.rule.is_plain()) && steps.iter().all(|step| is_even(step.sp));
    let is_near = (first.sp..=end_of_page(first.sp)).contains(&top);
    (is_plain && is_even(top) && is_near && steps.len() <= LONGEST).then_some(top)
}

/// The end of the page of the word below `sp`, where our own frames are.
#[inline(always)]
fn end_of_page(sp: u64) -> u64 {
    sp.next_multiple_of(PAGE)
}

/// Whether rbp cannot point to a saved one, for a frame at `sp`: then it is not followed where nothing else is known.
fn is_no_pointer(bp: u64, sp: u64) -> bool {
    !bp.is_multiple_of(8) || bp < sp
}

impl Route {
    #[inline(always)]
    fn begins(&self, place: u64, sp: u64, counts: Counts) -> bool {
        (self.place == place) & (self.offset == sp % PAGE) & (self.unloads == counts.unloads())
    }

    /// Follows this route, which begins at `entry`, to its end.
    #[inline(always)]
    fn follow(&self, entry: &Entry, counts: Counts, steps: &mut [Step]) -> Option<End> {
        let frames = self.frames.get(..self.len as usize)?;
        let (root, others) = frames.split_last()?;
        let first = entry.sp();
        let (mut place, mut bp) = (entry.pc, entry.rbp);
        for ((known, caller), step) in others.iter().zip(&frames[1..]).zip(steps.iter_mut()) {
            let (sp, cfa) = (first + known.above, first + caller.above);
            if place != known.place || cfa_by(known.rule, sp, bp) != cfa {
                return None;
            }
            *step = Step { pc: place, sp, bp, rule: known.rule };
            // SAFETY: `learn` keeps only routes whose words are on the page that our own frames reach up to from below, or
            // in those.
            let (saved, pc) = unsafe { (memory::word(cfa - known.rule.saved()), memory::word(cfa - 8)) };
            (place, bp) = (pc, select_unpredictable(known.rule.restores_bp(), saved, bp));
        }
        let sp = first + root.above;
        *steps.get_mut(others.len())? = Step { pc: place, sp, bp, rule: root.rule };
        if place == root.place { self.end(root.rule, (sp, bp), first + self.top, counts) } else { None }
    }

    /// How the outermost frame, at `sp`, ends the walk, if it does so as it did before.
    #[inline(always)]
    fn end(&self, rule: Rule, (sp, bp): (u64, u64), top: u64, counts: Counts) -> Option<End> {
        match rule.kind() {
            Kind::End => Some(End::Bottom),
            // SAFETY: as in `follow`.
            Kind::Step if cfa_by(rule, sp, bp) == top && unsafe { memory::word(top - 8) } == 0 => {
                Some(End::ZeroReturn(top))
            }
            Kind::Unknown if rule.loads() == counts.loads() && is_no_pointer(bp, sp) => {
                Some(End::NoInformation)
            }
            _ => None,
        }
    }
}

/// The caller's stack pointer of a frame that a plain rule leaves.
#[inline(always)]
fn cfa_by(rule: Rule, sp: u64, bp: u64) -> u64 {
    select_unpredictable(rule.is_bp_based(), bp, sp).wrapping_add_signed(rule.offset())
}

/// Where the route from there is kept.
#[inline(always)]
fn home(place: u64, sp: u64) -> usize {
    let mixed = (place ^ (sp % PAGE).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 57) as usize % ROUTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::MAX_FRAMES;

    const FIRST: u64 = 0x1000;
    const WORDS: usize = 2 * PAGE as usize / 8;

    /// Two pages of a stack and one above them, with an entry right below `sp` and frames of 16 bytes from there on, each of
    /// which returns into the next one's code.
    struct Stack {
        memory: NonNull<u8>,
        sp: u64,
    }

    impl Stack {
        /// One whose `frames` frames end `above` bytes above the second page's begin.
        fn new(frames: usize, above: usize) -> Self {
            let memory = memory::map(3 * PAGE as usize).expect("three pages are to be had");
            let sp = memory.as_ptr() as u64 + PAGE + above as u64 - 16 * frames as u64;
            let mut stack = Self { memory, sp };
            for frame in 0..frames {
                let caller = if frame + 1 == frames { 0 } else { FIRST + frame as u64 + 1 };
                stack.set(2 * frame + 1, caller);
            }
            stack
        }

        /// Writes the word that lies so many words above the stack pointer.
        fn set(&mut self, at: usize, word: u64) {
            assert!(at < WORDS);
            // SAFETY: it lies in the mapping.
            unsafe { (self.sp as *mut u64).add(at).write(word) };
        }

        fn entry(&self, bp: u64) -> &Entry {
            let place = (self.sp - size_of::<Entry>() as u64) as *mut Entry;
            // SAFETY: below the stack pointer is as much of the mapping as an entry takes.
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
            // SAFETY: the mapping is ours, and the test is over.
            unsafe { memory::unmap(self.memory, 3 * PAGE as usize) };
        }
    }

    fn rule() -> Rule {
        Rule::step(false, 16, 1)
    }

    /// What a walk through a copy finds of the stack.
    fn walked(stack: &Stack, frames: usize) -> (Vec<Step>, End) {
        let step = |at| Step { pc: FIRST + at, sp: stack.sp + 16 * at, bp: 0, rule: rule() };
        ((0..frames as u64).map(step).collect(), End::ZeroReturn(stack.sp + 16 * frames as u64))
    }

    /// The routes of a thread that has walked this stack twice.
    fn learned(stack: &Stack, frames: usize) -> Routes {
        let mut routes = Routes::default();
        let (steps, end) = walked(stack, frames);
        for _ in 0..2 {
            assert!(followed(&routes, stack, Counts::default()).is_none());
            routes.learn(&steps, end, Counts::default());
        }
        routes
    }

    type Followed = (Vec<(u64, u64)>, End);

    fn followed(routes: &Routes, stack: &Stack, counts: Counts) -> Option<Followed> {
        followed_with(0, routes, stack, counts)
    }

    fn followed_with(bp: u64, routes: &Routes, stack: &Stack, counts: Counts) -> Option<Followed> {
        let nothing = Step { pc: 0, sp: 0, bp: 0, rule: rule() };
        let mut steps = [nothing; MAX_FRAMES];
        let walked = routes.follow(stack.entry(bp), counts, &mut steps)?;
        Some((steps[..walked.count].iter().map(|step| (step.pc, step.sp)).collect(), walked.end))
    }

    #[test]
    fn a_route_is_followed_from_its_third_time_on() {
        let stack = Stack::new(6, 0);
        let mut routes = learned(&stack, 6);
        let (steps, end) = walked(&stack, 6);
        let steps: Vec<_> = steps.iter().map(|step| (step.pc, step.sp)).collect();
        assert_eq!(followed(&routes, &stack, Counts::default()), Some((steps, end)));
        // Another stack on which the same happens.
        let other = Stack::new(6, 0);
        assert_eq!(followed(&routes, &other, Counts::new(1, 0)).map(|(steps, _)| steps.len()), Some(6));
        // Other code may lie there after an unload.
        assert_eq!(followed(&routes, &stack, Counts::new(0, 1)), None);
        routes.give_back();
    }

    #[test]
    fn a_stack_that_is_another_is_not_taken_for_the_one_before() {
        let mut stack = Stack::new(6, 0);
        let mut routes = learned(&stack, 6);
        for (at, word) in [(1, FIRST + 2), (9, FIRST + 9), (11, FIRST + 6)] {
            let before = if at == 11 { 0 } else { FIRST + at as u64 / 2 + 1 };
            stack.set(at, word);
            assert_eq!(followed(&routes, &stack, Counts::default()), None, "word {at}");
            stack.set(at, before);
            assert!(followed(&routes, &stack, Counts::default()).is_some(), "word {at}");
        }
        routes.give_back();
    }

    #[test]
    fn a_frame_that_reaches_elsewhere_is_not_left_to_where_it_was() {
        let stack = Stack::new(6, 0);
        let (mut steps, end) = walked(&stack, 6);
        (steps[0].rule, steps[0].bp) = (Rule::step(true, 16, 1), stack.sp);
        let mut routes = Routes::default();
        (0..2).for_each(|_| routes.learn(&steps, end, Counts::default()));
        for (bp, is_followed) in [(stack.sp, true), (stack.sp + 16, false), (0, false)] {
            assert_eq!(followed_with(bp, &routes, &stack, Counts::default()).is_some(), is_followed);
        }
        routes.give_back();
    }

    #[test]
    fn a_stack_that_is_shorter_than_the_one_before_is_not_read_beyond_its_end() {
        // The outermost frame's return address is the last word of the first page, the first of the second, or further up.
        for (above, is_route) in [(0, true), (8, false), (64, false)] {
            let stack = Stack::new(6, above);
            let mut routes = learned(&stack, 6);
            assert_eq!(followed(&routes, &stack, Counts::default()).is_some(), is_route, "{above}");
            stack.protect(1, libc::PROT_NONE);
            assert_eq!(followed(&routes, &stack, Counts::default()).is_some(), is_route, "{above}");
            routes.give_back();
        }
    }

    #[test]
    fn walks_that_came_to_no_end_are_no_routes() {
        let stack = Stack::new(6, 0);
        let (steps, end) = walked(&stack, 6);
        assert!(top(&steps, end).is_some());
        assert_eq!(top(&[], end), None);
        for end in [End::Lost, End::TooDeep, End::NoInformation] {
            assert_eq!(top(&steps, end), None);
        }
        let with = |change: fn(&mut Step)| {
            let mut steps = steps.clone();
            change(&mut steps[3]);
            steps
        };
        assert_eq!(top(&with(|step| step.rule = Rule::SIGNAL), end), None);
        assert_eq!(top(&with(|step| step.sp += 4), end), None);
        assert_eq!(top(&steps, End::ZeroReturn(stack.sp.next_multiple_of(PAGE) + 8)), None);
        let many: Vec<_> = steps.iter().cycle().take(LONGEST + 1).copied().collect();
        assert_eq!(top(&many, end), None);
    }
}
