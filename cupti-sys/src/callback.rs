//! Defines the structs that CUPTI passes to callbacks, whose layout is the same in CUPTI 11.8 to 13.5.
//!
//! All pointers in these structs belong to CUPTI or CUDA. These pointers are valid only during the callback, unless the
//! documentation of a field states otherwise.

use crate::{Site, Status};
use std::ffi::{c_char, c_void};
use std::mem::offset_of;

/// Data of a callback in the domains DRIVER_API and RUNTIME_API (`CUpti_CallbackData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallbackData {
    /// Whether this callback is made before or after the API call.
    pub site: Site,
    /// Name of the API call.
    pub function_name: *const c_char,
    /// Arguments of the API call, in a struct whose type depends on the call.
    pub function_params: *const c_void,
    /// Pointer to the 32-bit result of the API call (`CUresult` or `cudaError_t`). The pointer leads to a valid result
    /// only after the API call.
    pub function_return_value: *const c_void,
    /// Mangled name of the kernel if the API call is a launch; otherwise null.
    pub symbol_name: *const c_char,
    /// The CUDA context that is current (`CUcontext`). Before the first CUDA context is created, this pointer may be
    /// null.
    pub context: *mut c_void,
    /// CUPTI's id for this CUDA context.
    pub context_uid: u32,
    /// Pointer to a word of memory that CUPTI keeps for this API call. The client may set the word before the API call,
    /// and read it after the call. CUPTI sets the word to zero before the call.
    pub correlation_data: *mut u64,
    /// Correlation id of the API call, which the resulting activity records will contain.
    pub correlation_id: u32,
}

/// Data of a callback in the domain RESOURCE (`CUpti_ResourceData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ResourceData {
    /// The CUDA context that contains the resource (`CUcontext`).
    pub context: *mut c_void,
    /// The stream, if this callback is about a stream.
    pub stream: *mut c_void,
    /// Details of the resource: a [`GraphData`] for a graph, a [`ModuleResourceData`] for a module.
    pub descriptor: *const c_void,
}

/// Details of a callback about a CUDA graph (`CUpti_GraphData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GraphData {
    /// The graph that this callback is about.
    pub graph: *mut c_void,
    /// The graph from which `graph` was copied, if this callback is about a copy.
    pub original_graph: *mut c_void,
    /// The graph node that this callback is about.
    pub node: *mut c_void,
    /// The graph node from which `node` was copied, if this callback is about a copy.
    pub original_node: *mut c_void,
    /// Type of the graph node (`CUgraphNodeType`).
    pub node_type: u32,
    /// The other graph node, if this callback is about a dependency between two nodes.
    pub dependency: *mut c_void,
    /// The executable graph that this callback is about.
    pub graph_exec: *mut c_void,
}

/// Details of a cubin, which is a module of GPU code (`CUpti_ModuleResourceData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ModuleResourceData {
    /// CUPTI's id for the module.
    pub module_id: u32,
    /// Size of the cubin in bytes.
    pub cubin_size: usize,
    /// Bytes of the cubin.
    pub cubin: *const c_char,
}

/// Data of a callback in the domain SYNCHRONIZE (`CUpti_SynchronizeData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SynchronizeData {
    /// The CUDA context to which the wait belongs.
    pub context: *mut c_void,
    /// The stream for which the API call has waited; null if the call has waited for a CUDA context.
    pub stream: *mut c_void,
}

/// Data of a callback in the domain STATE, which exists since CUPTI 12.2 (`CUpti_StateData`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StateData {
    /// Status code of the error.
    pub result: Status,
    /// Message of the error. The pointer to the message may be null.
    pub message: *const c_char,
}

/// Input and output parameters of `cuptiSubscribe_v2` (`CUpti_SubscriberParams`), as of CUPTI 13.2. In CUPTI 13.0 and
/// 13.1, this struct has only its first 32 bytes. CUPTI 13.0 and 13.1 also accept the longer struct of CUPTI 13.2,
/// because the first field, `struct_size`, states the length of the struct.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SubscriberParams {
    /// Number of bytes in this struct that the caller has filled.
    pub struct_size: usize,
    /// Name of the caller. If another tool tries to subscribe later, CUPTI reports this name to that tool.
    pub subscriber_name: *const c_char,
    /// Buffer to which CUPTI writes the name of the tool that has already subscribed.
    pub old_subscriber_name: *mut c_char,
    /// Size of `old_subscriber_name` in bytes.
    pub old_subscriber_size: usize,
    /// Whether other clients may subscribe too (13.2 and later).
    pub allow_multiple_subscribers: u8,
    /// Padding bytes, which must be zero.
    pub padding: [u8; 7],
}

/// First fields of the struct `CUpti_BufferCallbackCompleteInfo`, which the v2 buffer callback receives.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BufferCompleteInfo {
    /// Number of bytes in this struct that CUPTI has filled.
    pub struct_size: usize,
    /// Id of the thread to which the buffer belongs.
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
