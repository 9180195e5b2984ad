//! Defines the data that CUPTI passes to callbacks. The layouts of these structs are the same from CUPTI 11.8 to 13.5.
//!
//! All pointers in these structs belong to CUPTI or CUDA and are valid only during the callback, unless stated
//! otherwise.

use crate::{Site, Status};
use std::ffi::{c_char, c_void};
use std::mem::offset_of;

/// Data of a callback in the domains DRIVER_API and RUNTIME_API (`CUpti_CallbackData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallbackData {
    /// Whether the callback is made before or after the API call.
    pub site: Site,
    /// Name of the API call.
    pub function_name: *const c_char,
    /// Arguments of the API call, as a struct whose type depends on the call.
    pub function_params: *const c_void,
    /// Result of the API call, 32 bits (`CUresult` or `cudaError_t`). The result is valid only after the call.
    pub function_return_value: *const c_void,
    /// The kernel's mangled name if the API call is a launch, otherwise null.
    pub symbol_name: *const c_char,
    /// The current CUDA context (`CUcontext`). The pointer may be null before the first CUDA context is created.
    pub context: *mut c_void,
    /// CUPTI's id of the CUDA context.
    pub context_uid: u32,
    /// Pointer to a word that the client may set before the API call and read after the call. CUPTI sets the word to
    /// zero before the call.
    pub correlation_data: *mut u64,
    /// Correlation id that the activity records of the API call will contain.
    pub correlation_id: u32,
}

/// Data of a callback in the domain RESOURCE (`CUpti_ResourceData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ResourceData {
    /// The CUDA context (`CUcontext`).
    pub context: *mut c_void,
    /// The stream, if the callback is about a stream.
    pub stream: *mut c_void,
    /// Details of the resource: a [`GraphData`] for graphs, a [`ModuleResourceData`] for modules.
    pub descriptor: *const c_void,
}

/// Details of a callback about a CUDA graph (`CUpti_GraphData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GraphData {
    /// The graph that the callback is about.
    pub graph: *mut c_void,
    /// The graph from which `graph` was copied.
    pub original_graph: *mut c_void,
    /// The node that the callback is about.
    pub node: *mut c_void,
    /// The node from which `node` was copied.
    pub original_node: *mut c_void,
    /// Type of the node (`CUgraphNodeType`).
    pub node_type: u32,
    /// The other node, if the callback is about a dependency between two nodes.
    pub dependency: *mut c_void,
    /// The executable graph that the callback is about.
    pub graph_exec: *mut c_void,
}

/// Details of a cubin (`CUpti_ModuleResourceData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ModuleResourceData {
    /// CUPTI's id of the module.
    pub module_id: u32,
    /// Size of the cubin in bytes.
    pub cubin_size: usize,
    /// Content of the cubin.
    pub cubin: *const c_char,
}

/// Data of a callback in the domain SYNCHRONIZE (`CUpti_SynchronizeData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SynchronizeData {
    /// The CUDA context.
    pub context: *mut c_void,
    /// The stream for which the API call waited, or null if the call waited for a CUDA context.
    pub stream: *mut c_void,
}

/// Data of a callback in the domain STATE, which exists since CUPTI 12.2 (`CUpti_StateData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StateData {
    /// Status code of the error.
    pub result: Status,
    /// Message of the error. May be null.
    pub message: *const c_char,
}

/// In and out parameters of `cuptiSubscribe_v2` (`CUpti_SubscriberParams`), as of CUPTI 13.2. CUPTI 13.0 and 13.1 know
/// only the first 32 bytes, but accept this longer struct, because its first field is `struct_size`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SubscriberParams {
    /// Number of bytes of this struct that the caller has filled.
    pub struct_size: usize,
    /// Name of the caller, which CUPTI reports to a tool that tries to subscribe later.
    pub subscriber_name: *const c_char,
    /// Buffer for the name of the tool that has already subscribed.
    pub old_subscriber_name: *mut c_char,
    /// Size of `old_subscriber_name` in bytes.
    pub old_subscriber_size: usize,
    /// Whether other clients may also subscribe (13.2 and later).
    pub allow_multiple_subscribers: u8,
    /// Padding, which must be zero.
    pub padding: [u8; 7],
}

/// First fields of `CUpti_BufferCallbackCompleteInfo`, which the v2 buffer callback receives.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BufferCompleteInfo {
    /// Number of bytes of this struct that CUPTI has filled.
    pub struct_size: usize,
    /// The thread to which the buffer belongs.
    pub thread_id: u64,
}

const _: () = {
    assert!(size_of::<CallbackData>() == 72);
    assert!(offset_of!(CallbackData, function_name) == 8);
    assert!(offset_of!(CallbackData, function_params) == 16);
    assert!(offset_of!(CallbackData, function_return_value) == 24);
    assert!(offset_of!(CallbackData, symbol_name) == 32);
    assert!(offset_of!(CallbackData, context) == 40);
    assert!(offset_of!(CallbackData, context_uid) == 48);
    assert!(offset_of!(CallbackData, correlation_data) == 56);
    assert!(offset_of!(CallbackData, correlation_id) == 64);

    assert!(size_of::<ResourceData>() == 24);
    assert!(offset_of!(ResourceData, descriptor) == 16);

    assert!(size_of::<GraphData>() == 56);
    assert!(offset_of!(GraphData, node) == 16);
    assert!(offset_of!(GraphData, original_node) == 24);
    assert!(offset_of!(GraphData, node_type) == 32);
    assert!(offset_of!(GraphData, graph_exec) == 48);

    assert!(size_of::<ModuleResourceData>() == 24);
    assert!(offset_of!(ModuleResourceData, cubin) == 16);
    assert!(size_of::<SynchronizeData>() == 16);
    assert!(offset_of!(StateData, message) == 8);

    assert!(size_of::<SubscriberParams>() == 40);
    assert!(offset_of!(SubscriberParams, old_subscriber_name) == 16);
    assert!(offset_of!(SubscriberParams, allow_multiple_subscribers) == 32);
    assert!(offset_of!(BufferCompleteInfo, thread_id) == 8);
};
