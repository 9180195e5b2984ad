//! The `gpuflame` command. All of it is in the library's `cli` module.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpuflame::cli::run()
}
