//! Names by which code of GPU vendors, and of gpuflame itself, is recognized in a stack. The frames with these names
//! are between the user's code and the API call, and are folded away (see `fold`).

/// Names by which the code of one vendor is recognized in a stack.
pub(super) struct Vendor {
    /// Names of the vendor's library files, without `.so` or `-` and everything after it.
    pub(super) libraries: &'static [&'static str],
    /// Prefixes of functions that are recognized in any file: the inner functions of a statically linked runtime, and
    /// functions that compilers generate around a launch.
    pub(super) functions: &'static [&'static str],
    /// Suffixes that the name of an implementing function may have after the name of the API function.
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

/// All vendors, and gpuflame.
pub(super) const VENDORS: [Vendor; 2] = [NVIDIA, GPUFLAME];
