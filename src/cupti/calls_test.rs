//! Tests the patterns that classify API calls by their names. The names are those that CUPTI 11.8 to 13.5 returns.

use super::*;

const COPY: Option<CallKind> = Some(CallKind::Copy { sync: true });
const COPY_ASYNC: Option<CallKind> = Some(CallKind::Copy { sync: false });
const SET: Option<CallKind> = Some(CallKind::Set { sync: true });
const SET_ASYNC: Option<CallKind> = Some(CallKind::Set { sync: false });

fn all_are(kind: Option<CallKind>, names: &str) {
    for name in names.split_whitespace() {
        assert_eq!(classify(name), kind, "{name}");
    }
}

#[test]
fn every_way_to_launch_a_kernel_is_a_launch() {
    all_are(
        Some(CallKind::Launch),
        "cudaLaunch_v3020 cudaLaunch_ptsz_v7000 cudaLaunchKernel_v7000 cudaLaunchKernel_ptsz_v7000
         cudaLaunchCooperativeKernel_v9000 cudaLaunchCooperativeKernel_ptsz_v9000
         cudaLaunchCooperativeKernelMultiDevice_v9000 cudaLaunchKernelExC_v11060
         cudaLaunchKernelExC_ptsz_v11060 __cudaLaunchKernel_v13000 __cudaLaunchKernel_ptsz_v13000
         cuLaunch cuLaunchGrid cuLaunchGridAsync cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx
         cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz
         cuLaunchCooperativeKernelMultiDevice",
    );
}

#[test]
fn a_graph_launch_is_distinguished_from_a_kernel_launch() {
    all_are(
        Some(CallKind::GraphLaunch),
        "cudaGraphLaunch_v10000 cudaGraphLaunch_ptsz_v10000 cuGraphLaunch cuGraphLaunch_ptsz
         cuGraphLaunchWithArguments",
    );
}

#[test]
fn a_copy_without_async_in_its_name_is_synchronous() {
    all_are(
        COPY,
        "cudaMemcpy_v3020 cudaMemcpy2D_v3020 cudaMemcpyToArray_v3020 cudaMemcpy2DArrayToArray_v3020
         cudaMemcpyToSymbol_v3020 cudaMemcpyFromSymbol_ptds_v7000 cudaMemcpy3D_v3020 cudaMemcpyPeer_v4000
         cudaMemcpy3DPeer_ptds_v7000 cudaMemcpy_ptds_v7000 cuMemcpyHtoD cu64MemcpyHtoD cuMemcpyDtoH_v2
         cuMemcpyAtoA_v2_ptds cuMemcpy cuMemcpy_v2 cuMemcpy_ptds cuMemcpy2DUnaligned_v2 cu64Memcpy3D
         cuMemcpy3DPeer cuMemcpyPeer_ptds",
    );
}

#[test]
fn async_and_batch_copies_and_prefetches_are_asynchronous() {
    all_are(
        COPY_ASYNC,
        "cudaMemcpyAsync_v3020 cudaMemcpyAsync_ptsz_v7000 cudaMemcpy2DToArrayAsync_v3020
         cudaMemcpyToSymbolAsync_ptsz_v7000 cudaMemcpy3DPeerAsync_v4000 cudaMemcpyBatchAsync_v12080
         cudaMemcpy3DBatchAsync_ptsz_v13000 cudaMemcpyWithAttributesAsync_v13020
         cudaMemcpy3DWithAttributesAsync_ptsz_v13020 cudaMemPrefetchAsync_v8000
         cudaMemPrefetchAsync_ptsz_v12020 cudaMemPrefetchBatchAsync_v13000
         cudaMemDiscardAndPrefetchBatchAsync_v13000 cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2_ptsz
         cu64MemcpyDtoDAsync cuMemcpyAsync cuMemcpyPeerAsync_ptsz cuMemcpyBatchAsync_v2_ptsz
         cuMemcpyWithAttributesAsync cuMemPrefetchAsync cuMemPrefetchAsync_v2_ptsz
         cuMemPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz",
    );
}

#[test]
fn every_way_to_fill_memory_is_a_fill() {
    all_are(
        SET,
        "cudaMemset_v3020 cudaMemset2D_v3020 cudaMemset3D_ptds_v7000 cuMemsetD8 cu64MemsetD8
         cuMemsetD32_v2 cuMemsetD2D16_v2_ptds",
    );
    all_are(
        SET_ASYNC,
        "cudaMemsetAsync_v3020 cudaMemset2DAsync_ptsz_v7000 cuMemsetD8Async cu64MemsetD2D32Async
         cuMemsetD2D8Async_ptsz",
    );
}

#[test]
fn calls_that_destroy_a_context_are_recognized() {
    all_are(Some(CallKind::DeviceReset), "cudaDeviceReset_v3020 cudaThreadExit_v3020");
    all_are(
        Some(CallKind::ContextDestroy),
        "cuCtxDestroy cuCtxDestroy_v2 cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
         cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2",
    );
}

#[test]
fn calls_that_create_clone_and_update_graphs_are_recognized() {
    all_are(
        Some(CallKind::GraphNode),
        "cudaGraphAddKernelNode_v10000 cudaGraphAddMemcpyNode_v10000 cudaGraphAddMemcpyNode1D_v11010
         cudaGraphAddMemsetNode_v10000 cudaGraphAddNode_v12020 cuGraphAddKernelNode_v2 cuGraphAddNode_v2",
    );
    all_are(
        Some(CallKind::GraphCopy),
        "cudaGraphInstantiate_v10000 cudaGraphInstantiate_v12000 cudaGraphInstantiateWithFlags_v11040
         cudaGraphInstantiateWithParams_ptsz_v12000 cudaGraphClone_v10000
         cudaGraphAddChildGraphNode_v10000 cuGraphInstantiate_v2 cuGraphInstantiateWithFlags cuGraphClone
         cuGraphAddChildGraphNode",
    );
    all_are(Some(CallKind::GraphUpdate), "cudaGraphExecUpdate_v10020 cuGraphExecUpdate cuGraphExecUpdate_v2");
}

#[test]
fn similarly_named_calls_without_gpu_work_are_ignored() {
    all_are(
        None,
        "cudaLaunchHostFunc_v10000 cudaLaunchHostFunc_ptsz_v10000 cudaLaunchHostFunc_v2_v13020
         cuLaunchHostFunc cuLaunchHostFunc_v2_ptsz cuSubgridScheduleLaunch cudaGraphAddDependencies_v10000
         cudaGraphMemcpyNodeGetParams_v10000 cudaGraphMemsetNodeSetParams_v10000
         cudaGraphExecMemcpyNodeSetParams1D_v11010 cudaGraphKernelNodeGetParams_v10000
         cudaGraphCreate_v10000 cuGraphExecMemsetNodeSetParams cudaMemSetMemPool_v13000 cuMemSetAccess
         cuMemSetMemPool cuMemRelease cudaMemAdvise_v8000 cudaMemDiscardBatchAsync_v13000
         cudaOccupancyMaxActiveClusters_v11070 cudaSetupArgument_v3020 cudaConfigureCall_v3020
         cudaCtxResetPersistingL2Cache_v11000 cuCtxResetPersistingL2Cache cuGreenCtxDestroy
         cuEGLStreamConsumerReleaseFrame cudaEventQuery_v3020 cudaGetLastError_v3020
         cudaDeviceSynchronize_v3020 cudaMalloc_v3020 cudaMemGetInfo_v3020 cuInit INVALID SIZE",
    );
}

#[test]
fn hypothetical_query_calls_are_not_classified_as_copies_or_launches() {
    all_are(None, "cuMemcpyGetAttribute cudaMemcpyNodeGetParams_v15000 cudaLaunchAttributeGet_v15000");
}

#[test]
fn labels_are_the_names_used_in_source_code() {
    for (name, shown) in [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"),
        ("__cudaLaunchKernel_v13000", "cudaLaunchKernel"),
        ("cudaMemcpyAsync_v3020", "cudaMemcpyAsync"),
        ("cuLaunchKernel_ptsz", "cuLaunchKernel"),
        ("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
        ("cu64MemcpyHtoD", "cuMemcpyHtoD"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC"),
        ("cuda_very_odd", "cuda_very_odd"),
        ("", ""),
        ("_", ""),
    ] {
        assert_eq!(label(name), shown, "{name}");
    }
}

fn call(domain: Domain, id: u32, name: &str) -> NamedCall {
    NamedCall { domain, id, name: name.to_owned(), kind: classify(name).unwrap() }
}

#[test]
fn the_table_gives_each_enabled_call_its_kind_and_a_shared_label() {
    let table = CallTable::new();
    table.fill(&[
        call(Domain::RUNTIME_API, 211, "cudaLaunchKernel_v7000"),
        call(Domain::RUNTIME_API, 214, "cudaLaunchKernel_ptsz_v7000"),
        call(Domain::DRIVER_API, 307, "cuLaunchKernel"),
        call(Domain::DRIVER_API, 322, "cuCtxDestroy_v2"),
    ]);
    assert_eq!(table.labels(), ["cudaLaunchKernel", "cuLaunchKernel", "cuCtxDestroy"]);
    assert_eq!(table.look_up(Domain::RUNTIME_API, 211), Some((ApiCallId(0), CallKind::Launch)));
    assert_eq!(table.look_up(Domain::RUNTIME_API, 214), Some((ApiCallId(0), CallKind::Launch)));
    assert_eq!(table.look_up(Domain::DRIVER_API, 322), Some((ApiCallId(2), CallKind::ContextDestroy)));
    assert_eq!(table.look_up(Domain::DRIVER_API, 211), None);
    assert_eq!(table.look_up(Domain::RUNTIME_API, u32::MAX), None);
}

#[test]
fn a_cleared_table_finds_no_call_and_keeps_its_labels() {
    let table = CallTable::new();
    table.fill(&[call(Domain::DRIVER_API, 307, "cuLaunchKernel")]);
    table.clear();
    assert_eq!(table.look_up(Domain::DRIVER_API, 307), None);
    assert_eq!(table.labels(), ["cuLaunchKernel"]);
}

#[test]
fn every_call_kind_survives_the_table() {
    let table = CallTable::new();
    let calls: Vec<_> = KINDS
        .iter()
        .enumerate()
        .map(|(id, kind)| NamedCall {
            domain: Domain::DRIVER_API,
            id: id as u32,
            name: format!("cu{id}"),
            kind: *kind,
        })
        .collect();
    table.fill(&calls);
    for (id, kind) in KINDS.iter().enumerate() {
        assert_eq!(table.look_up(Domain::DRIVER_API, id as u32).map(|found| found.1), Some(*kind));
    }
}

#[test]
fn event_record_and_stream_wait_calls_are_distinguished_from_queries() {
    let all_are = |kind: Option<CallKind>, names: &str| {
        all_are(None, names);
        names.split_whitespace().for_each(|name| assert_eq!(classify_host_call(name), kind, "{name}"));
    };
    all_are(
        Some(CallKind::EventRecord),
        "cudaEventRecord_v3020 cudaEventRecord_ptsz_v7000 cudaEventRecordWithFlags_v11010
         cudaEventRecordWithFlags_ptsz_v11010 cuEventRecord cuEventRecord_ptsz cuEventRecordWithFlags",
    );
    all_are(
        Some(CallKind::EventWait),
        "cudaStreamWaitEvent_v3020 cudaStreamWaitEvent_ptsz_v7000 cuStreamWaitEvent cuStreamWaitEvent_ptsz",
    );
    all_are(
        None,
        "cudaEventQuery_v3020 cudaEventCreate_v3020 cudaEventDestroy_v3020 cudaEventElapsedTime_v3020
         cudaGraphEventRecordNodeSetEvent_v11010 cuGraphEventWaitNodeGetEvent cuStreamWaitValue32 cuStreamQuery",
    );
}
