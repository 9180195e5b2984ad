//! Checks rules for the tests themselves, and commands that run tests in pages, scripts and comments.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::root;

/// Path of this file, which is not checked, because it contains examples of wrong names.
const THIS_FILE: &str = "tests/project/test_suite.rs";

#[test]
fn tests_are_skipped_by_one_function() {
    for path in text_files().into_iter().filter(|path| has_extension(path, "rs")) {
        let printed = fs::read_to_string(&path).unwrap().contains("eprintln!(\"skipped:");
        let is_allowed = ["tests/support/skip.rs", THIS_FILE].iter().any(|allowed| path.ends_with(allowed));
        assert!(is_allowed || !printed, "{}: skips a test without `skip` of tests/support", path.display());
    }
}

/// Checks the names in commands (packages, programs and examples), and the words that select tests.
#[test]
fn cargo_commands_in_pages_scripts_and_comments_name_existing_tests() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for path in text_files() {
        if path.ends_with(THIS_FILE) {
            continue;
        }
        for (number, line) in logical_lines(&fs::read_to_string(&path).unwrap()) {
            for command in cargo_commands(&line) {
                count += 1;
                let problems = problems(&command).into_iter();
                wrong.extend(problems.map(|problem| format!("{}:{number}: {problem}", path.display())));
            }
        }
    }
    assert!(count > 100, "only {count} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In prose, `host chaos` means the tests of the test program `host` whose path contains `chaos`.
#[test]
fn words_after_a_program_on_the_page_of_the_tests_select_tests() {
    let page = fs::read_to_string(root().join("tests/README.md")).unwrap();
    let programs: BTreeSet<_> = targets().iter().filter(|target| target.kind == "test").collect();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for quoted in quoted(&page) {
        let (first, rest) = quoted.split_once(' ').unwrap_or((quoted, ""));
        if let Some(program) = programs.iter().find(|program| program.is_default && program.name == first) {
            for word in rest.split_whitespace() {
                count += 1;
                if !program.has_test(word) {
                    wrong.push(quoted);
                }
            }
        }
    }
    assert!(count > 10, "only {count} words were found");
    assert!(wrong.is_empty(), "tests/README.md: no test matches {wrong:?}");
}

/// Checks the pages for contributors and the scripts of CI.
#[test]
fn paths_of_the_repository_in_pages_and_scripts_exist() {
    const FOLDERS: [&str; 8] =
        [".ci/", "bpf-optional/", "capi/", "cupti-sys/", "docs/", "examples/", "src/", "tests/"];
    // Contributors create this folder when they add the first recording from a real GPU.
    const MAY_BE_MISSING: &str = "tests/golden/hw";
    let mut wrong = BTreeSet::new();
    for path in text_files() {
        let is_script = path.starts_with(root().join(".ci"));
        if !is_script && !has_extension(&path, "md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && !"_-./*".contains(letter));
        for word in words.map(|word| word.trim_end_matches(['.', '/'])) {
            let is_path = FOLDERS.iter().any(|folder| word.starts_with(folder)) && !word.contains('*');
            let is_path = is_path && word != MAY_BE_MISSING;
            // A path in a page may be relative to the folder of the page.
            if is_path && !root().join(word).exists() && !path.with_file_name(word).exists() {
                wrong.insert(format!("{}: {word}", path.display()));
            }
        }
    }
    let wrong: Vec<_> = wrong.into_iter().collect();
    assert!(wrong.is_empty(), "these paths do not exist:\n{}", wrong.join("\n"));
}

#[test]
fn wrong_names_in_a_command_are_found() {
    let found = |line: &str| cargo_commands(line).iter().flat_map(|c| problems(c)).collect::<Vec<_>>();
    assert_eq!(found("cargo test --release --test host forks  # `cargo test --test 'unwind_*'`"), [""; 0]);
    assert_eq!(found("CI=1 cargo test -p gpuflame-bpf --test refused"), [""; 0]);
    assert_eq!(found("cargo test --test refused"), ["no default package has the test `refused`"]);
    assert_eq!(found("| `cargo bench --bench nothing` |"), ["no default package has the bench `nothing`"]);
    assert_eq!(found("cargo test -p gpuflame-host"), ["there is no package `gpuflame-host`"]);
    assert_eq!(found("cargo test -p gpuflame-os --test host"), ["gpuflame-os has no test `host`"]);
    assert_eq!(found("cargo test -p gpuflame-os --bins"), ["gpuflame-os has no bin"]);
    assert_eq!(found("cargo test --test host xyzzy"), ["no test matches `xyzzy`"]);
    assert_eq!(found("cargo test -- --skip xyzzy --test-threads 1"), ["no test matches `xyzzy`"]);
    assert_eq!(found("cargo test -p gpuflame-os --lib heap::"), [""; 0]);
    assert_eq!(found("cargo test -p gpuflame-os --lib join::"), ["no test matches `join::`"]);
}

/// A cargo target: a library, a program, a test program, a benchmark or an example.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    package: String,
    /// Whether cargo builds the package of this target if a command does not name a package.
    is_default: bool,
    /// `lib`, `cdylib`, `bin`, `test`, `bench` or `example`.
    kind: String,
    name: String,
    /// Names of the modules (they end in `::`) and of the functions in the target.
    names: Vec<String>,
}

impl Target {
    /// Returns whether `cargo test WORD` runs a test of this target.
    fn has_test(&self, word: &str) -> bool {
        self.names.iter().any(|name| name.contains(word))
    }
}

/// Returns the Cargo targets in the workspace.
fn targets() -> &'static [Target] {
    static TARGETS: OnceLock<Vec<Target>> = OnceLock::new();
    TARGETS.get_or_init(|| {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--offline", "--locked", "--no-deps", "--format-version", "1"]);
        let output = command.current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let defaults = metadata["workspace_default_members"].as_array().unwrap();
        let mut targets = Vec::new();
        for package in metadata["packages"].as_array().unwrap() {
            for target in package["targets"].as_array().unwrap() {
                targets.push(Target {
                    package: package["name"].as_str().unwrap().to_owned(),
                    is_default: defaults.contains(&package["id"]),
                    kind: target["kind"][0].as_str().unwrap().to_owned(),
                    name: target["name"].as_str().unwrap().to_owned(),
                    names: names_in(Path::new(target["src_path"].as_str().unwrap())),
                });
            }
        }
        targets
    })
}

/// Returns the names of the modules and functions of a target whose root file is `source`.
fn names_in(source: &Path) -> Vec<String> {
    let is_folder = ["lib.rs", "main.rs"].iter().any(|name| source.ends_with(name));
    let folder = source.parent().unwrap();
    let files = if is_folder { files_below(folder) } else { vec![source.to_owned()] };
    let mut names = Vec::new();
    for file in files.iter().filter(|file| has_extension(file, "rs")) {
        let module = file.strip_prefix(folder).unwrap().with_extension("");
        let module: Vec<_> = module.iter().map(|part| part.to_str().unwrap()).collect();
        names.push(format!("{}::", module.join("::")));
        for line in fs::read_to_string(file).unwrap().lines() {
            let line = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            let name =
                |rest: &str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned);
            names.extend(line.strip_prefix("fn ").and_then(name));
            names.extend(line.strip_prefix("mod ").and_then(name).map(|name| name + "::"));
        }
    }
    names
}

/// Returns the `cargo` commands in `line` that build or run something. Each command is split into its arguments.
fn cargo_commands(line: &str) -> Vec<Vec<&str>> {
    const ENDS: [&str; 10] = ["`", "#", "|", ")", "&&", ";", ">", "\"", ", ", "   "];
    let mut commands = Vec::new();
    for (at, _) in line.match_indices("cargo ") {
        let rest = &line[at + "cargo ".len()..];
        let end = ENDS.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
        let words: Vec<_> = rest[..end].split_whitespace().map(|word| word.trim_matches('\'')).collect();
        if words.first().is_some_and(|verb| ["bench", "build", "clippy", "run", "test"].contains(verb)) {
            commands.push(words);
        }
    }
    commands
}

/// Describes those names in a command that do not exist. `command` is one of the commands that `cargo_commands`
/// returns.
fn problems(command: &[&str]) -> Vec<String> {
    let (mut packages, mut kinds, mut named, mut filters) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut words = command[1..].iter().copied();
    let is_test = command[0] == "test";
    while let Some(word) = words.next() {
        match word {
            "-p" => packages.extend(words.next()),
            "--test" | "--bench" | "--example" | "--bin" => {
                named.extend(words.next().map(|name| (&word[2..], name)));
            }
            "--lib" | "--bins" => kinds.push(word[2..].trim_end_matches('s')),
            "--skip" => filters.extend(words.next()),
            "--manifest-path" | "--test-threads" | "--target" => _ = words.next(),
            _ if is_test && !word.starts_with('-') => filters.push(word),
            _ => {}
        }
    }
    // In a command, a name in capital letters or a variable stands for any name.
    let is_name = |name: &str| name.starts_with(|first: char| first.is_ascii_lowercase());
    packages.retain(|name| is_name(name));
    named.retain(|(_, name)| is_name(name));
    filters.retain(|name| is_name(name));

    let mut problems = Vec::new();
    for package in &packages {
        if !targets().iter().any(|target| target.package == *package) {
            problems.push(format!("there is no package `{package}`"));
        }
    }
    let selected: Vec<_> = targets()
        .iter()
        .filter(|target| match packages[..] {
            [] => target.is_default,
            _ => packages.contains(&target.package.as_str()),
        })
        .collect();
    if !problems.is_empty() {
        return problems;
    }
    let matches = |target: &Target, kind: &str, name: &str| {
        target.kind == kind
            && name.strip_suffix('*').map_or(target.name == name, |begin| target.name.starts_with(begin))
    };
    for (kind, name) in &named {
        if !selected.iter().any(|target| matches(target, kind, name)) {
            problems.push(match packages[..] {
                [] => format!("no default package has the {kind} `{name}`"),
                _ => format!("{} has no {kind} `{name}`", packages.join(", ")),
            });
        }
    }
    for kind in &kinds {
        if !selected.iter().any(|target| target.kind == *kind) {
            problems.push(format!("{} has no {kind}", packages.join(", ")));
        }
    }
    let runs = |target: &Target| {
        named.is_empty() && kinds.is_empty()
            || named.iter().any(|(kind, name)| matches(target, kind, name))
            || kinds.contains(&target.kind.as_str())
    };
    for word in filters {
        if problems.is_empty() && !selected.iter().any(|target| runs(target) && target.has_test(word)) {
            problems.push(format!("no test matches `{word}`"));
        }
    }
    problems
}

/// Returns the lines of a text with their numbers. If a line ends with a backslash, it is joined with the line after
/// it.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        match lines.last_mut() {
            Some((_, last)) if last.ends_with('\\') => {
                last.pop();
                last.push_str(line);
            }
            _ => lines.push((at + 1, line.to_owned())),
        }
    }
    lines
}

/// Returns the texts in backquotes, except texts in fenced blocks.
fn quoted(page: &str) -> Vec<&str> {
    let is_fenced = |part: &&str| part.contains('\n');
    page.split('`').skip(1).step_by(2).filter(|part| !is_fenced(part)).collect()
}

/// Returns the pages, scripts and source files of the repository.
fn text_files() -> Vec<PathBuf> {
    const FOLDERS: [&str; 8] =
        [".ci", "bpf-optional", "capi", "cupti-sys", "docs", "examples", "src", "tests"];
    let mut files: Vec<_> = FOLDERS.iter().flat_map(|folder| files_below(&root().join(folder))).collect();
    files.extend(root().read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    files.retain(|path| {
        let extension = path.extension().map(|extension| extension.to_str().unwrap());
        matches!(extension, None | Some("c" | "md" | "py" | "rs" | "sh" | "toml"))
            && fs::read_to_string(path).is_ok()
    });
    files
}

/// Returns all files in `folder` and its subfolders, except files that builds and installers created.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_made = ["target", "node_modules", "__pycache__"].iter().any(|name| path.ends_with(name));
        match path.is_dir() {
            true if !is_made && !path.is_symlink() => files.extend(files_below(&path)),
            true => {}
            false => files.push(path),
        }
    }
    files.sort();
    files
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|other| other == extension)
}
