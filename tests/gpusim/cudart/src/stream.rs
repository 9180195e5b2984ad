//! Runtime API functions for streams, events and host functions.

use crate::runtime_api::{check, stream};
use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::host_fn::HostFn;
use std::ffi::c_void;

runtime_api! {
    cudaStreamAttachMemAsync @ 208 / cudaStreamAttachMemAsync_ptsz @ 241 |driver, _own| (
        _handle: Handle, _address: u64, _bytes: usize, _flags: u32,
    ) { driver.context() }

    cudaStreamSetAttribute @ 345 / cudaStreamSetAttribute_ptsz @ 346 |driver, _own| (
        _handle: Handle, _which: u32, _value: Handle,
    ) { driver.context() }

    cudaStreamCreate @ 129 |driver, _own| (out: Out<Handle>) {
        driver.context()?;
        check((driver.cuStreamCreateWithPriority)(out, 0, 0))
    }

    cudaStreamCreateWithFlags @ 198 |driver, _own| (out: Out<Handle>, flags: u32) {
        driver.context()?;
        check((driver.cuStreamCreateWithPriority)(out, flags, 0))
    }

    cudaStreamCreateWithPriority @ 202 |driver, _own| (out: Out<Handle>, flags: u32, priority: i32) {
        driver.context()?;
        check((driver.cuStreamCreateWithPriority)(out, flags, priority))
    }

    cudaStreamDestroy @ 201 |driver, _own| (handle: Handle) {
        driver.context()?;
        check((driver.cuStreamDestroy_v2)(handle))
    }

    cudaStreamSynchronize @ 131 / cudaStreamSynchronize_ptsz @ 239 |driver, own| (handle: Handle) {
        driver.context()?;
        check((driver.cuStreamSynchronize)(stream(handle, own)))
    }

    cudaStreamQuery @ 132 / cudaStreamQuery_ptsz @ 240 |driver, own| (handle: Handle) {
        driver.context()?;
        check((driver.cuStreamQuery)(stream(handle, own)))
    }

    cudaStreamWaitEvent @ 147 / cudaStreamWaitEvent_ptsz @ 247 |driver, own| (
        handle: Handle, event: Handle, flags: u32,
    ) {
        driver.context()?;
        check((driver.cuStreamWaitEvent)(stream(handle, own), event, flags))
    }

    cudaStreamIsCapturing @ 317 / cudaStreamIsCapturing_ptsz @ 318 |driver, own| (
        handle: Handle, status: Out<u32>,
    ) {
        driver.context()?;
        check((driver.cuStreamIsCapturing)(stream(handle, own), status))
    }

    cudaStreamBeginCapture @ 315 / cudaStreamBeginCapture_ptsz @ 316 |driver, own| (handle: Handle, mode: u32) {
        driver.context()?;
        check((driver.cuStreamBeginCapture_v2)(stream(handle, own), mode))
    }

    cudaStreamBeginCaptureToGraph @ 452 / cudaStreamBeginCaptureToGraph_ptsz @ 453 |driver, own| (
        handle: Handle, graph: Handle, edges: In<Handle>, edge_data: In<u64>, count: usize, mode: u32,
    ) {
        driver.context()?;
        check((driver.cuStreamBeginCaptureToGraph)(stream(handle, own), graph, edges, edge_data, count, mode))
    }

    cudaStreamGetCaptureInfo @ 461 / cudaStreamGetCaptureInfo_ptsz @ 462 |driver, own| (
        handle: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, edges: Out<*const usize>,
        edge_data: Out<*const u64>, count: Out<usize>,
    ) {
        driver.context()?;
        check((driver.cuStreamGetCaptureInfo_v3)(stream(handle, own), status, id, graph, edges, edge_data, count))
    }

    cudaStreamUpdateCaptureDependencies @ 463 / cudaStreamUpdateCaptureDependencies_ptsz @ 464 |driver, own| (
        handle: Handle, edges: In<Handle>, edge_data: In<u64>, count: usize, flags: u32,
    ) {
        driver.context()?;
        check((driver.cuStreamUpdateCaptureDependencies_v2)(stream(handle, own), edges, edge_data, count, flags))
    }

    cudaThreadExchangeStreamCaptureMode @ 327 |driver, _own| (mode: Out<u32>) {
        check((driver.cuThreadExchangeStreamCaptureMode)(mode))
    }

    cudaStreamGetPriority @ 203 / cudaStreamGetPriority_ptsz @ 237 |driver, own| (
        handle: Handle, priority: Out<i32>,
    ) {
        driver.context()?;
        check((driver.cuStreamGetPriority)(stream(handle, own), priority))
    }

    cudaStreamAddCallback @ 197 / cudaStreamAddCallback_ptsz @ 248 |driver, own| (
        handle: Handle, function: Handle, data: *mut c_void, flags: u32,
    ) {
        driver.context()?;
        check((driver.cuStreamAddCallback)(stream(handle, own), function, data, flags))
    }

    cudaStreamEndCapture @ 319 / cudaStreamEndCapture_ptsz @ 320 |driver, own| (
        handle: Handle, graph: Out<Handle>,
    ) {
        driver.context()?;
        check((driver.cuStreamEndCapture)(stream(handle, own), graph))
    }

    cudaEventCreate @ 133 |driver, _own| (event: Out<Handle>) {
        driver.context()?;
        check((driver.cuEventCreate)(event, 0))
    }

    cudaEventCreateWithFlags @ 134 |driver, _own| (event: Out<Handle>, flags: u32) {
        driver.context()?;
        check((driver.cuEventCreate)(event, flags))
    }

    cudaEventRecord @ 135 / cudaEventRecord_ptsz @ 242 |driver, own| (event: Handle, handle: Handle) {
        driver.context()?;
        check((driver.cuEventRecord)(event, stream(handle, own)))
    }

    cudaEventRecordWithFlags @ 370 / cudaEventRecordWithFlags_ptsz @ 371 |driver, own| (
        event: Handle, handle: Handle, _flags: u32,
    ) {
        driver.context()?;
        check((driver.cuEventRecord)(event, stream(handle, own)))
    }

    cudaEventQuery @ 138 |driver, _own| (event: Handle) { check((driver.cuEventQuery)(event)) }

    cudaEventSynchronize @ 137 |driver, _own| (event: Handle) { check((driver.cuEventSynchronize)(event)) }

    cudaEventElapsedTime @ 139 |driver, _own| (ms: Out<f32>, from: Handle, to: Handle) {
        check((driver.cuEventElapsedTime)(ms, from, to))
    }

    cudaEventElapsedTime_v2 @ 486 |driver, _own| (ms: Out<f32>, from: Handle, to: Handle) {
        check((driver.cuEventElapsedTime)(ms, from, to))
    }

    cudaEventDestroy @ 136 |driver, _own| (event: Handle) { check((driver.cuEventDestroy_v2)(event)) }

    cudaLaunchHostFunc @ 284 / cudaLaunchHostFunc_ptsz @ 285 |driver, own| (
        handle: Handle, function: Option<HostFn>, data: *mut c_void,
    ) {
        driver.context()?;
        check((driver.cuLaunchHostFunc)(stream(handle, own), function, data))
    }
}
