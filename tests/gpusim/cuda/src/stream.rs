//! Streams, events, host functions.

use gpusim_core::arg::{Handle, Out};
use gpusim_core::error::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use gpusim_core::host_fn::{self, HostFn};
use gpusim_core::stream::{Event, Stream};
use gpusim_core::table::{resource, synchronize, with_hooks};
use gpusim_core::thread;
use std::ffi::c_void;
use std::ptr::null_mut;

fn create(out: Out<Handle>) -> Result<(), u32> {
    let context = thread::current().context().ok_or(INVALID_CONTEXT)?;
    let stream = Stream::create(context);
    with_hooks(|h| (h.resource)(resource::STREAM_CREATED, context.handle(), stream.handle(), null_mut()));
    out.set(stream.handle())
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
        stream.synchronize();
        let context = stream.context.handle();
        with_hooks(|h| (h.synchronize)(synchronize::STREAM_SYNCHRONIZED, context, stream.handle()));
        Ok(())
    }

    cuStreamQuery @ 125 / cuStreamQuery_ptsz @ 439 |own| (stream: Handle) { Stream::resolve(stream, own)?.query() }

    cuStreamWaitEvent @ 295 / cuStreamWaitEvent_ptsz @ 436 |own| (stream: Handle, event: Handle, _flags: u32) {
        Stream::resolve(stream, own)?.hold_until(Event::of_handle(event)?.time());
        Ok(())
    }

    cuStreamBeginCapture_v2 @ 539 / cuStreamBeginCapture_v2_ptsz @ 540 |_own| (_stream: Handle, _mode: u32) {
        Err(NOT_SUPPORTED)
    }

    cuStreamEndCapture @ 497 / cuStreamEndCapture_ptsz @ 498 |_own| (_stream: Handle, _graph: Out<Handle>) {
        Err(NOT_SUPPORTED)
    }

    cuStreamIsCapturing @ 499 / cuStreamIsCapturing_ptsz @ 500 |own| (stream: Handle, status: Out<u32>) {
        Stream::resolve(stream, own)?;
        status.set(0)
    }

    cuEventCreate @ 118 |_own| (event: Out<Handle>, _flags: u32) { event.set(Event::create().handle()) }

    cuEventRecord @ 119 / cuEventRecord_ptsz @ 441 |own| (event: Handle, stream: Handle) {
        Event::of_handle(event)?.record(Stream::resolve(stream, own)?);
        Ok(())
    }

    cuEventQuery @ 120 |_own| (event: Handle) { Event::of_handle(event)?.query() }

    cuEventSynchronize @ 121 |_own| (event: Handle) {
        Event::of_handle(event)?.synchronize();
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
        host_fn::launch(Stream::resolve(stream, own)?, function.ok_or(INVALID_VALUE)?, data);
        Ok(())
    }
}
