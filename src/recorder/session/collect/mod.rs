//! Turns the contents of thread logs and CUPTI buffers into rows, and then joins launches with activities and sums the
//! times. This folder contains the collector, its pipeline, the checkpoint, and the code for windows.

pub(super) mod checkpoint;
pub(super) mod clock_guard;
pub(super) mod collector;
pub(super) mod edge_queue;
pub(super) mod marks;
pub(super) mod pipeline;
mod row_sink;
mod stack_id_renewal;
pub(super) mod step_queue;
#[cfg(debug_assertions)]
pub(super) mod swap_fault;
mod window_outputs;
pub(super) mod window_scheduler;
