//! The simulated `libcupti.so.13`, and of older versions by `GPUSIM_CUPTI_VERSION`: one file plays all
//! of them. What an older library does not export is taken out of this one's symbol table when it is
//! loaded, see [`disguise`]. Kernels, copies, memsets, graphs and API calls are recorded.

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
