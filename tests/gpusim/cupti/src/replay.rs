//! Replays a recording to the client instead of simulating. The recording contains the callbacks and buffers that a
//! real CUPTI delivered to the recorder in `tests/gpu/probe`. The client receives them in the recorded order, each on a
//! thread that represents the recorded thread. Callbacks and activity kinds that the client has not enabled are
//! omitted. A program starts the replay by calling [`gpusim_replay`] after `cuInit`.

use crate::buffers::Buffer;
use crate::callbacks::HOOKS;
use crate::link::core;
use crate::subscriber::GLOBAL;
use gpusim_core::api::Call;
use gpusim_core::callback_ids::{DRIVER, RUNTIME};
use gpusim_core::sync::lock;
use gpusim_core::table::resource;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Replays the recording at `path`. Returns 0; on an error, prints a message to stderr and returns 1.
#[unsafe(no_mangle)]
extern "C" fn gpusim_replay(path: *const c_char) -> i32 {
    // SAFETY: the caller passes a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy();
    match play(&path) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("gpusim: {path}: {reason}");
            1
        }
    }
}

fn play(path: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let mut rows = Vec::new();
    for (i, line) in text.lines().enumerate() {
        rows.push(serde_json::from_str::<Value>(line).map_err(|e| format!("line {}: {e}", i + 1))?);
    }
    if rows.first().is_none_or(|head| head["recording"] != 1) {
        return Err("the first line does not say that this is a recording".into());
    }
    learn_sizes(&rows);
    core().ok_or("there is no libcuda")?.switches.api_seen.store(true, Relaxed);
    let mut threads = HashMap::new();
    for row in rows {
        let id = row["thread"].as_u64().unwrap_or(0);
        let name = row["thread_name"].as_str().unwrap_or("gpusim-replay").to_owned();
        threads.entry(id).or_insert_with(|| Player::start(name)).play(row)?;
    }
    Ok(())
}

/// A thread that represents a recorded thread.
struct Player {
    rows: Sender<Value>,
    done: Receiver<Result<(), String>>,
}

impl Player {
    fn start(name: String) -> Player {
        let (rows, inbox) = channel();
        let (answer, done) = channel();
        if let Err(e) = std::thread::Builder::new().name(name).spawn(move || serve(&inbox, &answer)) {
            gpusim_core::abort!("no thread to replay on: {e}");
        }
        Player { rows, done }
    }

    /// Replays a row of the recording, and waits until the client has handled the row, so that the rows keep their
    /// order.
    fn play(&self, row: Value) -> Result<(), String> {
        self.rows.send(row).map_err(|e| e.to_string())?;
        self.done.recv().map_err(|e| e.to_string())?
    }
}

/// Replays rows until the EXIT row of the current API call or, outside of API calls, until the recording ends. A nested
/// API call is also nested on this thread's stack, because a client may use the stack pointer to decide whether a call
/// is still in progress.
fn serve(inbox: &Receiver<Value>, answer: &Sender<Result<(), String>>) {
    while let Ok(row) = inbox.recv() {
        if row["call"] == "exit" {
            return EXITING.with_borrow_mut(|exiting| *exiting = Some(row));
        }
        let result = if row["call"] == "enter" { serve_call(&row, inbox, answer) } else { serve_other(&row) };
        if answer.send(result).is_err() {
            return;
        }
    }
}

thread_local! {
    /// The EXIT row at which the innermost [`serve`] returned.
    static EXITING: RefCell<Option<Value>> = const { RefCell::new(None) };
}

fn number(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or(0)
}

/// Returns a C string that is never freed, like CUPTI's strings; NULL for an empty text.
fn lasting(text: &Value) -> *const c_char {
    match text.as_str() {
        None | Some("") => null(),
        Some(text) => CString::new(text).map_or(null(), |text| text.into_raw().cast_const()),
    }
}

fn serve_other(row: &Value) -> Result<(), String> {
    if let Some(id) = row["resource"].as_u64() {
        match id as u32 {
            // Create the context when its row is replayed; the creation itself makes the callback to the client.
            resource::CONTEXT_CREATED => drop(context(1)?),
            id => {
                let mut graph = GraphData::of(row, id);
                (HOOKS.resource)(id, context(1)?, null_mut(), (&raw mut graph).cast());
            }
        }
    } else if let Some(id) = row["wait"].as_u64() {
        (HOOKS.synchronize)(id as u32, context(1)?, null_mut());
    } else if row.get("buffer").is_some() {
        serve_buffer(row)?;
    }
    (0..number(row, "dropped")).for_each(|_| GLOBAL.buffers.count_dropped());
    Ok(())
}

/// Returns the context that represents a recorded context: the primary context, or NULL for the id 0.
fn context(uid: u32) -> Result<*mut c_void, String> {
    let mut context = null_mut();
    match core().map_or(0, |core| if uid == 0 { 0 } else { (core.primary)(0, &mut context) }) {
        0 => Ok(context),
        error => Err(format!("no device to play on: error {error}")),
    }
}

/// CUpti_GraphData, with handles for which [`recorded_id`] knows the recorded ids.
#[repr(C)]
struct GraphData {
    graph: *mut c_void,
    original_graph: *mut c_void,
    node: *mut c_void,
    original_node: *mut c_void,
    node_type: u32,
    dependency: *mut c_void,
    exec: *mut c_void,
}

impl GraphData {
    fn of(row: &Value, id: u32) -> GraphData {
        let original = handle(number(row, "original"));
        let of_graph = id == resource::GRAPH_CLONED;
        if id == resource::GRAPHEXEC_CREATED {
            let mut instances = lock(&INSTANCES);
            instances.push((instance(row) as u64, number(row, "exec")));
        }
        GraphData {
            graph: handle(number(row, "graph")),
            original_graph: if of_graph { original } else { null_mut() },
            node: handle(number(row, "node")),
            original_node: if of_graph { null_mut() } else { original },
            node_type: 0,
            dependency: null_mut(),
            exec: instance(row),
        }
    }
}

/// Base of the made-up handles, which is higher than any address in a process.
const RECORDED: u64 = 0x6770_0000_0000_0000;
const TAG: u64 = 0xffff_0000_0000_0000;

/// Returns the made-up handle of the graph or graph node with this id.
fn handle(id: u64) -> *mut c_void {
    if id == 0 { null_mut() } else { (RECORDED | id) as *mut c_void }
}

/// Returns the made-up address of an instantiated graph: the recorded address, moved to a range that no process uses.
fn instance(row: &Value) -> *mut c_void {
    handle(number(row, "handle") & !TAG)
}

/// Made-up addresses of instantiated graphs, with their ids; an address may be reused.
static INSTANCES: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Returns the id of a graph, node or instantiated graph whose handle comes from a recording.
pub(crate) fn recorded_id(handle: *mut c_void) -> Option<u64> {
    let handle = handle as u64;
    if handle & TAG != RECORDED {
        return None;
    }
    let instances = lock(&INSTANCES);
    let known = instances.iter().rev().find(|(address, _)| *address == handle).map(|(_, id)| *id);
    Some(known.unwrap_or(handle & !TAG))
}

fn serve_call(
    row: &Value,
    inbox: &Receiver<Value>,
    answer: &Sender<Result<(), String>>,
) -> Result<(), String> {
    let (domain, id) = (number(row, "domain") as u32, number(row, "id") as u32);
    let is_on = matches!(domain, DRIVER | RUNTIME) && core().is_some_and(|c| c.switches.is_on(domain, id));
    // Arguments of the replayed API call. Of the arguments, the recording contains only the graph and the instantiated
    // graph. The array contains enough zeroes for every struct that a client reads.
    let mut arguments = [0_u64; 32];
    arguments[0] = instance(row) as u64;
    arguments[1] = handle(number(row, "graph")) as u64;
    let mut call = Call::new(domain, id, c"", &arguments, lasting(&row["symbol"]));
    call.name = lasting(&row["name"]);
    call.correlation = number(row, "corr") as u32;
    if is_on {
        let uid = number(row, "context") as u32;
        (HOOKS.api)(&mut call, 0, null(), context(uid)?, uid);
    }
    let _ = answer.send(Ok(()));
    serve(inbox, answer);
    if let Some(row) = EXITING.take().filter(|_| is_on) {
        let (uid, result) = (number(&row, "context") as u32, number(&row, "result") as u32);
        (HOOKS.api)(&mut call, 1, &result, context(uid)?, uid);
    }
    Ok(())
}

/// Offset of the name pointer in a kernel's activity record.
const NAME: usize = 104;
const KERNELS: [u32; 2] = [3, 10];

fn serve_buffer(row: &Value) -> Result<(), String> {
    let bytes = bytes_of(row)?;
    let names = row["names"].as_array().cloned().unwrap_or_default();
    let mut records: Vec<Vec<u8>> = Vec::new();
    for (place, record) in split(row, &bytes).into_iter().enumerate() {
        let mut record =
            record.ok_or_else(|| format!("buffer {}: record {place} is cut short", row["buffer"]))?.to_vec();
        let kind = kind_of(&record);
        if GLOBAL.kinds.load(Relaxed) & 1_u64.checked_shl(kind).unwrap_or(0) == 0 {
            continue;
        }
        if KERNELS.contains(&kind) {
            let name = names.get(place).map_or(null(), lasting) as u64;
            record[NAME..NAME + 8].copy_from_slice(&name.to_ne_bytes());
        }
        records.push(record);
    }
    let size = records.iter().map(Vec::len).sum();
    if size == 0 {
        return Ok(());
    }
    let mut buffer =
        Buffer::request(GLOBAL, size).ok_or("the client has no buffer as large as the recorded one")?;
    for record in records {
        buffer.append(record.len()).copy_from_slice(&record);
        buffer.progress().complete_one();
    }
    buffer.hand_back();
    Ok(())
}

fn bytes_of(row: &Value) -> Result<Vec<u8>, String> {
    let hex = row["hex"].as_str().unwrap_or_default().as_bytes();
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    hex.chunks(2)
        .map(byte)
        .collect::<Option<_>>()
        .ok_or_else(|| format!("buffer {}: not hexadecimal", row["buffer"]))
}

/// Splits a recorded buffer into its activity records. A record is `None` if it extends past the buffer's end or is
/// shorter than its mandatory fields.
fn split<'a>(row: &Value, bytes: &'a [u8]) -> Vec<Option<&'a [u8]>> {
    let mut at: Vec<usize> =
        row["at"].as_array().into_iter().flatten().map(|v| v.as_u64().unwrap_or(0) as usize).collect();
    at.push(bytes.len());
    let record = |pair: &[usize]| {
        bytes.get(pair[0]..pair[1]).filter(|record| {
            let shortest = if record.len() >= 4 && KERNELS.contains(&kind_of(record)) { NAME + 8 } else { 4 };
            record.len() >= shortest
        })
    };
    at.windows(2).map(record).collect()
}

fn kind_of(record: &[u8]) -> u32 {
    record.first_chunk::<4>().map_or(0, |kind| u32::from_ne_bytes(*kind))
}

/// Sizes of activity records, keyed by kind. The sizes are computed from the recording, because the simulation may not
/// know the recording's CUPTI version.
static SIZES: AtomicPtr<HashMap<u32, usize>> = AtomicPtr::new(null_mut());

fn learn_sizes(rows: &[Value]) {
    let mut sizes = HashMap::new();
    for row in rows.iter().filter(|row| row.get("buffer").is_some()) {
        let bytes = bytes_of(row).unwrap_or_default();
        sizes.extend(split(row, &bytes).into_iter().flatten().map(|record| (kind_of(record), record.len())));
    }
    SIZES.store(Box::into_raw(Box::new(sizes)), Relaxed);
}

/// Returns the size of an activity record of this kind in the replayed recording, if the recording has such records.
pub(crate) fn record_size(kind: u32) -> Option<usize> {
    // SAFETY: only `learn_sizes` stores a pointer in SIZES, and its maps are never freed.
    unsafe { SIZES.load(Relaxed).as_ref() }.and_then(|sizes| sizes.get(&kind).copied())
}
