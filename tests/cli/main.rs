//! Tests the `gpuflame` command as a user runs it. The verbs read recordings and traces for which the expected output
//! is worked out by hand.

#[path = "../support/mod.rs"]
mod support;

mod chrome_copy;
mod command;
mod completions;
mod convert;
mod devices;
mod doctor;
mod flags;
mod formats;
mod gate;
mod gpuperf;
mod graph_capture;
mod jobs;
mod kernel_extractor;
mod lines;
mod link_et;
mod mcp;
mod merge;
mod names;
mod passes;
mod report;
mod report_timeline;
mod run;
mod run_killed;
mod schema;
mod serve;
mod steps;
mod stream_order;
mod summary;
mod tables;
mod terminal;
mod verbs;
mod viewers;
