//! Tables of the verbs that prepare a recording: `doctor`, `devices`, `settings`.

use schemars::JsonSchema;

verbs! {
    /// `gpuflame doctor`.
    Doctor {
        doctor: DoctorRow,
        ?
    }
    /// `gpuflame devices`.
    Devices {
        found_gpus: FoundGpuRow,
        driver: DriverRow,
        cupti: CuptiRow,
        ?
    }
    /// `gpuflame settings`.
    Settings {
        settings: SettingRow,
        ?
    }
}

objects! {
    /// Result of one check of this machine.
    DoctorRow {
        /// `ok`, `warn` or `fail`.
        result: String,
        what: String,
        /// Text of the finding.
        found: String,
        /// Suggested action; null if there is none.
        remedy: Option<String>,
    }
    /// A GPU that this user may use.
    FoundGpuRow {
        /// Number by which CUDA knows the GPU.
        gpu: u64,
        /// Size of the memory in bytes; null if the driver does not tell it.
        memory_bytes: Option<u64>,
        /// Compute capability, such as `9.0`; null if the driver does not tell it.
        capability: Option<String>,
        /// Number of streaming multiprocessors; null if the driver does not tell it.
        multiprocessors: Option<u64>,
        /// Place on the PCI bus; null if the driver does not tell it.
        pci: Option<String>,
        /// UUID, as `nvidia-smi -L` prints it; null if the driver does not tell it.
        uuid: Option<String>,
        /// Name of the model.
        name: String,
    }
    /// The NVIDIA driver; no row if there is none.
    DriverRow {
        /// Newest CUDA version that the driver supports; null if the driver does not tell it.
        cuda: Option<String>,
        /// Version of the kernel module, as `nvidia-smi` prints it; null if there is none.
        kernel_module: Option<String>,
        /// Path of `libcuda.so.1`.
        file: String,
    }
    /// A CUPTI library, in the order in which gpuflame tries them.
    CuptiRow {
        /// `used` by new processes, `usable`, `unusable`, or `not loaded`, because there is no driver.
        state: String,
        /// Version of the library; null if it could not be loaded.
        version: Option<String>,
        /// Path of the library.
        file: String,
        /// Place where it was found, or reason why it is unusable.
        why: String,
    }
    /// An environment variable.
    SettingRow {
        /// Name of the variable.
        name: String,
        /// Values that it takes.
        values: String,
        /// Value if it is not set; empty if there is none.
        default: String,
        /// Effect of the variable.
        help: String,
        /// `first` for important variables, `internal` for gpuflame's own commands and tests, else `more`.
        group: String,
    }
}
