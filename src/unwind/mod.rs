//! Stack unwinding: registers and memory in, addresses out.
//!
//! An [`Unwinder`] belongs to a thread and captures that thread's own stack, from inside a callback that may run
//! anywhere: under the program's allocator, in a signal handler, on a coroutine's stack. So a capture takes no lock
//! that is held for long, allocates nothing, makes no system call in its steady state on a thread's own stack (on
//! any other stack, nearly always one), and reads no word outside the stack that it runs on. On x86-64 the frames
//! equal those of libgcc's unwinder; in code without unwind information the unwinder follows frame pointers and
//! flags the stack as guessed.
//!
//! [`ModuleMap`] remembers which file was mapped at which address, so that addresses can be symbolized later.
//! [`python`] inserts Python frames among the native ones.
//!
//! A [`CopyUnwinder`] walks a copy of another thread's stack.
//!
//! Not in scope: symbol names, walking other threads' stacks in place, and exceptions.
//!
//! # Why it cannot crash its host
//!
//! Unwind information may be wrong, a host may switch stacks by hand, and a return address may be any value. So a
//! walk may be led anywhere; only its *reads* are guaranteed to be safe, whatever it is led to. Each premise names
//! the test that checks it (in `tests/` if it names a file, else in the module).
//!
//! **A stack is read in place only if it is the thread's own, and only between the stack pointer at which the
//! capture began, less the red zone of 128 bytes, and the stack's end.**
//!
//! 1. That part is mapped and stays so while the capture runs: our own frames are directly below it, and the frames
//!    of the thread's callers are in it, up to where the thread began
//!    (`a_threads_locals_are_within_its_stack_bounds` of `bounds`; the main thread: `unwind/main_thread.rs`). A
//!    host that unmapped pages between a thread's stack pointer and the stack's end would break this; no such host
//!    is known.
//! 2. The walk checks every address against that range. A plain rule, a realigned frame, a register rule or an
//!    expression may yield any address or stack pointer; the caller's stack pointer must be above the frame's and
//!    not beyond the end, or the walk ends and the stack is flagged as cut (`x86_64/words.rs`;
//!    `walking_with_broken_unwind_information_is_safe` of `unwind/foreign.rs`, with 21 kinds of wrong information).
//! 3. A signal frame may lead anywhere. If it leads upwards on the same stack, the walk continues; if it leads
//!    elsewhere, the walk starts over through the copy
//!    (`a_walk_continues_from_a_signal_stack_to_the_interrupted_stack`).
//! 4. The memo reads only words that a walk of the thread's own stack read before, in frames above the present
//!    stack pointer, and only in a capture that begins on that stack (`cached_and_uncached_walks_give_equal_stacks` of
//!    `unwind/fuzz.rs`; greenlets, which move parts of a stack aside, in `host/runtimes.rs`). The same holds for
//!    the cache of whole stacks, whose entries begin at exactly the stack pointer at which such a walk began
//!    (`a_repeated_stacks_number_refers_to_an_equal_stack` of `unwind/fuzz.rs`).
//! 5. Expressions terminate: 256 operations, fixed memory (`sp_for_ever` and `cfa_for_ever`, tested as in 2).
//!
//! **A capture that begins on another stack, or is led to one, reads every stack, the thread's own included, through
//! a copy that the kernel makes.** Only **words on the page that its own frames reach up to** are read in place, if
//! they are unchanged since such a copy was walked to the stack's end.
//!
//! 6. The kernel checks each page when it copies, so no bounds are cached that could be out of date
//!    (`a_stack_is_walked_to_its_end_whatever_is_mapped_above_it` of `unwind/foreign.rs`,
//!    `a_page_made_unreadable_since_the_last_capture_is_not_read` of `copy`; compared with libgcc:
//!    `stacks_of_short_lived_fibers_match_libgccs_walk` of `recorded/verify.rs`).
//! 7. A walk through the copy stays in the readable range that starts at its stack pointer, up to the first gap and
//!    for at most 8 MiB; a capture copies at most 16 MiB
//!    (`words_are_read_from_the_red_zone_to_the_first_unreadable_page`,
//!    `a_capture_copies_at_most_its_limit` of `copy`).
//! 8. Stacks of one page are read without a copy if they match a stack that was walked through a copy before. That
//!    page contains our own frames, so no other thread can unmap it without crashing the program anyway
//!    (`x86_64/routes.rs`; `a_route_never_reads_past_the_stack_pointers_page`,
//!    `a_route_is_followed_only_with_the_same_frame_pointer` there; compared with the copy:
//!    `cached_paths_on_foreign_stacks_equal_uncached_walks` of `unwind/fuzz.rs`; a page that comes and goes:
//!    `pages_protected_by_another_thread_are_not_read` of `host/generated.rs`).
//! 9. The cost does not depend on the number of stacks: at most one copying system call, and no file opened
//!    (`a_capture_on_any_of_2000_fibers_takes_one_system_call`,
//!    `fibers_with_equal_stacks_are_copied_only_if_their_frames_exceed_a_page` of `unwind/fibers.rs`).
//! 10. If a sandbox refuses that call, memory is read through a file; if that is refused too, the stack is flagged
//!     as cut. The host's errno is preserved (`unwind/sandboxed.rs`).
//!
//! **Only addresses that user space can have are looked up**, so no encoded value is mistaken for an address.
//!
//! 11. A return address of 0 ends a stack. One beyond 2^47 cuts it before the rule table is consulted, whose keys
//!     have a tag in those bits (`return_to_nearly_an_address`, tested as in 2).
//!
//! **Code is read through the kernel**, since code without unwind information may be unmapped or replaced at any
//! time (`x86_64/generated.rs`). Every address that its instructions lead to is checked against the stack's bounds,
//! and so is rbp, which may hold any value there (`generated_frames_are_walked_to_the_root_for_any_value_of_rbp`,
//! `unwalkable_generated_frames_do_not_crash_the_unwinder` of `unwind/generated.rs`).
//!
//! **An object is read only while the loader's lock is held**, so that no other thread unloads it, whatever address
//! led there.
//!
//! 12. That covers its headers, its unwind information, its build id and its name
//!     (`unloading_an_object_that_stack_garbage_points_to_is_harmless` of `unwind/unloaded.rs`).
//! 13. No thread waits forever for the loader: `loader` explains why. While nothing changes, known code does not
//!     ask it (`a_self_checking_capture_does_not_wait_for_the_loader` of `unwind/unload.rs`).
//!
//! # Why no frame has a wrong name
//!
//! 14. Every load and unload, in any namespace, changes the loader's counters, and each capture compares them; so
//!     no rule is used for code that replaced the code it was made for
//!     (`a_self_checking_capture_needs_no_poll`,
//!     `a_library_loaded_at_an_address_without_rules_is_recognised_at_once`,
//!     `more_unloads_than_tags_do_not_revive_old_rules` of `unwind/unload.rs`). A change during a
//!     capture is detected at its end (`threads_sharing_rules_during_loads_and_unloads_agree_with_libgcc`;
//!     `a_rule_read_without_an_intervening_unload_is_current` of `x86_64/table.rs`). The rules that a
//!     thread caches along its paths are each valid for one address in one such state
//!     (`a_path_is_used_from_its_third_walk_on` of `x86_64/trails.rs`; compared with the plain walk: the fuzzer of 4).
//! 15. An epoch permanently belongs to one file at one address, and frames carry it. So a name does not depend on
//!     which thread looked it up, or when
//!     (`plugins_that_alternate_at_one_address_keep_their_names` and the tests after it in
//!     `recorded/modules.rs`; `overlapping_objects_have_different_epochs` of `known`), and neither does a
//!     stack (`stacks_stay_equal_while_other_libraries_are_loaded_and_unloaded` of `unwind/modules.rs`).
//! 16. A module that cannot be determined is reported as unknown, and counted
//!     (`launches_from_an_address_with_too_many_files_are_unknown_and_counted` of `recorded/modules.rs`,
//!     `an_address_in_two_files_mapped_outside_the_loader_is_unresolved` of `symbolize`).
//!
//! Not covered: a program that replaces libc's `dl_iterate_phdr` by one without the loader's lock; files mapped by
//! hand, one in place of another, with no object loaded or unloaded in between; and `portable`, which reads unwind
//! information of objects that may be unloaded.
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

// These four are partly used by our own engine only: framehop finds objects by itself.
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

/// Maximum number of frames per stack. The root of a deeper stack is truncated.
pub const MAX_FRAMES: usize = 1024;

/// Looks up symbols that cannot be looked up inside a callback. Call it when the library is loaded, on any thread;
/// captures before that are slower, but correct.
pub fn prepare() {
    find::prepare();
    loader::prepare();
    bounds::prepare();
    memory::prepare();
}

/// Makes the process find objects as with a glibc before 2.35, whatever version is installed. For tests.
#[doc(hidden)]
pub fn as_on_older_glibc() {
    find::do_without_find_object();
}

/// Asks the loader whether objects were loaded or unloaded (about 12 ns). Returns whether that has happened since
/// any thread last asked.
///
/// Rules for unloaded code are dropped when the unload is noticed: by a poll, or by any capture that reaches an
/// address without a rule. Between an unload and that moment, code loaded at the very same address may be unwound
/// by its predecessor's rules, and get its name. Call this after a `dlclose` that you know of, poll it from a
/// housekeeping thread every few milliseconds, or set [`Unwinder::check_every_capture`].
pub fn poll() -> bool {
    let before = counts::latest();
    loader::poll() != before
}

/// Leading frames (leaf side) to omit: those of the callback that captures.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Skip {
    /// Keep all frames, beginning with the function that called [`Unwinder::capture`].
    #[default]
    None,
    /// Omit this number of frames. Inlining changes the number of frames per function.
    Count(usize),
    /// Omit all leading frames whose code is in this range, such as that of our own library.
    Inside(Range<u64>),
    /// Omit the frames up to and including the one that contains this stack address. A callback passes the address
    /// of a local variable to omit itself: a frame reaches from its stack pointer to its caller's.
    UpTo(u64),
}

/// One captured stack. It borrows from the unwinder: copy it before the next capture.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// The frames, leaf first.
    pub frames: &'a [Frame],
    /// Number of frames at the root end (the end of `frames`) that are unchanged since the previous capture.
    pub kept: usize,
    /// Quality of the stack.
    pub flags: ContextFlags,
    /// Stack positions of the frames.
    #[doc(hidden)]
    pub places: Places<'a>,
}

/// Result of [`Unwinder::capture_or_tell`].
#[derive(Debug)]
pub enum Seen<'a> {
    /// The cached stack with this number (from [`Unwinder::keep_last`]), equal frame by frame.
    Again(usize),
    /// A stack that is not cached.
    New(Captured<'a>),
}

impl Captured<'_> {
    /// The result if a capture is not possible.
    const NOTHING: Self =
        Self { frames: &[], kept: 0, flags: ContextFlags(ContextFlags::CUT), places: Places::NONE };

    /// The stack pointers of the frames: a frame reaches from its stack pointer to its caller's.
    pub(crate) fn stack_pointers(&self) -> impl Iterator<Item = u64> {
        self.places.of_last(self.frames.len())
    }

    /// Whether frames are missing at the root.
    pub fn is_partial(&self) -> bool {
        self.flags.0 & (ContextFlags::TRUNCATED | ContextFlags::CUT) != 0
    }
}

/// Number of registers that a walk of a copied stack starts with.
pub const REGISTERS: usize = 17;

/// Walks stacks of other threads, each from a copy of the stack and registers that the kernel made, as
/// `perf_event_open` does for samples.
///
/// Nothing is read from the original stack: the thread has continued to run. If the copy is too short, the stack is
/// cut at its end. Python frames are not included. Code may have been unloaded since the copy was made: see
/// [`CopyUnwinder::look`].
#[derive(Debug)]
pub struct CopyUnwinder(engine::OfCopies);

impl CopyUnwinder {
    /// Creates an unwinder in its own memory mapping. `None` if the kernel refuses it, and on machines other than
    /// x86-64.
    pub fn new() -> Option<Self> {
        engine::OfCopies::new().map(Self)
    }

    /// Checks what is loaded; call before each round of walks. If an object was unloaded since the last call, the
    /// copied addresses may belong to its predecessor, and all stacks of this round are flagged as guessed.
    pub fn look(&mut self) {
        self.0.look();
    }

    /// Walks the stack of a thread that was interrupted with these registers (rax to r15 and the instruction
    /// pointer, in DWARF order). `stack` is the memory above its stack pointer.
    pub fn walk(&mut self, registers: &[u64; REGISTERS], stack: &[u8]) -> Captured<'_> {
        self.0.walk(registers, stack)
    }
}

/// Captures the stack of the thread that created it.
#[derive(Debug)]
pub struct Unwinder {
    engine: engine::Owned,
}

impl Unwinder {
    /// Creates an unwinder for the calling thread, in its own memory mapping. `None` if the kernel refuses the
    /// memory.
    ///
    /// It queries the bounds of the thread's stack (`pthread_getattr_np`, which allocates, on all but the main
    /// thread): create one per thread and keep it.
    pub fn new() -> Option<Self> {
        Some(Self { engine: engine::Owned::new()? })
    }

    /// Sets whether every capture checks if objects were unloaded: two loads of the loader's own counters if they
    /// were found (glibc), else about 12 ns and a short loader lock. Default: no; see [`poll`].
    pub fn check_every_capture(&mut self, check: bool) {
        self.engine.check_every_capture(check);
    }

    /// Sets whether the last stack is cached, so that only new frames are walked. Default: yes. Without the cache,
    /// every capture walks to the root. The frames are the same, so that either mode can check the other.
    pub fn remember_stacks(&mut self, remember: bool) {
        self.engine.remember_stacks(remember);
    }

    /// Captures the stack of the calling thread, beginning at the caller of this function.
    ///
    /// A capture inside a capture of the same unwinder (from a signal handler) returns no frames and disturbs
    /// nothing; it is flagged as [`ContextFlags::CUT`]. The caller must make sure that no handler captures while
    /// the frames are still in use.
    #[inline(always)]
    pub fn capture(&mut self, skip: Skip) -> Captured<'_> {
        self.engine.capture(skip)
    }

    /// As [`Unwinder::capture`], but a stack that [`Unwinder::keep_last`] has cached is not walked: its number is
    /// returned. `hint` is something else that distinguishes stacks, such as the launched kernel; it must be equal
    /// for equal stacks.
    #[inline(always)]
    pub fn capture_or_tell(&mut self, skip: Skip, hint: u64) -> Seen<'_> {
        self.engine.capture_or_tell(skip, hint)
    }

    /// Caches the stack that [`Unwinder::capture_or_tell`] captured last, and returns its number, less than
    /// [`Unwinder::MOST_KEPT`]. A stack that had this number before is evicted. `None` if the stack cannot be
    /// cached, or if the last insertion is too recent to be worth another.
    #[inline(always)]
    pub fn keep_last(&mut self) -> Option<usize> {
        self.engine.keep_last()
    }

    /// Maximum number of cached stacks.
    pub const MOST_KEPT: usize = engine::STACKS;
}
