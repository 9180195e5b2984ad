//! Streams, events, host functions.

use gpusim_core::arg::{Handle, Out};
use gpusim_core::deps::{self, Wait};
use gpusim_core::error::{CAPTURE_UNSUPPORTED, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE};
use gpusim_core::graph::{Capture, What};
use gpusim_core::host_fn::{self, HostFn};
use gpusim_core::stream::{Event, Stream};
use gpusim_core::table::{resource, synchronize, with_hooks};
use gpusim_core::{clock, settings, thread};
use std::ffi::c_void;
use std::ptr::null_mut;

fn create(out: Out<Handle>) -> Result<(), u32> {
    let context = thread::current().context().ok_or(INVALID_CONTEXT)?;
    let stream = Stream::create(context);
    with_hooks(|h| (h.resource)(resource::STREAM_CREATED, context.handle(), stream.handle(), null_mut()));
    out.set(stream.handle())
}

/// Notes a query: from 12.8 on it has a record like the wait, with its answer.
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

driver_api! {
    cuStreamCreate @ 124 |_own| (stream: Out<Handle>, _flags: u32) { create(stream) }

    cuStreamCreateWithPriority @ 367 |_own| (stream: Out<Handle>, _flags: u32, _priority: i32) { create(stream) }

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
            Some(capture) => Capture::join(&capture, stream),
            None => {
                stream.hold_until(event.time());
                deps::waited(Wait::StreamWaitEvent, start, event.context(), Some(stream), Some(event), 0);
            }
        }
        Ok(())
    }

    cuStreamBeginCapture_v2 @ 539 / cuStreamBeginCapture_v2_ptsz @ 540 |own| (stream: Handle, _mode: u32) {
        Capture::begin(Stream::resolve(stream, own)?)
    }

    cuStreamEndCapture @ 497 / cuStreamEndCapture_ptsz @ 498 |own| (stream: Handle, graph: Out<Handle>) {
        graph.set(Capture::end(Stream::resolve(stream, own)?)?.handle())
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
            Some(capture) => capture.add(What::Host(function, data as usize))?,
            None => host_fn::launch(stream, function, data),
        }
        Ok(())
    }
}
