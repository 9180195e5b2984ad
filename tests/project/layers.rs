//! Checks the module map: which module may import which. The table in this file repeats the one in ARCHITECTURE.md;
//! both must be changed together.
//!
//! Only `crate::module` paths count, in any file of `src/`, including the tests inside those files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ALLOWED: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("host", &["error"]),
    ("record", &["error"]),
    ("tracer", &["record"]),
    ("cupti", &["error", "host", "record", "tracer"]),
    ("unwind", &["error", "record"]),
    ("profile", &["error", "record"]),
    ("settings", &["error", "profile"]),
    ("control", &["error", "record"]),
    ("capture", &["error", "host", "record", "tracer", "unwind", "control"]),
    ("import", &["error", "host", "record"]),
    ("steps", &["error", "record", "import"]),
    ("symbolize", &["error", "record", "profile"]),
    ("graphs", &["error", "record"]),
    ("join", &["error", "record"]),
    ("stats", &["error", "record", "profile", "join"]),
    ("aggregate", &["error", "record", "profile", "join", "stats"]),
    ("merge", &["record"]),
    ("events", &["record", "join"]),
    ("timeline", &["error", "record", "profile", "join"]),
    ("analysis", &["record", "profile", "import", "join", "stats", "events"]),
    ("explain", &["error", "record", "profile", "graphs", "join", "aggregate", "timeline"]),
    ("export", &["error", "record", "profile", "settings", "join", "events"]),
    ("run", &["error", "record", "profile", "import", "symbolize", "join", "explain", "export"]),
    (
        "session",
        &[
            "error",
            "host",
            "record",
            "tracer",
            "cupti",
            "unwind",
            "settings",
            "control",
            "capture",
            "profile",
            "symbolize",
            "join",
            "explain",
            "export",
        ],
    ),
    (
        "cli",
        &[
            "error",
            "host",
            "settings",
            "record",
            "profile",
            "import",
            "steps",
            "symbolize",
            "join",
            "merge",
            "events",
            "analysis",
            "explain",
            "export",
            "run",
            "control",
            "cupti",
        ],
    ),
];

#[test]
fn every_module_imports_only_modules_that_the_table_allows() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        ALLOWED.iter().map(|(module, may)| (*module, may.iter().copied().collect())).collect();
    let mut wrong = Vec::new();
    for path in rust_files(&source()) {
        let Some(module) = module_of(&path) else { continue };
        let Some(may) = allowed.get(module.as_str()) else {
            wrong.push(format!("src/{module}: not in the table"));
            continue;
        };
        for import in imports(&fs::read_to_string(&path).unwrap()) {
            if import != module && is_module(&import) && !may.contains(import.as_str()) {
                wrong.push(format!("{}: {module} may not import {import}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_of_allowed_imports_has_no_cycle() {
    let mut above = BTreeSet::new();
    for (module, may) in ALLOWED {
        for import in *may {
            assert!(above.contains(import), "{module} imports {import}, which does not stand above it");
        }
        above.insert(*module);
    }
}

/// Inside a module, too, arrows point one way: no file imports one that imports it, directly or indirectly.
#[test]
fn the_files_of_a_module_import_each_other_without_cycles() {
    let mut folders: BTreeMap<PathBuf, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for path in rust_files(&source()) {
        let (folder, name) = (path.parent().unwrap(), path.file_stem().unwrap().to_str().unwrap());
        if folder != source() && name != "mod" {
            let text = fs::read_to_string(&path).unwrap();
            let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let imported = paths_from("super::", product);
            folders.entry(folder.to_owned()).or_default().insert(name.to_owned(), imported);
        }
    }
    let mut wrong = Vec::new();
    for (folder, mut left) in folders {
        // A file whose imports have all been removed is below the files that remain.
        loop {
            let names: BTreeSet<_> = left.keys().cloned().collect();
            left.retain(|name, imported| imported.iter().any(|other| other != name && names.contains(other)));
            if left.len() == names.len() {
                break;
            }
        }
        if !left.is_empty() {
            wrong.push(format!("{}: {}", folder.display(), left.into_keys().collect::<Vec<_>>().join(", ")));
        }
    }
    assert!(wrong.is_empty(), "files that import each other, or what does:\n{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_stays_in_the_five_allowed_modules() {
    const FENCE: [&str; 5] = ["host", "tracer", "cupti", "unwind", "capture"];
    // The only exception is the module with vector instructions.
    const MASK: &str = "import/json/mask.rs";
    for path in rust_files(&source()) {
        let module = module_of(&path);
        if path.ends_with(MASK) {
            continue;
        }
        if module.as_deref().is_some_and(|module| FENCE.contains(&module)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let allows = text
            .lines()
            .any(|line| line.contains("allow(unsafe_code)") && !line.trim_start().starts_with("//"));
        let is_root = path.ends_with("src/lib.rs");
        assert!(!allows || is_root, "{}: lifts the ban on unsafe code", path.display());
    }
}

#[test]
fn product_code_never_mentions_the_simulated_cuda_stack() {
    for path in rust_files(&source()) {
        let text = fs::read_to_string(&path).unwrap().to_lowercase();
        assert!(!text.contains("gpusim"), "{}: names a part of the tests", path.display());
    }
}

#[test]
fn an_import_is_found_however_it_is_written() {
    let text = "use crate::join::Join;\nuse crate::{error::Error, record::{Row, Launch}};\n\
                fn f() { crate::export::folded(); }\n// crate::cli::x is only text\n";
    assert_eq!(imports(text), ["error", "export", "join", "record"].map(str::to_owned).into());
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Module of a file: `src/join/by_id.rs` and `src/join.rs` belong to `join`; `src/lib.rs` and the binary belong to no
/// module.
fn module_of(path: &Path) -> Option<String> {
    let relative = path.strip_prefix(source()).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (module != "lib" && module != "main").then(|| module.to_owned())
}

/// Whether such a module exists, because paths in strings and in macros of the root do not count.
fn is_module(name: &str) -> bool {
    source().join(name).is_dir() || source().join(format!("{name}.rs")).is_file()
}

/// Modules that `crate::` paths in `text` begin with.
fn imports(text: &str) -> BTreeSet<String> {
    paths_from("crate::", text)
}

/// Modules that paths below `root` in `text` begin with.
fn paths_from(root: &str, text: &str) -> BTreeSet<String> {
    let code: String =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(root) {
        let rest = &code[at + root.len()..];
        match rest.strip_prefix('{') {
            Some(list) => found.extend(top_level_names(list)),
            None => found.extend(first_name(rest)),
        }
    }
    found
}

/// First names of the items of a `{a::b, c::{d, e}}` list whose opening brace was cut off.
fn top_level_names(list: &str) -> BTreeSet<String> {
    let mut depth = 0;
    let mut found = BTreeSet::new();
    let mut item = String::new();
    for letter in list.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => found.extend(first_name(std::mem::take(&mut item).trim())),
            _ if depth == 0 => item.push(letter),
            _ => {}
        }
    }
    found.extend(first_name(item.trim()));
    found
}

/// Module that a path begins with; `None` for `Error` and other items of the root.
fn first_name(path: &str) -> Option<String> {
    let name: String = path.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    name.starts_with(|letter: char| letter.is_lowercase()).then_some(name)
}
