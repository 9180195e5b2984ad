//! Tests of programs that are recorded on the simulated CUDA stack. gpuflame's outputs are compared with the truth
//! file, in which the simulation lists the GPU work that really ran.

#[path = "../support/mod.rs"]
mod support;

mod call_sites;
mod chrome;
mod copies;
mod cupti_text;
mod dependencies;
mod devices;
mod embedding;
mod generated;
mod graph_edges;
mod graphs;
mod idle;
mod idle_twins;
mod incomplete_stacks;
mod modules;
mod python;
mod python_samples;
mod ranges;
mod recording;
mod roots;
mod samples;
mod steps;
mod summary;
mod sums;
mod sums_equal_rows;
mod third_party;
mod threads;
mod unified;
mod verify;
mod waits_and_memory;
mod windows;
