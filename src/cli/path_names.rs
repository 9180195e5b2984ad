//! Describes the parts of a critical path in words: their names, their stacks, and the reasons why they begin.

use std::borrow::Cow;

use gpuflame_export::compose::{call, folded_names};
use gpuflame_export::{NameFolding, clean_frame, executed_line, work_name};
use gpuflame_model::profile::{Profile, SampleSite};
use gpuflame_model::record::{ContextId, ThreadId, Work};
use gpuflame_offline::analysis::{
    CriticalPath, EdgeKind, Instruction, InstructionDetail, InstructionKind, InstructionList, PathClass,
    PathPart, Unexplained, What, host_stack_name,
};

/// The data that is needed to name a part of a critical path.
#[derive(Clone, Copy)]
pub(super) struct PathNames<'a> {
    pub(super) path: &'a CriticalPath,
    pub(super) list: &'a InstructionList,
    pub(super) profile: &'a Profile,
}

/// Key of a part's name. Parts with equal keys have equal names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NameKey<'a> {
    /// GPU work.
    Work(InstructionKind, Work),
    /// An instruction without an activity, identified by its index.
    Instruction(u32),
    /// A CUDA call, identified by the name of the called API function.
    Call(&'a str),
    /// The time between two CUDA calls, identified by the names of both API functions.
    Between(&'a str, &'a str),
    /// A part of the path for which nothing was recorded.
    Nothing,
}

impl<'a> PathNames<'a> {
    /// Returns the name of a part's kernel or call. For host time between two calls, returns the names of both calls.
    pub(super) fn name(self, part: &PathPart) -> Cow<'a, str> {
        match part.what {
            What::Instruction(number) => self.instruction(number),
            What::Call(at) => self.call(at).into(),
            What::Between(after, before) => {
                format!("from {} to {}", self.call(after), self.call(before)).into()
            }
            What::Stack { context, .. } => self.innermost(context).unwrap_or_default().into(),
            What::Nothing => "".into(),
        }
    }

    /// Returns the key of a part's name. Parts with equal keys have equal names.
    pub(super) fn key(self, part: &PathPart) -> NameKey<'a> {
        match part.what {
            What::Instruction(number) => {
                let instruction = self.list.get(number);
                match instruction.detail {
                    InstructionDetail::Work { activity, .. } => {
                        NameKey::Work(instruction.kind, activity.work())
                    }
                    _ => NameKey::Instruction(number),
                }
            }
            What::Call(at) => NameKey::Call(self.call(at)),
            What::Between(after, before) => NameKey::Between(self.call(after), self.call(before)),
            What::Stack { context, .. } => NameKey::Call(self.innermost(context).unwrap_or_default()),
            What::Nothing => NameKey::Nothing,
        }
    }

    /// Returns the name of an instruction's kernel, copy or fill, or otherwise the name of its call.
    pub(super) fn instruction(self, number: u32) -> Cow<'a, str> {
        let instruction = self.list.get(number);
        match instruction.detail {
            InstructionDetail::Work { activity, .. } => match activity.work() {
                work if instruction.kind != InstructionKind::Graph => work_name(self.profile, work),
                _ => "graph".into(),
            },
            InstructionDetail::Graph { nodes: Some(nodes), .. } => format!("graph of {nodes} nodes").into(),
            InstructionDetail::HostFunction { .. } => "host function".into(),
            _ => match instruction.call {
                Some(issued) => call(self.profile, issued.context).into(),
                None => instruction.kind.word().into(),
            },
        }
    }

    /// Returns the name of the innermost frame of a stack between two calls. The innermost frame is a function, an
    /// operator, a call or a named range.
    pub(super) fn innermost(self, context: ContextId) -> Option<&'a str> {
        host_stack_name(self.profile, context)
    }

    fn call(self, at: u32) -> &'a str {
        self.path.calls().get(at as usize).map_or("[no call]", |host| call(self.profile, host.context))
    }

    /// Returns the stack under which a part of the path is drawn; `None` if the part has no stack.
    pub(super) fn site(self, part: &PathPart) -> Option<SampleSite> {
        let host = |at: u32| self.path.calls().get(at as usize);
        let context = match part.what {
            What::Instruction(number) => self.context(&self.list.get(number)),
            What::Call(at) => host(at).map(|host| host.context),
            What::Between(after, before) => {
                let (after, before) = (host(after)?, host(before)?);
                let thread = (after.thread != before.thread).then_some(after.thread);
                return Some(SampleSite::Between { after: after.context, thread, before: before.context });
            }
            What::Stack { context, .. } => Some(context),
            What::Nothing => None,
        };
        context.filter(|context| self.has_stack(*context)).map(SampleSite::Context)
    }

    fn context(self, instruction: &Instruction<'_>) -> Option<ContextId> {
        instruction.call.map(|issued| issued.context)
    }

    fn has_stack(self, context: ContextId) -> bool {
        context != ContextId::NONE && self.profile.context(context).is_some()
    }

    /// Returns the innermost function of the user's code in a stack.
    fn executed(self, site: SampleSite) -> Option<String> {
        executed_line(self.profile, site, NameFolding::default()).map(|line| line.function)
    }

    /// Returns the innermost function of the user's code in the stack of a call.
    pub(super) fn function_of(self, context: ContextId) -> Option<String> {
        self.executed(SampleSite::Context(context)).filter(|_| self.has_stack(context))
    }

    /// Returns the innermost function of the user's code in the stack of a part.
    pub(super) fn function(self, part: &PathPart) -> Option<String> {
        match self.site(part)? {
            // For the time between two calls, returns the function that made the second call, because only this
            // function is known to have been running.
            SampleSite::Between { before, .. } => self.executed(SampleSite::Context(before)),
            site => self.executed(site),
        }
    }

    /// Returns the host thread of a part; `None` if the part is not on the host.
    pub(super) fn thread(self, part: &PathPart) -> Option<ThreadId> {
        match part.what {
            What::Call(at) | What::Between(_, at) | What::Stack { before: at, .. } => {
                self.path.calls().get(at as usize).map(|host| host.thread)
            }
            _ => None,
        }
    }

    /// Returns the GPU and the stream of a part; `None` if the part is not on a GPU.
    pub(super) fn stream(self, part: &PathPart) -> Option<(u32, u32)> {
        match part.what {
            What::Instruction(number) => {
                let instruction = self.list.get(number);
                Some((instruction.device?.0, instruction.stream?.0))
            }
            _ => None,
        }
    }

    /// Returns the frames under which the part is drawn, as a folded line.
    pub(super) fn folded(self, part: &PathPart) -> String {
        let mut frames = match self.site(part) {
            Some(site) => folded_names(self.profile, site, NameFolding::default()),
            None => Vec::new(),
        };
        let name = self.name(part);
        match part.class {
            PathClass::Kernel => frames.push(format!("[GPU_Kernel]{name}").into()),
            PathClass::Memory => frames.push(format!("[GPU_Memcpy {name}]").into()),
            PathClass::Graph => frames.push("[GPU_Graph]".into()),
            PathClass::HostFunction => frames.push("[host function]".into()),
            PathClass::Call => frames.push("[call]".into()),
            PathClass::Return => frames.push("[return after waiting]".into()),
            PathClass::Host => frames.push("[host]".into()),
            PathClass::HandOff => frames.push("[hand-off between threads]".into()),
            PathClass::Launch => frames.push(format!("[launch of {name}]").into()),
            PathClass::Gap => frames.push(format!("[gap before {name}]").into()),
            PathClass::Unexplained(why) => frames.push(format!("[unexplained: {}]", why_words(why)).into()),
        }
        let cleaned: Vec<_> = frames.iter().map(|frame| clean_frame(frame)).collect();
        cleaned.join(";")
    }

    /// Returns the reason, in words, why `part` begins when the previous part ends.
    pub(super) fn reason(self, before: Option<&PathPart>, part: &PathPart) -> String {
        let name = self.name(part);
        let last = before.map(|before| self.name(before)).unwrap_or_default();
        match part.class {
            PathClass::Call if part.reason.is_none_or(|kind| kind != EdgeKind::Launch) => {
                "the thread's next call".to_owned()
            }
            PathClass::Call => format!("the call that launched {}", self.launched_by(part)),
            PathClass::Return => format!("the call had waited for {last}"),
            PathClass::Host if matches!(part.what, What::Stack { .. }) => {
                "the thread did this between two calls".to_owned()
            }
            PathClass::Host => "the thread ran between two calls".to_owned(),
            PathClass::HandOff if part.reason == Some(EdgeKind::ThreadWait) => {
                "the other thread had to arrive first".to_owned()
            }
            PathClass::HandOff => "the other thread had to finish first (inferred)".to_owned(),
            PathClass::Launch => format!("{name} was launched, and found its stream free"),
            PathClass::Gap => format!("{name} came next: {}", reason_words(part.reason)),
            PathClass::Unexplained(why) => why_words(why).to_owned(),
            PathClass::Kernel | PathClass::Memory | PathClass::Graph | PathClass::HostFunction => {
                match part.reason {
                    None => "it began".to_owned(),
                    Some(EdgeKind::Launch) => "it had waited for its launch only".to_owned(),
                    Some(kind) => format!("it had waited for {last}: {}", reason_words(Some(kind))),
                }
            }
        }
    }

    fn launched_by(self, part: &PathPart) -> &'static str {
        match part.what {
            What::Call(_) => "the next work",
            _ => "work",
        }
    }
}

/// Returns the rule that connects two consecutive parts, in words.
pub(super) fn reason_words(kind: Option<EdgeKind>) -> &'static str {
    match kind {
        None => "nothing was between them",
        Some(EdgeKind::Work) => "it is one piece of work",
        Some(EdgeKind::Call) => "it is one call",
        Some(EdgeKind::Host) => "order of the thread",
        Some(EdgeKind::HandOff) => "order between threads (inferred)",
        Some(EdgeKind::ThreadWait) => "wait for another thread",
        Some(EdgeKind::Launch) => "its launch",
        Some(EdgeKind::Stream) => "order of the stream",
        Some(EdgeKind::Programmatic) => "programmatic launch",
        Some(EdgeKind::Event) => "wait for an event",
        Some(EdgeKind::DefaultStream) => "order of the default stream (inferred)",
        Some(EdgeKind::GraphLaunch) => "launch of its graph",
        Some(EdgeKind::GraphEdge) => "edge of the graph",
        Some(EdgeKind::GraphNode) => "order in the graph (inferred)",
        Some(EdgeKind::SameGraph) => "previous launch of the graph",
        Some(EdgeKind::InferredOrder) => "work of its stream ended just before (inferred)",
        Some(EdgeKind::InferredEvent) => "work of another stream ended just before (inferred)",
        Some(EdgeKind::Wait) => "the call waited for it",
        Some(EdgeKind::InferredWait) => "the call waited for it (inferred)",
        Some(EdgeKind::Collective | EdgeKind::CollectiveTie) => "last rank of the collective",
    }
}

/// Returns the reason why a part of the path is unexplained, in words.
pub(super) fn why_words(why: Unexplained) -> &'static str {
    match why {
        Unexplained::BeforeRecords => "before the first record of the path",
        Unexplained::EarlierWork => "no earlier work of the stream is recorded",
        Unexplained::NoLaunch => "the launch is not recorded",
        Unexplained::FirstUse => "first use of the kernel; CUDA loads code at the first use",
        Unexplained::UnknownGpu => "a default stream waited, and it is not recorded on which GPU",
        Unexplained::GraphEdges => "the edges of the graph are not recorded",
        Unexplained::NoWaitRecords => "waits for events are not recorded",
        Unexplained::Other => "all that is recorded was done before",
    }
}
