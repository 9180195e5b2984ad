//! Writes the definitions of the ids that sums contain, as rows for a file to which the process keeps appending. The
//! ids identify stacks, modules and threads, and the names of kernels, API calls, NVTX ranges and functions. Each
//! definition is written once.

use super::Explain;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{
    Chunk, CodeId, ContextId, Frame, IdMap, LabelId, NameId, RangeId, Row, ThreadId,
};

/// Definitions that were already written to the file.
#[derive(Debug, Default)]
pub struct Definitions {
    process: bool,
    provenance: usize,
    labels: IdMap<LabelId, ()>,
    ranges: IdMap<RangeId, ()>,
    codes: IdMap<CodeId, ()>,
    kernels: IdMap<NameId, ()>,
    threads: IdMap<ThreadId, ()>,
    contexts: IdMap<ContextId, ()>,
    modules: usize,
    frames: Vec<Frame>,
}

impl Explain {
    /// Appends definitions that are not in `written` yet to `chunk`, until `chunk` has `max_bytes` bytes. Returns false
    /// if more definitions remain to be written.
    pub fn write_definitions(&self, written: &mut Definitions, chunk: &mut Chunk, max_bytes: usize) -> bool {
        let Self { profile, contexts, .. } = self;
        written.write_without_contexts(profile, chunk, max_bytes)
            && written.contexts(profile, contexts.merges_threads(), chunk, max_bytes)
    }
}

impl Definitions {
    /// Writes the same definitions as [`Explain::write_definitions`], except the contexts.
    pub(super) fn write_without_contexts(
        &mut self,
        profile: &Profile,
        chunk: &mut Chunk,
        max_bytes: usize,
    ) -> bool {
        self.write_small(profile, chunk);
        self.kernels(profile, chunk, max_bytes)
    }

    /// Writes definitions of the kinds that are few or small, such as modules and threads. The total size of these
    /// definitions is not limited.
    fn write_small(&mut self, profile: &Profile, chunk: &mut Chunk) {
        if let Some((id, name)) = profile.process().filter(|_| !self.process) {
            self.process = true;
            chunk.row(&Row::Process { id, name });
        }
        let facts = profile.provenance().skip(self.provenance);
        facts.for_each(|(what, text)| chunk.row(&Row::Provenance { what, text }));
        self.provenance = profile.provenance().len();
        for module in &profile.modules()[self.modules..] {
            chunk.row(&Row::Module(module.clone()));
        }
        self.modules = profile.modules().len();
        let labels = profile.labels().filter(|(id, _)| self.labels.insert(*id, ()).is_none());
        labels.for_each(|(id, text)| chunk.row(&Row::Label { id, text }));
        let ranges = profile.ranges().filter(|(id, _)| self.ranges.insert(*id, ()).is_none());
        for (id, shown) in ranges {
            let (domain, text) = range(shown);
            chunk.row(&Row::Range { id, domain, text });
        }
        let codes = profile.codes().filter(|code| self.codes.insert(code.id, ()).is_none());
        codes.for_each(|code| chunk.row(&Row::Code(code)));
        let threads = profile.threads().filter(|(id, _)| self.threads.insert(*id, ()).is_none());
        threads.for_each(|(id, name)| chunk.row(&Row::Thread { id, name }));
    }

    fn kernels(&mut self, profile: &Profile, chunk: &mut Chunk, max_bytes: usize) -> bool {
        if self.kernels.len() == profile.kernel_count() {
            return true;
        }
        for (id, text) in profile.kernel_names() {
            if chunk.len() >= max_bytes {
                return false;
            }
            if self.kernels.insert(id, ()).is_none() {
                chunk.row(&Row::Name { id, text });
            }
        }
        true
    }

    /// Writes the definitions of contexts. If threads are merged, contexts are written without a thread, because the
    /// profile knows only the thread on which a stack occurred first.
    fn contexts(&mut self, profile: &Profile, are_merged: bool, chunk: &mut Chunk, max_bytes: usize) -> bool {
        if self.contexts.len() == profile.all_contexts().len() {
            return true;
        }
        for (id, context) in profile.all_contexts() {
            if chunk.len() >= max_bytes {
                return false;
            }
            if self.contexts.insert(id, ()).is_none() {
                self.frames.clear();
                self.frames.extend(profile.stack(context.stack).map(|frame| profile.frames()[frame.index()]));
                let thread = if are_merged { ThreadId::OTHERS } else { context.thread };
                chunk.row(&Row::Context { id, thread, flags: context.flags, frames: &self.frames });
            }
        }
        true
    }
}

/// Splits the displayed form of an NVTX range into the range's domain and text.
fn range(shown: &str) -> (&str, &str) {
    let inside = shown.strip_prefix("[range").and_then(|rest| rest.split_once(']'));
    inside.map_or(("", shown), |(domain, text)| (domain.trim_start_matches(' '), text))
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn range_labels_are_parsed_into_domain_and_text() {
        assert_eq!(range("[range]step"), ("", "step"));
        assert_eq!(range("[range]a]b"), ("", "a]b"));
        assert_eq!(range("[range nccl]All Reduce"), ("nccl", "All Reduce"));
    }
}
