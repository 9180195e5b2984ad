//! Checks of the source layout that Cargo itself does not make: forbidden dependencies between packages, import cycles
//! between modules and between files, and places where unsafe code is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages that only the command uses. The packages that only the command uses must not be in `libgpuflame.so`.
const COMMAND_ONLY: [&str; 3] = ["gpuflame-traces", "gpuflame-offline", "gpuflame-cli"];

#[test]
fn the_shared_library_depends_on_nothing_of_the_command() {
    let tree = packages_below("gpuflame-capi", "normal");
    assert!(tree.contains("gpuflame-recorder"), "{tree:?}");
    // The command `gpuflame mcp` uses the packages rmcp and tokio. The packages rmcp and tokio must not be in the
    // library either.
    for package in COMMAND_ONLY.iter().chain(&["rmcp", "tokio"]) {
        assert!(!tree.contains(*package), "gpuflame-capi depends on {package}");
    }
}

/// The demo is often the first thing that a user builds, so it must build fast.
#[test]
fn the_demo_builds_without_the_command_and_its_libraries() {
    let tree = packages_below("gpuflame", "normal,dev");
    assert!(tree.contains("gpusim-cuda"), "{tree:?}");
    let heavy = ["arrow-array", "parquet", "rusqlite", "clap", "framehop", "rmcp", "tokio"];
    for package in COMMAND_ONLY.iter().chain(&heavy) {
        assert!(!tree.contains(*package), "the package of the demo depends on {package}");
    }
    // `cargo run --example demo` builds every feature that is enabled by any package of the workspace, or by a test of
    // such a package.
    for package in metadata()["packages"].as_array().unwrap() {
        for other in package["dependencies"].as_array().unwrap() {
            let is_bare = other["name"] != "gpuflame" || other["features"].as_array().unwrap().is_empty();
            assert!(is_bare, "{} asks for features of the package of the demo: {other}", package["name"]);
        }
    }
}

/// The part of the command that reads files must not depend on Unix, so that it can be built for other systems later.
#[test]
fn packages_that_explain_files_need_no_unix() {
    let metadata = metadata();
    for name in ["model", "explain", "export", "traces", "offline"].map(|name| format!("gpuflame-{name}")) {
        let mut packages = metadata["packages"].as_array().unwrap().iter();
        let package = packages.find(|package| package["name"] == *name).unwrap();
        // If only tests need a dependency, the dependency is of the kind `dev`.
        let product =
            package["dependencies"].as_array().unwrap().iter().filter(|other| other["kind"].is_null());
        for other in product {
            let needs_unix = ["gpuflame-os", "libc", "rustix"].iter().any(|unix| other["name"] == *unix);
            let is_allowed = name != "gpuflame-traces"
                && ["cfg(unix)", "cfg(target_os = \"linux\")"].iter().any(|it| other["target"] == *it);
            assert!(!needs_unix || is_allowed, "{name} depends on {}", other["name"]);
        }
    }
}

/// Returns Cargo's description of the packages of this workspace.
fn metadata() -> serde_json::Value {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--offline", "--locked", "--no-deps", "--format-version", "1"]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the names of all packages on which `package` depends, directly or indirectly.
fn packages_below(package: &str, edges: &str) -> BTreeSet<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["tree", "--offline", "--locked", "--prefix", "none", "-e", edges, "-p", package]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

/// Imports in the `#[cfg(test)]` modules of source files also count as dependencies.
#[test]
fn the_modules_of_a_package_have_no_cycle() {
    let mut wrong = Vec::new();
    for package in packages() {
        let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for path in rust_files(&package) {
            if let Some(module) = module_of(&package, &path) {
                let imported = paths_from("crate::", &fs::read_to_string(&path).unwrap());
                modules.entry(module).or_default().extend(imported);
            }
        }
        let cycle = in_cycles(modules);
        if !cycle.is_empty() {
            wrong.push(format!("{}: {}", package.display(), cycle.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "modules that import each other:\n{}", wrong.join("\n"));
}

/// Checks the files and folders in every folder of a package. Imports in the `#[cfg(test)]` modules of source files are
/// ignored.
#[test]
fn the_files_and_folders_of_a_module_import_each_other_without_cycles() {
    // Imports between the files and folders of a module, keyed by the path of the module.
    let mut modules: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for package in packages() {
        let name = package.file_name().unwrap().to_str().unwrap();
        for path in rust_files(&package) {
            let own = module_path(name, &package, &path);
            let text = fs::read_to_string(&path).unwrap();
            let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            for imported in full_paths(name, &own, product) {
                let shared = own.iter().zip(&imported).take_while(|(a, b)| a == b).count();
                // Imports between a module and its children are ignored: a module imports its children, and children
                // import items of their module.
                if let (Some(from), Some(to)) = (own.get(shared), imported.get(shared)) {
                    let module = modules.entry(own[..shared].join("::")).or_default();
                    module.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
    }
    assert!(modules.contains_key("recorder::session::collect"), "{:?}", modules.keys());
    let mut wrong = Vec::new();
    for (module, files) in modules {
        let cycle = in_cycles(files);
        if !cycle.is_empty() {
            wrong.push(format!("{module}: {}", cycle.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "files and folders that import each other:\n{}", wrong.join("\n"));
}

/// Returns the path of the module that a file contains. The path begins with the package, as in `os`, `files`,
/// `growing`.
fn module_path(name: &str, package: &Path, path: &Path) -> Vec<String> {
    let relative = path.strip_prefix(package).unwrap().with_extension("");
    let mut module = vec![name.to_owned()];
    module.extend(relative.iter().map(|part| part.to_str().unwrap().to_owned()));
    if ["lib", "main", "mod"].contains(&module.last().unwrap().as_str()) {
        module.pop();
    }
    module
}

/// Returns the full paths of the modules and functions that the code of the module `own` mentions. The paths begin with
/// the package.
fn full_paths(name: &str, own: &[String], code: &str) -> BTreeSet<Vec<String>> {
    let mut paths = BTreeSet::new();
    let code: String =
        code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            // The second `super::` of `super::super::` is not the start of a separate path.
            if code[..at].ends_with("::") {
                continue;
            }
            let mut rest = &code[at..];
            let mut from = vec![name.to_owned()];
            if root == "super::" {
                from = own.to_owned();
                while let Some(after) = rest.strip_prefix("super::") {
                    from.pop();
                    rest = after;
                }
            } else {
                rest = &rest[root.len()..];
            }
            add_paths(&mut paths, from, rest);
        }
    }
    paths
}

/// Adds the paths that begin with `from` and continue with `rest`; `rest` may be a list in braces.
fn add_paths(paths: &mut BTreeSet<Vec<String>>, mut from: Vec<String>, mut rest: &str) {
    while let Some(name) = first_name(rest) {
        rest = &rest[name.len()..];
        from.push(name);
        match rest.strip_prefix("::") {
            Some(after) => rest = after,
            None => break,
        }
    }
    match rest.strip_prefix('{') {
        Some(list) => {
            for item in top_level_items(list) {
                add_paths(paths, from.clone(), &item);
            }
        }
        None => _ = paths.insert(from),
    }
}

/// Returns the names that are in an import cycle, and the names whose imports lead to an import cycle. `left` maps each
/// name to its imports.
fn in_cycles(mut left: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        // If all imports of a name have been removed, the name is not in an import cycle.
        let names: BTreeSet<_> = left.keys().cloned().collect();
        left.retain(|name, imported| imported.iter().any(|other| other != name && names.contains(other)));
        if left.len() == names.len() {
            return left.into_keys().collect();
        }
    }
}

#[test]
fn unsafe_code_stays_in_the_allowed_packages_and_files() {
    // Packages, folders and files that may contain unsafe code.
    const ALLOWED: [&str; 6] =
        ["os/", "cupti/", "unwind/", "recorder/capture/", "traces/import/json/mask.rs", "cli/inherited.rs"];
    for path in rust_files(&source()) {
        let relative = path.strip_prefix(source()).unwrap().to_str().unwrap().to_owned();
        if ALLOWED.iter().any(|allowed| relative.starts_with(allowed)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let allows = text.lines().filter(is_code).any(|line| line.contains("allow(unsafe_code)"));
        assert!(!allows, "{relative} allows unsafe code");
    }
    for package in packages() {
        let name = package.file_name().unwrap().to_str().unwrap();
        let root =
            ["lib.rs", "main.rs"].map(|file| package.join(file)).into_iter().find(|root| root.exists());
        let text = fs::read_to_string(root.unwrap()).unwrap();
        let is_denied =
            ["forbid", "deny"].iter().any(|level| text.contains(&format!("#![{level}(unsafe_code)]")));
        assert!(
            is_denied || ALLOWED.contains(&format!("{name}/").as_str()),
            "src/{name} does not deny unsafe code"
        );
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
    assert_eq!(paths_from("crate::", text), ["error", "export", "join", "record"].map(str::to_owned).into());
    let own = ["os", "files", "growing"].map(str::to_owned);
    let text = "use super::{file, list::{self, Entry}};\nfn f() { super::super::process::threads::spawn(); }";
    let found: Vec<_> = full_paths("os", &own, text).iter().map(|path| path.join("::")).collect();
    assert_eq!(
        found,
        ["os::files::file", "os::files::list", "os::files::list::self", "os::process::threads::spawn"]
    );
}

/// Returns the path of the folder `src`.
fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns the folders of the packages in `src`.
fn packages() -> Vec<PathBuf> {
    let folders = fs::read_dir(source()).unwrap().map(|entry| entry.unwrap().path());
    let mut packages: Vec<_> = folders.filter(|folder| folder.join("Cargo.toml").exists()).collect();
    packages.sort();
    assert!(packages.len() > 5, "{packages:?}");
    packages
}

pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
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

/// Returns the module of a file, such as `join` for `src/explain/join/launch_index.rs`. The root file of a package
/// belongs to no module.
fn module_of(package: &Path, path: &Path) -> Option<String> {
    let first = path.strip_prefix(package).unwrap().components().next().unwrap();
    let first = first.as_os_str().to_str().unwrap();
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (module != "lib" && module != "main").then(|| module.to_owned())
}

/// Returns the first modules after `root` in all paths that begin with `root` in `text`.
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

/// Returns the first name of each item in a list `{a::b, c::{d, e}}` whose opening brace was cut off.
fn top_level_names(list: &str) -> BTreeSet<String> {
    top_level_items(list).iter().filter_map(|item| first_name(item)).collect()
}

/// Returns the items of a list `{a::b, c::{d, e}}` whose opening brace was cut off.
fn top_level_items(list: &str) -> Vec<String> {
    let mut depth = 0;
    let mut items = vec![String::new()];
    for letter in list.chars() {
        match letter {
            '}' if depth == 0 => break,
            ',' if depth == 0 => items.push(String::new()),
            _ => {
                depth += i32::from(letter == '{') - i32::from(letter == '}');
                items.last_mut().unwrap().push(letter);
            }
        }
    }
    items.iter().map(|item| item.trim().to_owned()).collect()
}

/// Returns the module at the beginning of a path, or `None` if the path begins with an item of the root, such as
/// `Error`.
fn first_name(path: &str) -> Option<String> {
    let name: String = path.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    name.starts_with(|letter: char| letter.is_lowercase()).then_some(name)
}
