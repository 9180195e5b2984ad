//! Tests unified memory. Every byte of unified memory that moves is in the table, in the activities, in the ledger and
//! in the recording. The time of these moves does not count as GPU time.

use std::fs::File;
use std::io::BufReader;

use crate::support::{Done, Run, Way, command, compile};
use gpuflame_model::record::{Reader, Row, Unified};
use serde_json::Value;

fn run(variables: &[(&str, &str)]) -> Done {
    let program = compile("tests/programs/unified.c", &["-O2"]);
    let run = Run::new(&program, Way::Injected).env("GPUFLAME_FORMATS", "folded,csv,activities,gfr");
    let run = run.env("GPUFLAME_UNIFIED", "1").env("GPUSIM_NDEV", "2");
    let run = run.env("GPUSIM_TRUTH", "deps:deps.json,summary:truth.json");
    variables.iter().fold(run, |run, (name, value)| run.env(name, value)).ok()
}

fn recorded(done: &Done) -> Vec<Unified> {
    let file = File::open(done.folder.join("out.gfr")).unwrap();
    let mut reader = Reader::new(BufReader::new(file)).unwrap();
    let mut found = Vec::new();
    while let Some(row) = reader.next_row().unwrap() {
        if let Row::Unified(unified) = row {
            found.push(unified);
        }
    }
    found.sort_by_key(|unified| (unified.start, unified.address));
    found
}

/// Returns the moves of unified memory that the truth file lists.
fn truth(done: &Done) -> Vec<Value> {
    let lines = done.file("deps.json");
    let all = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|line| line["what"] == "unified").collect()
}

/// Returns the cells of these columns in all rows of the kind `unified`.
fn rows<const N: usize>(table: &str, columns: [&str; N]) -> Vec<[String; N]> {
    let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let at = columns.map(|column| head.iter().position(|name| *name == column).unwrap());
    let rows = lines.filter(|line| line[0] == "unified");
    rows.map(|line| {
        assert_eq!(line.len(), head.len(), "{line:?}");
        at.map(|at| line[at].to_owned())
    })
    .collect()
}

const MIB: u64 = 1 << 20;

#[test]
fn unified_memory_bytes_are_counted_by_direction_and_gpu() {
    let done = run(&[]);
    // The expected moves are counted by hand: 2, 2 and 1 MiB from the host to GPU 0; 2 MiB from GPU 0 to GPU 1; 1, 2
    // and 2 MiB back to the host; 64 KiB to GPU 1.
    let expected = [
        ["[GPU_Unified HtoD]", "0", "3", &(5 * MIB).to_string()],
        ["[GPU_Unified HtoD]", "1", "1", "65536"],
        ["[GPU_Unified DtoH]", "0", "2", &(3 * MIB).to_string()],
        ["[GPU_Unified DtoH]", "1", "1", &(2 * MIB).to_string()],
        ["[GPU_Unified DtoD]", "1", "1", &(2 * MIB).to_string()],
    ];
    assert_eq!(
        rows(&done.file("out.csv"), ["name", "device", "count", "bytes"]),
        expected,
        "{}",
        done.stderr
    );
    let truth = truth(&done);
    let nanos = |direction: &str, gpu: u64| -> u64 {
        let side = if direction == "DtoH" { "source" } else { "target" };
        let of = truth.iter().filter(|line| line["direction"] == direction && line[side] == gpu);
        of.map(|line| line["end"].as_u64().unwrap() - line["start"].as_u64().unwrap()).sum()
    };
    let time = nanos("HtoD", 0);
    let told = done.ledger("GPU 0 unified memory HtoD: ");
    assert_eq!(told, [format!("{} bytes in 3 moves, {time} ns", 5 * MIB)], "{}", done.stderr);
    assert!(
        rows(&done.file("out.csv"), ["device", "total_ns"]).contains(&["0".to_owned(), time.to_string()])
    );
    let info = command::gpuflame(&done.folder, ["info", "out.gfr", "--format", "csv"]).ok().stdout;
    assert!(info.contains(&format!("unified memory GPU 1 DtoH bytes,{}\n", 2 * MIB)), "{info}");
}

#[test]
fn each_unified_memory_migration_is_a_row_with_every_cupti_version() {
    for version in ["11.8", "13.0", "13.4"] {
        let done = run(&[("GPUSIM_CUPTI_VERSION", version), ("GPUSIM_SHUFFLE", "3")]);
        let (truth, found) = (truth(&done), recorded(&done));
        assert_eq!((truth.len(), found.len()), (8, 8), "{version} {}", done.stderr);
        for (line, move_) in truth.iter().zip(&found) {
            assert_eq!(move_.kind.label(), line["direction"], "{line}");
            let fields = [move_.value, move_.start.0, move_.end.0, move_.address];
            let ends = [u64::from(move_.source.0), u64::from(move_.target.0)];
            let expected = ["bytes", "start", "end", "address"].map(|field| line[field].as_u64().unwrap());
            assert_eq!(fields, expected, "{line}");
            assert_eq!(ends, ["source", "target"].map(|field| line[field].as_u64().unwrap()), "{line}");
        }
        let columns = ["name", "start_ns", "end_ns", "bytes", "from_device", "to_device", "stack"];
        let mut table = rows(&done.file("out.activities.csv"), columns);
        table.sort_by_key(|row| row[1].parse::<u64>().unwrap());
        let expected: Vec<_> = truth
            .iter()
            .map(|line| {
                let text = |field: &str| line[field].to_string().trim_matches('"').to_owned();
                let gpu = |field: &str| if line[field] == u32::MAX { String::new() } else { text(field) };
                let (name, times) = (text("direction"), [text("start"), text("end")]);
                let [start, end] = times;
                [name, start, end, text("bytes"), gpu("source"), gpu("target"), String::new()]
            })
            .collect();
        assert_eq!(table, expected);
        let again =
            command::gpuflame(&done.folder, ["convert", "out.gfr", "--to", "csv", "-o", "-"]).ok().stdout;
        assert_eq!(rows(&again, columns), expected, "the rows are in order of time");
    }
}

#[test]
fn unified_memory_migrations_do_not_count_as_gpu_time() {
    let done = run(&[]);
    assert_eq!(done.sum("activities").0, 1);
    let weights: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(weights, 5000, "only the kernel has GPU time");
}

#[test]
fn without_the_setting_no_unified_memory_is_recorded() {
    let done = run(&[("GPUFLAME_UNIFIED", "0")]);
    assert_eq!(recorded(&done), []);
    assert!(!done.file("out.csv").contains("unified") && !done.stderr.contains("unified memory"));
}

#[test]
fn unsupported_unified_memory_counting_is_reported_in_one_line() {
    let done = run(&[("GPUSIM_FAULTS", "enable:25=27")]);
    let expected = ["CUPTI does not record unified memory: NOT_SUPPORTED (27)"];
    assert_eq!(done.ledger("CUPTI does not record").len(), 1);
    assert!(done.stderr.contains(expected[0]), "{}", done.stderr);
    assert_eq!(recorded(&done), []);
}
