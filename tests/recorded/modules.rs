//! Tests the names of functions in code that is no longer loaded when the outputs are written.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::command::gpuflame;
use crate::support::{Done, Run, Way, compile, plugin, scratch};

#[test]
fn launches_from_an_unloaded_plugin_have_the_plugins_function_names() {
    let program = compile("tests/programs/plugins.c", &["-O2"]);
    let names = ["red", "green", "blue", "red2"];
    let plugins: Vec<_> = names.iter().map(|name| plugin(name)).collect();
    let done = plugins.iter().fold(Run::new(&program, Way::Injected), |run, plugin| run.arg(plugin)).ok();
    let addresses: BTreeSet<_> = done.stdout.lines().collect();
    assert!(
        addresses.len() < names.len(),
        "no two plugins were loaded at the same address:\n{}",
        done.stdout
    );
    let expected: Vec<_> = names
        .iter()
        .map(|name| {
            let stack = format!("main;run;plugin_run;inner_{name};cudaLaunchKernel;[GPU_Kernel]step_d1000");
            (stack, 1000)
        })
        .collect();
    let mut found: Vec<_> =
        done.folded().into_iter().map(|(frames, weight)| (frames.join(";"), weight)).collect();
    let mut sorted = expected;
    sorted.sort();
    found.sort();
    assert_eq!(found, sorted, "{}", done.stderr);
}

#[test]
fn code_without_symbols_appears_as_module_and_offset() {
    let program = compile("tests/programs/plugins.c", &["-O2"]);
    let library = plugin("gone");
    let stripped = Command::new("strip").arg("--strip-all").arg(&library).status().unwrap();
    assert!(stripped.success());
    let done = Run::new(&program, Way::Injected).arg(&library).ok();
    let [(frames, 1000)] = &done.folded()[..] else { panic!("{:?}", done.folded()) };
    assert_eq!(frames[..3], ["main", "run", "plugin_run"], "the exported name survives");
    assert!(frames[3].starts_with("gone.so+0x"), "{frames:?}");
}

/// Paths are byte strings. At the exit, and when it reads a recording, gpuflame opens a non-UTF-8 path by its exact
/// bytes. Outputs show the closest UTF-8 form of the path.
#[test]
fn code_in_files_with_non_utf8_paths_is_symbolized() {
    let folder = scratch("bytes").join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&folder).unwrap();
    let moved = |file: PathBuf, name: &[u8]| {
        let there = folder.join(OsStr::from_bytes(name));
        fs::rename(file, &there).unwrap();
        there
    };
    let program = moved(compile("tests/programs/plugins.c", &["-O2"]), b"plugins");
    let stripped = moved(plugin("gone"), b"\xff.so");
    assert!(Command::new("strip").arg("--strip-all").arg(&stripped).status().unwrap().success());
    moved(plugin("near"), b"near.so");
    let run = Run::new(&program, Way::Injected).in_folder(&folder);
    let run = run.arg(moved(plugin("far"), b"far\xe9.so")).arg("./near.so").arg(stripped);
    let outputs = scratch("outputs");
    let run = run.env("GPUFLAME_OUTPUT", outputs.join("out")).env("GPUFLAME_FORMATS", "folded,gfr");
    let done = Done { folder: outputs, ..run.ok() };
    let mut stacks: Vec<_> = done.folded().into_iter().map(|(frames, _)| frames.join(";")).collect();
    stacks.sort();
    let [far, near, unnamed] = &stacks[..] else { panic!("{stacks:?}") };
    for (stack, name) in [(far, "far"), (near, "near")] {
        let expected = format!("main;run;plugin_run;inner_{name};cudaLaunchKernel;[GPU_Kernel]step_d1000");
        assert_eq!(*stack, expected, "{}", done.stderr);
    }
    assert!(unnamed.starts_with("main;run;plugin_run;\u{fffd}.so+0x"), "{unnamed}");
    let again = gpuflame(&done.folder, ["flamegraph", "out.gfr", "--format", "folded"]).ok();
    assert_eq!(again.stdout, done.file("out.folded"));
}

/// Runs the program `reloads`, which loads and unloads these plugins repeatedly.
fn reload(cycles: u32, stacks: u32, namespace: &str, plugins: &[PathBuf]) -> Done {
    let program = compile("tests/programs/reloads.c", &["-O2"]);
    let run =
        Run::new(&program, Way::Injected).arg(cycles.to_string()).arg(stacks.to_string()).arg(namespace);
    let done = plugins.iter().fold(run, |run, plugin| run.arg(plugin)).ok();
    let addresses: BTreeSet<_> = done.stdout.lines().map(|line| line.split(' ').next()).collect();
    let places = addresses.len();
    assert!(
        places <= cycles as usize / 2,
        "the plugins were rarely loaded at the same address:\n{}",
        done.stdout
    );
    done
}

/// Returns the number of launches of 1,000-ns kernels under the red plugin, under the green plugin, and under an
/// unknown plugin.
fn launches_by_plugin(done: &Done) -> [u64; 3] {
    let mut launches = [0; 3];
    for (frames, nanos) in done.folded() {
        let has = |name: &str| frames.iter().any(|frame| frame.starts_with(name));
        match ["inner_red", "inner_green", "[unknown module]+0x"].map(has) {
            [true, false, false] => launches[0] += nanos / 1000,
            [false, true, false] => launches[1] += nanos / 1000,
            [false, false, true] => launches[2] += nanos / 1000,
            _ => panic!("{frames:?}"),
        }
    }
    launches
}

#[test]
fn plugins_that_alternate_at_one_address_keep_their_names() {
    let done = reload(200, 0, "-", &["red", "green"].map(plugin));
    assert_eq!(launches_by_plugin(&done), [100, 200, 0], "{}", done.stderr);
}

#[test]
fn plugins_that_alternate_next_to_a_loader_namespace_keep_their_names() {
    let done = reload(20, 0, "libm.so.6", &["red", "green"].map(plugin));
    assert_eq!(launches_by_plugin(&done), [10, 20, 0], "{}", done.stderr);
}

#[test]
fn plugins_that_alternate_beyond_the_epoch_limit_keep_their_names() {
    let done = reload(5000, 0, "-", &["red", "green"].map(plugin));
    assert_eq!(launches_by_plugin(&done), [2500, 5000, 0], "{}", done.stderr);
}

#[test]
fn launches_from_an_address_with_too_many_files_are_unknown_and_counted() {
    let red = plugin("red");
    // To gpuflame, each symbolic link is a different file. The test needs many symbolic links, because gpuflame can
    // distinguish up to 4,094 files that are loaded at the same address in turn.
    let names = (0..5000).map(|n| red.with_file_name(format!("{n}.so")));
    let links: Vec<_> = names.inspect(|link| symlink(&red, link).unwrap()).collect();
    let done = reload(5000, 0, "-", &links);
    let [red, green, unknown] = launches_by_plugin(&done);
    assert_eq!((red + unknown, green), (2500 + 5000, 0), "{}", done.stderr);
    // The dynamic loader chooses the addresses of the plugins. The loader may choose other addresses if the test maps
    // memory.
    let mut files = BTreeMap::<_, u64>::new();
    done.stdout.lines().for_each(|line| *files.entry(line.split(' ').next()).or_default() += 1);
    let too_many: u64 = files.values().map(|count| count.saturating_sub(4094)).sum();
    assert!(too_many > 50, "{files:?}");
    // Two plugins together make three launches. Files that were loaded earlier at the same address may have used one or
    // two of the 4,094 places.
    let expected = too_many * 3 / 2;
    assert!((expected..expected + 12).contains(&unknown), "{unknown} launches of {too_many} unknown modules");
    let [losses] = done.ledger("lost: ")[..] else { panic!("{}", done.stderr) };
    assert!(losses.contains(", stacks_module_unknown 1,"), "all of them have the same stack: {losses}");
}

#[test]
fn stacks_outside_a_reloaded_library_are_recorded_once() {
    let done = reload(60, 500, "-", &["red", "green"].map(plugin));
    assert_eq!(done.sum("launches").0, 60 * 500 + 30 + 60);
    // Each plugin has a separate stack for each address at which it was loaded.
    let plugins: BTreeSet<_> = done.stdout.lines().collect();
    let stacks = 500 + plugins.len() + 1;
    assert_eq!(
        done.ledger("stacks "),
        [format!("{stacks} distinct")],
        "including the stack of a wait: {}",
        done.stderr
    );
}

/// The test runs the dynamic loader with the program as its argument, so for the Linux kernel the loader is the program
/// that runs.
#[test]
fn a_program_started_through_the_loader_is_symbolized() {
    let program = compile("tests/programs/odd.c", &["-O2"]);
    for way in [Way::Injected, Way::Preloaded] {
        let loader = Run::new(Path::new("/lib64/ld-linux-x86-64.so.2"), way);
        let done = loader.arg(&program).arg("plain").done();
        assert_eq!(done.code, Some(7), "{}", done.stderr);
        done.assert_exact();
    }
}
