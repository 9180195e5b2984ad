//! The columns of the activity table in Parquet and Arrow, and the source of their values.
//!
//! | column | type | what |
//! |---|---|---|
//! | `kind` | text | `kernel`, `copy`, `set`, `graph` |
//! | `name` | text | the kernel's name, the copy's direction, `memset` |
//! | `device`, `context`, `stream` | int | place where it ran |
//! | `correlation` | long | correlation id as the source has it, unique within a process; null if it has none |
//! | `start_ns`, `end_ns`, `duration_ns` | long | since 1970; null if not collected |
//! | `bytes` | long | moved or set |
//! | `graph`, `graph_node` | int, long | the graph it was part of |
//! | `grid_x` … `block_z`, `registers`, `static_shared`, `dynamic_shared` | int | kernels only |
//! | `call`, `stack` | text | the API call, and its frames, root first, separated by `;` |
//! | `language`, `file`, `line` | text, text, int | source location of the innermost frame that has one |
//! | `thread`, `thread_name` | int, text | the calling thread |
//! | `launch_ns`, `launch_duration_ns` | long | start and duration of the call |
//! | `reason` | text | why it has no stack or no time; null if it has both |
//!
//! The stack of a graph node continues with `[graph]` and the stack that created the node. Rows are sorted by time.

use std::rc::Rc;

use super::callers::{Caller, Callers, Source};
use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_explain::join::{Launched, Origin};
use gpuflame_export::clean;
use gpuflame_export::compose::{event_place, stack_names, work_name};
use gpuflame_model::profile::{Kind, Place, Profile};
use gpuflame_model::record::{Activity, ContextId, Detail, KernelDetail, Missing, Work};

/// Function that computes the value of a column for a row.
pub(super) enum Column {
    Int(fn(&Line<'_>) -> Option<i32>),
    Long(fn(&Line<'_>) -> Option<i64>),
    /// Key that determines the text. Many rows share few keys, so each text is created once.
    Text(fn(&Line<'_>) -> Option<Key>),
}

use Column::{Int, Long, Text};

pub(super) const COLUMNS: [(&str, Column); 31] = [
    ("kind", Text(|line| Some(Key::Kind(line.activity().work())))),
    ("name", Text(|line| Some(Key::Name(line.activity().work())))),
    ("device", Int(|line| Some(line.activity().device.0 as i32))),
    ("context", Int(|line| Some(line.activity().context.0 as i32))),
    ("stream", Int(|line| Some(line.activity().stream.0 as i32))),
    ("correlation", Long(|line| i64::try_from(line.correlation?).ok())),
    ("start_ns", Long(|line| line.timed().map(|activity| activity.start.0 as i64))),
    ("end_ns", Long(|line| line.timed().map(|activity| activity.end.0 as i64))),
    ("duration_ns", Long(|line| line.timed()?.duration().map(|nanos| nanos as i64))),
    ("bytes", Long(|line| Some(line.activity().bytes() as i64))),
    ("graph", Int(|line| Some(line.activity().graph.0 as i32).filter(|id| *id != 0))),
    ("graph_node", Long(|line| Some(line.activity().graph_node.0 as i64).filter(|id| *id != 0))),
    ("grid_x", Int(|line| Some(line.kernel()?.grid[0] as i32))),
    ("grid_y", Int(|line| Some(line.kernel()?.grid[1] as i32))),
    ("grid_z", Int(|line| Some(line.kernel()?.grid[2] as i32))),
    ("block_x", Int(|line| Some(line.kernel()?.block[0] as i32))),
    ("block_y", Int(|line| Some(line.kernel()?.block[1] as i32))),
    ("block_z", Int(|line| Some(line.kernel()?.block[2] as i32))),
    ("registers", Int(|line| Some(line.kernel()?.registers.into()))),
    ("static_shared", Int(|line| Some(line.kernel()?.static_shared as i32))),
    ("dynamic_shared", Int(|line| Some(line.kernel()?.dynamic_shared as i32))),
    ("call", Text(|line| line.caller().map(Key::Call))),
    ("stack", Text(|line| line.stack())),
    ("language", Text(|line| line.language())),
    ("file", Text(|line| line.source().map(|_| Key::File(line.place())))),
    ("line", Int(|line| Some(line.source()?.line as i32))),
    ("thread", Int(|line| Some(line.callers.get(line.caller()?).thread.0 as i32))),
    ("thread_name", Text(|line| line.caller().map(Key::ThreadName))),
    ("launch_ns", Long(|line| Some(line.launched()?.time.0 as i64))),
    ("launch_duration_ns", Long(|line| Some(line.launched()?.duration.into()))),
    ("reason", Text(|line| line.reason())),
];

/// Key that determines a text of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Kind of the work.
    Kind(Work),
    /// Name of the work.
    Name(Work),
    /// Name of a context's call.
    Call(ContextId),
    /// Name of a context's thread.
    ThreadName(ContextId),
    /// Stack of a context.
    Stack(ContextId),
    /// Stack of a place other than a plain context.
    Place(Place),
    /// Language of the innermost frame with a source.
    Language(&'static str),
    /// File of the innermost frame with a source.
    File(Place),
    /// Reason why the row has no stack, and whether it has no time.
    Reason(Option<Missing>, bool),
}

/// A row, with access to the row's names.
pub(super) struct Line<'a> {
    pub(super) profile: &'a Profile,
    pub(super) callers: &'a Callers<'a>,
    pub(super) event: &'a JoinedActivity,
    /// Correlation id as the source has it.
    pub(super) correlation: Option<u64>,
}

impl<'a> Line<'a> {
    pub(super) fn new(
        profile: &'a Profile,
        callers: &'a Callers<'a>,
        events: &JoinedRows,
        event: &'a JoinedActivity,
    ) -> Self {
        Self { profile, callers, event, correlation: events.source_id(event.activity.correlation) }
    }
}

impl Line<'_> {
    fn activity(&self) -> &Activity {
        &self.event.activity
    }

    fn timed(&self) -> Option<&Activity> {
        Some(self.activity()).filter(|activity| activity.duration().is_some())
    }

    fn kernel(&self) -> Option<&KernelDetail> {
        match &self.activity().detail {
            Detail::Kernel(kernel) => Some(kernel),
            Detail::Copy(_) | Detail::Set(_) | Detail::Graph => None,
        }
    }

    fn launched(&self) -> Option<Launched> {
        match self.event.origin {
            Origin::Launch(launched) => Some(launched),
            Origin::Missing(_) => None,
        }
    }

    fn caller(&self) -> Option<ContextId> {
        Some(self.launched()?.context).filter(|context| *context != ContextId::NONE)
    }

    fn stack(&self) -> Option<Key> {
        match self.activity().created {
            None => self.caller().map(Key::Stack),
            Some(_) => Some(Key::Place(self.place())),
        }
    }

    fn place(&self) -> Place {
        event_place(self.event)
    }

    fn source(&self) -> Option<Rc<Source>> {
        self.callers.source(self.place())
    }

    fn language(&self) -> Option<Key> {
        self.source().map(|source| source.language).filter(|it| !it.is_empty()).map(Key::Language)
    }

    fn reason(&self) -> Option<Key> {
        let (stack, is_untimed) = (self.event.origin.context().err(), self.timed().is_none());
        (stack.is_some() || is_untimed).then_some(Key::Reason(stack, is_untimed))
    }

    /// Returns the text for a key of this row.
    pub(super) fn text(&self, key: Key) -> String {
        let caller = |context| -> Rc<Caller> { self.callers.get(context) };
        match key {
            Key::Kind(work) => Kind::of(work).word().to_owned(),
            Key::Name(work) => clean::text(&work_name(self.profile, work)),
            Key::Call(context) => clean::text(&caller(context).call),
            Key::ThreadName(context) => caller(context).thread_name.clone(),
            Key::Stack(context) => caller(context).stack(),
            Key::Place(place) => {
                let names = stack_names(self.profile, place);
                names.iter().map(|name| clean::frame(name)).collect::<Vec<_>>().join(";")
            }
            Key::Language(language) => language.to_owned(),
            Key::File(place) => self.callers.source(place).map_or_else(String::new, |it| it.file.clone()),
            Key::Reason(stack, is_untimed) => {
                let untimed = is_untimed.then_some(Missing::Untimed);
                stack.into_iter().chain(untimed).map(Missing::word).collect::<Vec<_>>().join(" ")
            }
        }
    }
}
