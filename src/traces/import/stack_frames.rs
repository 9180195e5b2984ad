//! Reads the table `stackFrames` of Chrome's trace format. Each frame in the table has a name, the id of its caller,
//! and an id by which trace events refer to the frame.

use std::collections::HashMap;

use super::json::document::{Document, Node};
use super::slices::FrameClass;

/// Maximum number of frames in a stack. The limit is needed because a frame that is its own caller would otherwise lead
/// to an endless stack.
const MAX_DEPTH: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct StackFrames(HashMap<String, Frame>);

#[derive(Debug)]
struct Frame {
    name: String,
    class: FrameClass,
    caller: Option<String>,
}

impl StackFrames {
    /// Parses the table, which is a JSON object. A damaged table is treated as empty.
    pub(super) fn parse(json: &[u8]) -> Self {
        let document = Document::read(json);
        let root = document.as_ref().ok().and_then(|document| document.root().ok());
        let frames = root.map(Node::entries).into_iter().flatten();
        Self(frames.map(|(id, frame)| (id.decode().into_owned(), Frame::from_json(frame))).collect())
    }

    /// Returns the frames of the stack whose innermost frame has the id `leaf`, root first. Returns `None` if there is
    /// no frame with this id.
    pub(super) fn find_stack(&self, leaf: &str) -> Option<Vec<(&str, FrameClass)>> {
        let mut next = Some(self.0.get(leaf)?);
        let mut stack = Vec::new();
        while let Some(frame) = next.filter(|_| stack.len() < MAX_DEPTH) {
            stack.push((&*frame.name, frame.class));
            next = frame.caller.as_ref().and_then(|caller| self.0.get(caller));
        }
        stack.reverse();
        Some(stack)
    }
}

impl Frame {
    fn from_json(frame: Node<'_>) -> Self {
        let text = |key| frame.get(key).map(|value| value.text().decode().into_owned());
        let class = match text("category").as_deref() {
            Some("python") => FrameClass::Python,
            Some("range") => FrameClass::Range,
            _ => FrameClass::Call,
        };
        Self { name: text("name").unwrap_or_default(), class, caller: text("parent") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_followed_to_the_root_and_a_cycle_ends() {
        let frames = StackFrames::parse(
            br#"{"7": {"name": "main", "category": "native"}, "9": {"parent": "7", "name": "a \"b\".py:f", "category": "python"},
                "c12": {"name": "cudaLaunchKernel", "parent": "9"}, "x": {"name": "x", "parent": "x"}, "y": {"name": "y", "parent": 7}}"#,
        );
        let names = |leaf| {
            frames.find_stack(leaf).map(|stack| stack.iter().map(|(name, _)| *name).collect::<Vec<_>>())
        };
        assert_eq!(names("c12").unwrap(), ["main", "a \"b\".py:f", "cudaLaunchKernel"]);
        assert_eq!(frames.find_stack("c12").unwrap()[1].1, FrameClass::Python);
        assert_eq!(names("x").unwrap().len(), MAX_DEPTH);
        assert_eq!(names("y").unwrap(), ["main", "y"], "a name may be a number");
        assert_eq!(names("z"), None);
        assert!(StackFrames::parse(b"{\"7\": {").0.is_empty());
    }
}
