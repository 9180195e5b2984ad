//! `gpuflame critical-path --as-hta`: finds the critical path by the rules of Holistic Trace Analysis.

use clap::Args;

use super::console::{Console, Outcome};
use super::input::Source;
use super::table_output::{Cell, ReportFlags, ReportFormat, Table};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_offline::analysis::{
    EdgeType, HtaBound, HtaEvents, HtaNode, HtaPath, HtaPathOptions, HtaRule, hta_path,
};
use gpuflame_traces::import::Kind;

/// Options of `--as-hta`.
#[derive(Debug, Args)]
pub(super) struct HtaPathFlags {
    /// The window of `--as-hta` is the time range of the events whose names contain this text. '': the whole trace.
    #[arg(long, value_name = "NAME", default_value = "ProfilerStep", requires = "as_hta")]
    annotation: String,
    /// Instance of the annotation, counted from 0, or the first and the last instance (`2-4`).
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_instances, requires = "as_hta")]
    instance: (usize, usize),
    /// Add an edge from each launch to its GPU work. The edge has the weight 0 if the launch did not delay the work.
    #[arg(long, requires = "as_hta")]
    zero_launch_edges: bool,
}

fn parse_instances(text: &str) -> std::result::Result<(usize, usize), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err("give a number such as 1, or the first and the last number, such as 2-4".to_owned()),
    }
}

/// Writes the path by the rules of Holistic Trace Analysis. Text output has only sums. Output formats other than text
/// also have every edge and every node of the path.
pub(super) fn write_hta_path(
    input: &Source,
    flags: &HtaPathFlags,
    report: &ReportFlags,
    console: Console,
) -> Result<Outcome> {
    let opened = input.open()?;
    if opened.kind() == Kind::Recording {
        let what = "--as-hta reads traces; `gpuflame convert FILE --to chrome` makes one of a recording";
        return Err(Error::new(ErrorKind::Format, format!("{input}: {what}")));
    }
    let mut events = HtaEvents::default();
    input.events(opened, console, &mut events)?;
    let options = HtaPathOptions {
        annotation: flags.annotation.clone(),
        instances: flags.instance,
        zero_launch_edges: flags.zero_launch_edges,
    };
    let path = hta_path(&events, &options).map_err(|error| error.within(input))?;
    remark_on_unconnected(input, &path, console);
    let mut tables = vec![path_table(&path), type_table(&path), bound_table(&path), rule_table(&path)];
    if report.format != ReportFormat::Text {
        tables.extend([node_table(&path), edge_table(&path)]);
    }
    let heading = format!("{input}: the critical path as Holistic Trace Analysis computes it");
    report.write(console, &[heading], &tables)?;
    Ok(Outcome::Clean)
}

fn remark_on_unconnected(input: &Source, path: &HtaPath, console: Console) {
    if path.unconnected.ops > 0 {
        let what = "operations have no edge to their launch or to other work, so no path leads to them";
        console.remark(format!("{input}: {} {what}", path.unconnected.ops));
    }
}

fn sum(micros: impl Iterator<Item = i64>) -> i64 {
    micros.fold(0, i64::saturating_add)
}

fn micros(micros: i64) -> Cell {
    Cell::Moment(micros.saturating_mul(1_000))
}

fn path_table(path: &HtaPath) -> Table {
    let columns =
        &["window_ns", "path_ns", "share_percent", "critical_events", "critical_nodes", "critical_edges"];
    let mut table = Table::new("path", columns);
    let length: i64 = sum(path.bounds.values().map(|(_, sum)| *sum));
    let nodes = path.critical_nodes.len() as u64;
    table.add_row([
        micros(path.window_us),
        micros(length),
        Cell::share(length.unsigned_abs(), path.window_us.unsigned_abs()),
        Cell::Count(path.critical_events),
        Cell::Count(nodes),
        Cell::Count(nodes.saturating_sub(1)),
    ]);
    table
}

fn type_table(path: &HtaPath) -> Table {
    let columns = &["type", "edges", "time_ns", "critical_edges", "critical_ns"];
    let mut table = Table::new("edge_types", columns);
    for kind in EdgeType::ALL {
        let edges = || path.edges.iter().filter(|edge| edge.kind == kind);
        let critical = || edges().filter(|edge| edge.is_critical);
        table.add_row([
            kind.word().into(),
            Cell::Count(edges().count() as u64),
            micros(sum(edges().map(|edge| edge.weight_us))),
            Cell::Count(critical().count() as u64),
            micros(sum(critical().map(|edge| edge.weight_us))),
        ]);
    }
    table
}

fn bound_table(path: &HtaPath) -> Table {
    let mut table = Table::new("bound_by", &["bound_by", "edges", "time_ns", "share_percent"]);
    let length: i64 = sum(path.bounds.values().map(|(_, sum)| *sum));
    for (bound, (edges, sum)) in &path.bounds {
        let word = if *bound == HtaBound::None { Cell::Nothing } else { bound.word().into() };
        let share = 100.0 * *sum as f64 / length as f64;
        let share = if length == 0 { Cell::Nothing } else { Cell::Share(share) };
        table.add_row([word, Cell::Count(*edges), micros(*sum), share]);
    }
    table
}

/// Returns the table of the path's edges per rule. If the weight of an edge is less than the time between the edge's
/// two nodes, the table contains the difference.
fn rule_table(path: &HtaPath) -> Table {
    let mut table = Table::new("rules", &["rule", "edges", "time_ns", "critical_edges", "critical_ns"]);
    for rule in HtaRule::ALL {
        let edges = || path.edges.iter().filter(|edge| edge.rule == Some(rule));
        let critical = || edges().filter(|edge| edge.is_critical);
        let (count, time) = match rule {
            HtaRule::LongGap => path.unconnected.long_gaps,
            HtaRule::CallStart => (edges().count() as u64, sum(edges().map(|edge| edge.weight_us))),
            _ => (edges().count() as u64, sum(edges().map(|edge| edge.uncounted_us()))),
        };
        let of_path = match rule {
            HtaRule::CallStart => sum(critical().map(|edge| edge.weight_us)),
            _ => sum(critical().map(|edge| edge.uncounted_us())),
        };
        table.add_row([
            rule.word().into(),
            Cell::Count(count),
            micros(time),
            Cell::Count(critical().count() as u64),
            micros(of_path),
        ]);
    }
    table
}

fn node_cells(node: &HtaNode) -> [Cell; 3] {
    let edge = if node.is_start { "start" } else { "end" };
    [Cell::Id(node.event), edge.into(), micros(node.time_us)]
}

fn node_table(path: &HtaPath) -> Table {
    let mut table = Table::new("critical_nodes", &["event", "side", "time_ns", "name"]);
    for node in &path.critical_nodes {
        let name = path.names.get(&node.event).map_or(Cell::Nothing, |name| name.as_str().into());
        table.add_row(node_cells(node).into_iter().chain([name]));
    }
    table
}

fn edge_table(path: &HtaPath) -> Table {
    let columns = &[
        "from_event",
        "from_side",
        "from_ns",
        "to_event",
        "to_side",
        "to_ns",
        "type",
        "weight_ns",
        "critical",
        "attributed_event",
        "rule",
    ];
    let mut table = Table::new("edges", columns);
    for edge in &path.edges {
        let rest = [
            edge.kind.word().into(),
            micros(edge.weight_us),
            if edge.is_critical { "yes" } else { "no" }.into(),
            edge.attributed.map_or(Cell::Nothing, Cell::Id),
            edge.rule.map_or(Cell::Nothing, |rule| rule.word().into()),
        ];
        table.add_row(node_cells(&edge.from).into_iter().chain(node_cells(&edge.to)).chain(rest));
    }
    table
}
