//! Defines the fields of an instruction in JSON Lines and CSV. Fields whose values the input does not contain are
//! omitted.

use std::borrow::Cow;
use std::io::Write;

use super::input::Source;
use super::table_output::SCHEMA;
use gpuflame_explain::events::JoinedRows;
use gpuflame_export::{clean_line, guarded, work_name};
use gpuflame_model::error::Result;
use gpuflame_model::profile::{Profile, json_string};
use gpuflame_model::record::{ContextId, CopyDetail, Detail, KernelDetail, MemoryKind, Nanos, SetDetail};
use gpuflame_offline::analysis::{After, Instruction, InstructionDetail, InstructionList, InstructionOrder};

/// Declares the fields of an instruction with their names in the output.
macro_rules! fields {
    ($($field:ident $name:literal,)*) => {
        /// A field of an instruction. The fields are in the order of the CSV columns. docs/schema.md describes each
        /// field.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Field { $($field,)* }

        /// Names of the fields, in the order of the CSV columns.
        pub(super) const COLUMNS: [&str; [$(Field::$field,)*].len()] = [$($name,)*];
    };
}

fields! {
    Number "number",
    Kind "kind",
    Name "name",
    Call "call",
    Thread "thread",
    CalledNs "called_ns",
    CallDurationNs "call_duration_ns",
    Correlation "correlation",
    MissingCall "missing_call",
    Device "device",
    Context "context",
    Stream "stream",
    Streams "streams",
    StartNs "start_ns",
    EndNs "end_ns",
    Grid "grid",
    Block "block",
    SharedBytes "shared_bytes",
    Registers "registers",
    Direction "direction",
    From "from",
    To "to",
    FromDevice "from_device",
    ToDevice "to_device",
    Bytes "bytes",
    Value "value",
    IsAsync "is_async",
    Event "event",
    WaitsFor "waits_for",
    Result "result",
    Graph "graph",
    Node "node",
    Nodes "nodes",
    Launch "launch",
    DeviceLaunched "device_launched",
    Programmatic "programmatic",
    After "after",
}

/// The clock to which the times in the output refer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Start and end of the window in ns, on the clock of the input file.
    pub(super) window: (u64, u64),
    pub(super) is_recording: bool,
}

impl Clock {
    /// Converts a time on the file's clock to ns since the start of the window.
    pub(super) fn moment(self, time: Nanos) -> i64 {
        let nanos = i128::from(time.0) - i128::from(self.window.0);
        nanos.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// Value of a field.
#[derive(Debug)]
pub(super) enum Value<'a> {
    Number(u64),
    Moment(i64),
    Text(Cow<'a, str>),
    Flag(bool),
    Numbers(Vec<u32>),
    After(&'a [After]),
}

/// Values of an instruction's fields, indexed by field; `None` for fields that the instruction does not have.
pub(super) struct Fields<'a>([Option<Value<'a>>; COLUMNS.len()]);

impl<'a> Fields<'a> {
    fn add(&mut self, field: Field, value: Value<'a>) {
        self.0[field as usize] = Some(value);
    }

    fn number(&mut self, field: Field, number: impl Into<u64>) {
        self.add(field, Value::Number(number.into()));
    }

    /// Adds a field with a number, if the number is known.
    fn known(&mut self, field: Field, number: Option<impl Into<u64>>) {
        if let Some(number) = number {
            self.number(field, number);
        }
    }

    /// Adds a field with a number, unless the number is 0. The number 0 means that the value is unknown.
    fn nonzero(&mut self, field: Field, number: impl Into<u64>) {
        let number = number.into();
        self.known(field, Some(number).filter(|number| *number != 0));
    }

    fn text(&mut self, field: Field, text: impl Into<Cow<'a, str>>) {
        self.add(field, Value::Text(text.into()));
    }

    fn memory(&mut self, field: Field, memory: MemoryKind) {
        if memory != MemoryKind::UNKNOWN {
            self.text(field, memory.label());
        }
    }
}

/// Returns the name of the API call of a launch context, if the name is known.
pub(super) fn call_name(profile: &Profile, context: ContextId) -> Option<&str> {
    let name = gpuflame_export::compose::call(profile, context);
    Some(name).filter(|name| !name.starts_with('['))
}

/// Returns the fields of an instruction.
pub(super) fn fields<'a>(
    clock: Clock,
    profile: &'a Profile,
    rows: &JoinedRows,
    instruction: &Instruction<'a>,
) -> Fields<'a> {
    let mut fields = Fields([const { None }; COLUMNS.len()]);
    fields.number(Field::Number, instruction.number);
    fields.text(Field::Kind, instruction.kind.word());
    add_call(&mut fields, clock, profile, instruction);
    fields.known(Field::Correlation, rows.source_id(instruction.correlation));
    fields.known(Field::Device, instruction.device.map(|device| device.0));
    fields.known(Field::Context, instruction.context.map(|context| context.0));
    fields.known(Field::Stream, instruction.stream.map(|stream| stream.0));
    if let Some((start, end)) = instruction.ran {
        fields.add(Field::StartNs, Value::Moment(clock.moment(start)));
        fields.add(Field::EndNs, Value::Moment(clock.moment(end)));
    }
    add_detail(&mut fields, clock, profile, instruction);
    if !instruction.after.is_empty() {
        fields.add(Field::After, Value::After(instruction.after));
    }
    fields
}

fn add_call<'a>(fields: &mut Fields<'a>, clock: Clock, profile: &'a Profile, instruction: &Instruction<'a>) {
    let Some(call) = instruction.call else { return };
    if let Some(name) = call_name(profile, call.context) {
        fields.text(Field::Call, name);
    }
    fields.known(Field::Thread, profile.context(call.context).map(|context| context.thread.0));
    fields.add(Field::CalledNs, Value::Moment(clock.moment(call.time)));
    fields.known(Field::CallDurationNs, call.duration);
}

fn add_detail<'a>(
    fields: &mut Fields<'a>,
    clock: Clock,
    profile: &'a Profile,
    instruction: &Instruction<'a>,
) {
    match instruction.detail {
        InstructionDetail::Work { activity, launch, missing } => {
            if let Some(missing) = missing {
                fields.text(Field::MissingCall, missing.word());
            }
            fields.nonzero(Field::Graph, activity.graph.0);
            fields.nonzero(Field::Node, activity.graph_node.0);
            fields.known(Field::Launch, launch);
            if activity.device_launched {
                fields.add(Field::DeviceLaunched, Value::Flag(true));
            }
            if let Some(is_programmatic) = instruction.programmatic {
                fields.add(Field::Programmatic, Value::Flag(is_programmatic));
            }
            match &activity.detail {
                Detail::Kernel(kernel) => {
                    fields.text(Field::Name, work_name(profile, activity.work()));
                    add_kernel(fields, kernel);
                }
                Detail::Copy(copy) => add_copy(fields, copy, clock.is_recording),
                Detail::Set(fill) => add_fill(fields, fill, clock.is_recording),
                Detail::Graph => {}
            }
        }
        InstructionDetail::HostFunction { run, launch } => {
            fields.nonzero(Field::Graph, run.graph.0);
            fields.nonzero(Field::Node, run.node.0);
            fields.known(Field::Launch, launch);
        }
        InstructionDetail::Graph { graph, nodes, streams } => {
            fields.known(Field::Graph, graph.map(|graph| graph.0));
            fields.known(Field::Nodes, nodes);
            if let Some(streams) = streams.filter(|streams| streams.len() > 1) {
                let numbers = streams.iter().map(|(_, _, stream)| stream.0).collect();
                fields.add(Field::Streams, Value::Numbers(numbers));
            }
        }
        InstructionDetail::Launch => {}
        InstructionDetail::Event { event } => fields.known(Field::Event, event.map(|event| event.0)),
        InstructionDetail::Synchronize { waits_for, event, result } => {
            if let Some(kind) = waits_for {
                fields.text(Field::WaitsFor, kind.word());
            }
            fields.known(Field::Event, event.map(|event| event.0));
            fields.nonzero(Field::Result, result);
        }
    }
}

fn add_kernel(fields: &mut Fields<'_>, kernel: &KernelDetail) {
    // A kernel has at least one block, so a grid of 0 means that the grid is unknown.
    if kernel.grid != [0; 3] {
        fields.add(Field::Grid, Value::Numbers(kernel.grid.to_vec()));
        fields.add(Field::Block, Value::Numbers(kernel.block.to_vec()));
        fields.number(Field::SharedBytes, u64::from(kernel.static_shared) + u64::from(kernel.dynamic_shared));
    }
    fields.nonzero(Field::Registers, kernel.registers);
}

fn add_copy(fields: &mut Fields<'_>, copy: &CopyDetail, is_recording: bool) {
    let direction = copy.kind.label();
    if direction != "unknown" {
        fields.text(Field::Direction, direction);
    }
    fields.memory(Field::From, copy.from);
    fields.memory(Field::To, copy.to);
    if let Some((from, to)) = copy.peers {
        fields.number(Field::FromDevice, from.0);
        fields.number(Field::ToDevice, to.0);
    }
    fields.nonzero(Field::Bytes, copy.bytes);
    // Traces of other tools do not state whether a copy is asynchronous.
    if is_recording {
        fields.add(Field::IsAsync, Value::Flag(copy.is_async));
    }
}

fn add_fill(fields: &mut Fields<'_>, fill: &SetDetail, is_recording: bool) {
    fields.memory(Field::To, fill.memory);
    fields.nonzero(Field::Bytes, fill.bytes);
    if is_recording {
        fields.number(Field::Value, fill.value);
        fields.add(Field::IsAsync, Value::Flag(fill.is_async));
    }
}

/// Writes the first line of JSON Lines output. This line has facts about the file.
pub(super) fn write_json_head(
    source: &Source,
    clock: Clock,
    order: InstructionOrder,
    list: &InstructionList,
    out: &mut dyn Write,
) -> Result<()> {
    let order = match order {
        InstructionOrder::Issue => "issue",
        InstructionOrder::Start => "start",
    };
    let clock_word = if clock.is_recording { "unix" } else { "file" };
    let file = json_string(&clean_line(&source.to_string()));
    let (zero, end) = clock.window;
    let (window, count) = (end - zero, list.len());
    write!(out, "{{\"schema\":{SCHEMA},\"file\":{file},\"clock\":\"{clock_word}\",\"zero_ns\":{zero},")?;
    writeln!(out, "\"window_ns\":{window},\"order\":\"{order}\",\"instructions\":{count}}}")?;
    Ok(())
}

/// Writes an instruction as one line of JSON.
pub(super) fn write_json_line(fields: &Fields<'_>, out: &mut dyn Write) -> Result<()> {
    let known = COLUMNS.iter().zip(&fields.0).filter_map(|(name, value)| Some((name, value.as_ref()?)));
    for (at, (name, value)) in known.enumerate() {
        let open = if at == 0 { "{" } else { "," };
        write!(out, "{open}\"{name}\":")?;
        match value {
            Value::Number(number) => write!(out, "{number}")?,
            Value::Moment(nanos) => write!(out, "{nanos}")?,
            Value::Flag(flag) => write!(out, "{flag}")?,
            Value::Text(text) => write!(out, "{}", json_string(&clean_line(text)))?,
            Value::Numbers(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
                write!(out, "[{}]", numbers.join(","))?;
            }
            Value::After(all) => {
                let one = |after: &After| {
                    format!("{{\"number\":{},\"reason\":\"{}\"}}", after.number, after.reason.word())
                };
                let all: Vec<String> = all.iter().map(one).collect();
                write!(out, "[{}]", all.join(","))?;
            }
        }
    }
    Ok(writeln!(out, "}}")?)
}

/// Returns the cells of an instruction's CSV row.
pub(super) fn csv_cells(fields: &Fields<'_>) -> impl Iterator<Item = String> {
    fields.0.iter().map(|value| match value {
        None => String::new(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Moment(nanos)) => nanos.to_string(),
        Some(Value::Flag(flag)) => flag.to_string(),
        Some(Value::Text(text)) => guarded(&clean_line(text)).into_owned(),
        Some(Value::Numbers(numbers)) => numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
        Some(Value::After(all)) => after_text(all),
    })
}

/// Returns the dependencies of an instruction as text, such as `3 stream, 7 event`: the number of the instruction that
/// must come first, and the reason.
pub(super) fn after_text(all: &[After]) -> String {
    let one = |after: &After| format!("{} {}", after.number, after.reason.word());
    all.iter().map(one).collect::<Vec<_>>().join(", ")
}
