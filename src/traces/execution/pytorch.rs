//! Reads PyTorch's execution trace (ET). A node in the file has one of two forms. In version 1.0.1 of the format, all
//! fields are members of the node itself. Since version 1.0.2, inputs and outputs are objects, the parent is the member
//! `ctrl_deps`, and all other fields are in a list of attributes. The reader accepts both forms of nodes, regardless of
//! the version number in the file.

use std::collections::HashMap;

use crate::import::json::document::{self, Document};
use crate::import::{Opened, Options, Text};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Fields at the beginning of the file, with the values that are written there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Version of the format, such as `1.1.0-chakra.0.0.4`.
    pub schema: String,
    /// Id of the process that ran the operators.
    pub pid: u64,
    /// Date and time at which tracing started, as written in the file.
    pub time: String,
    /// Time at which tracing started, in ms on a clock of the process.
    pub start_ts: u64,
    /// Time at which tracing ended, in ms on the clock of `start_ts`.
    pub finish_ts: u64,
}

/// PyTorch's execution trace of one process. The texts in the trace are borrowed from the file's [`Document`].
#[derive(Clone, Debug, Default)]
pub struct ExecutionTrace<'a> {
    /// Fields at the beginning of the file.
    pub header: Header,
    /// Nodes of the trace, in the order of the file. The ids of these nodes are unique.
    pub nodes: Vec<Node<'a>>,
    /// Index of each node in `nodes`, keyed by the node's id.
    pub by_id: HashMap<u64, usize>,
    /// Number of nodes whose parent is not in the file. The field `parent` of these nodes is `None`.
    pub lost_parents: u64,
    /// Number of nodes that were skipped because they have no id, or because the id is 2^63 or more.
    pub skipped_nodes: u64,
}

/// Inputs or outputs of an operator. The inputs or outputs as JSON lists, as written in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values<'a> {
    /// JSON list of the inputs or outputs themselves. A tensor is a list: id, storage id, offset, number of elements,
    /// bytes per element, device.
    pub values: &'a str,
    /// JSON list of the shapes of the inputs or outputs.
    pub shapes: &'a str,
    /// JSON list of the types of the inputs or outputs.
    pub types: &'a str,
    /// JSON list of the strides of the inputs or outputs. Files contain the strides since version 1.1.1.
    pub strides: Option<&'a str>,
}

impl Default for Values<'_> {
    fn default() -> Self {
        Self { values: "[]", shapes: "[]", types: "[]", strides: None }
    }
}

/// An operator or range of an execution trace, or the root of a process or a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node<'a> {
    /// Id of the node, unique in the file.
    pub id: u64,
    /// Name of the operator that the node represents.
    pub name: Text<'a>,
    /// Index of the calling node in [`ExecutionTrace::nodes`]; `None` for the root.
    pub parent: Option<usize>,
    /// Id of this execution of the operator. In Kineto's traces, the same id is called `Record function id`.
    pub rf_id: Option<u64>,
    /// Id of the node of the forward operator, for a backward operator; otherwise 0.
    pub fw_parent: u64,
    /// Sequence number that a forward operator shares with its backward operator; -1 if the node has no such number.
    pub seq_id: i64,
    /// Kind of range: 0 means function, 1 backward function, 7 user scope.
    pub scope: u64,
    /// Id of the thread that ran the operator, as written in the file.
    pub tid: u64,
    /// Id of the thread that ran the forward operator, for a backward operator.
    pub fw_tid: u64,
    /// Signature of the operator.
    pub op_schema: Text<'a>,
    /// Inputs of the operator.
    pub inputs: Values<'a>,
    /// Outputs of the operator.
    pub outputs: Values<'a>,
    /// Name of the process group, for a collective.
    pub pg_name: Text<'a>,
    /// Whether this node is a GPU operation that an operator launched. Nodes for GPU operations occur only in a linked
    /// trace (an execution trace that was combined with a Kineto trace).
    pub is_gpu: bool,
    /// Whether the node has a duration. Only nodes in a linked trace have durations.
    pub has_duration: bool,
    /// All attributes of the node, as a JSON list. The list is `None` in a file of version 1.0.1.
    pub attrs: Option<&'a str>,
    parent_id: Option<u64>,
}

/// Reads the whole file into memory.
///
/// # Errors
/// Returns `Io` and `Format` errors. The messages of these errors do not contain the file's name.
pub fn read_document(opened: Opened, options: &Options) -> Result<Document> {
    opened.bytes(options, |input| Document::read(input).map(Document::with_escaped_bytes))
}

impl<'a> ExecutionTrace<'a> {
    /// Parses a file that is in memory. Nodes without a usable id are skipped and counted. Unknown keys are ignored.
    ///
    /// # Errors `Format`: damaged JSON, no nodes, two nodes with the same id, or a node that is its own ancestor.
    pub fn parse(document: &'a Document) -> Result<Self> {
        let root = document.root().map_err(|error| incomplete_error(&error))?;
        document.check_syntax()?;
        let list = root
            .get("nodes")
            .ok_or_else(|| format_error("has no list of nodes; is it an execution trace?"))?;
        let mut trace = Self { header: Header::parse(root), ..Self::default() };
        for item in list.items() {
            match Node::parse(item) {
                Some(node) => trace.nodes.push(node),
                None => trace.skipped_nodes += 1,
            }
        }
        if trace.nodes.is_empty() {
            return Err(format_error("has no nodes; was the observer started before the operators ran?"));
        }
        for (at, node) in trace.nodes.iter().enumerate() {
            if trace.by_id.insert(node.id, at).is_some() {
                return Err(format_error(format!(
                    "two nodes have the id {}; record the trace again",
                    node.id
                )));
            }
        }
        trace.resolve_parents();
        trace.check_ancestors()?;
        Ok(trace)
    }

    /// Converts the id of each node's parent to an index in `nodes`. In the file, the parent of the root is the root
    /// itself, or a node that is not in the file.
    fn resolve_parents(&mut self) {
        for at in 0..self.nodes.len() {
            let node = self.nodes[at];
            let parent = node.parent_id.filter(|id| *id != node.id);
            let found = parent.and_then(|id| self.by_id.get(&id).copied());
            // In some versions of the format, the id of the root's parent is 0.
            self.lost_parents += u64::from(parent.is_some_and(|id| id != 0) && found.is_none());
            self.nodes[at].parent = found;
        }
    }

    fn check_ancestors(&self) -> Result<()> {
        let mut is_checked = vec![false; self.nodes.len()];
        for start in 0..self.nodes.len() {
            let mut path = Vec::new();
            let mut at = Some(start);
            while let Some(one) = at.filter(|one| !is_checked[*one]) {
                // Each visited node is marked, so that the loop stops when it reaches a node for the second time.
                is_checked[one] = true;
                path.push(one);
                at = self.nodes[one].parent;
            }
            if let Some(one) = at.filter(|one| path.contains(one)) {
                let id = self.nodes[one].id;
                return Err(format_error(format!("node {id} is its own ancestor; record the trace again")));
            }
        }
        Ok(())
    }
}

impl Header {
    fn parse(root: document::Node<'_>) -> Self {
        let text = |key| root.get(key).map(|value| value.text().decode().into_owned()).unwrap_or_default();
        let number = |key| root.get(key).and_then(document::Node::unsigned).unwrap_or(0);
        Self {
            schema: text("schema"),
            pid: number("pid"),
            time: text("time"),
            start_ts: number("start_ts"),
            finish_ts: number("finish_ts"),
        }
    }
}

impl<'a> Node<'a> {
    fn parse(value: document::Node<'a>) -> Option<Self> {
        let mut node = Self { seq_id: -1, ..Self::default() };
        let mut id = None;
        for (key, value) in value.entries() {
            match key.raw() {
                b"id" => id = value.unsigned(),
                b"name" => node.name = value.text(),
                b"parent" | b"ctrl_deps" => node.parent_id = value.unsigned(),
                b"inputs" => set_values(&mut node.inputs, value),
                b"outputs" => set_values(&mut node.outputs, value),
                b"input_shapes" => node.inputs.shapes = json(value),
                b"input_types" => node.inputs.types = json(value),
                b"output_shapes" => node.outputs.shapes = json(value),
                b"output_types" => node.outputs.types = json(value),
                b"cat" => node.is_gpu = true,
                b"inclusive_dur" => node.has_duration = true,
                b"attrs" => {
                    node.attrs = Some(json(value));
                    value.items().for_each(|attribute| node.set_attribute(attribute));
                }
                key => node.set(key, value),
            }
        }
        node.id = id?;
        Some(node)
    }

    /// Reads an attribute: `{"name": "rf_id", "type": "uint64", "value": 7}`.
    fn set_attribute(&mut self, attribute: document::Node<'a>) {
        if let Some((name, value)) = attribute.get("name").zip(attribute.get("value")) {
            self.set(name.text().raw(), value);
        }
    }

    fn set(&mut self, key: &[u8], value: document::Node<'a>) {
        let number = || value.unsigned().unwrap_or(0);
        match key {
            // The roots of threads and of the process are not operators that run. The root nodes have an `rf_id` of 0.
            b"rf_id" => self.rf_id = value.unsigned().filter(|id| *id != 0),
            b"fw_parent" => self.fw_parent = number(),
            b"seq_id" => self.seq_id = value.integer().unwrap_or(-1),
            b"scope" => self.scope = number(),
            b"tid" => self.tid = number(),
            b"fw_tid" => self.fw_tid = number(),
            b"op_schema" => self.op_schema = value.text(),
            b"pg_name" => self.pg_name = value.text(),
            _ => {}
        }
    }
}

/// Reads inputs or outputs, which are an object or (in version 1.0.1 of the format) a plain list of values.
fn set_values<'a>(values: &mut Values<'a>, value: document::Node<'a>) {
    if value.json().first() == Some(&b'[') {
        values.values = json(value);
        return;
    }
    for (key, value) in value.entries() {
        match key.raw() {
            b"values" => values.values = json(value),
            b"shapes" => values.shapes = json(value),
            b"types" => values.types = json(value),
            b"strides" => values.strides = Some(json(value)),
            _ => {}
        }
    }
}

/// Returns the text of a JSON list as written in the file; `[]` if the text is not UTF-8.
fn json(value: document::Node<'_>) -> &str {
    std::str::from_utf8(value.json()).unwrap_or("[]")
}

fn incomplete_error(error: &Error) -> Error {
    let what =
        format!("{error}; the end of the trace is missing: stop the observer before the process exits");
    Error::new(ErrorKind::Format, what)
}

fn format_error(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document::read(text.as_bytes()).unwrap()
    }

    fn error(text: &str) -> String {
        ExecutionTrace::parse(&document(text)).unwrap_err().to_string()
    }

    const OLD: &str = r#"{"schema": "1.0.1", "pid": 9, "time": "2023-07-12 12:47:27", "start_ts": 5, "finish_ts": 8, "nodes": [
        {"name": "aten::t", "id": 3, "rf_id": 4, "parent": 2, "fw_parent": 7, "seq_id": 660, "scope": 1, "tid": 1,
         "fw_tid": 2, "op_schema": "aten::t(Tensor a)", "inputs": [[5,6,0,8,4,"cuda:0"]], "input_shapes": [[2,4]],
         "input_types": ["Tensor(float)"], "outputs": [], "output_shapes": [], "output_types": []},
        {"name": "thread", "id": 2, "rf_id": 0, "parent": 1, "scope": 7, "tid": 1, "inputs": []},
        {"name": "process", "id": 1, "rf_id": 0, "parent": 0, "scope": 7, "tid": 0, "inputs": []}]}"#;
    const NEW: &str = r#"{"schema": "1.1.1-chakra.0.0.4", "pid": 9, "time": "2023-07-12 12:47:27", "start_ts": 5, "nodes": [
        {"id": 3, "name": "aten::t", "ctrl_deps": 2,
         "inputs": {"values": [[5,6,0,8,4,"cuda:0"]], "shapes": [[2,4]], "types": ["Tensor(float)"], "strides": [[4,1]]},
         "outputs": {"values": [], "shapes": [], "types": [], "strides": []},
         "attrs": [{"name": "rf_id", "type": "uint64", "value": 4}, {"name": "fw_parent", "type": "uint64", "value": 7},
          {"name": "seq_id", "type": "int64", "value": 660}, {"name": "scope", "type": "uint64", "value": 1},
          {"name": "tid", "type": "uint64", "value": 1}, {"name": "fw_tid", "type": "uint64", "value": 2},
          {"name": "op_schema", "type": "string", "value": "aten::t(Tensor a)"}]},
        {"id": 2, "name": "thread", "ctrl_deps": 1, "attrs": []},
        {"id": 1, "name": "process", "ctrl_deps": 1, "attrs": []}], "finish_ts": 8}"#;

    #[test]
    fn both_forms_of_nodes_read_the_same() {
        for (text, strides) in [(OLD, None), (NEW, Some("[[4,1]]"))] {
            let document = document(text);
            let trace = ExecutionTrace::parse(&document).unwrap();
            let Header { pid, start_ts, finish_ts, .. } = trace.header;
            assert_eq!((pid, start_ts, finish_ts, trace.lost_parents), (9, 5, 8, 0));
            let node = trace.nodes[0];
            assert_eq!(&*node.name.decode(), "aten::t");
            assert_eq!((node.id, node.parent, node.rf_id), (3, Some(1), Some(4)));
            assert_eq!((node.fw_parent, node.seq_id, node.scope, node.tid, node.fw_tid), (7, 660, 1, 1, 2));
            assert_eq!(&*node.op_schema.decode(), "aten::t(Tensor a)");
            let values = r#"[[5,6,0,8,4,"cuda:0"]]"#;
            assert_eq!(
                (node.inputs.values, node.inputs.shapes, node.inputs.strides),
                (values, "[[2,4]]", strides)
            );
            assert_eq!(
                trace.nodes[1..].iter().map(|node| (node.parent, node.rf_id)).collect::<Vec<_>>(),
                [(Some(2), None), (None, None)]
            );
        }
    }

    #[test]
    fn a_parent_that_is_not_in_the_file_is_counted() {
        let document = document(r#"{"schema": "1", "nodes": [{"id": 3, "name": "a", "parent": 9}]}"#);
        let trace = ExecutionTrace::parse(&document).unwrap();
        assert_eq!((trace.lost_parents, trace.nodes[0].parent), (1, None));
    }

    #[test]
    fn nodes_without_a_usable_id_are_counted() {
        // Of the nodes with unusable ids, one has the id 2^63, one has a text as id, and one has no id. The last
        // element of the list is not an object.
        let text = r#"{"nodes": [{"id": 3}, {"id": 9223372036854775808}, {"id": "x"}, {"name": "a"}, 7]}"#;
        let document = document(text);
        let trace = ExecutionTrace::parse(&document).unwrap();
        assert_eq!((trace.nodes.len(), trace.skipped_nodes), (1, 4));
    }

    #[test]
    fn damaged_files_name_the_damage() {
        assert!(error(&OLD[..OLD.len() - 90]).contains("truncated"));
        assert!(error(r#"{"schema": "1", "nodes": [{"id": 3,, "name": "a"}]}"#).contains("byte 35"));
        assert!(
            error(r#"{"schema": "1", "nodes": [{"id": 3}]} {"a": 1}"#).contains("end of the file at byte 38")
        );
        assert!(error(r#"{"schema": "1"}"#).contains("no list of nodes"));
        assert!(error(r#"{"schema": "1", "nodes": []}"#).contains("no nodes"));
        assert!(error(r#"{"nodes": [{"id": 3}, {"id": 3}]}"#).contains("two nodes have the id 3"));
        let circle = r#"{"nodes": [{"id": 3, "parent": 4}, {"id": 4, "parent": 3}]}"#;
        assert!(error(circle).contains("its own ancestor"));
    }
}
