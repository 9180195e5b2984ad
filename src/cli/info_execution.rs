//! `gpuflame info` for an execution trace of PyTorch (JSON) or Chakra (protobuf).

use std::collections::{BTreeMap, BTreeSet};

use super::console::Console;
use super::input::{Source, with_progress};
use super::table_output::{Cell, Table};
use gpuflame_model::error::Result;
use gpuflame_offline::execution::tensor_bytes;
use gpuflame_traces::execution::{ChakraTrace, ExecutionTrace, NodeType, read_document};
use gpuflame_traces::import::{Kind, Opened, Options};

/// Maximum number of rows in the table of operator names.
const MAX_OPERATORS: usize = 30;

/// Count, total time and total bytes of all nodes with the same name.
#[derive(Default)]
struct Sums {
    count: u64,
    /// Total time in ns; `None` if the file has no times.
    nanos: Option<u64>,
    bytes: u64,
}

/// Reads an execution trace, and returns its tables: facts, operators and communication.
///
/// # Errors
/// Returns `Io` if the file cannot be read, or `Format` if the file is not an execution trace. The message of the error
/// contains the file's name.
pub(super) fn execution_tables(source: &Source, opened: Opened, console: Console) -> Result<Vec<Table>> {
    let kind = opened.kind();
    let (options, _bar) = with_progress(Options::default(), &opened, console);
    let tables = match kind {
        Kind::Chakra => {
            opened.bytes(&options, |input| ChakraTrace::read(input)).map(|trace| chakra_tables(&trace))
        }
        _ => read_document(opened, &options)
            .and_then(|document| ExecutionTrace::parse(&document).map(|trace| pytorch_tables(&trace))),
    };
    let tables = tables.map_err(|error| error.within(source))?;
    Ok(tables)
}

fn fact_table(kind: Kind) -> Table {
    let mut table = Table::new("facts", &["what", "value"]);
    table.add_row(["kind".into(), Cell::from(kind.description())]);
    table
}

fn pytorch_tables(trace: &ExecutionTrace<'_>) -> Vec<Table> {
    let mut table = fact_table(Kind::ExecutionTrace);
    let mut fact = |what: &str, value: Cell| table.add_row([what.into(), value]);
    let header = &trace.header;
    let executed: Vec<_> = trace.nodes.iter().filter(|node| node.rf_id.is_some() && !node.is_gpu).collect();
    let gpu = trace.nodes.iter().filter(|node| node.is_gpu).count();
    fact("schema version", Cell::from(header.schema.as_str()));
    fact("process", Cell::Id(header.pid));
    fact("recorded at", Cell::from(header.time.as_str()));
    let nanos = header.finish_ts.saturating_sub(header.start_ts).saturating_mul(1_000_000);
    fact("recorded for", if nanos == 0 { Cell::Nothing } else { Cell::Nanos(nanos) });
    fact("nodes", Cell::Count(trace.nodes.len() as u64));
    fact("operators and ranges", Cell::Count(executed.len() as u64));
    fact("nodes without an rf_id", Cell::Count((trace.nodes.len() - executed.len() - gpu) as u64));
    if trace.nodes.iter().any(|node| node.has_duration) {
        fact("GPU nodes", Cell::Count(gpu as u64));
    }
    fact("nodes without a usable id, left out", Cell::Count(trace.skipped_nodes));
    fact("nodes whose parent is missing", Cell::Count(trace.lost_parents));
    let threads: BTreeSet<u64> = executed.iter().map(|node| node.tid).collect();
    fact("threads", Cell::Count(threads.len() as u64));
    let (mut operators, mut collectives) = (BTreeMap::new(), BTreeMap::new());
    for node in executed {
        let name = node.name.decode().into_owned();
        // The name of the collective is one of the operator's input values: `[[...], 151, "allreduce", ...]`.
        if name == "record_param_comms"
            && let Some(collective) = collective_word(node.inputs.values).filter(|word| *word != "wait")
        {
            let sums: &mut Sums = collectives.entry(collective.to_owned()).or_default();
            sums.count += 1;
            sums.bytes = sums.bytes.saturating_add(tensor_bytes(&node.inputs));
        }
        let sums: &mut Sums = operators.entry(name).or_default();
        sums.count += 1;
    }
    vec![table, operator_table(operators), communication_table(collectives)]
}

/// Searches a JSON list, and returns the first string that is a word and not the name of a device.
fn collective_word(values: &str) -> Option<&str> {
    let texts = values.split('"').skip(1).step_by(2);
    let is_word = |text: &&str| {
        let is_device = text.starts_with("cuda") || *text == "cpu" || text.starts_with("hip");
        !is_device && text.len() > 1 && text.starts_with(|c: char| c.is_ascii_lowercase())
    };
    texts.into_iter().find(is_word)
}

fn chakra_tables(trace: &ChakraTrace) -> Vec<Table> {
    let mut table = fact_table(Kind::Chakra);
    let mut fact = |what: &str, value: Cell| table.add_row([what.into(), value]);
    let text = |text: &str| if text.is_empty() { Cell::Nothing } else { Cell::from(text) };
    fact("version", text(&trace.version));
    fact("schema version", text(&trace.schema));
    fact("nodes", Cell::Count(trace.nodes.len() as u64));
    let gpu: Vec<_> = trace.nodes.iter().filter(|node| node.is_host == Some(false)).collect();
    fact("GPU nodes", Cell::Count(gpu.len() as u64));
    fact("GPU time", Cell::Nanos(gpu.iter().fold(0, |sum, node| sum.saturating_add(node.nanos))));
    let ids: BTreeSet<u64> = trace.nodes.iter().map(|node| node.id).collect();
    let dependencies = || trace.nodes.iter().flat_map(|node| &node.dependencies);
    fact("dependencies", Cell::Count(dependencies().count() as u64));
    let missing = dependencies().filter(|id| !ids.contains(id)).count();
    fact("dependencies on missing nodes", Cell::Count(missing as u64));
    let mut kinds: BTreeMap<NodeType, u64> = BTreeMap::new();
    trace.nodes.iter().for_each(|node| *kinds.entry(node.kind).or_default() += 1);
    for (kind, count) in kinds {
        fact(&format!("nodes of type {}", kind.word()), Cell::Count(count));
    }
    let (mut operators, mut collectives) = (BTreeMap::new(), BTreeMap::new());
    for node in &trace.nodes {
        let add = |sums: &mut BTreeMap<String, Sums>| {
            let sums = sums.entry(node.name.clone()).or_default();
            sums.count += 1;
            sums.nanos = Some(sums.nanos.unwrap_or(0).saturating_add(node.nanos));
            sums.bytes = sums.bytes.saturating_add(node.bytes);
        };
        add(&mut operators);
        if matches!(node.kind, NodeType::Send | NodeType::Receive | NodeType::Collective) {
            add(&mut collectives);
        }
    }
    vec![table, operator_table(operators), communication_table(collectives)]
}

fn by_time_and_count(sums: BTreeMap<String, Sums>) -> Vec<(String, Sums)> {
    let mut all: Vec<_> = sums.into_iter().collect();
    all.sort_by_key(|(_, sums)| std::cmp::Reverse((sums.nanos, sums.count)));
    all
}

fn nanos(sums: &Sums) -> Cell {
    sums.nanos.map_or(Cell::Nothing, Cell::Nanos)
}

fn operator_table(sums: BTreeMap<String, Sums>) -> Table {
    let mut table = Table::new("operators", &["total_ns", "count", "name"]);
    for (name, sums) in by_time_and_count(sums).into_iter().take(MAX_OPERATORS) {
        table.add_row([nanos(&sums), Cell::Count(sums.count), Cell::Kernels(vec![name])]);
    }
    table
}

fn communication_table(sums: BTreeMap<String, Sums>) -> Table {
    let mut table = Table::new("communication", &["total_ns", "count", "bytes", "name"]);
    for (name, sums) in by_time_and_count(sums) {
        table.add_row([
            nanos(&sums),
            Cell::Count(sums.count),
            Cell::Bytes(sums.bytes),
            Cell::Kernels(vec![name]),
        ]);
    }
    table
}
