//! Core functions that libcuda exports to libcudart, libcupti and test programs.

use gpusim_core::arg::{Handle, In, Out, Text};
use gpusim_core::context::{self, Context};
use gpusim_core::error::{self, NOT_FOUND};
use gpusim_core::faults::Fault;
use gpusim_core::graph;
use gpusim_core::kernel::Kernel;
use gpusim_core::stream::{Default, Stream};
use gpusim_core::table::{self, CoreTable, GPUSIM_UUID, Phase};
use gpusim_core::thread::{self, Client, Meeting};
use gpusim_core::work::{Fate, Work};
use gpusim_core::{api, gpu, init, settings, truth, turn};
use std::ffi::{c_char, c_void};

static TABLE: CoreTable = CoreTable {
    switches: &table::SWITCHES,
    enter: api::enter,
    exit: api::exit,
    attach: table::attach,
    phase,
    start_devices,
    settle,
    count_fault,
    swap_client,
    client,
    kernel,
    kernel_name,
    use_primary,
    primary,
    context_ids,
    stream_id,
    reset_primary,
    graph_id,
    site: gpusim_site,
    host,
};

/// Returns the core's function table if the caller passes gpusim's own table id. Any other id fails, because NVIDIA's
/// private tables do not exist in the simulation.
#[unsafe(no_mangle)]
extern "C" fn cuGetExportTable(out: Out<*const c_void>, id: In<[u8; 16]>) -> u32 {
    match id.get() {
        Ok(GPUSIM_UUID) => error::code(out.set(std::ptr::from_ref(&TABLE).cast())),
        Ok(_) => NOT_FOUND,
        Err(code) => code,
    }
}

/// Sets the calling thread's call site: frames from the root, separated by semicolons; NULL for none. Does nothing in a
/// forked child process, which cannot launch anything. In a forked child, a thread that exists only in the parent may
/// hold the lock of the call sites for ever.
#[unsafe(no_mangle)]
extern "C" fn gpusim_site(path: *const c_char) {
    if init::phase() != Phase::Child {
        thread::current().set_site(Text(path).get());
    }
}

/// Returns the time, in ns since the epoch, at which this stream's next work will start; 0 if the stream does not
/// exist.
#[unsafe(no_mangle)]
extern "C" fn gpusim_ready(stream: Handle) -> u64 {
    let stream = Stream::resolve(stream, Default::Context);
    stream.map_or(0, |stream| stream.ready_at().max(gpu::earliest()))
}

/// Runs one of the functions that programs call on the stepped clock, such as `gpusim_work`; `what` is the function's
/// number in `CoreTable::host`. Unless the clock is stepped, these functions do nothing.
extern "C" fn host(what: u32, a: u64, b: u64) -> u64 {
    if !settings::get().stepped || init::phase() == Phase::Child {
        return 0;
    }
    match what {
        0 => turn::work(a),
        1 => return turn::fork(),
        2 => turn::begin(a),
        3 => turn::join(a),
        4 => turn::lock(a),
        5 => turn::unlock(a),
        _ => turn::meet(a, b),
    }
    0
}

gpusim_core::host_functions!(host);

/// Makes the calling thread's next kernel wait for other GPUs. The kernel ends at the time that `end` returns. `end`
/// receives the kernel's start time and may block. If `end` is NULL, the next kernel does not wait.
#[unsafe(no_mangle)]
extern "C" fn gpusim_meeting(end: Option<extern "C" fn(*mut c_void, u64) -> u64>, argument: *mut c_void) {
    thread::current().meeting.set(end.map(|end| Meeting { end, argument }));
}

/// Writes the truth file immediately; used by a program that is about to call `_exit`.
#[unsafe(no_mangle)]
extern "C" fn gpusim_truth_flush() {
    truth::flush(api::correlations_used());
}

extern "C" fn phase() -> table::Phase {
    init::phase()
}

extern "C" fn start_devices() -> u32 {
    error::code(init::start_devices())
}

extern "C" fn settle(works: *const Work, count: usize, fate: Fate) {
    if count > 0 {
        // SAFETY: libcupti passes the address and the length of a slice.
        truth::settle(unsafe { std::slice::from_raw_parts(works, count) }, fate);
    }
}

extern "C" fn count_fault(fault: Fault) {
    truth::count_fault(fault);
}

extern "C" fn swap_client(client: Client) -> Client {
    thread::current().client.replace(client)
}

extern "C" fn client() -> Client {
    thread::current().client.get()
}

extern "C" fn kernel(name: *const c_char) -> *mut c_void {
    Text(name).get().map_or(std::ptr::null_mut(), |name| Kernel::of_name(name).handle())
}

extern "C" fn kernel_name(handle: *const c_void) -> *const c_char {
    Kernel::of_handle(handle).map_or(std::ptr::null(), |k| k.name.as_ptr())
}

extern "C" fn use_primary(device: u32) -> u32 {
    let thread = thread::current();
    if thread.context().is_some_and(|c| c.device == device && c.is_alive()) {
        return 0;
    }
    error::code(context::primary(device).map(|context| thread.set_context(Some(context))))
}

extern "C" fn primary(device: u32, handle: &mut Handle) -> u32 {
    error::code(context::primary(device).map(|context| *handle = context.handle()))
}

extern "C" fn reset_primary(device: u32) -> u32 {
    let reset = context::reset_primary(device);
    thread::current().set_context(None);
    error::code(reset)
}

extern "C" fn graph_id(what: u32, handle: Handle, id: &mut u64) -> u32 {
    error::code(graph::id_of(what, handle).map(|found| *id = found))
}

extern "C" fn context_ids(handle: Handle, uid: &mut u32, device: &mut u32) -> u32 {
    error::code(Context::of_handle(handle).map(|c| (*uid, *device) = (c.uid, c.device)))
}

extern "C" fn stream_id(context: Handle, stream: Handle, per_thread: bool, id: &mut u32) -> u32 {
    let own = if per_thread { Default::PerThread } else { Default::Context };
    let context = match Context::of_handle(context) {
        Ok(context) => Some(context),
        Err(_) => thread::current().context(),
    };
    let stream = context.ok_or(error::INVALID_CONTEXT).and_then(|c| Stream::resolve_in(c, stream, own));
    error::code(stream.map(|s| *id = s.id))
}
