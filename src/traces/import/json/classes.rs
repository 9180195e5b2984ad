//! Classifies trace events by their category, and determines for which events the arguments must be read.
//!
//! If two threads read a file, the thread that finds the events also classifies the events. There are two reasons: the
//! thread that reads the fields has more work, and the thread that finds the events still has the arguments in its
//! cache.

use super::super::model::{CpuKind, FlowKind, OpKind, Wants};
use super::cursor::{Shape, Value, load_at, to_text};
use super::fields::Fields;
use super::mask::InstructionSet;

/// Class of a trace event, which follows from the event's category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Op(OpKind),
    Call {
        driver: bool,
    },
    Cpu(CpuKind),
    Python,
    Sync,
    EventRecord,
    Flow(FlowKind),
    /// Event of an MTIA accelerator. The name of the event determines its kind.
    Mtia,
    /// Work of a Level Zero device that the tool unitrace recorded. The name of the event determines its kind.
    LevelZero,
    /// Execution of a CUDA graph node that does no GPU work: the node records a CUDA event or runs a function on the
    /// host. A host function that was submitted to a stream also has this class.
    IdleNode {
        is_host: bool,
    },
    /// Event that has no category. The event's arguments may determine its class.
    Bare,
    Other,
}

fn classify(category: &[u8]) -> Class {
    match category {
        b"kernel" | b"Kernel" | b"GPU_Kernel" => Class::Op(OpKind::Kernel),
        b"gpu_memcpy" | b"Memcpy" | b"MemCopy" => Class::Op(OpKind::Copy),
        b"gpu_memset" | b"Memset" | b"MemSet" => Class::Op(OpKind::Set),
        b"cuda_runtime"
        | b"Runtime"
        | b"CudaRuntime"
        | b"CUDA_Runtime"
        | b"mtia_runtime"
        | b"privateuse1_runtime"
        | b"xpu_runtime"
        | b"hpu_runtime" => Class::Call { driver: false },
        b"pthread" => Class::Call { driver: false },
        b"cuda_driver" | b"CUDA_Driver" | b"privateuse1_driver" | b"xpu_driver" => {
            Class::Call { driver: true }
        }
        b"cpu_op" | b"Operator" | b"OperatorInner" => Class::Cpu(CpuKind::Operator),
        b"user_annotation" | b"UserDefined" | b"PythonUserDefined" | b"Forward" | b"Backward"
        | b"Optimization" | b"Dataloader" | b"Communication" | b"PythonOp" => Class::Cpu(CpuKind::Range),
        // Events of this category show the time that a profiler itself spent on the application's thread.
        b"overhead" => Class::Cpu(CpuKind::Overhead),
        b"ProfileStep" => Class::Cpu(CpuKind::Step),
        b"python_function" => Class::Python,
        b"cuda_sync" => Class::Sync,
        b"cuda_event" => Class::EventRecord,
        b"fwdbwd" | b"forward_backward" => Class::Flow(FlowKind::Backward),
        b"ac2g" | b"async_cpu_to_gpu" | b"async" => Class::Flow(FlowKind::Launch),
        b"mtia_ccp_events" => Class::Mtia,
        b"gpu_op" => Class::LevelZero,
        b"graph_event_node" => Class::IdleNode { is_host: false },
        b"graph_host_node" | b"host_launch" => Class::IdleNode { is_host: true },
        _ => Class::Other,
    }
}

/// Class of a trace event. For a CPU slice, the value also states whether the arguments of the slice are needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classified {
    pub(super) class: Class,
    pub(super) needs_args: bool,
}

impl Classified {
    #[inline(always)]
    pub(super) fn new<L: InstructionSet>(bytes: &[u8], fields: &Fields, wants: Wants) -> Self {
        let class = match fields.category.shape {
            Shape::String => classify(fields.category.slice(bytes)),
            Shape::Escaped => classify(to_text(bytes, fields.category).decode().as_bytes()),
            Shape::Missing => Class::Bare,
            _ => Class::Other,
        };
        let needs_args = match class {
            Class::Cpu(kind) if wants_cpu(bytes, fields, kind, wants) => {
                wants.has(Wants::DETAILS) || has_needed_args::<L>(bytes, fields.args)
            }
            _ => false,
        };
        Self { class, needs_args }
    }

    /// Whether the arguments of the event must be read.
    #[inline(always)]
    pub(super) fn reads_args(self) -> bool {
        matches!(self.class, Class::Op(_) | Class::Call { .. }) || self.needs_args
    }
}

/// Whether the sink has requested CPU slices of this kind.
#[inline(always)]
pub(super) fn wants_cpu(bytes: &[u8], fields: &Fields, kind: CpuKind, wants: Wants) -> bool {
    wants.has(Wants::CPU) || (wants.has(Wants::STEPS) && step_or(bytes, fields, kind) == CpuKind::Step)
}

/// Returns the kind of a CPU slice. Steps are also recognized by their name, because not every dialect has a category
/// for steps.
#[inline(always)]
pub(super) fn step_or(bytes: &[u8], fields: &Fields, kind: CpuKind) -> CpuKind {
    let name = fields.name.slice(bytes);
    if name.starts_with(b"ProfilerStep#") || name.starts_with(b"ProfileStep#") { CpuKind::Step } else { kind }
}

/// Whether the arguments of a CPU slice contain data that every sink needs. Such data are exact times (Paddle) and
/// Python functions. The arguments of nearly all slices contain neither of the two. To be fast, the function only
/// examines the text after each quote.
#[inline(always)]
fn has_needed_args<L: InstructionSet>(bytes: &[u8], args: Value) -> bool {
    let (mut at, end) = (args.start as usize, args.end as usize);
    while at < end {
        let (mut quotes, _) = L::string(load_at(bytes, at));
        if end - at < 32 {
            quotes &= (1 << (end - at)) - 1;
        }
        while quotes != 0 {
            let after: &[u8; 17] = load_at(bytes, at + quotes.trailing_zeros() as usize + 1);
            let is_empty_stack = after.starts_with(b"Call stack\": \"\"");
            if !is_empty_stack && (after.starts_with(b"Call sta") || after.starts_with(b"start_ti")) {
                return searches_needed_args(args.slice(bytes));
            }
            quotes &= quotes - 1;
        }
        at += 32;
    }
    false
}

#[cold]
fn searches_needed_args(args: &[u8]) -> bool {
    match std::str::from_utf8(args) {
        Ok(args) => {
            let stack = args.split_once("\"Call stack\"").map_or("", |(_, stack)| stack);
            let is_empty = stack.trim_start_matches([':', ' ']).starts_with("\"\"");
            !(stack.is_empty() || is_empty) || args.contains("start_time")
        }
        Err(_) => true,
    }
}
