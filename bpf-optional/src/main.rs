//! `gpuflame-bpf`: watches launches of GPU work from outside the process, by eBPF.
//!
//! An independent witness of what gpuflame records inside, and a way to see launches of programs that it cannot get into.
//! It needs root and a kernel with BTF, and no compiler.

mod bytes;
mod compare;
mod crosscheck;
mod entries;
mod folded;
mod grade;
mod inside;
mod kernel;
mod launched;
mod names;
mod process;
mod record;
mod spaces;
mod watch;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "gpuflame-bpf", version, about = "Watch launches of GPU work from outside, by eBPF.")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Record(record::Record),
    Crosscheck(crosscheck::Crosscheck),
}

/// It could not be done.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let done = match Arguments::parse().verb {
        Verb::Record(record) => record.run(),
        Verb::Crosscheck(crosscheck) => crosscheck.run(),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            record::say(&error.to_string());
            ExitCode::from(FAILED)
        }
    }
}

/// The watched command gets the signal actions and descriptors that this program got, before Rust's runtime changes them.
#[used]
// SAFETY: the C library calls what is in this section with arguments that this function ignores.
#[unsafe(link_section = ".init_array")]
static NOTE_INHERITED: extern "C" fn() = gpuflame::host::child::note_inherited;
