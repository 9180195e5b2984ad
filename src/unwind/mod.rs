//! Unwinding: registers and memory in, addresses out.
//!
//! An [`Unwinder`] belongs to a thread and captures that thread's own stack, from inside a callback that
//! may run anywhere: under somebody's allocator, in a signal handler, on a coroutine's stack. So a
//! capture takes no lock that is held for long, allocates nothing and, on a thread's own stack, makes no system call
//! in its steady state (on any other one, nearly always), and reads no word outside the stack that it runs on.
//! On x86-64 the frames equal those of libgcc's unwinder; where there is no unwind information it follows frame
//! pointers and says so.
//!
//! [`ModuleMap`] remembers which file lay where, so that the addresses can be named later. [`python`] puts frames of
//! Python among the native ones.
//!
//! A [`CopyUnwinder`] walks what was copied of another thread's stack.
//!
//! What it does not do: names, other threads' stacks where they lie, or exceptions.
//!
//! # Why it cannot crash its host
//!
//! Unwind information may be wrong, a host may switch stacks by hand, and a return address may be anything. So nothing
//! is believed about where a walk goes; what it *reads* is sound whatever it is told. Each premise names the test that
//! holds it (in `tests/` where it names a file, else in the module).
//!
//! **No word of a stack is read where it lies, but on the thread's own stack between the stack pointer that the
//! capture began at, less the red zone of 128 bytes, and the stack's end.**
//!
//! 1. That part is mapped and stays so while the capture runs: our own frames lie right below it, and the frames of
//!    the thread's callers in it, up to where the thread began (`a_thread_is_on_the_stack_that_it_calls_its_own` of
//!    `bounds`; the main thread: `unwind/main_thread.rs`). A host that took pages away from between a thread's stack pointer
//!    and the stack's end would break this; none is known.
//! 2. The walk holds every address against it. A plain rule, a realigned frame, a register rule or an expression may
//!    name any address or stack pointer; the caller's stack pointer must lie above the frame's and not beyond the end,
//!    or the walk ends and the stack is marked as cut (`x86_64/words.rs`; `no_unwind_information_leads_a_walk_astray`
//!    of `unwind/foreign.rs`, by 21 kinds of wrong information).
//! 3. A signal frame may lead anywhere. Upwards on the same stack the walk goes on; to anywhere else it starts over
//!    through the copy (`a_signal_stack_leads_back_to_the_stack_that_was_interrupted`).
//! 4. The memo reads only words that a walk of the thread's own stack read before, of frames that lie above the present
//!    stack pointer, and only in a capture that begins on that stack (`the_memo_gives_what_the_plain_walk_gives` of
//!    `unwind/fuzz.rs`; greenlets, which move parts of a stack aside, in `host/runtimes.rs`). So do the stacks that are kept whole,
//!    which begin at the very stack pointer that such a walk began at (`a_stack_that_is_told_by_its_number_is_the_one_that_was_kept`
//!    of `unwind/fuzz.rs`).
//! 5. Expressions end: 256 operations, fixed room (`sp_for_ever` and `cfa_for_ever`, as 2).
//!
//! **A capture that begins on another stack, or is led to one, reads no stack but through a copy that the kernel
//! makes**, the own one too; and **words on the page that its own frames reach up to**, if they are as they were when such a copy
//! was walked to the stack's end.
//!
//! 6. The kernel checks each page when it copies, so no bounds are remembered that could be out of date
//!    (`stacks_beside_which_others_come_and_go_are_walked_to_their_end` of `unwind/foreign.rs`,
//!    `what_became_unreadable_since_the_last_capture_is_not_read` of `copy`; by libgcc's judgement
//!    `fibers_on_stacks_that_come_and_go_are_seen_as_libgcc_sees_them` of `recorded/verify.rs`).
//! 7. A walk through it stays in what is readable without a gap, from its stack pointer upwards, for 8 MiB at most, and a
//!    capture copies 16 MiB at most (`words_are_found_from_the_red_zone_to_the_first_page_that_cannot_be_read`,
//!    `a_capture_copies_no_more_than_it_may` of `copy`).
//! 8. Stacks of one page are read without a copy if they are as one that was walked through a copy before. That page holds
//!    our own frames, so no other thread can unmap it under a live program (`x86_64/routes.rs`;
//!    `a_stack_that_is_shorter_than_the_one_before_is_not_read_beyond_its_end`,
//!    `a_frame_that_reaches_elsewhere_is_not_left_to_where_it_was` there; by the copy's judgement
//!    `known_ways_on_other_stacks_give_what_a_copy_gives` of `unwind/fuzz.rs`; a page that comes and goes:
//!    `pages_that_another_thread_protects_are_not_read` of `host/generated.rs`).
//! 9. Its cost does not depend on the number of stacks: at most one copying system call, and no file opened
//!    (`a_capture_on_any_of_2000_fibers_takes_one_system_call`,
//!    `fibers_that_do_the_same_in_turn_are_copied_only_if_their_stack_exceeds_a_page` of `unwind/fibers.rs`).
//! 10. Where a sandbox refuses that call, memory is read by a file, and where that is refused too, the stack is cut and
//!     says so; the host finds errno as it was (`unwind/sandboxed.rs`).
//!
//! **Only addresses that programs have are looked up**, so what stands for another is never taken for it.
//!
//! 11. A return address of 0 ends a stack; one beyond 2^47 cuts it before the rule table, whose keys have a tag up
//!     there, is asked (`return_to_nearly_an_address`, as 2).
//!
//! **Code is read through the kernel**, since code without unwind information may be unmapped or replaced at any time
//! (`x86_64/generated.rs`). Every address that its instructions lead to is checked against the stack's bounds, and so is rbp,
//! which may hold any value there (`generated_frames_are_walked_to_the_root_whatever_rbp_holds`,
//! `frames_that_cannot_be_walked_crash_nothing` of `unwind/generated.rs`).
//!
//! **An object is looked at only while the loader is held**, so that no other thread unloads it, whatever address led
//! there.
//!
//! 12. That is so for its headers, its unwind information, its build id and its name
//!     (`an_object_that_goes_while_garbage_on_the_stack_points_to_it_does_no_harm` of `unwind/unloaded.rs`).
//! 13. Nobody waits for ever for the loader: `loader` says why. While nothing changes, known code does not ask it
//!     (`a_capture_that_checks_by_itself_does_not_wait_for_the_loader` of `unwind/unload.rs`).
//!
//! # Why no frame has a wrong name
//!
//! 14. Nothing is loaded or unloaded, in any namespace, without what the loader tells being another afterwards, and each
//!     capture looks if it is; so no rule is used for code that lies where other code was
//!     (`a_capture_that_checks_by_itself_needs_no_poll`, `a_library_that_comes_where_nothing_was_known_is_known_at_once`,
//!     `unloads_beyond_the_tags_of_the_table_bring_no_old_rule_back` of `unwind/unload.rs`). What changes in the midst
//!     of a capture shows at its end (`threads_that_share_rules_while_libraries_come_and_go_agree_with_libgcc`;
//!     `a_rule_that_was_read_holds_if_nothing_was_unloaded_meanwhile` of `x86_64/table.rs`). The rules that a thread keeps
//!     in the order of its ways are each for one address in one such state (`a_way_leads_from_its_third_time_on` of
//!     `x86_64/trails.rs`; by the plain walk's judgement the fuzzer of 4).
//! 15. An epoch belongs to one file at one place for good, and frames carry it: so a name does not depend on who looked
//!     when (`plugins_that_take_turns_at_one_address_without_a_pause_have_their_names` and those after it in
//!     `recorded/modules.rs`; `what_lay_across_each_other_has_different_epochs` of `known`), and neither does a stack
//!     (`a_stack_is_the_same_whatever_came_and_went_beside_it` of `unwind/modules.rs`).
//! 16. What cannot be told is said to be unknown, and counted
//!     (`a_file_at_an_address_that_had_too_many_is_not_known_and_counted` of `recorded/modules.rs`,
//!     `where_two_files_were_mapped_by_hand_nobody_knows` of `symbolize`).
//!
//! Not covered: a program that puts a `dl_iterate_phdr` of its own, one without the loader's lock, in place of libc's;
//! files that are mapped by hand, one where another was, with no object loaded or unloaded in between; and `portable`,
//! which reads unwind information of objects that may be gone.
//!
//! ```
//! use gpuflame::unwind::{self, Skip, Unwinder};
//!
//! unwind::prepare();
//! let mut unwinder = Unwinder::new().expect("memory for one thread's unwinder");
//! let captured = unwinder.capture(Skip::None);
//! assert!(captured.frames.len() > 1 && !captured.is_partial());
//! ```

use std::ops::Range;

use crate::record::{ContextFlags, Frame};

// Some of these four serves only rules of our own: framehop finds objects by itself.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod bounds;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod copy;
mod counts;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod find;
mod known;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod loader;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) mod memory;
mod modules;
mod notes;
mod objects;
mod price;
pub mod python;
pub mod python_end;
mod symbols;
pub mod tls;
mod verify;
mod watch;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as engine;

#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(not(target_arch = "x86_64"))]
use portable as engine;

#[doc(hidden)]
pub use engine::Places;
pub use memory::bytes_held;
pub use modules::ModuleMap;
pub use verify::{Verdict, Verifier};

/// The most frames of one stack that are kept. The root of a deeper stack is cut off.
pub const MAX_FRAMES: usize = 1024;

/// Looks up what may not be looked up inside a callback. Call it when the library is loaded, on any
/// thread; captures before it are slower, not wrong.
pub fn prepare() {
    find::prepare();
    loader::prepare();
    bounds::prepare();
    memory::prepare();
}

/// From now on finds objects as with a glibc before 2.35, whatever is installed. For tests.
#[doc(hidden)]
pub fn as_on_older_glibc() {
    find::do_without_find_object();
}

/// Asks the loader whether objects were loaded or unloaded, about 12 ns, and says whether that was so
/// since anybody last asked.
///
/// Rules for code that was unloaded are forgotten when somebody notices: a poll, or any capture that
/// meets an address it has no rule for. Between an unload and that moment, code that was loaded to the
/// very same address may be unwound by the rules of what was there before, and named by it. Call this after a `dlclose`
/// that you know of, poll it from a housekeeping thread every few milliseconds, or set
/// [`Unwinder::check_every_capture`].
pub fn poll() -> bool {
    let before = counts::latest();
    loader::poll() != before
}

/// Leading frames (leaf side) to leave out: those of the callback that captures.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Skip {
    /// Keep all, beginning with the function that called [`Unwinder::capture`].
    #[default]
    None,
    /// Leave out so many. Inlining changes how many frames a function has.
    Count(usize),
    /// Leave out all leading frames whose code lies in this range, such as that of our own library.
    Inside(Range<u64>),
    /// Leave out the frames up to and including the one that this address lies in, such as that of the callback,
    /// given the address of a variable of its own: a frame reaches from its stack pointer to its caller's.
    UpTo(u64),
}

/// One captured stack. Borrowed from the unwinder: copy it before the next capture.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// The frames, leaf first.
    pub frames: &'a [Frame],
    /// How many frames at the root end (the end of `frames`) are the same as in the capture before.
    pub kept: usize,
    /// How good the stack is.
    pub flags: ContextFlags,
    /// Where the frames lie.
    #[doc(hidden)]
    pub places: Places<'a>,
}

/// A stack as [`Unwinder::capture_or_tell`] sees it.
#[derive(Debug)]
pub enum Seen<'a> {
    /// The one that [`Unwinder::keep_last`] gave this number, frame by frame.
    Again(usize),
    /// One that is not kept.
    New(Captured<'a>),
}

impl Captured<'_> {
    /// What there is where a capture is not possible.
    const NOTHING: Self =
        Self { frames: &[], kept: 0, flags: ContextFlags(ContextFlags::CUT), places: Places::NONE };

    /// The stack pointers of the frames: a frame reaches from its own to its caller's.
    pub(crate) fn stack_pointers(&self) -> impl Iterator<Item = u64> {
        self.places.of_last(self.frames.len())
    }

    /// Whether frames are missing at the root.
    pub fn is_partial(&self) -> bool {
        self.flags.0 & (ContextFlags::TRUNCATED | ContextFlags::CUT) != 0
    }
}

/// How many registers a walk of a copied stack begins with.
pub const REGISTERS: usize = 17;

/// Walks stacks of other threads, each from a copy that the kernel made of it and of the thread's registers, as
/// `perf_event_open` does for samples.
///
/// Nothing is read where the stack lies: the thread has gone on. What was not copied is not known, and the stack is cut
/// there. Frames of Python are not looked for. Code may have been unloaded since the copy was made: see [`CopyUnwinder::look`].
#[derive(Debug)]
pub struct CopyUnwinder(engine::OfCopies);

impl CopyUnwinder {
    /// One in memory of its own; `None` where the kernel gives none, and on machines other than x86-64.
    pub fn new() -> Option<Self> {
        engine::OfCopies::new().map(Self)
    }

    /// Looks what is loaded: to be called before a round of walks. If something was unloaded since the last look, addresses
    /// that were copied in between may be of what lay there before, and all stacks of this round are marked as guessed.
    pub fn look(&mut self) {
        self.0.look();
    }

    /// The stack of a thread that was interrupted with these registers, rax to r15 and the instruction pointer in the
    /// order of DWARF; `stack` is what lay above its stack pointer.
    pub fn walk(&mut self, registers: &[u64; REGISTERS], stack: &[u8]) -> Captured<'_> {
        self.0.walk(registers, stack)
    }
}

/// Captures the stack of the thread that made it.
#[derive(Debug)]
pub struct Unwinder {
    engine: engine::Owned,
}

impl Unwinder {
    /// An unwinder for the calling thread, in memory of its own; `None` where the kernel gives none.
    ///
    /// It asks for the bounds of the thread's stack (`pthread_getattr_np`, which allocates, on all but the
    /// main thread): make one per thread and keep it.
    pub fn new() -> Option<Self> {
        Some(Self { engine: engine::Owned::new()? })
    }

    /// Whether every capture looks if objects were unloaded: two loads of the loader's own counters where
    /// they are known (glibc), else about 12 ns and a short loader lock. Default: no; see [`poll`].
    pub fn check_every_capture(&mut self, check: bool) {
        self.engine.check_every_capture(check);
    }

    /// Whether the last stack is remembered, so that only new frames are walked. Default: yes. Without, every
    /// capture walks to the root: the same frames, for checking one by the other.
    pub fn remember_stacks(&mut self, remember: bool) {
        self.engine.remember_stacks(remember);
    }

    /// Captures the stack of the calling thread, beginning at the caller of this function.
    ///
    /// A capture inside a capture of the same unwinder (from a signal handler) gives no frames and
    /// disturbs nothing; it is marked [`ContextFlags::CUT`]. It is for the caller to see that no handler
    /// captures while the frames are still in use.
    #[inline(always)]
    pub fn capture(&mut self, skip: Skip) -> Captured<'_> {
        self.engine.capture(skip)
    }

    /// The same, but a stack that [`Unwinder::keep_last`] has kept is not walked: it is told by its number. `hint` is what else
    /// the caller knows that stacks differ by, such as what is launched, and always the same for the same stack.
    #[inline(always)]
    pub fn capture_or_tell(&mut self, skip: Skip, hint: u64) -> Seen<'_> {
        self.engine.capture_or_tell(skip, hint)
    }

    /// Keeps the stack that was captured last, by [`Unwinder::capture_or_tell`], and gives its number, less than
    /// [`Unwinder::MOST_KEPT`]. Another stack that had this number is not kept any more. `None`: it cannot be kept, or others
    /// were so recently that it is not worth it.
    #[inline(always)]
    pub fn keep_last(&mut self) -> Option<usize> {
        self.engine.keep_last()
    }

    /// So many stacks are kept at most.
    pub const MOST_KEPT: usize = engine::STACKS;
}
