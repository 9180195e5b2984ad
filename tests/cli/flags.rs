//! Tests the options of all verbs: every verb uses the same names for them, times have units, and both a mistake and an
//! empty result get a helpful message.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::support::command::{Ran, gpuflame};
use crate::support::{self, handmade, scratch};

fn folder() -> std::path::PathBuf {
    let folder = scratch("flags");
    handmade::recording(&folder);
    folder
}

/// Asserts that the parser rejected the command line and printed `tip` instead of its usual tip to pass an option as a
/// value.
fn refused(ran: &Ran, tip: &str) {
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains(tip), "no {tip:?} in:\n{}", ran.stderr);
    assert!(!ran.stderr.contains("as a value, use"), "{}", ran.stderr);
}

#[test]
fn times_have_units_in_every_verb_that_takes_one() {
    let folder = folder();
    let view = |from: &str, to: &str| {
        gpuflame(&folder, ["view", "hand.gfr", "--from", from, "--to", to, "--format", "csv"]).ok().stdout
    };
    // The first activity of the recording begins at 0. The activities on GPU 1 begin at 50 and 55 us, so the window
    // from 50 to 60 us contains them.
    let expected = view("50", "60");
    assert_eq!(expected.lines().count(), 3, "{expected}");
    for (from, to) in [("50us", "60us"), ("0.05ms", "0.06ms"), ("0.00005s", "60000ns")] {
        assert_eq!(view(from, to), expected, "{from} {to}");
    }
    // The verb `extract` counts time from the first operation, as `view` does.
    let extract =
        |args: &[&str]| gpuflame(&folder, [&["extract", "hand.gfr", "-o", "-"], args].concat()).ok().stdout;
    let cut = extract(&["--from", "50us", "--to", "0.06ms"]);
    let names: Vec<_> = cut.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(names.len(), 2, "{cut}");
    assert!(names[0].contains("add"), "{cut}");
    let all = gpuflame(&folder, ["extract", "hand.gfr", "-", ","]).ok().stdout;
    assert_eq!(extract(&[]), all);
    for (args, words) in [
        (&["view", "hand.gfr", "--from", "5 parsecs"][..], "10ms, 1.5s or 200us"),
        (&["stats", "hand.gfr", "-", "--max", "soon"], "10ms, 1.5s or 200us"),
        (&["merge", "--tolerance=-1ms"], "10ms, 1.5s or 200us"),
    ] {
        let ran = gpuflame(&folder, args);
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    gpuflame(&folder, ["decode-steps", "vllm", "hand.gfr", "--min", "2s", "--max", "1s"])
        .fails(2, &["--min is above --max"]);
    gpuflame(&folder, ["decode-steps", "vllm", "hand.gfr", "--min-ms", "2", "--max-ms", "1"])
        .fails(2, &["--min is above --max"]);
    gpuflame(&folder, ["extract", "hand.gfr", "-o", "-", "--from", "2s", "--to", "1s"])
        .fails(2, &["--from is after --to"]);
}

#[test]
fn an_empty_selection_names_what_exists() {
    let folder = folder();
    let view = |args: &[&str]| gpuflame(&folder, [&["view", "hand.gfr"], args].concat());
    view(&["--device", "7"]).fails(1, &["on GPU 7", "those with activities: 0, 1"]);
    view(&["--name", "GEMM"]).fails(1, &["--name GEMM", "did you mean `gemm<float>`?"]);
    view(&["--name", "gem_m"]).fails(1, &["did you mean `gemm<float>`?"]);
    view(&["--name", "xylophone"]).fails(1, &["--name xylophone", "names include `HtoD`, `add`, `early`"]);
    view(&["--kind", "graph"]).fails(1, &["--kind", "there are: kernel, copy, set"]);
    view(&["--from", "9s"]).fails(1, &["none of its 8 activities begins in that time", "from 0 to "]);
    view(&["--kind", "copy", "--name", "gemm"]).fails(1, &["drop a condition"]);
    let ran = gpuflame(&folder, ["extract", "hand.gfr", "-", "1,2"]).ok();
    assert!(
        ran.stderr.contains("0 of 7 GPU operations") && ran.stderr.contains("they run from "),
        "{}",
        ran.stderr
    );
    let ran = gpuflame(&folder, ["top", "hand.gfr", "--by", "comm"]).ok();
    assert!(ran.stderr.contains("no kernel counts as communication"), "{}", ran.stderr);
    gpuflame(&folder, ["top", "hand.gfr", "--by", "comm", "--comm", "gemn"])
        .fails(1, &["--comm gemn", "`gemm<float>`"]);
}

#[test]
fn unknown_endings_are_refused_with_the_known_ones_and_known_ones_choose_the_format() {
    let folder = folder();
    for (args, words) in [
        (
            &["convert", "hand.gfr", "-o", "x.docx"][..],
            &["x.docx", ".json (chrome)", ".pb.gz (pprof)", "--format"][..],
        ),
        (&["convert", "hand.gfr"], &["--format chrome", "perfetto", "parquet"]),
        (&["flamegraph", "hand.gfr", "-o", "x.png"], &[".png", ".svg or .folded"]),
        (
            &["flamegraph", "hand.gfr", "-o", "x.pftrace"],
            &[".pftrace", "`gpuflame convert` writes that format"],
        ),
        (&["merge-ranks", "hand.gfr", "-o", "x.csv"], &[".csv", ".svg", "--table"]),
        (&["merge-ranks", "hand.gfr", "--table", "x.xlsx"], &[".xlsx", ".txt, .csv, .json or .md"]),
        (&["top", "hand.gfr", "-o", "x.xlsx"], &[".xlsx", ".txt, .csv, .json or .md", "--format"]),
        (&["settings", "-o", "x.html"], &[".html", ".txt, .csv, .json or .md"]),
    ] {
        gpuflame(&folder, args).fails(2, words);
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing was written");
    for verb in ["top", "info", "check", "view"] {
        gpuflame(&folder, [verb, "hand.gfr", "-o", "x.json"]).ok();
        let text = fs::read_to_string(folder.join("x.json")).unwrap();
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{verb}: {text}");
    }
    gpuflame(&folder, ["top", "hand.gfr", "-o", "x.json", "--format", "csv"]).ok();
    assert!(fs::read_to_string(folder.join("x.json")).unwrap().starts_with("total_ns,"));
    gpuflame(&folder, ["top", "hand.gfr", "-o", "x.table", "--format", "text"]).ok();
}

#[test]
fn convert_has_the_same_options_as_the_other_verbs() {
    let folder = folder();
    let convert = |args: &[&str]| gpuflame(&folder, [&["convert", "hand.gfr"], args].concat());
    let old = convert(&["--to", "folded"]).ok().stdout;
    for args in [&["-t", "folded"][..], &["-f", "folded"], &["--format", "folded", "--unit", "ns"]] {
        assert_eq!(convert(args).ok().stdout, old, "{args:?}");
    }
    let drawn = gpuflame(&folder, ["flamegraph", "hand.gfr", "--unit", "count"]).ok().stdout;
    assert_eq!(convert(&["-f", "folded", "--unit", "count"]).ok().stdout, drawn);
    convert(&["-f", "pprof", "--unit", "us", "-o", "x.pb.gz"])
        .fails(2, &["--unit", "folded, svg, speedscope"]);
}

#[test]
fn accept_cut_belongs_to_verbs_that_read_and_is_offered_for_every_truncated_file() {
    let folder = folder();
    let pack = |name: &str, bytes: &[u8]| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::none());
        packed.write_all(bytes).unwrap();
        let packed = packed.finish().unwrap();
        fs::write(folder.join(name), &packed[..packed.len() * 3 / 4]).unwrap();
    };
    pack("cut.gfr.gz", &handmade::bytes());
    pack("cut.folded.gz", "main;decode 7\n".repeat(40).as_bytes());
    for (verb, name) in
        [("info", "cut.gfr.gz"), ("flamegraph", "cut.gfr.gz"), ("flamegraph", "cut.folded.gz")]
    {
        gpuflame(&folder, [verb, name]).fails(1, &[name, "truncated at byte", "`--accept-cut` reads"]);
        assert!(!gpuflame(&folder, [verb, name, "--accept-cut"]).ok().stdout.is_empty());
        // The option `--accept-cut` may also come before the verb, as in some users' scripts.
        gpuflame(&folder, ["--accept-cut", verb, name]).ok();
    }
    for verb in ["run", "doctor", "settings"] {
        let help = gpuflame(&folder, [verb, "--help"]).ok().stdout;
        assert!(!help.contains("--accept-cut"), "{verb}");
        assert_eq!(gpuflame(&folder, [verb, "--accept-cut"]).code, 2, "{verb}");
    }
    gpuflame(&folder, ["--accept-cut", "settings"]).fails(2, &["--accept-cut", "`settings`"]);
    assert!(gpuflame(&folder, ["info", "--help"]).ok().stdout.contains("--accept-cut"));
    assert!(!gpuflame(&folder, ["--help"]).ok().stdout.contains("--accept-cut"));
}

#[test]
fn typical_mistakes_get_advice_that_helps() {
    let folder = folder();
    let program = folder.join("app");
    fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(folder.join("job")).unwrap();
    for (args, tip) in [
        (&["run", "--ouput", "x", "./app"][..], "'--output'"),
        (&["run", "--tokens", "8", "./app"], "options of the command follow the command"),
        (&["top", "hand.gfr", "--by", "kernls"], "'kernels'"),
        (&["hand.gfr"], "name a verb before the file: `gpuflame top hand.gfr`"),
        (&["nowhere.json"], "name a verb before the file: `gpuflame top nowhere.json`"),
        (&["./app"], "`gpuflame run ./app`"),
        (&["job"], "`gpuflame merge-ranks job`"),
        (&["flamegraph", "hand.gfr", "b.gfr"], "`gpuflame flamegraph --diff hand.gfr b.gfr -o diff.svg`"),
        (&["flamegraph", "hand.gfr", "-o", "x.svg", "b.gfr"], "`gpuflame merge-ranks hand.gfr b.gfr`"),
        (&["top", "hand.gfr", "b.gfr"], "`gpuflame diff hand.gfr b.gfr`"),
        (&["diff", "hand.gfr", "b.gfr", "c.gfr"], "`diff` compares two runs"),
        (&["top", "hand.gfr", "--idle"], "these verbs have it: flamegraph"),
        (&["top"], "the newest recording here: `gpuflame top hand.gfr`"),
        (&["run"], "`gpuflame run ./app`"),
        (&["flamegraf", "hand.gfr"], "'flamegraph'"),
    ] {
        refused(&gpuflame(&folder, args), tip);
    }
    assert_eq!(
        gpuflame(&folder, ["top", "hand.gfr", "--by", "kernel"]).ok().stdout,
        gpuflame(&folder, ["top", "hand.gfr", "--by", "kernels"]).ok().stdout
    );
    gpuflame(&folder, ["top", "hnd.gfr"]).fails(1, &["no such file", "did you mean `hand.gfr`?"]);
    let ran = gpuflame(&folder, ["top", "hand.gfr", "--self"]).ok();
    assert!(ran.stderr.contains("--self has no effect without --by function"), "{}", ran.stderr);
}

/// Executes `gpuflame run` with a command that cannot be started.
fn run(folder: &Path, args: &[&str]) -> Ran {
    let library = support::gpuflame();
    let library = library.to_str().unwrap();
    gpuflame(folder, [&["run", "-o", "x", "--library", library], args].concat())
}

#[test]
fn a_script_that_cannot_be_started_gets_the_command_line_that_works() {
    let folder = scratch("flags");
    fs::write(folder.join("train.py"), "print()\n").unwrap();
    fs::write(folder.join("my job.sh"), "true\n").unwrap();
    fs::write(folder.join("tool"), "#!/usr/bin/env perl\n").unwrap();
    fs::write(folder.join("data"), "x\n").unwrap();
    fs::write(folder.join("old.gfr"), "x\n").unwrap();
    fs::copy("/bin/true", folder.join("app")).unwrap();
    let python = |ran: &Ran| {
        let words = ["python train.py --lr 3`?", "python3 train.py --lr 3`?"];
        assert!(words.iter().any(|words| ran.stderr.contains(words)), "{}", ran.stderr);
    };
    python(&run(&folder, &["train.py", "--lr", "3"]));
    for command in [["train.py", "--lr", "3"], ["./train.py", "--lr", "3"]] {
        let ran = run(&folder, &command);
        assert!([126, 127].contains(&ran.code), "{}", ran.stderr);
        assert!(ran.stderr.contains("did you mean `gpuflame run -o x --library "), "{}", ran.stderr);
    }
    for (command, words) in [
        (&["my job.sh", "a b"][..], " sh 'my job.sh' 'a b'`?"),
        (&["tool"], "perl tool`?"),
        (&["./data"], "`chmod +x ./data` first"),
        (&["app"], ".so ./app`?"),
        (&["old.gfr"], "it is a recording, which `gpuflame top old.gfr` reads"),
    ] {
        let ran = run(&folder, command);
        assert!(ran.stderr.contains(words), "no {words:?} in: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    let missing = run(&folder, &["nosuch"]);
    assert_eq!(missing.code, 127);
    assert!(!missing.stderr.contains("did you mean"), "{}", missing.stderr);
}

#[test]
fn the_help_groups_the_verbs() {
    let help = gpuflame(&scratch("flags"), ["--help"]).ok().stdout;
    let titles: Vec<_> = help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
    let expected = [
        "Record:",
        "Look:",
        "Predict:",
        "Compare:",
        "Convert:",
        "Set up a shell:",
        "Work like other projects' scripts:",
        "Options:",
    ];
    assert_eq!(titles, expected, "{help}");
    for line in [
        "\n  run           Record a command",
        "\n  merge-ranks   Merge the ranks",
        "\n  gpuperf       Run a command",
    ] {
        assert!(help.contains(line), "no {line:?} in {help}");
    }
}

#[test]
fn settings_shows_ten_one_or_all() {
    let folder = scratch("flags");
    let names = |args: &[&str]| -> Vec<String> {
        let text = gpuflame(&folder, [&["settings"], args].concat()).ok().stdout;
        let lines = text.lines().filter(|line| line.contains("; default: "));
        lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let first = names(&[]);
    assert_eq!((first.len(), first[0].as_str()), (10, "GPUFLAME_OUTPUT"));
    assert_eq!(names(&["max-mem", "GPUFLAME_DELAY"]), ["GPUFLAME_MAX_MEM", "GPUFLAME_DELAY"]);
    let all = gpuflame(&folder, ["settings", "--all"]).ok().stdout;
    let internal = all.split("\nInternal: ").nth(1).expect("a heading");
    for name in ["GPUFLAME_VERIFY", "GPUFLAME_LAUNCH_MARKER", "GPUFLAME_REPORT"] {
        assert!(internal.contains(name) && !first.contains(&name.to_owned()), "{name}");
        assert_eq!(names(&[name]), [name]);
    }
    gpuflame(&folder, ["settings", "max_men"]).fails(2, &["no such setting", "`GPUFLAME_MAX_MEM`"]);
}
