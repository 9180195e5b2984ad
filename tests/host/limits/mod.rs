//! Limits on memory, descriptors, system calls and rights, which the user, the program or its environment sets.

mod ceiling;
mod descriptors;
mod memory;
mod sandbox_limits;
