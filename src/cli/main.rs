//! The `gpuflame` command, with one file per verb. The verb `run` creates recordings. Every other verb reads a
//! recording or a trace, calls the same functions as the injected library, and writes the results.
//!
//! The code here only handles input and output; other crates compute the contents of profiles. The shared library
//! does not contain this code. Exit codes: 0 success, 1 failure (or `check --strict` found something), 2 invalid
//! command line.

#![deny(unsafe_code)]

mod arrivals;
mod check;
mod completions;
mod console;
mod convert;
#[cfg(test)]
mod cut;
mod decode_steps;
mod diff;
mod doctor;
mod explain;
mod extract;
mod flamegraph;
mod gpuperf;
mod heading;
mod info;
mod inherited;
mod input;
mod jobs;
mod layout;
mod merge;
mod merge_ranks;
#[cfg(test)]
mod mutated;
mod name_flags;
mod output;
mod page;
mod ranks;
mod recorded_steps;
mod recover;
mod report;
mod run;
#[cfg(test)]
mod schema;
mod set_file;
mod settings;
mod shorten;
mod stats;
mod stream_times;
mod table;
mod top;
mod trace;
mod view;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use console::{ColorChoice, Console, Outcome, usage_error};
use gpuflame_model::error::{ErrorKind, Result};
use gpuflame_os::file;

/// GPU flame graphs: every nanosecond of GPU time under the CPU stack that launched it.
///
/// Reads recordings of gpuflame (GPUFLAME_FORMATS=gfr) and traces of other tools: torch.profiler and other
/// Chrome traces, Nsight Systems, rocprofv3 and more, plain or compressed. `-` is standard input or output.
#[derive(Debug, Parser)]
#[command(name = "gpuflame", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 success; 1 failure, or a problem found by `doctor` or `check \
                        --strict`; 2 invalid command line.")]
struct Command {
    #[command(subcommand)]
    verb: Verb,
    /// Print errors only: no progress and no remarks.
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Read a truncated trace up to its last complete event, and print where it ends.
    #[arg(long, global = true)]
    accept_cut: bool,
    /// When to colour tables. `auto`: on a terminal, unless NO_COLOR is set.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    color: ColorChoice,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Check(check::Check),
    Completions(completions::Completions),
    Convert(convert::Convert),
    DecodeSteps(decode_steps::DecodeSteps),
    Diff(diff::Diff),
    Doctor(doctor::Doctor),
    Extract(extract::Extract),
    Flamegraph(flamegraph::Flamegraph),
    Gpuperf(gpuperf::Gpuperf),
    Info(info::Info),
    Man(completions::Man),
    Merge(merge::Merge),
    MergeRanks(merge_ranks::MergeRanks),
    Recover(recover::Recover),
    #[command(alias = "record")]
    Run(run::Run),
    Settings(settings::Settings),
    Stats(stats::Stats),
    Top(top::Top),
    View(view::View),
}

fn main() -> ExitCode {
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => return print_usage(&error),
    };
    file::set_file_mode(file::COMMAND_FILE_MODE);
    match dispatch(&command) {
        Ok(Outcome::Clean) => ExitCode::SUCCESS,
        Ok(Outcome::Findings) => ExitCode::from(1),
        Ok(Outcome::Status(code)) => ExitCode::from(code),
        Err(error) => {
            command.console().print_error(&error);
            ExitCode::from(if error.kind() == ErrorKind::Setting { 2 } else { 1 })
        }
    }
}

impl Command {
    fn console(&self) -> Console {
        Console { quiet: self.quiet, accept_cut: self.accept_cut, patience: None, color: self.color }
    }
}

/// Prints help or the version to stdout. For an invalid command line, prints the error to stderr.
fn print_usage(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| io::stdout().flush());
    if error.use_stderr() {
        return ExitCode::from(2);
    }
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let console =
                Console { quiet: false, accept_cut: false, patience: None, color: ColorChoice::Never };
            console.print_error(&error.into());
            ExitCode::from(1)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Runs a verb given as command-line words, as if the user had typed them.
fn by_words(words: &[OsString], console: Console) -> Result<Outcome> {
    let all = std::iter::once(OsStr::new("gpuflame")).chain(words.iter().map(OsString::as_os_str));
    let mut command = Command::try_parse_from(all).map_err(|error| usage_error(error.to_string()))?;
    (command.quiet, command.accept_cut, command.color) = (console.quiet, console.accept_cut, console.color);
    dispatch(&command)
}

fn dispatch(command: &Command) -> Result<Outcome> {
    let console = command.console();
    match &command.verb {
        Verb::Check(verb) => verb.run(console),
        Verb::Completions(verb) => verb.run(<Command as CommandFactory>::command(), console),
        Verb::Convert(verb) => verb.run(console),
        Verb::DecodeSteps(verb) => verb.run(console),
        Verb::Diff(verb) => verb.run(console),
        Verb::Doctor(verb) => verb.run(console),
        Verb::Extract(verb) => verb.run(console),
        Verb::Flamegraph(verb) => verb.run(console),
        Verb::Gpuperf(verb) => verb.run(console, by_words),
        Verb::Info(verb) => verb.run(console),
        Verb::Man(verb) => verb.run(<Command as CommandFactory>::command(), console),
        Verb::Merge(verb) => verb.run(console),
        Verb::MergeRanks(verb) => verb.run(console),
        Verb::Recover(verb) => verb.run(console),
        Verb::Run(verb) => verb.run(console),
        Verb::Settings(verb) => verb.run(console),
        Verb::Stats(verb) => verb.run(console),
        Verb::Top(verb) => verb.run(console),
        Verb::View(verb) => verb.run(console),
    }
}
