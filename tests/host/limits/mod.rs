//! Limits that the user, the program or its environment sets: memory, descriptors, system calls, rights.

mod ceiling;
mod descriptors;
mod memory;
mod sandbox_limits;
