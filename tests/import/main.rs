//! Tests of the importers, with complete, damaged and truncated traces.

#[path = "../support/mod.rs"]
mod support;

mod as_hta;
mod call_stacks;
mod conclusions;
mod coverage;
mod critical_path_as_hta;
mod databases;
mod file_facts;
mod host_waits;
mod idle_culprits;
mod joins;
mod json_scanner;
mod lists;
mod other_formats;
mod random_damage;
mod reading;
mod real_traces;
mod unsupported_verdicts;
mod unusual_files;
