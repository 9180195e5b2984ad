//! Tests the command as a user runs it: its messages, its output files and its exit codes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::command::{gpuflame, gpuflame_with};
use crate::support::{Run, Way, compile, handmade, root, scratch, skip};
use serde_json::Value;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_folded_stacks_of_a_recording_equal_the_handwritten_ones() {
    let folder = scratch("cli");
    handmade::recording(&folder);
    let ran = gpuflame(&folder, ["flamegraph", "hand.gfr", "--format", "folded"]).ok();
    assert_eq!(ran.stdout, handmade::FOLDED);
    assert_eq!(ran.stderr, "");
    gpuflame(&folder, ["flamegraph", "hand.gfr", "-o", "out.folded"]).ok();
    assert_eq!(fs::read_to_string(folder.join("out.folded")).unwrap(), handmade::FOLDED);
    assert_eq!(names(&folder), ["hand.gfr", "out.folded"], "no temporary file is left");
}

/// Flame graphs draw a kernel name such as `gemm<float>` as `gemm`. Names without template arguments have no short
/// form.
#[test]
fn a_flame_graph_draws_short_kernel_names_and_keeps_full_names_in_titles() {
    let folder = scratch("cli");
    handmade::recording(&folder);
    gpuflame(&folder, ["flamegraph", "hand.gfr", "-o", "out.svg"]).ok();
    let svg = fs::read_to_string(folder.join("out.svg")).unwrap();
    assert!(
        svg.contains("<title data-short=\"gemm [GPU0_Kernel]\">gemm&lt;float&gt; [GPU0_Kernel] (20.001 us, "),
        "{svg}"
    );
    assert!(svg.contains("<title>add [GPU1_Kernel] (5.000 us, "), "{svg}");
    assert!(!svg.contains('\u{2028}'), "{svg}");
    // If another tool wrote folded stacks, they are drawn in the same way as a recording.
    fs::write(folder.join("in.folded"), "main;[GPU_Kernel]lib::gemm<float, 128> 7\n").unwrap();
    gpuflame(&folder, ["-q", "flamegraph", "in.folded", "-o", "again.svg"]).ok();
    let again = fs::read_to_string(folder.join("again.svg")).unwrap();
    assert!(
        again.contains(
            "<title data-short=\"gemm [GPU_Kernel]\">lib::gemm&lt;float, 128&gt; [GPU_Kernel] (7 ns, "
        ),
        "{again}"
    );
}

#[test]
fn folded_stacks_have_full_kernel_names_with_all_frames_and_keep_numbers() {
    let folder = scratch("cli");
    handmade::recording(&folder);
    let whole = handmade::FOLDED.replace("gemm", "gemm<float>");
    for flag in ["--all-frames", "--keep-numbers"] {
        for verb in [&["flamegraph", "--format"][..], &["convert", "--to"]] {
            let ran = gpuflame(&folder, [verb[0], "hand.gfr", flag, verb[1], "folded"]).ok();
            assert_eq!(ran.stdout, whole, "{flag} {verb:?}");
        }
    }
}

#[test]
fn a_dash_reads_standard_input() {
    let folder = scratch("cli");
    let ran =
        gpuflame_with(&folder, ["flamegraph", "-", "--format", "folded", "-o", "-"], &handmade::bytes()).ok();
    assert_eq!(ran.stdout, handmade::FOLDED);
}

#[test]
fn a_flame_graph_drawn_from_a_recording_equals_the_runs_own() {
    let program = compile("tests/programs/load.c", &["-O2"]);
    let run = Run::new(&program, Way::Injected).args(["--threads", "2", "--launches", "500"]);
    let done = run.env("GPUFLAME_FORMATS", "folded,svg,idle,gfr").ok();
    for name in ["out.svg", "out.folded", "out.idle.svg", "out.idle.folded"] {
        let again = format!("again-{name}");
        let what = ["-q", "flamegraph", "out.gfr", "-o", &again, "--idle"];
        let what = if name.contains("idle") { &what[..] } else { &what[..5] };
        gpuflame(&done.folder, what.iter().copied()).ok();
        assert_eq!(done.file(&format!("again-{name}")), done.file(name), "{name}");
    }
}

/// Runs `gpuflame ARGS` with this umask.
fn with_umask(folder: &Path, umask: &str, args: &[&str]) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "umask $0 && exec \"$@\"", umask, env!("CARGO_BIN_EXE_gpuflame"), "-q"]).args(args);
    shell.current_dir(folder).env_remove("GPUFLAME_FILE_MODE");
    assert!(shell.status().unwrap().success(), "{args:?}");
}

#[test]
fn library_and_recover_outputs_are_owner_only_and_other_verbs_follow_the_umask() {
    let program = compile("tests/programs/load.c", &["-O2"]);
    let run = Run::new(&program, Way::Injected).args(["--launches", "50"]);
    let done = run.env("GPUFLAME_FORMATS", "folded,csv,activities,gfr").ok();
    let mode = |name: &str| fs::metadata(done.folder.join(name)).unwrap().permissions().mode() & 0o777;
    for name in ["out.folded", "out.csv", "out.activities.csv", "out.stacks.csv", "out.gfr"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    for (umask, expected) in [("022", 0o644), ("027", 0o640), ("077", 0o600)] {
        let (picture, set) = (format!("{umask}.svg"), format!("set-{umask}"));
        with_umask(&done.folder, umask, &["flamegraph", "out.gfr", "-o", &picture]);
        with_umask(&done.folder, umask, &["convert", "out.gfr", "-o", &set, "--to", "parquet"]);
        assert_eq!(mode(&picture), expected, "{umask}");
        assert_eq!(mode(&format!("{set}/run=0/rank=0/activities.parquet")), expected, "{umask}");
    }
    fs::create_dir(done.folder.join("left")).unwrap();
    fs::copy(done.folder.join("out.gfr"), done.folder.join("left/out.gfr")).unwrap();
    with_umask(&done.folder, "022", &["recover", "left/out.gfr"]);
    for name in ["left/out.folded", "left/out.svg", "left/out.set.json"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
}

/// Before the command runs, the output file belongs to another user. If the file kept its owner, that user could later
/// write a script into the SVG file. Root might then open this file in a browser.
#[test]
fn another_users_world_writable_file_is_replaced_by_an_owner_writable_one() {
    let folder = scratch("cli");
    handmade::recording(&folder);
    let picture = folder.join("out.svg");
    fs::write(&picture, "").unwrap();
    fs::set_permissions(&picture, fs::Permissions::from_mode(0o666)).unwrap();
    if std::os::unix::fs::chown(&picture, Some(65_534), None).is_err() {
        return skip("only root can give files to another user");
    }
    with_umask(&folder, "022", &["flamegraph", "hand.gfr", "-o", "out.svg"]);
    assert_eq!(fs::metadata(&picture).unwrap().permissions().mode() & 0o777, 0o644);
    // If an output file already exists and belongs to the same user, it keeps its mode.
    fs::set_permissions(&picture, fs::Permissions::from_mode(0o666)).unwrap();
    with_umask(&folder, "022", &["flamegraph", "hand.gfr", "-o", "out.svg"]);
    assert_eq!(fs::metadata(&picture).unwrap().permissions().mode() & 0o777, 0o666);
}

#[test]
fn info_counts_the_launches_activities_and_losses_of_a_recording() {
    let folder = scratch("cli");
    handmade::recording(&folder);
    let ran = gpuflame(&folder, ["info", "hand.gfr", "--format", "json"]).ok();
    let info: Value = serde_json::from_str(&ran.stdout).unwrap();
    let fact = |what: &str| {
        let facts = info["facts"].as_array().unwrap();
        facts.iter().find(|fact| fact["what"] == what).unwrap_or_else(|| panic!("no {what}"))["value"].clone()
    };
    assert_eq!(fact("launches"), 7);
    assert_eq!(fact("launches matched"), 6);
    assert_eq!(fact("launches launch pending"), 1);
    assert_eq!(fact("activities"), 8);
    assert_eq!(fact("activities launched before recording"), 1);
    assert_eq!(fact("activities no launch stack"), 1);
    assert_eq!(info["devices"][0]["gpu_time_ns"], 42_001);
    // The kernel gemm and the copy overlap, so GPU 0 is busy from 20 to 40.001 us. The kernel `early` keeps GPU 0 busy
    // from 0 to 10 us.
    assert_eq!(info["devices"][0]["busy_ns"], 30_001);
    assert_eq!(info["devices"][1]["busy_ns"], 15_000);
    assert_eq!(info["losses"][0]["lost"], "timestamp_not_collected");
}

#[test]
fn top_ranks_kernels_stacks_and_delays() {
    let folder = scratch("cli");
    handmade::recording(&folder);
    let ran = gpuflame(&folder, ["top", "hand.gfr", "--by", "kernels,stacks,delay", "--format", "json"]).ok();
    let top: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(top["kernels"][0]["name"], "gemm<float>");
    assert_eq!(top["kernels"][0]["total_ns"], 20_001);
    assert_eq!(top["kernels"][0]["count"], 2);
    assert_eq!(top["kernels"][0]["share_percent"], 35.0889, "20,001 of 57,001");
    assert_eq!(top["stacks"][0]["stack"], "main;decode;cudaLaunchKernel");
    assert_eq!(top["stacks"][0]["total_ns"], 20_001);
    // The kernel gemm was launched at 12 us and at 16 us, and began to run at 20 us and at 30 us.
    let delay = top["delay"].as_array().unwrap().iter().find(|row| row["count"] == 2).unwrap();
    assert_eq!((delay["avg_ns"].as_u64(), delay["max_ns"].as_u64()), (Some(11_000), Some(14_000)));
    let text = gpuflame(&folder, ["top", "hand.gfr", "-n", "1"]).ok().stdout;
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.contains("20.001 us"), "{text}");
}

#[test]
fn unreadable_input_files_are_reported_with_a_next_step() {
    let folder = scratch("cli");
    fs::write(folder.join("empty"), "").unwrap();
    fs::write(folder.join("text"), "hello\n").unwrap();
    for verb in ["flamegraph", "info", "top"] {
        gpuflame(&folder, [verb, "none.gfr"]).fails(1, &["none.gfr", "no such file", "name a"]);
        gpuflame(&folder, [verb, "."]).fails(1, &["is a folder", "name a file"]);
        gpuflame(&folder, [verb, "empty"]).fails(1, &["empty: is empty"]);
        gpuflame(&folder, [verb, "text"]).fails(1, &["text: "]);
    }
    assert_eq!(names(&folder), ["empty", "text"]);
}

#[test]
fn a_truncated_recording_is_read_up_to_the_truncation() {
    let folder = scratch("cli");
    let whole = handmade::bytes();
    // The end row marks a recording as complete. Therefore a file without its end row counts as truncated. The row
    // before the end row closes the recording window.
    fs::write(folder.join("cut.gfr"), &whole[..whole.len() - 10]).unwrap();
    let ran = gpuflame(&folder, ["flamegraph", "cut.gfr", "--format", "folded"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, handmade::FOLDED), "only the end of the window is lost");
    assert!(ran.stderr.contains("cut.gfr: record") && ran.stderr.contains("is cut short"), "{}", ran.stderr);
}

#[test]
fn a_recording_without_an_end_row_is_read_with_a_warning() {
    let folder = scratch("cli");
    let whole = handmade::bytes();
    fs::write(folder.join("killed.gfr"), &whole[..whole.len() - 5]).unwrap();
    let ran = gpuflame(&folder, ["flamegraph", "killed.gfr", "--format", "folded"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, handmade::FOLDED));
    let expected = "gpuflame: killed.gfr: its process was killed, or is still running: launches of the last second, \
                    and activities that CUPTI had not handed over, are missing\n";
    assert_eq!(ran.stderr, expected);
}

#[test]
fn a_failed_write_creates_no_file_and_keeps_the_existing_one() {
    let folder = scratch("cli");
    handmade::recording(&folder);
    fs::create_dir(folder.join("out")).unwrap();
    gpuflame(&folder, ["flamegraph", "hand.gfr", "-o", "no/out.svg"])
        .fails(1, &["no/out.svg", "create it first"]);
    gpuflame(&folder, ["flamegraph", "hand.gfr", "-o", "out"]).fails(1, &["out was not written"]);
    fs::write(folder.join("old.svg"), "old").unwrap();
    gpuflame(&folder, ["flamegraph", "none.gfr", "-o", "old.svg"]).fails(1, &["none.gfr"]);
    assert_eq!(fs::read_to_string(folder.join("old.svg")).unwrap(), "old");
    assert_eq!(names(&folder), ["hand.gfr", "old.svg", "out"]);
}

#[test]
fn the_settings_of_the_library_are_listed_by_the_command() {
    let folder = scratch("cli");
    let listed = gpuflame(&folder, ["settings", "--all"]).ok();
    for setting in gpuflame_config::settings::SETTINGS {
        let line = format!("{} ({}; default: ", setting.name, setting.values);
        assert!(listed.stdout.contains(&line), "{}", listed.stdout);
    }
    let json: Value =
        serde_json::from_str(&gpuflame(&folder, ["settings", "unit", "--format", "json"]).ok().stdout)
            .unwrap();
    assert_eq!(json["settings"][0]["default"], "ns");
}

#[test]
fn an_invalid_command_line_exits_with_code_2() {
    let folder = scratch("cli");
    for args in [
        &["paint", "x"][..],
        &["top"],
        &["flamegraph", "x", "--unit", "h"],
        &["info", "x", "--format", "svg"],
    ] {
        let ran = gpuflame(&folder, args);
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.stderr.contains("error: "), "{}", ran.stderr);
    }
    assert_eq!(gpuflame(&folder, ["--help"]).code, 0);
    assert_eq!(
        gpuflame(&folder, ["--version"]).stdout,
        concat!("gpuflame ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn every_verb_has_help_with_an_example() {
    let folder = scratch("cli");
    let help = gpuflame(&folder, ["--help"]).ok().stdout;
    let groups = help.lines().skip_while(|line| *line != "Record:").take_while(|line| *line != "Options:");
    let verbs: Vec<_> = groups.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    assert!(verbs.len() >= 17, "{help}");
    for verb in verbs {
        let text = gpuflame(&folder, [verb, "--help"]).ok().stdout;
        assert!(text.lines().count() > 5 && text.contains(&format!("gpuflame {verb}")), "{text}");
        let example = text.lines().skip_while(|line| !line.starts_with("Example")).nth(1);
        assert!(
            example.is_some_and(|line| format!("{line} ").starts_with(&format!("  gpuflame {verb} "))),
            "{text}"
        );
    }
}

#[test]
fn the_shared_library_links_no_crate_of_the_command_line() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "-e", "normal", "--prefix", "none", "-p", "gpuflame-capi"])
        .current_dir(root())
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    assert!(tree.contains("blazesym v"), "this is not the tree of the shared library:\n{tree}");
    for foreign in
        ["clap", "indicatif", "serde_json", "prost", "parquet", "arrow-ipc", "comfy-table", "schemars"]
    {
        let has = tree.lines().any(|line| line.starts_with(&format!("{foreign} v")));
        assert!(!has, "{foreign} is in the shared library:\n{tree}");
    }
}
