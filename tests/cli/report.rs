//! Tests the page that `gpuflame report` writes. The page's sums equal those of the folded stacks, the page loads
//! nothing, and it does not run code that is in names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::command::{gpuflame, gpuflame_with};
use crate::support::traces::Trace;
use crate::support::{handmade, scratch};

/// Folded stacks, each with the sum of its weights.
type Stacks = BTreeMap<String, u64>;

/// Decodes base64 as RFC 4648 defines it, with padding.
pub(crate) fn decoded(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} is not a digit of base64"),
    };
    let digits: Vec<u32> = text.trim_end_matches('=').bytes().map(|byte| digit(byte).into()).collect();
    let bytes = digits.chunks(4).flat_map(|group| {
        let word = group.iter().fold(0, |word, digit| word << 6 | digit) << (6 * (4 - group.len()));
        [word >> 16, word >> 8, word].map(|part| part as u8).into_iter().take(group.len() - 1)
    });
    bytes.collect()
}

/// Returns the text between `begin` and the next `end` after it.
pub(crate) fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let from = text.find(begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
    &text[from..from + text[from..].find(end).unwrap()]
}

fn encoded_data(page: &str) -> &str {
    between(page, "id=\"data\">", "</script>")
}

/// Reads the data of a page in the same way as the page's script.
pub(crate) fn data(page: &str) -> Value {
    let mut text = String::new();
    flate2::read::ZlibDecoder::new(&decoded(encoded_data(page))[..]).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn report(folder: &Path, inputs: &[&str]) -> String {
    gpuflame(folder, [&["report", "-o", "page.html"], inputs].concat()).ok();
    fs::read_to_string(folder.join("page.html")).unwrap()
}

fn numbers(list: &Value) -> Vec<i64> {
    list.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
}

/// Returns the stacks of a view in the page's data, and the sum of the values of each timeline track.
fn stacks(data: &Value, id: &str) -> Option<(Stacks, BTreeMap<usize, u64>)> {
    let view = data["views"].as_array().unwrap().iter().find(|view| view["id"] == id)?;
    let [up, names, ahead, tracks, values] =
        ["up", "name", "ahead", "track", "value"].map(|list| numbers(&view[list]));
    let parents: Vec<i64> = (0..).zip(up).map(|(at, distance): (i64, i64)| at - distance).collect();
    let sum_to = |sum: &mut i64, distance: i64| {
        *sum += distance;
        Some(*sum)
    };
    let nodes = ahead.into_iter().scan(0, sum_to);
    assert_eq!((parents[0], names[0]), (-1, -1));
    let mut paths = vec![String::new()];
    for at in 1..parents.len() {
        let (parent, name) =
            (&paths[parents[at] as usize], data["names"][names[at] as usize].as_str().unwrap());
        paths.push(if parent.is_empty() { name.to_owned() } else { format!("{parent};{name}") });
    }
    let (mut stacks, mut by_track) = (Stacks::new(), BTreeMap::new());
    for ((node, track), value) in nodes.zip(tracks).zip(values) {
        *stacks.entry(paths[node as usize].clone()).or_default() += value as u64;
        *by_track.entry(track as usize).or_default() += value as u64;
    }
    Some((stacks, by_track))
}

/// Returns the stacks that `gpuflame flamegraph` writes for one view of the page. If the input has no such view, the
/// returned map is empty.
fn folded(folder: &Path, input: &str, view: &str) -> Stacks {
    let ran = gpuflame(folder, ["flamegraph", "-q", input, "--view", view]);
    let lines = ran.stdout.lines().filter(|line| !line.starts_with("# "));
    let mut stacks = Stacks::new();
    for (stack, weight) in lines.map(|line| line.rsplit_once(' ').unwrap()) {
        *stacks.entry(stack.to_owned()).or_default() += weight.parse::<u64>().unwrap();
    }
    stacks
}

/// Ids of the page's views, each with the value of `flamegraph --view` that prints the same view.
const VIEWS: [(&str, &str); 6] = [
    ("gpu", "gpu"),
    ("idle", "idle"),
    ("waits", "wait"),
    ("cpu", "cpu"),
    ("offcpu", "off-cpu"),
    ("memory", "alloc"),
];

fn assert_sums_are_those_of_folded_stacks(folder: &Path, input: &str) -> Vec<&'static str> {
    let data = data(&report(folder, &[input]));
    let mut shown = Vec::new();
    for (id, word) in VIEWS {
        let expected = folded(folder, input, word);
        match stacks(&data, id) {
            Some((found, _)) => {
                assert_eq!(found, expected, "{input}, {word}");
                shown.push(id);
            }
            None => assert!(expected.is_empty(), "the page of {input} lacks {word}"),
        }
    }
    shown
}

/// Writes a trace of a loop of two functions, whose kernels take 100 us and 30 us. The GPU is idle between the kernels.
pub(crate) fn two_functions(path: &Path, slower_us: u64) {
    let mut trace = Trace::default();
    for at in 0..20_u32 {
        let start = 1000 * u64::from(at);
        trace
            .slice("user_annotation", &format!("ProfilerStep#{at}"), 9, start, start + 990)
            .python("train.py(3): forward", 9, start + 10, start + 400)
            .launch(
                2 * at + 1,
                "void gemm<float, 4>(float*)",
                9,
                start + 20,
                start + 40,
                start + 140 + slower_us,
            )
            .python("train.py(9): <img src=x onerror=alert(1)>", 9, start + 500, start + 900)
            .launch(2 * at + 2, "</script><script>alert(2)", 9, start + 510, start + 530, start + 560);
    }
    trace.write(path);
}

#[test]
fn shares_of_a_run_without_a_steady_part_are_those_of_the_whole_run() {
    let folder = scratch("report-whole-run");
    // In this trace no sequence of stacks is repeated. Therefore the run has no steady part.
    let mut trace = Trace::default();
    for at in 0..20_u32 {
        let (start, kernel) = (1000 * u64::from(at), format!("kernel_{at}"));
        trace.python(&format!("train.py({at}): part_{at}"), 9, start + 10, start + 400).launch(
            at + 1,
            &kernel,
            9,
            start + 20,
            start + 40,
            start + 140,
        );
    }
    trace.write(&folder.join("trace.json"));
    let data = data(&report(&folder, &["trace.json"]));
    assert_eq!(data["part"], "the whole run");
    let summary = gpuflame(&folder, ["summary", "trace.json"]).ok().stdout;
    assert!(summary.contains("start-up and shutdown included"), "{summary}");
    for text in [data.to_string(), summary] {
        assert!(!text.contains("steady part"), "{text}");
    }
}

#[test]
fn sums_of_the_page_are_those_of_the_folded_stacks() {
    let folder = scratch("report");
    handmade::recording(&folder);
    let recording =
        fs::read_dir(&folder).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    two_functions(&folder.join("trace.json"), 0);
    assert!(assert_sums_are_those_of_folded_stacks(&folder, &recording).contains(&"gpu"));
    assert_eq!(assert_sums_are_those_of_folded_stacks(&folder, "trace.json"), ["gpu", "idle"]);
    // Twenty kernels of 100 us, and twenty of 30 us.
    let (found, _) = stacks(&data(&report(&folder, &["trace.json"])), "gpu").unwrap();
    assert_eq!(found.values().sum::<u64>(), 20 * (100_000 + 30_000));
}

#[test]
fn the_first_screen_has_the_sentences_of_the_summary_and_bars_that_add_up() {
    let folder = scratch("report-first-screen");
    two_functions(&folder.join("trace.json"), 0);
    let data = data(&report(&folder, &["trace.json"]));
    let summary = gpuflame(&folder, ["summary", "trace.json", "--format", "json"]).ok();
    let summary: Value = serde_json::from_str(&summary.stdout).unwrap();
    // The headline of the report is the most expensive finding. Below the headline are busy time and idle time, and the
    // total to which their percentages refer.
    let share = summary["findings"][0]["share_percent"].as_f64().unwrap();
    let words = format!(": {share:.1} % of the steady part (");
    assert!(data["firstLine"].as_str().unwrap().contains(&words), "{} {share}", data["firstLine"]);
    assert_eq!(data["culprits"][0], summary["answers"][0]["answer"]);
    let idle = summary["answers"][1]["answer"].as_str().unwrap().replacen(": ", ", of which ", 1);
    assert_eq!(data["culprits"][1], idle);
    let [bar] = &data["bars"].as_array().unwrap()[..] else { panic!("{}", data["bars"]) };
    let parts = bar["parts"].as_array().unwrap();
    assert_eq!(
        parts.iter().map(|part| part["ns"].as_u64().unwrap()).sum::<u64>(),
        bar["ns"].as_u64().unwrap()
    );
    assert_eq!((&parts[0]["kind"], &parts[0]["ns"]), (&Value::from("busy"), &Value::from(20 * 130_000)));
    for (at, finding) in data["findings"].as_array().unwrap().iter().enumerate() {
        assert_eq!(finding["id"], summary["findings"][at]["id"]);
        let command = finding["command"].as_str().unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(words[0], "gpuflame", "{command}");
        assert!(finding["remedy"].as_str().unwrap().ends_with('.'), "{finding}");
        gpuflame(&folder, &words[1..]).ok();
    }
}

/// Each of 20 steps takes 9 ms. In a step the host launches four kernels of 1 ms each, waits 4 ms to read a value, and
/// computes for 4.8 ms. Without the wait, a step would take 5 ms, so 19 steps save 4 ms each.
#[test]
fn the_first_screen_predicts_what_a_run_without_its_waits_saves() {
    let folder = scratch("report-gain");
    let mut trace = Trace::default();
    for step in 0..20_u32 {
        let start = 9000 * u64::from(step);
        trace.slice("user_annotation", &format!("ProfilerStep#{step}"), 9, start, start + 9000);
        for at in 0..4 {
            let (call, kernel) = (start + 100 + 20 * u64::from(at), start + 150 + 1000 * u64::from(at));
            trace.launch(5 * step + at + 1, "gemm", 9, call, kernel, kernel + 1000);
        }
        let id = 5 * step + 5;
        trace.python("train.py(9): log_metrics", 9, start + 200, start + 4200);
        trace.slice("cuda_runtime", "cudaMemcpyAsync", 9, start + 210, start + 4190);
        trace.0.last_mut().unwrap()["args"] = json!({"correlation": id});
        let copy = "Memcpy DtoH (Device -> Pageable)";
        trace.work("gpu_memcpy", id, copy, 7, start + 4160, start + 4170);
        trace.0.last_mut().unwrap()["args"]["bytes"] = json!(4);
    }
    trace.write(&folder.join("trace.json"));
    let data = data(&report(&folder, &["trace.json"]));
    let sentence = data["answers"][0].as_str().unwrap();
    let begin = "Predicted: without the waits in train.py(9): log_metrics, the run takes ";
    let rest = sentence.strip_prefix(begin).expect(sentence);
    let (millis, rest) = rest.split_once(" ms less").expect(rest);
    let millis: f64 = millis.parse().unwrap();
    assert!((millis / (19.0 * 4.0) - 1.0).abs() < 0.02, "{sentence}");
    assert!(rest.contains("`gpuflame what-if trace.json --no-sync="), "{sentence}");
}

#[test]
fn ranks_of_a_job_share_a_page_and_keep_their_sums() {
    let folder = scratch("report-ranks");
    for (rank, slower_us) in [(0, 0), (1, 50)] {
        two_functions(&folder.join(format!("rank{rank}.json")), slower_us);
    }
    let data = data(&report(&folder, &["rank1.json", "rank0.json"]));
    let (found, by_track) = stacks(&data, "gpu").unwrap();
    let mut expected = folded(&folder, "rank0.json", "gpu");
    for (stack, nanos) in folded(&folder, "rank1.json", "gpu") {
        *expected.entry(stack).or_default() += nanos;
    }
    assert_eq!(found, expected);
    for (rank, nanos) in [("rank 0", 20 * 130_000), ("rank 1", 20 * 180_000)] {
        let of_rank = by_track.iter().filter(|(track, _)| data["tracks"][**track]["rank"] == rank);
        assert_eq!(of_rank.map(|(_, nanos)| nanos).sum::<u64>(), nanos, "{rank}");
    }
    let labels: Vec<&str> =
        data["bars"].as_array().unwrap().iter().map(|bar| bar["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["rank 0, GPU 0", "rank 1, GPU 0"]);
    let lines = [&data["firstLine"], &data["culprits"][0]].map(|line| line.as_str().unwrap_or_default());
    assert!(lines.iter().any(|line| line.starts_with("2 ranks: GPUs busy ")), "{lines:?}");
}

#[test]
fn a_page_loads_nothing_and_names_are_text() {
    let folder = scratch("report-policy");
    two_functions(&folder.join("trace.json"), 0);
    let page = report(&folder, &["trace.json"]);
    let policy = between(&page, "Content-Security-Policy\" content=\"", "\"");
    let [script, style] = [("<script>", "</script>"), ("<style>", "</style>")].map(|(begin, end)| {
        let digest = Sha256::digest(between(&page, begin, end).as_bytes());
        // The page's content security policy contains the SHA-256 hash of the script in base64.
        let named = policy.split('\'').filter_map(|part| part.strip_prefix("sha256-"));
        named.map(decoded).any(|hash| hash == digest.as_slice())
    });
    assert!(policy.starts_with("default-src 'none'; ") && script && style, "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    // Only the page's own script element contains code, and a name from the trace never becomes an HTML element.
    assert_eq!(page.matches("<script").count(), 3, "data, slices and code");
    assert!(!page.contains("<img") && !page.contains("<script>alert"), "names are compressed, or escaped");
    let names = data(&page)["names"].to_string();
    assert!(
        names.contains("<img src=x onerror=alert(1)>") && names.contains("</script><script>alert(2)"),
        "{names}"
    );
    for word in
        ["http://", "https://", "innerHTML", "eval(", "new Function", "localStorage", "document.write"]
    {
        let code = between(&page, "<script>", "</script>").replace("http://www.w3.org/2000/svg", "");
        assert!(!code.contains(word), "the script contains {word}");
    }
    let code = page.len() - encoded_data(&page).len();
    assert!(code < 400_000, "{code} bytes before the data");
    assert_eq!(page, report(&folder, &["trace.json"]), "the same input gives the same bytes");
}

#[test]
fn a_large_input_fits_into_the_page_with_its_sum() {
    let folder = scratch("report-large");
    let mut trace = Trace::default();
    let mut state = 7_u64;
    // The trace has 100,000 names of 250 digits each, and no compressor can shorten these names to less than half.
    for at in 0..100_000_u32 {
        let mut name = String::new();
        for _ in 0..16 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let _ = write!(name, "{:015x}", state >> 4);
        }
        let start = 100 * u64::from(at);
        trace.launch(at + 1, &name, 9, start, start + 10, start + 11 + u64::from(at % 7));
    }
    trace.write(&folder.join("large.json"));
    let page = report(&folder, &["large.json"]);
    let bytes = encoded_data(&page).len() + between(&page, "id=\"slices\">", "</script>").len();
    assert!(bytes <= 15_000_000, "{bytes} bytes");
    let data = data(&page);
    let (found, _) = stacks(&data, "gpu").unwrap();
    // The kernels take 1 to 7 us, which is repeated for every seven kernels. When the sums reach their memory limit,
    // further names are merged into one name, as in all verbs.
    let expected: u64 = (0..100_000).map(|at| 1000 * (1 + at % 7)).sum();
    assert_eq!(found.values().sum::<u64>(), expected);
    assert!(found.len() > 10_000, "{} stacks are left", found.len());
    let kinds = data["timeline"]["rows"].as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap());
    assert_eq!(kinds.collect::<Vec<_>>(), ["critical", "idle", "stream", "thread"]);
}

#[test]
fn a_comparison_has_the_views_of_both_runs_and_says_what_changed() {
    let folder = scratch("report-against");
    two_functions(&folder.join("old.json"), 0);
    two_functions(&folder.join("new.json"), 50);
    let data = data(&report(&folder, &["new.json", "--against", "old.json"]));
    for (views, input) in [(&data, "new.json"), (&data["against"], "old.json")] {
        assert_eq!(stacks(views, "gpu").unwrap().0, folded(&folder, input, "gpu"), "{input}");
    }
    // The GPU work of the newer run takes 20 x 180 us, and that of the older run 20 x 130 us.
    let changes = data["changes"][0].as_str().unwrap();
    assert!(changes.contains("GPU work 3.600 ms, before 2.600 ms (+38.5 %)"), "{changes}");
    let panel = &data["panels"][0];
    assert_eq!(
        (&panel["id"], panel["table"]["rows"].as_array().unwrap().len()),
        (&Value::from("changes"), 1)
    );
    let row = &panel["table"]["rows"][0];
    assert_eq!(row[0], Value::from(vec!["gemm", "void gemm<float, 4>(float*)"]));
    // In each run, all 20 kernels have the same duration. Therefore chance does not explain the difference between the
    // two runs.
    let expected = [1_000_000, 50, 2_000_000, 3_000_000, 20, 20, 50].map(|number| number as f64);
    assert_eq!((1..8).map(|at| row[at].as_f64().unwrap()).collect::<Vec<_>>(), expected);
    assert_eq!(row[8], "yes");
}

#[test]
fn the_page_is_next_to_its_input_unless_another_name_is_given() {
    let folder = scratch("report-names");
    fs::create_dir(folder.join("in")).unwrap();
    two_functions(&folder.join("in/run.json"), 0);
    let ran = gpuflame(&folder, ["report", "in/run.json"]).ok();
    assert!(folder.join("in/run.html").is_file(), "{}", ran.stderr);
    let page = fs::read_to_string(folder.join("in/run.html")).unwrap();
    let trace = fs::read(folder.join("in/run.json")).unwrap();
    let piped = gpuflame_with(&folder, ["report", "-", "-o", "-"], &trace).ok().stdout;
    assert_eq!(data(&piped)["views"], data(&page)["views"]);
}

#[test]
fn an_input_without_a_page_is_explained_in_one_line() {
    let folder = scratch("report-refused");
    two_functions(&folder.join("trace.json"), 0);
    fs::write(folder.join("empty.json"), "{\"traceEvents\":[]}").unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
    let fails = |args: &[&str], code, words: &[&str]| {
        let ran = gpuflame(&folder, [&["report"], args].concat());
        ran.fails(code, words);
        assert!(!folder.join("x.html").exists());
    };
    fails(&["no.json", "-o", "x.html"], 1, &["no.json: no such file"]);
    fails(&["empty.json", "-o", "x.html"], 1, &["empty.json: has no events"]);
    fails(&["empty", "-o", "x.html"], 1, &["empty: contains no recording or trace"]);
    fails(&["trace.json", "-o", "x.svg"], 2, &["end the name in .html", "gpuflame flamegraph"]);
    fails(&["trace.json", "-o", "no/x.html"], 1, &["no/x.html was not written: the folder does not exist"]);
    gpuflame_with(&folder, ["report", "-"], b"{}").fails(2, &["-o report.html"]);
    gpuflame(&folder, ["report", "trace.json", "-o", "-", "--open"]).fails(2, &["--open needs a file"]);
}
