//! Stores the names and source lines of the functions to which native frames belong. The recorded process looked these
//! functions up in its mapped files when it exited.

use super::Profile;
use crate::record::{Frame, FrameFunction};

/// Functions of a native frame: first the function that was compiled on its own, then the functions that were inlined
/// into it, outermost first.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions {
    all: Vec<StoredFunction>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct StoredFunction {
    name: Box<str>,
    file: Box<str>,
    start: Option<u64>,
    line: u32,
}

impl Profile {
    /// Adds a function to the functions of a frame.
    pub(super) fn add_function(&mut self, frame: Frame, function: &FrameFunction<'_>) {
        let FrameFunction { name, start, file, line } = *function;
        let known = self.functions.entry(frame).or_default();
        known.bytes += name.len() + file.len() + size_of::<StoredFunction>();
        known.all.push(StoredFunction { name: name.into(), file: file.into(), start, line });
    }

    /// Returns the functions of a frame, as the recorded process found them. Returns `None` if the recording does not
    /// contain the functions. A function without a name means that the frame's file has no symbol for the frame.
    pub fn functions(&self, frame: Frame) -> Option<impl Iterator<Item = FrameFunction<'_>>> {
        let functions = self.functions.get(&frame)?.all.iter();
        Some(functions.map(|StoredFunction { name, file, start, line }| FrameFunction {
            name,
            start: *start,
            file,
            line: *line,
        }))
    }

    /// Returns the size in bytes of the heap memory that the functions use.
    pub(super) fn function_bytes(&self) -> usize {
        let bytes: usize = self.functions.values().map(|functions| functions.bytes).sum();
        bytes + self.functions.len() * size_of::<(Frame, Functions)>()
    }
}
