//! Reads Chakra's execution trace. The file consists of a `GlobalMetadata` message, followed by one message per node.
//! The length of each message is stored before the message. `et_def.proto` in github.com/mlcommons/chakra defines the
//! field numbers.

use std::io::BufRead;

use crate::import::chakra::{Field, fields, split_message};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Type of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeType {
    /// A node type that the format does not define.
    #[default]
    Invalid,
    /// A fact about the job, and not an operation.
    Metadata,
    /// A load from memory.
    MemoryLoad,
    /// A store to memory.
    MemoryStore,
    /// An operator or a kernel.
    Compute,
    /// Sending a message to another rank.
    Send,
    /// Receiving a message from another rank.
    Receive,
    /// A collective operation of several ranks.
    Collective,
}

impl NodeType {
    fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Metadata,
            2 => Self::MemoryLoad,
            3 => Self::MemoryStore,
            4 => Self::Compute,
            5 => Self::Send,
            6 => Self::Receive,
            7 => Self::Collective,
            _ => Self::Invalid,
        }
    }

    /// Returns the word that tables show for this type.
    pub fn word(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Metadata => "metadata",
            Self::MemoryLoad => "memory load",
            Self::MemoryStore => "memory store",
            Self::Compute => "compute",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Collective => "collective",
        }
    }
}

/// A node of a Chakra trace, reduced to the fields that the command `info` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChakraNode {
    /// Id of the node.
    pub id: u64,
    /// Name of the operator or kernel.
    pub name: String,
    /// Type of the node.
    pub kind: NodeType,
    /// Ids of the nodes that this node depends on (control and data dependencies).
    pub dependencies: Vec<u64>,
    /// Duration in ns: the attribute `duration_ns` if there is one, otherwise `duration_micros`.
    pub nanos: u64,
    /// Whether the node ran on the host, according to the attribute `is_cpu_op`. The field is `None` if the node does
    /// not have this attribute.
    pub is_host: Option<bool>,
    /// Number of bytes that a collective or message moves, according to the attribute `comm_size`.
    pub bytes: u64,
}

/// A Chakra trace that was read into memory.
#[derive(Clone, Debug, Default)]
pub struct ChakraTrace {
    /// Version of the format; empty if the file does not contain it.
    pub version: String,
    /// Version of the PyTorch trace from which the file was made, according to the attribute `schema`.
    pub schema: String,
    /// Nodes of the trace, in the order of the file.
    pub nodes: Vec<ChakraNode>,
}

impl ChakraTrace {
    /// Reads a Chakra trace from `input`.
    ///
    /// # Errors `Io`; `Format` with the byte offset of the truncated or damaged message.
    pub fn read(input: &mut dyn BufRead) -> Result<Self> {
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes)?;
        let mut rest = bytes.as_slice();
        let mut trace = Self::default();
        let mut is_first = true;
        while !rest.is_empty() {
            let at = bytes.len() - rest.len();
            let damaged = |what: &str| {
                let what =
                    format!("the message at byte {at} is {what}; {} nodes precede it", trace.nodes.len());
                Error::new(ErrorKind::Format, what)
            };
            let (message, after) = split_message(rest).ok_or_else(|| damaged("truncated"))?;
            match is_first {
                true => trace
                    .set_metadata(message)
                    .ok_or_else(|| Error::new(ErrorKind::Format, "has damaged metadata"))?,
                false => {
                    let node = ChakraNode::parse(message).ok_or_else(|| damaged("damaged"))?;
                    trace.nodes.push(node);
                }
            }
            (is_first, rest) = (false, after);
        }
        Ok(trace)
    }

    fn set_metadata(&mut self, message: &[u8]) -> Option<()> {
        for field in fields(message) {
            match field? {
                (1, Field::Bytes(version)) => self.version = text(version),
                (2, Field::Bytes(bytes)) => {
                    if let ("schema", Field::Bytes(schema)) =
                        (attribute(bytes)?.0.as_str(), attribute(bytes)?.1)
                    {
                        self.schema = text(schema);
                    }
                }
                _ => {}
            }
        }
        Some(())
    }
}

impl ChakraNode {
    fn parse(message: &[u8]) -> Option<Self> {
        let mut node = Self::default();
        let (mut exact, mut micros) = (None, 0_u64);
        for field in fields(message) {
            match field? {
                (1, Field::Number(id)) => node.id = id,
                (2, Field::Bytes(name)) => node.name = text(name),
                (3, Field::Number(number)) => node.kind = NodeType::from_number(number),
                (4 | 5, Field::Number(id)) => node.dependencies.push(id),
                (4 | 5, Field::Bytes(packed)) => read_packed(packed, &mut node.dependencies)?,
                (7, Field::Number(number)) => micros = number,
                (10, Field::Bytes(bytes)) => match attribute(bytes)? {
                    (name, Field::Number(value)) if name == "duration_ns" => exact = Some(value),
                    (name, Field::Number(value)) if name == "is_cpu_op" => node.is_host = Some(value != 0),
                    (name, Field::Number(value)) if name == "comm_size" => node.bytes = value,
                    _ => {}
                },
                _ => {}
            }
        }
        node.nanos = exact.unwrap_or(micros.saturating_mul(1000));
        Some(node)
    }
}

/// Returns the name and the value of an attribute. In the message of an attribute, field 1 is the name, field 2 is a
/// comment, and any other field is the value.
fn attribute(message: &[u8]) -> Option<(String, Field<'_>)> {
    let (mut name, mut value) = (String::new(), Field::Number(0));
    for field in fields(message) {
        match field? {
            (1, Field::Bytes(bytes)) => name = text(bytes),
            (2, _) => {}
            (_, field) => value = field,
        }
    }
    Some((name, value))
}

fn read_packed(mut bytes: &[u8], numbers: &mut Vec<u64>) -> Option<()> {
    while !bytes.is_empty() {
        let (number, rest) = crate::import::chakra::read_varint(bytes)?;
        numbers.push(number);
        bytes = rest;
    }
    Some(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_with_packed_dependencies_and_attributes() {
        // The test's file has two messages: metadata with an attribute { name: "schema", string_val (29): "1.0.2" },
        // and a node { id 3, name "nccl", type 7, ctrl_deps [1], data_deps [300], duration_micros 2, attr { name
        // "comm_size", int64_val (9) 64 } }.
        let metadata = b"\x12\x10\x0a\x06schema\xea\x01\x051.0.2";
        let node = b"\x08\x03\x12\x04nccl\x18\x07\x22\x01\x01\x2a\x02\xac\x02\x38\x02\x52\x0d\x0a\x09comm_size\x48\x40";
        let mut file = vec![metadata.len() as u8];
        file.extend_from_slice(metadata);
        file.push(node.len() as u8);
        file.extend_from_slice(node);
        let trace = ChakraTrace::read(&mut file.as_slice()).unwrap();
        assert_eq!((trace.schema.as_str(), trace.nodes.len()), ("1.0.2", 1));
        let expected = ChakraNode {
            id: 3,
            name: "nccl".to_owned(),
            kind: NodeType::Collective,
            dependencies: vec![1, 300],
            nanos: 2000,
            is_host: None,
            bytes: 64,
        };
        assert_eq!(trace.nodes[0], expected);
        let cut = ChakraTrace::read(&mut &file[..file.len() - 3]).unwrap_err().to_string();
        assert!(cut.contains("byte 19 is truncated; 0 nodes precede it"), "{cut}");
    }
}
