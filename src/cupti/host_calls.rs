//! Handles callbacks about API calls other than simple launches. Information about waits, CUDA events and memory is
//! read from the arguments of API calls. CUPTI's resource callbacks report changes to CUDA graphs. A plain kernel
//! launch causes none of the callbacks that this module handles.

use super::callback_state::{CallbackState, return_value};
use crate::tracer::{
    AllocationKind, Call, CallKind, ClonedNode, GraphEvent, HostCallEffect, HostCallEvent, Tracer,
};
use cupti_sys::callback::{CallbackData, GraphData};
use cupti_sys::{CallbackId, Site};
use std::ffi::c_void;

/// Handles an API call that waits, handles a CUDA event, or allocates or frees memory.
#[cold]
pub(super) fn host_call<T: Tracer>(call: &mut Call<'_>, data: &CallbackData) {
    let is_free = call.kind == CallKind::Free;
    match data.site {
        Site::ENTER => {
            // SAFETY: for every call that frees memory, the first argument is a 64-bit address or handle. CUPTI passes
            // a struct with the arguments of the call, or null.
            let first = unsafe { data.function_params.cast::<u64>().as_ref() };
            let address = first.copied().filter(|_| is_free).unwrap_or(0);
            T::host_call(HostCallEvent::Begins { call, address });
        }
        Site::EXIT => {
            call.return_value = return_value(data);
            let done = match call.kind {
                _ if call.return_value != 0 => None,
                // SAFETY: this API call allocates memory, and has succeeded.
                CallKind::Allocate(kind) => unsafe { allocation_effect(kind, data.function_params) },
                CallKind::EventRecord | CallKind::EventWait => event_effect(call.kind, data),
                _ => None,
            };
            T::host_call(HostCallEvent::Ends { call, done: done.unwrap_or(HostCallEffect::Nothing) });
        }
        _ => {}
    }
}

/// Reads the address and the size of allocated memory from the arguments of the API call that allocated it.
///
/// # Safety
/// `arguments` must be null, or point to the arguments of an API call that has allocated memory of this kind.
unsafe fn allocation_effect(kind: AllocationKind, arguments: *const c_void) -> Option<HostCallEffect> {
    // SAFETY: the arguments of calls that allocate memory begin with a pointer to the address, followed by the size.
    // For a call that allocates rows, the arguments begin with a pointer to the address and a pointer to the pitch,
    // followed by the width and the number of rows.
    unsafe {
        let at = arguments.cast::<*const u64>().as_ref()?.as_ref()?;
        let bytes = match kind {
            AllocationKind::Pitched => {
                let arguments = &*arguments.cast::<[*const u64; 4]>();
                arguments[1].as_ref()?.checked_mul(arguments[3].addr() as u64)?
            }
            _ => (*arguments.cast::<[u64; 2]>())[1],
        };
        Some(HostCallEffect::Allocated { address: *at, bytes })
    }
}

/// Reads the handles of the CUDA event and the stream from the arguments of an API call that handles CUDA events.
fn event_effect(kind: CallKind, data: &CallbackData) -> Option<HostCallEffect> {
    // SAFETY: the arguments of calls that handle CUDA events begin with two handles, in both APIs and all versions.
    // CUPTI passes a struct with the arguments of the call, or null.
    let &[first, second] = unsafe { data.function_params.cast::<[u64; 2]>().as_ref() }?;
    Some(match kind {
        CallKind::EventRecord => HostCallEffect::Event { event: first, stream: second },
        _ => HostCallEffect::Event { event: second, stream: first },
    })
}

/// Configuration that the program passes to a launch with attributes (`cudaLaunchConfig_t`, `CUlaunchConfig`).
#[repr(C)]
struct LaunchConfig {
    grid_and_block: [u32; 6],
    shared_bytes: u64,
    stream: *mut c_void,
    attributes: *const LaunchAttribute,
    count: u32,
}

/// One attribute of a launch (`cudaLaunchAttribute`, `CUlaunchAttribute`).
#[repr(C)]
struct LaunchAttribute {
    id: u32,
    /// Value of the attribute, which comes after four unused bytes.
    value: [u32; 17],
}

const _: () = assert!(size_of::<LaunchConfig>() == 56 && size_of::<LaunchAttribute>() == 72);

/// Maximum number of attributes that are read per launch. CUDA 13.1 has 18 kinds of launch attributes.
const MAX_ATTRIBUTES: usize = 64;

impl LaunchAttribute {
    /// Whether this attribute lets the launch begin before the previous kernel ends. Two attributes let a launch begin
    /// before the previous kernel ends: attribute 6 (programmatic stream serialization) with a value other than 0, and
    /// attribute 7 (programmatic event).
    fn is_programmatic(&self) -> bool {
        self.id == 7 || self.id == 6 && self.value[1] != 0
    }
}

/// Handles a kernel launch that has attributes.
#[cold]
pub(super) fn launch_with_attributes<T: Tracer>(call: &Call<'_>, data: &CallbackData) {
    if data.site != Site::EXIT || return_value(data) != 0 {
        return;
    }
    // SAFETY: the arguments of launches with attributes begin with a pointer to a `LaunchConfig`, in both APIs and all
    // versions. The `LaunchConfig` lives until the call has returned. CUPTI passes a struct with the arguments of the
    // call, or null.
    let config = unsafe { data.function_params.cast::<*const LaunchConfig>().as_ref() };
    // SAFETY: the call has succeeded, so the pointer to the `LaunchConfig` was valid.
    let Some(config) = config.and_then(|config| unsafe { config.as_ref() }) else { return };
    let count = if config.attributes.is_null() { 0 } else { (config.count as usize).min(MAX_ATTRIBUTES) };
    // SAFETY: the launch has succeeded, so the array contains this number of attributes.
    let mut attributes = (0..count).map(|at| unsafe { &*config.attributes.add(at) });
    T::launch_attributes(call.correlation, attributes.any(LaunchAttribute::is_programmatic));
}

/// Handles an API call that creates or changes CUDA graphs. The arguments of such a call contain information that is
/// not in CUPTI's graph callbacks.
#[cold]
pub(super) fn graph_call<T: Tracer>(shared: &CallbackState, call: &Call<'_>, data: &CallbackData) {
    // SAFETY: calls that create or change graphs have at least two arguments of the size of a pointer, in both APIs and
    // all versions. CUPTI passes a struct with the arguments of the call, or null.
    let arguments = unsafe { data.function_params.cast::<[*mut c_void; 2]>().as_ref() };
    let second = arguments.and_then(|[_, second]| shared.graph_id(*second));
    match (call.kind, data.site) {
        (CallKind::GraphUpdate, Site::EXIT) => {
            let exec = arguments.map_or(0, |[exec, _]| exec.addr() as u64);
            if let (0, Some(source)) = (return_value(data), second) {
                T::graph(GraphEvent::ExecUpdated { exec, source, correlation: call.correlation });
            }
        }
        (CallKind::GraphUpdate, _) => {}
        (_, Site::ENTER) => {
            let becomes_part = shared.calls.adds_to_graph(call.api);
            T::graph(GraphEvent::CallBegins { call, into: second.filter(|_| becomes_part) });
        }
        _ => T::graph(GraphEvent::CallEnds(call)),
    }
}

/// Whether graph nodes of this type (`CUgraphNodeType`) take time for which there is no activity record. The node types
/// that take such time are host functions, child graphs, waits for CUDA events and semaphores, batched memory
/// operations, and conditional nodes.
fn may_wait_unseen(node_type: u32) -> bool {
    matches!(node_type, 3 | 4 | 6 | 9 | 12 | 13)
}

/// Converts CUPTI's resource callback about a CUDA graph to an event for the tracer.
pub(super) fn graph_event<'a>(
    shared: &CallbackState,
    id: &'a CallbackId,
    data: &GraphData,
) -> Option<GraphEvent<'a>> {
    let exec = data.graph_exec.addr() as u64;
    Some(match *id {
        CallbackId::GRAPH_NODE_CREATED => {
            let ids = shared.graph_id(data.graph).zip(shared.node_id(data.node));
            let waits = shared.events && may_wait_unseen(data.node_type);
            GraphEvent::NodeCreated { ids, waits_unseen: waits, frame: &id.0 }
        }
        CallbackId::GRAPH_DEPENDENCY_CREATED => {
            let nodes = shared.node_id(data.node).zip(shared.node_id(data.dependency));
            GraphEvent::EdgeCreated(shared.graph_id(data.graph).zip(nodes))
        }
        CallbackId::GRAPH_NODE_CLONED => {
            let ids = shared.node_id(data.node).zip(shared.node_id(data.original_node));
            let ids = shared.graph_id(data.graph).zip(ids);
            GraphEvent::NodeCloned(ids.map(|(graph, (node, original))| ClonedNode { graph, node, original }))
        }
        CallbackId::GRAPH_DESTROY_STARTING => GraphEvent::GraphEnds(shared.graph_id(data.graph)?),
        CallbackId::GRAPH_EXEC_CREATED => GraphEvent::ExecCreated(exec),
        CallbackId::GRAPH_EXEC_DESTROY_STARTING => GraphEvent::ExecEnds(exec),
        _ => return None,
    })
}
