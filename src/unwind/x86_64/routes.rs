//! Walks of stacks that are not the thread's own which came to the stack's end before, so that one that goes the same way
//! reads its words where they lie. The copy that the kernel makes of such a stack (`unwind::copy`) costs a launch 2 us and
//! more: the call itself, the caches that it goes through, and the returns that the processor then foresees wrongly.
//! Programs whose coroutines take turns launch from the same few places in each of them.
//!
//! A route is what a walk through a copy found, if it took plain steps only and came to an end that is one: where each frame
//! lay above the first, its return address, its rule. Which stack it was is not part of it, so thousands of coroutines
//! that do the same have one route. It is kept if it is met a second time.
//!
//! A word is read where it lies only if it is on a page that is in use by this very thread:
//!
//! * The frame has the return address that the route has there, lies as far from the first one, and is left to the same
//!   distance. The route went on to a caller from there, so this frame was called too, and its return address lies on
//!   the stack.
//! * Of the outermost frame nobody knows whether it was called. Where its return address would lie on the page of its
//!   callee's, that is readable whatever lies there; where not, the kernel copies this one word.
//! * Before the first word of another page than the one that our own frames reach up to, the kernel is asked whether it can
//!   be read: a tenth of a copy. So a stack that is shorter than it was is no danger either.
//!
//! Anything else, and the walk starts over through a copy.

use std::hint::select_unpredictable;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

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
/// How far above the first frame the outermost may end: to ask for so many pages costs less than to copy them.
const FARTHEST: u64 = 24 << 10;
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
        let [is_guessed, is_plain, is_generated, is_suspicious] = [false; 4];
        Some(Walked { count: route.len as usize, end, is_guessed, is_plain, is_generated, is_suspicious })
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
    let is_near = top.checked_sub(first.sp).is_some_and(|length| length <= FARTHEST);
    (is_plain && is_even(top) && is_near && steps.len() <= LONGEST).then_some(top)
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
        let mut readable = Readable::around(first);
        let (mut place, mut bp) = (entry.pc, entry.rbp);
        for ((known, caller), step) in others.iter().zip(&frames[1..]).zip(steps.iter_mut()) {
            let (sp, cfa) = (first + known.above, first + caller.above);
            if place != known.place || cfa_by(known.rule, sp, bp) != cfa || !readable.reaches(cfa - 8) {
                return None;
            }
            *step = Step { pc: place, sp, bp, rule: known.rule };
            // SAFETY: the frame was called, so all of it lies on the stack that this thread runs on, up to its return
            // address, and the red zone below the first one where our own frames are; the kernel could read it just now.
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
            Kind::Step if cfa_by(rule, sp, bp) == top && is_zero(top - 8, sp) => Some(End::ZeroReturn(top)),
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

/// Whether the word at `address`, which the outermost frame at `sp` may have as its return address, is 0.
#[inline(always)]
fn is_zero(address: u64, sp: u64) -> bool {
    if address / PAGE == (sp - 8) / PAGE {
        // SAFETY: on the page of the word below `sp`, which is the return address of the callee, our own code's if there
        // is no other.
        return unsafe { memory::word(address) } == 0;
    }
    let mut word = 1u64;
    // SAFETY: eight bytes may be written there.
    let copied = unsafe { memory::copy_what_is_mapped(address, (&raw mut word).cast(), 8) };
    copied == 8 && word == 0
}

/// How far up the pages are known to be readable.
struct Readable {
    end: u64,
}

impl Readable {
    /// The page of the word below `sp`, where our own frames begin.
    #[inline(always)]
    fn around(sp: u64) -> Self {
        Self { end: sp.next_multiple_of(PAGE) }
    }

    /// Whether the pages up to that of `address` can be read.
    #[inline(always)]
    fn reaches(&mut self, address: u64) -> bool {
        while self.end <= address {
            if !can_be_read(address.min(self.end + PAGE - 8)) {
                return false;
            }
            self.end += PAGE;
        }
        true
    }
}

/// Whether the kernel says of an address that can be read what [`can_be_read`] takes it to say.
static IS_TOLD: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const TOLD: u8 = 1;
const NOT_TOLD: u8 = 2;

/// Whether the word at `address` can be read, as far as the kernel tells; one short system call.
#[cold]
#[inline(never)]
fn can_be_read(address: u64) -> bool {
    if IS_TOLD.load(Ordering::Relaxed) == UNKNOWN {
        let is_told = look_at(8) == -i64::from(libc::EFAULT);
        IS_TOLD.store(if is_told { TOLD } else { NOT_TOLD }, Ordering::Relaxed);
    }
    IS_TOLD.load(Ordering::Relaxed) == TOLD && look_at(address) == -i64::from(libc::EINVAL)
}

/// What the kernel answers to a change of the signal mask that there is no such thing as: it reads the mask first, so EFAULT
/// says that it cannot be read, EINVAL that it can. Nothing is changed, and errno is not touched.
fn look_at(address: u64) -> i64 {
    const NO_SUCH_CHANGE: i64 = -1;
    const BYTES_OF_A_MASK: i64 = 8;
    let answer;
    // SAFETY: the kernel checks the address itself, and writes nothing.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_rt_sigprocmask => answer,
            in("rdi") NO_SUCH_CHANGE,
            in("rsi") address,
            in("rdx") 0,
            in("r10") BYTES_OF_A_MASK,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
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
        let stack = Stack::new(6, 256);
        let mut routes = learned(&stack, 6);
        let (steps, end) = walked(&stack, 6);
        let steps: Vec<_> = steps.iter().map(|step| (step.pc, step.sp)).collect();
        assert_eq!(followed(&routes, &stack, Counts::default()), Some((steps, end)));
        // Another stack on which the same happens.
        let other = Stack::new(6, 256);
        assert_eq!(followed(&routes, &other, Counts::new(1, 0)).map(|(steps, _)| steps.len()), Some(6));
        // Other code may lie there after an unload.
        assert_eq!(followed(&routes, &stack, Counts::new(0, 1)), None);
        routes.give_back();
    }

    #[test]
    fn a_stack_that_is_another_is_not_taken_for_the_one_before() {
        let mut stack = Stack::new(6, 256);
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
        let stack = Stack::new(6, 256);
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
        // The outermost frame's return address is the first word of the second page, or further up.
        for above in [8, 64] {
            let stack = Stack::new(6, above);
            let mut routes = learned(&stack, 6);
            assert!(followed(&routes, &stack, Counts::default()).is_some());
            stack.protect(1, libc::PROT_NONE);
            assert_eq!(followed(&routes, &stack, Counts::default()), None);
            stack.protect(1, libc::PROT_READ);
            assert!(followed(&routes, &stack, Counts::default()).is_some());
            routes.give_back();
        }
    }

    #[test]
    fn walks_that_came_to_no_end_are_no_routes() {
        let stack = Stack::new(6, 256);
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
        assert_eq!(top(&steps, End::ZeroReturn(stack.sp + FARTHEST + 8)), None);
        let many: Vec<_> = steps.iter().cycle().take(LONGEST + 1).copied().collect();
        assert_eq!(top(&many, end), None);
    }

    #[test]
    fn the_kernel_says_what_can_be_read_and_changes_nothing() {
        let stack = Stack::new(1, 256);
        let mask = || {
            // SAFETY: zeroes are a mask, and nothing but this one is written.
            unsafe {
                let mut mask: libc::sigset_t = std::mem::zeroed();
                assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask), 0);
                (1..=64).map(|signal| libc::sigismember(&mask, signal)).collect::<Vec<_>>()
            }
        };
        let before = mask();
        // SAFETY: errno's location is valid for as long as the thread runs.
        let errno = unsafe { &mut *libc::__errno_location() };
        *errno = 77;
        stack.protect(1, libc::PROT_NONE);
        let page = |page: u64| stack.memory.as_ptr() as u64 + page * PAGE;
        assert!(can_be_read(page(0)) && can_be_read(page(1) - 8) && can_be_read(page(2)));
        assert!(!can_be_read(page(1)) && !can_be_read(page(2) - 8) && !can_be_read(1 << 46));
        assert_eq!((*errno, mask()), (77, before));
    }
}
