//! The columns of the activity table in Parquet and Arrow files, and the functions that compute their values.
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
//! For a graph node, the stack continues with `[graph]` and the stack that created the node. The rows of the table are
//! sorted by time.

use std::rc::Rc;

use super::callers::{Caller, Callers, StackSource};
use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_explain::join::{Launched, Origin};
use gpuflame_export::clean;
use gpuflame_export::compose::{event_site, stack_names, work_name};
use gpuflame_model::profile::{Profile, SampleSite, ShownFrameKind};
use gpuflame_model::record::{Activity, ContextId, Detail, KernelDetail, Missing, Work};

/// Function that computes the value of a column from a row.
pub(super) enum Column {
    Int(fn(&ActivityRow<'_>) -> Option<i32>),
    Long(fn(&ActivityRow<'_>) -> Option<i64>),
    /// For a text column, the function returns the key of the text instead of the text itself. Many rows share the same
    /// few keys, so the text of each key is created only once.
    Text(fn(&ActivityRow<'_>) -> Option<TextKey>),
}

use Column::{Int, Long, Text};

pub(super) const COLUMNS: [(&str, Column); 31] = [
    ("kind", Text(|row| Some(TextKey::Kind(row.activity().work())))),
    ("name", Text(|row| Some(TextKey::Name(row.activity().work())))),
    ("device", Int(|row| Some(row.activity().device.0 as i32))),
    ("context", Int(|row| Some(row.activity().context.0 as i32))),
    ("stream", Int(|row| Some(row.activity().stream.0 as i32))),
    ("correlation", Long(|row| i64::try_from(row.correlation?).ok())),
    ("start_ns", Long(|row| row.timed().map(|activity| activity.start.0 as i64))),
    ("end_ns", Long(|row| row.timed().map(|activity| activity.end.0 as i64))),
    ("duration_ns", Long(|row| row.timed()?.duration().map(|nanos| nanos as i64))),
    ("bytes", Long(|row| Some(row.activity().bytes() as i64))),
    ("graph", Int(|row| Some(row.activity().graph.0 as i32).filter(|id| *id != 0))),
    ("graph_node", Long(|row| Some(row.activity().graph_node.0 as i64).filter(|id| *id != 0))),
    ("grid_x", Int(|row| Some(row.kernel()?.grid[0] as i32))),
    ("grid_y", Int(|row| Some(row.kernel()?.grid[1] as i32))),
    ("grid_z", Int(|row| Some(row.kernel()?.grid[2] as i32))),
    ("block_x", Int(|row| Some(row.kernel()?.block[0] as i32))),
    ("block_y", Int(|row| Some(row.kernel()?.block[1] as i32))),
    ("block_z", Int(|row| Some(row.kernel()?.block[2] as i32))),
    ("registers", Int(|row| Some(row.kernel()?.registers.into()))),
    ("static_shared", Int(|row| Some(row.kernel()?.static_shared as i32))),
    ("dynamic_shared", Int(|row| Some(row.kernel()?.dynamic_shared as i32))),
    ("call", Text(|row| row.caller().map(TextKey::Call))),
    ("stack", Text(|row| row.stack())),
    ("language", Text(|row| row.language())),
    ("file", Text(|row| row.source().map(|_| TextKey::File(row.site())))),
    ("line", Int(|row| Some(row.source()?.line as i32))),
    ("thread", Int(|row| Some(row.callers.get(row.caller()?).thread.0 as i32))),
    ("thread_name", Text(|row| row.caller().map(TextKey::ThreadName))),
    ("launch_ns", Long(|row| Some(row.launched()?.time.0 as i64))),
    ("launch_duration_ns", Long(|row| Some(row.launched()?.duration.into()))),
    ("reason", Text(|row| row.reason())),
];

/// Key from which the text of a table cell is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TextKey {
    /// Kind of the GPU work.
    Kind(Work),
    /// Name of the GPU work.
    Name(Work),
    /// Name of the API call in a launch context (stack and API call).
    Call(ContextId),
    /// Name of the thread to which a launch context belongs.
    ThreadName(ContextId),
    /// The stack of a launch context.
    Stack(ContextId),
    /// Stack of a graph node: the launch, `[graph]` and the stack that created the node.
    SampleSite(SampleSite),
    /// Source language of the innermost frame whose source is known.
    Language(&'static str),
    /// Source file of the innermost frame whose source is known.
    File(SampleSite),
    /// Reason why the row has no stack, and whether the row lacks a time.
    Reason(Option<Missing>, bool),
}

/// A row of the activity table, and the tables in which its names are looked up.
pub(super) struct ActivityRow<'a> {
    pub(super) profile: &'a Profile,
    pub(super) callers: &'a Callers<'a>,
    pub(super) event: JoinedActivity,
    /// Correlation id of the activity in the file that was read.
    pub(super) correlation: Option<u64>,
}

impl<'a> ActivityRow<'a> {
    pub(super) fn new(
        profile: &'a Profile,
        callers: &'a Callers<'a>,
        events: &JoinedRows,
        event: JoinedActivity,
    ) -> Self {
        Self { profile, callers, event, correlation: events.source_id(event.activity.correlation) }
    }
}

impl ActivityRow<'_> {
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

    fn stack(&self) -> Option<TextKey> {
        match self.activity().created {
            None => self.caller().map(TextKey::Stack),
            Some(_) => Some(TextKey::SampleSite(self.site())),
        }
    }

    fn site(&self) -> SampleSite {
        event_site(&self.event)
    }

    fn source(&self) -> Option<Rc<StackSource>> {
        self.callers.source(self.site())
    }

    fn language(&self) -> Option<TextKey> {
        self.source().map(|source| source.language).filter(|it| !it.is_empty()).map(TextKey::Language)
    }

    fn reason(&self) -> Option<TextKey> {
        let (stack, is_untimed) = (self.event.origin.context().err(), self.timed().is_none());
        (stack.is_some() || is_untimed).then_some(TextKey::Reason(stack, is_untimed))
    }

    /// Returns the text for `key`, a key that a column returned for this row.
    pub(super) fn text(&self, key: TextKey) -> String {
        let caller = |context| -> Rc<Caller> { self.callers.get(context) };
        match key {
            TextKey::Kind(work) => ShownFrameKind::for_work(work).word().to_owned(),
            TextKey::Name(work) => clean::text(&work_name(self.profile, work)),
            TextKey::Call(context) => clean::text(&caller(context).call),
            TextKey::ThreadName(context) => caller(context).thread_name.clone(),
            TextKey::Stack(context) => caller(context).stack(),
            TextKey::SampleSite(site) => {
                let names = stack_names(self.profile, site);
                names.iter().map(|name| clean::frame(name)).collect::<Vec<_>>().join(";")
            }
            TextKey::Language(language) => language.to_owned(),
            TextKey::File(site) => self.callers.source(site).map_or_else(String::new, |it| it.file.clone()),
            TextKey::Reason(stack, is_untimed) => {
                let untimed = is_untimed.then_some(Missing::Untimed);
                stack.into_iter().chain(untimed).map(Missing::word).collect::<Vec<_>>().join(" ")
            }
        }
    }
}
