//! `stackFrames`: the stacks that events of a trace refer to, as the format of Chrome's viewer has them: each frame has a
//! name and names its caller.

use std::collections::HashMap;

use super::json::document::{Document, Node};
use super::slices::Rank;

/// No stack is deeper: a frame that calls itself would make it endless.
const DEEPEST: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct StackFrames(HashMap<String, Frame>);

#[derive(Debug)]
struct Frame {
    name: String,
    rank: Rank,
    caller: Option<String>,
}

impl StackFrames {
    /// Those in this JSON; none where it is damaged.
    pub(super) fn read(json: &[u8]) -> Self {
        let document = Document::read(json);
        let root = document.as_ref().ok().and_then(|document| document.root().ok());
        let frames = root.map(Node::entries).into_iter().flatten();
        Self(frames.map(|(id, frame)| (id.decode().into_owned(), Frame::of(frame))).collect())
    }

    /// The stack of which a frame is the innermost, root first.
    pub(super) fn stack(&self, leaf: &str) -> Option<Vec<(&str, Rank)>> {
        let mut next = Some(self.0.get(leaf)?);
        let mut stack = Vec::new();
        while let Some(frame) = next.filter(|_| stack.len() < DEEPEST) {
            stack.push((&*frame.name, frame.rank));
            next = frame.caller.as_ref().and_then(|caller| self.0.get(caller));
        }
        stack.reverse();
        Some(stack)
    }
}

impl Frame {
    fn of(frame: Node<'_>) -> Self {
        let text = |key| frame.get(key).map(|value| value.text().decode().into_owned());
        let rank = match text("category").as_deref() {
            Some("python") => Rank::Python,
            Some("range") => Rank::Range,
            _ => Rank::Call,
        };
        Self { name: text("name").unwrap_or_default(), rank, caller: text("parent") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_followed_to_the_root_and_rings_end() {
        let frames = StackFrames::read(
            br#"{"7": {"name": "main", "category": "native"}, "9": {"parent": "7", "name": "a \"b\".py:f", "category": "python"},
                "c12": {"name": "cudaLaunchKernel", "parent": "9"}, "x": {"name": "x", "parent": "x"}, "y": {"name": "y", "parent": 7}}"#,
        );
        let names =
            |leaf| frames.stack(leaf).map(|stack| stack.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        assert_eq!(names("c12").unwrap(), ["main", "a \"b\".py:f", "cudaLaunchKernel"]);
        assert_eq!(frames.stack("c12").unwrap()[1].1, Rank::Python);
        assert_eq!(names("x").unwrap().len(), DEEPEST);
        assert_eq!(names("y").unwrap(), ["main", "y"], "numbers are names as well");
        assert_eq!(names("z"), None);
        assert!(StackFrames::read(b"{\"7\": {").0.is_empty());
    }
}
