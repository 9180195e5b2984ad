//! Where a recording comes from.

use super::kinds::kinds;

kinds! {
    /// What is said of where a recording comes from.
    Provenance(u32) {
        /// The machine's name.
        HOST = 1, "host";
        /// When recording began, in ISO 8601.
        START = 2, "start";
        /// The rank in a job of many processes, where one is told.
        RANK = 3, "rank";
        /// A GPU of the machine, with its place on the bus.
        GPU = 4, "gpu";
        /// The CUDA version that the driver is for.
        DRIVER = 5, "driver";
        /// CUPTI's version, and its file.
        CUPTI = 6, "cupti";
        /// The version of gpuflame that recorded.
        GPUFLAME = 7, "gpuflame";
        /// The command line, where it was asked for.
        COMMAND = 8, "command line";
        /// A line of the ledger or of a message that could not be printed.
        LEDGER = 9, "ledger";
    } else "something that a newer gpuflame says"
    /// The word for it.
    word
}
