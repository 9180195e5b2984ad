//! Prints C macros that compare our struct layouts with NVIDIA's headers, for `tests/cupti-wheels.sh`. For example, if
//! a field of `CUpti_ActivityKernel9` has another offset in NVIDIA's header than in our struct,
//! `CHECK_Kernel(CUpti_ActivityKernel9);` does not compile.

#![allow(clippy::print_stdout, reason = "the output is the point")]

use cupti_sys::UnifiedMemoryConfig;
use cupti_sys::callback::{
    CallbackData, GraphData, ModuleResourceData, ResourceData, StateData, SubscriberParams, SynchronizeData,
};
use cupti_sys::record::{
    ApiCall, CudaEvent, ExternalCorrelation, GraphTrace, Kernel, Memcpy, MemcpyPeer, Memset, Synchronization,
    UnifiedMemoryCounter, offset,
};
use std::mem::offset_of;

/// Prints a macro that compares the field offsets in one of our structs with those in NVIDIA's struct.
macro_rules! check {
    ($ours:ident: $($field:ident = $($theirs:tt).+),* $(,)?) => {
        println!("#define CHECK_{}(S) \\", stringify!($ours));
        $(assert_at(stringify!($($theirs).+), offset_of!($ours, $field));)*
        println!("  _Static_assert(sizeof(S) >= {}, #S)", size_of::<$ours>());
    };
}

/// Prints a macro that checks the offsets of fields that only some of NVIDIA's structs have.
fn check_late(name: &str, fields: &[(&str, usize)]) {
    println!("#define CHECK_{name}(S) \\");
    for (field, at) in fields {
        assert_at(field, *at);
    }
    println!("  _Static_assert(1, \"\")");
}

fn assert_at(field: &str, at: usize) {
    println!("  _Static_assert(offsetof(S, {field}) == {at}, #S \".{field}\"); \\");
}

fn main() {
    println!("#include <stddef.h>");
    check!(Kernel: kind = kind, registers_per_thread = registersPerThread, start = start, end = end,
        completed = completed, device_id = deviceId, context_id = contextId, stream_id = streamId,
        grid = gridX, block = blockX, static_shared_memory = staticSharedMemory,
        dynamic_shared_memory = dynamicSharedMemory, local_memory_per_thread = localMemoryPerThread,
        correlation_id = correlationId, grid_id = gridId, name = name, queued = queued,
        submitted = submitted, launch_type = launchType, graph_node_id = graphNodeId, graph_id = graphId);
    check!(Memcpy: kind = kind, copy_kind = copyKind, src_kind = srcKind, dst_kind = dstKind, flags = flags,
        bytes = bytes, start = start, end = end, device_id = deviceId, context_id = contextId,
        stream_id = streamId, correlation_id = correlationId, graph_node_id = graphNodeId, graph_id = graphId);
    check!(MemcpyPeer: kind = kind, copy_kind = copyKind, src_kind = srcKind, dst_kind = dstKind,
        flags = flags, bytes = bytes, start = start, end = end, device_id = deviceId,
        context_id = contextId, stream_id = streamId, src_device_id = srcDeviceId,
        src_context_id = srcContextId, dst_device_id = dstDeviceId, dst_context_id = dstContextId,
        correlation_id = correlationId, graph_node_id = graphNodeId, graph_id = graphId);
    check!(Memset: kind = kind, value = value, bytes = bytes, start = start, end = end, device_id = deviceId,
        context_id = contextId, stream_id = streamId, correlation_id = correlationId, flags = flags,
        memory_kind = memoryKind, graph_node_id = graphNodeId, graph_id = graphId);
    check!(Synchronization: kind = kind, sync_type = type, start = start, end = end,
        correlation_id = correlationId, context_id = contextId, stream_id = streamId,
        cuda_event_id = cudaEventId);
    check!(CudaEvent: kind = kind, correlation_id = correlationId, context_id = contextId,
        stream_id = streamId, event_id = eventId);
    check!(UnifiedMemoryCounter: kind = kind, counter_kind = counterKind, value = value, start = start,
        end = end, address = address, src_id = srcId, dst_id = dstId, stream_id = streamId,
        process_id = processId, flags = flags);
    check!(UnifiedMemoryConfig: scope = scope, kind = kind, device_id = deviceId, enable = enable);
    check!(GraphTrace: kind = kind, correlation_id = correlationId, start = start, end = end,
        device_id = deviceId, graph_id = graphId, context_id = contextId, stream_id = streamId);
    check!(ApiCall: kind = kind, cbid = cbid, start = start, end = end, process_id = processId,
        thread_id = threadId, correlation_id = correlationId, return_value = returnValue);
    check!(ExternalCorrelation: kind = kind, external_kind = externalKind, external_id = externalId,
        correlation_id = correlationId);

    let channel = |at| [("channelID", at), ("channelType", at + 4)];
    check_late("KernelChannel", &channel(offset::channel::KERNEL));
    check_late("MemcpyChannel", &channel(offset::channel::MEMCPY));
    check_late("MemcpyPeerChannel", &channel(offset::channel::MEMCPY_PEER));
    check_late("MemsetChannel", &channel(offset::channel::MEMSET));
    check_late("KernelCluster", &[("clusterX", offset::KERNEL_CLUSTER)]);
    check_late("KernelDeviceLaunched", &[("isDeviceLaunched", offset::KERNEL_IS_DEVICE_LAUNCHED)]);
    check_late("KernelPriority", &[("priority", offset::KERNEL_PRIORITY)]);
    check_late("MemcpyCount", &[("copyCount", offset::MEMCPY_COPY_COUNT)]);
    let sync_id = offset::SYNCHRONIZATION_SYNC_ID;
    let result = offset::SYNCHRONIZATION_RESULT;
    check_late("SynchronizationLate", &[("cudaEventSyncId", sync_id), ("returnValue", result)]);
    check_late("CudaEventSync", &[("cudaEventSyncId", offset::CUDA_EVENT_SYNC_ID)]);
    let source = |at| [("sourceGraphId", at), ("sourceGraphNodeId", at + 8)];
    check_late("KernelSource", &source(offset::source_graph::KERNEL));
    check_late("MemcpySource", &source(offset::source_graph::MEMCPY));
    check_late("MemsetSource", &source(offset::source_graph::MEMSET));

    check!(CallbackData: site = callbackSite, function_name = functionName,
        function_params = functionParams, function_return_value = functionReturnValue,
        symbol_name = symbolName, context = context, context_uid = contextUid,
        correlation_data = correlationData, correlation_id = correlationId);
    check!(ResourceData: context = context, stream = resourceHandle.stream, descriptor = resourceDescriptor);
    check!(GraphData: graph = graph, original_graph = originalGraph, node = node,
        original_node = originalNode, node_type = nodeType, dependency = dependency,
        graph_exec = graphExec);
    check!(ModuleResourceData: module_id = moduleId, cubin_size = cubinSize, cubin = pCubin);
    check!(SynchronizeData: context = context, stream = stream);
    check!(StateData: result = notification.result, message = notification.message);
    check!(SubscriberParams: struct_size = structSize, subscriber_name = subscriberName,
        old_subscriber_name = oldSubscriberName, old_subscriber_size = oldSubscriberSize,
        allow_multiple_subscribers = allowMultipleSubscribers);
}
