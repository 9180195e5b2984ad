//! Tests the public interface of `libgpuflame.so`, that is, its symbols and its header. Also tests the size and the
//! dependencies of the library.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::support::{gpuflame, preload, root, scratch, skip};

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn readelf(option: &str) -> String {
    readelf_of(&gpuflame(), option)
}

fn readelf_of(library: &Path, option: &str) -> String {
    output(Command::new("readelf").args([option, "-W"]).arg(library).env("LC_ALL", "C"))
}

/// Returns the names of the dynamic symbols that the library defines, and of those that it imports.
fn symbols() -> (BTreeSet<String>, BTreeSet<String>) {
    let text = readelf("--dyn-syms");
    let mut sets = (BTreeSet::new(), BTreeSet::new());
    // The columns of readelf's output are Num: Value Size Type Bind Vis Ndx Name.
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

/// Returns the functions that the header declares outside of comments.
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
fn the_library_exports_exactly_its_entry_points_and_the_header_functions() {
    let declared = declared();
    assert!(declared.len() >= 5, "{declared:?}");
    let mut expected = declared;
    // The CUDA driver and NVTX look for these symbols by name.
    expected.extend(["InitializeInjection", "InitializeInjectionNvtx2"].map(str::to_owned));
    // External probes can be attached to the function with this name.
    expected.insert("gpuflame_launch_marker".to_owned());
    assert_eq!(symbols().0, expected);
}

const C: [(&str, &str); 3] = [("gcc", "-std=c99"), ("gcc", "-std=c11"), ("gcc", "-std=c17")];
const CPP: [(&str, &str); 4] =
    [("g++", "-std=c++11"), ("g++", "-std=c++14"), ("g++", "-std=c++17"), ("g++", "-std=c++20")];

/// Returns a compiler command with strict warnings that compiles `source` without linking.
fn strict((compiler, standard): (&str, &str), source: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I"]);
    command.arg(root().join("include")).arg(source);
    command
}

#[test]
fn the_header_compiles_on_its_own_in_every_supported_c_and_cpp_standard() {
    let folder = scratch("header");
    let body = "int answer(void);\nint answer(void) { return gpuflame_start() == GPUFLAME_OK; }\n";
    let objects = "bool open(const gpuflame::Window &w) { gpuflame::Range range(\"x\"); return !!w; }\n\
                   uint64_t busy() { gpuflame::Stats stats; return stats ? stats.busy_ns : 0; }\n";
    let (c, cpp) = (folder.join("alone.c"), folder.join("alone.cpp"));
    let twice = "#include <gpuflame.h>\n#include <gpuflame.h>\n";
    fs::write(&c, format!("{twice}{body}")).unwrap();
    fs::write(&cpp, format!("{twice}{objects}{body}")).unwrap();
    for (source, compilers) in [(&c, &C[..]), (&cpp, &CPP[..])] {
        for compiler in compilers {
            output(&mut strict(*compiler, source));
            output(strict(*compiler, source).arg("-DGPUFLAME_HEADER_ONLY"));
        }
    }
}

#[test]
fn an_unnamed_range_or_window_object_is_a_nodiscard_error() {
    let source = scratch("nameless").join("nameless.cpp");
    for object in ["gpuflame::Range(\"x\")", "gpuflame::Window()"] {
        fs::write(&source, format!("#include <gpuflame.h>\nvoid f();\nvoid f() {{ {object}; }}\n")).unwrap();
        for compiler in &CPP[2..] {
            let refused = strict(*compiler, &source).output().unwrap();
            let why = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && why.contains("nodiscard"), "{compiler:?}: {why}");
        }
    }
}

#[test]
fn source_files_in_header_only_mode_share_one_library_handle() {
    let folder = scratch("shared");
    let text = "#define GPUFLAME_HEADER_ONLY\n#include <gpuflame.h>\n";
    let call = |name: &str| {
        format!(
            "{text}void **{name}(void);\nvoid **{name}(void) {{ (void)gpuflame_step(); return &gpuflame_library_; }}\n"
        )
    };
    fs::write(folder.join("one.c"), call("one")).unwrap();
    fs::write(folder.join("two.c"), call("two")).unwrap();
    let main = "void **one(void);\nvoid **two(void);\nint main(void) { return one() != two(); }\n";
    fs::write(folder.join("main.c"), main).unwrap();
    let mut command = Command::new("gcc");
    command.current_dir(&folder).args(["one.c", "two.c", "main.c", "-o", "main", "-ldl", "-I"]);
    output(command.arg(root().join("include")));
    output(&mut Command::new(folder.join("main")));
}

#[test]
fn the_library_has_its_soname_and_versioned_symbols() {
    assert!(readelf("-d").contains("Library soname: [libgpuflame.so.0]"));
    let beside = gpuflame().with_file_name("libgpuflame.so.0");
    assert_eq!(beside.canonicalize().unwrap(), gpuflame().canonicalize().unwrap());
    if cfg!(target_arch = "x86_64") {
        let symbols = readelf("--dyn-syms");
        for name in declared() {
            assert!(symbols.contains(&format!(" {name}@@GPUFLAME_0")), "{name}\n{symbols}");
        }
    }
}

#[test]
fn the_installed_library_is_found_by_pkg_config_cmake_and_its_command() {
    let (built, prefix) = (scratch("built"), scratch("prefix").join("moved"));
    symlink(gpuflame(), built.join("libgpuflame.so")).unwrap();
    symlink(env!("CARGO_BIN_EXE_gpuflame"), built.join("gpuflame")).unwrap();
    symlink(preload(), built.join("libgpuflame-preload.so")).unwrap();
    let first = prefix.with_file_name("first");
    output(Command::new(root().join("capi/install.sh")).arg(&first).arg(&built));
    fs::rename(&first, &prefix).unwrap();
    let config = fs::read_to_string(prefix.join("lib/pkgconfig/gpuflame.pc")).unwrap();
    assert!(config.contains(concat!("Version: ", env!("CARGO_PKG_VERSION"), "\n")), "{config}");
    let source = prefix.join("main.c");
    let body = "int main(void) { return !gpuflame_version()[0]; }";
    fs::write(&source, format!("#include <gpuflame.h>\n{body}\n")).unwrap();
    let mut asked = Command::new("pkg-config");
    asked.args(["--cflags", "--libs", "gpuflame"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = match asked.output() {
        Ok(flags) => String::from_utf8(flags.stdout).unwrap(),
        // If pkg-config is not installed, the test uses the flags that pkg-config would print.
        Err(_) => format!("-I{0}/include -L{0}/lib -lgpuflame", prefix.display()),
    };
    assert!(flags.contains("-lgpuflame"), "{flags}");
    let program = prefix.join("main");
    let mut compiler = Command::new("gcc");
    compiler.arg(&source).args(flags.split_whitespace()).arg("-o").arg(&program);
    output(&mut compiler);
    output(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert!(prefix.join("lib/libgpuflame-preload.so").is_file());
    let mut command = Command::new(prefix.join("bin/gpuflame"));
    let ran = command.args(["run", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("no report arrived"), "{said}");
    builds_with_cmake(&prefix);
}

/// Builds two CMake projects: one finds the installed library, and the other uses only its header.
fn builds_with_cmake(prefix: &Path) {
    if Command::new("cmake").arg("--version").output().is_err() {
        return skip("there is no cmake; .ci/install installs it");
    }
    let folder = scratch("cmake");
    let lists = "cmake_minimum_required(VERSION 3.16)\nproject(app C)\n\
                 find_package(gpuflame 0.1 CONFIG REQUIRED)\n\
                 add_executable(linked main.c)\ntarget_link_libraries(linked gpuflame::gpuflame)\n\
                 add_executable(alone main.c)\ntarget_link_libraries(alone gpuflame::headers)\n";
    fs::write(folder.join("CMakeLists.txt"), lists).unwrap();
    let body = "int main(void) { puts(gpuflame_version()); return 0; }";
    fs::write(folder.join("main.c"), format!("#include <gpuflame.h>\n#include <stdio.h>\n{body}\n")).unwrap();
    let mut configured = Command::new("cmake");
    configured.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())).args(["-S", ".", "-B", "built"]);
    output(configured.current_dir(&folder));
    output(Command::new("cmake").args(["--build", "built"]).current_dir(&folder));
    let linked = output(&mut Command::new(folder.join("built/linked")));
    assert_eq!(linked, concat!(env!("CARGO_PKG_VERSION"), "\n"));
    output(&mut Command::new(folder.join("built/alone")));
}

#[test]
fn the_error_numbers_of_header_and_library_agree() {
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
fn the_header_version_equals_the_package_version() {
    // The comment in the header states the same version.
    let header = fs::read_to_string(root().join("include/gpuflame.h")).unwrap();
    assert!(header.contains(concat!("such as \"", env!("CARGO_PKG_VERSION"), "\"")));
    for (part, number) in [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        assert!(header.contains(&format!("#define GPUFLAME_VERSION_{part} {number}\n")), "{part}");
    }
}

#[test]
fn the_library_depends_on_no_command_line_crate() {
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
    assert!(names.contains("gpuflame-recorder") && names.contains("blazesym"), "{names:?}");
    let unwanted =
        ["clap", "clap_builder", "lexopt", "pico-args", "structopt", "env_logger", "indicatif", "anyhow"];
    for name in unwanted {
        assert!(!names.contains(name), "{name} is in the shared library:\n{text}");
    }
}

/// The library must not contain these crates, even if it is built together with the command. This test and `cargo build
/// --release` build the library together with the command.
#[test]
fn the_linker_drops_crates_that_only_the_command_uses() {
    let symbols = readelf("-sW");
    let has = |name: &str| symbols.contains(&format!("{}{name}", name.len()));
    assert!(has("blazesym") && has("gpuflame"), "the library has symbols with Rust's mangled names");
    for name in [
        "arrow_array",
        "arrow_ipc",
        "parquet",
        "prost",
        "rusqlite",
        "serde_json",
        "indicatif",
        "toml",
        "clap",
    ] {
        assert!(!has(name), "{name} is in the shared library");
    }
    assert!(!symbols.contains(" sqlite3_"), "SQLite is in the shared library");
}

#[test]
fn the_library_links_only_common_system_libraries() {
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

/// Each function in this list may block the thread that calls it. If the library called such a function, a hanging disk
/// would block the calling thread.
#[test]
fn the_library_never_calls_fsync_or_similar_functions() {
    let asks = ["fsync", "fdatasync", "sync", "syncfs", "msync", "sync_file_range"];
    let needed = symbols().1;
    assert!(needed.contains("write"), "{needed:?}");
    assert!(asks.iter().all(|name| !needed.contains(*name)), "{needed:?}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_library_loads_without_space_in_the_static_tls_block() {
    // A thread-local variable at a fixed offset from the thread pointer would need space in the static TLS block. A
    // variable with a TLS descriptor uses that block only if it has space left.
    let relocations = readelf("-r");
    assert!(relocations.contains("R_X86_64_TLSDESC"), "{relocations}");
    assert!(!relocations.contains("TPOFF"), "{relocations}");
    assert!(!readelf("-d").contains("STATIC_TLS"));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_librarys_thread_local_data_fits_the_loaders_tls_reserve() {
    // The columns of readelf's output are number, value, size, type, binding, visibility, section, name.
    let symbols = readelf("-s");
    let pointer = symbols.lines().find(|line| line.ends_with(" gpuflame_thread_0_1")).expect("the pointer");
    let fields: Vec<_> = pointer.split_whitespace().collect();
    assert_eq!((fields[2], fields[3]), ("8", "TLS"), "{pointer}");
    // The columns of readelf's output are type, offset, two addresses, size in the file, and size in memory. The size
    // in memory includes the variables of Rust's standard library, which are in the same segment. glibc provides at
    // most 512 bytes in total to all libraries that can do without static TLS.
    let segments = readelf("-l");
    let segment = segments.lines().find(|line| line.trim_start().starts_with("TLS ")).expect("a segment");
    let size = segment.split_whitespace().nth(5).and_then(|size| size.strip_prefix("0x")).expect("a size");
    assert!(usize::from_str_radix(size, 16).unwrap() <= 448, "{segment}");
}

/// Returns the functions that the library imports: the name, the version (if any), and whether the symbol is weak.
fn looked_for(library: &Path) -> Vec<(String, Option<String>, bool)> {
    let text = readelf_of(library, "--dyn-syms");
    // The columns of readelf's output are Num: Value Size Type Bind Vis Ndx Name@VERSION (number).
    let fields = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let undefined = fields.filter(|fields| fields.len() > 7 && fields[6] == "UND" && fields[7] != "Name");
    let symbol = |fields: Vec<&str>| {
        let (name, version) =
            fields[7].split_once('@').map_or((fields[7], None), |(name, version)| (name, Some(version)));
        (name.to_owned(), version.map(str::to_owned), fields[4] == "WEAK")
    };
    undefined.map(symbol).collect()
}

/// The loader of an older C library must accept this library. The loader must not refuse the library because of a
/// symbol, and must find every symbol that is called.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_library_runs_on_glibc_2_17() {
    let all = looked_for(&gpuflame());
    assert!(all.len() > 80, "{all:?}");
    for (name, version, weak) in &all {
        match version.as_deref().map(|version| version.strip_prefix("GLIBC_").unwrap_or(version)) {
            // The versions of libgcc's symbols are those of GCC 3 and 4.
            Some(version) if version.starts_with("GCC_") => assert!(version < "GCC_4.3", "{name}@{version}"),
            Some(version) => {
                let minor = version.strip_prefix("2.").and_then(|rest| rest.split('.').next());
                let minor: u32 = minor.and_then(|minor| minor.parse().ok()).expect(version);
                assert!(minor <= 17, "{name}@{version}: see STAND_INS in capi/build.rs");
            }
            None => assert!(weak, "{name} has no version and is not weak"),
        }
    }
}

/// If a shell preloads this library, every program that the shell starts loads it, whichever C library the program
/// uses.
#[test]
fn the_preload_library_is_small_and_links_no_library() {
    let library = preload();
    assert!(fs::metadata(&library).unwrap().len() <= 8 << 10);
    assert!(!readelf_of(&library, "-d").contains("(NEEDED)"));
    let all = looked_for(&library);
    assert!(all.len() >= 4, "{all:?}");
    for (name, version, weak) in all {
        assert!(version.is_none() && weak, "{name}");
    }
    // If the library has only two segments, the loader maps and writes as few pages as possible.
    let segments = readelf_of(&library, "-l");
    assert_eq!(segments.matches(" LOAD ").count(), 2, "{segments}");
    let written =
        segments.lines().find(|line| line.contains(" LOAD ") && line.contains(" RW ")).expect("data");
    let size = written.split_whitespace().nth(5).and_then(|size| size.strip_prefix("0x")).expect("a size");
    assert!(usize::from_str_radix(size, 16).unwrap() <= 4096, "{written}");
    let mut strict = Command::new("gcc");
    strict.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DVERSION=\"0\""]);
    output(strict.arg(root().join("capi/preload.c")));
}

/// The size of the library is 3.49 MiB today, plus 0.1 MiB of tables for unwinding its own panics. If the library or
/// these tables grow, find out why.
#[test]
fn the_release_librarys_code_and_data_are_at_most_3_6_mib() {
    let release = gpuflame().ancestors().nth(3).unwrap().join("release/libgpuflame.so");
    if !release.exists() {
        return skip(&format!("there is no {}; run `cargo build --release`", release.display()));
    }
    let sizes = output(Command::new("size").arg(&release));
    // The columns of the output are text, data, bss, dec, hex and filename.
    let line = sizes.lines().nth(1).unwrap();
    let [text, data]: [u64; 2] =
        std::array::from_fn(|field| line.split_whitespace().nth(field).unwrap().parse().unwrap());
    let sections = output(Command::new("size").arg("-A").arg(&release));
    let tables = sections.lines().find_map(|line| line.strip_prefix(".gcc_except_table")).unwrap();
    let tables: u64 = tables.split_whitespace().next().unwrap().parse().unwrap();
    assert!(text + data - tables <= 3_650 << 10, "{sizes}{sections}");
    assert!(tables <= 110 << 10, "{sections}");
}
