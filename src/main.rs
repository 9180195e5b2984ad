//! The `gpuflame` command. All of it is in the library's `cli` module.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpuflame::cli::run()
}

/// `gpuflame run` gives its command the signal actions and descriptors that it got itself, so it has to see them before
/// Rust's runtime changes them.
#[used]
// SAFETY: the C library calls what is in this section with arguments that this function ignores.
#[unsafe(link_section = ".init_array")]
static NOTE_INHERITED: extern "C" fn() = gpuflame::host::child::note_inherited;
