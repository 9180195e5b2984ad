//! Reads Chakra's protobuf files. This reader was written from the public `et_def.proto` and protobuf's wire format,
//! independently of gpuflame's writer.

use std::collections::{BTreeMap, BTreeSet};

/// Value of a protobuf field: a number, or bytes.
#[derive(Clone, Debug)]
enum Wire {
    Number(u64),
    Bytes(Vec<u8>),
}

/// A node of a Chakra trace. Attributes of any type are stored as text: `int64 5`, `bool true`, `string x`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) kind: u64,
    pub(crate) ctrl_deps: Vec<u64>,
    pub(crate) data_deps: Vec<u64>,
    pub(crate) start_micros: u64,
    pub(crate) micros: u64,
    pub(crate) inputs: String,
    pub(crate) attributes: BTreeMap<String, String>,
}

impl Node {
    /// Value of an attribute of any integer type.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.attributes.get(name)?.split_once(' ')?.1.parse().ok()
    }

    pub(crate) fn is_gpu(&self) -> bool {
        self.attributes.get("is_cpu_op").map(String::as_str) == Some("bool false")
    }
}

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            break;
        }
    }
    value
}

fn fields(bytes: &[u8]) -> Vec<(u64, Wire)> {
    let (mut at, mut all) = (0, Vec::new());
    while at < bytes.len() {
        let key = varint(bytes, &mut at);
        let value = match key & 7 {
            0 => Wire::Number(varint(bytes, &mut at)),
            2 => {
                let length = varint(bytes, &mut at) as usize;
                at += length;
                Wire::Bytes(bytes[at - length..at].to_vec())
            }
            other => panic!("wire type {other}"),
        };
        all.push((key >> 3, value));
    }
    all
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Name and value of an `AttributeProto`. Field numbers of the values: 9 `int64_val`, 13 `uint64_val`, 27 `bool_val`,
/// 29 `string_val`.
fn attribute(bytes: &[u8]) -> (String, String) {
    let (mut name, mut value) = (String::new(), String::new());
    for field in fields(bytes) {
        match field {
            (1, Wire::Bytes(bytes)) => name = text(&bytes),
            (9, Wire::Number(number)) => value = format!("int64 {}", number as i64),
            (13, Wire::Number(number)) => value = format!("uint64 {number}"),
            (27, Wire::Number(number)) => value = format!("bool {}", number == 1),
            (29, Wire::Bytes(bytes)) => value = format!("string {}", text(&bytes)),
            other => panic!("{other:?}"),
        }
    }
    (name, value)
}

fn add_ids(ids: &mut Vec<u64>, value: &Wire) {
    match value {
        Wire::Number(id) => ids.push(*id),
        Wire::Bytes(packed) => {
            let mut at = 0;
            while at < packed.len() {
                ids.push(varint(packed, &mut at));
            }
        }
    }
}

fn node(bytes: &[u8]) -> Node {
    let mut node = Node::default();
    for field in fields(bytes) {
        match field {
            (1, Wire::Number(id)) => node.id = id,
            (2, Wire::Bytes(name)) => node.name = text(&name),
            (3, Wire::Number(kind)) => node.kind = kind,
            (4, value) => add_ids(&mut node.ctrl_deps, &value),
            (5, value) => add_ids(&mut node.data_deps, &value),
            (6, Wire::Number(start)) => node.start_micros = start,
            (7, Wire::Number(micros)) => node.micros = micros,
            (8, Wire::Bytes(inputs)) => {
                for (number, value) in fields(&inputs) {
                    if let (1, Wire::Bytes(values)) = (number, value) {
                        node.inputs = text(&values);
                    }
                }
            }
            (9, Wire::Bytes(_)) => {}
            (10, Wire::Bytes(bytes)) => node.attributes.extend([attribute(&bytes)]),
            other => panic!("{other:?}"),
        }
    }
    node
}

/// Decodes a Chakra file. Returns the attributes in the metadata of the file, and all nodes.
pub(crate) fn decode(bytes: &[u8]) -> (BTreeMap<String, String>, Vec<Node>) {
    let (mut at, mut messages) = (0, Vec::new());
    while at < bytes.len() {
        let length = varint(bytes, &mut at) as usize;
        messages.push(&bytes[at..at + length]);
        at += length;
    }
    let metadata = fields(messages[0]).into_iter().filter_map(|field| match field {
        (2, Wire::Bytes(bytes)) => Some(attribute(&bytes)),
        _ => None,
    });
    (metadata.collect(), messages[1..].iter().map(|message| node(message)).collect())
}

/// Asserts that node ids are unique, that all dependencies exist, and that no node depends on itself (directly or
/// indirectly).
pub(crate) fn assert_acyclic(nodes: &[Node]) {
    let ids: BTreeSet<u64> = nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids.len(), nodes.len(), "ids are unique");
    let mut waiting: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let mut dependents: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for node in nodes {
        let all: BTreeSet<u64> = node.ctrl_deps.iter().chain(&node.data_deps).copied().collect();
        for id in &all {
            assert!(ids.contains(id), "node {} depends on {id}, which does not exist", node.id);
            dependents.entry(*id).or_default().push(node.id);
        }
        waiting.insert(node.id, all);
    }
    let mut ready: Vec<u64> = waiting.iter().filter(|(_, all)| all.is_empty()).map(|(id, _)| *id).collect();
    let mut done = 0;
    while let Some(id) = ready.pop() {
        done += 1;
        for next in dependents.get(&id).into_iter().flatten() {
            let left = waiting.get_mut(next).unwrap();
            left.remove(&id);
            if left.is_empty() {
                ready.push(*next);
            }
        }
    }
    assert_eq!(done, nodes.len(), "the graph has a cycle");
}
