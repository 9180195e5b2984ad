//! `gpuflame deps`: writes a run's dependency graph, as JSON or for Graphviz. The critical path is computed from the
//! dependency graph.

use std::collections::HashMap;
use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::console::{Console, Outcome, usage_error};
use super::found_job::FoundJob;
use super::found_path::FoundPath;
use super::input::Source;
use super::output::Target;
use super::path_names::PathNames;
use super::path_ranges::{PathRanges, RangeName};
use super::ranks::{RankFlags, expand_folders};
use super::times::parse_micros;
use gpuflame_model::error::Result;
use gpuflame_model::profile::format_nanos;
use gpuflame_offline::analysis::{
    CriticalPath, Edge, EdgeKind, InstructionKind, Moment, MomentKind, PathClass, PathPart, Savings, What,
};

/// Write the dependencies between calls and GPU work, with slack, as JSON or for Graphviz.
///
/// docs/critical-path.md describes the fields.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame deps trace.json.gz -o deps.json\n  \
    gpuflame deps run.gfr --from 10ms --to 11ms -o deps.dot\n  \
    gpuflame deps rank-*.json.gz -o job.json")]
pub(super) struct Deps {
    /// Recording or trace (`-`: standard input), or the files of several ranks of one job.
    #[arg(required = true)]
    inputs: Vec<Source>,
    /// Write only calls and work that end after this moment, counted from the start of the path: `10ms`, `1.5s` or
    /// `200us`. A time without a unit is in microseconds.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    from: Option<i64>,
    /// Write only calls and work that begin before this moment.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    to: Option<i64>,
    /// Write only calls and work inside the ranges with this name, or whose names match this regular expression.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["from", "to"])]
    range: Option<RangeName>,
    #[command(flatten)]
    ranks: RankFlags,
    /// Output format. Default: the format that the ending of the output file names, otherwise JSON.
    #[arg(short, long)]
    format: Option<DepsFormat>,
    /// Output file (`-`: standard output).
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DepsFormat {
    /// A JSON object with facts, nodes, edges and the path.
    Json,
    /// A drawing for Graphviz: `dot -Tsvg`.
    Dot,
}

impl Deps {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let format = self.format()?;
        let sources = expand_folders(&self.inputs)?;
        if let [input] = &sources[..] {
            let found = FoundPath::read_for(input, self.range.is_some(), console)?;
            let shown = match &self.range {
                Some(name) => PathRanges::find(name, input, &found, console)?.stretches().to_vec(),
                None => vec![self.window(found.path.window())?],
            };
            return self.write(&Drawn::new(&found.path, Runs::One(&found), shown), format, console);
        }
        if self.range.is_some() {
            let count = sources.len();
            return Err(usage_error(format!("--range needs one file, and not {count}; use --from and --to")));
        }
        let job = FoundJob::read(&sources, self.ranks, console)?;
        let shown = vec![self.window(job.path.path().window())?];
        self.write(&Drawn::new(job.path.path(), Runs::Job(&job), shown), format, console)
    }

    fn write(&self, drawn: &Drawn<'_>, format: DepsFormat, console: Console) -> Result<Outcome> {
        self.output.write(console, |out| match format {
            DepsFormat::Json => drawn.write_json(out),
            DepsFormat::Dot => drawn.write_dot(out),
        })?;
        Ok(Outcome::Clean)
    }

    /// Returns the start and end, in ns, of the time range for which the graph is written.
    fn window(&self, window: (u64, u64)) -> Result<(u64, u64)> {
        let moment = |offset: Option<i64>, default| {
            offset.map_or(default, |offset| window.0.saturating_add(offset.unsigned_abs()))
        };
        let shown = (moment(self.from, window.0), moment(self.to, window.1));
        if shown.0 > shown.1 || (self.to.is_some() && shown.0 == shown.1) {
            let length = format_nanos(window.1 - window.0);
            return Err(usage_error(format!(
                "no time is left between --from and --to; the path is {length} long"
            )));
        }
        Ok(shown)
    }

    fn format(&self) -> Result<DepsFormat> {
        match (self.format, self.output.ending()) {
            (Some(format), _) => Ok(format),
            (None, None | Some("json")) => Ok(DepsFormat::Json),
            (None, Some("dot" | "gv")) => Ok(DepsFormat::Dot),
            (None, Some(ending)) => Err(usage_error(format!(
                "cannot write dependencies as .{ending}; end the name in .json or .dot, or use --format"
            ))),
        }
    }
}

/// The runs to write: one run, or all ranks of a job.
#[derive(Clone, Copy)]
enum Runs<'a> {
    One(&'a FoundPath),
    Job(&'a FoundJob),
}

impl<'a> Runs<'a> {
    /// Returns the rank that an instruction belongs to, the name look-up of that rank, and the instruction's index in
    /// that rank.
    fn instruction(self, number: u32) -> (Option<u32>, PathNames<'a>, u32) {
        match self {
            Self::One(found) => (None, found.names(), number),
            Self::Job(job) => {
                let (rank, names, number) = job.instruction(number);
                (Some(rank), names, number)
            }
        }
    }

    /// Returns the rank that made a call, and the name look-up of that rank.
    fn call(self, at: u32) -> (Option<u32>, PathNames<'a>) {
        match self {
            Self::One(found) => (None, found.names()),
            Self::Job(job) => {
                let (rank, names) = job.call(at);
                (Some(rank), names)
            }
        }
    }
}

/// The part of the graph that is written.
struct Drawn<'a> {
    path: &'a CriticalPath,
    runs: Runs<'a>,
    zero: u64,
    /// Time ranges that are written, in chronological order. The time ranges do not overlap.
    shown: Vec<(u64, u64)>,
    /// Two times in ns for each instruction or call. The first is its time on the critical path. The second is the time
    /// that the run would save if the instruction or call took no time.
    on_path: HashMap<What, (u64, u64)>,
    savings: &'a Savings,
}

impl<'a> Drawn<'a> {
    fn new(path: &'a CriticalPath, runs: Runs<'a>, shown: Vec<(u64, u64)>) -> Self {
        let savings = path.savings();
        let mut on_path: HashMap<What, (u64, u64)> = HashMap::new();
        for part in path.parts() {
            let is_work = !matches!(part.class.word(), "launch" | "gap" | "unexplained");
            if is_work {
                let sum = on_path.entry(part.what).or_default();
                *sum = (sum.0 + (part.end - part.start), sum.1 + savings.of(part));
            }
        }
        Self { path, runs, zero: path.window().0, shown, on_path, savings }
    }

    /// Calls `each` with every node in the written time ranges.
    fn each_node(&self, each: &mut dyn FnMut(Value) -> Result<()>) -> Result<()> {
        let moments = self.path.moments();
        let begins = begins(moments);
        for (at, moment) in moments.iter().enumerate() {
            let node = match moment.kind {
                MomentKind::CallEnd => self.call(at, moment),
                MomentKind::End | MomentKind::GraphEnd => {
                    self.work(at, moment, begins.get(&moment.instruction).copied())
                }
                MomentKind::Reached if self.is_marker(moment) => self.marker(at, moment),
                MomentKind::Arrived => self.arrival(at, moment),
                _ => None,
            };
            if let Some(node) = node {
                each(node)?;
            }
        }
        Ok(())
    }

    fn is_shown(&self, start: u64, end: u64) -> bool {
        let first = self.shown.partition_point(|(_, to)| *to < start);
        self.shown.get(first).is_some_and(|(from, _)| end >= *from)
    }

    fn moment(&self, time: u64) -> i64 {
        time as i64 - self.zero as i64
    }

    fn call(&self, at: usize, moment: &Moment) -> Option<Value> {
        let call = self.path.calls().get(moment.call as usize)?;
        let (path, saving) = self.on_path.get(&What::Call(moment.call)).copied().unwrap_or_default();
        let (rank, names) = self.runs.call(moment.call);
        let name = gpuflame_export::compose::call(names.profile, call.context);
        self.is_shown(call.begin, call.end).then(|| {
            let node = json!({
                "id": call_id(moment.call), "kind": "call", "name": name, "thread": call.thread.0,
                "start_ns": self.moment(call.begin), "end_ns": self.moment(call.end),
                "slack_ns": self.path.slack(at), "slack_limit": self.slack_limit(at),
                "on_path_ns": path, "saving_ns": saving,
            });
            with_rank(node, rank)
        })
    }

    fn work(&self, at: usize, moment: &Moment, begin: Option<usize>) -> Option<Value> {
        let (rank, names, number) = self.runs.instruction(moment.instruction);
        let instruction = names.list.get(number);
        let (start, end) = instruction.ran?;
        let what = What::Instruction(moment.instruction);
        let (path, saving) = self.on_path.get(&what).copied().unwrap_or_default();
        let decided = begin.and_then(|begin| self.path.deciding_edge(begin));
        let kind = match instruction.kind {
            InstructionKind::Graph => "graph",
            _ => "work",
        };
        let (start, end) = self.times(moment, start.0, end.0);
        self.is_shown(start, end).then(|| {
            let node = json!({
                "id": instruction_id(moment.instruction), "kind": kind, "name": names.instruction(number),
                "correlation": names.list.rows().source_id(instruction.correlation),
                "device": instruction.device.map(|device| device.0),
                "stream": instruction.stream.map(|stream| stream.0),
                "start_ns": self.moment(start), "end_ns": self.moment(end),
                "decided_by": decided.map(|edge| edge.kind.word()),
                "slack_ns": self.path.slack(at), "slack_limit": self.slack_limit(at),
                "on_path_ns": path, "saving_ns": saving,
            });
            with_rank(node, rank)
        })
    }

    /// Returns the name of the rule that limits the slack of a moment; `None` if no rule limits the slack.
    fn slack_limit(&self, at: usize) -> Option<&'static str> {
        self.path.is_limited_by_order(at).then_some("order")
    }

    /// Converts the times of GPU work from the clock of its rank to the clock of the job. `moment` is the time at which
    /// the GPU work ends on the job's clock.
    fn times(&self, moment: &Moment, start: u64, end: u64) -> (u64, u64) {
        (moment.time.saturating_sub(end - start), moment.time)
    }

    /// Whether the instruction of `moment` has only one moment, which is both its start and its end. An instruction has
    /// only one moment if it is the recording of a CUDA event, a wait for a CUDA event, or GPU work without times, such
    /// as a graph whose nodes do nothing.
    fn is_marker(&self, moment: &Moment) -> bool {
        let (_, names, number) = self.runs.instruction(moment.instruction);
        names.list.get(number).ran.is_none()
    }

    fn marker(&self, at: usize, moment: &Moment) -> Option<Value> {
        let (rank, names, number) = self.runs.instruction(moment.instruction);
        let instruction = names.list.get(number);
        self.is_shown(moment.time, moment.time).then(|| {
            let node = json!({
                "id": instruction_id(moment.instruction), "kind": instruction.kind.word(),
                "correlation": names.list.rows().source_id(instruction.correlation),
                "device": instruction.device.map(|device| device.0),
                "stream": instruction.stream.map(|stream| stream.0),
                "start_ns": self.moment(moment.time), "end_ns": self.moment(moment.time),
                "slack_ns": self.path.slack(at),
            });
            with_rank(node, rank)
        })
    }

    /// Returns the node for the moment at which the last of all ranks enters a collective.
    fn arrival(&self, at: usize, moment: &Moment) -> Option<Value> {
        let (rank, names, number) = self.runs.instruction(moment.instruction);
        self.is_shown(moment.time, moment.time).then(|| {
            let node = json!({
                "id": node_id(moment), "kind": "collective", "name": names.instruction(number),
                "start_ns": self.moment(moment.time), "end_ns": self.moment(moment.time),
                "slack_ns": self.path.slack(at),
            });
            with_rank(node, rank)
        })
    }

    /// Calls `each` with every edge between two nodes in the written time ranges. Edges from the start to the end of
    /// the same node are skipped, because they represent the node's duration.
    fn each_edge(&self, each: &mut dyn FnMut(Value) -> Result<()>) -> Result<()> {
        let moments = self.path.moments();
        for (at, edge) in self.path.edges().iter().enumerate() {
            let Edge { from, to, kind, lag } = *edge;
            let (cause, effect) = (&moments[from as usize], &moments[to as usize]);
            let (cause_id, effect_id) = (node_id(cause), node_id(effect));
            if cause_id == effect_id || kind == EdgeKind::Work {
                continue;
            }
            if !self.is_shown(cause.time, cause.time) || !self.is_shown(effect.time, effect.time) {
                continue;
            }
            let slack = self.path.slack(to as usize) + (effect.time - cause.time - lag);
            each(json!({
                "from": cause_id, "from_moment": moment_word(cause.kind),
                "to": effect_id, "to_moment": moment_word(effect.kind),
                "kind": kind.word(), "inferred": kind.is_inferred(), "lag_ns": lag, "slack_ns": slack,
                "decided": self.path.decided(at),
            }))?;
        }
        Ok(())
    }

    fn write_json(&self, out: &mut dyn Write) -> Result<()> {
        let (from, to) = self.path.window();
        let facts = json!({ "start_ns": from, "duration_ns": to - from });
        write!(out, "{{\"schema\":1,\"facts\":{facts},\n\"nodes\":[")?;
        write_list(out, |each| self.each_node(each))?;
        write!(out, "],\n\"edges\":[")?;
        write_list(out, |each| self.each_edge(each))?;
        write!(out, "],\n\"path\":[")?;
        write_list(out, |each| {
            let parts = undivided(self.path.parts());
            for part in parts.iter().filter(|part| self.is_shown(part.start, part.end)) {
                let node = match part.what {
                    What::Instruction(number) => Some(instruction_id(number)),
                    What::Call(at) | What::Between(_, at) | What::Stack { before: at, .. } => {
                        Some(call_id(at))
                    }
                    What::Nothing => None,
                };
                each(json!({
                    "start_ns": self.moment(part.start), "duration_ns": part.end - part.start,
                    "class": part.class.word(), "node": node, "saving_ns": self.savings.of(part),
                }))?;
            }
            Ok(())
        })?;
        writeln!(out, "]}}")?;
        Ok(())
    }

    /// Writes the graph for Graphviz. Nodes on the critical path are drawn with a fill colour.
    fn write_dot(&self, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "digraph dependencies {{\n  rankdir=LR;\n  node [shape=box, fontsize=10];")?;
        self.each_node(&mut |node| {
            let name = node["name"].as_str().or(node["kind"].as_str()).unwrap_or_default();
            let time = node["end_ns"].as_i64().unwrap_or(0) - node["start_ns"].as_i64().unwrap_or(0);
            let style = if node["on_path_ns"].as_u64().unwrap_or(0) > 0 {
                ", style=filled, fillcolor=\"#f4a582\""
            } else {
                ""
            };
            let label = escaped(&format!("{name}\n{}", format_nanos(time.unsigned_abs())));
            let id = node["id"].as_str().unwrap_or_default();
            Ok(writeln!(out, "  {id} [label=\"{label}\"{style}];")?)
        })?;
        self.each_edge(&mut |edge| {
            let text = |key: &str| edge[key].as_str().unwrap_or_default().to_owned();
            let style = match (edge["decided"] == true, edge["inferred"] == true) {
                (true, _) => ", penwidth=2",
                (false, true) => ", style=dotted",
                (false, false) => ", style=dashed",
            };
            let (from, to, kind) = (text("from"), text("to"), text("kind"));
            Ok(writeln!(out, "  {from} -> {to} [label=\"{kind}\", fontsize=8{style}];")?)
        })?;
        writeln!(out, "}}")?;
        Ok(())
    }
}

/// Writes the elements of a list, one per line.
fn write_list(
    out: &mut dyn Write,
    each: impl FnOnce(&mut dyn FnMut(Value) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let mut is_first = true;
    each(&mut |value| {
        let comma = if std::mem::replace(&mut is_first, false) { "\n" } else { ",\n" };
        Ok(write!(out, "{comma}{value}")?)
    })
}

/// Indices of the moments at which GPU work begins, keyed by instruction.
fn begins(moments: &[Moment]) -> HashMap<u32, usize> {
    let begins = moments.iter().enumerate().filter(|(_, moment)| moment.kind == MomentKind::Begin);
    begins.map(|(at, moment)| (moment.instruction, at)).collect()
}

/// Adds the field `rank` to a node, if the node belongs to a job.
fn with_rank(mut node: Value, rank: Option<u32>) -> Value {
    if let Some(rank) = rank {
        node["rank"] = rank.into();
    }
    node
}

fn call_id(at: u32) -> String {
    format!("c{at}")
}

fn instruction_id(number: u32) -> String {
    format!("i{number}")
}

fn node_id(moment: &Moment) -> String {
    match moment.kind {
        MomentKind::CallBegin | MomentKind::CallEnd => call_id(moment.call),
        MomentKind::Arrived => format!("a{}", moment.instruction),
        _ => instruction_id(moment.instruction),
    }
}

fn moment_word(kind: MomentKind) -> &'static str {
    match kind {
        MomentKind::CallBegin | MomentKind::Begin | MomentKind::Reached | MomentKind::Arrived => "begin",
        MomentKind::CallEnd | MomentKind::End | MomentKind::GraphEnd => "end",
    }
}

/// Escapes a text for use inside a quoted string of Graphviz.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns the parts of a path. The returned list has one part for the time between two calls, even if the path divides
/// this time into several parts. The graph has one node for the time between two calls, and no nodes for the individual
/// stacks in that time.
fn undivided(parts: &[PathPart]) -> Vec<PathPart> {
    let mut whole: Vec<PathPart> = Vec::with_capacity(parts.len());
    for part in parts {
        let (class, what) = match part.what {
            What::Stack { after, before, .. } => (PathClass::Host, What::Between(after, before)),
            what => (part.class, what),
        };
        match whole.last_mut() {
            Some(last) if last.class == PathClass::Host && last.edge == part.edge && last.what == what => {
                last.end = part.end;
            }
            _ => whole.push(PathPart { class, what, ..*part }),
        }
    }
    whole
}
