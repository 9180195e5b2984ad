//! The part of the CUDA driver API that the demo needs. As in other Rust programs, the CUDA driver is loaded with
//! dlopen, so building the demo requires no toolkit. If there is no driver, the demo prints an error.
//!
//! A [`Gpu`] is the primary context of one device; this context is current on the thread that opened the device. The
//! demo frees nothing, because the process ends when its work is done, and the driver then frees its memory and
//! handles.

use crate::Result;
use crate::call_site::{self, frame};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

/// Device memory with room for `len` floats.
pub(crate) struct Buffer {
    address: u64,
    len: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct Stream(*mut c_void);

#[derive(Clone, Copy)]
pub(crate) struct Event(*mut c_void);

#[derive(Clone, Copy)]
pub(crate) struct Kernel(*mut c_void);

/// An argument of a kernel. All arguments of the demo's kernels are addresses or counts.
#[derive(Clone, Copy)]
pub(crate) enum Argument<'a> {
    Buffer(&'a Buffer),
    Count(u32),
}

/// Macro for the function table. A line `name: cuName(types)` declares a field with the function's type. Each function
/// of the table is looked up by its name.
macro_rules! functions {
    ($($field:ident: $symbol:ident($($type:ty),*);)*) => {
        struct Api { $($field: unsafe extern "C" fn($($type),*) -> c_uint),* }

        impl Api {
            fn load(libcuda: *mut c_void) -> Result<Api> {
                Ok(Api { $($field: {
                    let name = concat!(stringify!($symbol), "\0");
                    // SAFETY: the handle is an open library, and the name is a C string.
                    let symbol = unsafe { libc::dlsym(libcuda, name.as_ptr().cast()) };
                    if symbol.is_null() {
                        return Err(format!("libcuda.so.1 has no {}: the driver is too old", stringify!($symbol)));
                    }
                    // SAFETY: in NVIDIA's documentation, the function with this name has this type.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_uint>(symbol) }
                }),* })
            }
        }
    };
}

functions! {
    init: cuInit(c_uint);
    error_name: cuGetErrorName(c_uint, *mut *const c_char);
    driver_version: cuDriverGetVersion(*mut c_int);
    device_count: cuDeviceGetCount(*mut c_int);
    device: cuDeviceGet(*mut c_int, c_int);
    device_name: cuDeviceGetName(*mut c_char, c_int, c_int);
    retain_context: cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int);
    set_context: cuCtxSetCurrent(*mut c_void);
    synchronize: cuCtxSynchronize();
    load_module: cuModuleLoadData(*mut *mut c_void, *const c_void);
    function: cuModuleGetFunction(*mut *mut c_void, *mut c_void, *const c_char);
    create_stream: cuStreamCreate(*mut *mut c_void, c_uint);
    synchronize_stream: cuStreamSynchronize(*mut c_void);
    wait_event: cuStreamWaitEvent(*mut c_void, *mut c_void, c_uint);
    create_event: cuEventCreate(*mut *mut c_void, c_uint);
    record_event: cuEventRecord(*mut c_void, *mut c_void);
    allocate: cuMemAlloc_v2(*mut u64, usize);
    copy_in: cuMemcpyHtoD_v2(u64, *const c_void, usize);
    copy_out: cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, *mut c_void);
    copy_across: cuMemcpyDtoDAsync_v2(u64, u64, usize, *mut c_void);
    set: cuMemsetD8Async(u64, u8, usize, *mut c_void);
    launch: cuLaunchKernel(
        *mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void,
        *mut *mut c_void, *mut *mut c_void
    );
}

/// Prints the name of the first GPU and the version of the driver, or the reason why there is no GPU.
pub(crate) fn probe() -> Result<()> {
    let (api, device) = open()?;
    let mut name = [0 as c_char; 128];
    // SAFETY: the buffer has the length that is passed in the call.
    api.check("cuDeviceGetName", unsafe { (api.device_name)(name.as_mut_ptr(), 128, device) })?;
    let mut version = 0;
    // SAFETY: the function writes one int.
    api.check("cuDriverGetVersion", unsafe { (api.driver_version)(&mut version) })?;
    // SAFETY: the driver terminated the name with a zero, or the zeroed array still contains one.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy();
    println!("{name} (CUDA {}.{})", version / 1000, version % 1000 / 10);
    Ok(())
}

/// Loads and initialises the driver. If CUDA_INJECTION64_PATH is set, the driver loads gpuflame during this call.
fn open() -> Result<(Api, c_int)> {
    // SAFETY: loading the driver runs its initialisers, as in any CUDA program.
    let libcuda = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if libcuda.is_null() {
        return Err("there is no libcuda.so.1, so no NVIDIA driver is installed".to_owned());
    }
    // SAFETY: the handle was just opened.
    unsafe { call_site::find_witness(libcuda) };
    let api = Api::load(libcuda)?;
    // SAFETY: 0 is the only valid flag.
    api.check("cuInit", unsafe { (api.init)(0) })?;
    let mut count = 0;
    // SAFETY: the function writes one int.
    api.check("cuDeviceGetCount", unsafe { (api.device_count)(&mut count) })?;
    if count == 0 {
        return Err("the driver sees no device".to_owned());
    }
    let mut device = 0;
    // SAFETY: the function writes one int, and a first device exists.
    api.check("cuDeviceGet", unsafe { (api.device)(&mut device, 0) })?;
    Ok((api, device))
}

impl Api {
    fn check(&self, call: &str, code: c_uint) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the function writes one pointer, to a static string or NULL.
        unsafe { (self.error_name)(code, &mut name) };
        if name.is_null() {
            return Err(format!("{call} failed: {code}"));
        }
        // SAFETY: the pointer is not NULL, so it points to a C string that is never freed.
        Err(format!("{call} failed: {}", unsafe { CStr::from_ptr(name) }.to_string_lossy()))
    }
}

impl Buffer {
    /// Returns the numbers `from..from + len` of the buffer.
    pub(crate) fn part(&self, from: usize, len: usize) -> Buffer {
        assert!(from + len <= self.len, "a part of a buffer lies inside it");
        Buffer { address: self.address + (from * size_of::<f32>()) as u64, len }
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<f32>()
    }
}

/// The first device. `Gpu` is neither `Send` nor `Sync`, because its context is current on one thread.
pub(crate) struct Gpu {
    api: Api,
    module: *mut c_void,
    _one_thread: PhantomData<*mut ()>,
}

impl Gpu {
    /// Opens the first device and loads `ptx` there.
    pub(crate) fn open(ptx: &CStr) -> Result<Gpu> {
        let (api, device) = open()?;
        let (mut context, mut module) = (null_mut(), null_mut());
        // SAFETY: the function writes one handle.
        api.check("cuDevicePrimaryCtxRetain", unsafe { (api.retain_context)(&mut context, device) })?;
        // SAFETY: the context was just retained, and is never released.
        api.check("cuCtxSetCurrent", unsafe { (api.set_context)(context) })?;
        // SAFETY: the function writes one handle, and the PTX ends with a zero, as text must.
        api.check("cuModuleLoadData", unsafe { (api.load_module)(&mut module, ptx.as_ptr().cast()) })?;
        Ok(Gpu { api, module, _one_thread: PhantomData })
    }

    pub(crate) fn kernel(&self, name: &CStr) -> Result<Kernel> {
        let mut kernel = null_mut();
        // SAFETY: the function writes one handle, and the module is never unloaded.
        let code = unsafe { (self.api.function)(&mut kernel, self.module, name.as_ptr()) };
        self.api.check("cuModuleGetFunction", code).map(|()| Kernel(kernel))
    }

    /// Creates a stream that waits for the copies of [`Gpu::write`], because the calls for these copies return before the GPU
    /// has received all data.
    pub(crate) fn stream(&self) -> Result<Stream> {
        let (mut stream, blocking) = (null_mut(), 0);
        // SAFETY: the function writes one handle.
        let code = unsafe { (self.api.create_stream)(&mut stream, blocking) };
        self.api.check("cuStreamCreate", code).map(|()| Stream(stream))
    }

    pub(crate) fn event(&self) -> Result<Event> {
        let (mut event, without_timing) = (null_mut(), 2);
        // SAFETY: the function writes one handle.
        let code = unsafe { (self.api.create_event)(&mut event, without_timing) };
        self.api.check("cuEventCreate", code).map(|()| Event(event))
    }

    pub(crate) fn buffer(&self, len: usize) -> Result<Buffer> {
        let mut address = 0;
        // SAFETY: the function writes one address.
        let code = unsafe { (self.api.allocate)(&mut address, len * size_of::<f32>()) };
        self.api.check("cuMemAlloc", code).map(|()| Buffer { address, len })
    }

    /// Makes the later work of stream `then` wait for all work that has been submitted to stream `first`.
    pub(crate) fn order(&self, first: Stream, event: Event, then: Stream) -> Result<()> {
        // SAFETY: both handles belong to this context.
        self.api.check("cuEventRecord", unsafe { (self.api.record_event)(event.0, first.0) })?;
        // SAFETY: both handles belong to this context, and 0 is the default flag.
        self.api.check("cuStreamWaitEvent", unsafe { (self.api.wait_event)(then.0, event.0, 0) })
    }

    /// Returns when all work that was submitted to the GPU has run.
    pub(crate) fn finish(&self) -> Result<()> {
        // SAFETY: a context is current.
        self.api.check("cuCtxSynchronize", unsafe { (self.api.synchronize)() })
    }

    /// Copies `from` into the beginning of `to`. Returns when the program may change `from` again.
    #[inline(never)]
    pub(crate) fn write(&self, to: &Buffer, from: &[f32]) -> Result<()> {
        frame!(Gpu::write);
        assert!(from.len() <= to.len, "it must fit");
        call_site::tell();
        // SAFETY: both `from` and `to` have that many bytes, and the driver has read `from` when the call returns.
        let code = unsafe { (self.api.copy_in)(to.address, from.as_ptr().cast(), size_of_val(from)) };
        self.api.check("cuMemcpyHtoD", code)
    }

    /// Copies the beginning of `from` into `to` on `stream`. Returns when the copy is done.
    #[inline(never)]
    pub(crate) fn read(&self, to: &mut [f32], from: &Buffer, stream: Stream) -> Result<()> {
        frame!(Gpu::read);
        assert!(to.len() <= from.len, "it must fit");
        call_site::tell();
        let bytes = size_of_val(to);
        // SAFETY: both `from` and `to` have that many bytes, and `to` is borrowed until the stream is synchronized
        // below.
        let code = unsafe { (self.api.copy_out)(to.as_mut_ptr().cast(), from.address, bytes, stream.0) };
        // SAFETY: the stream belongs to this context.
        let over = unsafe { (self.api.synchronize_stream)(stream.0) };
        self.api.check("cuMemcpyDtoHAsync", code)?;
        self.api.check("cuStreamSynchronize", over)
    }

    /// Submits to `stream` a copy of `from` into the beginning of `to`.
    #[inline(never)]
    pub(crate) fn copy(&self, to: &Buffer, from: &Buffer, stream: Stream) -> Result<()> {
        frame!(Gpu::copy);
        assert!(from.len <= to.len, "it must fit");
        call_site::tell();
        // SAFETY: both `from` and `to` have that many bytes, and device memory is never freed.
        let code = unsafe { (self.api.copy_across)(to.address, from.address, from.bytes(), stream.0) };
        self.api.check("cuMemcpyDtoDAsync", code)
    }

    /// Submits to `stream` a fill of `buffer` with zeros.
    #[inline(never)]
    pub(crate) fn clear(&self, buffer: &Buffer, stream: Stream) -> Result<()> {
        frame!(Gpu::clear);
        call_site::tell();
        // SAFETY: the buffer has that many bytes, and device memory is never freed.
        let code = unsafe { (self.api.set)(buffer.address, 0, buffer.bytes(), stream.0) };
        self.api.check("cuMemsetD8Async", code)
    }

    /// Submits to `stream` a launch of `kernel` with at least `threads` threads, rounded up to complete blocks.
    ///
    /// # Safety
    /// `arguments` must match the kernel's declaration, and the kernel must only access memory inside the buffers.
    #[inline(never)]
    pub(crate) unsafe fn launch(
        &self,
        kernel: Kernel,
        threads: u32,
        stream: Stream,
        arguments: &[Argument],
    ) -> Result<()> {
        frame!(Gpu::launch);
        const BLOCK: u32 = 128;
        // A count occupies the first half of its 8-byte word, because CUDA runs on little-endian machines only.
        let mut values: Vec<u64> = arguments.iter().map(|argument| argument.word()).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        call_site::tell();
        let blocks = threads.div_ceil(BLOCK);
        // SAFETY: the handles belong to this context. The driver copies the arguments before it returns, and the
        // caller guarantees their types.
        let code = unsafe {
            (self.api.launch)(
                kernel.0,
                blocks,
                1,
                1,
                BLOCK,
                1,
                1,
                0,
                stream.0,
                pointers.as_mut_ptr(),
                null_mut(),
            )
        };
        self.api.check("cuLaunchKernel", code)
    }
}

impl Argument<'_> {
    fn word(self) -> u64 {
        match self {
            Argument::Buffer(buffer) => buffer.address,
            Argument::Count(count) => count.into(),
        }
    }
}
