//! Lists the GPUs and the CUPTI libraries on this machine, for `gpuflame devices` and `gpuflame doctor`. The CUDA
//! driver is initialised, but no CUDA context is created and CUPTI is not started, so no GPU memory is used.

use std::ffi::{CStr, c_int};
use std::path::PathBuf;

use super::driver::Driver;
use super::find::{Candidate, CandidateSource};
use super::load::{self, SkipReason};
use super::version::Version;
use super::{Options, process_env};

/// A GPU that this process may use. A field is `None` if the driver does not report the value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Name of the GPU model.
    pub name: String,
    /// Size of the GPU memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Compute capability of the GPU (major and minor number).
    pub compute_capability: Option<(u32, u32)>,
    /// Number of streaming multiprocessors in the GPU.
    pub multiprocessors: Option<u32>,
    /// PCI domain, bus, device and function of the GPU, as in `0000:1e:00.0`.
    pub pci: Option<String>,
    /// Bytes of the GPU's UUID.
    pub uuid: Option<[u8; 16]>,
}

/// A CUPTI library on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCupti {
    /// Path of the library.
    pub file: PathBuf,
    /// Reason why gpuflame would try this library.
    pub source: CandidateSource,
    /// Version of the library. `None` if the library cannot be loaded, or if there is no driver. (Loading the library
    /// requires a driver.)
    pub version: Option<Version>,
    /// Reason why gpuflame cannot use this library; `None` if no such reason is known.
    pub refusal: Option<String>,
}

/// GPUs, driver and CUPTI libraries on this machine.
#[derive(Debug)]
pub struct DeviceReport {
    /// Path of the mapped `libcuda`; `None` if this library cannot be loaded.
    pub driver_file: Option<PathBuf>,
    /// Newest CUDA version that the driver supports, in the driver's encoding (12040 = 12.4).
    pub cuda: Option<u32>,
    /// The GPUs that this process may use. If the driver fails, the status code that the driver has returned, for
    /// example 100 if there is no GPU.
    pub devices: Result<Vec<Device>, u32>,
    /// CUPTI libraries on this machine, in the order in which gpuflame tries them.
    pub cupti: Vec<FoundCupti>,
}

/// Returns a list of the GPUs, the driver and the CUPTI libraries. If `library` is given, the list contains no other
/// CUPTI library. Call this function in a separate process, because all the libraries stay loaded.
pub fn list_devices(library: Option<PathBuf>) -> DeviceReport {
    let driver = Driver::find(true);
    let cuda = driver.and_then(Driver::version);
    let options = Options { library, ..Options::default() };
    let environment = process_env::search_environment(cuda, &options);
    let is_driver = |file: &PathBuf| file.file_name().is_some_and(|name| name == "libcuda.so.1");
    let candidates = environment.search().candidates.into_iter();
    let cupti = match driver {
        Some(driver) => {
            let mut seen = Vec::new();
            candidates.filter_map(|candidate| FoundCupti::load(driver, candidate, &mut seen)).collect()
        }
        // Candidates without a path (bare names) are skipped if there is no driver. Without a driver, no library is
        // loaded, so we cannot find out whether the dynamic linker would find a bare name.
        None => candidates
            .filter(|candidate| candidate.source != CandidateSource::ByName)
            .map(|candidate| FoundCupti::new(candidate.file, candidate.source))
            .collect(),
    };
    DeviceReport {
        driver_file: process_env::mapped_files().into_iter().find(is_driver),
        cuda,
        devices: driver.map_or(Ok(Vec::new()), devices),
        cupti,
    }
}

impl FoundCupti {
    fn new(file: PathBuf, source: CandidateSource) -> Self {
        Self { file, source, version: None, refusal: None }
    }

    /// Loads a file that may be a usable CUPTI library. `seen` contains the files that were already loaded. Returns
    /// `None` if the dynamic linker does not find a bare name, or if the file was already loaded under another name.
    fn load(driver: Driver, candidate: Candidate, seen: &mut Vec<PathBuf>) -> Option<Self> {
        let library = match load::open(&candidate) {
            Ok(library) => library,
            Err(_) if candidate.source == CandidateSource::ByName => return None,
            Err(reason) => {
                let refusal = Some(reason.to_string());
                return Some(Self { refusal, ..Self::new(candidate.file, candidate.source) });
            }
        };
        let file = library.file().unwrap_or(candidate.file);
        if seen.contains(&file) {
            return None;
        }
        seen.push(file.clone());
        let mut found = Self::new(file, candidate.source);
        match load::check_library(driver, library) {
            Ok((_, version)) => found.version = Some(version),
            Err(reason) => {
                found.refusal = Some(reason.to_string());
                if let SkipReason::TooOld(version) | SkipReason::NewerThanDriver(version, _) = reason {
                    found.version = Some(version);
                }
            }
        }
        Some(found)
    }
}

/// Values of attributes in the driver's enumeration `CUdevice_attribute`.
const MULTIPROCESSORS: c_int = 16;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

/// Returns the GPUs that this process may use. Initialises CUDA, but creates no CUDA context.
///
/// # Errors
/// The error is the status code from the driver, which is 100 if there is no GPU.
pub(super) fn devices(driver: Driver) -> Result<Vec<Device>, u32> {
    let functions = DriverFunctions::find(driver).ok_or(0_u32)?;
    let done = |status: u32| if status == 0 { Ok(()) } else { Err(status) };
    // SAFETY: the function takes only an integer, and accesses no memory of ours.
    done(unsafe { (functions.init)(0) })?;
    let mut count = 0;
    // SAFETY: `count` has room for the single int that the function writes.
    done(unsafe { (functions.count)(&raw mut count) })?;
    (0..count).map(|ordinal| functions.device(ordinal)).collect()
}

/// Functions of the driver that do not need a CUDA context. A function is optional if some releases of the driver lack
/// it.
struct DriverFunctions {
    init: unsafe extern "C" fn(u32) -> u32,
    count: unsafe extern "C" fn(*mut c_int) -> u32,
    name: unsafe extern "C" fn(*mut u8, c_int, c_int) -> u32,
    get: Option<unsafe extern "C" fn(*mut c_int, c_int) -> u32>,
    memory: Option<unsafe extern "C" fn(*mut usize, c_int) -> u32>,
    attribute: Option<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> u32>,
    pci: Option<unsafe extern "C" fn(*mut u8, c_int, c_int) -> u32>,
    uuid: Option<unsafe extern "C" fn(*mut [u8; 16], c_int) -> u32>,
}

impl DriverFunctions {
    fn find(driver: Driver) -> Option<Self> {
        let look_up = |name: &CStr| Some(driver.symbol(name)).filter(|address| !address.is_null());
        // SAFETY: For the functions with these names, NVIDIA documents these types. A function pointer has the same
        // size as a data pointer.
        unsafe {
            Some(Self {
                init: look_up(c"cuInit").map(|found| std::mem::transmute(found))?,
                count: look_up(c"cuDeviceGetCount").map(|found| std::mem::transmute(found))?,
                name: look_up(c"cuDeviceGetName").map(|found| std::mem::transmute(found))?,
                get: look_up(c"cuDeviceGet").map(|found| std::mem::transmute(found)),
                memory: look_up(c"cuDeviceTotalMem_v2").map(|found| std::mem::transmute(found)),
                attribute: look_up(c"cuDeviceGetAttribute").map(|found| std::mem::transmute(found)),
                pci: look_up(c"cuDeviceGetPCIBusId").map(|found| std::mem::transmute(found)),
                uuid: look_up(c"cuDeviceGetUuid").map(|found| std::mem::transmute(found)),
            })
        }
    }

    fn device(&self, ordinal: c_int) -> Result<Device, u32> {
        let mut handle = ordinal;
        if let Some(get) = self.get {
            // SAFETY: `handle` has room for the single int that the function writes.
            let status = unsafe { get(&raw mut handle, ordinal) };
            if status != 0 {
                return Err(status);
            }
        }
        let mut name = [0_u8; 256];
        // SAFETY: the function writes at most as many bytes as its second argument, which is the size of `name`.
        let status = unsafe { (self.name)(name.as_mut_ptr(), name.len() as c_int, handle) };
        if status != 0 {
            return Err(status);
        }
        let attribute = |number| {
            let mut value = 0;
            // SAFETY: `value` has room for the single int that the function writes.
            let status = unsafe { self.attribute?(&raw mut value, number, handle) };
            (status == 0).then_some(value)?.try_into().ok()
        };
        Ok(Device {
            name: c_text(&name),
            memory_bytes: self.memory(handle),
            compute_capability: attribute(CAPABILITY_MAJOR).zip(attribute(CAPABILITY_MINOR)),
            multiprocessors: attribute(MULTIPROCESSORS),
            pci: self.pci(handle),
            uuid: self.uuid(handle),
        })
    }

    fn memory(&self, handle: c_int) -> Option<u64> {
        let mut bytes = 0;
        // SAFETY: `bytes` has room for the single `size_t` that the function writes.
        let status = unsafe { self.memory?(&raw mut bytes, handle) };
        (status == 0).then_some(bytes as u64)
    }

    fn pci(&self, handle: c_int) -> Option<String> {
        let mut text = [0_u8; 32];
        // SAFETY: the function writes at most as many bytes as its second argument, which is the size of `text`.
        let status = unsafe { self.pci?(text.as_mut_ptr(), text.len() as c_int, handle) };
        (status == 0).then(|| c_text(&text))
    }

    fn uuid(&self, handle: c_int) -> Option<[u8; 16]> {
        let mut bytes = [0; 16];
        // SAFETY: `bytes` has room for the 16 bytes that the function writes.
        let status = unsafe { self.uuid?(&raw mut bytes, handle) };
        (status == 0).then_some(bytes)
    }
}

/// Returns the text before the first NUL byte.
fn c_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
