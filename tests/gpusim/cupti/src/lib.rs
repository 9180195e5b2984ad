//! Part of the simulated CUDA stack.
