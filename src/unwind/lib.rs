//! Unwinds stacks: turns registers and memory into code addresses.
//!
//! An [`Unwinder`] belongs to a thread and captures that thread's own stack, from inside a callback. A callback may run
//! anywhere, for example inside the program's allocator, in a signal handler, or on a coroutine's stack. Therefore a
//! capture takes no lock that another thread may hold for long, and allocates nothing. Once rules and caches are
//! filled, a capture on the thread's own stack makes no system call. A capture on any other stack nearly always makes
//! one system call. A capture reads no word outside the stack on which it runs. On x86-64 the frames are the same as
//! those of libgcc's unwinder. In code without unwind information, the unwinder follows frame pointers and flags the
//! stack as guessed.
//!
//! [`ModuleMap`] records which file was mapped at which address, so that addresses can be symbolized later. [`python`]
//! inserts Python frames among the native frames.
//!
//! A [`CopyUnwinder`] walks a copy of another thread's stack.
//!
//! Not in scope: symbol names, walking other threads' stacks in place, and exception handling.
//!
//! # Why it cannot crash its host
//!
//! Unwind information may be wrong, a host may switch stacks by hand, and a return address may be any value. Therefore
//! a walk may arrive at any address, and every *read* during the walk must be safe for any address. The numbered
//! statements below explain why each read is safe, and name the tests that check them. If a test's name is followed by
//! a path like `unwind/foreign.rs`, the test is in that file of `tests/`. Otherwise, the test is in the named module.
//!
//! **Only the thread's own stack is read in place. Only one address range of the thread's own stack is read: from 128
//! bytes (the red zone) below the stack pointer at which the capture began, up to the stack's end.**
//!
//! - **1.** The range from the red zone to the stack's end stays mapped while the capture runs. This range contains the
//!   frames of the thread's callers, up to the frame in which the thread began, and our own frames are directly below
//!   the range. Only a host that unmaps pages between a thread's stack pointer and the stack's end would break
//!   statement 1. No host that does this is known. Statement 1 is tested by
//!   `a_threads_locals_are_within_its_stack_bounds` of `bounds`, and for the main thread by `unwind/main_thread.rs`.
//! - **2.** The walk checks every address against the range of statement 1 (see `x86_64/words.rs`). This check is
//!   necessary because every kind of rule (a plain rule, a rule for a realigned frame, a register rule, an expression)
//!   may yield any address or stack pointer. A second check requires that the caller's stack pointer is above the
//!   frame's stack pointer and not beyond the stack's end. If an address or a stack pointer fails its check, the walk
//!   ends, and the stack is flagged as cut. Statement 2 is tested by `walking_with_broken_unwind_information_is_safe`
//!   of `unwind/foreign.rs`, which tries 21 kinds of wrong unwind information.
//! - **3.** A signal may interrupt code on any stack. If the interrupted code runs on the same stack as the signal
//!   handler, the walk continues on this stack. If the interrupted code runs on another stack, the walk starts again
//!   and reads all stacks through a copy. Statement 3 is tested by
//!   `a_walk_continues_from_a_signal_stack_to_the_interrupted_stack`.
//! - **4.** The last-stack cache reads only words that an earlier walk of the thread's own stack has read, and that are
//!   in frames above the present stack pointer. The last-stack cache is used only in a capture that begins on the
//!   thread's own stack. The cache of whole stacks compares an entry with the stack only if the capture begins at
//!   exactly the stack pointer at which the walk of the cached stack began. Statement 4 is tested by
//!   `cached_and_uncached_walks_give_equal_stacks` and `a_repeated_stacks_number_refers_to_an_equal_stack` of
//!   `unwind/fuzz.rs`, and for greenlets, which move parts of a stack to another place, by `host/runtimes.rs`.
//! - **5.** Expressions terminate, because they are limited to 256 operations and fixed memory. Statement 5 is tested
//!   by the cases `sp_for_ever` and `cfa_for_ever` of the test of statement 2.
//!
//! **If a capture begins on a stack other than the thread's own, or reaches such a stack, the capture reads all stacks
//! (including the thread's own) through a copy that the kernel makes.** There is one exception: **words on the page
//! that contains the capture's own outermost frame** are read in place, if an earlier walk through a copy read equal
//! words up to the stack's end.
//!
//! - **6.** The kernel checks each page when it copies the page. Therefore no bounds of other stacks are cached, and
//!   cached bounds cannot be out of date. Statement 6 is tested by
//!   `a_stack_is_walked_to_its_end_whatever_is_mapped_above_it` of `unwind/foreign.rs` and
//!   `a_page_made_unreadable_since_the_last_capture_is_not_read` of `copy`, and compared with libgcc by
//!   `stacks_of_short_lived_fibers_match_libgccs_walk` of `recorded/verify.rs`.
//! - **7.** A walk through the copy stays in a readable range, which starts at the walk's stack pointer and ends at the
//!   first unreadable page, at most 8 MiB later. A capture copies at most 16 MiB in total. Statement 7 is tested by
//!   `words_are_read_from_the_red_zone_to_the_first_unreadable_page` and `a_capture_copies_at_most_its_limit` of
//!   `copy`.
//! - **8.** A stack whose frames are on one page is read without a copy if it matches a stack that was walked through a
//!   copy before (see `x86_64/foreign_path_cache.rs`). Reading this page in place is safe, because it contains our own
//!   frames: another thread that unmapped the page would crash the program even without gpuflame. Statement 8 is tested
//!   by `a_foreign_path_never_reads_past_the_stack_pointers_page` and
//!   `a_foreign_path_is_followed_only_with_the_same_frame_pointer` of that file. The results are compared with those of
//!   the copy by `cached_paths_on_foreign_stacks_equal_uncached_walks` of `unwind/fuzz.rs`. A page that another thread
//!   protects and unprotects is tested by `pages_protected_by_another_thread_are_not_read` of `host/generated.rs`.
//! - **9.** The cost of a capture does not depend on the number of stacks: a capture makes at most one copying system
//!   call, and opens no file. Statement 9 is tested by `a_capture_on_any_of_2000_fibers_takes_one_system_call` and
//!   `fibers_with_equal_stacks_are_copied_only_if_their_frames_exceed_a_page` of `unwind/fibers.rs`.
//! - **10.** If a sandbox refuses the copying system call, memory is read through a file. If the sandbox refuses the
//!   file too, the stack is flagged as cut. The host's errno is preserved. Statement 10 is tested by
//!   `unwind/sandboxed.rs`.
//!
//! **Only addresses of user space (below 2^47) are looked up**, because the rule table and frames use the upper bits
//! for other data.
//!
//! - **11.** A return address of 0 ends a stack. A return address beyond 2^47 cuts the stack before the address is
//!   looked up in the rule table, because the table's keys have a tag in those bits. Statement 11 is tested by the case
//!   `return_to_nearly_an_address` of the test of statement 2.
//!
//! **Machine code is read through a system call**, never in place, since code without unwind information may be
//! unmapped or replaced at any time (`x86_64/generated.rs`). Every stack address that is derived from the code's
//! instructions is checked against the stack's bounds. The check covers rbp, which may have any value in code without
//! unwind information (`generated_frames_are_walked_to_the_root_for_any_value_of_rbp`,
//! `unwalkable_generated_frames_do_not_crash_the_unwinder` of `unwind/generated.rs`).
//!
//! **The memory of a loaded object is read only while the loader's lock is held**, so that no other thread can unload
//! the object during the read. The lock is necessary because an address on a stack may be garbage, and garbage may be
//! an address in any object.
//!
//! - **12.** The lock is held for the object's headers, unwind information, build id and name. Statement 12 is tested
//!   by `unloading_an_object_that_stack_garbage_points_to_is_harmless` of `unwind/unloaded.rs`.
//! - **13.** No thread waits forever for the loader; `loader` explains why. As long as no object is loaded or unloaded,
//!   captures of known code do not query the loader. Statement 13 is tested by
//!   `a_self_checking_capture_does_not_wait_for_the_loader` of `unwind/unload.rs`.
//!
//! # Why no frame has a wrong name
//!
//! - **14.** Every load and unload, in any namespace, changes the loader's counters, and each capture compares these
//!   counters with their last known values. Therefore a rule is never applied to other code that was loaded later at
//!   the same address. The comparison is tested by `a_self_checking_capture_needs_no_poll`,
//!   `a_library_loaded_at_an_address_without_rules_is_recognised_at_once` and
//!   `more_unloads_than_tags_do_not_revive_old_rules` of `unwind/unload.rs`. If an object is loaded or unloaded during
//!   a capture, this is detected at the end of the capture. The detection is tested by
//!   `threads_sharing_rules_during_loads_and_unloads_agree_with_libgcc`, and by
//!   `a_rule_read_without_an_intervening_unload_is_current` of `x86_64/table.rs`. Each rule in a thread's path cache is
//!   used only for the address and the loader state for which it was stored. The path cache is tested by
//!   `a_path_is_used_from_its_third_walk_on` of `x86_64/path_cache.rs`, and compared with the walk without caches by
//!   the fuzzer of statement 4.
//! - **15.** An epoch permanently belongs to one file at one address, and each frame contains the epoch of its file.
//!   Therefore function names and comparisons of stacks do not depend on the thread that looks an address up, or on the
//!   time of the look-up. The names are tested by `plugins_that_alternate_at_one_address_keep_their_names` and the
//!   tests after it in `recorded/modules.rs`, and by `overlapping_objects_have_different_epochs` of `epochs`. Stacks
//!   are tested by `stacks_stay_equal_while_other_libraries_are_loaded_and_unloaded` of `unwind/modules.rs`.
//! - **16.** A frame whose module cannot be determined is reported as unknown, and counted. Statement 16 is tested by
//!   `launches_from_an_address_with_too_many_files_are_unknown_and_counted` of `recorded/modules.rs` and
//!   `an_address_in_two_files_mapped_outside_the_loader_is_unresolved` of `symbolize`.
//!
//! The numbered statements do not cover three cases:
//! - A program may replace libc's `dl_iterate_phdr` by a function that does not take the loader's lock.
//! - A program may map a file by hand in place of another file while no object is loaded or unloaded.
//! - The engine `portable` reads unwind information of objects that another thread may unload during the read.
//!
//! ```
//! use gpuflame_unwind::{Skip, Unwinder};
//!
//! gpuflame_unwind::prepare();
//! let mut unwinder = Unwinder::new().expect("memory for one thread's unwinder");
//! let captured = unwinder.capture(Skip::None);
//! assert!(captured.frames.len() > 1 && !captured.is_partial());
//! ```

use std::ops::Range;

use gpuflame_model::record::{ContextFlags, Frame};

// Only our own engine for x86-64 uses everything in `bounds`, `copy`, `loader`, `memory` and `object_lookup`. The
// portable engine needs only parts of these modules, because framehop keeps its own list of objects.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod bounds;
mod cache_backoff;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod copy;
mod epochs;
mod load_counters;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod loader;
mod loader_state;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub mod memory;
mod modules;
mod object_list;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod object_lookup;
mod outside_pages;
pub mod python;
pub mod python_exit;
mod symbols;
pub mod tls;
mod verify;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as engine;

#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(not(target_arch = "x86_64"))]
use portable as engine;

#[doc(hidden)]
pub use engine::StackPositions;
pub use memory::bytes_held;
pub use modules::ModuleMap;
pub use verify::{Verifier, VerifyResult};

/// Maximum number of frames per captured stack. If a stack is deeper, its frames at the root side are omitted.
pub const MAX_FRAMES: usize = 1024;

/// Looks up the symbols of the C library that cannot be looked up inside a callback. Call this function when the
/// library is loaded, on any thread. Captures that are made before this call are slower, but correct.
pub fn prepare() {
    object_lookup::prepare();
    loader::prepare();
    bounds::prepare();
    memory::prepare();
}

/// Makes this process look up objects as with a glibc before 2.35, even if a later glibc is installed. For tests.
#[doc(hidden)]
pub fn emulate_older_glibc() {
    object_lookup::disable_find_object();
}

/// Queries the loader (about 12 ns). Returns whether an object was loaded or unloaded since any thread last queried
/// the loader.
///
/// Unwind rules for unloaded code are dropped when this function, or a capture that reaches an address without a rule,
/// notices the unload. Until the unload is noticed, the rules of the unloaded code may be applied to other code that is
/// loaded at the same address. The new code may also get the names of the unloaded functions. Call this function after
/// a `dlclose` that you know of, poll it from a housekeeping thread every few milliseconds, or set
/// [`Unwinder::check_every_capture`].
pub fn poll() -> bool {
    let before = loader_state::latest();
    loader::poll() != before
}

/// Selects the frames to omit at the leaf side of the stack, usually the frames of the callback that captures the
/// stack.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Skip {
    /// Keep all frames, starting at the function that called [`Unwinder::capture`].
    #[default]
    None,
    /// Omit this number of leaf-side frames. Inlined functions have no frame of their own, so the number depends on the
    /// compiler.
    Count(usize),
    /// Omit all leaf-side frames whose code is in this address range, such as the code of our own
    /// library.
    Inside(Range<u64>),
    /// Omit the frames up to and including the frame that contains this stack address. A callback that passes the
    /// address of one of its local variables omits its own frame. A frame extends from its own stack pointer to its
    /// caller's stack pointer.
    UpTo(u64),
}

/// One captured stack, borrowed from the unwinder. Copy the stack before the next capture.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// The frames of the stack, leaf first.
    pub frames: &'a [Frame],
    /// Number of frames at the end of `frames` (the root side) that are unchanged since the previous capture.
    pub unchanged: usize,
    /// Flags which show whether the stack is truncated, cut or guessed.
    pub flags: ContextFlags,
    /// Stack pointers of `frames`, which show where each frame is on the stack.
    #[doc(hidden)]
    pub positions: StackPositions<'a>,
}

/// The result of [`Unwinder::capture_with_cache`].
#[derive(Debug)]
pub enum CachedCapture<'a> {
    /// The stack is equal, frame by frame, to the cached stack with this index (from [`Unwinder::cache_last`]).
    Hit(usize),
    /// The stack is not in the cache, and was captured by walking.
    Miss(Captured<'a>),
}

impl Captured<'_> {
    /// The empty result of a capture that is not possible.
    const EMPTY: Self = Self {
        frames: &[],
        unchanged: 0,
        flags: ContextFlags(ContextFlags::CUT),
        positions: StackPositions::NONE,
    };

    /// The stack pointer of each frame. A frame extends from its own stack pointer to its caller's stack
    /// pointer.
    pub fn stack_pointers(&self) -> impl Iterator<Item = u64> {
        self.positions.last_frames(self.frames.len())
    }

    /// Whether frames are missing at the root of the stack.
    pub fn is_partial(&self) -> bool {
        self.flags.0 & (ContextFlags::TRUNCATED | ContextFlags::CUT) != 0
    }
}

/// Number of registers in the array that is passed to [`CopyUnwinder::walk`].
pub const REGISTERS: usize = 17;

/// Walks the stacks of other threads. Each walk reads a copy that the kernel has made of a thread's stack and
/// registers, for example for a sample of `perf_event_open`.
///
/// A walk reads nothing from the original stack, because the thread has continued to run since the copy was made. If
/// the copy is too short, the stack is cut where the copy ends. Python frames are not included. For them, see
/// [`python::OtherThreads`]. Code may have been unloaded since the copy was made: see
/// [`CopyUnwinder::check_loaded_objects`].
#[derive(Debug)]
pub struct CopyUnwinder(engine::CopyWalker);

impl CopyUnwinder {
    /// Creates an unwinder in its own memory mapping. Returns `None` if the kernel refuses the memory, and always on
    /// machines other than x86-64.
    pub fn new() -> Option<Self> {
        engine::CopyWalker::new().map(Self)
    }

    /// Checks whether objects were unloaded since the last call. Call this function before each batch of walks. After
    /// an unload, addresses in the copied stacks may belong to the unloaded object, although another object is loaded
    /// there now. Therefore, after an unload, all stacks are flagged as guessed until the next call.
    pub fn check_loaded_objects(&mut self) {
        self.0.check_loaded_objects();
    }

    /// Walks the copied stack of a thread. `registers` are the thread's registers at the time of the copy (rax to r15
    /// and the instruction pointer, in DWARF order). `stack` is the copied memory, which starts at the thread's stack
    /// pointer.
    pub fn walk(&mut self, registers: &[u64; REGISTERS], stack: &[u8]) -> Captured<'_> {
        self.0.walk(registers, stack)
    }

    /// Does the same as [`CopyUnwinder::walk`], and also returns the stack pointer of each frame: see
    /// [`Captured::stack_pointers`].
    pub fn walk_with_positions(
        &mut self,
        registers: &[u64; REGISTERS],
        stack: &[u8],
    ) -> (Captured<'_>, Vec<u64>) {
        self.0.walk(registers, stack);
        self.0.last_walk()
    }
}

/// Captures the stack of the thread that created the unwinder.
#[derive(Debug)]
pub struct Unwinder {
    engine: engine::ThreadEngine,
}

impl Unwinder {
    /// Creates an unwinder for the calling thread, in its own memory mapping. Returns `None` if the kernel
    /// refuses the memory.
    ///
    /// Create one unwinder per thread and keep it, because `new` queries the bounds of the thread's stack. On all
    /// threads but the main thread, this query calls `pthread_getattr_np`, which allocates.
    pub fn new() -> Option<Self> {
        Some(Self { engine: engine::ThreadEngine::new()? })
    }

    /// Sets whether every capture checks if objects were unloaded. If the loader's own counters were found (glibc), the
    /// check only loads these two counters. If the loader's counters were not found, the check takes about 12 ns and
    /// holds a loader lock for a short time. By default, captures do not check whether objects were unloaded; see
    /// [`poll`].
    pub fn check_every_capture(&mut self, check: bool) {
        self.engine.check_every_capture(check);
    }

    /// Sets whether the last stack is cached, so that only new frames are walked. Default: yes. Without the cache,
    /// every capture walks to the root. The frames are the same with and without the cache, so tests can compare the
    /// results.
    pub fn use_caches(&mut self, enabled: bool) {
        self.engine.use_caches(enabled);
    }

    /// Captures the stack of the calling thread, beginning at the caller of this function.
    ///
    /// A signal handler may interrupt a capture and capture with the same unwinder. The capture in the handler then
    /// returns no frames, is flagged as [`ContextFlags::CUT`], and does not disturb the interrupted capture. The caller
    /// must make sure that no handler captures while the returned frames are still in use.
    #[inline(always)]
    pub fn capture(&mut self, skip: Skip) -> Captured<'_> {
        self.engine.capture(skip)
    }

    /// Captures a stack like [`Unwinder::capture`]. If [`Unwinder::cache_last`] has cached the stack, returns the
    /// cached stack's index without walking the stack. `hint` is an additional value that distinguishes stacks, such as
    /// the address of the launched kernel. A cached stack is found only with the `hint` with which it was cached.
    #[inline(always)]
    pub fn capture_with_cache(&mut self, skip: Skip, hint: u64) -> CachedCapture<'_> {
        self.engine.capture_with_cache(skip, hint)
    }

    /// Caches the stack that [`Unwinder::capture_with_cache`] captured last, and returns its index, which is less than
    /// [`Unwinder::MAX_CACHED_STACKS`]. The stack that had this index before is evicted. Returns `None` if the stack
    /// cannot be cached, or if the back-off does not allow an insertion yet.
    #[inline(always)]
    pub fn cache_last(&mut self) -> Option<usize> {
        self.engine.cache_last()
    }

    /// Maximum number of stacks in the cache.
    pub const MAX_CACHED_STACKS: usize = engine::STACKS;
}
