//! The C face of gpuflame.
