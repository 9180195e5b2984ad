//! Driver API functions for CUDA contexts, including primary contexts.

use crate::device;
use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::context::{self, Context};
use gpusim_core::deps::{self, Wait};
use gpusim_core::error::{CuError, INVALID_CONTEXT};
use gpusim_core::table::{synchronize, with_hooks};
use gpusim_core::{clock, memory, thread};
use std::ffi::c_void;
use std::ptr::null_mut;

fn current() -> Result<&'static Context, CuError> {
    thread::current().context().ok_or(INVALID_CONTEXT)
}

fn create(out: Out<Handle>, device: u32) -> Result<(), CuError> {
    let context = Context::create(device)?;
    thread::current().contexts.borrow_mut().push(context);
    out.set(context.handle())
}

fn wait_for(context: &'static Context) {
    let start = clock::now();
    context.synchronize();
    deps::waited(Wait::Context, start, context.uid, None, None, 0);
    with_hooks(|h| (h.synchronize)(synchronize::CONTEXT_SYNCHRONIZED, context.handle(), null_mut()));
}

driver_api! {
    cuCtxCreate_v2 @ 235 |_own| (context: Out<Handle>, _flags: u32, ordinal: u32) { create(context, ordinal) }

    cuCtxCreate_v4 @ 757 |_own| (context: Out<Handle>, _params: In<c_void>, _flags: u32, ordinal: u32) {
        create(context, ordinal)
    }

    cuCtxDestroy_v2 @ 322 |_own| (context: Handle) {
        let context = Context::of_handle(context)?;
        context.destroy();
        thread::current().contexts.borrow_mut().retain(|c| !std::ptr::eq(*c, context));
        Ok(())
    }

    cuCtxGetCurrent @ 304 |_own| (context: Out<Handle>) {
        context.set(thread::current().context().map_or(null_mut(), Context::handle))
    }

    cuCtxSetCurrent @ 303 |_own| (context: Handle) {
        let context = if context.is_null() { None } else { Some(Context::of_handle(context)?) };
        thread::current().set_context(context);
        Ok(())
    }

    cuCtxPushCurrent_v2 @ 323 |_own| (context: Handle) {
        thread::current().contexts.borrow_mut().push(Context::of_handle(context)?);
        Ok(())
    }

    cuCtxPopCurrent_v2 @ 324 |_own| (context: Out<Handle>) {
        let top = thread::current().contexts.borrow_mut().pop().ok_or(INVALID_CONTEXT)?;
        context.set_if_wanted(top.handle());
        Ok(())
    }

    cuCtxGetDevice @ 16 |_own| (ordinal: Out<u32>) { ordinal.set(current()?.device) }

    cuCtxSynchronize @ 17 |_own| () {
        wait_for(current()?);
        Ok(())
    }

    cuCtxSynchronize_v2 @ 800 |_own| (context: Handle) {
        wait_for(if context.is_null() { current()? } else { Context::of_handle(context)? });
        Ok(())
    }

    cuCtxSetLimit @ 136 |_own| (_what: u32, _value: usize) { current().map(drop) }

    cuCtxGetLimit @ 137 |_own| (value: Out<usize>, what: u32) {
        current()?;
        value.set(match what {
            0 => 1024,    // stack size per GPU thread
            1 => 1 << 20, // size of the buffer of `printf`
            2 => 8 << 20, // size of the heap for malloc in kernels
            _ => 0,
        })
    }

    cuCtxEnablePeerAccess @ 313 |_own| (peer: Handle, _flags: u32) { Context::of_handle(peer).map(drop) }

    cuDevicePrimaryCtxRetain @ 386 |_own| (context: Out<Handle>, ordinal: u32) {
        context.set(context::retain_primary(ordinal)?.handle())
    }

    cuDevicePrimaryCtxRelease @ 387 |_own| (ordinal: u32) { context::release_primary(ordinal) }

    cuDevicePrimaryCtxRelease_v2 @ 544 |_own| (ordinal: u32) { context::release_primary(ordinal) }

    cuDevicePrimaryCtxReset @ 389 |_own| (ordinal: u32) { context::reset_primary(ordinal) }

    cuDevicePrimaryCtxReset_v2 @ 545 |_own| (ordinal: u32) { context::reset_primary(ordinal) }

    cuDevicePrimaryCtxGetState @ 392 |_own| (ordinal: u32, flags: Out<u32>, active: Out<u32>) {
        flags.set_if_wanted(0);
        active.set(u32::from(context::primary_is_active(ordinal)?))
    }

    cuMemGetInfo_v2 @ 242 |_own| (free: Out<usize>, total: Out<usize>) {
        let ordinal = device::check(current()?.device)?;
        free.set(memory::free_bytes(ordinal) as usize)?;
        total.set(memory::DEVICE_BYTES as usize)
    }
}
