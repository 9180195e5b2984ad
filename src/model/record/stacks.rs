//! Stores all stacks of a run as one tree, for a recording that is written once. Stacks with the same frames at the
//! root share the storage of these frames, and a frame takes one to three bytes instead of eight. The reader returns
//! the same rows as if each context were stored separately. Module `encode` documents the layout.

use super::chunk::Chunk;
use super::encode::tag;
use super::fields::Fields;
use super::{ContextFlags, ContextId, Frame, ThreadId};

/// Maximum number of frames in a stack. The recorder and the importers never create deeper stacks.
const MAX_STACK_FRAMES: usize = 4096;
/// Limit on the total number of frames in all stacks of a file: `FREE_FRAMES`, plus `FRAMES_PER_BYTE` for each byte of
/// the tree. The limit is needed because a damaged file could refer to the same deep stack any number of times.
const FREE_FRAMES: u64 = 1 << 20;
const FRAMES_PER_BYTE: u64 = 64;

/// A launch context whose stack is identified by the node of the tree at which the stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeStack {
    /// Id of the context that has the stack.
    pub id: ContextId,
    /// Thread that makes the launches.
    pub thread: ThreadId,
    /// Flags about defects of the stack.
    pub flags: ContextFlags,
    /// Index of the node at which the stack ends, counted from 1.
    pub node: u32,
}

impl Chunk {
    /// Adds frames to the table of frames.
    pub fn frames(&mut self, frames: &[Frame]) {
        self.payload(tag::FRAMES, |out| frames.iter().for_each(|frame| _ = out.u64(frame.0)));
    }

    /// Adds at least one node of the tree, and then further nodes until the chunk has a size of about `max_bytes`
    /// bytes. Each node consists of the index of its parent, and of positions in the table of frames. Returns false if
    /// the chunk is full before all nodes were added.
    pub fn nodes(&mut self, nodes: &mut dyn Iterator<Item = (usize, &[u32])>, max_bytes: usize) -> bool {
        let mut is_done = false;
        self.payload(tag::NODES, |out| {
            loop {
                let Some((parent, frames)) = nodes.next() else {
                    is_done = true;
                    break;
                };
                out.varint(parent as u64).varint(frames.len() as u64);
                frames.iter().for_each(|frame| _ = out.varint((*frame).into()));
                if out.0.len() >= max_bytes {
                    break;
                }
            }
        });
        is_done
    }

    /// Adds at least one stack, and then further stacks until the chunk has a size of about `max_bytes` bytes. Returns
    /// false if the chunk is full before all stacks were added.
    pub fn stacks(&mut self, stacks: &mut dyn Iterator<Item = TreeStack>, max_bytes: usize) -> bool {
        let (mut before, mut is_done) = (None, false);
        self.payload(tag::STACKS, |out| {
            loop {
                let Some(TreeStack { id, thread, flags, node }) = stacks.next() else {
                    is_done = true;
                    break;
                };
                let is_same = before.replace(thread) == Some(thread);
                let thread = if is_same { 0 } else { u64::from(thread.0) + 1 };
                out.varint(id.0.into()).varint(thread).varint(flags.0.into()).varint(node.into());
                if out.0.len() >= max_bytes {
                    break;
                }
            }
        });
        is_done
    }
}

/// A node that was read from a file: its parent, and the range of its symbols in the table of symbols.
#[derive(Clone, Copy, Debug)]
struct ReadNode {
    parent: u32,
    first: u32,
    len: u32,
}

/// Reads the tree of stacks from rows.
#[derive(Debug, Default)]
pub(super) struct StacksReader {
    frames: Vec<Frame>,
    symbols: Vec<u32>,
    nodes: Vec<ReadNode>,
    /// Payload of the last row that contains stacks. `at` is the offset in the payload at which the next stack begins.
    stacks: Vec<u8>,
    at: usize,
    thread: ThreadId,
    /// `bytes` is the total size in bytes of the tree's rows. `returned` is the number of frames in the stacks returned
    /// so far.
    bytes: u64,
    returned: u64,
}

impl StacksReader {
    /// Adds the content of a row to the tree. Returns `None` if the row is invalid.
    pub(super) fn add(&mut self, tag: u8, payload: &[u8]) -> Option<()> {
        self.bytes += payload.len() as u64;
        let mut fields = Fields(payload);
        match tag {
            tag::FRAMES => {
                while !fields.0.is_empty() {
                    self.frames.push(Frame(fields.u64()?));
                }
            }
            tag::NODES => {
                while !fields.0.is_empty() {
                    self.add_node(&mut fields)?;
                }
            }
            _ => {
                (self.at, self.thread) = (0, ThreadId::OTHERS);
                self.stacks.clear();
                self.stacks.extend(payload);
            }
        }
        Some(())
    }

    fn add_node(&mut self, fields: &mut Fields<'_>) -> Option<()> {
        let (parent, count) = (small(fields)?, small(fields)?);
        let first = u32::try_from(self.symbols.len()).ok()?;
        for _ in 0..count {
            let frame = small(fields)?;
            self.frames.get(frame as usize)?;
            self.symbols.push(frame);
        }
        self.nodes.push(ReadNode { parent, first, len: count });
        Some(())
    }

    /// Whether the tree contains stacks that were not returned yet.
    pub(super) fn has_next(&self) -> bool {
        self.at < self.stacks.len()
    }

    /// Returns the next stack, and writes its frames to `frames`, leaf first. For an invalid stack, returns `None` and
    /// skips the rest of the row.
    pub(super) fn next(&mut self, frames: &mut Vec<Frame>) -> Option<TreeStack> {
        let mut fields = Fields(&self.stacks[self.at..]);
        let entry = Self::entry(&mut fields, self.thread);
        let next = self.stacks.len() - fields.0.len();
        self.at = if entry.is_some() { next } else { self.stacks.len() };
        let entry = entry?;
        self.thread = entry.thread;
        frames.clear();
        let mut at = entry.node;
        while at > 0 {
            let node = self.nodes.get(at as usize - 1)?;
            let symbols = &self.symbols[node.first as usize..][..node.len as usize];
            // In a damaged file, nodes without frames could form an endless cycle.
            if symbols.is_empty() || frames.len() + symbols.len() > MAX_STACK_FRAMES {
                return None;
            }
            frames.extend(symbols.iter().rev().map(|symbol| self.frames[*symbol as usize]));
            at = node.parent;
        }
        self.returned += frames.len() as u64;
        (self.returned <= FREE_FRAMES + FRAMES_PER_BYTE * self.bytes).then_some(entry)
    }

    fn entry(fields: &mut Fields<'_>, before: ThreadId) -> Option<TreeStack> {
        // The stored value is the thread id plus 1, which may not fit into 32 bits.
        let (id, thread) = (ContextId(small(fields)?), fields.varint()?);
        let (flags, node) = (ContextFlags(small(fields)?), small(fields)?);
        let thread = match thread.checked_sub(1) {
            None => before,
            Some(thread) => ThreadId(thread.try_into().ok()?),
        };
        Some(TreeStack { id, thread, flags, node })
    }
}

/// Returns the next variable-length number, or `None` if the number does not fit into 32 bits.
fn small(fields: &mut Fields<'_>) -> Option<u32> {
    fields.varint()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Reader, Row};

    const THREADS: [ThreadId; 2] = [ThreadId(7), ThreadId::OTHERS];

    fn read(chunk: &mut Chunk) -> (Vec<(TreeStack, Vec<u64>)>, usize) {
        let file = [&Chunk::file_header()[..], &chunk.take()].concat();
        let (mut reader, mut found, mut errors) = (Reader::new(&file[..]).unwrap(), Vec::new(), 0);
        loop {
            match reader.next_row() {
                Ok(Some(Row::Context { id, thread, flags, frames })) => {
                    let stack = TreeStack { id, thread, flags, node: 0 };
                    found.push((stack, frames.iter().map(|frame| frame.0).collect()));
                }
                Ok(Some(row)) => panic!("{row:?}"),
                Ok(None) => return (found, errors),
                Err(_) => errors += 1,
            }
        }
    }

    fn stack(id: u32, thread: ThreadId, node: u32) -> TreeStack {
        TreeStack { id: ContextId(id), thread, flags: ContextFlags(id % 3), node }
    }

    #[test]
    fn stacks_of_the_tree_read_back_as_contexts_in_several_pieces() {
        // Node 1 is a child of node 3. Such an order occurs after a node was split.
        let nodes = [(3, &[2, 1][..]), (3, &[300]), (0, &[0])];
        let frames: Vec<_> = (0..301).map(|at| Frame(at + 1000)).collect();
        let stacks = [
            stack(5, THREADS[0], 1),
            stack(6, THREADS[0], 2),
            stack(7, THREADS[1], 3),
            stack(300, THREADS[1], 0),
        ];
        for max_bytes in [0, 1 << 20] {
            let mut chunk = Chunk::default();
            frames.chunks(100).for_each(|part| chunk.frames(part));
            let (mut nodes, mut stacks) = (nodes.into_iter(), stacks.into_iter());
            while !chunk.nodes(&mut nodes, max_bytes) {}
            while !chunk.stacks(&mut stacks, max_bytes) {}
            let (found, errors) = read(&mut chunk);
            let expected: [&[u64]; 4] = [&[1001, 1002, 1000], &[1300, 1000], &[1000], &[]];
            assert_eq!(errors, 0);
            assert_eq!(found.iter().map(|(_, frames)| &frames[..]).collect::<Vec<_>>(), expected);
            let threads: Vec<_> =
                found.iter().map(|(stack, _)| (stack.id.0, stack.thread, stack.flags.0)).collect();
            assert_eq!(
                threads,
                [(5, THREADS[0], 2), (6, THREADS[0], 0), (7, THREADS[1], 1), (300, THREADS[1], 0)]
            );
        }
    }

    #[test]
    fn circles_unknown_nodes_and_endless_repetition_are_rejected() {
        let of = |nodes: &[(usize, &'static [u32])], stacks: &[TreeStack]| {
            let mut chunk = Chunk::default();
            chunk.frames(&[Frame(1), Frame(2)]);
            chunk.nodes(&mut nodes.iter().copied(), usize::MAX);
            chunk.stacks(&mut stacks.iter().copied(), usize::MAX);
            let (found, errors) = read(&mut chunk);
            (found.len(), errors)
        };
        let first = [stack(2, THREADS[0], 1), stack(3, THREADS[0], 0)];
        assert_eq!(of(&[(1, &[0])], &first), (1, 1));
        assert_eq!(of(&[(2, &[]), (1, &[])], &first), (1, 1));
        assert_eq!(of(&[], &first), (1, 1));
        // In this test, a node refers to a frame that is not in the table.
        assert_eq!(of(&[(0, &[2])], &first), (1, 2));
        // In this test, all stacks are the same chain of 4,096 frames. Each stack takes four bytes in the file.
        const DEEP: [u32; MAX_STACK_FRAMES] = [1; MAX_STACK_FRAMES];
        let stacks: Vec<_> = (0..10_000).map(|id| stack(id, THREADS[0], 1)).collect();
        let (found, errors) = of(&[(0, &DEEP)], &stacks);
        assert!(found > 256 && found < 1500 && found + errors == 10_000, "{found} {errors}");
    }
}
