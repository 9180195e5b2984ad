//! The `gpuflame` command, with one source file per verb. The verb `run` creates recordings. Most other verbs read a
//! recording or a trace, call the same functions as the injected library, and write the results.
//!
//! This crate only handles input and output; other crates compute the contents of profiles. `libgpuflame.so` does not
//! contain this crate. Exit codes: 0 success, 1 failure (or a `BAD` finding of `check --strict`), 2 invalid command line,
//! 10 to 14 a verdict of `diff --new`.

#![deny(unsafe_code)]

mod added_tracks;
mod arrivals;
mod baseline;
mod causal;
mod check;
mod chrome_flags;
mod completions;
mod console;
mod convert;
mod critical_path;
mod critical_path_hta;
mod critical_path_job;
#[cfg(test)]
mod cut;
mod decode_steps;
mod demo;
mod deps;
mod devices;
mod diff;
mod doctor;
mod edit_flags;
mod explain;
mod extract;
mod flamegraph;
mod found_job;
mod found_path;
mod gate;
mod gpuperf;
mod heading;
mod info;
mod info_execution;
mod inherited;
mod input;
mod instruction_fields;
mod instructions;
mod job_meetings;
mod jobs;
mod layout;
mod length_change;
mod link_et;
mod mcp;
mod measured_part;
mod merge;
mod merge_ranks;
#[cfg(test)]
mod mutated;
#[cfg(test)]
mod mutated_traces;
mod name_flags;
mod near_misses;
mod next_command;
mod op_collector;
mod open_file;
mod output;
mod page;
mod path_groups;
mod path_names;
mod path_ranges;
mod path_tables;
mod path_track;
mod predicted_gain;
mod probe_process;
mod rank_timelines;
mod ranks;
mod ranks_even;
mod recorded_steps;
mod recover;
mod replay;
mod replay_part;
mod replayed_steps;
mod report;
mod run;
mod run_path;
mod run_values;
#[cfg(test)]
mod schema;
mod serve;
mod set_file;
mod settings;
mod shorten;
mod slack_table;
mod state_culprits;
mod state_tracks;
mod states;
mod states_hta;
mod stats;
mod step_threads;
mod straggler_tables;
mod stragglers;
mod stream_flags;
mod stream_times;
mod summary;
mod table;
mod table_output;
mod timeline;
mod times;
mod top;
mod trace;
mod usage;
mod view;
mod what_if;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use console::{ColorChoice, Console, Outcome, usage_error};
use gpuflame_model::error::{ErrorKind, Result};
use gpuflame_os::file;
use output::Target;
use table_output::ReportFormat;

/// GPU flame graphs: every nanosecond of GPU time under the CPU stack that launched it.
///
/// Records programs, and reads recordings (NAME.gfr) and traces of other tools: torch.profiler and other
/// Chrome traces, Nsight Systems, rocprofv3 and more, plain or compressed. `-` is standard input or output.
#[derive(Debug, Parser)]
#[command(name = "gpuflame", version, max_term_width = 100)]
#[command(after_help = "`gpuflame VERB --help` shows the options of a verb, with examples.\n\n\
                        Exit codes: 0 success; 1 failure, or a problem found by `doctor` or `check \
                        --strict`; 2 invalid command line; 10 to 14 a verdict of `diff --new`.")]
struct Command {
    #[command(subcommand)]
    verb: Verb,
    /// Print errors only: no progress and no remarks.
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Read truncated input. This hidden flag, before the verb, is from earlier versions.
    #[arg(long, hide = true)]
    accept_cut: bool,
    /// Reason why the given options cannot be combined.
    #[arg(skip)]
    refusal: Option<String>,
    /// When to colour tables. `auto`: only on a terminal, and only if NO_COLOR is not set.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    color: ColorChoice,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Causal(causal::Causal),
    Check(check::Check),
    Completions(completions::Completions),
    Convert(convert::Convert),
    CriticalPath(critical_path::CriticalPathVerb),
    DecodeSteps(decode_steps::DecodeSteps),
    Demo(demo::Demo),
    Deps(deps::Deps),
    Devices(devices::Devices),
    Diff(diff::Diff),
    Doctor(doctor::Doctor),
    Extract(extract::Extract),
    Flamegraph(flamegraph::Flamegraph),
    Gpuperf(gpuperf::Gpuperf),
    Info(info::Info),
    Instructions(instructions::Instructions),
    LinkEt(link_et::LinkEt),
    Man(completions::Man),
    Mcp(mcp::Mcp),
    Merge(merge::Merge),
    MergeRanks(merge_ranks::MergeRanks),
    Recover(recover::Recover),
    Replay(replay::ReplayVerb),
    Report(report::Report),
    #[command(alias = "record")]
    Run(run::Run),
    Serve(serve::Serve),
    Settings(settings::Settings),
    States(states::States),
    Stats(stats::Stats),
    Stragglers(stragglers::Stragglers),
    Summary(summary::Summary),
    Timeline(timeline::Timeline),
    Top(top::Top),
    View(view::View),
    WhatIf(what_if::WhatIf),
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let command = match Command::from_words(&words) {
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
    /// Parses a command line, whose first word is the program's name.
    fn from_words(words: &[OsString]) -> std::result::Result<Self, clap::Error> {
        let mut parser = usage::complete(Self::command());
        let matches = parser.try_get_matches_from_mut(words);
        let matches = matches.map_err(|error| usage::advise(error, &parser, words))?;
        let mut command = Self::from_arg_matches(&matches)?;
        if let Some((name, verb)) = matches.subcommand() {
            command.refusal = command.add_shared_options(name, verb).err();
        }
        Ok(command)
    }

    /// Reads the options that `usage` adds to a verb, and derives the format of tables from the ending of the output
    /// file.
    fn add_shared_options(&mut self, name: &str, verb: &ArgMatches) -> std::result::Result<(), String> {
        match verb.try_get_one::<bool>(usage::ACCEPT_CUT) {
            Ok(accept_cut) => self.accept_cut |= accept_cut.copied().unwrap_or(false),
            Err(_) if self.accept_cut => {
                return Err(format!("--accept-cut has no meaning for `{name}`, which reads no trace"));
            }
            Err(_) => {}
        }
        if let Some((format, output)) = self.verb.tables()
            && verb.value_source("format") != Some(ValueSource::CommandLine)
        {
            *format = format_by_ending(output)?;
        }
        Ok(())
    }

    fn console(&self) -> Console {
        Console { quiet: self.quiet, accept_cut: self.accept_cut, patience: None, color: self.color }
    }
}

impl Verb {
    /// Returns the format and the output file of the verb's tables, if the verb writes tables.
    fn tables(&mut self) -> Option<(&mut ReportFormat, &Target)> {
        let report = match self {
            Self::Check(verb) => &mut verb.report,
            Self::Diff(verb) => &mut verb.report,
            Self::Devices(verb) => &mut verb.report,
            Self::Doctor(verb) => &mut verb.report,
            Self::Info(verb) => &mut verb.report,
            Self::LinkEt(verb) => return Some((&mut verb.format, &verb.table)),
            Self::MergeRanks(verb) => return Some((&mut verb.format, &verb.table)),
            Self::Settings(verb) => &mut verb.report,
            Self::States(verb) => &mut verb.report,
            Self::Timeline(verb) => &mut verb.report,
            Self::Causal(verb) => &mut verb.report,
            Self::CriticalPath(verb) => &mut verb.report,
            Self::Replay(verb) => &mut verb.report,
            Self::WhatIf(verb) => &mut verb.report,
            Self::Stragglers(verb) => &mut verb.report,
            Self::Summary(verb) => &mut verb.report,
            Self::Top(verb) => &mut verb.report,
            Self::View(verb) => &mut verb.report,
            _ => return None,
        };
        Some((&mut report.format, &report.output))
    }
}

/// Returns the format that the ending of an output file selects for tables; text if the file name has no ending.
fn format_by_ending(output: &Target) -> std::result::Result<ReportFormat, String> {
    let ending = output.ending().map(str::to_ascii_lowercase);
    match ending.as_deref() {
        None | Some("txt") => Ok(ReportFormat::Text),
        Some("csv") => Ok(ReportFormat::Csv),
        Some("json") => Ok(ReportFormat::Json),
        Some("md") => Ok(ReportFormat::Markdown),
        Some(ending) => Err(format!(
            "cannot write tables as .{ending}; end the name in .txt, .csv, .json or .md, or use --format"
        )),
    }
}

/// Prints the requested help or version to stdout. For an invalid command line, prints the error to stderr.
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

/// Runs a verb, given as command-line words, as if the user had typed these words.
fn by_words(words: &[OsString], console: Console) -> Result<Outcome> {
    let all: Vec<OsString> =
        std::iter::once(OsString::from("gpuflame")).chain(words.iter().cloned()).collect();
    let mut command = Command::from_words(&all).map_err(|error| usage_error(error.to_string()))?;
    (command.quiet, command.accept_cut, command.color) = (console.quiet, console.accept_cut, console.color);
    dispatch(&command)
}

fn dispatch(command: &Command) -> Result<Outcome> {
    let console = command.console();
    if let Some(why) = &command.refusal {
        return Err(usage_error(why.as_str()));
    }
    match &command.verb {
        Verb::Causal(verb) => verb.run(console),
        Verb::Check(verb) => verb.run(console),
        Verb::Completions(verb) => verb.run(usage::complete(Command::command()), console),
        Verb::Convert(verb) => verb.run(console),
        Verb::DecodeSteps(verb) => verb.run(console),
        Verb::Demo(verb) => verb.run(),
        Verb::Deps(verb) => verb.run(console),
        Verb::Devices(verb) => verb.run(console),
        Verb::Diff(verb) => verb.run(console),
        Verb::Doctor(verb) => verb.run(console),
        Verb::Extract(verb) => verb.run(console),
        Verb::Flamegraph(verb) => verb.run(console),
        Verb::Gpuperf(verb) => verb.run(console, by_words),
        Verb::Info(verb) => verb.run(console),
        Verb::Instructions(verb) => verb.run(console),
        Verb::LinkEt(verb) => verb.run(console),
        Verb::Man(verb) => verb.run(usage::complete(Command::command()), console),
        Verb::Mcp(verb) => verb.run(&usage::complete(Command::command()), console),
        Verb::Merge(verb) => verb.run(console),
        Verb::MergeRanks(verb) => verb.run(console),
        Verb::Recover(verb) => verb.run(console),
        Verb::Replay(verb) => verb.run(console),
        Verb::Report(verb) => verb.run(console),
        Verb::Run(verb) => verb.run(console),
        Verb::Serve(verb) => verb.run(console),
        Verb::Settings(verb) => verb.run(console),
        Verb::States(verb) => verb.run(console),
        Verb::CriticalPath(verb) => verb.run(console),
        Verb::Timeline(verb) => verb.run(console),
        Verb::Stats(verb) => verb.run(console),
        Verb::Stragglers(verb) => verb.run(console),
        Verb::Summary(verb) => verb.run(console),
        Verb::Top(verb) => verb.run(console),
        Verb::View(verb) => verb.run(console),
        Verb::WhatIf(verb) => verb.run(console),
    }
}
