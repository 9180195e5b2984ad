//! Loads libcuda by its soname, and looks up the core's function table and the driver functions that the runtime needs.

use gpusim_core::arg::{Handle, In, Out, Text};
use gpusim_core::error::{CuError, INSUFFICIENT_DRIVER};
use gpusim_core::graph_params::{AllocNode, AnyNode, HostNode, KernelNode, MemsetNode, UpdateResult};
use gpusim_core::host_fn::HostFn;
use gpusim_core::memory::{Cube, Cuboid, Location, Rectangle};
use gpusim_core::share::Shared;
use gpusim_core::table::{CoreTable, GPUSIM_UUID};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

macro_rules! driver {
    ($($name:ident($($ty:ty),* $(,)?);)*) => {
        /// The driver functions that the runtime calls, and the core's function table.
        #[allow(non_snake_case)]
        pub(crate) struct Driver {
            pub(crate) core: &'static CoreTable,
            $(pub(crate) $name: extern "C" fn($($ty),*) -> u32,)*
        }

        impl Driver {
            /// Looks up the driver's functions in `library`; returns `None` if any of the functions is missing.
            fn find(library: Handle) -> Option<Driver> {
                let symbol = |name: &CStr| {
                    // SAFETY: SAFETY: `library` is a handle from dlopen.
                    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
                    (!address.is_null()).then_some(address)
                };
                Some(Driver {
                    core: core_table(symbol(c"cuGetExportTable")?)?,
                    $($name: {
                        let address = symbol(gpusim_core::arg::literal(concat!(stringify!($name), "\0")))?;
                        // SAFETY: our libcuda exports a function of this name and type.
                        unsafe { std::mem::transmute::<Handle, extern "C" fn($($ty),*) -> u32>(address) }
                    },)*
                })
            }
        }
    };
}

driver! {
    cuInit(u32);
    cuDriverGetVersion(Out<u32>);
    cuDeviceGetCount(Out<u32>);
    cuDeviceGetAttribute(Out<u32>, u32, u32);
    cuDeviceCanAccessPeer(Out<u32>, u32, u32);
    cuDeviceGetPCIBusId(Out<c_char>, i32, u32);
    cuGetProcAddress_v2(Text, Out<Handle>, i32, u64, Out<u32>);
    cuFuncSetAttribute(Handle, u32, i32);
    cuKernelSetAttribute(u32, i32, Handle, u32);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(Out<u32>, Handle, u32, usize);
    cuLibraryLoadData(Out<Handle>, Handle, In<u32>, In<Handle>, u32, In<u32>, In<Handle>, u32);
    cuLibraryUnload(Handle);
    cuLibraryGetKernel(Out<Handle>, Handle, Text);
    cuPointerGetAttribute(Out<u32>, u32, u64);
    cuCtxSynchronize();
    cuCtxSynchronize_v2(Handle);
    cuProfilerStart();
    cuProfilerStop();
    cuMemGetInfo_v2(Out<usize>, Out<usize>);
    cuMemAlloc_v2(Out<u64>, usize);
    cuMemFree_v2(u64);
    cuArray3DCreate_v2(Out<u64>, In<Cube>);
    cuArrayDestroy(u64);
    cuTexObjectCreate(Out<u64>, Handle, Handle, Handle);
    cuTexObjectDestroy(u64);
    cuSurfObjectCreate(Out<u64>, Handle);
    cuSurfObjectDestroy(u64);
    cuIpcGetMemHandle(Out<Shared>, u64);
    cuIpcOpenMemHandle_v2(Out<u64>, Shared, u32);
    cuIpcCloseMemHandle(u64);
    cuIpcGetEventHandle(Out<Shared>, Handle);
    cuIpcOpenEventHandle(Out<Handle>, Shared);
    cuMemAllocAsync(Out<u64>, usize, Handle);
    cuMemFreeAsync(u64, Handle);
    cuMemHostAlloc(Out<u64>, usize, u32);
    cuMemFreeHost(u64);
    cuMemAllocManaged(Out<u64>, usize, u32);
    cuMemPrefetchAsync_v2(u64, usize, Location, u32, Handle);
    cuMemcpy(u64, u64, usize);
    cuMemcpy_ptds(u64, u64, usize);
    cuMemcpyHtoD_v2(u64, u64, usize);
    cuMemcpyHtoD_v2_ptds(u64, u64, usize);
    cuMemcpyDtoH_v2(u64, u64, usize);
    cuMemcpyDtoH_v2_ptds(u64, u64, usize);
    cuMemcpyDtoD_v2(u64, u64, usize);
    cuMemcpyDtoD_v2_ptds(u64, u64, usize);
    cuMemcpyAsync(u64, u64, usize, Handle);
    cuMemcpyHtoDAsync_v2(u64, u64, usize, Handle);
    cuMemcpyDtoHAsync_v2(u64, u64, usize, Handle);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle);
    cuMemcpy2D_v2(In<Rectangle>);
    cuMemcpy2D_v2_ptds(In<Rectangle>);
    cuMemcpy2DAsync_v2(In<Rectangle>, Handle);
    cuMemcpy3D_v2(In<Cuboid>);
    cuMemcpy3D_v2_ptds(In<Cuboid>);
    cuMemcpy3DAsync_v2(In<Cuboid>, Handle);
    cuMemcpyBatchAsync_v2(In<u64>, In<u64>, In<usize>, usize, Handle, Handle, usize, Handle);
    cuMemcpyPeer(u64, Handle, u64, Handle, usize);
    cuMemcpyPeerAsync(u64, Handle, u64, Handle, usize, Handle);
    cuMemsetD8_v2(u64, u8, usize);
    cuMemsetD8_v2_ptds(u64, u8, usize);
    cuMemsetD8Async(u64, u8, usize, Handle);
    cuMemsetD2D8_v2(u64, usize, u8, usize, usize);
    cuMemsetD2D8_v2_ptds(u64, usize, u8, usize, usize);
    cuMemsetD2D8Async(u64, usize, u8, usize, usize, Handle);
    cuStreamCreateWithPriority(Out<Handle>, u32, i32);
    cuStreamDestroy_v2(Handle);
    cuStreamSynchronize(Handle);
    cuStreamQuery(Handle);
    cuStreamWaitEvent(Handle, Handle, u32);
    cuStreamBeginCapture_v2(Handle, u32);
    cuStreamEndCapture(Handle, Out<Handle>);
    cuGraphCreate(Out<Handle>, u32);
    cuGraphAddKernelNode_v2(Out<Handle>, Handle, In<Handle>, usize, In<KernelNode>);
    cuGraphAddMemcpyNode(Out<Handle>, Handle, In<Handle>, usize, In<Cuboid>, Handle);
    cuGraphAddMemsetNode(Out<Handle>, Handle, In<Handle>, usize, In<MemsetNode>, Handle);
    cuGraphAddHostNode(Out<Handle>, Handle, In<Handle>, usize, In<HostNode>);
    cuGraphAddChildGraphNode(Out<Handle>, Handle, In<Handle>, usize, Handle);
    cuGraphAddEmptyNode(Out<Handle>, Handle, In<Handle>, usize);
    cuGraphAddMemAllocNode(Out<Handle>, Handle, In<Handle>, usize, Out<AllocNode>);
    cuGraphAddMemFreeNode(Out<Handle>, Handle, In<Handle>, usize, u64);
    cuGraphAddNode_v2(Out<Handle>, Handle, In<Handle>, In<u64>, usize, Out<AnyNode<KernelNode>>);
    cuGraphConditionalHandleCreate(Out<u64>, Handle, Handle, u32, u32);
    cuGraphNodeGetType(Handle, Out<u32>);
    cuGraphExecKernelNodeSetParams_v2(Handle, Handle, In<KernelNode>);
    cuGraphExecMemcpyNodeSetParams(Handle, Handle, In<Cuboid>, Handle);
    cuGraphExecMemsetNodeSetParams(Handle, Handle, In<MemsetNode>, Handle);
    cuGraphExecHostNodeSetParams(Handle, Handle, In<HostNode>);
    cuDeviceGraphMemTrim(u32);
    cuDeviceGetGraphMemAttribute(u32, u32, Out<u64>);
    cuGraphClone(Out<Handle>, Handle);
    cuGraphDestroyNode(Handle);
    cuGraphInstantiateWithFlags(Out<Handle>, Handle, u64);
    cuGraphExecUpdate_v2(Handle, Handle, Out<UpdateResult>);
    cuGraphLaunch(Handle, Handle);
    cuGraphUpload(Handle, Handle);
    cuGraphExecDestroy(Handle);
    cuGraphDestroy(Handle);
    cuStreamIsCapturing(Handle, Out<u32>);
    cuStreamBeginCaptureToGraph(Handle, Handle, In<Handle>, In<u64>, usize, u32);
    cuStreamGetCaptureInfo_v3(
        Handle, Out<u32>, Out<u64>, Out<Handle>, Out<*const usize>, Out<*const u64>, Out<usize>);
    cuStreamUpdateCaptureDependencies_v2(Handle, In<Handle>, In<u64>, usize, u32);
    cuThreadExchangeStreamCaptureMode(Out<u32>);
    cuStreamGetPriority(Handle, Out<i32>);
    cuCtxGetStreamPriorityRange(Out<i32>, Out<i32>);
    cuStreamAddCallback(Handle, Handle, Handle, u32);
    cuGraphGetNodes(Handle, Out<Handle>, Out<usize>);
    cuGraphNodeGetDependencies_v2(Handle, Out<Handle>, Out<u64>, Out<usize>);
    cuUserObjectCreate(Out<Handle>, Handle, Option<HostFn>, u32, u32);
    cuUserObjectRetain(Handle, u32);
    cuUserObjectRelease(Handle, u32);
    cuGraphRetainUserObject(Handle, Handle, u32, u32);
    cuEventCreate(Out<Handle>, u32);
    cuEventRecord(Handle, Handle);
    cuEventQuery(Handle);
    cuEventSynchronize(Handle);
    cuEventElapsedTime(Out<f32>, Handle, Handle);
    cuEventDestroy_v2(Handle);
    cuLaunchHostFunc(Handle, Option<HostFn>, *mut c_void);
    cuLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut Handle, *mut Handle);
    cuLaunchKernelEx(Handle, Handle, *mut Handle, *mut Handle);
    cuLaunchCooperativeKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut Handle);
}

fn core_table(get: Handle) -> Option<&'static CoreTable> {
    // SAFETY: cuGetExportTable has this type in every libcuda.
    let get = unsafe {
        std::mem::transmute::<Handle, extern "C" fn(Out<*const CoreTable>, In<[u8; 16]>) -> u32>(get)
    };
    let mut table = std::ptr::null();
    if get(Out(&mut table), In(&GPUSIM_UUID)) != 0 {
        return None;
    }
    // SAFETY: under this id libcuda returns a static CoreTable, and libcuda stays mapped.
    unsafe { table.as_ref() }
}

/// Returns libcuda's functions, even if libcuda is not initialised yet. Returns `None` if libcuda is missing or is not
/// the simulated library.
pub(crate) fn loaded() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let load = || {
        // SAFETY: loading the simulated libcuda runs no constructors, since it has none.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() { None } else { Driver::find(library) }
    };
    DRIVER.get_or_init(load).as_ref()
}

/// Version of the CUDA runtime: 13.0.
pub(crate) const VERSION: u32 = 13000;

static READY: OnceLock<Result<&'static Driver, CuError>> = OnceLock::new();

/// Initialises libcuda with cuInit, and returns its functions. The first call runs cuInit through pthread_once, as the
/// real runtime does.
pub(crate) fn ready() -> Result<&'static Driver, CuError> {
    if let Some(ready) = READY.get() {
        return *ready;
    }
    unsafe extern "C" {
        fn pthread_once(control: *mut c_int, run: extern "C" fn()) -> c_int;
    }
    static mut CONTROL: c_int = 0;
    // SAFETY: 0 is PTHREAD_ONCE_INIT, and only pthread_once touches CONTROL.
    unsafe { pthread_once(&raw mut CONTROL, start) };
    // `READY` is unset here only if `start` is still running, that is, if the injected library calls the runtime.
    READY.get().copied().unwrap_or_else(|| loaded().ok_or(INSUFFICIENT_DRIVER))
}

extern "C" fn start() {
    let started = loaded().ok_or(INSUFFICIENT_DRIVER).and_then(|driver| {
        let mut version = 0;
        (driver.cuDriverGetVersion)(Out(&mut version));
        if version < VERSION {
            return Err(INSUFFICIENT_DRIVER);
        }
        match (driver.cuInit)(0) {
            0 => Ok(driver),
            error => Err(error),
        }
    });
    let _ = READY.set(started);
}
