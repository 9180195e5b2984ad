//! Selects the API calls that matter to gpuflame by their names, and classifies these calls.
//!
//! CUPTI has ids for about 1,400 API calls, and every CUPTI release adds more. Therefore this module contains no list
//! of ids. Instead, the module queries the name of each API call once at startup. The module enables callbacks for
//! calls that begin GPU work (launches, copies, fills) and for calls that end it (resets). The module never enables the
//! callbacks of a whole domain, because domains contain frequent calls that do not matter. For example, a training run
//! made 1.7 million launches, and also 6.1 million `cudaEventQuery` calls.

use crate::tracer::{AllocationKind, ApiCallId, CallKind};
use cupti_sys::Domain;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the kind of the API call that `cuptiGetCallbackName` calls `name`. Returns `None` if gpuflame does not need
/// the call.
pub fn classify(name: &str) -> Option<CallKind> {
    let label = label(name);
    let verb = label.strip_prefix("cuda").or_else(|| label.strip_prefix("cu"))?;
    match verb {
        "DeviceReset" | "ThreadExit" => return Some(CallKind::DeviceReset),
        "CtxDestroy" | "DevicePrimaryCtxReset" | "DevicePrimaryCtxRelease" => {
            return Some(CallKind::ContextDestroy);
        }
        "ProfilerStart" => return Some(CallKind::ProfilerStart),
        "ProfilerStop" => return Some(CallKind::ProfilerStop),
        "GraphAddChildGraphNode" | "GraphClone" => return Some(CallKind::GraphCopy),
        "GraphExecUpdate" => return Some(CallKind::GraphUpdate),
        _ if verb.starts_with("GraphInstantiate") => return Some(CallKind::GraphCopy),
        _ if verb.starts_with("GraphAdd") && verb.contains("Node") => return Some(CallKind::GraphNode),
        _ if SIMILAR_NAMES.iter().any(|word| verb.contains(word)) => return None,
        _ => {}
    }
    let sync = !verb.contains("Async");
    if verb.starts_with("Launch") {
        Some(CallKind::Launch)
    } else if verb.starts_with("GraphLaunch") {
        Some(CallKind::GraphLaunch)
    } else if verb.starts_with("Memcpy") || is_prefetch(verb) {
        Some(CallKind::Copy { sync })
    } else if verb.starts_with("Memset") {
        Some(CallKind::Set { sync })
    } else {
        None
    }
}

/// Returns the kind of a host call, which creates no GPU work. A host call waits for GPU work, or handles CUDA events
/// or memory. Returns `None` if `name` is not the name of a host call. Calls that handle CUDA events are enabled only
/// if the user requests them.
pub fn classify_host_call(name: &str) -> Option<CallKind> {
    let label = label(name);
    let verb = label.strip_prefix("cuda").or_else(|| label.strip_prefix("cu"))?;
    Some(match verb {
        "DeviceSynchronize" | "ThreadSynchronize" | "CtxSynchronize" | "StreamSynchronize"
        | "EventSynchronize" => CallKind::Wait,
        "EventRecord" | "EventRecordWithFlags" => CallKind::EventRecord,
        "StreamWaitEvent" => CallKind::EventWait,
        "Malloc"
        | "MallocAsync"
        | "MallocFromPoolAsync"
        | "MemAlloc"
        | "MemAllocAsync"
        | "MemAllocFromPoolAsync"
        | "MemCreate" => CallKind::Allocate(AllocationKind::Device),
        "MallocPitch" | "MemAllocPitch" => CallKind::Allocate(AllocationKind::Pitched),
        "MallocHost" | "HostAlloc" | "MemAllocHost" | "MemHostAlloc" => {
            CallKind::Allocate(AllocationKind::Pinned)
        }
        "MallocManaged" | "MemAllocManaged" => CallKind::Allocate(AllocationKind::Managed),
        "Free" | "FreeAsync" | "FreeHost" | "MemFree" | "MemFreeAsync" | "MemFreeHost" | "MemRelease" => {
            CallKind::Free
        }
        _ => return None,
    })
}

/// Words in the names of API calls that start no GPU work. Without this list, such calls would be classified as a
/// launch, a copy or a fill, because their names begin in the same way. API calls with such a word in their name query
/// or describe something, or run a function on the host (`cudaLaunchHostFunc` has no activity).
const SIMILAR_NAMES: [&str; 6] = ["HostFunc", "Node", "Params", "Get", "SetAttribute", "Occupancy"];

fn is_prefetch(verb: &str) -> bool {
    verb.starts_with("Mem") && verb.contains("Prefetch")
}

/// Returns the name of an API call in the form that programmers use. Removes the suffixes for versions (`_v7000`,
/// `_v2`) and for per-thread streams (`_ptsz`, `_ptds`). Removes the leading underscores of the functions that nvcc
/// calls for `<<<>>>`. Also removes the `64` at the end of names of calls that once had a second version for 64-bit
/// addresses.
pub fn label(name: &str) -> String {
    let mut stem = name.trim_start_matches('_');
    while let Some((rest, suffix)) = stem.rsplit_once('_') {
        if !is_suffix(suffix) {
            break;
        }
        stem = rest;
    }
    match stem.strip_prefix("cu64") {
        Some(rest) => format!("cu{rest}"),
        None => stem.to_owned(),
    }
}

fn is_suffix(word: &str) -> bool {
    let is_version = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    matches!(word, "ptsz" | "ptds") || word.strip_prefix('v').is_some_and(is_version)
}

/// Upper limit for callback ids, which determines the size of the table. An API call whose id is this limit or higher
/// cannot be looked up. The highest id in CUPTI 13.5 is 876.
pub(super) const MAX_CALLBACK_ID: u32 = 2048;

/// Table of the enabled API calls, keyed by domain and callback id. The table is flat and lock-free, because every
/// callback reads it.
pub(super) struct CallTable {
    driver: [AtomicU32; MAX_CALLBACK_ID as usize],
    runtime: [AtomicU32; MAX_CALLBACK_ID as usize],
    labels: OnceLock<Vec<String>>,
}

/// Kinds of API calls, in the order of the numeric codes that stand for them in the table. The codes of the kinds start
/// at 1. The low 16 bits of a table entry contain the index of the label, and the higher bits contain the code of the
/// kind. The code 0 means that the call is not enabled.
const KINDS: [CallKind; 22] = [
    CallKind::Launch,
    CallKind::LaunchWithAttributes,
    CallKind::GraphLaunch,
    CallKind::Copy { sync: false },
    CallKind::Copy { sync: true },
    CallKind::Set { sync: false },
    CallKind::Set { sync: true },
    CallKind::DeviceReset,
    CallKind::ContextDestroy,
    CallKind::GraphNode,
    CallKind::GraphCopy,
    CallKind::GraphUpdate,
    CallKind::Wait,
    CallKind::EventRecord,
    CallKind::EventWait,
    CallKind::Allocate(AllocationKind::Device),
    CallKind::Allocate(AllocationKind::Pitched),
    CallKind::Allocate(AllocationKind::Pinned),
    CallKind::Allocate(AllocationKind::Managed),
    CallKind::Free,
    CallKind::ProfilerStart,
    CallKind::ProfilerStop,
];

impl CallTable {
    /// Creates a table that contains no enabled API call.
    pub(super) fn new() -> Self {
        Self {
            driver: [const { AtomicU32::new(0) }; MAX_CALLBACK_ID as usize],
            runtime: [const { AtomicU32::new(0) }; MAX_CALLBACK_ID as usize],
            labels: OnceLock::new(),
        }
    }

    /// Adds the API calls in `calls` to the table. This function is called once, before the first API call is enabled.
    pub(super) fn fill(&self, calls: &[NamedCall]) {
        let mut labels: Vec<String> = Vec::new();
        for call in calls {
            let label = label(&call.name);
            let index = labels.iter().position(|known| *known == label).unwrap_or_else(|| {
                labels.push(label);
                labels.len() - 1
            });
            if let Some(entry) = self.entry(call.domain, call.id) {
                entry.store(encode(index as u16, call.kind), Ordering::Relaxed);
            }
        }
        let _ = self.labels.set(labels);
    }

    /// Returns the label id and the kind of an API call. Returns `None` if the API call is not enabled. The look-up
    /// costs only one load and one bounds check.
    #[inline]
    pub(super) fn look_up(&self, domain: Domain, id: u32) -> Option<(ApiCallId, CallKind)> {
        let entry = self.entry(domain, id)?.load(Ordering::Relaxed);
        let code = (entry >> 16).checked_sub(1)?;
        Some((ApiCallId(entry as u16), *KINDS.get(code as usize)?))
    }

    /// Whether an API call that edits a graph adds nodes to an existing graph. The existing graph is the second
    /// argument of the call.
    pub(super) fn adds_to_graph(&self, call: ApiCallId) -> bool {
        self.labels().get(usize::from(call.0)).is_some_and(|label| label.contains("GraphAdd"))
    }

    /// Whether an API call that waits returns only after all work on a GPU has ended.
    pub(super) fn waits_for_all(&self, call: ApiCallId) -> bool {
        let all = ["DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize"];
        let label = self.labels().get(usize::from(call.0));
        label.is_some_and(|label| all.iter().any(|name| label.ends_with(name)))
    }

    /// Removes all API calls from the table. After the removal, CUPTI's callbacks still arrive, but do nothing.
    pub(super) fn clear(&self) {
        for entry in self.driver.iter().chain(&self.runtime) {
            entry.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the labels of API calls, indexed by [`ApiCallId`]. The list is empty before [`CallTable::fill`] was
    /// called.
    pub(super) fn labels(&self) -> &[String] {
        self.labels.get().map_or(&[], Vec::as_slice)
    }

    fn entry(&self, domain: Domain, id: u32) -> Option<&AtomicU32> {
        let table = if domain == Domain::DRIVER_API { &self.driver } else { &self.runtime };
        table.get(id as usize)
    }
}

fn encode(label: u16, kind: CallKind) -> u32 {
    let code = KINDS.iter().position(|known| *known == kind).map_or(0, |at| at as u32 + 1);
    code << 16 | u32::from(label)
}

/// An API call that matters to gpuflame: CUPTI's ids for the call, and CUPTI's name for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedCall {
    pub(super) domain: Domain,
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) kind: CallKind,
}

#[cfg(test)]
#[path = "calls_test.rs"]
mod tests;
