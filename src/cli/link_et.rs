//! `gpuflame link-et`: combines PyTorch's execution traces with the Kineto traces of the same runs, and writes the
//! combined traces as JSON and as Chakra's protobuf.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::input::{Source, print_remarks, with_progress};
use super::output::Target;
use super::page::Page;
use super::table_output::{Cell, ReportFormat, Table, group_digits, write_tables};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_offline::execution::{Coverage, LinkedTrace, PairedBy, Unlinked, link};
use gpuflame_offline::formats::{write_chakra, write_linked_trace};
use gpuflame_traces::execution::{ExecutionTrace, Kineto, read_document};
use gpuflame_traces::import::{Kind, Opened, Options};

/// Join PyTorch execution traces (ET) with the Kineto traces of the same runs.
///
/// For each pair, two files are written to the folder: `pytorch_et_plus_TAG.json`, the execution trace with times and
/// dependencies and with GPU work below the operators that launched it, and `chakra_trace_TAG.et`, the same graph in
/// Chakra's protobuf. TAG is the name of the execution trace's file without `pytorch_et_` and without its ending.
///
/// Operators are paired by `rf_id` and `Record function id`. If the Kineto trace has no such ids (PyTorch before 2.1),
/// operators are paired by the order of their names. Correlation ids link GPU work to calls. The table shows the share
/// of linked GPU work, and why the rest is not linked. docs/execution-traces.md explains the files.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gpuflame link-et pytorch_et_pid7_1.json kineto_pid7_1.json -o linked\n  \
    gpuflame link-et et0.json kineto0.json et1.json kineto1.json -o job"
)]
pub(super) struct LinkEt {
    /// Execution traces and Kineto traces in turn, one pair per rank: ET KINETO [ET KINETO ...].
    #[arg(required = true, value_names = ["ET", "KINETO"], num_args = 2..)]
    inputs: Vec<Source>,
    /// Folder for the linked traces, which is created if needed.
    #[arg(short, long, value_name = "FOLDER", default_value = ".")]
    output: PathBuf,
    /// Output file for the table (`-`: standard output).
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(super) table: Target,
    /// Format of the table.
    #[arg(short, long, default_value = "text")]
    pub(super) format: ReportFormat,
}

/// Result of combining an execution trace with a Kineto trace.
struct Joined {
    tag: String,
    rank: Option<u32>,
    coverage: Coverage,
}

impl LinkEt {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if !self.inputs.len().is_multiple_of(2) {
            let what = "give pairs of files: ET KINETO [ET KINETO ...]; the last execution trace has no Kineto trace";
            return Err(usage_error(what));
        }
        let pairs: Vec<_> = self.inputs.chunks(2).collect();
        let mut tags = BTreeSet::new();
        for pair in &pairs {
            let tag = tag(&pair[0]);
            if !tags.insert(tag.clone()) {
                let what = format!(
                    "two execution traces have the name {tag}, so one would replace the other's files"
                );
                return Err(usage_error(what));
            }
        }
        self.check_inputs(&pairs)?;
        let (mut all, mut failed) = (Vec::new(), None);
        for pair in &pairs {
            match self.join(&pair[0], &pair[1], console) {
                Ok(joined) => all.push(joined),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if all.is_empty()
            && let Some(error) = failed.take()
        {
            return Err(error);
        }
        let page = Page::of(&self.table, console);
        let mut tables = vec![linked_table(&all)];
        tables.extend(unlinked_table(&all));
        self.table.write(console, |out| write_tables(&[], &tables, self.format, page, out))?;
        // If linking a pair failed, the table still shows the pairs before it, whose files have been written.
        failed.map_or(Ok(Outcome::Clean), Err)
    }

    /// Checks the output folder and the kinds of all input files. All files are checked before the first pair is
    /// linked, because linking may take minutes. A pipe can be opened only once, so a pipe is checked later, when its
    /// pair is linked.
    fn check_inputs(&self, pairs: &[&[Source]]) -> Result<()> {
        if self.inputs.iter().filter(|input| **input == Source::Stdin).count() > 1 {
            return Err(usage_error(
                "standard input (-) can be given once, for an execution trace or a Kineto trace",
            ));
        }
        if self.output.exists() && !self.output.is_dir() {
            return Err(usage_error(format!(
                "-o: {} is not a folder; give another name",
                self.output.display()
            )));
        }
        let is_pipe = |input: &Source| match input {
            Source::Stdin => true,
            Source::File(path) => path.exists() && !path.is_file(),
        };
        for pair in pairs.iter().filter(|pair| !pair.iter().any(is_pipe)) {
            open_pair(&pair[0], &pair[1])?;
        }
        Ok(())
    }

    fn join(&self, et: &Source, timeline: &Source, console: Console) -> Result<Joined> {
        let (opened, opened_timeline) = open_pair(et, timeline)?;
        let rank = opened_timeline.rank();
        let document = {
            let (options, _bar) = with_progress(Options::default(), &opened, console);
            read_document(opened, &options).map_err(|error| error.within(et))?
        };
        let trace = ExecutionTrace::parse(&document).map_err(|error| error.within(et))?;
        if trace.nodes.iter().any(|node| node.has_duration || node.is_gpu) {
            let what = "is linked already: its nodes have durations; give the trace that ExecutionTraceObserver wrote";
            return Err(Error::new(ErrorKind::Format, what).within(et));
        }
        let kineto = {
            let options = Options { accept_cut: console.accept_cut, ..Options::default() };
            let (options, _bar) = with_progress(options, &opened_timeline, console);
            Kineto::read(opened_timeline, &options)?
        };
        print_remarks(timeline, &kineto.counts, console);
        let linked = link(&trace, &kineto).map_err(|error| error.within(timeline).within(et))?;
        print_doubts(et, &linked, console);
        create_folder(&self.output)?;
        let tag = tag(et);
        let file = |name: String| Target::File(self.output.join(name));
        file(format!("pytorch_et_plus_{tag}.json")).write(console, |out| write_linked_trace(&linked, out))?;
        file(format!("chakra_trace_{tag}.et")).write(console, |out| write_chakra(&linked, out))?;
        Ok(Joined { tag, rank, coverage: linked.coverage })
    }
}

/// Opens the execution trace and the Kineto trace of a pair.
///
/// # Errors
/// Returns `Format` if one of the files has the wrong kind, or if the two files are in the wrong order.
fn open_pair(et: &Source, timeline: &Source) -> Result<(Opened, Opened)> {
    let (first, second) = (et.open()?, timeline.open()?);
    let refuse = |what: String| Err(Error::new(ErrorKind::Format, what));
    match (first.kind(), second.kind()) {
        (Kind::ExecutionTrace, Kind::Chrome) => Ok((first, second)),
        (Kind::Chrome, Kind::ExecutionTrace) => refuse(format!(
            "the files are swapped: {timeline} is the execution trace; give it first, then {et}"
        )),
        (Kind::ExecutionTrace, other) => refuse(format!(
            "{timeline}: is {other}, not a Kineto trace; give the JSON that torch.profiler wrote in the same window"
        )),
        (other, _) => refuse(format!(
            "{et}: is {other}, not a PyTorch execution trace; give the JSON that ExecutionTraceObserver wrote"
        )),
    }
}

fn create_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| Error::from(error).within(folder.display()))
}

/// Returns the part of the execution trace's file name that is used in the names of the output files.
fn tag(et: &Source) -> String {
    let Source::File(path) = et else { return "stdin".to_owned() };
    let name = path.file_name().map_or_else(|| "et".to_owned(), |name| name.to_string_lossy().into_owned());
    let name = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    let name = name.strip_suffix(".json").unwrap_or(name);
    let tag = name.strip_prefix("pytorch_et_").unwrap_or(name);
    if tag.is_empty() { "et".to_owned() } else { tag.to_owned() }
}

/// Prints remarks on properties of the traces that make the combined trace doubtful.
fn print_doubts(et: &Source, linked: &LinkedTrace<'_>, console: Console) {
    let coverage = &linked.coverage;
    let remark = |what: String| console.remark(format!("{et}: {what}"));
    if coverage.paired_by == PairedBy::NameOrder {
        remark(
            "the Kineto trace has no Record function ids: operators are paired by the order of their names"
                .to_owned(),
        );
    }
    if coverage.fitting_places > 1 {
        remark(format!(
            "the operators fit {} places in the Kineto trace, such as the steps of a loop or threads that \
             run the same; the first place is used, which may be another one",
            group_digits(coverage.fitting_places)
        ));
    }
    if coverage.other_names > 0 {
        remark(format!(
            "{} operators are not paired, because Kineto's operator with their number has another name",
            group_digits(coverage.other_names)
        ));
    }
    let missing = coverage.operators - coverage.operators_linked;
    if missing > 0 {
        let (verb, them) = if missing == 1 { ("has", "it") } else { ("have", "them") };
        let (missing, all) = (group_digits(missing), group_digits(coverage.operators));
        remark(format!(
            "{missing} of {all} operators {verb} no times: the Kineto trace does not have {them}"
        ));
    }
    if coverage.ambiguous > 0 {
        remark(format!(
            "calls of several processes may have launched {} pieces of GPU work; the last call before the work is \
             taken; give a Kineto trace of one process",
            group_digits(coverage.ambiguous)
        ));
    }
    if linked.trace.skipped_nodes > 0 {
        let count = group_digits(linked.trace.skipped_nodes);
        remark(format!("{count} nodes have no id below 2^63, and are left out"));
    }
    if linked.trace.lost_parents > 0 {
        let what = if linked.trace.lost_parents == 1 { "node names" } else { "nodes name" };
        remark(format!("{} {what} a parent that is not there", group_digits(linked.trace.lost_parents)));
    }
    if coverage.contradicted > 0 {
        let (one, more) = ("dependency is", "dependencies are");
        let what = if coverage.contradicted == 1 { one } else { more };
        remark(format!("{} {what} left out because times contradict", group_digits(coverage.contradicted)));
    }
}

fn linked_table(all: &[Joined]) -> Table {
    const COLUMNS: [&str; 9] = [
        "rank",
        "operators",
        "operators_linked",
        "gpu_work",
        "in_window",
        "linked",
        "share_percent",
        "gpu_time_ns",
        "tag",
    ];
    let mut table = Table::new("linked", &COLUMNS);
    for one in all {
        let coverage = &one.coverage;
        table.add_row([
            one.rank.map_or(Cell::Nothing, |rank| Cell::Id(rank.into())),
            Cell::Count(coverage.operators),
            Cell::Count(coverage.operators_linked),
            Cell::Count(coverage.work),
            Cell::Count(coverage.work_in_window()),
            Cell::Count(coverage.work_linked),
            Cell::share(coverage.work_linked, coverage.work_in_window()),
            Cell::Nanos(coverage.work_linked_ns),
            Cell::Text(one.tag.clone()),
        ]);
    }
    table
}

/// Returns a table of the reasons why GPU work is not linked to an operator; `None` if all work is linked to operators.
fn unlinked_table(all: &[Joined]) -> Option<Table> {
    let mut table = Table::new("not_linked", &["count", "reason", "tag"]);
    for one in all {
        for (reason, count) in Unlinked::ALL.iter().zip(one.coverage.unlinked).filter(|(_, count)| *count > 0)
        {
            table.add_row([Cell::Count(count), Cell::from(reason.words()), Cell::Text(one.tag.clone())]);
        }
    }
    (!table.rows().is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_named_like_the_execution_trace() {
        for (path, expected) in [
            ("a/pytorch_et_pid7_1700000000000.json", "pid7_1700000000000"),
            ("dlrm_eg_0.json.gz", "dlrm_eg_0"),
            ("pytorch_et_.json", "et"),
            ("x.et", "x.et"),
        ] {
            assert_eq!(tag(&Source::File(path.into())), expected);
        }
    }
}
