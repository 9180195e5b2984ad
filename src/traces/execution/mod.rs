//! Reads execution traces, which contain the operators of a run with their inputs and outputs. PyTorch's observer
//! writes execution traces as JSON without times ([`ExecutionTrace`]). Chakra's tools exchange execution traces in
//! protobuf format ([`ChakraTrace`]). [`Kineto`] is the timeline of the same run: its operators, calls and GPU work.
//! The timeline is held in memory, so that it can be joined with an execution trace of the run.

mod chakra;
mod kineto;
mod pytorch;

pub use chakra::{ChakraNode, ChakraTrace, NodeType};
pub use kineto::{HostCall, HostOp, Kineto, KinetoReader, StreamWait, Work};
pub use pytorch::{ExecutionTrace, Header, Node, Values, read_document};
