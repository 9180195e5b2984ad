//! Tests `gpuflame critical-path` on small programs whose path a person can check, on real traces, and on random
//! simulated programs.

mod by_hand;
mod graph_edges;
mod groups_by_hand;
#[allow(dead_code, unreachable_pub)] // other parts of this module are not used here
#[path = "../support/handmade.rs"]
mod handmade;
mod host_stacks;
mod job_by_hand;
mod log_paths;
mod missing_records;
mod order_by_hand;
mod output;
mod program_checks;
#[path = "../support/random_program.rs"]
mod random_program;
mod random_programs;
mod ranges;
mod real_traces;
mod slack_and_track;
mod ties;
