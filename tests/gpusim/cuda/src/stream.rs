//! Driver API functions for streams, events and host functions.

use crate::graph::edges_of;
use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::capture::Capture;
use gpusim_core::deps::{self, Wait};
use gpusim_core::error::{
    CAPTURE_UNSUPPORTED, ILLEGAL_STATE, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE,
};
use gpusim_core::graph::{Graph, What};
use gpusim_core::host_fn::{self, HostFn};
use gpusim_core::stream::{Event, GREATEST_PRIORITY, Stream};
use gpusim_core::table::{resource, synchronize, with_hooks};
use gpusim_core::{clock, schedule, settings, thread};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::Relaxed;

/// CU_STREAM_NON_BLOCKING
const NON_BLOCKING: u32 = 1;

fn create(out: Out<Handle>, flags: u32, priority: i32) -> Result<(), u32> {
    let context = thread::current().context().ok_or(INVALID_CONTEXT)?;
    let stream = Stream::create(context, priority, flags & NON_BLOCKING == 0);
    with_hooks(|h| (h.resource)(resource::STREAM_CREATED, context.handle(), stream.handle(), null_mut()));
    out.set(stream.handle())
}

/// Logs a query of a stream or event. Since CUPTI 12.8, a query has an activity record like a wait's record; the record
/// contains the query's result.
fn asked(
    wait: Wait,
    start: u64,
    context: u32,
    (stream, event): (Option<&'static Stream>, Option<&'static Event>),
    answer: Result<(), u32>,
) -> Result<(), u32> {
    if settings::get().cupti.records_queries() {
        deps::waited(wait, start, context, stream, event, answer.err().unwrap_or(0));
    }
    answer
}

/// CUstreamCallback
type StreamCallback = unsafe extern "C" fn(Handle, u32, *mut c_void);

/// A stream callback and its arguments, which a host function receives as its argument.
struct Callback {
    function: StreamCallback,
    stream: Handle,
    data: *mut c_void,
}

unsafe extern "C" fn call_back(callback: *mut c_void) {
    // SAFETY: cuStreamAddCallback boxed this callback, and the host function runs only once.
    let Callback { function, stream, data } = *unsafe { Box::from_raw(callback.cast::<Callback>()) };
    // SAFETY: the program passed a function of this type and its argument.
    unsafe { function(stream, 0, data) };
}

thread_local! {
    /// cudaStreamCaptureMode of the calling thread. The mode is stored and returned, but has no effect: a capture never
    /// makes a call fail, whatever the mode is.
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

driver_api! {
    cuStreamCreate @ 124 |_own| (stream: Out<Handle>, flags: u32) { create(stream, flags, 0) }

    cuStreamCreateWithPriority @ 367 |_own| (stream: Out<Handle>, flags: u32, priority: i32) {
        create(stream, flags, priority)
    }

    cuStreamDestroy_v2 @ 326 |own| (stream: Handle) {
        if stream as usize <= 2 {
            return Err(INVALID_HANDLE);
        }
        let stream = Stream::resolve(stream, own)?;
        let context = stream.context.handle();
        with_hooks(|h| (h.resource)(resource::STREAM_DESTROY_STARTING, context, stream.handle(), null_mut()));
        stream.retire();
        Ok(())
    }

    cuStreamGetCtx @ 483 |own| (stream: Handle, context: Out<Handle>) {
        context.set(Stream::resolve(stream, own)?.context.handle())
    }

    cuStreamSynchronize @ 126 / cuStreamSynchronize_ptsz @ 440 |own| (stream: Handle) {
        let stream = Stream::resolve(stream, own)?;
        if stream.capture().is_some() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let start = clock::now();
        stream.synchronize();
        deps::waited(Wait::Stream, start, stream.context.uid, Some(stream), None, 0);
        let context = stream.context.handle();
        with_hooks(|h| (h.synchronize)(synchronize::STREAM_SYNCHRONIZED, context, stream.handle()));
        Ok(())
    }

    cuStreamQuery @ 125 / cuStreamQuery_ptsz @ 439 |own| (stream: Handle) {
        let (start, stream) = (clock::now(), Stream::resolve(stream, own)?);
        let answer = stream.query();
        asked(Wait::Stream, start, stream.context.uid, (Some(stream), None), answer)
    }

    cuStreamWaitEvent @ 295 / cuStreamWaitEvent_ptsz @ 436 |own| (stream: Handle, event: Handle, _flags: u32) {
        let (stream, event) = (Stream::resolve(stream, own)?, Event::of_handle(event)?);
        let start = clock::now();
        match event.capture() {
            Some((capture, edges)) => Capture::join(&capture, stream, edges),
            None => {
                stream.hold_until(event.time());
                if settings::get().stepped {
                    schedule::hold(stream, event.target());
                }
                deps::waited(Wait::StreamWaitEvent, start, event.context(), Some(stream), Some(event), 0);
            }
        }
        Ok(())
    }

    cuStreamBeginCapture_v2 @ 539 / cuStreamBeginCapture_v2_ptsz @ 540 |own| (stream: Handle, _mode: u32) {
        Capture::begin(Stream::resolve(stream, own)?, None, Vec::new())
    }

    cuStreamBeginCaptureToGraph @ 720 / cuStreamBeginCaptureToGraph_ptsz @ 721 |own| (
        stream: Handle, graph: Handle, edges: In<Handle>, edge_data: In<u64>, count: usize, _mode: u32,
    ) {
        let (graph, edges) = (Graph::of_handle(graph)?, edges_of(edges, edge_data, count)?);
        Capture::begin(Stream::resolve(stream, own)?, Some(graph), edges)
    }

    cuStreamGetCaptureInfo_v3 @ 729 / cuStreamGetCaptureInfo_v3_ptsz @ 730 |own| (
        stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, edges: Out<*const usize>,
        edge_data: Out<*const u64>, count: Out<usize>,
    ) {
        let capture = Stream::resolve(stream, own)?.capture();
        status.set(u32::from(capture.is_some()))?;
        let last = capture.as_ref().map(|capture| capture.last.load(Relaxed)).unwrap_or_default();
        id.set_if_wanted(capture.as_ref().map_or(0, |capture| capture.id));
        graph.set_if_wanted(capture.as_ref().map_or(null_mut(), |capture| capture.graph.handle()));
        edges.set_if_wanted(capture.map_or(null(), |capture| capture.last.as_ptr()));
        edge_data.set_if_wanted(null());
        count.set_if_wanted(usize::from(last != 0));
        Ok(())
    }

    cuStreamUpdateCaptureDependencies_v2 @ 731 / cuStreamUpdateCaptureDependencies_v2_ptsz @ 732 |own| (
        stream: Handle, edges: In<Handle>, edge_data: In<u64>, count: usize, flags: u32,
    ) {
        const SET: u32 = 1;
        let stream = Stream::resolve(stream, own)?;
        let (capture, edges) = (stream.capture().ok_or(ILLEGAL_STATE)?, edges_of(edges, edge_data, count)?);
        capture.change_frontier(stream, |frontier| {
            if flags == SET {
                frontier.clear();
            }
            frontier.extend(edges);
        });
        Ok(())
    }

    cuThreadExchangeStreamCaptureMode @ 541 |_own| (mode: Out<u32>) {
        let new = mode.get()?;
        mode.set(CAPTURE_MODE.replace(new))
    }

    cuStreamGetPriority @ 368 / cuStreamGetPriority_ptsz @ 434 |own| (stream: Handle, priority: Out<i32>) {
        priority.set(Stream::resolve(stream, own)?.priority)
    }

    cuCtxGetStreamPriorityRange @ 370 |_own| (least: Out<i32>, greatest: Out<i32>) {
        least.set_if_wanted(0);
        greatest.set_if_wanted(GREATEST_PRIORITY);
        Ok(())
    }

    cuStreamAddCallback @ 346 / cuStreamAddCallback_ptsz @ 437 |own| (
        stream: Handle, function: Option<StreamCallback>, data: *mut c_void, _flags: u32,
    ) {
        let (found, function) = (Stream::resolve(stream, own)?, function.ok_or(INVALID_VALUE)?);
        if found.capture().is_some() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let callback = Box::new(Callback { function, stream, data });
        host_fn::launch(found, call_back, Box::into_raw(callback).cast());
        Ok(())
    }

    cuStreamEndCapture @ 497 / cuStreamEndCapture_ptsz @ 498 |own| (stream: Handle, graph: Out<Handle>) {
        // A program that captures into an existing graph already has the graph's handle, and may pass NULL here.
        graph.set_if_wanted(Capture::end(Stream::resolve(stream, own)?)?.handle());
        Ok(())
    }

    cuStreamIsCapturing @ 499 / cuStreamIsCapturing_ptsz @ 500 |own| (stream: Handle, status: Out<u32>) {
        status.set(u32::from(Stream::resolve(stream, own)?.capture().is_some()))
    }

    cuEventCreate @ 118 |_own| (event: Out<Handle>, _flags: u32) { event.set(Event::create().handle()) }

    cuEventRecord @ 119 / cuEventRecord_ptsz @ 441 |own| (event: Handle, stream: Handle) {
        Event::of_handle(event)?.record(Stream::resolve(stream, own)?);
        Ok(())
    }

    cuEventQuery @ 120 |_own| (event: Handle) {
        let (start, event) = (clock::now(), Event::of_handle(event)?);
        asked(Wait::Event, start, event.context(), (None, Some(event)), event.query())
    }

    cuEventSynchronize @ 121 |_own| (event: Handle) {
        let (start, event) = (clock::now(), Event::of_handle(event)?);
        event.synchronize();
        deps::waited(Wait::Event, start, event.context(), None, Some(event), 0);
        Ok(())
    }

    cuEventElapsedTime @ 123 |_own| (ms: Out<f32>, from: Handle, to: Handle) {
        ms.set(Event::of_handle(from)?.elapsed(Event::of_handle(to)?)?)
    }

    cuEventElapsedTime_v2 @ 780 |_own| (ms: Out<f32>, from: Handle, to: Handle) {
        ms.set(Event::of_handle(from)?.elapsed(Event::of_handle(to)?)?)
    }

    cuEventDestroy_v2 @ 325 |_own| (event: Handle) {
        Event::of_handle(event)?.destroy();
        Ok(())
    }

    cuLaunchHostFunc @ 527 / cuLaunchHostFunc_ptsz @ 528 |own| (
        stream: Handle, function: Option<HostFn>, data: *mut c_void,
    ) {
        let (stream, function) = (Stream::resolve(stream, own)?, function.ok_or(INVALID_VALUE)?);
        match stream.capture() {
            Some(capture) => capture.add(stream, What::Host(function, data as usize))?,
            None => host_fn::launch(stream, function, data),
        }
        Ok(())
    }
}
