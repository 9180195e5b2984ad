//! Merges the native and Python frames of one stack: the native frame of each evaluator call is replaced by the Python
//! frames that this call ran. Each distinct pair of a native and a Python stack is merged only once.
//!
//! Since 3.11, one call of the evaluator runs many Python frames. A walk along the Python frames of an evaluator call
//! also finds an address on the C stack. This address is the address of a cframe, or of one of the evaluator's own
//! frames. The native frame that contains this address is the frame of the evaluator call, whatever the function's name
//! is. Before 3.11, each call of the evaluator runs one Python frame. Therefore evaluator calls and Python frames are
//! paired one by one, starting at the innermost.

use std::ops::Range;

use super::walk::{InterpreterFrame, SOMEWHERE};
use crate::MAX_FRAMES;
use gpuflame_model::record::{Frame, FrameKind};

/// Maximum number of frames of both kinds in a merged stack.
pub(super) const MAX_MERGED_FRAMES: usize = 2 * MAX_FRAMES;

/// The native stack and the Python stack to be merged.
pub(super) struct StackPair<'a> {
    /// Native frames, leaf first.
    pub(super) native: &'a [Frame],
    /// Python frames, root first.
    pub(super) items: &'a [InterpreterFrame],
    /// Whether frames are missing at the root of the native or the Python stack.
    pub(super) is_partial: bool,
    /// Address ranges of the evaluator's code: its main part, and its cold part.
    pub(super) evaluator: &'a [Range<u64>; 2],
}

/// Whether native and Python frames show the same evaluator calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    /// Each evaluator call is in both the native and the Python stack.
    Complete,
    /// The native stack has more evaluator calls at the root than the Python stack. The additional evaluator calls
    /// belong to another interpreter, or to the stack below a greenlet.
    MoreNative,
    /// Some Python frames belong to no native frame.
    None,
}

/// A merged stack that is being written.
pub(super) struct MergedFrames<'a> {
    frames: &'a mut [Frame; MAX_MERGED_FRAMES],
    count: usize,
}

impl<'a> MergedFrames<'a> {
    pub(super) fn new(frames: &'a mut [Frame; MAX_MERGED_FRAMES]) -> Self {
        Self { frames, count: 0 }
    }

    fn push(&mut self, frame: Frame) {
        self.frames[self.count] = frame;
        self.count += 1;
    }

    fn push_python(&mut self, items: &[InterpreterFrame]) {
        items.iter().rev().filter(|item| item.frame.0 != 0).for_each(|item| self.push(item.frame));
    }

    fn finish(self) -> &'a [Frame] {
        &self.frames[..self.count]
    }
}

/// Splits Python frames into the frames of the innermost evaluator call, and the frames of all outer evaluator calls.
fn innermost(items: &[InterpreterFrame]) -> (&[InterpreterFrame], &[InterpreterFrame]) {
    let first = items.iter().rposition(|item| item.boundary != 0);
    let (around, group) = items.split_at(first.unwrap_or(0));
    (group, around)
}

impl StackPair<'_> {
    /// Returns the merged stack, and whether the native and the Python stack agree. `stack_pointers` are the stack
    /// pointers of the native frames.
    pub(super) fn merge<'a>(
        &self,
        stack_pointers: impl Iterator<Item = u64>,
        mut out: MergedFrames<'a>,
    ) -> (&'a [Frame], Agreement) {
        let is_counted = self.items.iter().any(|item| item.boundary == SOMEWHERE);
        let (left, agreement) =
            if is_counted { self.by_count(&mut out) } else { self.by_address(stack_pointers, &mut out) };
        if !left.is_empty() && !self.is_partial {
            out.count = 0;
            self.at_outermost_call(&mut out);
            return (out.finish(), Agreement::None);
        }
        // Frames are missing at the root of the native stack. The evaluator calls of the remaining Python frames are
        // among the missing native frames.
        out.push_python(left);
        (out.finish(), agreement)
    }

    /// Replaces each native frame that contains the address of an evaluator call by the Python frames of that call.
    /// Returns the Python frames of those calls for which no native frame was found.
    fn by_address(
        &self,
        stack_pointers: impl Iterator<Item = u64>,
        out: &mut MergedFrames<'_>,
    ) -> (&[InterpreterFrame], Agreement) {
        let mut stack_pointers = stack_pointers.peekable();
        let mut left = self.items;
        for native in self.native {
            let lower = stack_pointers.next().unwrap_or(u64::MAX);
            let upper = stack_pointers.peek().copied().unwrap_or(0);
            let mut is_evaluator = false;
            while let (group @ [first, ..], around) = innermost(left)
                && (lower..upper).contains(&first.boundary)
            {
                out.push_python(group);
                (left, is_evaluator) = (around, true);
            }
            if !is_evaluator {
                out.push(*native);
            }
        }
        (left, Agreement::Complete)
    }

    /// Replaces the native frame of each evaluator call by one Python frame, starting at the innermost. If the stack
    /// has more evaluator calls than Python frames, the outer calls belong to another thread state and are not
    /// replaced.
    fn by_count(&self, out: &mut MergedFrames<'_>) -> (&[InterpreterFrame], Agreement) {
        let mut left = self.items;
        let mut calls = 0;
        for native in self.native {
            match left {
                [around @ .., last] if self.is_evaluator(*native) => {
                    out.push_python(std::slice::from_ref(last));
                    left = around;
                }
                _ => out.push(*native),
            }
            calls += usize::from(self.is_evaluator(*native));
        }
        let is_complete = calls == self.items.len() || self.is_partial;
        (left, if is_complete { Agreement::Complete } else { Agreement::MoreNative })
    }

    /// Replaces the outermost native frame of the evaluator by all Python frames, because it is not known which native
    /// frames ran which Python frames.
    fn at_outermost_call(&self, out: &mut MergedFrames<'_>) {
        let outermost = self.native.iter().rposition(|native| self.is_evaluator(*native));
        for (at, native) in self.native.iter().enumerate() {
            match Some(at) == outermost {
                true => out.push_python(self.items),
                false => out.push(*native),
            }
        }
        if outermost.is_none() {
            out.push_python(self.items);
        }
    }

    /// Whether this native frame is a call of the evaluator.
    pub(super) fn is_evaluator(&self, frame: Frame) -> bool {
        is_evaluator(frame, self.evaluator)
    }
}

/// Whether this native frame is a call of the evaluator. `evaluator` contains the address ranges of the evaluator's
/// code.
pub(super) fn is_evaluator(frame: Frame, evaluator: &[Range<u64>; 2]) -> bool {
    let is_inside = |address| evaluator.iter().any(|part| part.contains(&address));
    matches!(frame.kind(), FrameKind::Native { address, .. } if is_inside(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::{CodeId, ModuleEpoch};

    const EVALUATOR: [Range<u64>; 2] = [0x5000..0x6000, 0x1000..0x1100];

    /// Merges test stacks, which are given leaf first. In `native`, each letter is a native frame: `E` is a call of
    /// the evaluator, `C` is a call of its cold part. In `python`, each frame is a number (`-` for a hidden frame) and
    /// its boundary.
    fn merged(native: &str, python: &[(&str, u64)], is_partial: bool) -> (String, Agreement) {
        let address = |letter: char| match letter {
            'E' => 0x5800,
            'C' => 0x1080,
            _ => 0x100 * letter as u64,
        };
        let native: Vec<Frame> =
            native.chars().map(|letter| Frame::native(address(letter), ModuleEpoch(0))).collect();
        let items: Vec<InterpreterFrame> = python
            .iter()
            .rev()
            .map(|(name, boundary)| {
                let frame = name.parse().map_or(Frame(0), |number| Frame::python(CodeId(number), 0));
                InterpreterFrame::for_merge(0, frame, *boundary)
            })
            .collect();
        let mut room = Box::new([Frame(0); MAX_MERGED_FRAMES]);
        let stacks = StackPair { native: &native, items: &items, is_partial, evaluator: &EVALUATOR };
        // The leaf's frame has the addresses 1000 to 1100, the next frame 1100 to 1200, and so on.
        let stack_pointers = (0..native.len() as u64).map(|at| 1000 + 100 * at);
        let (frames, agreement) = stacks.merge(stack_pointers, MergedFrames::new(&mut room));
        let name = |frame: &Frame| match frame.kind() {
            FrameKind::Python { code, .. } => code.0.to_string(),
            FrameKind::Native { address, .. } if EVALUATOR[0].contains(&address) => "E".to_owned(),
            FrameKind::Native { address, .. } => char::from(((address + 1) / 0x100) as u8).to_string(),
            other => panic!("{other:?}"),
        };
        (frames.iter().map(name).collect::<Vec<_>>().join(""), agreement)
    }

    fn sure(text: &str) -> (String, Agreement) {
        (text.to_owned(), Agreement::Complete)
    }

    #[test]
    fn an_evaluator_call_is_replaced_by_its_python_frames() {
        let python = [("1", 0), ("-", 0), ("2", 1150), ("3", 1420)];
        assert_eq!(merged("aEbcEd", &python, false), sure("a12bc3d"));
        // The result does not depend on the name of the native function.
        assert_eq!(merged("axbcyd", &python, false), sure("a12bc3d"));
    }

    #[test]
    fn evaluators_of_another_thread_state_stay_native() {
        assert_eq!(merged("aEbEcEd", &[("1", 1310)], false), sure("aEb1cEd"));
    }

    #[test]
    fn outer_python_frames_are_appended_to_a_truncated_stack() {
        assert_eq!(merged("aEb", &[("1", 1101), ("2", 0), ("3", 1500)], true), sure("a1b23"));
        assert_eq!(merged("aEb", &[("1", SOMEWHERE), ("2", SOMEWHERE)], true), sure("a1b2"));
    }

    #[test]
    fn unplaced_python_frames_go_to_the_outermost_evaluator_and_are_reported() {
        let unsure = |text: &str| (text.to_owned(), Agreement::None);
        assert_eq!(merged("aEbEc", &[("1", 1110), ("2", 5000)], false), unsure("aEb12c"));
        assert_eq!(merged("abc", &[("1", 5000)], false), unsure("abc1"));
        assert_eq!(merged("aEb", &[("1", SOMEWHERE), ("2", SOMEWHERE)], false), unsure("a12b"));
    }

    #[test]
    fn before_3_11_python_frames_are_matched_from_the_innermost_evaluator() {
        let python = [("1", SOMEWHERE), ("2", SOMEWHERE)];
        assert_eq!(merged("aEbEc", &python, false), sure("a1b2c"));
        assert_eq!(merged("aEbEcEd", &python, false), ("a1b2cEd".to_owned(), Agreement::MoreNative));
        // The evaluator's native frame may be in the main part or in the cold part of the evaluator.
        assert_eq!(merged("aCbEc", &python, false), sure("a1b2c"));
    }

    #[test]
    fn an_evaluator_call_without_a_visible_frame_is_removed() {
        assert_eq!(merged("aEbEc", &[("-", 1110), ("2", 1310)], false), sure("ab2c"));
    }
}
