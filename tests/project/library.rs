//! What `libgpuflame.so` shows to the world: its symbols, its header, and what it is made of.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::support::{gpuflame, root, scratch};

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn readelf(option: &str) -> String {
    output(Command::new("readelf").args([option, "-W"]).arg(gpuflame()).env("LC_ALL", "C"))
}

/// Names of dynamic symbols by whether they are defined here.
fn symbols() -> (BTreeSet<String>, BTreeSet<String>) {
    let text = readelf("--dyn-syms");
    let mut sets = (BTreeSet::new(), BTreeSet::new());
    // Num: Value Size Type Bind Vis Ndx Name
    for fields in text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
        let [number, _, _, _, _, _, index, name, ..] = fields[..] else { continue };
        if !number.trim_end_matches(':').bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let name = name.split('@').next().unwrap().to_owned();
        if index == "UND" {
            sets.1.insert(name)
        } else {
            sets.0.insert(name)
        };
    }
    sets
}

/// The functions that the header declares outside comments.
fn declared() -> BTreeSet<String> {
    let header = output(
        Command::new("gcc").args(["-E", "-P", "-x", "c", "-std=c99"]).arg(root().join("include/gpuflame.h")),
    );
    let names = header.match_indices("gpuflame_").filter_map(|(at, _)| {
        let end = header[at..].find(|c: char| c != '_' && !c.is_ascii_alphanumeric())? + at;
        header[end..].trim_start().starts_with('(').then(|| header[at..end].to_owned())
    });
    names.collect()
}

#[test]
fn it_exports_its_entry_and_what_the_header_declares_and_nothing_else() {
    let declared = declared();
    assert!(declared.len() >= 5, "{declared:?}");
    let mut expected = declared;
    // What the CUDA driver and NVTX look for.
    expected.extend(["InitializeInjection", "InitializeInjectionNvtx2"].map(str::to_owned));
    assert_eq!(symbols().0, expected);
}

#[test]
fn the_header_compiles_alone_as_c99_and_as_cpp11() {
    let folder = scratch("header");
    for (compiler, standard, file) in [("gcc", "-std=c99", "alone.c"), ("g++", "-std=c++11", "alone.cpp")] {
        let source = folder.join(file);
        let uses = if file.ends_with(".cpp") {
            "bool open(const gpuflame::Window &w) { gpuflame::Range range(\"x\"); return !!w; }\n"
        } else {
            ""
        };
        let body = "int answer(void);\nint answer(void) { return gpuflame_start() == GPUFLAME_OK; }\n";
        fs::write(&source, format!("#include <gpuflame.h>\n#include <gpuflame.h>\n{uses}{body}")).unwrap();
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I"]);
        output(command.arg(root().join("include")).arg(source));
    }
}

#[test]
fn the_error_numbers_of_the_header_are_those_of_the_library() {
    let header = fs::read_to_string(root().join("include/gpuflame.h")).unwrap();
    let library = fs::read_to_string(root().join("capi/src/lib.rs")).unwrap();
    for (name, kind) in [
        ("NO_DRIVER", "NoDriver"),
        ("NO_CUPTI", "NoCupti"),
        ("REFUSED", "CuptiRefused"),
        ("SETTING", "Setting"),
        ("IO", "Io"),
        ("FORMAT", "Format"),
        ("STATE", "State"),
    ] {
        let (_, rest) = header.split_once(&format!("#define GPUFLAME_ERROR_{name} (")).unwrap();
        let (number, _) = rest.split_once(')').unwrap();
        assert!(library.contains(&format!("ErrorKind::{kind} => {number},")), "{name} is {number}");
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    // The header's own words for it, too.
    let header = fs::read_to_string(root().join("include/gpuflame.h")).unwrap();
    assert!(header.contains(concat!("such as \"", env!("CARGO_PKG_VERSION"), "\"")));
}

#[test]
fn nothing_of_a_command_line_is_in_it() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = Command::new(cargo);
    tree.args([
        "tree",
        "-p",
        "gpuflame-capi",
        "-e",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
        "--offline",
    ]);
    let text = output(tree.current_dir(root()));
    let names: BTreeSet<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains("gpuflame") && names.contains("inferno"), "{names:?}");
    let unwanted =
        ["clap", "clap_builder", "lexopt", "pico-args", "structopt", "env_logger", "indicatif", "anyhow"];
    for name in unwanted {
        assert!(!names.contains(name), "{name} is in the shared library:\n{text}");
    }
}

#[test]
fn it_needs_only_what_every_machine_has() {
    let needed: BTreeSet<_> = readelf("-d")
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
        .collect();
    let common =
        ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libdl.so.2", "libpthread.so.0"];
    let others: Vec<_> = needed.iter().filter(|name| !common.contains(&name.as_str())).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(!needed.is_empty());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_hot_path_finds_its_thread_without_a_call() {
    // An offset from the thread pointer, known once the library is loaded (initial-exec).
    let relocations = readelf("-r");
    assert!(relocations.contains("R_X86_64_TPOFF64"), "{relocations}");
    assert!(readelf("-d").contains("STATIC_TLS"));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn what_it_keeps_for_each_thread_fits_the_room_that_the_loader_has_left() {
    // Number, value, size, type, binding, visibility, section, name.
    let symbols = readelf("-s");
    let pointer = symbols.lines().find(|line| line.ends_with(" gpuflame_thread_0_1")).expect("the pointer");
    let fields: Vec<_> = pointer.split_whitespace().collect();
    assert_eq!((fields[2], fields[3]), ("8", "TLS"), "{pointer}");
    // Type, offset, two addresses, size in the file, size in memory. With the standard library's variables,
    // which lie in the same segment. glibc keeps at least 1,664 bytes for all libraries that are loaded late.
    let segments = readelf("-l");
    let segment = segments.lines().find(|line| line.trim_start().starts_with("TLS ")).expect("a segment");
    let size = segment.split_whitespace().nth(5).and_then(|size| size.strip_prefix("0x")).expect("a size");
    assert!(usize::from_str_radix(size, 16).unwrap() <= 512, "{segment}");
}
