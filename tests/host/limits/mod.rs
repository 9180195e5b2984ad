//! Limits on memory, descriptors, system calls and rights, set by the user, the program or its environment.

mod ceiling;
mod descriptors;
mod memory;
mod sandbox_limits;
