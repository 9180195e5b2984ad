//! The walk along the frames of the calling thread, from the innermost one.
//!
//! Only this thread pushes and pops them, it is inside a call, and each holds its code object: so they stand still,
//! whoever has the global lock. The last walk is remembered, from the root: where the same frames lie at the same places,
//! they are only compared, and those that the two walks share at the root are not looked up, however deep the leaf lies.

use super::code::{self, Description, Marks, Scratch, Table, Texts, version_of};
use super::find::Interpreter;
use super::layout::{
    self, Boundary, FIRST_WITH_HOLD, HOLD, Layout, OWNED_BY_EVALUATOR, OWNED_BY_GENERATOR, TYPE, Unit,
};
use super::read::Pages;
use crate::record::{CodeId, Frame};
use crate::unwind::MAX_FRAMES;
use crate::unwind::memory::word;

/// A frame of the walk.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Item {
    /// Where the frame lies.
    at: u64,
    /// What it says of the frame before and, behind that or before it, of itself: see [`layout::Frame::link`].
    link: u128,
    code: u64,
    /// The word by which it refers to that.
    holds: u64,
    position: u64,
    /// Where it is the first of a call of the evaluator: something on the C stack that lies in the frame of that call, or
    /// [`SOMEWHERE`]; else 0.
    pub(super) boundary: u64,
    /// As it stands in stacks; 0: it is not shown, for Python does not show it.
    pub(super) frame: Frame,
    /// The number that Python gave the code object; 0: none.
    version: u32,
    /// Who holds the frame, and whether it is the first of a call where a byte says so.
    owner: u16,
    /// What the code object is known by where it has no number.
    marks: Marks,
}

const _: () = assert!(size_of::<Item>() <= 144, "Item grew: one is compared for each frame of each launch");

impl Item {
    /// The code object of a frame that refers to it by this word, as this one does: in a register already, before 3.14.
    #[inline(always)]
    fn code(&self, holds: u64, layout: &Layout) -> u64 {
        if layout.version < FIRST_WITH_HOLD { holds } else { self.code }
    }

    /// Whether it is a frame that refers to its code object by this word, and has this position.
    ///
    /// # Safety
    /// A frame refers to that code object, or something lies there that could be read when it was met.
    #[inline(always)]
    unsafe fn is(&self, (holds, position): (u64, u64), layout: &Layout, texts: &mut Texts) -> bool {
        // SAFETY: as the caller says.
        let is_same =
            holds == self.holds && position == self.position && unsafe { self.has_same_code(holds, layout) };
        // SAFETY: the code object is the one that was met, but for those.
        is_same && (self.version != 0 || unsafe { self.marks.have_same_texts(layout, texts) })
    }

    /// Whether the frame is still there, but for the texts of its code object: with the same one before it, of the same code
    /// object, at the same position, held by the same.
    ///
    /// # Safety
    /// It is a frame.
    #[inline(always)]
    unsafe fn is_still(&self, layout: &Layout) -> bool {
        let layout::Frame { link, code, position, .. } = layout.frame;
        // SAFETY: as the caller says.
        let has_same_link = unsafe { pair(self.at + u64::from(link)) } == self.link;
        let is_linked = |part: u32| part == link || part == link + 8;
        has_same_link
            && (layout.frame.boundary == Boundary::Each || owner(self.at, layout) == self.owner)
            // SAFETY: as above.
            && (is_linked(code) || unsafe { word(self.at + u64::from(code)) } == self.holds)
            && (is_linked(position) || position_in(self.at, layout) == self.position)
            // SAFETY: the frame refers to it.
            && unsafe { self.has_same_code(self.holds, layout) }
    }

    /// Whether what lies at its code object's address is that, but for its texts.
    ///
    /// # Safety
    /// A frame refers to it by this word, or something lies there that could be read when it was met.
    #[inline(always)]
    unsafe fn has_same_code(&self, holds: u64, layout: &Layout) -> bool {
        match if layout.code.version == 0 { 0 } else { self.version } {
            // SAFETY: as the caller says.
            0 => unsafe { self.marks.are_all_but_texts(self.code(holds, layout), layout) },
            // SAFETY: as the caller says.
            version => unsafe { version_of(self.code, layout) == version },
        }
    }
}

/// The sixteen bytes at an address.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn pair(address: u64) -> u128 {
    // SAFETY: the caller vouches for them; no alignment is asked for.
    unsafe { (address as *const u128).read_unaligned() }
}

/// The byte that says who holds a frame that can be read; where one says whether it is the first of a call, both.
#[inline(always)]
fn owner(frame: u64, layout: &Layout) -> u16 {
    let owner = frame + u64::from(layout.frame.owner);
    match layout.frame.boundary {
        Boundary::Each => 0,
        // SAFETY: the caller has seen that it can be read.
        Boundary::Shim => unsafe { (owner as *const u8).read() }.into(),
        // SAFETY: as above.
        Boundary::Flag(flag) => unsafe { ((frame + u64::from(flag)) as *const u16).read_unaligned() },
    }
}

/// Where a frame that can be read is in its code object.
#[inline(always)]
fn position_in(frame: u64, layout: &Layout) -> u64 {
    // SAFETY: the caller has seen that it can be read.
    let position = unsafe { word(frame + u64::from(layout.frame.position)) };
    match layout.frame.unit {
        Unit::Index(_) => u64::from(position as u32),
        Unit::Address => position,
    }
}

#[cfg(test)]
impl Item {
    pub(super) fn for_test(frame: Frame, boundary: u64) -> Self {
        let (at, link, code, holds, position, version, owner) = (0, 0, 0, 0, 0, 0, 0);
        Self { at, link, code, holds, position, boundary, frame, version, owner, marks: Marks::default() }
    }
}

/// A boundary of which nothing on the C stack is known.
pub(super) const SOMEWHERE: u64 = 1;

/// Why a walk came to no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// What should be a frame or a code object is something else.
    Garbage,
    /// The kernel gives no memory.
    Memory,
}

/// What a thread keeps for its walks. Zeroes are valid, but for the table.
#[repr(C)]
pub(super) struct Walk {
    pub(super) table: Table,
    /// How many of `items` the last walk filled.
    pub(super) count: usize,
    pub(super) is_cut: bool,
    head: Head,
    pages: Pages,
    texts: Texts,
    /// Root first.
    pub(super) items: [Item; MAX_FRAMES],
    /// Leaf first, while a walk goes on.
    links: [Link; MAX_FRAMES],
    scratch: Scratch,
}

/// A frame on the way to the root.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Link {
    at: u64,
    boundary: u64,
}

/// Where the last walk began.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Head {
    /// 0: it is not to be compared, since not all that it met could be read.
    thread: u64,
    cframe: u64,
    /// Where what is around the outermost function lies; 0: nothing is.
    root: u64,
}

impl Walk {
    /// Whether the frames of the last walk are those that the thread is in: at the same places, and of the same functions.
    #[inline(always)]
    pub(super) fn is_as_before(&mut self, interpreter: &Interpreter, thread: u64) -> bool {
        // Before 3.12 more is compared, and the compiler is told where it lies: ten instructions less for each frame.
        let is_still = match interpreter.layout.version {
            0x0309 => self.is_still(const { &Layout::of_headers(0x0309) }, thread),
            0x030a => self.is_still(const { &Layout::of_headers(0x030a) }, thread),
            0x030b => self.is_still(const { &Layout::of_headers(0x030b) }, thread),
            _ => self.is_still(&interpreter.layout.of_shims(), thread),
        };
        // SAFETY: they belong to code objects that were just seen to be the same.
        is_still && unsafe { self.texts.are_as_before(&interpreter.layout) }
    }

    #[inline(always)]
    fn is_still(&mut self, layout: &Layout, thread: u64) -> bool {
        let Self { count, head, items, .. } = self;
        if *count == 0 || head.thread != thread {
            return false;
        }
        // SAFETY: all that is read here lies where it could be read in the last walk, at the same address.
        let part = |object: u64, offset: u32| unsafe { word(object + u64::from(offset)) };
        // SAFETY: as above.
        let byte = |object: u64, offset: u32| unsafe { ((object + u64::from(offset)) as *const u8).read() };
        let mut at = part(thread, layout.thread);
        let mut cframe = 0;
        if let Some(parts) = layout.cframe {
            cframe = at;
            if cframe != head.cframe {
                return false;
            }
            at = part(cframe, parts.frame);
        }
        let items = &items[..*count];
        // Where each lies is known beforehand, and that the one before refers to it: none waits for another to say so.
        if items.last().is_none_or(|first| first.at != at) {
            return false;
        }
        for (index, item) in items.iter().enumerate().rev() {
            // SAFETY: a frame of the thread, as the one before has said.
            if !unsafe { item.is_still(layout) } {
                return false;
            }
            match layout.frame.boundary {
                Boundary::Each => {}
                Boundary::Shim | Boundary::Flag(_) if item.boundary == 0 => {}
                Boundary::Shim => {
                    let next = index.checked_sub(1).map_or(head.root, |before| items[before].at);
                    let shim = item.boundary;
                    let is_shim = byte(shim, layout.frame.owner) >= OWNED_BY_EVALUATOR;
                    if !is_shim || part(shim, layout.frame.previous) != next {
                        return false;
                    }
                }
                Boundary::Flag(_) => {
                    if item.boundary != cframe {
                        return false;
                    }
                    if let Some(parts) = layout.cframe {
                        cframe = part(cframe, parts.previous);
                    }
                }
            }
        }
        true
    }

    /// Walks, and says whether the frames are those of the last walk. `number` gives the number of a code object that
    /// is new to the thread.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        interpreter: &Interpreter,
        thread: u64,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<bool, Broken> {
        // What is known by their numbers goes with them.
        if self.texts.are_full() {
            self.table = Table::new().ok_or(Broken::Memory)?;
            self.texts.clear();
            self.forget();
        }
        let count = self.follow(interpreter, thread)?;
        self.texts.forget();
        let mut is_same = count == self.count;
        for item in 0..count {
            is_same &= self.meet(item, self.links[count - 1 - item], interpreter, number)?;
        }
        self.count = count;
        Ok(is_same)
    }

    /// Follows the frames to the root, and says how many there are.
    #[inline(always)]
    fn follow(&mut self, interpreter: &Interpreter, thread: u64) -> Result<usize, Broken> {
        let layout = &interpreter.layout.frame;
        let mut cframe = 0;
        let mut at = self.word(thread, interpreter.layout.thread)?;
        if let Some(parts) = interpreter.layout.cframe {
            cframe = at;
            // A state that is only being made has none yet.
            at = if cframe == 0 { 0 } else { self.first_of(cframe, parts.bytes, parts.frame)? };
        }
        let (mut count, mut shims) = (0, 0);
        (self.is_cut, self.head) = (false, Head { thread, cframe, root: 0 });
        while at != 0 {
            if !self.pages.hold(at, layout.bytes) {
                return Err(Broken::Garbage);
            }
            // SAFETY: so many bytes of it can be read.
            let byte = |offset: u32| unsafe { ((at + u64::from(offset)) as *const u8).read() };
            // SAFETY: as above.
            let next = unsafe { word(at + u64::from(layout.previous)) };
            if layout.boundary == Boundary::Shim && byte(layout.owner) >= OWNED_BY_EVALUATOR {
                // In a chain that is corrupted they may lead to each other.
                shims += 1;
                if shims > 2 * MAX_FRAMES {
                    return Err(Broken::Garbage);
                }
                match self.links[..count].last_mut() {
                    Some(link) if link.boundary == 0 => link.boundary = at,
                    // Of a call without a frame, or the outermost of all.
                    _ => self.head.root = at,
                }
                at = next;
                continue;
            }
            self.head.root = 0;
            if count == MAX_FRAMES {
                (self.is_cut, self.head.thread) = (true, 0);
                break;
            }
            let boundary = match layout.boundary {
                Boundary::Each => SOMEWHERE,
                Boundary::Flag(flag) if byte(flag) != 0 => {
                    let call = cframe;
                    if let Some(parts) = interpreter.layout.cframe {
                        let around = self.first_of(cframe, parts.bytes, parts.previous);
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
        Ok(count)
    }

    /// Makes an item of the frame at `link`. Whether the last walk had the same one there.
    #[inline(always)]
    fn meet(
        &mut self,
        item: usize,
        link: Link,
        interpreter: &Interpreter,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<bool, Broken> {
        let layout = &interpreter.layout;
        // SAFETY: so many bytes of it can be read: it was followed.
        let part = |offset: u32| unsafe { word(link.at + u64::from(offset)) };
        let owner = owner(link.at, layout);
        let (holds, position) = (part(layout.frame.code), position_in(link.at, layout));
        // SAFETY: as above; and what was met is read, and only where it says that it is what it was.
        let is_met =
            item < self.count && unsafe { self.items[item].is((holds, position), layout, &mut self.texts) };
        if !is_met {
            if layout.frame.boundary == Boundary::Each && part(TYPE as u32) != interpreter.types.frame {
                return Err(Broken::Garbage);
            }
            // SAFETY: as above.
            let holder = unsafe { ((link.at + u64::from(layout.frame.owner)) as *const u8).read() };
            let may_be_incomplete = holder != OWNED_BY_GENERATOR;
            self.fill(item, (holds, position), may_be_incomplete, interpreter, number)?;
        }
        let item = &mut self.items[item];
        let is_same = is_met && item.boundary == link.boundary;
        (item.at, item.boundary, item.owner) = (link.at, link.boundary, owner);
        // SAFETY: as above.
        item.link = unsafe { pair(link.at + u64::from(layout.frame.link)) };
        Ok(is_same)
    }

    /// Nothing is remembered of the last walk.
    pub(super) fn forget(&mut self) {
        self.count = 0;
    }

    /// The word of an object that may be anything.
    fn word(&mut self, object: u64, offset: u32) -> Result<u64, Broken> {
        self.first_of(object, offset + 8, offset)
    }

    /// The same of one that is so long.
    #[inline(always)]
    fn first_of(&mut self, object: u64, bytes: u32, offset: u32) -> Result<u64, Broken> {
        if !self.pages.hold(object, bytes) {
            return Err(Broken::Garbage);
        }
        // SAFETY: so many bytes of it can be read.
        Ok(unsafe { word(object + u64::from(offset)) })
    }

    /// Fills an item anew.
    #[inline(never)]
    fn fill(
        &mut self,
        item: usize,
        (holds, position): (u64, u64),
        may_be_incomplete: bool,
        interpreter: &Interpreter,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<(), Broken> {
        let code = holds & !HOLD;
        let place = self.find(code, interpreter, number)?;
        let known = self.table.get(place);
        let first = code.wrapping_add(u64::from(interpreter.layout.code.instructions));
        let into = match interpreter.layout.frame.unit {
            // Not begun yet: -1.
            Unit::Index(unit) => u64::from((position as i32).max(0) as u32 * unit),
            // The one before the first, likewise.
            Unit::Address => (position.wrapping_sub(first) as i64).max(0) as u64,
        };
        let is_incomplete = may_be_incomplete
            && interpreter.layout.frame.unit == Unit::Address
            && (position.wrapping_sub(first) as i64) < i64::from(known.traceable);
        let frame = match is_incomplete {
            true => Frame(0),
            false => Frame::python(CodeId(known.number), u32::try_from(into).unwrap_or(u32::MAX)),
        };
        let Item { at, link, boundary, owner, .. } = self.items[item];
        self.items[item] = Item {
            at,
            link,
            code,
            holds,
            position,
            boundary,
            frame,
            version: known.version,
            owner,
            marks: known.marks,
        };
        Ok(())
    }

    /// Where the code object stands in the thread's table; entered there if it is new, or another than it was.
    fn find(
        &mut self,
        code: u64,
        interpreter: &Interpreter,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<u32, Broken> {
        let place = self.table.find(code);
        // SAFETY: it was met at this address, and is held by a frame.
        match unsafe { self.table.get(place).is(code, &interpreter.layout, &mut self.texts) } {
            true => Ok(place),
            false => self.learn(code, interpreter, number),
        }
    }

    #[cold]
    fn learn(
        &mut self,
        code: u64,
        interpreter: &Interpreter,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<u32, Broken> {
        let Interpreter { layout, types, .. } = interpreter;
        let (mut known, description) =
            code::read(code, layout, types, &mut self.scratch, &mut self.texts).ok_or(Broken::Garbage)?;
        known.number = number(description).0;
        if self.table.is_full() && !self.table.make_room() {
            return Err(Broken::Memory);
        }
        let place = self.table.find(code);
        self.table.set(place, known);
        Ok(place)
    }
}
