//! Walks the Python frames of the calling thread, from the innermost frame outwards.
//!
//! Only the calling thread pushes and pops its own Python frames. During a walk, the thread is inside a function call,
//! and each frame holds a reference to its code object. Therefore the frames do not change during a walk, even if
//! another thread holds the GIL.
//!
//! The frames of the last walk are stored, root first. If the thread's innermost frame is the same as in the last walk,
//! the stored frames are only compared with memory. If the innermost frame differs, new frames are followed until they
//! lead to a frame of the last walk. The stored frames from the first common frame to the root are then compared with
//! memory. The comparisons are fast because their loads do not depend on each other. Stored frames are reused if they
//! are unchanged up to the root.

use super::code::{self, CodeFingerprint, CodeTable, CodeTexts, Description, Scratch, version_of};
use super::interpreter::Interpreter;
use super::layout::{self, Boundary, HOLD_BITS, Layout, OWNED_BY_EVALUATOR, OWNED_BY_GENERATOR, TYPE, Unit};
use super::pages::ReadablePages;
use crate::MAX_FRAMES;
use crate::memory::word;
use gpuflame_model::record::{CodeId, Frame};

/// A Python frame, with all data that later walks compare with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct InterpreterFrame {
    /// Two adjacent words of the frame (see [`layout::FrameLayout::link`]). One of the words links to the previous
    /// frame.
    link: u128,
    /// Fingerprint that identifies the code object if Python gave the object no version number.
    fingerprint: CodeFingerprint,
    /// Address of the frame.
    pub(super) at: u64,
    /// The frame's reference to its code object: the object's address, with tag bits in some versions.
    holds: u64,
    pub(super) position: u64,
    /// For the first frame of an evaluator call, an address on the C stack inside the native frame of that call, or
    /// [`SOMEWHERE`]. For any frame that does not start an evaluator call, 0.
    pub(super) boundary: u64,
    /// The frame as it is recorded in stacks. 0 if Python hides the frame, because hidden frames are not recorded.
    pub(super) frame: Frame,
    /// The version number that Python gave the code object; 0 if Python gave no number.
    version: u32,
    /// The owner byte of the frame. In versions in which another byte marks the first frame of an evaluator call, this
    /// field also contains that byte.
    owner: u16,
}

const _: () = assert!(
    size_of::<InterpreterFrame>() <= 128,
    "InterpreterFrame grew: every frame of every launch compares one (two cache lines)"
);

/// Returns the address of the code object to which `holds` refers. Masks tag bits only for layouts that may have tag
/// bits, so that the compiler can omit the mask for other layouts.
#[inline(always)]
fn code_of(holds: u64, layout: &Layout) -> u64 {
    match layout.frame.boundary {
        Boundary::Shim => holds & !HOLD_BITS,
        Boundary::Each | Boundary::Flag(_) => holds,
    }
}

impl InterpreterFrame {
    /// Whether this frame has the given code object reference and position, and the code object is unchanged.
    ///
    /// # Safety
    /// A frame must refer to the code object, or the code object must have been readable when this item was filled.
    #[inline(always)]
    unsafe fn is(&self, (holds, position): (u64, u64), layout: &Layout, texts: &mut CodeTexts) -> bool {
        // SAFETY: the caller guarantees that the code object's memory is readable.
        let is_same =
            holds == self.holds && position == self.position && unsafe { self.has_same_code(holds, layout) };
        // SAFETY: the code object was just found to be the same, apart from its texts.
        is_same && (self.version != 0 || unsafe { self.fingerprint.has_same_texts(layout, texts) })
    }

    /// Whether the frame still has the previous frame, code object, position and owner that it had in the last walk.
    /// Does not compare the texts of the code object.
    ///
    /// # Safety
    /// `at` must be the address of a frame.
    #[inline(always)]
    unsafe fn is_still(&self, layout: &Layout) -> bool {
        let layout::FrameLayout { link, code, position, .. } = layout.frame;
        // SAFETY: the caller guarantees that `at` is the address of a frame.
        let has_same_link = unsafe { pair(self.at + u64::from(link)) } == self.link;
        let is_linked = |part: u32| part == link || part == link + 8;
        has_same_link
            && (layout.frame.boundary == Boundary::Each || owner(self.at, layout) == self.owner)
            // SAFETY: the caller guarantees that `at` is the address of a frame.
            && (is_linked(code) || unsafe { word(self.at + u64::from(code)) } == self.holds)
            && (is_linked(position) || position_in(self.at, layout) == self.position)
            // SAFETY: the frame refers to this code object.
            && unsafe { self.has_same_code(self.holds, layout) }
    }

    /// Whether the memory at the code object's address still contains the same code object. Does not compare the texts
    /// of the object.
    ///
    /// # Safety
    /// A frame must refer to the code object by the word `holds`, or the code object must have been readable when this
    /// item was filled.
    #[inline(always)]
    unsafe fn has_same_code(&self, holds: u64, layout: &Layout) -> bool {
        match if layout.code.version == 0 { 0 } else { self.version } {
            // SAFETY: the caller guarantees that the code object's memory is readable.
            0 => unsafe { self.fingerprint.matches_except_texts(code_of(holds, layout), layout) },
            // SAFETY: the caller guarantees that the code object's memory is readable.
            version => unsafe { version_of(code_of(holds, layout), layout) == version },
        }
    }
}

/// Reads the sixteen bytes that start at this address.
///
/// # Safety
/// The sixteen bytes must be readable.
#[inline(always)]
unsafe fn pair(address: u64) -> u128 {
    // SAFETY: the caller guarantees that the bytes are readable, and this kind of read needs no alignment.
    unsafe { (address as *const u128).read_unaligned() }
}

/// Returns the owner byte of a readable frame. In versions in which another byte marks the first frame of an evaluator
/// call, also returns that byte.
#[inline(always)]
fn owner(frame: u64, layout: &Layout) -> u16 {
    let owner = frame + u64::from(layout.frame.owner);
    match layout.frame.boundary {
        Boundary::Each => 0,
        // SAFETY: the caller has checked that the frame is readable.
        Boundary::Shim => unsafe { (owner as *const u8).read() }.into(),
        // SAFETY: the caller has checked that the frame is readable.
        Boundary::Flag(flag) => unsafe { ((frame + u64::from(flag)) as *const u16).read_unaligned() },
    }
}

/// Returns the position of a readable frame in its code object.
#[inline(always)]
fn position_in(frame: u64, layout: &Layout) -> u64 {
    // SAFETY: the caller has checked that the frame is readable.
    let position = unsafe { word(frame + u64::from(layout.frame.position)) };
    match layout.frame.unit {
        Unit::Index(_) => u64::from(position as u32),
        Unit::Address => position,
    }
}

impl InterpreterFrame {
    /// Creates a frame that is used only for merging stacks, and lacks the data that walks compare.
    pub(super) fn for_merge(at: u64, frame: Frame, boundary: u64) -> Self {
        let (link, holds, position, version, owner) = (0, 0, 0, 0, 0);
        Self {
            at,
            link,
            holds,
            position,
            boundary,
            frame,
            version,
            owner,
            fingerprint: CodeFingerprint::default(),
        }
    }
}

/// Returns the frame in the form in which stacks contain it. The Python frame executes the instruction at `position` of
/// the code object at `code`. `number` and `traceable` describe this code object (see `CachedCode`). Returns 0 if
/// Python hides the frame.
#[inline(always)]
pub(super) fn recorded_frame(
    (code, position): (u64, u64),
    may_be_incomplete: bool,
    (number, traceable): (u32, u32),
    layout: &Layout,
) -> Frame {
    let first = code.wrapping_add(u64::from(layout.code.instructions));
    let into = match layout.frame.unit {
        // The position is -1 if the frame has not started yet.
        Unit::Index(unit) => u64::from((position as i32).max(0) as u32 * unit),
        // If the frame has not started yet, the position is one unit before the first instruction.
        Unit::Address => (position.wrapping_sub(first) as i64).max(0) as u64,
    };
    let is_incomplete = may_be_incomplete
        && layout.frame.unit == Unit::Address
        && (position.wrapping_sub(first) as i64) < i64::from(traceable);
    match is_incomplete {
        true => Frame(0),
        false => Frame::python(CodeId(number), u32::try_from(into).unwrap_or(u32::MAX)),
    }
}

/// Boundary of a frame whose evaluator call is at an unknown address on the C stack.
pub(super) const SOMEWHERE: u64 = 1;

/// The reason why a walk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkError {
    /// A pointer that should lead to a frame or code object led to something else.
    Garbage,
    /// The kernel refused to map memory.
    Memory,
}

/// State that a thread keeps between walks. Zeroed memory is a valid state, except for the field `table`.
#[repr(C)]
pub(super) struct PythonWalk {
    pub(super) table: CodeTable,
    /// Number of `items` that the last walk has filled.
    pub(super) count: usize,
    pub(super) is_cut: bool,
    /// Number of frames at the root that are the same, with the same positions, in the last walk and the walk before
    /// it.
    pub(super) unchanged: usize,
    pub(super) head: ThreadHead,
    pages: ReadablePages,
    pub(super) texts: CodeTexts,
    /// The frames of the last walk, root first.
    pub(super) items: [InterpreterFrame; MAX_FRAMES],
    /// The frames that a walk has followed so far, leaf first.
    links: [Link; MAX_FRAMES],
    /// For each slot that [`slot_of`] computes from a frame's address, the index of an item that may be that frame. The
    /// index is only a hint, so it must be checked.
    slots: [u16; SLOT_COUNT],
    scratch: Scratch,
}

const SLOT_COUNT: usize = 256;

/// Returns the index in `slots` for the frame at the address `frame`.
#[inline(always)]
fn slot_of(frame: u64) -> usize {
    (frame.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

/// A frame that the present walk has followed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Link {
    at: u64,
    boundary: u64,
}

/// The starting point of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct ThreadHead {
    /// Address of the thread state. 0 if this walk was cut or needed unreadable memory, because later walks must not
    /// be compared with such a walk.
    pub(super) thread: u64,
    cframe: u64,
    /// Address of the evaluator's frame around the outermost function, or 0 if there is no such frame.
    root: u64,
}

/// The starting point and the frames of an earlier walk. The methods check whether the thread is still in the same
/// frames.
pub(super) struct ReachedFrames<F> {
    pub(super) head: ThreadHead,
    pub(super) count: usize,
    /// Function that returns a frame by its index from the root.
    pub(super) item: F,
}

impl<'a, F: Fn(usize) -> &'a InterpreterFrame> ReachedFrames<F> {
    /// Whether the thread is still in the frames of the earlier walk, that is, whether its frames have the same
    /// addresses, functions and positions. Does not compare the functions' texts.
    #[inline(always)]
    pub(super) fn are_still(&self, interpreter: &Interpreter, thread: u64) -> bool {
        // For CPython versions before 3.12, a walk compares more fields. To save ten instructions per frame, all
        // offsets of these versions are passed as constants.
        match interpreter.layout.version {
            0x0309 => self.are_still_by(const { &Layout::from_headers(0x0309) }, thread),
            0x030a => self.are_still_by(const { &Layout::from_headers(0x030a) }, thread),
            0x030b => self.are_still_by(const { &Layout::from_headers(0x030b) }, thread),
            _ => self.are_still_by(&interpreter.layout.with_shim_constants(), thread),
        }
    }

    #[inline(always)]
    fn are_still_by(&self, layout: &Layout, thread: u64) -> bool {
        let Self { count, head, ref item } = *self;
        if count == 0 || head.thread != thread {
            return false;
        }
        // SAFETY: all of this memory was readable at the earlier walk, at the same addresses.
        let part = |object: u64, offset: u32| unsafe { word(object + u64::from(offset)) };
        let mut at = part(thread, layout.thread);
        let mut cframe = 0;
        if let Some(parts) = layout.cframe {
            cframe = at;
            if cframe != head.cframe {
                return false;
            }
            at = part(cframe, parts.frame);
        }
        // SAFETY: the thread's innermost frame is at the same address as in the earlier walk.
        item(count - 1).at == at && unsafe { self.changed(layout, &mut cframe) } == 0
    }

    /// Returns the number of frames from the root up to and including the innermost changed frame, or 0 if no frame has
    /// changed. On entry, `cframe` must be the address of the innermost frame's cframe. On return, `cframe` is the
    /// address of the changed frame's cframe.
    ///
    /// All memory that the earlier walk read must have been readable then, and the thread's frames must lead to the
    /// innermost frame.
    #[inline(always)]
    unsafe fn changed(&self, layout: &Layout, cframe: &mut u64) -> usize {
        // SAFETY: all of this memory was readable at the earlier walk, at the same addresses.
        let part = |object: u64, offset: u32| unsafe { word(object + u64::from(offset)) };
        // SAFETY: all of this memory was readable at the earlier walk, at the same addresses.
        let byte = |object: u64, offset: u32| unsafe { ((object + u64::from(offset)) as *const u8).read() };
        // The addresses of all frames are known from the earlier walk, so no load has to wait for the result of
        // another load.
        for index in (0..self.count).rev() {
            let item = (self.item)(index);
            // SAFETY: this is a frame of the thread, because the previously compared frame links to it.
            if !unsafe { item.is_still(layout) } {
                return index + 1;
            }
            match layout.frame.boundary {
                Boundary::Each => {}
                Boundary::Shim if item.boundary == 0 => {}
                // The frame is not the first frame of its evaluator call, so `cframe` stays the same. (The flag itself
                // was compared as a part of the frame.) In the other match arms, the cframe was readable at the earlier
                // walk, or no field of the cframe is read.
                Boundary::Flag(_) if owner(item.at, layout).to_ne_bytes()[0] == 0 => {}
                Boundary::Shim => {
                    let next = index.checked_sub(1).map_or(self.head.root, |before| (self.item)(before).at);
                    let shim = item.boundary;
                    let is_shim = byte(shim, layout.frame.owner) >= OWNED_BY_EVALUATOR;
                    if !is_shim || part(shim, layout.frame.previous) != next {
                        return index + 1;
                    }
                }
                Boundary::Flag(_) => {
                    if item.boundary != *cframe {
                        return index + 1;
                    }
                    if let Some(parts) = layout.cframe {
                        *cframe = part(*cframe, parts.previous);
                    }
                }
            }
        }
        0
    }

    /// Does the same as [`ReachedFrames::changed`]. For CPython 3.11, passes all offsets as constants. For 3.12 and
    /// later, passes as constants the offsets that are equal in all these versions.
    ///
    /// # Safety
    /// The conditions of [`ReachedFrames::changed`] apply.
    #[inline(always)]
    unsafe fn changed_in(&self, layout: &Layout, cframe: &mut u64) -> usize {
        // SAFETY: the caller guarantees the conditions of [`ReachedFrames::changed`].
        unsafe {
            match layout.version {
                0x030b => self.changed(const { &Layout::from_headers(0x030b) }, cframe),
                0x030c.. => self.changed(&layout.with_shim_constants(), cframe),
                _ => self.changed(layout, cframe),
            }
        }
    }
}

impl PythonWalk {
    /// Whether the thread's frames are the same as in the last walk, including the texts of their functions.
    #[inline(always)]
    pub(super) fn is_as_before(&mut self, interpreter: &Interpreter, thread: u64) -> bool {
        // SAFETY: the texts belong to code objects that were just found to be the same.
        self.reached(self.count).are_still(interpreter, thread)
            && unsafe { self.texts.are_as_before(&interpreter.layout) }
    }

    /// Returns the starting point and the first `count` frames (from the root) of the last walk.
    #[inline(always)]
    fn reached<'a>(&'a self, count: usize) -> ReachedFrames<impl Fn(usize) -> &'a InterpreterFrame> {
        let items = &self.items[..count];
        ReachedFrames { head: self.head, count: items.len(), item: move |index: usize| &items[index] }
    }

    /// Walks along the frames, and returns whether they are the same as in the last walk. `number` returns the id for
    /// a code object that is new to the thread.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        interpreter: &Interpreter,
        thread: u64,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<bool, WalkError> {
        // The entries of the code table refer to texts by index, so all entries must be dropped together with the
        // texts.
        if self.texts.are_full() {
            self.table = CodeTable::new().ok_or(WalkError::Memory)?;
            self.texts.clear();
            self.forget();
        }
        let (joined, new) = self.follow(interpreter, thread)?;
        let count = joined + new;
        self.texts.forget();
        let same = self.count_with_same_texts(joined, &interpreter.layout);
        let mut unchanged = same;
        for item in same..count {
            let link = match item < joined {
                true => Link { at: self.items[item].at, boundary: self.items[item].boundary },
                false => self.links[count - 1 - item],
            };
            let is_same = self.visit(item, link, interpreter, number)?;
            unchanged += usize::from(is_same && unchanged == item);
        }
        let is_same = unchanged == count && count == self.count;
        (self.unchanged, self.count) = (unchanged, count);
        Ok(is_same)
    }

    /// Returns the number of frames, counted from the root, before the first frame with changed texts. The first
    /// `joined` frames from the root are the same as in the last walk, except perhaps for their texts.
    #[inline(always)]
    fn count_with_same_texts(&mut self, joined: usize, layout: &Layout) -> usize {
        let Self { items, texts, .. } = self;
        let is_other = |item: &InterpreterFrame| {
            // SAFETY: all other parts of the fingerprints were just found to be unchanged.
            item.version == 0 && !unsafe { item.fingerprint.has_same_texts(layout, texts) }
        };
        items[..joined].iter().position(is_other).unwrap_or(joined)
    }

    /// Follows the frames to the root, or until all remaining frames are unchanged since the last walk. Returns the
    /// number of unchanged frames at the root, and the number of frames that were followed.
    #[inline(always)]
    fn follow(&mut self, interpreter: &Interpreter, thread: u64) -> Result<(usize, usize), WalkError> {
        let layout = &interpreter.layout.frame;
        let last = self.head;
        // Number of the last walk's frames that this walk may still reach.
        let mut known = if last.thread == thread { self.count } else { 0 };
        let mut cframe = 0;
        let mut at = self.word(thread, interpreter.layout.thread)?;
        if let Some(parts) = interpreter.layout.cframe {
            cframe = at;
            // A thread state that is being constructed has no cframe yet.
            at = if cframe == 0 { 0 } else { self.word_of(cframe, parts.bytes, parts.frame)? };
        }
        let (mut count, mut shims) = (0, 0);
        // During the walk, the head still contains the root of the last walk, because frames are compared with that
        // walk.
        let mut root = 0;
        (self.is_cut, self.head) = (false, ThreadHead { thread, cframe, root: last.root });
        while at != 0 {
            let index = usize::from(self.slots[slot_of(at)]);
            // A walk joins the last walk (reuses the rest of its frames) only if the stack is certainly not deeper
            // than `MAX_FRAMES`. The outermost frames of a deeper stack are omitted, so a walk of a stack that may be
            // deeper follows the frames up to this limit.
            if index < known && count + index < MAX_FRAMES && self.items[index].at == at {
                // SAFETY: the frames led to a frame that the last walk reached, and all memory that the last walk read
                // was readable.
                let left = unsafe { self.reached(index + 1).changed_in(&interpreter.layout, &mut cframe) };
                if left == 0 {
                    return Ok((index + 1, count));
                }
                for item in self.items[left..=index].iter().rev() {
                    self.links[count] = Link { at: item.at, boundary: item.boundary };
                    count += 1;
                }
                known = left - 1;
                at = self.items[known].at;
            }
            if !self.pages.are_readable(at, layout.bytes) {
                return Err(WalkError::Garbage);
            }
            // SAFETY: `layout.bytes` bytes of the frame are readable.
            let byte = |offset: u32| unsafe { ((at + u64::from(offset)) as *const u8).read() };
            // SAFETY: `layout.bytes` bytes of the frame are readable.
            let next = unsafe { word(at + u64::from(layout.previous)) };
            if layout.boundary == Boundary::Shim && byte(layout.owner) >= OWNED_BY_EVALUATOR {
                // Count the evaluator's frames, because in a corrupted chain they may form a cycle.
                shims += 1;
                if shims > 2 * MAX_FRAMES {
                    return Err(WalkError::Garbage);
                }
                match self.links[..count].last_mut() {
                    Some(link) if link.boundary == 0 => link.boundary = at,
                    // This frame of the evaluator is the outermost frame, or belongs to an evaluator call in which no
                    // function has a frame.
                    _ => root = at,
                }
                at = next;
                continue;
            }
            root = 0;
            if count == MAX_FRAMES {
                (self.is_cut, self.head.thread) = (true, 0);
                break;
            }
            let boundary = match layout.boundary {
                Boundary::Each => SOMEWHERE,
                Boundary::Flag(flag) if byte(flag) != 0 => {
                    let call = cframe;
                    if let Some(parts) = interpreter.layout.cframe {
                        let around = self.word_of(cframe, parts.bytes, parts.previous);
                        self.head.thread = if around.is_ok() { self.head.thread } else { 0 };
                        cframe = around.unwrap_or(SOMEWHERE);
                    }
                    call
                }
                Boundary::Flag(_) | Boundary::Shim => 0,
            };
            self.links[count] = Link { at, boundary };
            count += 1;
            at = next;
        }
        self.head.root = root;
        Ok((0, count))
    }

    /// Stores the frame at `link` in the item with the index `item`. Returns true if the last walk had the same frame
    /// in this item.
    #[inline(always)]
    fn visit(
        &mut self,
        item: usize,
        link: Link,
        interpreter: &Interpreter,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<bool, WalkError> {
        let layout = &interpreter.layout;
        // SAFETY: the frame was followed, so `bytes` bytes of the frame are readable.
        let part = |offset: u32| unsafe { word(link.at + u64::from(offset)) };
        let owner = owner(link.at, layout);
        let (holds, position) = (part(layout.frame.code), position_in(link.at, layout));
        // SAFETY: the frame is readable; memory of the last walk's code object is read only if the frame still refers
        // to that object.
        let is_reached =
            item < self.count && unsafe { self.items[item].is((holds, position), layout, &mut self.texts) };
        if !is_reached {
            if layout.frame.boundary == Boundary::Each && part(TYPE as u32) != interpreter.types.frame {
                return Err(WalkError::Garbage);
            }
            // SAFETY: the frame was followed, so `bytes` bytes of it are readable.
            let holder = unsafe { ((link.at + u64::from(layout.frame.owner)) as *const u8).read() };
            let may_be_incomplete = holder != OWNED_BY_GENERATOR;
            self.fill(item, (holds, position), may_be_incomplete, interpreter, number)?;
        }
        self.slots[slot_of(link.at)] = item as u16;
        let item = &mut self.items[item];
        let is_same = is_reached && item.boundary == link.boundary;
        (item.at, item.boundary, item.owner) = (link.at, link.boundary, owner);
        // SAFETY: the frame was followed, so `bytes` bytes of it are readable.
        item.link = unsafe { pair(link.at + u64::from(layout.frame.link)) };
        Ok(is_same)
    }

    /// Returns the address and position of a thread's innermost Python frame.
    #[inline(always)]
    pub(super) fn innermost(&mut self, interpreter: &Interpreter, thread: u64) -> Option<(u64, u64)> {
        let layout = &interpreter.layout;
        let mut at = self.word(thread, layout.thread).ok()?;
        if let Some(parts) = layout.cframe {
            at = if at == 0 { 0 } else { self.word_of(at, parts.bytes, parts.frame).ok()? };
        }
        (at != 0 && self.pages.are_readable(at, layout.frame.bytes)).then(|| (at, position_in(at, layout)))
    }

    /// Forgets the last walk.
    pub(super) fn forget(&mut self) {
        (self.count, self.unchanged) = (0, 0);
    }

    /// Reads the word at `offset` of an object, after checking that the word is readable.
    fn word(&mut self, object: u64, offset: u32) -> Result<u64, WalkError> {
        self.word_of(object, offset + 8, offset)
    }

    /// Reads the word at `offset` of an object, after checking that the first `bytes` bytes of the object are
    /// readable.
    #[inline(always)]
    fn word_of(&mut self, object: u64, bytes: u32, offset: u32) -> Result<u64, WalkError> {
        if !self.pages.are_readable(object, bytes) {
            return Err(WalkError::Garbage);
        }
        // SAFETY: `bytes` bytes of the object are readable.
        Ok(unsafe { word(object + u64::from(offset)) })
    }

    /// Fills an item completely, without reusing data of the last walk.
    #[inline(never)]
    fn fill(
        &mut self,
        item: usize,
        (holds, position): (u64, u64),
        may_be_incomplete: bool,
        interpreter: &Interpreter,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<(), WalkError> {
        let code = holds & !HOLD_BITS;
        let slot = self.find(code, interpreter, number)?;
        let cached = self.table.get(slot);
        let frame = recorded_frame(
            (code, position),
            may_be_incomplete,
            (cached.number, cached.traceable),
            &interpreter.layout,
        );
        let InterpreterFrame { at, link, boundary, owner, .. } = self.items[item];
        self.items[item] = InterpreterFrame {
            at,
            link,
            holds,
            position,
            boundary,
            frame,
            version: cached.version,
            owner,
            fingerprint: cached.fingerprint,
        };
        Ok(())
    }

    /// Returns the slot of the code object in the thread's table. Adds the object to the table if the object is new, or
    /// if the slot contains another object that was at the same address.
    fn find(
        &mut self,
        code: u64,
        interpreter: &Interpreter,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<u32, WalkError> {
        let slot = self.table.find(code);
        // SAFETY: an earlier walk reached a code object at this address, and a frame holds a reference to the object.
        match unsafe { self.table.get(slot).matches(code, &interpreter.layout, &mut self.texts) } {
            true => Ok(slot),
            false => self.add_code(code, interpreter, number),
        }
    }

    #[cold]
    fn add_code(
        &mut self,
        code: u64,
        interpreter: &Interpreter,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<u32, WalkError> {
        let Interpreter { layout, types, .. } = interpreter;
        let (mut cached, description) =
            code::read(code, layout, types, &mut self.scratch, &mut self.texts).ok_or(WalkError::Garbage)?;
        cached.number = number(description).0;
        if self.table.is_full() && !self.table.reserve() {
            return Err(WalkError::Memory);
        }
        let slot = self.table.find(code);
        self.table.set(slot, cached);
        Ok(slot)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use super::super::interpreter::Types;
    use super::super::layout::{BYTES, CFrame, FIRST_WITH_HOLD_BITS, HASH, LENGTH, STATE};
    use super::*;
    use crate::memory;

    const TYPES: Types = Types { code: 0x1001, text: 0x1002, bytes: 0x1003, frame: 0x1004 };
    const SLOTS: usize = 1100;
    const CODES: usize = 12;
    /// Size in bytes of the memory of each synthetic object.
    const ROOM: u64 = 256;

    /// A function call that the synthetic interpreter is evaluating.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::python) struct Call {
        slot: usize,
        code: usize,
        /// Number of instructions evaluated so far.
        position: u64,
        is_generator: bool,
        /// Whether the function's frame is the first frame of an evaluator call.
        pub(in crate::python) is_first: bool,
    }

    /// Number of instructions of each code object, if its instructions are inside the object.
    pub(in crate::python) const INSTRUCTIONS: u64 = 12;

    /// A synthetic interpreter with one thread, in memory that does not move.
    pub(in crate::python) struct FakeInterpreter {
        pub(in crate::python) interpreter: Interpreter,
        memory: Box<[u64]>,
        /// The function calls that the synthetic thread is in, root first.
        pub(in crate::python) calls: Vec<Call>,
        has_root: bool,
        random: u64,
    }

    extern "C" fn no_thread() -> *mut u8 {
        std::ptr::null_mut()
    }

    impl FakeInterpreter {
        pub(in crate::python) fn new(layout: Layout, has_root: bool, random: u64) -> Self {
            let evaluator = [0..0, 0..0];
            let interpreter = Interpreter {
                layout,
                runtime: 0,
                runtime_bytes: 0,
                thread_list: None,
                this_thread: no_thread,
                types: TYPES,
                evaluator,
            };
            let memory = vec![0; (2 + 3 * SLOTS + 4 * CODES) * ROOM as usize / 8].into();
            let mut made = Self { interpreter, memory, calls: Vec::new(), has_root, random };
            for code in 0..CODES {
                made.write_code(code);
            }
            made
        }

        pub(in crate::python) fn below(&mut self, end: usize) -> usize {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 20) as usize % end.max(1)
        }

        fn at(&self, part: usize) -> u64 {
            self.memory.as_ptr() as u64 + part as u64 * ROOM
        }

        pub(in crate::python) fn thread(&self) -> u64 {
            self.at(0)
        }

        fn frame(&self, slot: usize) -> u64 {
            self.at(2 + slot)
        }

        fn shim(&self, slot: usize) -> u64 {
            self.at(2 + SLOTS + slot)
        }

        fn cframe(&self, number: usize) -> u64 {
            self.at(2 + 2 * SLOTS + number)
        }

        /// Returns the address of a code object (if `part` is 0), of its name (1), of its line table (2) or of its
        /// path (3).
        fn code(&self, code: usize, part: usize) -> u64 {
            self.at(2 + 3 * SLOTS + part * CODES + code)
        }

        fn set(&mut self, address: u64, offset: u64, bytes: &[u8]) {
            let at = (address + offset - self.at(0)) as usize;
            // SAFETY: the slice covers exactly the allocated memory.
            let all = unsafe {
                std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast::<u8>(), 8 * self.memory.len())
            };
            all[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn word(&mut self, address: u64, offset: impl Into<u64>, word: u64) {
            self.set(address, offset.into(), &word.to_ne_bytes());
        }

        fn text(&mut self, text: u64, has_hash: bool, letters: &str) {
            let start = self.interpreter.layout.text.ascii;
            self.word(text, TYPE, TYPES.text);
            self.word(text, LENGTH, letters.len() as u64);
            let hash = letters.bytes().fold(7_u64, |hash, letter| hash.wrapping_mul(31) + u64::from(letter));
            self.word(text, HASH, if has_hash { hash } else { u64::MAX });
            self.word(text, STATE, 1 << 2 | 1 << 5 | 1 << 6);
            self.set(text, start.into(), letters.as_bytes());
        }

        /// Overwrites a code object by the code object of another function.
        fn write_code(&mut self, code: usize) {
            let layout = self.interpreter.layout;
            let [object, name, lines, path] = [0, 1, 2, 3].map(|part| self.code(code, part));
            let path = if code.is_multiple_of(3) { path } else { self.code(0, 3) };
            let number = 100 + self.below(900) as u64;
            self.text(
                name,
                layout.version != 0x030b || code.is_multiple_of(2),
                &format!("function_{number}"),
            );
            self.text(path, true, "/a/path/of/a/module.py");
            self.word(lines, TYPE, TYPES.bytes);
            self.word(lines, LENGTH, 16);
            self.word(lines, BYTES, number);
            self.word(object, TYPE, TYPES.code);
            if layout.code.instructions != 0 {
                self.word(object, LENGTH, INSTRUCTIONS);
            }
            self.word(object, layout.code.name, name);
            self.word(object, layout.code.file, path);
            self.word(object, layout.code.lines, lines);
            self.set(object, layout.code.first_line.into(), &(number as u32).to_ne_bytes());
            if layout.code.traceable != 0 {
                self.set(object, layout.code.traceable.into(), &2_u32.to_ne_bytes());
            }
            if layout.code.version != 0 {
                // The last code object has no version number.
                let version = if code == CODES - 1 { 0 } else { number as u32 };
                self.set(object, layout.code.version.into(), &version.to_ne_bytes());
            }
        }

        pub(in crate::python) fn write_frames(&mut self) {
            let layout = self.interpreter.layout;
            let (mut before, mut cframes) = (0, 0);
            if self.has_root {
                before = self.at(1);
                self.set(before, layout.frame.owner.into(), &[OWNED_BY_EVALUATOR]);
            }
            for call in self.calls.clone() {
                let frame = self.frame(call.slot);
                let owner = if call.is_generator { OWNED_BY_GENERATOR } else { 0 };
                let code = self.code(call.code, 0);
                match layout.frame.boundary {
                    Boundary::Each => self.word(frame, TYPE, TYPES.frame),
                    Boundary::Shim if call.is_first => {
                        let shim = self.shim(call.slot);
                        self.word(shim, layout.frame.previous, before);
                        self.set(shim, layout.frame.owner.into(), &[OWNED_BY_EVALUATOR]);
                        before = shim;
                    }
                    Boundary::Shim => {}
                    Boundary::Flag(flag) => self.set(frame, flag.into(), &[call.is_first.into()]),
                }
                if layout.frame.boundary != Boundary::Each {
                    self.set(frame, layout.frame.owner.into(), &[owner]);
                }
                self.word(frame, layout.frame.previous, before);
                let hold = if layout.version < FIRST_WITH_HOLD_BITS { 0 } else { call.slot as u64 & 1 };
                self.word(frame, layout.frame.code, code | hold);
                let position = match layout.frame.unit {
                    Unit::Index(_) => call.position,
                    Unit::Address => code + u64::from(layout.code.instructions) + 2 * call.position,
                };
                self.word(frame, layout.frame.position, position);
                before = frame;
                if let (Some(parts), true) = (layout.cframe, call.is_first) {
                    cframes += 1;
                    let (cframe, around) = (self.cframe(cframes), self.cframe(cframes - 1));
                    self.word(cframe, parts.previous, around);
                }
            }
            let mut first = before;
            if let Some(CFrame { frame, .. }) = layout.cframe {
                first = self.cframe(cframes);
                self.word(first, frame, before);
            }
            self.word(self.thread(), layout.thread, first);
        }

        fn new_call(&mut self) -> Option<Call> {
            let slots = if self.calls.len() > 100 { SLOTS } else { self.calls.len() + 8 };
            let slot = self.below(slots);
            let (code, position) = (self.below(CODES), self.below(6) as u64);
            let is_first = self.calls.is_empty() || self.below(4) == 0;
            let is_generator = position > 2 && self.below(4) == 0;
            let is_free = self.calls.iter().all(|call| call.slot != slot);
            is_free.then_some(Call { slot, code, position, is_generator, is_first })
        }

        /// Executes an instruction of the innermost function.
        pub(in crate::python) fn step_leaf(&mut self) {
            self.calls.iter_mut().last().into_iter().for_each(|call| call.position += 1);
        }

        pub(in crate::python) fn push(&mut self) {
            let call = self.new_call();
            self.calls.extend(call);
        }

        /// Changes the frames at random, like a program between two launches.
        pub(in crate::python) fn step_program(&mut self) {
            let count = self.calls.len();
            let (leaf, any) = (count.saturating_sub(1), self.below(count));
            match self.below(12) {
                0 | 1 if count > 0 => self.calls[leaf].position += 1,
                2 if count > 0 => self.calls[any].position += 1,
                3 if any > 0 => self.calls[any].is_first ^= true,
                4 if count > 0 => drop(self.calls.remove(any)),
                5 if count > 0 => {
                    let slots = (self.calls[any].slot, self.calls[leaf].slot);
                    (self.calls[leaf].slot, self.calls[any].slot) = slots;
                }
                6 => {
                    if let Some(call) = self.new_call() {
                        self.calls.insert(any, call);
                    }
                }
                7 => {
                    let code = self.below(CODES);
                    self.write_code(code);
                }
                // Skip layouts with version numbers, because Python assigns a new version number to a code object with
                // a different path.
                8 if self.interpreter.layout.code.version == 0 => {
                    self.text(self.code(0, 3), true, "/a/path/of/another/one")
                }
                9 => self.calls.truncate(any + 1),
                10 => {}
                _ => {
                    let kept = count.saturating_sub(self.below(4));
                    self.calls.truncate(kept);
                    for _ in 0..self.below(5) {
                        self.push();
                    }
                }
            }
            if let Some(first) = self.calls.first_mut() {
                first.is_first = true;
            }
            self.write_frames();
        }
    }

    /// A thread's walk state in its own memory mapping, as in `PythonUnwinder`.
    pub(in crate::python) struct MappedWalk(std::ptr::NonNull<PythonWalk>);

    impl MappedWalk {
        pub(in crate::python) fn new() -> Self {
            let walk = memory::map(size_of::<PythonWalk>()).unwrap().cast::<PythonWalk>();
            // SAFETY: the fresh mapping has room for the walk state, and all other fields are valid as zeroes.
            unsafe { (&raw mut (*walk.as_ptr()).table).write(CodeTable::new().unwrap()) };
            Self(walk)
        }

        pub(in crate::python) fn walk(&mut self) -> &mut PythonWalk {
            // SAFETY: the walk state stays mapped until `drop`.
            unsafe { self.0.as_mut() }
        }
    }

    impl Drop for MappedWalk {
        fn drop(&mut self) {
            // SAFETY: the mapping is released only here, and its table is dropped only here.
            unsafe {
                (&raw mut (*self.0.as_ptr()).table).drop_in_place();
                memory::unmap(self.0.cast(), size_of::<PythonWalk>());
            }
        }
    }

    #[derive(Default)]
    pub(in crate::python) struct Numbers(HashMap<Vec<u8>, u32>);

    impl Numbers {
        pub(in crate::python) fn of(&mut self, description: Description<'_>) -> CodeId {
            let next = self.0.len() as u32 + 1;
            CodeId(*self.0.entry(description.0.to_vec()).or_insert(next))
        }
    }

    /// Returns all results of a walk, in a form that can be compared.
    fn found(walk: &PythonWalk) -> impl PartialEq + std::fmt::Debug + use<> {
        let item = |item: &InterpreterFrame| {
            let InterpreterFrame { at, link, holds, position, boundary, frame, version, owner, .. } = *item;
            ((at, link, holds, position), (boundary, frame.0, version, owner))
        };
        let head = (walk.head.thread, walk.head.cframe, walk.head.root);
        (head, walk.is_cut, walk.items[..walk.count].iter().map(item).collect::<Vec<_>>())
    }

    pub(in crate::python) fn words(walk: &PythonWalk) -> Vec<(u64, bool)> {
        walk.items[..walk.count].iter().map(|item| (item.frame.0, item.boundary != 0)).collect()
    }

    /// Returns all kinds of layouts. The flag of each layout is true if the outermost frame belongs to the evaluator
    /// and not to a function.
    pub(in crate::python) fn layouts() -> [(Layout, bool); 8] {
        let of = Layout::from_headers;
        let shims = Layout { cframe: None, ..of(0x030c) };
        let without = layout::CodeLayout { version: 0, ..shims.code };
        [
            (of(0x0309), false),
            (of(0x030a), false),
            (of(0x030b), false),
            (of(0x030c), false),
            (Layout { version: 0x030d, ..shims }, false),
            (Layout { version: 0x030d, code: without, ..shims }, false),
            (Layout { version: 0x030e, ..shims }, false),
            (Layout { version: 0x030f, ..shims }, true),
        ]
    }

    /// Compares walks that reuse the last walk with walks that reuse nothing. Returns the number of walks that reused
    /// some frames of the last walk although other frames had changed.
    fn compare(made: &mut FakeInterpreter, steps: usize) -> usize {
        let (mut again, mut numbers) = (MappedWalk::new(), Numbers::default());
        let walk = again.walk();
        let (thread, mut joined) = (made.thread(), 0);
        for step in 0..steps {
            made.step_program();
            let before = words(walk);
            let is_same = walk.is_as_before(&made.interpreter, thread)
                || walk.run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
            let mut anew = MappedWalk::new();
            let is_nothing_known =
                anew.walk().run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
            assert_eq!(is_nothing_known, made.calls.is_empty());
            let about = (step, made.interpreter.layout.version, &made.calls);
            assert_eq!(found(walk), found(anew.walk()), "{about:?}");
            let places = made.calls.iter().rev().take(MAX_FRAMES).rev().map(|call| made.frame(call.slot));
            assert!(places.eq(walk.items[..walk.count].iter().map(|item| item.at)), "{about:?}");
            let now = words(walk);
            assert!(!is_same || now == before, "{about:?}");
            if !is_same {
                assert_eq!(now[..walk.unchanged], before[..walk.unchanged], "{about:?}");
                joined += usize::from(walk.unchanged > 0);
            }
        }
        joined
    }

    #[test]
    fn a_walk_that_joins_the_previous_one_equals_a_full_walk() {
        for (layout, has_root) in layouts() {
            for seed in 1..6 {
                let mut made = FakeInterpreter::new(layout, has_root, seed * 0x9e37_79b9);
                let joined = compare(&mut made, 400);
                assert!(joined > 100, "{joined}");
            }
        }
    }

    #[test]
    fn a_joined_walk_equals_a_full_walk_at_the_frame_limit() {
        for (layout, has_root) in layouts() {
            let mut made = FakeInterpreter::new(layout, has_root, 0x9e37_79b9);
            while made.calls.len() < MAX_FRAMES - 4 {
                made.push();
            }
            for _ in 0..4 {
                let count = made.calls.len();
                compare(&mut made, 12);
                while made.calls.len() < count + 2 {
                    made.push();
                }
            }
        }
    }

    #[test]
    fn only_new_leaf_frames_are_walked() {
        for (layout, has_root) in layouts() {
            let mut made = FakeInterpreter::new(layout, has_root, 0x9e37_79b9);
            while made.calls.len() < 20 {
                made.push();
            }
            made.calls[0].is_first = true;
            made.write_frames();
            let (mut mapped, mut numbers) = (MappedWalk::new(), Numbers::default());
            let (walk, thread) = (mapped.walk(), made.thread());
            walk.run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
            made.calls[18].position += 1;
            made.calls[19].code += 1;
            made.write_frames();
            assert_eq!(walk.follow(&made.interpreter, thread), Ok((18, 2)), "{layout:?}");
        }
    }
}
