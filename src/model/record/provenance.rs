//! Defines the facts about the origin of a recording: the machine, the job, and the software versions.

use super::kinds::kinds;

kinds! {
    /// Kind of fact about the origin of a recording.
    Provenance(u32) {
        /// Name of the machine.
        HOST = 1, "host";
        /// Time at which recording began, in ISO 8601.
        START = 2, "start";
        /// Rank of the process in its job, if the rank is known.
        RANK = 3, "rank";
        /// Name and bus address of a GPU in the machine.
        GPU = 4, "gpu";
        /// Highest CUDA version that the driver supports.
        DRIVER = 5, "driver";
        /// Version and path of the CUPTI library.
        CUPTI = 6, "cupti";
        /// Version of gpuflame that wrote the recording.
        GPUFLAME = 7, "gpuflame";
        /// Command line of the program, recorded only on request.
        COMMAND = 8, "command line";
        /// A line of the ledger or of another message, if the line could not be printed.
        LEDGER = 9, "ledger";
        /// Number of ranks in the job, if the number is known.
        WORLD_SIZE = 10, "world size";
    } else "unknown (from a newer gpuflame)"
    /// Returns the word under which outputs show a fact of this kind.
    word
}
