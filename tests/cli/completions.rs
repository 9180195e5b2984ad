//! Tests completions as shells load them, and man pages as `man` reads them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::command::gpuflame;
use crate::support::{scratch, skip};

/// Runs a script in a shell that finds the command in `$PATH`. Returns the script's standard output, or `None` if the
/// shell is not installed.
fn in_shell(shell: &[&str], folder: &Path, script: &str) -> Option<String> {
    let built = Path::new(env!("CARGO_BIN_EXE_gpuflame")).parent().unwrap();
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg(script).current_dir(folder).env("PATH", path).env("HOME", folder);
    let Ok(output) = command.output() else {
        skip("a shell is not installed: zsh or fish");
        return None;
    };
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && stderr.is_empty(), "{shell:?}: {stderr}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn bash_completes_verbs_flags_and_values() {
    let folder = scratch("bash");
    let complete = |words: &str| {
        let script = format!(
            "source <(gpuflame completions bash); COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _gpuflame gpuflame \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo ${{COMPREPLY[@]}}"
        );
        in_shell(&["bash", "--norc", "-c"], &folder, &script).unwrap().trim().to_owned()
    };
    assert_eq!(complete("gpuflame to"), "top");
    assert_eq!(complete("gpuflame top --num"), "--number");
    assert_eq!(complete("gpuflame top --format js"), "json");
    assert_eq!(complete("gpuflame completions f"), "fish");
}

#[test]
fn zsh_loads_the_script_and_binds_it_to_the_command() {
    let folder = scratch("zsh");
    let script = "autoload -U compinit; compinit -u -d dump; source <(gpuflame completions zsh); \
                  print $_comps[gpuflame]; whence -w _gpuflame; functions _gpuflame | grep -o -- --accept-cut | head -n 1";
    let Some(shown) = in_shell(&["zsh", "-f", "-c"], &folder, script) else { return };
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines, ["_gpuflame", "_gpuflame: function", "--accept-cut"], "{shown}");
}

#[test]
fn fish_completes_verbs_flags_and_values() {
    let folder = scratch("fish");
    let complete = |words: &str| {
        let script = format!("gpuflame completions fish | source; complete -C \"{words}\"");
        let shown = in_shell(&["fish", "--no-config", "-c"], &folder, &script)?;
        Some(shown.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>())
    };
    let Some(verbs) = complete("gpuflame to") else { return };
    assert_eq!(verbs, ["top"]);
    assert_eq!(complete("gpuflame top --num").unwrap(), ["--number"]);
    assert_eq!(complete("gpuflame top --format js").unwrap(), ["json"]);
}

#[test]
fn every_verb_has_a_man_page() {
    let folder = scratch("man");
    gpuflame(&folder, ["-q", "man", "."]).ok();
    let help = gpuflame(&folder, ["--help"]).ok().stdout;
    let verbs = help.lines().skip_while(|line| !line.starts_with("Usage:")).skip(1);
    let verbs = verbs.take_while(|line| *line != "Options:").filter(|line| line.starts_with("  "));
    let pages =
        verbs.filter_map(|line| line.split_whitespace().next()).map(|verb| format!("gpuflame-{verb}.1"));
    let pages: Vec<String> = pages.chain(["gpuflame.1".to_owned()]).collect();
    assert!(pages.len() > 15, "{help}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), pages.len());
    for page in pages {
        let text = fs::read_to_string(folder.join(&page)).unwrap();
        for part in [".TH gpuflame", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", "\\-\\-color"] {
            assert!(text.contains(part), "{page} has no {part}:\n{text}");
        }
        let warnings =
            Command::new("man").args(["--warnings", "-l", "-Tutf8"]).arg(folder.join(&page)).output();
        let Ok(warnings) = warnings else {
            skip("man is not installed: groff reads the pages");
            continue;
        };
        assert!(warnings.status.success() && warnings.stderr.is_empty(), "{page}: {warnings:?}");
    }
    gpuflame(&folder, ["man", "nowhere"]).fails(1, &["nowhere", "the folder does not exist"]);
}
