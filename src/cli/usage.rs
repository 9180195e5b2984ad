//! Completes the definition of the command line: adds the options that several verbs share, and the groups of verbs in
//! the help text. If a command line is invalid, also gives advice that the parser cannot give.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, Error};

use super::near_misses::near_misses;

/// Groups of verbs in the help text, in the order in which a user needs them.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Record", &["demo", "run", "doctor", "devices", "recover", "settings"]),
    (
        "Look",
        &[
            "summary",
            "report",
            "serve",
            "top",
            "flamegraph",
            "view",
            "states",
            "timeline",
            "instructions",
            "critical-path",
            "deps",
            "info",
            "check",
            "mcp",
        ],
    ),
    ("Predict", &["what-if", "causal", "replay"]),
    ("Compare", &["diff", "merge-ranks", "stragglers"]),
    ("Convert", &["convert", "link-et"]),
    ("Set up a shell", &["completions"]),
    ("Work like other projects' scripts", &["gpuperf", "merge", "stats", "extract", "decode-steps"]),
];
/// Verbs that do not read a recording or trace.
const WITHOUT_INPUT: [&str; 9] =
    ["demo", "run", "doctor", "devices", "settings", "gpuperf", "completions", "man", "mcp"];
/// Name of the option that accepts truncated input.
pub(super) const ACCEPT_CUT: &str = "accept_cut";
/// Maximum number of verbs that a tip suggests.
const MAX_VERBS: usize = 3;
/// Maximum number of files in a folder that are searched for the newest recording.
const MAX_FILES: usize = 10_000;

/// Adds the options that only some verbs have, and the groups of verbs in the help text.
pub(super) fn complete(command: Command) -> Command {
    let verbs: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    let readers = verbs.iter().filter(|verb| !WITHOUT_INPUT.contains(&verb.as_str()));
    let command = readers.fold(command, |command, verb| {
        command.mut_subcommand(verb, |verb| {
            verb.arg(
                Arg::new(ACCEPT_CUT)
                    .long("accept-cut")
                    .action(ArgAction::SetTrue)
                    .help("Read truncated input up to its last complete event, and print where it ends"),
            )
        })
    });
    let groups = grouped_verbs(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\nOptions:\n{{options}}{{after-help}}"
    ))
}

/// Returns the help text that lists the verbs and their purposes, group by group.
fn grouped_verbs(command: &Command) -> String {
    let mut text = String::new();
    let mut add = |title: &str, verbs: &[&str]| {
        let known = verbs.iter().filter_map(|name| command.find_subcommand(name));
        let known: Vec<_> = known.filter(|verb| !verb.is_hide_set()).collect();
        if known.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n{title}:");
        for verb in known {
            let about = verb.get_about().map(StyledStr::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {:12}  {about}", verb.get_name());
        }
    };
    GROUPS.iter().for_each(|(title, verbs)| add(title, verbs));
    let is_grouped = |name: &str| GROUPS.iter().any(|(_, verbs)| verbs.contains(&name));
    let others: Vec<_> =
        command.get_subcommands().map(Command::get_name).filter(|name| !is_grouped(name)).collect();
    add("Others", &others);
    text
}

/// Adds tips that the parser cannot give to the error about an invalid command line. Replaces the parser's tips if they
/// would be misleading. `words` are the words of the command line, beginning with the program's name.
pub(super) fn advise(mut error: Error, command: &Command, words: &[OsString]) -> Error {
    let verb = words.iter().skip(1).find_map(|word| command.find_subcommand(word));
    let tips = match error.kind() {
        ErrorKind::InvalidSubcommand => verb_tips(&mut error, command),
        ErrorKind::UnknownArgument => argument_tips(&mut error, command, verb, words),
        ErrorKind::MissingRequiredArgument => missing_tips(&error, verb),
        _ => Vec::new(),
    };
    if !tips.is_empty() {
        let tips = tips.into_iter().map(StyledStr::from).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

fn context(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(all) => all.first().cloned(),
        _ => None,
    }
}

/// Returns tips about an unknown word at the position of the verb. If the word is the name of a file, the user has
/// probably omitted the verb.
fn verb_tips(error: &mut Error, command: &Command) -> Vec<String> {
    let Some(word) = context(error, ContextKind::InvalidSubcommand) else { return Vec::new() };
    let path = Path::new(&word);
    let is_program = path.is_file()
        && path.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0)
        && path.extension().is_none_or(|ending| ending != "gfr");
    if !path.exists() && !word.contains(['.', '/']) {
        let verbs = command.get_subcommands().map(Command::get_name);
        if near_misses(&word, verbs).is_empty() {
            error.remove(ContextKind::SuggestedSubcommand);
        }
        error.remove(ContextKind::Suggested);
        return Vec::new();
    }
    error.remove(ContextKind::SuggestedSubcommand);
    let quoted = quote(&word);
    if is_program || has_ending(path, &["py", "sh"]) {
        let interpreter = if !is_program && has_ending(path, &["py"]) { "python " } else { "" };
        return vec![format!("name a verb before the program: `gpuflame run {interpreter}{quoted}`")];
    }
    if path.is_dir() {
        return vec![format!("name a verb before the folder: `gpuflame merge-ranks {quoted}`")];
    }
    vec![format!(
        "name a verb before the file: `gpuflame top {quoted}`, or `gpuflame flamegraph {quoted} -o flame.svg`"
    )]
}

/// Returns tips about an unknown option or a surplus argument on the command line.
fn argument_tips(
    error: &mut Error,
    command: &Command,
    verb: Option<&Command>,
    words: &[OsString],
) -> Vec<String> {
    let Some(argument) = context(error, ContextKind::InvalidArg) else { return Vec::new() };
    let Some(verb) = verb else { return Vec::new() };
    let name = verb.get_name();
    if !argument.starts_with('-') {
        error.remove(ContextKind::Suggested);
        return surplus_tips(name, &argument, words);
    }
    // The parser also suggests passing the option as a value, which is correct only for the verb `run`.
    error.remove(ContextKind::Suggested);
    if let Some(similar) = context(error, ContextKind::SuggestedArg) {
        if !near_misses(argument.trim_start_matches('-'), [similar.trim_start_matches('-')]).is_empty() {
            return Vec::new();
        }
        error.remove(ContextKind::SuggestedArg);
        let usage = verb.clone().bin_name(format!("gpuflame {name}")).render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
    if matches!(name, "run" | "gpuperf") {
        return vec![format!(
            "options of the command follow the command: `gpuflame {name} COMMAND {argument}`"
        )];
    }
    let Some(long) = argument.strip_prefix("--") else { return Vec::new() };
    let long = long.split('=').next().unwrap_or(long);
    let has = |verb: &&Command| verb.get_arguments().any(|known| is_named(known, long));
    let verbs: Vec<_> =
        command.get_subcommands().filter(has).map(Command::get_name).take(MAX_VERBS).collect();
    match verbs.is_empty() {
        true => Vec::new(),
        false => vec![format!("`{name}` has no --{long}; these verbs have it: {}", verbs.join(", "))],
    }
}

fn is_named(argument: &Arg, long: &str) -> bool {
    argument.get_long() == Some(long)
        || argument.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
}

/// Returns tips about a surplus argument, which is often a second input file.
fn surplus_tips(verb: &str, second: &str, words: &[OsString]) -> Vec<String> {
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let at = words.iter().position(|word| word == OsStr::new(verb)).unwrap_or(0);
    let inputs = words[at..].windows(2).filter(|pair| !is_option(&pair[0]) && !is_option(&pair[1]));
    let mut inputs = inputs.map(|pair| pair[1].to_string_lossy()).filter(|word| word != second);
    let Some(first) = inputs.next() else { return Vec::new() };
    let (first, second) = (quote(&first), quote(second));
    let compare = format!("to compare two runs: `gpuflame diff {first} {second}`");
    let ranks = format!("to merge the ranks of a job: `gpuflame merge-ranks {first} {second}`");
    match verb {
        "flamegraph" => {
            let picture =
                format!("to draw the difference: `gpuflame flamegraph --diff {first} {second} -o diff.svg`");
            vec![picture, ranks]
        }
        "summary" | "top" | "info" | "check" | "view" => vec![compare, ranks],
        _ => Vec::new(),
    }
}

/// Returns a tip about a missing input file. The tip names the newest recording in the current folder.
fn missing_tips(error: &Error, verb: Option<&Command>) -> Vec<String> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return Vec::new() };
    let Some(verb) = verb else { return Vec::new() };
    let name = verb.get_name();
    if missing.iter().any(|one| one.starts_with("<COMMAND>")) {
        return vec![format!(
            "name the program to record: `gpuflame {name} ./app`, or `gpuflame {name} python train.py`"
        )];
    }
    if matches!(name, "stats" | "extract") && missing.iter().all(|one| !one.starts_with("<INPUT>")) {
        let range = if name == "extract" { " --from 10ms --to 20ms" } else { "" };
        return vec![format!("options can name them too: `gpuflame {name} INPUT -o out.csv{range}`")];
    }
    if missing.len() > 1 || !missing.iter().any(|one| one.starts_with("<INPUT>")) {
        return Vec::new();
    }
    match newest_recording() {
        Some(file) => vec![format!("the newest recording here: `gpuflame {name} {}`", quote(&file))],
        None => vec![format!("name a recording or a trace; `gpuflame run ./app` records one")],
    }
}

/// Returns the file name of the newest recording in the current folder.
fn newest_recording() -> Option<String> {
    let files = std::fs::read_dir(".").ok()?.take(MAX_FILES).filter_map(Result::ok);
    let recordings = files.filter(|file| has_ending(&file.path(), &["gfr"]));
    let newest = recordings
        .max_by_key(|file| (file.metadata().and_then(|it| it.modified()).ok(), file.file_name()))?;
    newest.file_name().into_string().ok()
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|ending| endings.contains(&ending))
}

/// Quotes a word for a shell if the word needs quotes.
pub(super) fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./=:,%+@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, quoted) in [
            ("a/b.py", "a/b.py"),
            ("", "''"),
            ("two words", "'two words'"),
            ("it's", "'it'\\''s'"),
            ("%p", "%p"),
        ] {
            assert_eq!(quote(word), quoted);
        }
    }
}
