//! A CUDA graph must run the same GPU work as the eager program. Whether a step of the decode loop with a batch of two
//! runs eagerly or in its graph, it has the same kernels under the same functions and operators.

use std::collections::BTreeMap;

use crate::installed::{folder, run};
use crate::support::{Done, Way, command};

/// Number of eager steps, and of steps in each graph, that `decode.py` runs.
const STEPS: u64 = 8;
/// Beginning of the frame for the function that makes a step.
const STEP: &str = "Decoder.forward_once (decode.py:";

/// Number of times that each kernel, copy or fill ran. The key consists of the part of the stack from the step's frame
/// to the leaf frame, and the name.
type Works = BTreeMap<(String, String), u64>;

/// Returns three tables: the GPU work of the eager steps; the GPU work of captured steps, keyed by the graph's id; and
/// the names of graph work that is not part of a step.
fn works(done: &Done) -> (Works, BTreeMap<u64, Works>, BTreeMap<String, u64>) {
    command::gpuflame(&done.folder, ["convert", "out.gfr", "--to", "csv", "-o", "all.csv"]).ok();
    let rows = |table: &str| {
        let table = done.file(table);
        let rows = csv::Reader::from_reader(table.as_bytes()).into_deserialize::<BTreeMap<String, String>>();
        rows.map(Result::unwrap).collect::<Vec<_>>()
    };
    let stacks = rows("all.stacks.csv").into_iter();
    let stacks: BTreeMap<String, String> =
        stacks.map(|mut row| (row.remove("stack").unwrap(), row.remove("frames").unwrap())).collect();
    let frames = |row: &BTreeMap<String, String>, of: &str| stacks.get(&row[of]).cloned().unwrap_or_default();
    let from_step = |frames: &str| frames.find(STEP).map(|at| frames[at..].to_owned());
    let (mut eager, mut graphs, mut others) = (Works::new(), BTreeMap::<u64, Works>::new(), BTreeMap::new());
    for row in rows("all.csv").iter().filter(|row| ["kernel", "copy", "set"].contains(&row["kind"].as_str()))
    {
        let launched = frames(row, "stack");
        match row["graph"].parse::<u64>() {
            Ok(graph @ 1..) => match from_step(&frames(row, "created_stack")) {
                Some(step) => {
                    *graphs.entry(graph).or_default().entry((step, row["name"].clone())).or_default() += 1;
                }
                None => *others.entry(row["name"].clone()).or_default() += 1,
            },
            // The warm-up step before a capture is under the frame `capture` as well, so only steps under
            // `Decoder.decode` count as eager.
            _ if launched.contains("Decoder.decode (decode.py:") => {
                if let Some(step) = from_step(&launched) {
                    *eager.entry((step, row["name"].clone())).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    (eager, graphs, others)
}

#[test]
fn graph_nodes_are_the_captured_steps_work_under_the_same_functions() {
    let Some(folder) = folder() else { return };
    let done = run(folder, "decode.py", Way::Injected).env("GPUFLAME_FORMATS", "gfr");
    let done = done.env("GPUSIM_CUPTI_VERSION", "13.2").ok();
    let (eager, graphs, others) = works(&done);
    // Graphs are captured for batches of one, two and four, in this order.
    let [one, two, four] = graphs.values().collect::<Vec<_>>()[..] else { panic!("{:?}", graphs.keys()) };
    assert_eq!(two, &eager);
    for works in [one, two, four] {
        assert!(works.values().all(|count| count % STEPS == 0), "{works:#?}");
        let in_model = works
            .iter()
            .filter(|((step, _), _)| step.contains("Gpt.forward (model.py:") && step.contains(";aten::"));
        // Each of 4 layers has two norms, four products, a GELU, two sums, two writes to caches, and attention, which
        // is 12 kernels. Before and after the layers, the program has more GPU work.
        let in_model = in_model.map(|(_, count)| count / STEPS).sum::<u64>();
        assert!(in_model >= 4 * 12 + 2, "{in_model} of {works:#?}");
    }
    assert!(others.is_empty(), "{others:#?}");
}
