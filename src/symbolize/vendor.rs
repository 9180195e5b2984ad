//! What the software of vendors, and ours, is called on a stack: a row for each. Its frames lie between the user's
//! code and the API call, and are folded away.

/// One vendor's names.
pub(super) struct Vendor {
    /// Files, without what follows `.so` or `-`.
    pub(super) libraries: &'static [&'static str],
    /// How functions begin whose names tell them, wherever they are linked to: the inner functions of a runtime
    /// that is linked statically, and what compilers make around a launch.
    pub(super) functions: &'static [&'static str],
    /// What may follow the name of an API call in that of the function that carries it out.
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

/// All of them.
pub(super) const VENDORS: [Vendor; 2] = [NVIDIA, OURS];
