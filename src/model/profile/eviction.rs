//! Shrinks a profile that has reached its memory limit, by merging stacks, kernels and threads into "other" entries.
//!
//! The functions of this module return the new ids of merged entries. A caller that stores sums by id must add the sum
//! of each old id to the sum of its new id. Totals stay the same, but the merged stacks (or kernels, or threads) can no
//! longer be distinguished.

use std::collections::BTreeMap;

use super::{
    Context, Index, KernelName, NodeId, PrefixTree, Profile, Sample, ShownFrame, StackId, StringTable,
    intern_frame, strings,
};
use crate::record::{ContextFlags, ContextId, Frame, FrameKind, IdMap, LabelId, NameId, ThreadId, map_bytes};

/// Maximum number of recently named threads that keep their names although they have no stack yet. Between two reads of
/// the threads' logs, a program rarely starts more threads than this number.
const MAX_NEWEST_THREADS: usize = 256;
/// Name of the frame that represents merged stacks.
pub const OTHER_STACKS: &str = "[other stacks]";
/// Name of the frame that represents merged kernels.
pub const OTHER_KERNELS: &str = "[other kernels]";
/// Name of the frame that represents merged threads.
pub const OTHER_THREADS: &str = "[other threads]";

impl Profile {
    /// Keeps only the contexts for which `keep` returns true, and the frames of their stacks. Returns a replacement for
    /// each dropped context: the merged context for the API function that the dropped stack called.
    pub fn keep_contexts(&mut self, keep: impl Fn(ContextId) -> bool) -> IdMap<ContextId, ContextId> {
        self.drop_shown();
        let frames = std::mem::take(&mut self.frames);
        self.frame_index = Index::default();
        let stacks = std::mem::take(&mut self.stacks).without_index();
        let contexts = std::mem::take(&mut self.contexts);
        let firsts = std::mem::take(&mut self.first_with);
        let mut ids: Vec<ContextId> = contexts.keys().copied().collect();
        ids.sort_unstable();
        let (mut replacements, mut stack) = (IdMap::default(), Vec::new());
        // New position of each frame that was already copied to the new table. The table makes it unnecessary to hash
        // each frame of hundreds of thousands of stacks, which share a few thousand frames.
        let mut kept_at = vec![None; frames.len()];
        for id in ids {
            let Context { thread, flags, stack: StackId(node) } = contexts[&id];
            if id.is_others() || keep(id) {
                stack.clear();
                stack.extend(stacks.symbols_to_root(node));
                let Self { frames: kept, frame_index, stacks, .. } = self;
                let root_first = stack.iter().rev().map(|&frame| {
                    let at = &mut kept_at[frame as usize];
                    *at.get_or_insert_with(|| intern_frame(kept, frame_index, frames[frame as usize]))
                });
                let stack = StackId(stacks.chain(NodeId::ROOT, root_first));
                self.contexts.insert(id, Context { thread, flags, stack });
            } else {
                let mut leaf_first = stacks.symbols_to_root(node).map(|frame| frames[frame as usize]);
                let call = leaf_first.find(|frame| matches!(frame.kind(), FrameKind::Label(_)));
                replacements.insert(id, self.merged_context(call));
            }
        }
        self.merged_context(None);
        let kept = firsts.into_iter().filter_map(|((_, flags, thread), id)| {
            let node = self.contexts.get(&id)?.stack.0;
            Some(((node, flags, thread), id))
        });
        self.first_with = kept.collect();
        replacements
    }

    /// Keeps only the names of the kernels for which `keep` returns true. All other kernels are merged into
    /// [`NameId::OTHERS`].
    pub fn keep_kernels(&mut self, keep: impl Fn(NameId) -> bool) {
        self.kernels.retain(|id| id == NameId::OTHERS || keep(id));
        let others = self.strings.intern(OTHER_KERNELS);
        self.kernels.add(NameId::OTHERS, KernelName { symbol: others, shown: Some(others) });
        let texts = |name: &KernelName| [Some(name.symbol), name.shown.filter(|shown| *shown != name.symbol)];
        let texts = self.kernels.iter().flat_map(|(_, name)| texts(name)).flatten();
        self.kernel_text = texts.map(|text| strings::bytes(self.strings.get(text))).sum();
        self.drop_shown();
    }

    /// Adds a thread to the list of recently named threads. If the list is full, its oldest thread is forgotten.
    pub(super) fn note_newest_thread(&mut self, id: ThreadId) {
        if self.newest_threads.len() == MAX_NEWEST_THREADS {
            self.newest_threads.remove(0);
        }
        self.newest_threads.push(id);
    }

    /// Keeps only the names of threads that have a context, and the names of the recently named threads. A recently
    /// named thread may have no context yet, because the collector may read the name of a thread before the thread's
    /// first context. Returns the number of dropped thread names.
    pub fn keep_threads(&mut self) -> usize {
        let all = self.threads.len();
        let mut of_contexts: Vec<ThreadId> = self.contexts.values().map(|context| context.thread).collect();
        of_contexts.sort_unstable();
        let newest = &self.newest_threads;
        self.threads.retain(|id, _| of_contexts.binary_search(id).is_ok() || newest.contains(id));
        self.drop_shown();
        all - self.threads.len()
    }

    /// Drops the displayed frames, the displayed stacks and the samples of every view. Dropped displayed stacks and
    /// samples are rebuilt before the next output is written. The ids of displayed frames, displayed stacks and strings
    /// may be different after this call.
    pub fn drop_shown(&mut self) {
        self.renumbered += 1;
        self.samples = BTreeMap::new();
        self.works = Vec::new();
        self.shown_frames = Vec::new();
        self.shown_index = Index::default();
        self.shown = PrefixTree::default();
        self.shown_contexts = IdMap::default();
        self.pauses.clear();
        self.keep_strings();
    }

    /// Returns how many times frames, stacks and strings may have been renumbered. If this number has changed, the
    /// caller must drop all ids of frames, stacks and strings that it stored before.
    pub fn renumbered(&self) -> u32 {
        self.renumbered
    }

    /// Returns the number of contexts, except merged contexts.
    pub fn context_count(&self) -> usize {
        self.contexts.keys().filter(|id| !id.is_others()).count()
    }

    /// Returns the number of threads with a name.
    pub fn thread_count(&self) -> usize {
        self.threads.len()
    }

    /// Returns the number of kernels with a name.
    pub fn kernel_count(&self) -> usize {
        self.kernels.len()
    }

    /// Returns the size of the stack tree: the number of nodes, and the number of frames in the nodes.
    pub fn stack_size(&self) -> (usize, usize) {
        (self.stacks.node_count(), self.stacks.symbols())
    }

    /// Returns the heap size of contexts and their stacks in bytes.
    pub fn context_bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
            + self.frame_index.heap_bytes()
            + self.stacks.heap_bytes()
            + map_bytes(&self.contexts)
            + map_bytes(&self.first_with)
    }

    /// Returns the heap size of displayed frames, displayed stacks and samples in bytes.
    pub fn shown_bytes(&self) -> usize {
        self.shown.heap_bytes()
            + self.shown_frames.capacity() * size_of::<ShownFrame>()
            + self.shown_index.heap_bytes()
            + map_bytes(&self.shown_contexts)
            + self.samples.values().map(|samples| samples.capacity() * size_of::<Sample>()).sum::<usize>()
    }

    /// Returns an upper bound on the heap size in bytes of kernels and their names. (The exact size is unknown, because
    /// tables grow by doubling.)
    pub fn kernel_bytes(&self) -> usize {
        2 * self.kernel_text + self.kernels.heap_bytes()
    }

    /// Returns the merged context for stacks that called the API function named by the label frame `call`. The merged
    /// context is created when it is first requested.
    pub fn merged_context(&mut self, call: Option<Frame>) -> ContextId {
        let id = match call.map(Frame::kind) {
            // The ids of labels for API calls are small. Only a few special labels, such as `OTHER_CALL`, have the
            // highest ids.
            Some(FrameKind::Label(LabelId::OTHER_CALL)) => ContextId(ContextId::OTHERS.0 + 1),
            Some(FrameKind::Label(label)) if label.0 < 1 << 16 => {
                ContextId(ContextId::OTHERS.0 + 2 + label.0)
            }
            _ => ContextId::OTHERS,
        };
        if !self.contexts.contains_key(&id) {
            let text = self.strings.intern(OTHER_STACKS);
            self.labels.insert(LabelId::OTHER_STACKS, text);
            let others = Frame::label(LabelId::OTHER_STACKS);
            let stack = [call.filter(|_| id != ContextId::OTHERS), Some(others)];
            let stack: Vec<Frame> = stack.into_iter().flatten().collect();
            let stack = StackId(self.intern_stack(&stack));
            let (thread, flags) = (ThreadId::OTHERS, ContextFlags::default());
            self.contexts.insert(id, Context { thread, flags, stack });
            let text = self.strings.intern(OTHER_THREADS);
            self.threads.insert(ThreadId::OTHERS, text);
        }
        id
    }

    /// Drops all strings that are no longer in use.
    fn keep_strings(&mut self) {
        let old = std::mem::take(&mut self.strings);
        let mut strings = StringTable::default();
        let kernels = self.kernels.values_mut();
        let kernels = kernels.flat_map(|name| [Some(&mut name.symbol), name.shown.as_mut()]).flatten();
        let maps = self.labels.values_mut().chain(self.ranges.values_mut()).chain(kernels);
        let process = self.process.as_mut().map(|(_, name)| name);
        for text in maps.chain(self.threads.values_mut()).chain(process) {
            *text = strings.intern(old.get(*text));
        }
        self.strings = strings;
    }
}
