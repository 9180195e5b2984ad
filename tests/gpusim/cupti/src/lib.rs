//! The simulated `libcupti.so.13`, and older versions through `GPUSIM_CUPTI_VERSION`: one file imitates all versions.
//! When it is loaded, functions that an older version does not export are removed from its symbol table, see
//! [`disguise`]. Kernels, copies, memsets, graphs and API calls are recorded.

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
