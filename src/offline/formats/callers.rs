//! Finds the caller of each launch context (stack and API call): the name of the call, the thread and the stack. Each
//! launch context is looked up only once.

use std::cell::RefCell;
use std::rc::Rc;

use gpuflame_export::clean;
use gpuflame_export::compose::{call, stack};
use gpuflame_export::frame::ComposedFrame;
use gpuflame_export::options::{GraphStacks, NameFolding};
use gpuflame_export::source::source_line;
use gpuflame_model::profile::{Profile, SampleSite};
use gpuflame_model::record::{ContextId, IdMap, ThreadId};

/// Cache of the callers and source locations that were looked up.
pub(super) struct Callers<'a> {
    pub(super) profile: &'a Profile,
    callers: RefCell<IdMap<ContextId, Rc<Caller>>>,
    sources: RefCell<IdMap<SampleSite, Option<Rc<StackSource>>>>,
}

/// Source location of the stack's innermost frame that has a known location.
pub(super) struct StackSource {
    pub(super) language: &'static str,
    pub(super) file: String,
    pub(super) line: u32,
}

pub(super) struct Caller {
    /// Name of the API call in the launch context.
    pub(super) call: String,
    pub(super) thread: ThreadId,
    /// Name that the operating system gives to the thread; empty if it is unknown.
    pub(super) thread_name: String,
    /// Frames of the stack, root first.
    pub(super) frames: Vec<CallerFrame>,
}

/// A frame of a caller's stack.
pub(super) struct CallerFrame {
    /// Frame text for folded stacks.
    pub(super) text: String,
    /// Frame text for formats that gpuflame can read again. The frame's text keeps all characters that are allowed
    /// between two `;`. A number at the end of the text is kept, because formats that gpuflame can read again store
    /// weights elsewhere. Numbers in names are kept too, because they are folded (replaced by `N`) only when the file
    /// is read.
    pub(super) exact: String,
    /// Source file; empty if it is unknown.
    pub(super) file: String,
    /// Line in the source file; 0 if it is unknown.
    pub(super) line: u32,
    /// Kind of the frame: `p` for Python, `r` for a range, `c` for a call or code.
    pub(super) letter: char,
}

impl Caller {
    /// Returns the innermost frame whose source is known. The returned frame is the calling function.
    pub(super) fn source(&self) -> Option<&CallerFrame> {
        self.frames.iter().rev().find(|frame| !frame.file.is_empty())
    }

    /// Returns one letter per frame of the caller's stack: the frame's kind. The returned string is empty if all frames
    /// are calls or code.
    pub(super) fn kinds(&self) -> String {
        let is_plain = self.frames.iter().all(|frame| frame.letter == 'c');
        if is_plain { String::new() } else { self.frames.iter().map(|frame| frame.letter).collect() }
    }

    /// Returns the stack with exact frame texts, for formats that gpuflame can read again.
    pub(super) fn exact_stack(&self) -> String {
        self.frames.iter().map(|frame| frame.exact.as_str()).collect::<Vec<_>>().join(";")
    }

    pub(super) fn stack(&self) -> String {
        self.frames.iter().map(|frame| frame.text.as_str()).collect::<Vec<_>>().join(";")
    }
}

impl<'a> Callers<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        Self { profile, callers: RefCell::default(), sources: RefCell::default() }
    }

    pub(super) fn get(&self, context: ContextId) -> Rc<Caller> {
        let mut callers = self.callers.borrow_mut();
        Rc::clone(callers.entry(context).or_insert_with(|| Rc::new(self.look_up(context))))
    }

    /// Returns the source location of the innermost frame whose location is known.
    pub(super) fn source(&self, site: SampleSite) -> Option<Rc<StackSource>> {
        let look_up = || {
            let it = source_line(self.profile, site, NameFolding::Kept)?;
            Some(Rc::new(StackSource { language: it.language, file: clean::text(it.file), line: it.line }))
        };
        self.sources.borrow_mut().entry(site).or_insert_with(look_up).clone()
    }

    fn look_up(&self, context: ContextId) -> Caller {
        let thread = self.profile.context(context).map_or(ThreadId(0), |context| context.thread);
        let thread_name = self.profile.thread(thread).unwrap_or_default();
        let frames = stack(self.profile, SampleSite::Context(context), GraphStacks::Both, NameFolding::Kept);
        Caller {
            call: call(self.profile, context).to_owned(),
            thread,
            thread_name: if thread_name.is_empty() { String::new() } else { clean::text(thread_name) },
            frames: frames.iter().map(|frame| self.frame(frame)).collect(),
        }
    }

    fn frame(&self, frame: &ComposedFrame<'_>) -> CallerFrame {
        let source = frame.id.and_then(|id| self.profile.shown_frame(id).source);
        let file = source.map(|source| clean::text(self.profile.strings().get(source.file)));
        CallerFrame {
            text: clean::frame(&frame.text).into_owned(),
            exact: frame.exact(),
            file: file.unwrap_or_default(),
            line: source.map_or(0, |source| source.line),
            letter: frame.letter(),
        }
    }
}
