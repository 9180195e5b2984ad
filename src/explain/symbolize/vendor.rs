//! Lists names by which the code of GPU vendors, and of gpuflame itself, is recognized in a stack. Frames of this code
//! are between the user's code and the API call, and are hidden (see `fold`).

/// Names by which the code of one vendor is recognized in a stack.
pub(super) struct Vendor {
    /// Names of the vendor's library files, up to the first `.so` or `-`.
    pub(super) libraries: &'static [&'static str],
    /// Prefixes of functions that are recognized in any file: internal functions of a statically linked runtime, and
    /// functions that compilers generate around a launch.
    pub(super) functions: &'static [&'static str],
    /// Suffixes that may follow the name of an API function in the name of the function that implements it.
    pub(super) versions: &'static [&'static str],
}

const NVIDIA: Vendor = Vendor {
    libraries: &["libcuda", "libcudart", "libcupti"],
    functions: &[
        "libcudart_static_",
        "__cudart",
        "cudart::",
        "__device_stub__",
        "__cudaLaunchKernel_helper",
        "InitializeInjection",
    ],
    versions: &["", "_ptsz", "_ptds", "_v2", "_v3"],
};

const GPUFLAME: Vendor =
    Vendor { libraries: &["libgpuflame"], functions: &["gpuflame::", "<gpuflame::"], versions: &[] };

/// Names for all GPU vendors and for gpuflame.
pub(super) const VENDORS: [Vendor; 2] = [NVIDIA, GPUFLAME];
