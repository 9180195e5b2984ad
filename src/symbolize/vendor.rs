//! Names of vendor software, and our own, on a stack: one row per vendor. These frames are between the user's
//! code and the API call, and are folded away.

/// Names of one vendor.
pub(super) struct Vendor {
    /// File names, up to `.so` or `-`.
    pub(super) libraries: &'static [&'static str],
    /// Prefixes of functions that are recognised in any file: the inner functions of a statically linked
    /// runtime, and functions that compilers generate around a launch.
    pub(super) functions: &'static [&'static str],
    /// Suffixes that may follow an API call's name in the name of the function that implements it.
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

const OURS: Vendor =
    Vendor { libraries: &["libgpuflame"], functions: &["gpuflame::", "<gpuflame::"], versions: &[] };

/// All vendors.
pub(super) const VENDORS: [Vendor; 2] = [NVIDIA, OURS];
