//! The walk along the frames of the calling thread, from the innermost one.
//!
//! Only this thread pushes and pops them, it is inside a call, and each holds its code object: so they stand still,
//! whoever has the global lock. The last walk is remembered: where the same frames are met again, nothing is looked up.

use super::code::{self, Description, Scratch, Table};
use super::find::Interpreter;
use super::layout::{Boundary, OWNED_BY_EVALUATOR, OWNED_BY_GENERATOR, TYPE, Unit};
use super::read::Pages;
use crate::record::{CodeId, Frame};
use crate::unwind::MAX_FRAMES;
use crate::unwind::memory::word;

/// A frame of the walk.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Item {
    position: u64,
    /// Where it is the first of a call of the evaluator: something on the C stack that lies in the frame of that call, or
    /// [`SOMEWHERE`]; else 0.
    pub(super) boundary: u64,
    /// As it stands in stacks; 0: it is not shown, for Python does not show it.
    pub(super) frame: Frame,
    /// Where its code object stands in the thread's table, and which one it is.
    place: u32,
    number: u32,
}

#[cfg(test)]
impl Item {
    pub(super) fn for_test(frame: Frame, boundary: u64) -> Self {
        Self { position: 0, boundary, frame, place: 0, number: 0 }
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
    pages: Pages,
    pub(super) items: [Item; MAX_FRAMES],
    scratch: Scratch,
}

impl Walk {
    /// Walks, and says whether the frames are those of the last walk. `number` gives the number of a code object that
    /// is new to the thread.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        interpreter: &Interpreter,
        thread: u64,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<bool, Broken> {
        let layout = &interpreter.layout;
        let mut cframe = 0;
        let mut at = self.word(thread, layout.thread)?;
        if let Some(parts) = layout.cframe {
            cframe = at;
            at = self.first_of(cframe, parts.bytes, parts.frame)?;
        }
        let (mut count, mut is_same, mut boundary) = (0, true, 0);
        self.is_cut = false;
        while at != 0 {
            if !self.pages.hold(at, layout.frame.bytes) {
                return Err(Broken::Garbage);
            }
            // SAFETY: so many bytes of it can be read.
            let part = |offset: u32| unsafe { word(at + u64::from(offset)) };
            // SAFETY: as above.
            let byte = |offset: u32| unsafe { ((at + u64::from(offset)) as *const u8).read() };
            let (next, code) = (part(layout.frame.previous), part(layout.frame.code));
            let owner = byte(layout.frame.owner);
            if layout.frame.boundary == Boundary::Shim && owner == OWNED_BY_EVALUATOR {
                boundary = at;
                at = next;
                continue;
            }
            if count > 0 {
                is_same &= self.end(count - 1, boundary);
                boundary = 0;
            }
            if count == MAX_FRAMES {
                self.is_cut = true;
                break;
            }
            let position = part(layout.frame.position);
            let position = match layout.frame.unit {
                Unit::Index(_) => u64::from(position as u32),
                Unit::Address => position,
            };
            // SAFETY: what was met is read, and only where it says that it is what it was.
            if !unsafe { self.meets(count, code, position, interpreter) } {
                is_same = false;
                if layout.frame.boundary == Boundary::Each && part(TYPE as u32) != interpreter.types.frame {
                    return Err(Broken::Garbage);
                }
                let may_be_incomplete = owner != OWNED_BY_GENERATOR;
                self.fill(count, (code, position), may_be_incomplete, interpreter, number)?;
            }
            count += 1;
            match layout.frame.boundary {
                Boundary::Each => boundary = SOMEWHERE,
                Boundary::Flag(flag) if byte(flag) != 0 => {
                    boundary = cframe;
                    if let Some(parts) = layout.cframe {
                        let around = self.first_of(cframe, parts.bytes, parts.previous);
                        cframe = around.unwrap_or(SOMEWHERE);
                    }
                }
                Boundary::Flag(_) | Boundary::Shim => {}
            }
            at = next;
        }
        if count > 0 && !self.is_cut {
            is_same &= self.end(count - 1, boundary);
        }
        is_same &= count == self.count;
        self.count = count;
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

    /// Notes the boundary of an item. False: it had another one.
    #[inline(always)]
    fn end(&mut self, item: usize, boundary: u64) -> bool {
        std::mem::replace(&mut self.items[item].boundary, boundary) == boundary
    }

    /// Whether the last walk had the same frame here.
    ///
    /// # Safety
    /// A frame refers to `code`, or something lies there that could be read when it was met.
    #[inline(always)]
    unsafe fn meets(&self, item: usize, code: u64, position: u64, interpreter: &Interpreter) -> bool {
        let last = &self.items[item];
        if item >= self.count || last.position != position {
            return false;
        }
        let known = self.table.get(last.place);
        // The place may have got another code object since, in this walk.
        // SAFETY: the caller vouches for it.
        known.number == last.number && unsafe { known.is(code, &interpreter.layout) }
    }

    /// Fills an item anew.
    #[inline(never)]
    fn fill(
        &mut self,
        item: usize,
        (code, position): (u64, u64),
        may_be_incomplete: bool,
        interpreter: &Interpreter,
        number: &mut impl FnMut(Description<'_>) -> CodeId,
    ) -> Result<(), Broken> {
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
        let boundary = self.items[item].boundary;
        self.items[item] = Item { position, boundary, frame, place, number: known.number };
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
        match unsafe { self.table.get(place).is(code, &interpreter.layout) } {
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
            code::read(code, layout, types, &mut self.scratch).ok_or(Broken::Garbage)?;
        known.number = number(description).0;
        if self.table.is_full() && !self.table.make_room() {
            return Err(Broken::Memory);
        }
        let place = self.table.find(code);
        self.table.set(place, known);
        Ok(place)
    }
}
