//! Compares the operators that gpuflame and PyTorch's profiler find. gpuflame recognizes an operator by the
//! dispatcher's frames in a native stack. PyTorch notifies its profiler when an operator begins and ends. The
//! profiler's `External id` names the innermost operator around each launch.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use serde_json::Value;

use crate::installed::run;
use crate::support::{Done, Way, command, scratch};

/// Returns the names of operators, as the wheel itself lists them, keyed by the C++ names of their overloads. For
/// example, `aten::add__Tensor` has the name `aten::add_`.
fn names(folder: &std::path::Path) -> &'static HashMap<String, String> {
    static NAMES: OnceLock<HashMap<String, String>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let program = scratch("operators").join("names.py");
        let tell = "import torch\nprint(*torch._C._dispatch_get_all_op_names(), sep='\\n')\n";
        std::fs::write(&program, tell).unwrap();
        let told = run(folder, program.to_str().unwrap(), Way::None).ok().stdout;
        let one = |name: &str| {
            let operator = name.split_once('.').map_or(name, |(operator, _)| operator);
            (name.replace('.', "_"), operator.to_owned())
        };
        told.lines().filter(|name| name.starts_with("aten::")).map(one).collect()
    })
}

/// The innermost operator of each kernel, copy and fill, for each device and stream, sorted by time. `None` if the work
/// belongs to no operator.
type Operators = BTreeMap<(u64, u64), Vec<Option<String>>>;

/// Start of a kernel, copy or fill, and its innermost operator.
type Work<T> = (T, Option<String>);

fn in_order<T: PartialOrd>(streams: BTreeMap<(u64, u64), Vec<Work<T>>>) -> Operators {
    let in_order = |mut works: Vec<Work<T>>| {
        works.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap());
        works.into_iter().map(|(_, operator)| operator).collect()
    };
    streams.into_iter().map(|(stream, works)| (stream, in_order(works))).collect()
}

fn of_kineto(events: &[Value]) -> Operators {
    let external = |event: &Value| event["args"]["External id"].as_u64();
    let operators = events.iter().filter(|event| event["cat"] == "cpu_op");
    let operators: HashMap<u64, &str> =
        operators.filter_map(|event| Some((external(event)?, event["name"].as_str()?))).collect();
    let mut streams = BTreeMap::<_, Vec<_>>::new();
    for work in events.iter().filter(|event| event["cat"] == "kernel") {
        let number = |what: &str| work["args"][what].as_u64().unwrap();
        let operator = external(work).and_then(|id| operators.get(&id)).map(|name| (*name).to_owned());
        let works = streams.entry((number("device"), number("stream"))).or_default();
        works.push((work["ts"].as_f64().unwrap(), operator));
    }
    in_order(streams)
}

/// Returns the operators that gpuflame found, from the tables that the command makes from a recording.
fn of_gpuflame(done: &Done, names: &HashMap<String, String>) -> Operators {
    command::gpuflame(&done.folder, ["convert", "out.gfr", "--to", "csv", "-o", "shown.csv"]).ok();
    let rows = |table: &str| {
        let table = done.file(table);
        let rows = csv::Reader::from_reader(table.as_bytes()).into_deserialize::<BTreeMap<String, String>>();
        rows.map(Result::unwrap).collect::<Vec<_>>()
    };
    let innermost = |frames: &str| {
        let frame = frames.split(';').rfind(|frame| frame.starts_with("aten::"))?;
        Some(names.get(frame).unwrap_or_else(|| panic!("{frame}: no operator of PyTorch's")).clone())
    };
    let stacks = rows("shown.stacks.csv").into_iter();
    let stacks: HashMap<String, Option<String>> =
        stacks.map(|row| (row["stack"].clone(), innermost(&row["frames"]))).collect();
    let mut streams = BTreeMap::<_, Vec<_>>::new();
    for row in rows("shown.csv").iter().filter(|row| row["kind"] == "kernel") {
        let number = |name: &str| row[name].parse::<u64>().unwrap();
        let operator = stacks.get(&row["stack"]).cloned().flatten();
        streams.entry((number("device"), number("stream"))).or_default().push((number("start_ns"), operator));
    }
    in_order(streams)
}

/// Asserts that gpuflame and Kineto report the same innermost operator for each kernel, copy and fill. Returns the
/// number of kernels, copies and fills that belong to an operator.
pub(crate) fn assert_operators(folder: &std::path::Path, kineto: &[Value], done: &Done) -> usize {
    let (kineto, gpuflame) = (of_kineto(kineto), of_gpuflame(done, names(folder)));
    let mut known = 0;
    let mut unlike = BTreeMap::<_, usize>::new();
    for (stream, theirs) in &kineto {
        assert_eq!(theirs.len(), gpuflame[stream].len(), "{stream:?}");
        for (theirs, ours) in theirs.iter().zip(&gpuflame[stream]) {
            // PyTorch also has operators that do not go through the dispatcher, such as autograd's nodes. Operators
            // that do not go through the dispatcher have no frame of it, so gpuflame cannot find them.
            let Some(theirs) = theirs.as_ref().filter(|name| name.starts_with("aten::")) else { continue };
            known += 1;
            if ours.as_ref() != Some(theirs) {
                *unlike.entry((theirs.clone(), ours.clone())).or_default() += 1;
            }
        }
    }
    assert!(unlike.is_empty(), "Kineto's, ours, how often: {unlike:#?}");
    known
}
