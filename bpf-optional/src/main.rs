//! `gpuflame-bpf` watches launches of GPU work from outside the process, with eBPF.
//!
//! The tool checks gpuflame's recordings by an independent method. The tool also records the launches of programs into
//! which gpuflame cannot be loaded. The tool needs root rights and a kernel with BTF, but no compiler.

mod address_spaces;
mod compare;
mod crosscheck;
mod entry_points;
mod folded;
mod grade;
mod kernel;
mod mapped_file;
mod names;
mod probed_launches;
mod process;
mod record;
mod recorded_launches;
mod watch;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "gpuflame-bpf",
    version,
    about = "Watch launches of GPU work from outside the process, with eBPF."
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Record(record::Record),
    Crosscheck(crosscheck::Crosscheck),
}

/// Exit code that means that `gpuflame-bpf` itself has failed.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let done = match Arguments::parse().verb {
        Verb::Record(record) => record.run(),
        Verb::Crosscheck(crosscheck) => crosscheck.run(),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            record::print_message(&error.to_string());
            ExitCode::from(FAILED)
        }
    }
}

/// Notes the signal actions and file descriptors that this program has inherited, before Rust's runtime changes them.
/// The watched command then starts with the same signal actions and file descriptors.
#[used]
// SAFETY: for each function in this linker section, the C library passes arguments, which this function ignores.
#[unsafe(link_section = ".init_array")]
static NOTE_INHERITED: extern "C" fn() = gpuflame_os::child::note_inherited;
