//! Kernel launches that identify the kernel by its host function or by its handle. CUPTI's callbacks for a launch
//! contain the kernel's name.

use crate::link;
use crate::runtime_api::{self, check, runtime, stream};
use crate::stubs;
use gpusim_core::arg::{Handle, In};
use gpusim_core::error::{CuError, INVALID_CONFIGURATION, INVALID_DEVICE_FUNCTION};
use gpusim_core::settings;
use gpusim_core::stream::Default;
use std::ffi::{CStr, c_char};

/// dim3
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dim3 {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

/// Arguments of a kernel launch; `function` is a host function or a kernel handle.
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchKernel {
    function: Handle,
    grid: Dim3,
    block: Dim3,
    args: *mut Handle,
    shared_bytes: usize,
    stream: Handle,
}

const _: () = assert!(std::mem::offset_of!(LaunchKernel, stream) == 48, "as documented");

/// cudaLaunchConfig_t
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: Handle,
    attributes: Handle,
    attribute_count: u32,
}

/// CUlaunchConfig
#[repr(C)]
struct DriverConfig {
    grid: Dim3,
    block: Dim3,
    shared_bytes: u32,
    stream: Handle,
    attributes: Handle,
    attribute_count: u32,
}

/// Arguments of cudaLaunchKernelExC.
#[repr(C)]
struct LaunchKernelEx {
    config: In<Config>,
    function: Handle,
    args: *mut Handle,
}

#[derive(Clone, Copy)]
struct Api {
    id: u32,
    name: &'static CStr,
    own: Default,
    cooperative: bool,
}

fn launch_kernel(api: Api, call: LaunchKernel) -> CuError {
    let kernel = stubs::kernel_of(call.function);
    runtime(api.id, api.name, &call, symbol(kernel), |driver| {
        driver.context()?;
        let kernel = kernel.ok_or(INVALID_DEVICE_FUNCTION)?;
        launch(driver, api, kernel.handle, &call)
    })
}

fn launch_ex(api: Api, call: LaunchKernelEx) -> CuError {
    let kernel = stubs::kernel_of(call.function);
    runtime(api.id, api.name, &call, symbol(kernel), |driver| {
        driver.context()?;
        let kernel = kernel.ok_or(INVALID_DEVICE_FUNCTION)?;
        let config = call.config.get()?;
        let Config { grid, block, shared_bytes, stream, .. } = config;
        let (function, args) = (call.function, call.args);
        let plain = LaunchKernel { function, grid, block, args, shared_bytes, stream };
        if !is_programmatic(&config)? {
            return launch(driver, api, kernel.handle, &plain);
        }
        check_extents(&plain)?;
        let stream = runtime_api::stream(stream, api.own);
        let Config { attributes, attribute_count, .. } = config;
        let shared_bytes = shared_bytes as u32;
        let config = DriverConfig { grid, block, shared_bytes, stream, attributes, attribute_count };
        let config = std::ptr::from_ref(&config).cast_mut().cast();
        check((driver.cuLaunchKernelEx)(config, kernel.handle, args, std::ptr::null_mut()))
    })
}

/// Whether the launch has an attribute that makes it programmatic (id 6) or that records an event in it (id 7). Only
/// such a launch passes its attributes to the driver, because all other attributes have no effect in the simulation.
fn is_programmatic(config: &Config) -> Result<bool, CuError> {
    const ATTRIBUTE_BYTES: usize = 72;
    for at in 0..config.attribute_count as usize {
        let attribute = config.attributes.wrapping_byte_add(at * ATTRIBUTE_BYTES);
        let id = In(attribute.cast::<u32>().cast_const()).get()?;
        if id == 6 || id == 7 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn check_extents(call: &LaunchKernel) -> Result<(), CuError> {
    let (g, b) = (call.grid, call.block);
    let threads = u64::from(b.x) * u64::from(b.y) * u64::from(b.z);
    if threads == 0 || threads > 1024 || g.x == 0 || g.y == 0 || g.z == 0 {
        return Err(INVALID_CONFIGURATION);
    }
    Ok(())
}

fn symbol(kernel: Option<stubs::Registered>) -> *const c_char {
    kernel.map_or(std::ptr::null(), |k| k.name)
}

fn launch(driver: &link::Driver, api: Api, kernel: Handle, call: &LaunchKernel) -> Result<(), CuError> {
    check_extents(call)?;
    let (g, b) = (call.grid, call.block);
    let (stream, bytes) = (stream(call.stream, api.own), call.shared_bytes as u32);
    check(if api.cooperative {
        (driver.cuLaunchCooperativeKernel)(kernel, g.x, g.y, g.z, b.x, b.y, b.z, bytes, stream, call.args)
    } else {
        let extra = std::ptr::null_mut();
        (driver.cuLaunchKernel)(kernel, g.x, g.y, g.z, b.x, b.y, b.z, bytes, stream, call.args, extra)
    })
}

const LAUNCH: (u32, &CStr) = (211, c"cudaLaunchKernel");
const LAUNCH_PTSZ: (u32, &CStr) = (214, c"cudaLaunchKernel_ptsz");

/// Callback id and function name that CUPTI reports for a `<<<>>>` launch. Up to version 13.0, CUPTI reports the older
/// launch function.
fn stub_launch(own: (u32, &'static CStr), older: (u32, &'static CStr)) -> (u32, &'static CStr) {
    if settings::get().cupti.has_own_stub_launch_id() { own } else { older }
}

macro_rules! launches {
    ($($name:ident @ $id_and_name:expr, $own:expr, $cooperative:literal;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            function: Handle, grid: Dim3, block: Dim3, args: *mut Handle, shared_bytes: usize, stream: Handle,
        ) -> u32 {
            let (id, name) = $id_and_name;
            let api = Api { id, name, own: $own, cooperative: $cooperative };
            launch_kernel(api, LaunchKernel { function, grid, block, args, shared_bytes, stream })
        }
    )*};
}

launches! {
    cudaLaunchKernel @ LAUNCH, Default::Context, false;
    cudaLaunchKernel_ptsz @ LAUNCH_PTSZ, Default::PerThread, false;
    cudaLaunchCooperativeKernel @ (269, c"cudaLaunchCooperativeKernel"), Default::Context, true;
    cudaLaunchCooperativeKernel_ptsz @ (270, c"cudaLaunchCooperativeKernel_ptsz"), Default::PerThread, true;
    __cudaLaunchKernel @ stub_launch((505, c"__cudaLaunchKernel"), LAUNCH), Default::Context, false;
    __cudaLaunchKernel_ptsz @ stub_launch((506, c"__cudaLaunchKernel_ptsz"), LAUNCH_PTSZ), Default::PerThread, false;
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchKernelExC(config: In<Config>, function: Handle, args: *mut Handle) -> u32 {
    let api = Api { id: 430, name: c"cudaLaunchKernelExC", own: Default::Context, cooperative: false };
    launch_ex(api, LaunchKernelEx { config, function, args })
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchKernelExC_ptsz(config: In<Config>, function: Handle, args: *mut Handle) -> u32 {
    let api = Api { id: 431, name: c"cudaLaunchKernelExC_ptsz", own: Default::PerThread, cooperative: false };
    launch_ex(api, LaunchKernelEx { config, function, args })
}
