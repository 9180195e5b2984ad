//! Tests the timeline of a report page: its slices, the idle time for each cause, and the critical path. The expected
//! values are worked out by hand, or are taken from the output of the verbs that print the same figures.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use crate::report::{between, data, decoded, report, two_functions};
use crate::support::command::gpuflame;
use crate::support::traces::Trace;
use crate::support::{rank_traces, scratch};

/// A slice on the timeline: start, duration, index of the slice's name, number of events, and busy time.
type Slice = [i64; 5];

/// Reads the slices on the timeline of a page. Each timeline row has five columns, and each number in them is stored
/// with seven bits per byte.
fn slices(page: &str, data: &Value) -> BTreeMap<String, Vec<Slice>> {
    let mut bytes = Vec::new();
    let encoded = decoded(between(page, "id=\"slices\">", "</script>"));
    flate2::read::ZlibDecoder::new(&encoded[..]).read_to_end(&mut bytes).unwrap();
    let mut left = bytes.into_iter();
    let mut number = || {
        let (mut value, mut shift) = (0_i64, 0);
        loop {
            let byte = left.next().unwrap();
            value |= i64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    let mut rows = BTreeMap::new();
    for row in data["timeline"]["rows"].as_array().unwrap() {
        let mut slices = vec![[0; 5]; row["slices"].as_u64().unwrap() as usize];
        for column in 0..5 {
            slices.iter_mut().for_each(|slice| slice[column] = number());
        }
        let mut start = 0;
        for slice in &mut slices {
            start += slice[0];
            let idle = if slice[4] % 2 == 0 { slice[4] / 2 } else { -(slice[4] + 1) / 2 };
            *slice = [start, slice[1], slice[2], slice[3] + 1, slice[1] - idle];
        }
        rows.insert(row["label"].as_str().unwrap().to_owned(), slices);
    }
    assert_eq!(left.next(), None);
    rows
}

/// For each kind of slice, returns the total duration of a row's slices.
fn sums(slices: &[Slice], kinds: &Value) -> BTreeMap<String, i64> {
    let mut sums = BTreeMap::new();
    for slice in slices {
        let kind = kinds[slice[2] as usize]["kind"].as_str().unwrap().to_owned();
        *sums.entry(kind).or_default() += slice[4];
    }
    sums
}

fn two_functions_page(name: &str) -> (std::path::PathBuf, String) {
    let folder = scratch(name);
    two_functions(&folder.join("trace.json"), 0);
    let page = report(&folder, &["trace.json"]);
    (folder, page)
}

#[test]
fn the_timeline_has_all_slices_of_streams_and_calls_of_threads() {
    let (_, page) = two_functions_page("report-timeline");
    let data = data(&page);
    let rows = slices(&page, &data);
    let labels: Vec<&String> = rows.keys().collect();
    assert_eq!(labels[..3], ["GPU 0, idle", "GPU 0, stream 7", "critical path"], "{labels:?}");
    // The first CUDA call begins 20 us after the first step begins, and its kernel begins 20 us after the call begins.
    let stream = &rows["GPU 0, stream 7"];
    assert_eq!(
        (stream[0][..2].to_vec(), stream[1][..2].to_vec()),
        (vec![20_000, 100_000], vec![510_000, 30_000])
    );
    assert_eq!(stream.iter().map(|slice| slice[4]).sum::<i64>(), 20 * 130_000);
    let names = &data["timeline"]["names"];
    assert_eq!(names[stream[0][2] as usize], "void gemm<float, 4>(float*)");
    let calls = rows.iter().find(|(label, _)| label.contains("thread")).unwrap().1;
    assert_eq!(calls[..3].iter().map(|slice| slice[0]).collect::<Vec<_>>(), [0, 490_000, 1_000_000]);
    assert_eq!(calls.iter().map(|slice| slice[3]).sum::<i64>(), 40);
}

#[test]
fn idle_time_in_the_timeline_has_the_causes_and_sums_of_top_by_idle() {
    let (folder, page) = two_functions_page("report-idle");
    let data = data(&page);
    let idle = sums(&slices(&page, &data)["GPU 0, idle"], &data["timeline"]["causes"]);
    // The first gap on the GPU is inside a step: the first kernel ends at 140 us, and the second kernel begins at 530
    // us. The second kernel's call runs from 510 to 512 us, and its launch latency ends 10 us later. The second gap is
    // between two steps: a kernel ends at 560 us, and the next kernel begins at 1,040 us. The next kernel's call begins
    // at 1,020 us, and its launch latency ends at 1,032 us.
    let expected = [
        ("dependency", (20 * 8 + 19 * 8) * 1_000),
        ("host_late", (20 * 370 + 19 * 460) * 1_000),
        ("launch_latency", (20 * 12 + 19 * 12) * 1_000),
    ];
    assert_eq!(idle, expected.map(|(word, nanos)| (word.to_owned(), nanos)).into());
    let top =
        gpuflame(&folder, ["top", "trace.json", "--by", "idle", "--number", "0", "--format", "json"]).ok();
    let top: Value = serde_json::from_str(&top.stdout).unwrap();
    let all =
        top["idle"].as_array().unwrap().iter().map(|row| row["total_ns"].as_i64().unwrap()).sum::<i64>();
    assert_eq!(idle.values().sum::<i64>(), all);
}

#[test]
fn the_critical_path_of_a_job_is_that_of_the_verb() {
    let folder = scratch("report-job-path");
    rank_traces::two_ranks(&folder);
    let data = data(&report(&folder, &["rank0.json", "rank1.json"]));
    let panel = data["panels"].as_array().unwrap().iter().find(|panel| panel["id"] == "critical").unwrap();
    // The job has three steps of 65 us each. The first call is 1 us before the first kernel, and the last kernel ends 1
    // us after its step.
    assert_eq!(panel["critical"]["ns"], 196_000);
    let note = panel["note"].as_str().unwrap();
    assert!(note.starts_with("The clocks of 2 ranks are aligned by 6 collectives"), "{note}");
    let args = ["critical-path", "rank0.json", "rank1.json", "--number", "5", "--format", "json"];
    let verb: Value = serde_json::from_str(&gpuflame(&folder, args).ok().stdout).unwrap();
    let parts = panel["critical"]["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 5);
    for (part, row) in parts.iter().zip(verb["path_names"].as_array().unwrap()) {
        let fields = [
            ("ns", "time_ns"),
            ("count", "parts"),
            ("rank", "rank"),
            ("kind", "class"),
            ("function", "function"),
            ("full", "name"),
        ];
        for (ours, theirs) in fields {
            assert_eq!(part[ours], row[theirs], "{part}");
        }
        assert_eq!((&part["longest"], &part["marks"]), (&Value::Null, &serde_json::json!([])), "{part}");
    }
}

#[test]
fn the_critical_path_of_the_page_is_that_of_the_verb() {
    let (folder, page) = two_functions_page("report-path");
    let data = data(&page);
    let panel = data["panels"].as_array().unwrap().iter().find(|panel| panel["id"] == "critical").unwrap();
    // The critical path is from the first call at 20 us to the end of the last kernel at 19,560 us.
    assert_eq!(panel["critical"]["ns"], 19_540_000);
    let path = sums(&slices(&page, &data)["critical path"], &data["timeline"]["classes"]);
    assert_eq!(path.values().sum::<i64>(), 19_540_000);
    let verb = gpuflame(&folder, ["critical-path", "trace.json", "--number", "5", "--format", "json"]).ok();
    let verb: Value = serde_json::from_str(&verb.stdout).unwrap();
    let parts = panel["critical"]["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 5);
    for (part, row) in parts.iter().zip(verb["path_names"].as_array().unwrap()) {
        let fields = [
            ("ns", "time_ns"),
            ("count", "parts"),
            ("kind", "class"),
            ("function", "function"),
            ("full", "name"),
        ];
        for (ours, theirs) in fields {
            assert_eq!(part[ours], row[theirs], "{part}");
        }
        let marks: Vec<i64> =
            part["marks"].as_array().unwrap().iter().map(|mark| mark.as_i64().unwrap()).collect();
        assert_eq!(marks.chunks(2).map(|mark| mark[1]).sum::<i64>(), part["ns"].as_i64().unwrap(), "{part}");
    }
    for row in verb["path_classes"].as_array().unwrap() {
        assert_eq!(path[row["class"].as_str().unwrap()], row["time_ns"].as_i64().unwrap(), "{row}");
    }
}

/// Writes a trace of 30,000 kernels and their launch calls. Each kernel takes 1 to 4 us, and every 10 us a kernel
/// begins.
fn many(path: &Path) {
    let mut trace = Trace::default();
    for at in 0..30_000_u32 {
        let start = 10 * u64::from(at);
        trace.launch(
            at + 1,
            &format!("kernel{}", at % 50),
            9,
            start,
            start + 4,
            start + 5 + u64::from(at % 4),
        );
    }
    trace.write(path);
}

#[test]
fn every_slice_of_a_long_run_is_in_the_page() {
    let folder = scratch("report-many");
    many(&folder.join("many.json"));
    let page = report(&folder, &["many.json"]);
    let data = data(&page);
    assert_eq!(data["timeline"]["resolution"], 0);
    let rows = slices(&page, &data);
    assert_eq!(rows["GPU 0, stream 7"].len(), 30_000);
    // The kernels take 1, 2, 3 and 4 us in turn, so four kernels take 10 us.
    assert_eq!(rows["GPU 0, stream 7"].iter().map(|slice| slice[4]).sum::<i64>(), 30_000 / 4 * 10_000);
}
