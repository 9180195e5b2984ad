//! Records of CUDA events on streams, and waits by the host or by streams. Each record or wait becomes an activity
//! record of kind 36 or 38 and, on request, a line of the truth file. A call that is captured into a graph is not
//! logged, because it does not order any GPU work yet.

use crate::clock;
use crate::context::{self, Context};
use crate::journal::{self, Target};
use crate::schedule::{self, Mark};
use crate::settings;
use crate::stream::{Event, Stream};
use crate::table::{SWITCHES, with_hooks};
use crate::thread;
use crate::truth::quoted;
use crate::turn;
use crate::version::kind;
use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Kind of wait, with CUPTI's value for the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Wait {
    /// The host waits for an event.
    Event = 1,
    /// A stream waits for an event.
    StreamWaitEvent = 2,
    /// The host waits for a stream.
    Stream = 3,
    /// The host waits for a context.
    Context = 4,
}

/// Value of a field that has no meaning for this kind of record.
pub const NONE: u32 = u32::MAX;

/// Contents of the activity record for a recorded CUDA event or for a wait.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // the fields have the names of the record's fields
pub struct Dependency {
    pub kind: u32,
    /// Kind of the wait, as a value of [`Wait`], or 0 if the record describes a recorded CUDA event.
    pub wait: u32,
    pub start: u64,
    pub end: u64,
    pub correlation: u32,
    pub context: u32,
    pub stream: u32,
    pub event: u32,
    pub sync_id: u64,
    pub result: u32,
}

/// Sequence number of the next recording of a CUDA event.
static NEXT_SYNC_ID: AtomicU64 = AtomicU64::new(1);

/// Logs that a CUDA event was recorded on a stream. Returns the sequence number of this recording of the event.
pub fn recorded(event: &'static Event, stream: &'static Stream) -> u64 {
    let sync_id = NEXT_SYNC_ID.fetch_add(1, Relaxed);
    let dependency = Dependency {
        kind: kind::CUDA_EVENT,
        wait: 0,
        start: 0,
        end: 0,
        correlation: correlation(),
        context: stream.context.uid,
        stream: stream.id,
        event: event.id(),
        sync_id,
        result: 0,
    };
    let now = clock::now();
    journal::wait(
        thread::current(),
        Dependency { start: now, end: now, ..dependency },
        event.target(),
        Some(stream),
    );
    note(dependency);
    sync_id
}

/// Logs a wait that began at `start`. The wait is for an event, for a stream or, if neither is given, for a CUDA
/// context. The logged call may also be a query, which does not block. For a query that found unfinished GPU work,
/// `result` is not 0.
pub fn waited(
    wait: Wait,
    start: u64,
    context: u32,
    stream: Option<&'static Stream>,
    event: Option<&'static Event>,
    result: u32,
) {
    let dependency = Dependency {
        kind: kind::SYNCHRONIZATION,
        wait: wait as u32,
        start,
        end: clock::now(),
        correlation: correlation(),
        context,
        stream: stream.map_or(NONE, |stream| stream.id),
        event: event.map_or(NONE, |event| event.id()),
        sync_id: event.map_or(NONE.into(), |event| event.sync_id()),
        result,
    };
    if settings::get().stepped {
        let target = match (event, stream) {
            (Some(event), _) => event.target(),
            (None, Some(stream)) => Target { mark: schedule::head(stream), record: None },
            (None, None) => {
                let mark = context::of_uid(context).map_or(Mark::default(), Context::head);
                Target { mark, record: None }
            }
        };
        journal::wait(thread::current(), dependency, target, stream);
    }
    note(dependency);
}

/// Returns the correlation id for the activity records of the current call. If the nested call has its own id, returns
/// that id; otherwise returns the id of the outer call.
fn correlation() -> u32 {
    let thread = thread::current();
    match thread.nested_correlation.get() {
        0 => thread.correlation.get(),
        nested => nested,
    }
}

fn note(mut dependency: Dependency) {
    // A start of 0 means that the start is unknown, so 0 is not shifted by the clock's offset.
    if dependency.start != 0 {
        dependency.start += turn::shift();
        dependency.end += turn::shift();
    }
    let is_wanted = dependency.result == 0 || SWITCHES.all_syncs.load(Relaxed);
    if is_wanted && SWITCHES.kinds.load(Relaxed) & (1 << dependency.kind) != 0 {
        with_hooks(|hooks| (hooks.dependency)(&dependency));
    }
    if truth().is_some() {
        tell(&line(&dependency));
    }
}

/// Adds a line to the truth file of dependencies and page moves, if the user requested that file.
pub(crate) fn tell(line: &str) {
    if let Some(mut truth) = truth() {
        truth.write_all(line.as_bytes()).unwrap_or_else(|e| crate::abort!("truth file: {e}"));
    }
}

/// Returns the truth file of dependencies and page moves, if the user requested that file. Each line is written
/// immediately, without a buffer, which costs little because there are few lines.
fn truth() -> Option<&'static File> {
    static TRUTH: OnceLock<Option<File>> = OnceLock::new();
    let create = || {
        let path = settings::get().truth_deps.as_ref()?;
        Some(File::create(path).unwrap_or_else(|e| crate::abort!("truth file {}: {e}", path.display())))
    };
    TRUTH.get_or_init(create).as_ref()
}

fn line(dependency: &Dependency) -> String {
    let thread = thread::current();
    let what = match dependency.wait {
        0 => "event_record",
        1 => "event",
        2 => "stream_wait",
        3 => "stream",
        _ => "context",
    };
    // SAFETY: the name of an API call is a string literal.
    let api = unsafe { CStr::from_ptr(thread.api.get()) }.to_string_lossy();
    let known = |id: u64| if id == u64::from(NONE) { "null".to_owned() } else { id.to_string() };
    format!(
        "{{\"what\":\"{what}\",\"corr\":{},\"tid\":{},\"site\":{},\"api\":{},\"context\":{},\"stream\":{},\
         \"event\":{},\"sync_id\":{},\"start\":{},\"end\":{},\"result\":{}}}\n",
        dependency.correlation,
        thread.tid,
        quoted(thread.site.get().map(|site| site.path())),
        quoted(Some(&api)),
        dependency.context,
        known(dependency.stream.into()),
        known(dependency.event.into()),
        known(dependency.sync_id),
        dependency.start,
        dependency.end,
        dependency.result,
    )
}
