//! Driver API functions that launch kernels. These functions do not use the macro `driver_api`, because profilers read
//! the struct with their arguments, and because CUPTI's callbacks for launches contain the kernel's name.

use gpusim_core::api;
use gpusim_core::arg::{Handle, In, literal};
use gpusim_core::error::{CuError, INVALID_HANDLE, INVALID_VALUE};
use gpusim_core::gpu::{self, Order};
use gpusim_core::kernel::Kernel;
use gpusim_core::stream::{Default, Event, Stream};
use std::ffi::{CStr, c_char};

/// Arguments of cuLaunchKernel and cuLaunchCooperativeKernel (which lacks the last argument).
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchKernel {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Handle,
    params: *mut Handle,
    extra: *mut Handle,
}

const _: () = assert!(std::mem::offset_of!(LaunchKernel, stream) == 40, "as documented");

/// CUlaunchConfig: 56 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Handle,
    attributes: *const Attribute,
    attribute_count: u32,
}

/// CUlaunchAttribute: 72 bytes, the same as cudaLaunchAttribute.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    id: u32,
    /// CUlaunchAttributeValue, which must be aligned to 8 bytes.
    value: AttributeValue,
}

#[repr(C)]
#[derive(Clone, Copy)]
union AttributeValue {
    flag: u32,
    event: EventAttribute,
    bytes: [u64; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct EventAttribute {
    event: Handle,
    flags: u32,
    at_begin: u32,
}

const _: () = assert!(size_of::<Attribute>() == 72, "the driver API's size");

/// Launch attributes of a programmatic launch; all other launch attributes have no effect in the simulation.
#[derive(Clone, Copy)]
struct Programmatic {
    is_serialized: bool,
    event: Option<(&'static Event, bool)>,
}

impl Programmatic {
    fn of(config: &Config) -> Result<Programmatic, CuError> {
        const SERIALIZATION: u32 = 6;
        const EVENT: u32 = 7;
        let mut found = Programmatic { is_serialized: false, event: None };
        for at in 0..config.attribute_count as usize {
            let Attribute { id, value } = In(config.attributes.wrapping_add(at)).get()?;
            match id {
                // SAFETY: the attribute's id determines the valid member of the union; all members are plain numbers
                // and pointers.
                SERIALIZATION => found.is_serialized = unsafe { value.flag } != 0,
                EVENT => {
                    // SAFETY: as above, the attribute's id determines the valid member of the union.
                    let attribute = unsafe { value.event };
                    found.event = Some((Event::of_handle(attribute.event)?, attribute.at_begin != 0));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Arguments of cuLaunchKernelEx.
#[repr(C)]
struct LaunchKernelEx {
    config: In<Config>,
    function: Handle,
    params: *mut Handle,
    extra: *mut Handle,
}

fn symbol(function: Handle) -> *const c_char {
    Kernel::of_handle(function).map_or(std::ptr::null(), |k| k.name.as_ptr())
}

/// Checks that the grid and the block of a launch are not empty, and that a block has at most 1,024 threads.
pub(crate) fn check_extents(grid: [u32; 3], block: [u32; 3]) -> Result<(), CuError> {
    let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
    if threads == 0 || threads > 1024 || grid.contains(&0) { Err(INVALID_VALUE) } else { Ok(()) }
}

fn launch(call: &LaunchKernel, own: Default, programmatic: Programmatic) -> Result<(), CuError> {
    let kernel = Kernel::of_handle(call.function).ok_or(INVALID_HANDLE)?;
    check_extents(call.grid, call.block)?;
    let stream = Stream::resolve(call.stream, own)?;
    let order = Order::kernel(kernel, call.grid, call.block, call.shared_bytes);
    gpu::submit(
        stream,
        Order { programmatic: programmatic.is_serialized, event: programmatic.event, ..order },
    )
}

fn launch_kernel(id: u32, name: &'static CStr, own: Default, call: LaunchKernel) -> u32 {
    api::driver(id, name, &call, symbol(call.function), || {
        launch(&call, own, Programmatic { is_serialized: false, event: None })
    })
}

fn launch_ex(id: u32, name: &'static CStr, own: Default, call: LaunchKernelEx) -> u32 {
    api::driver(id, name, &call, symbol(call.function), || {
        let config = call.config.get()?;
        let Config { grid, block, shared_bytes, stream, .. } = config;
        let (function, params, extra) = (call.function, call.params, call.extra);
        let call = LaunchKernel { function, grid, block, shared_bytes, stream, params, extra };
        launch(&call, own, Programmatic::of(&config)?)
    })
}

macro_rules! launches {
    ($($launch:ident, $ex:ident, $cooperative:ident, $own:expr, $ids:expr;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // the C API requires this signature
        extern "C" fn $launch(
            function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
            shared_bytes: u32, stream: Handle, params: *mut Handle, extra: *mut Handle,
        ) -> u32 {
            let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
            let call = LaunchKernel { function, grid, block, shared_bytes, stream, params, extra };
            launch_kernel($ids[0], literal(concat!(stringify!($launch), "\0")), $own, call)
        }

        #[unsafe(no_mangle)]
        extern "C" fn $ex(config: In<Config>, function: Handle, params: *mut Handle, extra: *mut Handle) -> u32 {
            let call = LaunchKernelEx { config, function, params, extra };
            launch_ex($ids[1], literal(concat!(stringify!($ex), "\0")), $own, call)
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // the C API requires this signature
        extern "C" fn $cooperative(
            function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
            shared_bytes: u32, stream: Handle, params: *mut Handle,
        ) -> u32 {
            let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
            let extra = std::ptr::null_mut();
            let call = LaunchKernel { function, grid, block, shared_bytes, stream, params, extra };
            launch_kernel($ids[2], literal(concat!(stringify!($cooperative), "\0")), $own, call)
        }
    )*};
}

launches! {
    cuLaunchKernel, cuLaunchKernelEx, cuLaunchCooperativeKernel, Default::Context, [307, 652, 477];
    cuLaunchKernel_ptsz, cuLaunchKernelEx_ptsz, cuLaunchCooperativeKernel_ptsz, Default::PerThread, [442, 653, 478];
}
