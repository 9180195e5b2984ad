//! Tests every form of copy and fill in the flame graph and in the table of activities.

use std::collections::BTreeMap;

use crate::support::{Done, Run, Way, compile};

fn copies(version: &str) -> Done {
    let program = compile("tests/programs/copies.c", &["-O2"]);
    let run = Run::new(&program, Way::Injected).env("GPUSIM_NDEV", "2");
    let run = run.env("GPUSIM_CUPTI_VERSION", version).env("GPUSIM_CORR", "distinct");
    run.env("GPUFLAME_FORMATS", "folded,csv,activities").ok()
}

/// The copies and fills that the program makes. Each entry has the program's function, the leaf frame in the flame
/// graph, the number of bytes, and six fields of the table of activities. The six fields are source and target memory,
/// source and target device, whether the copy is asynchronous, and the number of copies.
const DONE: [(&str, &str, u64, &str); 24] = [
    ("up_pageable", "[GPU_Memcpy HtoD]", 1000, "pageable device   0 1"),
    ("up_pageable_async", "[GPU_Memcpy HtoD]", 1001, "pageable device   1 1"),
    ("up_pinned_async", "[GPU_Memcpy HtoD]", 1002, "pinned device   1 1"),
    ("down_pinned", "[GPU_Memcpy DtoH]", 2000, "device pinned   0 1"),
    ("down_pageable", "[GPU_Memcpy DtoH]", 2001, "device pageable   0 1"),
    ("within", "[GPU_Memcpy DtoD]", 3000, "device device   1 1"),
    ("on_host", "[GPU_Memcpy HtoH]", 3500, "pageable pageable   1 1"),
    ("by_address", "[GPU_Memcpy HtoD]", 4000, "pinned device   1 1"),
    ("from_managed", "[GPU_Memcpy HtoD]", 4500, "managed device   1 1"),
    ("across", "[GPU_Memcpy PtoP]", 5000, "device device 0 1 0 1"),
    ("across_async", "[GPU_Memcpy PtoP]", 5001, "device device 0 1 1 1"),
    ("across_by_address", "[GPU_Memcpy PtoP]", 5002, "device device 0 1 1 1"),
    ("plane", "[GPU_Memcpy HtoD]", 2000, "pinned device   0 1"),
    ("plane_async", "[GPU_Memcpy DtoH]", 2100, "device pinned   1 1"),
    ("volume", "[GPU_Memcpy HtoD]", 800, "pageable device   0 1"),
    ("volume_async", "[GPU_Memcpy HtoD]", 1200, "pageable device   1 1"),
    ("batch", "[GPU_Memcpy HtoD]", 700, "pinned device   1 3"),
    ("to_array", "[GPU_Memcpy HtoA]", 640, "pinned array   0 1"),
    ("from_array", "[GPU_Memcpy AtoH]", 704, "array pageable   0 1"),
    ("volume_to_array", "[GPU_Memcpy HtoA]", 1600, "pageable array   1 1"),
    ("fill", "[GPU_Memset]", 6000, " device   0 "),
    ("fill_async", "[GPU_Memset]", 6001, " device   1 "),
    ("fill_plane", "[GPU_Memset]", 3000, " device   0 "),
    ("fill_volume", "[GPU_Memset]", 2000, " device   1 "),
];

#[test]
fn each_form_of_copy_and_fill_has_its_own_leaf_and_time() {
    for version in ["11.8", "12.0", "12.9", "13.0", "13.4"] {
        let done = copies(version);
        // The expected durations are computed from the rates of the simulated GPU for copies and fills, which the
        // README of the simulated CUDA stack lists.
        let expected: BTreeMap<_, _> = DONE
            .iter()
            .map(|&(function, leaf, bytes, _)| {
                let nanos = if leaf.contains("set") { 1_000 + bytes / 1_000 } else { 2_000 + bytes / 25 };
                // If a CUPTI version is older than an API function, CUPTI makes no callback for that function.
                // Therefore the stack that launched the function's copies is unknown.
                let is_seen = function != "batch" || version.starts_with("13");
                let site = if is_seen { format!("main;{function}") } else { String::new() };
                ((site, leaf.to_owned()), nanos)
            })
            // A copy of 0 bytes is a launch call without an activity.
            .chain([(("main;nothing".to_owned(), "[GPU_Launch_Pending]".to_owned()), 0)])
            .collect();
        assert_eq!(done.by_site(), expected, "CUPTI {version}\n{}", done.stderr);
    }
}

#[test]
fn the_table_distinguishes_pageable_from_pinned_and_single_from_batched_copies() {
    for version in ["12.0", "13.0"] {
        let done = copies(version);
        let text = done.file("out.activities.csv");
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let mut rows: Vec<BTreeMap<String, String>> = reader.deserialize().map(|row| row.unwrap()).collect();
        // All calls except the synchronous ones use the same stream, so their copies and fills run in order.
        rows.sort_by_key(|row| row["correlation"].parse::<u64>().unwrap());
        let shown = |row: &BTreeMap<String, String>| {
            let words =
                ["from", "to", "from_device", "to_device", "async", "copies"].map(|name| row[name].as_str());
            (row["bytes"].parse().unwrap(), words.join(" "))
        };
        let mut expected = DONE.map(|(_, _, bytes, words)| (bytes, words.to_owned()));
        if version == "12.0" {
            // Activity records of CUPTI 12.0 do not contain the number of copies.
            expected[16].1 = "pinned device   1 1".to_owned();
        }
        assert_eq!(rows.iter().map(shown).collect::<Vec<_>>(), expected, "CUPTI {version}");
        for row in &rows {
            assert_eq!(
                (row["device"].as_str(), row["channel"].as_str()),
                ("0", row["stream"].as_str()),
                "{row:?}"
            );
        }
    }
}

#[test]
fn copied_bytes_add_up_by_direction() {
    let done = copies("13.0");
    let text = done.file("out.csv");
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let rows = reader.deserialize().map(|row| row.unwrap());
    let rows: Vec<BTreeMap<String, String>> = rows.collect();
    for direction in ["HtoD", "DtoH", "DtoD", "HtoH", "PtoP", "HtoA", "AtoH"] {
        let leaf = format!("[GPU_Memcpy {direction}]");
        let bytes: u64 = DONE.iter().filter(|done| done.1 == leaf).map(|done| done.2).sum();
        let row = rows.iter().find(|row| row["name"] == direction).unwrap();
        assert_eq!(row["bytes"], bytes.to_string(), "{direction}");
    }
}
