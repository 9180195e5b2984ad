//! Tests that the packages that read recordings and traces use no functions or files that only Linux has. Therefore
//! these packages can be built for other systems. `dist/check-portable` builds them for Windows and macOS, if Rust's
//! standard library for these systems is installed.

use std::fs;
use std::path::Path;

use crate::layers::rust_files;
use crate::support::root;

/// Packages that must be buildable for Windows and macOS.
const PORTABLE: [&str; 5] = ["model", "explain", "export", "traces", "offline"];
/// Pieces of code that compile only on Unix or Linux, or that name files which exist only on Linux.
const LINUX_ONLY: [&str; 7] =
    ["os::unix", "os::linux", "libc::", "rustix::", "gpuflame_os::", "\"/proc/", "\"/sys/"];

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns whether a line of code, or an item around it, is compiled only on some systems, because of a condition or an
/// attribute.
fn is_conditional(lines: &[&str], at: usize) -> bool {
    let is_condition = |line: &str| {
        let line = line.trim();
        line.starts_with("#[cfg(")
            && (line.contains("unix") || line.contains("linux") || line.contains("test"))
    };
    let (mut at, mut limit) = (at, usize::MAX);
    loop {
        if indent(lines[at]) < limit {
            limit = indent(lines[at]);
            // Between an attribute and its item, there may be comments.
            let above = lines[..at].iter().rev().take_while(|line| {
                indent(line) == limit && (line.trim().starts_with("#[") || line.trim().starts_with("//"))
            });
            if above.into_iter().any(|line| is_condition(line)) {
                return true;
            }
        }
        let Some(outer) = (0..at).rev().find(|line| !lines[*line].trim().is_empty()) else { return false };
        at = outer;
    }
}

/// Returns those lines of a source file, outside of its tests, that compile only on Linux.
fn linux_only_lines(text: &str) -> Vec<String> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines: Vec<_> = product.lines().collect();
    let is_linux_only = |line: &str| {
        let code = line.trim();
        !code.starts_with("//") && LINUX_ONLY.iter().any(|word| code.contains(word))
    };
    let found = (0..lines.len()).filter(|at| is_linux_only(lines[*at]) && !is_conditional(&lines, *at));
    found.map(|at| format!("{}: {}", at + 1, lines[at].trim())).collect()
}

fn is_test(path: &Path) -> bool {
    let words = path.to_string_lossy();
    ["test.rs", "tests.rs", "/tests/", "testing"].iter().any(|word| words.contains(word))
}

#[test]
fn packages_that_read_files_call_nothing_that_only_linux_has() {
    let mut wrong = Vec::new();
    for package in PORTABLE.map(|name| root().join("src").join(name)) {
        for path in rust_files(&package).into_iter().filter(|path| !is_test(path)) {
            let found = linux_only_lines(&fs::read_to_string(&path).unwrap());
            wrong.extend(found.iter().map(|line| format!("{}:{line}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_call_counts_unless_it_or_an_item_around_it_is_conditional() {
    let text = "use std::os::unix::fs::FileExt;\n\
                #[cfg(unix)]\nuse std::os::unix::fs::MetadataExt;\n\
                /// Reads `libc::read`.\n\
                #[cfg(target_os = \"linux\")]\n// A reason.\nfn a() {\n    let x = {\n        libc::getpid()\n    };\n}\n\
                #[cfg(not(windows))]\nfn b() {\n    libc::getpid();\n}\n\
                fn c() {\n    #[cfg(unix)]\n    return libc::getpid();\n    libc::getppid();\n}\n\
                #[cfg(test)]\nmod tests {\n    fn d() { libc::getpid(); }\n}\n";
    let found = linux_only_lines(text);
    let expected = ["1: use std::os::unix::fs::FileExt;", "14: libc::getpid();", "19: libc::getppid();"];
    assert_eq!(found, expected);
}
