//! Names of code that is gone by the time the outputs are written.

mod support;

use std::path::PathBuf;
use std::process::Command;

use support::{Run, Way, compile, root, scratch};

/// The plugin under this name.
fn plugin(name: &str) -> PathBuf {
    let library = scratch("plugin").join(format!("{name}.so"));
    let mut command = Command::new("gcc");
    command.args(["-g", "-O2", "-shared", "-fPIC", "-fomit-frame-pointer"]).arg(format!("-DNAME={name}"));
    command.arg("-I").arg(root().join("tests/gpusim/include"));
    command.arg(root().join("tests/programs/plugin.c")).arg("-o").arg(&library);
    assert!(command.status().unwrap().success());
    library
}

#[test]
fn a_launch_from_an_unloaded_plugin_has_the_plugins_names() {
    let program = compile("tests/programs/plugins.c", &["-O2"]);
    let names = ["red", "green", "blue", "red2"];
    let plugins: Vec<_> = names.iter().map(|name| plugin(name)).collect();
    let done = plugins.iter().fold(Run::new(&program, Way::Injected), |run, plugin| run.arg(plugin)).ok();
    let addresses: std::collections::BTreeSet<_> = done.stdout.lines().collect();
    assert!(addresses.len() < names.len(), "no two plugins lay at the same address:\n{}", done.stdout);
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
fn code_that_nobody_can_name_keeps_its_place() {
    let program = compile("tests/programs/plugins.c", &["-O2"]);
    let library = plugin("gone");
    let stripped = Command::new("strip").arg("--strip-all").arg(&library).status().unwrap();
    assert!(stripped.success());
    let done = Run::new(&program, Way::Injected).arg(&library).ok();
    let [(frames, 1000)] = &done.folded()[..] else { panic!("{:?}", done.folded()) };
    assert_eq!(frames[..3], ["main", "run", "plugin_run"], "the exported name survives");
    assert!(frames[3].starts_with("gone.so+0x"), "{frames:?}");
}
