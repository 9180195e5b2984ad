//! Defines the tools of the MCP server: verbs with a description and parameters for an agent. The options of a verb are
//! described by the verb's own help texts.

use std::any::TypeId;
use std::sync::Arc;

use clap::{Arg, Command};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

/// Instructions that a client gives to its agent.
pub(super) const INSTRUCTIONS: &str = "\
gpuflame explains recordings (NAME.gfr) and traces of GPU programs. Call `summary` first, then the tool that its answer \
names; `check` before you trust a surprising figure. Times are in ns, keys that end in _percent in percent, and null is \
unknown. Text after the JSON has remarks on what is missing: repeat them with the figures. A refusal names the reason \
and the next step; a flag in it, such as --accept-cut, is the parameter accept_cut, if the \
tool has it. The tools state facts, not fixes. \
Do not conclude more than they say: busy time is a union over streams; time in a collective includes waiting for other \
ranks; the kernel that ends a gap did not cause it; one rank does not speak for the job; what was not recorded is \
unknown, not zero; savings do not add up. No tool records: that is `gpuflame run COMMAND`, in a shell.";

/// A tool of the MCP server, and the verb that it runs.
#[derive(Debug)]
pub(super) struct ToolSpec {
    pub(super) name: &'static str,
    pub(super) verb: &'static str,
    title: &'static str,
    /// Description for the agent. The description states which answers the tool can and cannot give.
    about: &'static str,
    pub(super) inputs: &'static [Input],
    /// Names of the verb's options that are parameters of the tool, with `_` instead of `-`.
    options: &'static [&'static str],
    pub(super) output: OutputKind,
}

/// A parameter of a tool that is not an option of the verb.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) kind: InputKind,
    about: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputKind {
    /// A file to read.
    File,
    /// Files or folders to read.
    Files,
    /// A file with which the other file is compared. The agent may omit this parameter.
    Baseline,
    /// A file to write, which must not exist yet.
    NewFile,
    /// Command-line words. The agent may omit this parameter.
    Words,
}

/// Form of a verb's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputKind {
    Json,
    /// Lines of a CSV file.
    Csv,
    /// A file, and a remark that the file was written.
    File,
}

const FILE: Input = Input {
    name: "file",
    kind: InputKind::File,
    about: "Path of a recording (NAME.gfr) or a trace of torch.profiler, Nsight Systems, rocprofv3 or another tool.",
};
const ONE_FILE: &[Input] = &[FILE];

pub(super) const TOOLS: &[ToolSpec] = &[
    ToolSpec {
        name: "summary",
        verb: "summary",
        title: "Summarize a run",
        about: "Call this first. At most 8,000 bytes: how busy each GPU was, where and why it was idle, what limits the \
                run, the most expensive GPU work, copies, steps, what was lost, and the next command. It withholds idle \
                time if work of many launches is missing. It cannot tell what would be saved by a change, nor what other \
                ranks did.",
        inputs: ONE_FILE,
        options: &["accept_cut"],
        output: OutputKind::Json,
    },
    ToolSpec {
        name: "top",
        verb: "top",
        title: "Rank GPU work",
        about: "Ranks one aspect of a run, named in `by`: kernels, stacks, source lines, functions, copies, launch \
                delays, idle time, communication between GPUs, or slack. Shares refer to all rows, also to those that `number` \
                leaves out. It cannot tell why a kernel is slow inside, and time in a collective includes waiting for \
                other ranks. Sums of kernels can exceed the run's duration, because kernels overlap.",
        inputs: ONE_FILE,
        options: &["by", "number", "self", "comm", "backward", "accept_cut"],
        output: OutputKind::Json,
    },
    ToolSpec {
        name: "info",
        verb: "info",
        title: "Show the contents of a file",
        about: "Lists the contents of a file: program, GPUs, numbers of launches and activities, the share of GPU time \
                that is linked to launches, parts of the run, steps, and losses. Use it to learn which questions the \
                file can answer. It cannot tell whether the figures are plausible: that is `check`.",
        inputs: ONE_FILE,
        options: &[],
        output: OutputKind::Json,
    },
    ToolSpec {
        name: "check",
        verb: "check",
        title: "Look for doubtful data",
        about: "Lists doubtful data: `BAD` findings make sums, links or orders wrong, `note` findings are worth knowing, \
                `unknown` means that the file lacks the data for a check. It cannot find work that left no trace at all.",
        inputs: ONE_FILE,
        options: &["accept_cut"],
        output: OutputKind::Json,
    },
    ToolSpec {
        name: "view",
        verb: "view",
        title: "List single activities",
        about: "Lists single kernels, copies and fills in order of time, filtered by kind, name, GPU, stream and time. \
                Needs single activities: a trace, or a recording made with `gpuflame run --rows`. Neighbours in the list \
                did not cause each other.",
        inputs: ONE_FILE,
        options: &["number", "stats", "kind", "name", "device", "stream", "from", "to", "accept_cut"],
        output: OutputKind::Json,
    },
    ToolSpec {
        name: "diff",
        verb: "diff",
        title: "Compare two runs",
        about: "Compares two runs by total, per step, kernel, stack and module. `sure` says whether the mean duration \
                changed by more than chance, if durations are independent. It cannot tell a change of the program from a \
                changed GPU clock: compare two recordings of each variant. Differences of rows do not add up to a \
                difference of the run's duration.",
        inputs: &[
            Input { name: "before", kind: InputKind::File, about: "Path of the run before the change." },
            Input { name: "after", kind: InputKind::File, about: "Path of the run after the change." },
        ],
        options: &["number", "accept_cut"],
        output: OutputKind::Json,
    },
    ToolSpec {
        name: "merge_ranks",
        verb: "merge-ranks",
        title: "Find the rank that delays a job",
        about: "Compares the ranks of one job, and names the straggler: the rank that spends the least time in \
                communication, if its steps differ by more than chance. It names none if the data does not support it. \
                It cannot tell anything about ranks whose files are missing.",
        inputs: &[Input {
            name: "files",
            kind: InputKind::Files,
            about: "Paths of recordings or traces, one per rank, or of folders of such files.",
        }],
        options: &["number", "assume_order", "accept_cut"],
        output: OutputKind::Json,
    },
    ToolSpec {
        name: "stats",
        verb: "stats",
        title: "Average the steps of an inference server",
        about: "Averages the GPU operations of equal steps, and the idle time before each (bubble), as CSV. Set `trim` \
                to `none` and `max` to the longest step that counts unless the trace is of sglang. Needs steps, and \
                single activities. Steps with another sequence of operations are not in the averages.",
        inputs: ONE_FILE,
        options: &["trim", "max", "min", "bubbles", "accept_cut"],
        output: OutputKind::Csv,
    },
    ToolSpec {
        name: "settings",
        verb: "settings",
        title: "List the settings of the recorder",
        about: "Lists the environment variables of the library that records: the ten that matter first, some by name, or \
                all. It cannot tell how a recording was made.",
        inputs: &[Input {
            name: "names",
            kind: InputKind::Words,
            about: "Names of settings, with or without GPUFLAME_.",
        }],
        options: &["all"],
        output: OutputKind::Json,
    },
    ToolSpec {
        name: "flamegraph",
        verb: "flamegraph",
        title: "Draw a flame graph into a new file",
        about: "Writes a picture for a person (.svg), or stacks with their sums as text (.folded), to a new file. Widths \
                are sums, not an order of time. Existing files are refused.",
        inputs: &[
            FILE,
            Input {
                name: "before",
                kind: InputKind::Baseline,
                about: "Path of a run to compare with: draws `file`, in red what grew since, in blue what shrank.",
            },
            Input {
                name: "output",
                kind: InputKind::NewFile,
                about: "Path of the new file, which ends in .svg or .folded.",
            },
        ],
        options: &["view", "backward", "internal_frames", "accept_cut"],
        output: OutputKind::File,
    },
    ToolSpec {
        name: "convert",
        verb: "convert",
        title: "Convert to the format of another tool",
        about: "Writes a recording or trace to a new file for another tool; the ending chooses the format: .json \
                (Chrome), .pftrace (Perfetto), .pb.gz (pprof), .speedscope.json, .parquet, .arrow, .csv, .folded, .svg. \
                Most need single activities. Existing files are refused.",
        inputs: &[
            FILE,
            Input {
                name: "output",
                kind: InputKind::NewFile,
                about: "Path of the new file, which ends in one of the endings above.",
            },
        ],
        options: &["view", "accept_cut"],
        output: OutputKind::File,
    },
];

impl ToolSpec {
    /// Describes the tool to a client. `command` describes the arguments of all verbs.
    pub(super) fn describe(&self, command: &Command) -> Tool {
        let verb = command.find_subcommand(self.verb);
        let options = self.options.iter().filter_map(|name| {
            let long = name.replace('_', "-");
            let known = verb?.get_arguments().find(|known| known.get_long() == Some(long.as_str()))?;
            Some(((*name).to_owned(), option_schema(known)))
        });
        let inputs = self.inputs.iter().map(|input| (input.name.to_owned(), input.schema()));
        let properties: JsonObject = inputs.chain(options).collect();
        let required: Vec<_> =
            self.inputs.iter().filter(|input| input.is_required()).map(|input| input.name).collect();
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        let Value::Object(schema) = schema else { unreachable!("the schema above is an object") };
        let hints = ToolAnnotations::with_title(self.title)
            .read_only(self.output != OutputKind::File)
            .destructive(false)
            .idempotent(self.output != OutputKind::File)
            .open_world(false);
        let mut tool = Tool::new(self.name, self.about, Arc::new(schema));
        tool.annotations = Some(hints);
        tool
    }
}

impl Input {
    pub(super) fn is_required(&self) -> bool {
        !matches!(self.kind, InputKind::Baseline | InputKind::Words)
    }

    fn schema(&self) -> Value {
        match self.kind {
            InputKind::Files => {
                json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "description": self.about})
            }
            InputKind::Words => {
                json!({"type": "array", "items": {"type": "string"}, "description": self.about})
            }
            InputKind::File | InputKind::Baseline | InputKind::NewFile => {
                json!({"type": "string", "description": self.about})
            }
        }
    }
}

/// Returns the JSON Schema of an option. The schema's description is the option's help text.
fn option_schema(option: &Arg) -> Value {
    let mut about = option.get_help().map(ToString::to_string).unwrap_or_default();
    if !option.get_action().takes_values() {
        return json!({"type": "boolean", "description": about});
    }
    let values: Vec<_> =
        option.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect();
    for value in &values {
        if let Some(help) = value.get_help() {
            about += &format!("\n`{}`: {help}", value.get_name());
        }
    }
    let parsed = option.get_value_parser().type_id();
    let is_number = parsed == TypeId::of::<usize>() || parsed == TypeId::of::<u32>();
    let mut one = json!({"type": if is_number { "integer" } else { "string" }});
    if is_number {
        one["minimum"] = 0.into();
    }
    if !values.is_empty() {
        one["enum"] = values.iter().map(|value| value.get_name()).collect();
    }
    let takes_several =
        option.get_value_delimiter().is_some() || matches!(option.get_action(), clap::ArgAction::Append);
    if takes_several {
        one = json!({"type": "array", "items": one});
    }
    let defaults: Vec<_> = option.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() {
        about += &format!("\nDefault: {}", defaults.join(", "));
    }
    one["description"] = about.into();
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn command() -> Command {
        crate::usage::complete(crate::Command::command())
    }

    #[test]
    fn every_option_of_a_tool_is_an_option_of_its_verb() {
        for spec in TOOLS {
            let tool = spec.describe(&command());
            let properties = tool.input_schema["properties"].as_object().unwrap();
            assert_eq!(properties.len(), spec.inputs.len() + spec.options.len(), "{}", spec.name);
            for (name, schema) in properties {
                assert!(
                    schema["description"].as_str().is_some_and(|text| text.len() > 10),
                    "{name}: {schema}"
                );
            }
        }
    }

    #[test]
    fn schemas_have_the_types_and_values_of_the_options() {
        let top = TOOLS.iter().find(|spec| spec.name == "top").unwrap().describe(&command());
        let properties = &top.input_schema["properties"];
        let values = ["kernels", "stacks", "line", "function", "copies", "delay", "idle", "comm", "slack"];
        assert_eq!(properties["by"]["items"]["enum"], json!(values));
        assert_eq!(properties["number"]["type"], "integer");
        assert_eq!(properties["self"]["type"], "boolean");
        assert_eq!(properties["file"]["type"], "string");
        assert_eq!(top.input_schema["required"], json!(["file"]));
    }

    #[test]
    fn only_tools_that_write_no_file_are_read_only() {
        for spec in TOOLS {
            let hints = spec.describe(&command()).annotations.unwrap();
            let writes = ["flamegraph", "convert"].contains(&spec.name);
            assert_eq!(
                (hints.read_only_hint, hints.destructive_hint),
                (Some(!writes), Some(false)),
                "{}",
                spec.name
            );
        }
    }
}
