//! `gpuflame instructions`: lists launches, copies, fills, waits and records of CUDA events in order, for people and
//! for programs that replay the instructions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use clap::{Args, ValueEnum};

use super::console::{Console, Outcome, usage_error};
use super::explain::explain_opened;
use super::heading::heading;
use super::input::Source;
use super::instruction_fields::{
    COLUMNS, Clock, after_text, call_name, csv_cells, fields, write_json_head, write_json_line,
};
use super::output::Target;
use super::page::Page;
use super::stream_flags::StreamFlags;
use super::table_output::{Cell, ReportFormat, Table, group_digits, write_tables};
use gpuflame_export::work_name;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::EventId;
use gpuflame_offline::analysis::{
    Instruction, InstructionDetail, InstructionKind, InstructionList, InstructionOrder, InstructionRows,
};
use gpuflame_offline::run::ReadOptions;
use gpuflame_traces::import::Kind;

/// Default number of instructions in text output.
const DEFAULT_NUMBER: usize = 20;
/// Maximum number of streams that an error message lists.
const MAX_LISTED: usize = 16;

/// List launches, copies, fills, waits and event records in order, with their dependencies.
///
/// docs/instructions.md describes the fields.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame instructions trace.json.gz --stream 7\n  \
    gpuflame instructions run.gfr --format jsonl -o run.jsonl\n  \
    gpuflame instructions run.gfr --count")]
pub(super) struct Instructions {
    /// Recording or trace (`-`: standard input).
    input: Source,
    /// Maximum number of instructions to show; 0: all. Default: 20 instructions in text, all instructions in CSV and
    /// JSON.
    #[arg(short, long, visible_alias = "limit")]
    number: Option<usize>,
    /// Show only instructions of these kinds.
    #[arg(short, long, value_delimiter = ',', value_name = "KIND")]
    kind: Vec<KnownKind>,
    #[command(flatten)]
    shown: StreamFlags,
    /// Order of the instructions: by the host's call, or by the start on the GPU.
    #[arg(long, value_name = "ORDER", default_value = "issue")]
    by: KnownOrder,
    /// Show the number of instructions per GPU, stream and kind instead.
    #[arg(long)]
    count: bool,
    /// Output format. Default: the format that the ending of the output file names, otherwise text.
    #[arg(short, long)]
    format: Option<InstructionFormat>,
    /// Output file (`-`: standard output).
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KnownKind {
    Kernel,
    Copy,
    #[value(alias = "set")]
    Fill,
    Graph,
    /// A node of a graph that calls a function on the host.
    #[value(name = "host_function")]
    HostFunction,
    /// A launch whose work is not in the file.
    Launch,
    /// A CUDA event that is recorded on a stream.
    Record,
    /// A stream that waits for a CUDA event.
    Wait,
    /// A wait of the host.
    Synchronize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KnownOrder {
    /// Sorted by the time of the host's call.
    Issue,
    /// Sorted by the start on the GPU; instructions without GPU work by the time of their call.
    Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InstructionFormat {
    /// Aligned columns.
    Text,
    /// JSON Lines: a line with facts about the file, then one object per instruction.
    #[value(alias = "json")]
    Jsonl,
    /// CSV with one row per instruction.
    Csv,
}

impl KnownKind {
    fn kind(self) -> InstructionKind {
        match self {
            Self::Kernel => InstructionKind::Kernel,
            Self::Copy => InstructionKind::Copy,
            Self::Fill => InstructionKind::Fill,
            Self::Graph => InstructionKind::Graph,
            Self::HostFunction => InstructionKind::HostFunction,
            Self::Launch => InstructionKind::Launch,
            Self::Record => InstructionKind::Record,
            Self::Wait => InstructionKind::Wait,
            Self::Synchronize => InstructionKind::Synchronize,
        }
    }
}

impl Instructions {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        self.shown.check()?;
        let format = self.format()?;
        let mut rows = InstructionRows::default();
        // Every instruction needs the API call that issued it. The options for reading therefore have no memory limit,
        // because a limit would drop stacks.
        let options = ReadOptions::default();
        let mut explained = explain_opened(&self.input, self.input.open()?, &options, console, &mut rows)?;
        explained.facts.add_to(&mut rows);
        explained.facts.require_rows(&self.input)?;
        let (profile, is_recording) = (&explained.profile, explained.facts.kind == Kind::Recording);
        let list = InstructionList::new(rows, profile);
        if list.is_empty() {
            explained.facts.require_work(&self.input)?;
            return Err(self.error("it has no instructions; `gpuflame info` shows its contents"));
        }
        let window = list.window(profile).unwrap_or_else(|| calls_window(&list));
        let clock = Clock { window, is_recording };
        let shown = Shown { flags: self, list: &list, profile, clock };
        let all = shown.each(0, &mut |_| Ok(()))?;
        if all == 0 {
            return Err(self.nothing_shown(&list));
        }
        let page = Page::of(&self.output, console);
        self.output.write(console, |out| match (self.count, format) {
            (true, format) => shown.write_counts(format, page, out),
            (_, InstructionFormat::Text) => shown.write_text(page, out),
            (_, InstructionFormat::Jsonl) => shown.write_json(out),
            (_, InstructionFormat::Csv) => shown.write_csv(out),
        })?;
        let most = self.most(format);
        if !self.count && all > most {
            let [most, all] = [most, all].map(|count| group_digits(count as u64));
            console.remark(format!("{most} of {all} instructions; -n 0 shows all"));
        }
        Ok(Outcome::Clean)
    }

    /// Returns the format that the user chose, or otherwise the format for the output file's ending.
    fn format(&self) -> Result<InstructionFormat> {
        let ending = self.output.ending().map(str::to_ascii_lowercase);
        match (self.format, ending.as_deref()) {
            (Some(format), _) => Ok(format),
            (None, None | Some("txt")) => Ok(InstructionFormat::Text),
            (None, Some("jsonl" | "ndjson")) => Ok(InstructionFormat::Jsonl),
            (None, Some("csv")) => Ok(InstructionFormat::Csv),
            (None, Some(ending)) => Err(usage_error(format!(
                "cannot write instructions as .{ending}; end the name in .txt, .jsonl or .csv, or use --format"
            ))),
        }
    }

    fn most(&self, format: InstructionFormat) -> usize {
        let default = if format == InstructionFormat::Text { DEFAULT_NUMBER } else { 0 };
        match self.number.unwrap_or(default) {
            0 => usize::MAX,
            number => number,
        }
    }

    fn order(&self) -> InstructionOrder {
        match self.by {
            KnownOrder::Issue => InstructionOrder::Issue,
            KnownOrder::Start => InstructionOrder::Start,
        }
    }

    fn error(&self, what: &str) -> Error {
        Error::new(ErrorKind::Format, format!("{}: {what}", self.input))
    }

    /// Returns the error for filters that no instruction matches. The error's message lists the streams and kinds that
    /// exist in the file.
    fn nothing_shown(&self, list: &InstructionList) -> Error {
        let (mut kinds, mut streams) = (BTreeSet::new(), BTreeSet::new());
        let each = &mut |instruction: &Instruction<'_>| {
            kinds.insert(instruction.kind);
            streams.extend(instruction.device.zip(instruction.stream));
            Ok::<_, Error>(())
        };
        if let Err(error) = list.each(InstructionOrder::Issue, each) {
            return error;
        }
        let kinds: Vec<&str> = kinds.into_iter().map(InstructionKind::word).collect();
        let mut known: Vec<String> = streams
            .iter()
            .take(MAX_LISTED)
            .map(|(device, stream)| format!("GPU {} stream {}", device.0, stream.0))
            .collect();
        known.extend((streams.len() > MAX_LISTED).then(|| "...".to_owned()));
        self.error(&format!(
            "no instruction fulfils all conditions; there are the kinds {}, on {}",
            kinds.join(", "),
            if known.is_empty() { "no known stream".to_owned() } else { known.join(", ") }
        ))
    }
}

/// Returns the times of the first and the last call. If no GPU work has times, the range from the first to the last
/// call is used as the window.
fn calls_window(list: &InstructionList) -> (u64, u64) {
    let (mut first, mut last) = (u64::MAX, 0);
    let each = &mut |instruction: &Instruction<'_>| {
        if let Some(time) = instruction.time(InstructionOrder::Issue) {
            (first, last) = (first.min(time.0), last.max(time.0));
        }
        Ok::<_, std::convert::Infallible>(())
    };
    let Ok(()) = list.each(InstructionOrder::Issue, each);
    (first.min(last), last)
}

/// The instructions that the command-line flags select.
struct Shown<'a> {
    flags: &'a Instructions,
    list: &'a InstructionList,
    profile: &'a Profile,
    clock: Clock,
}

impl Shown<'_> {
    fn wants(&self, instruction: &Instruction<'_>) -> bool {
        let flags = self.flags;
        let is_of_kind = |kind: &KnownKind| kind.kind() == instruction.kind;
        let time = instruction.time(flags.order());
        let moment = |offset| self.clock.window.0.saturating_add(offset);
        (flags.kind.is_empty() || flags.kind.iter().any(is_of_kind))
            && instruction.uses(flags.shown.device, flags.shown.stream)
            && flags.shown.from().is_none_or(|from| time.is_some_and(|time| time.0 >= moment(from)))
            && flags.shown.to().is_none_or(|to| time.is_some_and(|time| time.0 < moment(to)))
    }

    /// Calls `each` with at most `most` of the selected instructions. Returns the number of all selected instructions.
    fn each(&self, most: usize, each: &mut dyn FnMut(&Instruction<'_>) -> Result<()>) -> Result<usize> {
        let mut count = 0;
        self.list.each(self.flags.order(), &mut |instruction| {
            if self.wants(instruction) {
                count += 1;
                if count <= most {
                    each(instruction)?;
                }
            }
            Ok::<_, Error>(())
        })?;
        Ok(count)
    }

    fn write_json(&self, out: &mut dyn Write) -> Result<()> {
        write_json_head(&self.flags.input, self.clock, self.flags.order(), self.list, out)?;
        let most = self.flags.most(InstructionFormat::Jsonl);
        self.each(most, &mut |instruction| {
            let fields = fields(self.clock, self.profile, self.list.rows(), instruction);
            write_json_line(&fields, out)
        })?;
        Ok(())
    }

    fn write_csv(&self, out: &mut dyn Write) -> Result<()> {
        let mut writer = csv::Writer::from_writer(out);
        let failed = |error: csv::Error| Error::new(ErrorKind::Io, error.to_string());
        writer.write_record(COLUMNS).map_err(failed)?;
        self.each(self.flags.most(InstructionFormat::Csv), &mut |instruction| {
            let fields = fields(self.clock, self.profile, self.list.rows(), instruction);
            writer.write_record(csv_cells(&fields)).map_err(failed)
        })?;
        Ok(writer.flush()?)
    }

    fn write_text(&self, page: Page, out: &mut dyn Write) -> Result<()> {
        let columns = &[
            "number",
            "called_ns",
            "thread",
            "kind",
            "device",
            "stream",
            "start_ns",
            "duration_ns",
            "bytes",
            "after",
            "name",
        ];
        let mut table = Table::new("instructions", columns);
        let all = self.each(self.flags.most(InstructionFormat::Text), &mut |instruction| {
            table.add_row(self.text_cells(instruction, page));
            Ok(())
        })?;
        table.set_all_rows(all);
        write_tables(&[heading(&self.flags.input, self.profile)], &[table], ReportFormat::Text, page, out)
    }

    fn text_cells(&self, instruction: &Instruction<'_>, page: Page) -> [Cell; 11] {
        let (profile, moment) = (self.profile, |time| Cell::Moment(self.clock.moment(time)));
        let id = |id: Option<u32>| id.map_or(Cell::Nothing, |id| Cell::Id(id.into()));
        let context = instruction.call.and_then(|call| profile.context(call.context));
        let (bytes, name) = match instruction.detail {
            InstructionDetail::Work { activity, .. } => {
                let bytes = Some(activity.bytes()).filter(|bytes| *bytes > 0);
                let name = page.kernel_cell(work_name(profile, activity.work()).into_owned());
                (bytes.map_or(Cell::Nothing, Cell::Bytes), name)
            }
            _ => (Cell::Nothing, Cell::Text(self.what(instruction))),
        };
        [
            Cell::Id(instruction.number.into()),
            instruction.call.map_or(Cell::Nothing, |call| moment(call.time)),
            id(context.map(|context| context.thread.0)),
            instruction.kind.word().into(),
            instruction.device.map_or(Cell::Nothing, |device| Cell::Gpu(device.0)),
            id(instruction.stream.map(|stream| stream.0)),
            instruction.ran.map_or(Cell::Nothing, |(start, _)| moment(start)),
            instruction.ran.map_or(Cell::Nothing, |(start, end)| Cell::Nanos(end.0 - start.0)),
            bytes,
            match instruction.after {
                [] => Cell::Nothing,
                after => Cell::Text(after_text(after)),
            },
            name,
        ]
    }

    /// Describes an instruction other than a kernel, copy or fill.
    fn what(&self, instruction: &Instruction<'_>) -> String {
        let event = |event: Option<EventId>| event.map(|event| format!("event {}", event.0));
        match instruction.detail {
            InstructionDetail::Event { event: id } => event(id),
            InstructionDetail::Synchronize { waits_for, event: id, .. } => {
                event(id).or(waits_for.map(|kind| kind.word().to_owned()))
            }
            InstructionDetail::Graph { nodes: Some(nodes), .. } => Some(format!("{nodes} nodes")),
            _ => instruction.call.and_then(|call| call_name(self.profile, call.context)).map(str::to_owned),
        }
        .unwrap_or_default()
    }

    /// Writes the number of instructions for each GPU, stream and kind.
    fn write_counts(&self, format: InstructionFormat, page: Page, out: &mut dyn Write) -> Result<()> {
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        self.each(usize::MAX, &mut |instruction| {
            let place = (instruction.device, instruction.context, instruction.stream);
            *counts.entry((place, instruction.kind)).or_default() += 1;
            Ok(())
        })?;
        let mut table = Table::new("counts", &["device", "context", "stream", "kind", "count"]);
        let id = |id: Option<u32>| id.map_or(Cell::Nothing, |id| Cell::Id(id.into()));
        for (((device, context, stream), kind), count) in counts {
            table.add_row([
                device.map_or(Cell::Nothing, |device| Cell::Gpu(device.0)),
                id(context.map(|context| context.0)),
                id(stream.map(|stream| stream.0)),
                kind.word().into(),
                Cell::Count(count),
            ]);
        }
        if format != InstructionFormat::Jsonl {
            let heading = [heading(&self.flags.input, self.profile)];
            let format =
                if format == InstructionFormat::Csv { ReportFormat::Csv } else { ReportFormat::Text };
            return write_tables(&heading, &[table], format, page, out);
        }
        write_json_head(&self.flags.input, self.clock, self.flags.order(), self.list, out)?;
        for row in table.rows() {
            let known = table.columns().iter().zip(row).filter(|(_, cell)| **cell != Cell::Nothing);
            let object: serde_json::Map<_, _> =
                known.map(|(name, cell)| ((*name).to_owned(), cell.for_json())).collect();
            writeln!(out, "{}", serde_json::Value::Object(object))?;
        }
        Ok(())
    }
}
