//! JSON tables of the verbs that prepare a recording: `doctor`, `devices`, `settings`.

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
        /// Result of the check: `ok`, `warn` or `fail`.
        result: String,
        what: String,
        /// Text that states what the check found.
        found: String,
        /// Action that the user should take; null if none is needed.
        remedy: Option<String>,
    }
    /// A GPU that this user can use.
    FoundGpuRow {
        /// Index of the GPU in CUDA.
        gpu: u64,
        /// Size of the GPU's memory in bytes; null if the driver does not report it.
        memory_bytes: Option<u64>,
        /// Compute capability of the GPU, such as `9.0`; null if the driver does not report it.
        capability: Option<String>,
        /// Number of streaming multiprocessors of the GPU; null if the driver does not report it.
        multiprocessors: Option<u64>,
        /// Address of the GPU on the PCI bus; null if the driver does not report it.
        pci: Option<String>,
        /// UUID of the GPU, as `nvidia-smi -L` prints it; null if the driver does not report it.
        uuid: Option<String>,
        /// Name of the GPU's model.
        name: String,
    }
    /// The NVIDIA driver. The table is empty if there is no driver.
    DriverRow {
        /// Newest CUDA version that the driver supports; null if the driver does not report it.
        cuda: Option<String>,
        /// Version of the driver's kernel module, as `nvidia-smi` prints it; null if there is no such module.
        kernel_module: Option<String>,
        /// Path of the driver library `libcuda.so.1`.
        file: String,
    }
    /// A CUPTI library. The rows are in the order in which gpuflame tries the libraries.
    CuptiRow {
        /// State of the library: `used` (by new processes), `usable`, `unusable`, or `not loaded` (there is no driver).
        state: String,
        /// Version of the CUPTI library; null if it could not be loaded.
        version: Option<String>,
        /// Path of the CUPTI library.
        file: String,
        /// Place where the library was found, or reason why it is unusable.
        why: String,
    }
    /// An environment variable that gpuflame reads.
    SettingRow {
        /// Name of the environment variable.
        name: String,
        /// Values that the variable accepts.
        values: String,
        /// Value that applies if the variable is not set; empty if there is no default.
        default: String,
        /// Effect of the variable.
        help: String,
        /// Group of the variable: `first` for important variables, `internal` for variables of gpuflame's own commands
        /// and tests, otherwise `more`.
        group: String,
    }
}
