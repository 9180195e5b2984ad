//! Who made a call: its name, thread and stack, looked up once for each context.

use std::cell::RefCell;
use std::rc::Rc;

use super::clean;
use super::compose::{call, stack};
use super::frame::Frame;
use super::options::{GraphStacks, Names};
use super::source::source_line;
use crate::profile::{Place, Profile};
use crate::record::{ContextId, IdMap, ThreadId};

/// See the module's documentation.
pub(super) struct Callers<'a> {
    pub(super) profile: &'a Profile,
    known: RefCell<IdMap<ContextId, Rc<Caller>>>,
    sources: RefCell<IdMap<Place, Option<Rc<Source>>>>,
}

/// Where in the source a stack stands.
pub(super) struct Source {
    pub(super) language: &'static str,
    pub(super) file: String,
    pub(super) line: u32,
}

pub(super) struct Caller {
    /// The API call.
    pub(super) call: String,
    pub(super) thread: ThreadId,
    /// What the system calls the thread; empty where nobody knows.
    pub(super) thread_name: String,
    /// The frames, root first.
    pub(super) frames: Vec<CallerFrame>,
}

/// A frame of a caller's stack.
pub(super) struct CallerFrame {
    /// Fit for a folded stack.
    pub(super) text: String,
    /// The same with all that may stand between two `;`: a number at its end is no weight there, and to be folded when
    /// it is read again.
    pub(super) exact: String,
    /// The source file; empty where it is not known.
    pub(super) file: String,
    /// The line in it; 0 where it is not known.
    pub(super) line: u32,
    /// What it is: `p` a function of Python, `r` a range, `c` anything else.
    pub(super) letter: char,
}

impl Caller {
    /// The innermost frame whose source is known: what called.
    pub(super) fn source(&self) -> Option<&CallerFrame> {
        self.frames.iter().rev().find(|frame| !frame.file.is_empty())
    }

    /// What its frames are, a letter for each; empty where that is plain from themselves.
    pub(super) fn kinds(&self) -> String {
        let is_plain = self.frames.iter().all(|frame| frame.letter == 'c');
        if is_plain { String::new() } else { self.frames.iter().map(|frame| frame.letter).collect() }
    }

    /// The stack for formats that are read again.
    pub(super) fn exact_stack(&self) -> String {
        self.frames.iter().map(|frame| frame.exact.as_str()).collect::<Vec<_>>().join(";")
    }

    pub(super) fn stack(&self) -> String {
        self.frames.iter().map(|frame| frame.text.as_str()).collect::<Vec<_>>().join(";")
    }
}

impl<'a> Callers<'a> {
    pub(super) fn of(profile: &'a Profile) -> Self {
        Self { profile, known: RefCell::default(), sources: RefCell::default() }
    }

    pub(super) fn get(&self, context: ContextId) -> Rc<Caller> {
        let mut known = self.known.borrow_mut();
        Rc::clone(known.entry(context).or_insert_with(|| Rc::new(self.look_up(context))))
    }

    /// The innermost frame of a stack of which it is known where in the source it stands.
    pub(super) fn source(&self, place: Place) -> Option<Rc<Source>> {
        let look_up = || {
            let it = source_line(self.profile, place, Names::Kept)?;
            Some(Rc::new(Source { language: it.language, file: clean::text(it.file), line: it.line }))
        };
        self.sources.borrow_mut().entry(place).or_insert_with(look_up).clone()
    }

    fn look_up(&self, context: ContextId) -> Caller {
        let thread = self.profile.context(context).map_or(ThreadId(0), |context| context.thread);
        let thread_name = self.profile.thread(thread).unwrap_or_default();
        let frames = stack(self.profile, Place::Context(context), GraphStacks::Both, Names::Kept);
        Caller {
            call: call(self.profile, context).to_owned(),
            thread,
            thread_name: if thread_name.is_empty() { String::new() } else { clean::text(thread_name) },
            frames: frames.iter().map(|frame| self.frame(frame)).collect(),
        }
    }

    fn frame(&self, frame: &Frame<'_>) -> CallerFrame {
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
