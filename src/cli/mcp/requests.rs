//! Converts the arguments of a tool call to the words of a command line. An argument's value never becomes an option,
//! even if it begins with `-`. A value of `-` is the name of a file, because the client uses standard input for its
//! messages.

use std::path::PathBuf;

use rmcp::model::{JsonObject, Tool};
use serde_json::Value;

use super::tools::{InputKind, OutputKind, ToolSpec};

/// A verb to run, with its command-line words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) verb: &'static str,
    /// The words of the command line after the program's name.
    pub(super) words: Vec<String>,
    /// Whether the verb prints tables as JSON.
    pub(super) is_json: bool,
    /// Paths of the files that the verb creates.
    pub(super) new_files: Vec<PathBuf>,
}

impl Request {
    /// Converts the arguments of a tool call to a request.
    ///
    /// # Errors
    /// Returns a sentence for the agent if an argument is unknown, is missing or has the wrong type.
    pub(super) fn new(spec: &ToolSpec, tool: &Tool, arguments: &JsonObject) -> Result<Self, String> {
        let empty = JsonObject::new();
        let known = tool.input_schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        if let Some(name) = arguments.keys().find(|name| !known.contains_key(*name)) {
            let known: Vec<_> = known.keys().map(String::as_str).collect();
            return Err(format!("`{}` has no parameter `{name}`; it has {}", spec.name, known.join(", ")));
        }
        let mut words = vec![spec.verb.to_owned()];
        let mut request = Self { verb: spec.verb, words: Vec::new(), is_json: false, new_files: Vec::new() };
        match spec.output {
            OutputKind::Json => {
                request.is_json = true;
                words.push("--format=json".to_owned());
            }
            OutputKind::Csv => words.push("--output=-".to_owned()),
            OutputKind::File => {}
        }
        let (mut files, mut baseline) = (Vec::new(), None);
        for input in spec.inputs {
            let Some(value) = arguments.get(input.name).filter(|value| !value.is_null()) else {
                if input.is_required() {
                    return Err(format!("`{}` needs the parameter `{}`", spec.name, input.name));
                }
                continue;
            };
            match input.kind {
                InputKind::File => files.push(path(input.name, value)?),
                InputKind::Files => {
                    let all = items(value).map(|value| path(input.name, value));
                    files.extend(all.collect::<Result<Vec<_>, _>>()?);
                    if files.is_empty() {
                        return Err(format!("`{}` is empty", input.name));
                    }
                }
                InputKind::Baseline => baseline = Some(path(input.name, value)?),
                InputKind::NewFile => {
                    let path = path(input.name, value)?;
                    words.push(format!("--output={path}"));
                    request.new_files = new_files(path.into());
                }
                InputKind::Words => {
                    let all = items(value).map(|value| text(input.name, value));
                    files.extend(all.collect::<Result<Vec<_>, _>>()?);
                }
            }
        }
        for (name, value) in arguments {
            let is_input = spec.inputs.iter().any(|input| input.name == name);
            if !is_input && !value.is_null() {
                add_option(&mut words, name, &known[name], value)?;
            }
        }
        if let Some(baseline) = baseline {
            words.extend(["--diff".to_owned(), baseline]);
            words.append(&mut files);
        }
        words.push("--".to_owned());
        words.append(&mut files);
        request.words = words;
        Ok(request)
    }
}

/// Returns the paths of the files that a verb creates for an output path. If the output is a CSV table of activities,
/// the verb writes the stacks to a second file.
fn new_files(output: PathBuf) -> Vec<PathBuf> {
    let is_table = output.extension().is_some_and(|ending| ending == "csv");
    let stacks = is_table.then(|| output.with_extension("stacks.csv"));
    std::iter::once(output).chain(stacks).collect()
}

fn add_option(words: &mut Vec<String>, name: &str, schema: &Value, value: &Value) -> Result<(), String> {
    let long = name.replace('_', "-");
    if schema["type"] == "boolean" {
        let is_on = value.as_bool().ok_or_else(|| format!("`{name}` must be true or false"))?;
        words.extend(is_on.then(|| format!("--{long}")));
        return Ok(());
    }
    if value.is_array() && schema["type"] != "array" {
        return Err(format!("`{name}` must be a single value"));
    }
    for value in items(value) {
        words.push(format!("--{long}={}", text(name, value)?));
    }
    Ok(())
}

/// Returns the values of an argument that is a list. A single value counts as a list with one item.
fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice).iter()
}

/// Returns a JSON value as a word of the command line. The verb checks the word's content.
fn text(name: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) if text.contains('\0') => Err(format!("`{name}` contains a zero byte")),
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(format!("`{name}` must be a text or a number")),
    }
}

/// Returns a path in a form that verbs cannot mistake for an option or for standard input.
fn path(name: &str, value: &Value) -> Result<String, String> {
    let Value::String(_) = value else { return Err(format!("`{name}` must be a path")) };
    let path = text(name, value)?;
    match path.as_bytes().first() {
        None => Err(format!("`{name}` is empty; name a file")),
        Some(b'-') => Ok(format!("./{path}")),
        Some(_) => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tools::TOOLS;
    use super::*;
    use clap::CommandFactory as _;
    use serde_json::json;

    fn request(name: &str, arguments: &Value) -> Result<Request, String> {
        let spec = TOOLS.iter().find(|spec| spec.name == name).unwrap();
        let tool = spec.describe(&crate::usage::complete(crate::Command::command()));
        Request::new(spec, &tool, arguments.as_object().unwrap())
    }

    fn words(name: &str, arguments: &Value) -> String {
        request(name, arguments).unwrap().words.join(" ")
    }

    #[test]
    fn arguments_become_the_words_that_a_user_would_type() {
        let top = json!({"file": "a.gfr", "by": ["idle", "line"], "number": 3, "self": true, "comm": null});
        assert_eq!(words("top", &top), "top --format=json --by=idle --by=line --number=3 --self -- a.gfr");
        assert_eq!(words("top", &json!({"file": "a", "by": "idle"})), "top --format=json --by=idle -- a");
        let diff = json!({"after": "b", "before": "a"});
        assert_eq!(words("diff", &diff), "diff --format=json -- a b");
        assert_eq!(words("settings", &json!({})), "settings --format=json --");
        let picture = json!({"file": "b", "before": "a", "output": "d.svg"});
        assert_eq!(words("flamegraph", &picture), "flamegraph --output=d.svg --diff a b --");
        let stats = json!({"file": "t.json", "trim": "none", "max": "1s"});
        assert_eq!(words("stats", &stats), "stats --output=- --max=1s --trim=none -- t.json");
    }

    #[test]
    fn values_never_become_options_or_standard_input() {
        assert_eq!(words("summary", &json!({"file": "--version"})), "summary --format=json -- ./--version");
        assert_eq!(words("summary", &json!({"file": "-"})), "summary --format=json -- ./-");
        let ranks = json!({"files": ["-a", "b"]});
        assert_eq!(words("merge_ranks", &ranks), "merge-ranks --format=json -- ./-a b");
        let picture = json!({"file": "a", "before": "--help", "output": "-o.svg"});
        assert_eq!(words("flamegraph", &picture), "flamegraph --output=./-o.svg --diff ./--help a --");
        assert_eq!(words("view", &json!({"file": "a", "name": "--x"})), "view --format=json --name=--x -- a");
        assert_eq!(words("settings", &json!({"names": ["--all"]})), "settings --format=json -- --all");
    }

    #[test]
    fn arguments_that_do_not_fit_are_named() {
        for (name, arguments, expected) in [
            ("summary", json!({}), "`summary` needs the parameter `file`"),
            ("summary", json!({"file": null}), "`summary` needs the parameter `file`"),
            ("summary", json!({"file": ""}), "`file` is empty"),
            ("summary", json!({"file": 3}), "`file` must be a path"),
            ("summary", json!({"file": "a\0b"}), "`file` contains a zero byte"),
            ("summary", json!({"path": "a"}), "`summary` has no parameter `path`; it has accept_cut, file"),
            ("summary", json!({"file": "a", "accept_cut": "yes"}), "`accept_cut` must be true or false"),
            ("top", json!({"file": "a", "number": [1, 2]}), "`number` must be a single value"),
            ("top", json!({"file": "a", "by": {"x": 1}}), "`by` must be a text or a number"),
            ("merge_ranks", json!({"files": []}), "`files` is empty"),
        ] {
            assert_eq!(request(name, &arguments).unwrap_err().split("; name").next().unwrap(), expected);
        }
    }
}
