//! The simulated `libcupti.so.13`, and older versions through `GPUSIM_CUPTI_VERSION`: one file imitates all versions.
//! When the library is loaded, it removes from its own symbol table the functions that the simulated version does not
//! export, see [`disguise`]. The library records kernels, copies, memsets, graphs and API calls.

mod activity;
mod buffers;
mod callbacks;
mod client_clock;
mod contexts;
mod disguise;
mod external;
mod frames;
mod ids;
mod lanes;
mod link;
mod replay;
mod result;
mod sim_lock;
mod subscriber;
mod walk;
mod worker;
