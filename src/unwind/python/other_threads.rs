//! Reads the Python frames of sampled threads, even if these threads are running.
//!
//! A sample is a copy of a thread's registers and stack at one moment. The copy does not contain the Python frames, so
//! they are read soon after the sample. All memory is read through copies that the kernel makes, because the thread
//! may free any of this memory at any time. The Python frames are used only if they fit the sample:
//!
//! 1. Two reads, one after the other, find the same Python frames. (Only the positions in the functions may differ.)
//!
//! 2. After the reads, the thread's stack is compared with the copy. In this comparison, native frames on the leaf side
//!    of the innermost evaluator call may differ. If all other frames are the same, the thread is still in that
//!    evaluator call. Since 3.11, the native frame of the innermost evaluator call may also differ, under one
//!    condition: an address in the innermost function's instructions is in a register, or in the copy up to the end of
//!    that native frame. An address in the function's instructions shows that the thread executed this function when
//!    the thread was sampled. The native frame of the innermost evaluator call differs if the thread has continued to
//!    run between the sample and the reads.
//!
//! 3. Since 3.11, an evaluator call may enter or leave a Python function without a change of the stack. Therefore the
//!    address of the innermost Python frame must be in a register, or in the copy up to the end of the evaluator call's
//!    native frame.
//!
//! 4. Each evaluator call in the copied stack has Python frames, and each Python frame belongs to an evaluator call.
//!
//! If the thread launches GPU work after the sample, the thread's stack changes. Therefore the Python frames of a
//! launch after the sample are never used. Two errors remain possible. Both errors affect only the frames within one
//! evaluator call. First, the sampled function may return before the read, while the address of the next function's
//! frame is still in the copy. Second, the sampled function may have another caller at the time of the read than at the
//! time of the sample.
//!
//! The Python frames of the threads of all interpreters are read. If a thread has Python states in several
//! interpreters, only its state in the first listed interpreter is read. If such a thread is sampled in another
//! interpreter, its Python frames count as not read.

use std::time::{Duration, Instant};

use super::code::{self, Description, Scratch};
use super::interpreter::{self, Interpreter};
use super::layout::{Boundary, HOLD_BITS, OWNED_BY_EVALUATOR, OWNED_BY_GENERATOR, TYPE, Unit};
use super::merge::{Agreement, MAX_MERGED_FRAMES, MergedFrames, StackPair, is_evaluator};
use super::pages::{copy_into, copy_readable};
use super::walk::{InterpreterFrame, SOMEWHERE, recorded_frame};
use crate::{Captured, MAX_FRAMES, REGISTERS, memory};
use gpuflame_model::record::{CodeId, Frame, LabelId};

const PAGE_BYTES: usize = 4096;
/// Maximum number of page copies that are held during a read. Since CPython 3.11, a thread's frames are mostly on one
/// or two pages; before 3.11, the frames are scattered over more pages.
const PAGES: usize = 16;
/// If a sampled thread had no Python state in the last listing of all threads, that thread causes no new listing until
/// this time has passed.
const ABSENT_FOR: Duration = Duration::from_millis(100);
/// Limits on the lengths of the interpreter's lists. The limits are needed because the program may change these lists
/// during a read, so a list may even seem cyclic.
const MAX_INTERPRETERS: usize = 64;
const MAX_THREADS: usize = 4096;
const MAX_CODES: usize = 1 << 14;
const MAX_STACK_BYTES: usize = 32 << 10;
/// Indices of registers in DWARF order: the stack pointer, and the register of a system call's first argument.
const SP_INDEX: usize = 7;
const FIRST_ARGUMENT_INDEX: usize = 5;

/// Reads the Python frames of any thread of this process. Use this type only on a gpuflame thread, because it
/// allocates.
#[derive(Debug)]
pub struct OtherThreads {
    pages: PageCopies,
    /// The loader's unload count at the last check that found the interpreter loaded.
    unloads: u32,
    /// Distance from a thread's id in the C library (`pthread_t`, which is an address) to the word with the kernel's
    /// thread id.
    number_offset: Option<u64>,
    /// Threads that were read before: the kernel's thread id, and the address of Python's thread state.
    states: Vec<(i32, u64)>,
    /// Threads that had no Python state when all threads were listed: the kernel's thread id, and the time of the
    /// listing.
    absent: Vec<(i32, Instant)>,
    /// Code objects that were described, sorted by address.
    codes: Vec<KnownCode>,
    frames: Vec<CopiedFrame>,
    /// Whether frames are missing at the root of `frames`.
    is_cut: bool,
    /// The memory of the sampled stack, copied after the frames were read, up to the first unreadable byte. `None` if
    /// the frames could not be read, or if two reads of the frames differ.
    stack_now: Option<Vec<u8>>,
    scratch: Box<Scratch>,
    items: Vec<InterpreterFrame>,
    /// Size in bytes of the instructions of the code object that was looked up last. The code object that was looked up
    /// last belongs to the innermost frame.
    instruction_bytes: u32,
    merged: Box<[Frame; MAX_MERGED_FRAMES]>,
}

/// Result of merging the Python frames of a sample with its native frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampledPython {
    /// The sampled stack is not in Python code.
    NoFrames,
    /// The Python frames of the stack were read and merged.
    Read,
    /// The stack is in Python code, but its Python functions are not certain.
    NotRead,
}

#[derive(Clone, Copy, Debug)]
struct KnownCode {
    address: u64,
    hash: u64,
    number: u32,
    traceable: u32,
}

/// A Python frame, as copied from the thread's memory.
#[derive(Clone, Copy, Debug)]
struct CopiedFrame {
    at: u64,
    holds: u64,
    boundary: u64,
    position: u64,
    owner: u8,
}

impl CopiedFrame {
    /// Whether both frames belong to the same call of the same function. The two frames may differ in their position in
    /// the function.
    fn is_same_call(&self, other: &Self) -> bool {
        (self.at, self.holds, self.boundary) == (other.at, other.holds, other.boundary)
    }
}

impl OtherThreads {
    /// Creates a reader of Python frames. Returns `None` if this process has no interpreter whose threads can be
    /// found.
    pub fn new() -> Option<Self> {
        interpreter::interpreter()?.thread_list?;
        Some(Self::without_threads())
    }

    /// Whether Python frames cannot be read because a sandbox refuses the system call that copies memory
    /// (`process_vm_readv`).
    pub fn is_refused() -> bool {
        memory::needs_descriptor() && interpreter::interpreter().is_some()
    }

    fn without_threads() -> Self {
        Self {
            pages: PageCopies::new(),
            unloads: interpreter::unloads(),
            number_offset: thread_number_offset(),
            states: Vec::new(),
            absent: Vec::new(),
            codes: Vec::new(),
            frames: Vec::new(),
            is_cut: false,
            stack_now: None,
            scratch: Scratch::allocate(),
            items: Vec::new(),
            instruction_bytes: 0,
            merged: Box::new([Frame(0); MAX_MERGED_FRAMES]),
        }
    }

    /// Reads the Python frames of a thread that was just sampled with these registers and this stack. Call this
    /// function as soon as possible after the sample. `number` assigns an id to a code object.
    pub fn read(
        &mut self,
        thread: i32,
        (registers, stack): (&[u64; REGISTERS], &[u8]),
        mut number: impl FnMut(Description<'_>) -> CodeId,
    ) {
        self.forget();
        if Self::is_refused() {
            return;
        }
        let unloads = interpreter::unloads();
        if unloads != self.unloads && interpreter::interpreter().is_some_and(|it| !interpreter::is_loaded(it))
        {
            return;
        }
        self.unloads = unloads;
        self.stack_now = self.read_twice(thread, (registers[SP_INDEX], stack), &mut number);
    }

    /// Forgets the frames of the last call of [`OtherThreads::read`].
    pub fn forget(&mut self) {
        self.frames.clear();
        self.stack_now = None;
    }

    fn read_twice(
        &mut self,
        thread: i32,
        (sp, stack): (u64, &[u8]),
        number: &mut dyn FnMut(Description<'_>) -> CodeId,
    ) -> Option<Vec<u8>> {
        let interpreter = interpreter::interpreter()?;
        self.pages.forget();
        let state = self.state_of(thread, interpreter)?;
        self.read_state_twice(interpreter, state, || ())?;
        // Read the functions' names before the check that the frames still exist, because a function may be freed when
        // its frame ends.
        self.name_frames(interpreter, number)?;
        let mut now = vec![0; stack.len().min(MAX_STACK_BYTES)];
        let copied = copy_readable(sp, &mut now);
        now.truncate(copied);
        Some(now)
    }

    /// Reads the Python frames of the thread with this state, calls `between`, and reads the frames again.
    fn read_state_twice(
        &mut self,
        interpreter: &Interpreter,
        state: u64,
        between: impl FnOnce(),
    ) -> Option<()> {
        let before = self.read_once(interpreter, state)?;
        let first = std::mem::take(&mut self.frames);
        between();
        self.pages.forget();
        let after = self.read_once(interpreter, state)?;
        let is_same = first.len() == self.frames.len()
            && before == after
            && first.iter().zip(&self.frames).all(|(one, other)| one.is_same_call(other));
        if !is_same {
            return None;
        }
        // The instruction positions are taken from the first read, because the first read was closer in time to the
        // sample.
        (self.frames, self.is_cut) = (first, before);
        Some(())
    }

    /// Fills `items` with the Python frames that were read.
    #[inline(never)]
    fn name_frames(
        &mut self,
        interpreter: &Interpreter,
        number: &mut dyn FnMut(Description<'_>) -> CodeId,
    ) -> Option<()> {
        self.items.clear();
        for at in (0..self.frames.len()).rev() {
            let CopiedFrame { at, holds, boundary, position, owner } = self.frames[at];
            let code = holds & !HOLD_BITS;
            let known = self.code(code, interpreter, number)?;
            let may_be_incomplete = owner != OWNED_BY_GENERATOR;
            let numbers = (known.number, known.traceable);
            let frame = recorded_frame((code, position), may_be_incomplete, numbers, &interpreter.layout);
            self.items.push(InterpreterFrame::for_merge(at, frame, boundary));
        }
        Some(())
    }

    /// Follows the Python frames of a thread, innermost first. Returns true if frames at the root are omitted.
    fn read_once(&mut self, interpreter: &Interpreter, thread: u64) -> Option<bool> {
        let (layout, pages) = (&interpreter.layout, &mut self.pages);
        let parts = &layout.frame;
        if is_ending(interpreter, thread) {
            return None;
        }
        self.frames.clear();
        let mut at = pages.word(thread.wrapping_add(layout.thread.into()))?;
        let mut cframe = 0;
        if let Some(parts) = layout.cframe {
            cframe = at;
            at = if cframe == 0 { 0 } else { pages.word(cframe.wrapping_add(parts.frame.into()))? };
        }
        let mut shims = 0;
        while at != 0 {
            let mut frame = [0; 128];
            let frame = frame.get_mut(..parts.bytes as usize)?;
            pages.copy(at, frame)?;
            let word = |offset: u32| -> Option<u64> {
                Some(u64::from_ne_bytes(*frame.get(offset as usize..)?.first_chunk()?))
            };
            let byte = |offset: u32| frame.get(offset as usize).copied();
            let owner = byte(parts.owner)?;
            let next = word(parts.previous)?;
            if parts.boundary == Boundary::Shim && owner >= OWNED_BY_EVALUATOR {
                shims += 1;
                match self.frames.last_mut() {
                    _ if shims > 2 * MAX_FRAMES => return None,
                    Some(last) if last.boundary == 0 => last.boundary = at,
                    _ => {}
                }
                at = next;
                continue;
            }
            if self.frames.len() == MAX_FRAMES {
                return Some(true);
            }
            let boundary = match parts.boundary {
                Boundary::Each if word(TYPE as u32)? != interpreter.types.frame => return None,
                Boundary::Each => SOMEWHERE,
                Boundary::Flag(flag) if byte(flag)? != 0 => {
                    let call = cframe;
                    cframe = pages.word(cframe.wrapping_add(layout.cframe?.previous.into()))?;
                    call
                }
                Boundary::Flag(_) | Boundary::Shim => 0,
            };
            let position = match parts.unit {
                Unit::Index(_) => u64::from(word(parts.position)? as u32),
                Unit::Address => word(parts.position)?,
            };
            self.frames.push(CopiedFrame { at, holds: word(parts.code)?, boundary, position, owner });
            at = next;
        }
        Some(false)
    }

    /// Returns the address of the Python state of the thread whose kernel id is `thread`.
    fn state_of(&mut self, thread: i32, interpreter: &Interpreter) -> Option<u64> {
        let list = interpreter.thread_list?;
        if let Some(&(_, state)) = self.states.iter().find(|(number, _)| *number == thread)
            && self.number_of(state.wrapping_add(list.identity.into())) == Some(thread)
        {
            return Some(state);
        }
        self.states.retain(|(number, _)| *number != thread);
        self.absent.retain(|(_, at)| at.elapsed() < ABSENT_FOR);
        if self.absent.iter().any(|(number, _)| *number == thread) {
            return None;
        }
        let found = self.list(interpreter).into_iter().find(|(number, _)| *number == thread);
        let Some((_, state)) = found else {
            self.absent.push((thread, Instant::now()));
            return None;
        };
        if self.states.len() >= MAX_THREADS {
            self.states.clear();
        }
        self.states.push((thread, state));
        Some(state)
    }

    /// Returns the kernel's thread id of each Python thread.
    pub fn all(&mut self) -> Vec<i32> {
        self.pages.forget();
        let interpreter = interpreter::interpreter().filter(|_| !Self::is_refused());
        let all = interpreter.map(|interpreter| self.list(interpreter));
        all.into_iter().flatten().map(|(number, _)| number).collect()
    }

    /// Lists the kernel's thread id and the address of the Python state of each Python thread. Skips a state if its
    /// thread has not started yet or has ended.
    #[inline(never)]
    fn list(&mut self, interpreter: &Interpreter) -> Vec<(i32, u64)> {
        let (mut found, mut listed) = (Vec::new(), 0);
        let Some(list) = interpreter.thread_list else { return found };
        let mut next = interpreter.runtime + u64::from(list.interpreters);
        for _ in 0..MAX_INTERPRETERS {
            let Some(at) = self.pages.word(next).filter(|at| *at != 0) else { break };
            let mut next_thread = at.wrapping_add(list.threads.into());
            while listed < MAX_THREADS
                && let Some(state) = self.pages.word(next_thread).filter(|state| *state != 0)
            {
                let number = self.number_of(state.wrapping_add(list.identity.into()));
                found.extend(number.map(|number| (number, state)));
                next_thread = state.wrapping_add(list.next.into());
                listed += 1;
            }
            next = at.wrapping_add(list.next_interpreter.into());
        }
        found
    }

    /// Returns the kernel's thread id of one thread. The thread's id in the C library is stored at the address
    /// `identity`.
    fn number_of(&mut self, identity: u64) -> Option<i32> {
        let thread = self.pages.word(identity)?;
        let mut number = [0; 4];
        // Copy only this word instead of its whole page, because this page contains no Python frames.
        let is_copied = copy_into(thread.checked_add(self.number_offset?)?, &mut number);
        // Skip the value 0, because the kernel would interpret 0 as the calling thread.
        is_copied.then(|| i32::from_ne_bytes(number)).filter(|number| *number > 0)
    }

    /// Merges the native frames of the sample with the Python frames that [`OtherThreads::read`] has read, and returns
    /// the merged stack. If the stack is in Python code, but its Python frames were not read, a label replaces the
    /// evaluator's frames.
    pub fn merge(
        &mut self,
        captured: &Captured<'_>,
        stack_pointers: &[u64],
        sampled: (&[u64; REGISTERS], &[u8]),
    ) -> (&[Frame], SampledPython) {
        let (native, interpreter) = (captured.frames, interpreter::interpreter());
        let is_read = !self.frames.is_empty() && self.stack_now.is_some();
        let merged = interpreter
            .filter(|_| is_read)
            .and_then(|interpreter| self.merge_read(interpreter, captured, stack_pointers, sampled));
        let (count, result) = match (merged, interpreter) {
            (Some(count), _) => (count, SampledPython::Read),
            (None, Some(it)) if is_read || native.iter().any(|frame| is_evaluator(*frame, &it.evaluator)) => {
                (label_not_read(native, it, &mut self.merged), SampledPython::NotRead)
            }
            _ => (write_frames(native, &mut self.merged), SampledPython::NoFrames),
        };
        (&self.merged[..count], result)
    }

    /// Merges the native frames with the Python frames that were read, and returns the number of merged frames. Returns
    /// `None` if the Python frames do not fit the native stack.
    #[inline(never)]
    fn merge_read(
        &mut self,
        interpreter: &Interpreter,
        captured: &Captured<'_>,
        stack_pointers: &[u64],
        (registers, stack): (&[u64; REGISTERS], &[u8]),
    ) -> Option<usize> {
        let mut pair = StackPair {
            native: captured.frames,
            items: &self.items,
            is_partial: captured.is_partial() || self.is_cut,
            evaluator: &interpreter.evaluator,
        };
        // If the native stack is cut, the size of its last frame is unknown. Therefore this frame's Python frames are
        // appended together with the frames of outer evaluator calls.
        if let [others @ .., last] = pair.native
            && captured.is_partial()
            && pair.is_evaluator(*last)
        {
            pair.native = others;
        }
        // Do not compare memory above the root of the stack, because this memory does not belong to the thread's stack
        // and may change at any time.
        let base = registers[SP_INDEX];
        let root = stack_pointers.last()?.saturating_sub(base) as usize;
        let compared = if captured.is_partial() { stack.len() } else { root.min(stack.len()) };
        let changed = changed_bytes(stack.get(..compared)?, self.stack_now.as_ref()?.get(..compared)?);
        let call = innermost_call(&pair, stack_pointers)?;
        // A frame extends from its own stack pointer to its caller's stack pointer.
        let held = HeldWords { registers, stack, upper: *stack_pointers.get(call + 1)? };
        let (innermost, layout) = (self.frames.first()?, &interpreter.layout);
        let changed_up_to = if changed == 0 { 0 } else { base.checked_add(changed as u64)? };
        let code = (innermost.holds & !HOLD_BITS).wrapping_add(layout.code.instructions.into());
        let is_certain = changed_up_to <= *stack_pointers.get(call)?
            || changed_up_to <= held.upper
                && layout.frame.unit == Unit::Address
                && held.contain(code, self.instruction_bytes);
        if !is_certain || !held.contain(innermost.at, 1) {
            return None;
        }
        let (frames, agreement) =
            pair.merge(stack_pointers.iter().copied(), MergedFrames::new(&mut self.merged));
        if agreement == Agreement::None || !has_all_inner_calls(frames, &pair) {
            return None;
        }
        Some(frames.len())
    }

    /// Finds the code object at `code` among the described code objects, or describes it.
    fn code(
        &mut self,
        code: u64,
        interpreter: &Interpreter,
        number: &mut dyn FnMut(Description<'_>) -> CodeId,
    ) -> Option<KnownCode> {
        let Interpreter { layout, types, .. } = interpreter;
        let mut parts = code::copy_parts(code, layout, types)?;
        self.instruction_bytes = parts.instruction_bytes;
        let hash = parts.hash();
        let at = self.codes.binary_search_by_key(&code, |known| known.address);
        if let Ok(at) = at
            && self.codes[at].hash == hash
        {
            return Some(self.codes[at]);
        }
        let number = number(parts.describe(layout, types, &mut self.scratch)).0;
        let known = KnownCode { address: code, hash, number, traceable: parts.traceable };
        match at {
            Ok(at) => self.codes[at] = known,
            Err(_) if self.codes.len() >= MAX_CODES => self.codes.clear(),
            Err(at) => self.codes.insert(at, known),
        }
        Some(known)
    }
}

/// The registers of a sample, and the words of the sampled stack below the address `upper`.
struct HeldWords<'a> {
    registers: &'a [u64; REGISTERS],
    stack: &'a [u8],
    upper: u64,
}

impl HeldWords<'_> {
    /// Whether one of these words is an address in the `bytes` bytes that start at `first`.
    fn contain(&self, first: u64, bytes: u32) -> bool {
        let held = usize::try_from(self.upper.saturating_sub(self.registers[SP_INDEX])).unwrap_or(0);
        let (words, _) = self.stack[..held.min(self.stack.len())].as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        self.registers.iter().copied().chain(words).any(|word| word.wrapping_sub(first) < bytes.into())
    }
}

/// Whether a thread with these registers waits in the kernel for a lock that is one of the interpreter's own variables.
/// Such a lock is practically always the GIL, because no other lock in the interpreter's variables makes threads wait
/// long.
pub fn waits_for_gil(registers: &[u64; REGISTERS]) -> bool {
    let is_within = |interpreter: &Interpreter| {
        registers[FIRST_ARGUMENT_INDEX].wrapping_sub(interpreter.runtime) < interpreter.runtime_bytes
    };
    interpreter::interpreter().is_some_and(is_within)
}

/// Whether another thread is finalizing the interpreter. Also returns true if the interpreter's variables cannot be
/// read.
fn is_ending(interpreter: &Interpreter, thread: u64) -> bool {
    let mut by = [0; 8];
    let is_copied = copy_into(interpreter.runtime + u64::from(interpreter.layout.finalizing), &mut by);
    let by = u64::from_ne_bytes(by);
    !is_copied || by != 0 && by != thread
}

/// Returns the index of the native frame that is the innermost evaluator call with Python frames.
fn innermost_call(pair: &StackPair<'_>, stack_pointers: &[u64]) -> Option<usize> {
    let boundary = pair.items.iter().rev().map(|item| item.boundary).find(|boundary| *boundary != 0)?;
    if boundary == SOMEWHERE {
        return pair.native.iter().position(|frame| pair.is_evaluator(*frame));
    }
    let at = stack_pointers.partition_point(|sp| *sp <= boundary);
    at.checked_sub(1).filter(|_| at < stack_pointers.len())
}

/// Whether, in the merged stack, all native frames of the evaluator are nearer to the root than all Python frames. A
/// native evaluator frame on the leaf side of a Python frame shows that an evaluator call began or ended between the
/// sample and the read. Evaluator calls nearer to the root may belong to another interpreter, or to the stack below a
/// greenlet.
fn has_all_inner_calls(frames: &[Frame], pair: &StackPair<'_>) -> bool {
    use gpuflame_model::record::FrameKind;
    let is_python = |frame: &Frame| matches!(frame.kind(), FrameKind::Python { .. });
    let outermost = frames.iter().rposition(is_python).unwrap_or(frames.len());
    !frames[..outermost].iter().any(|frame| pair.is_evaluator(*frame))
}

/// Writes the native frames to `out`. All frames from the innermost to the outermost call of the evaluator are replaced
/// by one label. Returns the number of written frames.
fn label_not_read(
    native: &[Frame],
    interpreter: &Interpreter,
    out: &mut [Frame; MAX_MERGED_FRAMES],
) -> usize {
    let is_evaluator = |frame: &Frame| is_evaluator(*frame, &interpreter.evaluator);
    let first = native.iter().position(is_evaluator).unwrap_or(native.len());
    let after = native.iter().rposition(is_evaluator).map_or(native.len(), |last| last + 1);
    let label = Frame::label(LabelId::PYTHON_NOT_READ);
    write_frames(native[..first].iter().chain([&label]).chain(&native[after..]), out)
}

/// Writes `frames` to `out`, and returns the number of written frames.
fn write_frames<'a>(
    frames: impl IntoIterator<Item = &'a Frame>,
    out: &mut [Frame; MAX_MERGED_FRAMES],
) -> usize {
    out.iter_mut().zip(frames).map(|(place, frame)| *place = *frame).count()
}

/// Returns the position after the last byte that differs between `then` and `now`, or 0 if no byte differs.
fn changed_bytes(then: &[u8], now: &[u8]) -> usize {
    if then == now {
        return 0;
    }
    then.iter().zip(now).rposition(|(then, now)| then != now).map_or(0, |last| last + 1)
}

/// Returns the offset of the kernel's thread id in the C library's description of a thread (the struct at the address
/// `pthread_t`, in glibc and musl). The offset is found by searching the description of the calling thread for its
/// kernel id.
fn thread_number_offset() -> Option<u64> {
    const DESCRIPTION_BYTES: usize = 1024;
    let mut description = [0; DESCRIPTION_BYTES];
    // SAFETY: `pthread_self` and `gettid` have no preconditions.
    let (this, number) = unsafe { (libc::pthread_self() as u64, libc::syscall(libc::SYS_gettid) as i32) };
    if !copy_into(this, &mut description) {
        return None;
    }
    let (words, _) = description.as_chunks::<4>();
    words.iter().position(|word| *word == number.to_ne_bytes()).map(|at| 4 * at as u64)
}

/// Copies of the pages that a read of Python frames has needed.
#[derive(Debug)]
struct PageCopies {
    /// Numbers of the copied pages (address divided by the page size); 0 for a free slot.
    numbers: [u64; PAGES],
    bytes: Vec<u8>,
    /// Index of the slot to replace next.
    next: usize,
}

impl PageCopies {
    fn new() -> Self {
        Self { numbers: [0; PAGES], bytes: vec![0; PAGES * PAGE_BYTES], next: 0 }
    }

    fn forget(&mut self) {
        (self.numbers, self.next) = ([0; PAGES], 0);
    }

    /// Copies the memory at `address` to `to`. Returns `None` if any of the memory is unreadable.
    #[inline(never)]
    fn copy(&mut self, mut address: u64, mut to: &mut [u8]) -> Option<()> {
        while !to.is_empty() {
            let from = address as usize % PAGE_BYTES;
            let bytes = to.len().min(PAGE_BYTES - from);
            let (now, later) = to.split_at_mut(bytes);
            now.copy_from_slice(self.page(address / PAGE_BYTES as u64)?.get(from..from + bytes)?);
            (address, to) = (address.checked_add(bytes as u64)?, later);
        }
        Some(())
    }

    #[inline(never)]
    fn word(&mut self, address: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.copy(address, &mut word).map(|()| u64::from_ne_bytes(word))
    }

    fn page(&mut self, number: u64) -> Option<&[u8]> {
        // The number 0 can mark free slots, because page 0 is never mapped.
        if number == 0 {
            return None;
        }
        let known = self.numbers.iter().position(|known| *known == number);
        let at = known.unwrap_or(self.next);
        let page = self.bytes.get_mut(at * PAGE_BYTES..)?.get_mut(..PAGE_BYTES)?;
        if known.is_none() {
            // If the copy fails, the slot stays free.
            self.numbers[at] = 0;
            if !copy_into(number * PAGE_BYTES as u64, page) {
                return None;
            }
            (self.numbers[at], self.next) = (number, (at + 1) % PAGES);
        }
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Layout, ThreadList};
    use super::super::walk::tests::{FakeInterpreter, INSTRUCTIONS, MappedWalk, Numbers, layouts};
    use super::*;
    use crate::StackPositions;
    use gpuflame_model::record::{ContextFlags, FrameKind, ModuleEpoch};
    use std::sync::atomic::{AtomicU64, Ordering};

    const EVALUATOR: u64 = 0x5000;

    /// Memory filled with zeroes that serves as the interpreter's variables.
    static NOTHING: [u64; 512] = [0; 512];

    fn interpreter(layout: Layout, has_root: bool, seed: u64) -> FakeInterpreter {
        let mut made = FakeInterpreter::new(layout, has_root, seed);
        made.interpreter.runtime = NOTHING.as_ptr() as u64;
        made.interpreter.evaluator[0] = EVALUATOR..EVALUATOR + 0x1000;
        made
    }

    #[test]
    fn frames_read_through_the_kernel_equal_those_of_a_walk_on_the_thread() {
        for (layout, has_root) in layouts() {
            let mut made = interpreter(layout, has_root, 0x9e37_79b9);
            let (mut others, mut numbers) = (OtherThreads::without_threads(), Numbers::default());
            for step in 0..200 {
                made.step_program();
                let (mut mapped, thread) = (MappedWalk::new(), made.thread());
                let walk = mapped.walk();
                walk.run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
                others.forget();
                others.pages.forget();
                assert_eq!(others.read_once(&made.interpreter, thread), Some(false));
                let frames = std::mem::take(&mut others.frames);
                let items = frames.iter().rev().map(|frame| {
                    let CopiedFrame { at, holds, boundary, position, owner } = *frame;
                    let code = holds & !HOLD_BITS;
                    let known = others
                        .code(code, &made.interpreter, &mut |text| numbers.of(text))
                        .expect("a code object");
                    let place = (known.number, known.traceable);
                    let is_own = owner != OWNED_BY_GENERATOR;
                    (at, boundary, recorded_frame((code, position), is_own, place, &made.interpreter.layout))
                });
                let expected =
                    walk.items[..walk.count].iter().map(|item| (item.at, item.boundary, item.frame));
                assert!(items.eq(expected), "{step} of {layout:?}");
            }
        }
    }

    #[test]
    fn two_reads_that_differ_give_no_frames_and_a_new_position_does_not_matter() {
        for (layout, has_root) in layouts() {
            let mut made = interpreter(layout, has_root, 0x9e37_79b9);
            while made.calls.len() < 9 {
                made.push();
            }
            made.write_frames();
            let mut others = OtherThreads::without_threads();
            for (what, expected) in
                [("nothing", Some(())), ("position", Some(())), ("return", None), ("call", None)]
            {
                let (thread, made) = (made.thread(), &mut made);
                let Interpreter { layout, runtime, this_thread, types, .. } = made.interpreter;
                let evaluator = made.interpreter.evaluator.clone();
                let (runtime_bytes, thread_list) = (0, None);
                let of = Interpreter {
                    layout,
                    runtime,
                    runtime_bytes,
                    thread_list,
                    this_thread,
                    types,
                    evaluator,
                };
                let changed = others.read_state_twice(&of, thread, || {
                    match what {
                        "position" => made.step_leaf(),
                        "return" => drop(made.calls.pop()),
                        "call" => (0..9).for_each(|_| made.push()),
                        _ => {}
                    }
                    made.write_frames();
                });
                assert_eq!(changed, expected, "{what} in {layout:?}");
            }
        }
    }

    #[test]
    fn words_are_copied_across_pages_and_not_from_unmapped_memory() {
        let memory: Vec<u8> = (0..3 * PAGE_BYTES).map(|at| (at % 251) as u8).collect();
        let mut pages = PageCopies::new();
        assert_eq!((pages.word(8), pages.word(u64::MAX - 3), pages.word(1 << 46)), (None, None, None));
        let edge = PAGE_BYTES - memory.as_ptr() as usize % PAGE_BYTES;
        for at in [edge, edge + PAGE_BYTES - 4, edge + 8] {
            let expected = u64::from_ne_bytes(memory[at..at + 8].try_into().unwrap());
            assert_eq!(pages.word(memory.as_ptr() as u64 + at as u64), Some(expected));
        }
    }

    #[test]
    fn the_part_of_the_stack_that_has_changed_ends_at_its_last_changed_byte() {
        let (then, mut now) = ([7_u8; 100], [7_u8; 100]);
        assert_eq!(changed_bytes(&then, &now), 0);
        (now[3], now[41]) = (8, 8);
        assert_eq!(changed_bytes(&then, &now), 42);
    }

    /// A sampled stack whose frames start at the address 1,000 and have 16 bytes each. The letter `E` is a call of the
    /// evaluator, and every other letter is a frame of other code.
    struct Sample {
        native: Vec<Frame>,
        positions: Vec<u64>,
        registers: [u64; REGISTERS],
        stack: Vec<u8>,
    }

    impl Sample {
        fn new(native: &str) -> Self {
            let address = |letter| if letter == 'E' { EVALUATOR + 8 } else { 0x100 * letter as u64 };
            let native: Vec<Frame> =
                native.chars().map(|letter| Frame::native(address(letter), ModuleEpoch(0))).collect();
            let positions = (0..native.len() as u64).map(|at| 1000 + 16 * at).collect();
            let mut registers = [0; REGISTERS];
            registers[SP_INDEX] = 1000;
            Self { stack: vec![0; 16 * native.len()], native, positions, registers }
        }

        fn put(mut self, at: usize, word: u64) -> Self {
            self.stack[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            self
        }

        /// Merges this stack with the frames in `others`. The first `changed` bytes of the stack have changed since
        /// the sample.
        fn merged(&self, others: &mut OtherThreads, of: &Interpreter, changed: usize) -> Option<String> {
            let mut now = self.stack.clone();
            now.iter_mut().take(changed).for_each(|byte| *byte ^= 1);
            self.merged_with(others, of, now)
        }

        fn merged_with(&self, others: &mut OtherThreads, of: &Interpreter, now: Vec<u8>) -> Option<String> {
            others.stack_now = Some(now);
            let (frames, flags) = (&self.native[..], ContextFlags::default());
            let captured = Captured { frames, unchanged: 0, flags, positions: StackPositions::NONE };
            let sampled = (&self.registers, &self.stack[..]);
            let count = others.merge_read(of, &captured, &self.positions, sampled)?;
            let letter = |frame: &Frame| match frame.kind() {
                FrameKind::Python { .. } => 'p',
                FrameKind::Native { address, .. } if (EVALUATOR..0x6000).contains(&address) => 'E',
                FrameKind::Native { address, .. } => char::from((address.div_ceil(0x100)) as u8),
                other => panic!("{other:?}"),
            };
            Some(others.merged[..count].iter().map(letter).collect())
        }
    }

    /// Returns a reader that has read one frame with the boundary `boundary`, and the address of this frame.
    fn with_one_frame(made: &FakeInterpreter, boundary: u64) -> (OtherThreads, u64) {
        let mut others = OtherThreads::without_threads();
        others.read_once(&made.interpreter, made.thread()).unwrap();
        others.frames.truncate(1);
        let frame = &mut others.frames[0];
        frame.boundary = if frame.boundary == SOMEWHERE { SOMEWHERE } else { boundary };
        (frame.position, frame.owner) = (u64::MAX / 2, OWNED_BY_GENERATOR);
        let at = frame.at;
        others.name_frames(&made.interpreter, &mut |_| CodeId(1)).unwrap();
        (others, at)
    }

    #[test]
    fn frames_are_used_only_if_the_sample_holds_the_innermost_one_and_outer_calls_have_not_changed() {
        for (layout, has_root) in layouts() {
            let mut made = interpreter(layout, has_root, 0x9e37_79b9);
            made.push();
            made.calls[0].is_first = true;
            made.write_frames();
            // The native frame of the evaluator is the third frame, at the addresses 1032 to 1048.
            let (mut others, at) = with_one_frame(&made, 1040);
            let of = &made.interpreter;
            let yes = Some("abpc".to_owned());
            for changed in [0, 32] {
                let another = Sample::new("abEc").merged(&mut others, of, changed);
                assert_eq!(another, None, "the thread may have been in another function, {changed}");
                assert_eq!(Sample::new("abEc").put(8, at).merged(&mut others, of, changed), yes, "{changed}");
            }
            assert_eq!(Sample::new("abEc").put(40, at).merged(&mut others, of, 32), yes);
            assert_eq!(
                Sample::new("abEc").put(48, at).merged(&mut others, of, 32),
                None,
                "the caller's frame"
            );
            let mut sample = Sample::new("abEc");
            sample.registers[3] = at;
            assert_eq!(sample.merged(&mut others, of, 32), yes);
            assert_eq!(sample.merged(&mut others, of, 33), None, "the evaluator has moved");
            let mut now = sample.stack.clone();
            now[48] ^= 1;
            assert_eq!(
                sample.merged_with(&mut others, of, now),
                yes,
                "the memory above the root does not count"
            );
        }
    }

    #[test]
    fn if_the_evaluators_own_frame_has_changed_the_sample_must_hold_an_address_in_the_instructions() {
        for (layout, has_root) in layouts() {
            let mut made = interpreter(layout, has_root, 0x9e37_79b9);
            made.push();
            made.calls[0].is_first = true;
            made.write_frames();
            let (mut others, at) = with_one_frame(&made, 1040);
            let of = &made.interpreter;
            let first = (others.frames[0].holds & !HOLD_BITS) + u64::from(layout.code.instructions);
            let after = first + 2 * INSTRUCTIONS;
            let expected = (layout.version >= 0x030b).then(|| "abpcd".to_owned());
            let mut merged = |word, changed| {
                let sample = Sample::new("abEcd").put(8, at).put(40, word);
                sample.merged(&mut others, of, changed)
            };
            // The native frame of the evaluator is at the bytes 32 to 48 of the copy.
            assert_eq!(
                [merged(first, 48), merged(after - 2, 48)],
                [expected.clone(), expected],
                "{layout:?}"
            );
            for other in [first - 2, after, 0] {
                assert_eq!(merged(other, 48), None, "another function was sampled, {layout:?}");
            }
            assert_eq!(merged(first, 49), None, "the caller's frame has changed, {layout:?}");
        }
    }

    #[test]
    fn an_evaluator_call_without_python_frames_rejects_the_frames_of_outer_calls() {
        for (layout, has_root) in layouts().into_iter().filter(|(layout, _)| layout.version >= 0x030b) {
            let mut made = interpreter(layout, has_root, 0x9e37_79b9);
            made.push();
            made.calls[0].is_first = true;
            made.write_frames();
            let (mut others, at) = with_one_frame(&made, 1040);
            let of = &made.interpreter;
            assert_eq!(
                Sample::new("EbEc").put(8, at).merged(&mut others, of, 0),
                None,
                "a call has ended since the sample"
            );
            assert_eq!(
                Sample::new("abEcEd").put(8, at).merged(&mut others, of, 0).as_deref(),
                Some("abpcEd"),
                "a greenlet"
            );
            let (mut others, at) = with_one_frame(&made, 900);
            assert_eq!(
                Sample::new("abEc").put(8, at).merged(&mut others, of, 0),
                None,
                "a call has begun since the sample"
            );
        }
    }

    #[test]
    fn a_label_replaces_the_calls_of_the_evaluator() {
        let made = interpreter(layouts()[4].0, false, 1);
        let native = Sample::new("aEbEcd").native;
        let mut out = Box::new([Frame(0); MAX_MERGED_FRAMES]);
        let count = label_not_read(&native, &made.interpreter, &mut out);
        let label = Frame::label(LabelId::PYTHON_NOT_READ);
        assert_eq!(out[..count], [native[0], label, native[4], native[5]]);
    }

    #[test]
    fn a_thread_without_a_state_is_not_looked_for_again_at_once_and_no_thread_has_number_0() {
        let number = [7_i32, 0];
        let of_thread = |at: usize| (&raw const number[at]) as u64;
        // The thread of this Python state has not started, so the kernel's thread id is still 0.
        let state = [0, of_thread(1)].map(AtomicU64::new);
        let listed = [0, state.as_ptr() as u64];
        let runtime = [listed.as_ptr() as u64];
        let mut made = interpreter(layouts()[0].0, layouts()[0].1, 1);
        made.interpreter.runtime = runtime.as_ptr() as u64;
        made.interpreter.thread_list =
            Some(ThreadList { interpreters: 0, next_interpreter: 0, threads: 8, next: 0, identity: 8 });
        let mut others = OtherThreads { number_offset: Some(0), ..OtherThreads::without_threads() };
        let mut find = |number| {
            others.pages.forget();
            others.state_of(number, &made.interpreter)
        };
        assert_eq!((find(0), find(7)), (None, None));
        state[1].store(of_thread(0), Ordering::Release);
        assert_eq!(find(7), None, "too early to search again");
        std::thread::sleep(ABSENT_FOR);
        assert_eq!(find(7), Some(state.as_ptr() as u64));
    }

    #[test]
    fn the_kernels_number_of_another_thread_is_found_from_its_number_in_the_c_library() {
        let offset = thread_number_offset().expect("an offset");
        // SAFETY: `pthread_self` and `gettid` have no preconditions.
        let numbers = || unsafe { (libc::pthread_self() as u64, libc::syscall(libc::SYS_gettid) as i32) };
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(numbers()).unwrap();
            let _ = ended.recv();
        });
        let (this, number) = receive.recv().unwrap();
        let mut found = [0; 4];
        assert!(copy_into(this + offset, &mut found));
        assert_eq!(i32::from_ne_bytes(found), number);
        drop(end);
        thread.join().unwrap();
    }
}
