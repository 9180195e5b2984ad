//! The log of a run on the stepped clock: calls, GPU work and waits. The log stays in memory. When the driver shuts
//! down, the log is written as a schedule (`GPUSIM_TRUTH=schedule:PATH`) and as a Kineto trace (`GPUSIM_KINETO=PATH`,
//! see [`crate::kineto`]). Two runs of a program write the same files, because times count from the beginning of the
//! run and thread ids are computed from the indexes of declared threads.

use crate::clock;
use crate::context;
use crate::deps::Dependency;
use crate::kineto;
use crate::schedule::{Mark, Placed, Wait};
use crate::settings;
use crate::stream::Stream;
use crate::sync::lock;
use crate::thread::Thread;
use crate::truth::quoted;
use crate::work::{NodeRun, Work};
use std::ffi::CStr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

/// A row for a GPU operation: a kernel, copy or fill, or an operation without a [`Work`], such as a host function.
#[allow(missing_docs)]
pub struct OpRow {
    pub placed: Placed,
    pub thread: u32,
    pub correlation: u32,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    /// Name of the kind, as in the truth file; `host` for a host function, `pages` for a migration of unified memory.
    pub kind: &'static str,
    pub node: NodeRun,
    pub work: Option<Work>,
}

// SAFETY: the pointers in the work point to static names.
unsafe impl Send for OpRow {}

/// A row for a wait by a thread or by a stream.
#[allow(missing_docs)]
pub struct WaitRow {
    pub dependency: Dependency,
    pub thread: u32,
    pub device: u32,
    /// Id of the waiting stream's CUDA context. The wait's own context id may instead be the id of the CUDA event's
    /// context.
    pub stream_context: Option<u32>,
    /// The event record or the GPU work for which the thread or stream waits.
    pub target: Target,
}

/// The target of a wait: a record of a CUDA event, or GPU work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target {
    /// GPU work for which the thread or stream waits, and the time at which this work is done.
    pub mark: Mark,
    /// For a CUDA event: the correlation id of the call that recorded the event, and the id of the stream on which it
    /// was recorded.
    pub record: Option<(u32, u32)>,
}

/// A row for an API call that is not nested in another API call.
#[allow(missing_docs)]
pub struct CallRow {
    pub name: &'static CStr,
    pub is_driver: bool,
    pub cbid: u32,
    pub thread: u32,
    pub correlation: u32,
    pub begin: u64,
    pub end: u64,
    /// For a launch call with attributes: whether the launch is programmatic. `None` for all other calls.
    pub programmatic: Option<bool>,
}

/// A row for a call by a declared thread that may wait for other threads. Times are on the thread's own clock.
#[allow(missing_docs)]
pub struct ThreadWaitRow {
    pub name: &'static str,
    pub thread: u32,
    pub begin: u64,
    pub end: u64,
}

/// All rows of a program's run.
#[derive(Default)]
#[allow(missing_docs)]
pub struct Journal {
    pub ops: Vec<OpRow>,
    pub waits: Vec<WaitRow>,
    pub calls: Vec<CallRow>,
    pub thread_waits: Vec<ThreadWaitRow>,
}

/// Thread id of host thread 0 in the files. This number is also the process id in the files.
pub const MAIN_THREAD: u32 = 1_000;

static JOURNAL: Mutex<Journal> =
    Mutex::new(Journal { ops: Vec::new(), waits: Vec::new(), calls: Vec::new(), thread_waits: Vec::new() });

fn journal() -> Option<MutexGuard<'static, Journal>> {
    let settings = settings::get();
    let is_kept = settings.stepped && (settings.kineto.is_some() || settings.truth_schedule.is_some());
    is_kept.then(|| lock(&JOURNAL))
}

/// Returns a thread's id for the files. The id is computed from the thread's index; for an undeclared thread it is the
/// real thread id.
fn thread_id(thread: &Thread) -> u32 {
    thread.number.get().map_or(thread.tid, |number| MAIN_THREAD + number as u32)
}

/// Logs GPU work that the calling thread submitted.
pub fn op(
    thread: &Thread,
    placed: Placed,
    (device, context, stream): (u32, u32, u32),
    kind: &'static str,
    node: NodeRun,
    work: Option<Work>,
) {
    if let Some(mut journal) = journal() {
        let (thread, correlation) = (thread_id(thread), thread.correlation.get());
        journal.ops.push(OpRow { placed, thread, correlation, device, context, stream, kind, node, work });
    }
}

/// Logs a wait of a thread or a stream.
pub fn wait(thread: &Thread, dependency: Dependency, target: Target, stream: Option<&Stream>) {
    if let Some(mut journal) = journal() {
        let (thread, device) = (thread_id(thread), context::device_of(dependency.context));
        let stream_context = stream.map(|stream| stream.context.uid);
        journal.waits.push(WaitRow { dependency, thread, device, stream_context, target });
    }
}

/// Logs an API call that has ended.
pub fn call(thread: &Thread, name: &'static CStr, (domain, cbid): (u32, u32)) {
    let is_programmatic = thread.is_programmatic.take();
    if let Some(mut journal) = journal() {
        let has_attributes = name.to_string_lossy().contains("LaunchKernelEx");
        journal.calls.push(CallRow {
            name,
            is_driver: domain == crate::callback_ids::DRIVER,
            cbid,
            thread: thread_id(thread),
            correlation: thread.correlation.get(),
            begin: thread.enter.get(),
            end: clock::now(),
            programmatic: has_attributes.then_some(is_programmatic),
        });
    }
}

/// Logs a call in which the calling thread may have waited for other threads. `begin` and `end` are times on the
/// thread's clock.
pub fn thread_wait(thread: &Thread, name: &'static str, (begin, end): (u64, u64)) {
    if let Some(mut journal) = journal() {
        journal.thread_waits.push(ThreadWaitRow { name, thread: thread_id(thread), begin, end });
    }
}

/// Converts a clock time to the time in ns since the beginning of the run.
pub fn relative(time: u64) -> u64 {
    time.saturating_sub(clock::base())
}

/// Writes the files that the user requested.
pub fn write() {
    let Some(mut journal) = journal() else { return };
    journal.ops.sort_by_key(|row| row.placed.op);
    journal.waits.sort_by_key(|row| (row.dependency.start, row.thread, row.dependency.correlation));
    journal.calls.sort_by_key(|row| (row.begin, row.thread, row.correlation));
    journal.thread_waits.sort_by_key(|row| (row.begin, row.end, row.thread, row.name));
    let settings = settings::get();
    if let Some(path) = &settings.truth_schedule {
        save(path, &schedule(&journal));
    }
    if let Some(path) = &settings.kineto {
        save(path, &kineto::trace(&journal));
    }
}

fn save(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|e| crate::abort!("{}: {e}", path.display()));
}

fn schedule(journal: &Journal) -> String {
    let streams = sorted_streams();
    let calls = journal.calls.iter().map(call_line);
    let streams = streams.into_iter().map(stream_line);
    streams
        .chain(calls)
        .chain(journal.ops.iter().map(op_line))
        .chain(journal.waits.iter().map(wait_line))
        .chain(journal.thread_waits.iter().map(thread_wait_line))
        .collect()
}

/// Returns all streams, sorted by context and stream id.
pub fn sorted_streams() -> Vec<&'static Stream> {
    let mut streams: Vec<&'static Stream> = context::all_streams();
    streams.sort_by_key(|stream| (stream.context.uid, stream.id));
    streams
}

fn stream_line(stream: &'static Stream) -> String {
    format!(
        "{{\"what\":\"stream\",\"device\":{},\"context\":{},\"stream\":{},\"blocking\":{}}}\n",
        stream.context.device, stream.context.uid, stream.id, stream.is_blocking,
    )
}

fn call_line(row: &CallRow) -> String {
    format!(
        "{{\"what\":\"call\",\"corr\":{},\"thread\":{},\"name\":{},\"begin\":{},\"end\":{},\"programmatic\":{}}}\n",
        row.correlation,
        row.thread,
        quoted(Some(&row.name.to_string_lossy())),
        relative(row.begin),
        relative(row.end),
        row.programmatic.map_or("null".to_owned(), |is_programmatic| is_programmatic.to_string()),
    )
}

fn thread_wait_line(row: &ThreadWaitRow) -> String {
    let ThreadWaitRow { name, thread, begin, end } = row;
    format!(
        "{{\"what\":\"thread_wait\",\"name\":\"{name}\",\"thread\":{thread},\"begin\":{begin},\"end\":{end}}}\n"
    )
}

fn op_line(row: &OpRow) -> String {
    let placed = &row.placed;
    let name = row.work.and_then(|work| work.name()).map(CStr::to_string_lossy);
    let waits: Vec<String> = placed.waits.iter().map(wait_text).collect();
    format!(
        "{{\"what\":\"op\",\"op\":{},\"kind\":\"{}\",\"name\":{},\"corr\":{},\"thread\":{},\"device\":{},\
         \"context\":{},\"stream\":{},\"graph\":{},\"node\":{},\"programmatic\":{},\"enqueue\":{},\"arrive\":{},\"ready\":{},\"begin\":{},\
         \"end\":{},\"cause\":\"{}\",\"waits\":[{}]}}\n",
        placed.op,
        row.kind,
        quoted(name.as_deref()),
        row.correlation,
        row.thread,
        row.device,
        row.context,
        row.stream,
        row.node.graph,
        row.node.node,
        placed.is_programmatic,
        relative(placed.enqueue),
        relative(placed.arrive),
        relative(placed.ready),
        relative(placed.begin),
        relative(placed.end),
        placed.cause(),
        waits.join(","),
    )
}

fn wait_text(wait: &Wait) -> String {
    let until = relative(wait.until);
    format!("{{\"why\":\"{}\",\"op\":{},\"until\":{until}}}", wait.why.name(), wait.op)
}

fn wait_line(row: &WaitRow) -> String {
    let dependency = &row.dependency;
    let kind = ["record", "event", "stream_wait", "stream", "context"][dependency.wait as usize];
    let known = |id: u32| if id == crate::deps::NONE { "null".to_owned() } else { id.to_string() };
    format!(
        "{{\"what\":\"wait\",\"kind\":\"{kind}\",\"corr\":{},\"thread\":{},\"device\":{},\"context\":{},\"stream\":{},\
         \"stream_context\":{},\"event\":{},\"record\":{},\"op\":{},\"until\":{},\"begin\":{},\"end\":{},\
         \"result\":{}}}\n",
        dependency.correlation,
        row.thread,
        row.device,
        dependency.context,
        known(dependency.stream),
        row.stream_context.map_or("null".to_owned(), |context| context.to_string()),
        known(dependency.event),
        row.target.record.map_or("null".to_owned(), |(correlation, _)| correlation.to_string()),
        row.target.mark.op,
        relative(row.target.mark.time),
        relative(dependency.start),
        relative(dependency.end),
        dependency.result,
    )
}
