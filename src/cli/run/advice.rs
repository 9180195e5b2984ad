//! If the command of `gpuflame run` cannot be started, suggests a command line that would have worked.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::usage::quote;

/// Endings of script names, each with the program that runs such scripts.
const INTERPRETERS: [(&str, &str); 10] = [
    ("py", "python"),
    ("sh", "sh"),
    ("bash", "bash"),
    ("zsh", "zsh"),
    ("pl", "perl"),
    ("rb", "ruby"),
    ("js", "node"),
    ("lua", "lua"),
    ("jl", "julia"),
    ("R", "Rscript"),
];
/// Endings of recordings. Verbs other than `run` read recordings.
const RECORDINGS: [&str; 2] = [".gfr", ".gfr.gz"];
/// Maximum number of bytes of a script's first line.
const MAX_LINE_BYTES: u64 = 256;

/// Returns advice on a command that cannot be started; `None` if there is no advice for this command.
pub(super) fn for_command(command: &[OsString]) -> Option<String> {
    let program = command.first()?;
    let path = Path::new(program);
    if !path.is_file() {
        return None;
    }
    let name = program.to_string_lossy();
    if RECORDINGS.iter().any(|ending| name.ends_with(ending)) {
        return Some(format!("it is a recording, which `gpuflame top {}` reads", quote(&name)));
    }
    if let Some(interpreter) = interpreter(path) {
        let words = interpreter.split(' ').map(OsString::from);
        return Some(format!("did you mean `{}`?", command_line(command, words)));
    }
    let is_executable = path.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
    if !is_executable {
        return Some(format!("if it is a program, `chmod +x {}` first", quote(&name)));
    }
    if program.as_bytes().contains(&b'/') {
        return None;
    }
    // A shell finds programs in the current folder only by a path, so the advice has `./` before the name.
    let mut here = command.to_vec();
    here[0] = OsString::from(format!("./{name}"));
    Some(format!("did you mean `{}`?", command_line_of(command, &here)))
}

/// Returns the program that runs a script. If the program in the script's first line exists, that program is returned.
/// Otherwise the program for the ending of the script's name is returned.
fn interpreter(path: &Path) -> Option<String> {
    if let Some(line) = first_line(path)
        && let Some(words) = line.strip_prefix("#!")
    {
        let words: Vec<_> = words.split_whitespace().collect();
        let is_env = words.first().is_some_and(|program| program.ends_with("/env"));
        let words = &words[usize::from(is_env).min(words.len())..];
        let exists = |word: &str| !word.starts_with('/') || Path::new(word).is_file();
        if words.first().is_some_and(|word| exists(word) && !word.starts_with('-')) {
            return Some(words.join(" "));
        }
    }
    let ending = path.extension()?.to_str()?;
    let (_, program) = INTERPRETERS.iter().find(|(known, _)| *known == ending)?;
    let is_missing = |program: &str| find_in_path(program).is_none();
    // On some systems, Python is installed only under the name `python3`.
    let program = if *program == "python" && is_missing("python") { "python3" } else { program };
    Some(program.to_owned())
}

fn first_line(path: &Path) -> Option<String> {
    let mut line = Vec::new();
    BufReader::new(File::open(path).ok()?.take(MAX_LINE_BYTES)).read_until(b'\n', &mut line).ok()?;
    String::from_utf8(line).ok()
}

fn find_in_path(program: &str) -> Option<()> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).find(|folder| folder.join(program).is_file()).map(|_| ())
}

/// Returns the command line of this process, with `words` inserted before the command to run.
fn command_line(command: &[OsString], words: impl Iterator<Item = OsString>) -> String {
    let instead: Vec<_> = words.chain(command.iter().cloned()).collect();
    command_line_of(command, &instead)
}

/// Returns the command line of this process, in which `instead` replaces `command` at the end.
fn command_line_of(command: &[OsString], instead: &[OsString]) -> String {
    let own: Vec<OsString> = std::env::args_os().collect();
    let start = match own.strip_suffix(command) {
        Some([_, options @ ..]) => options.to_vec(),
        _ => vec!["run".into()],
    };
    let words: Vec<_> = start.iter().chain(instead).map(|word| quote(&word.to_string_lossy())).collect();
    format!("gpuflame {}", words.join(" "))
}
