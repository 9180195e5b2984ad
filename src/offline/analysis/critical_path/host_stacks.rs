//! Divides the host time between two calls on the critical path into parts. Each part is the time that the thread spent
//! in one stack.
//!
//! ```text
//! calls    |launch|                                      |launch|
//! stacks          |-- load_batch --|      |- cudaMalloc -|
//! parts           |   load_batch   | host |  cudaMalloc  |
//! ```

use super::path::{PathClass, PathPart, What};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextId, FrameKind, IdMap, LabelKind};

/// Stack of a thread during a time span, with the class that this part of the path gets.
pub(in super::super) struct HostStack {
    pub(in super::super) span: (u64, u64),
    pub(in super::super) context: ContextId,
    pub(in super::super) class: PathClass,
}

/// Function that supplies, in order of time, the known stacks of a thread within a time span before one of its calls.
/// The arguments are the position of the call in the list of calls, the time span and a receiver for the stacks.
pub(in super::super) type EachStack<'a> = dyn FnMut(u32, (u64, u64), &mut dyn FnMut(HostStack)) + 'a;

/// Returns the parts of a path, in which each host time between two calls is divided into one part per stack.
pub(in super::super) fn divide(parts: &[PathPart], each_stack: &mut EachStack<'_>) -> Vec<PathPart> {
    let mut divided: Vec<PathPart> = Vec::with_capacity(parts.len());
    for part in parts {
        let (PathClass::Host, What::Between(after, before)) = (part.class, part.what) else {
            divided.push(*part);
            continue;
        };
        let first = divided.len();
        let mut add = |(start, end): (u64, u64), class: PathClass, what: What| {
            let is_first = divided.len() == first;
            match divided.last_mut().filter(|last| !is_first && last.what == what) {
                Some(last) => last.end = end,
                None if start < end => {
                    let reason = part.reason.filter(|_| is_first);
                    divided.push(PathPart { start, end, class, what, reason, ..*part });
                }
                None => {}
            }
        };
        let mut at = part.start;
        each_stack(
            before,
            (part.start, part.end),
            &mut |HostStack { span: (start, end), context, class }| {
                let (start, end) = (start.max(at), end.min(part.end));
                if start < end {
                    add((at, start), part.class, part.what);
                    add((start, end), class, What::Stack { after, before, context });
                    at = end;
                }
            },
        );
        add((at, part.end), part.class, part.what);
    }
    divided
}

/// Finds the class of a part of the path from the stack that the thread had in this part.
pub(in super::super) struct StackClasses<'a> {
    profile: &'a Profile,
    known: IdMap<ContextId, Option<PathClass>>,
}

impl<'a> StackClasses<'a> {
    pub(in super::super) fn new(profile: &'a Profile) -> Self {
        Self { profile, known: IdMap::default() }
    }

    /// Returns the class for a stack, or `None` if no frame of the stack has a useful name.
    pub(in super::super) fn class(&mut self, context: ContextId) -> Option<PathClass> {
        let find = || {
            let is_call = is_api_call(host_stack_name(self.profile, context)?);
            Some(if is_call { PathClass::Call } else { PathClass::Host })
        };
        *self.known.entry(context).or_insert_with(find)
    }
}

/// Returns the innermost useful name in the stack of a thread between two calls. A useful name is the name of a
/// function, an operator, an API call or an NVTX range. Names of steps, and labels that stand for the time between two
/// slices, are skipped.
pub fn host_stack_name(profile: &Profile, context: ContextId) -> Option<&str> {
    let frames = profile.stack(profile.context(context)?.stack);
    let names = frames.map(|frame| {
        let frame = profile.frames()[frame.index()];
        let name = match frame.kind() {
            FrameKind::Label(label) => profile.label(label),
            FrameKind::Python { code, .. } => profile.code(code).map(|code| code.name),
            FrameKind::Range(range) => profile.range(range),
            _ => None,
        };
        (name, frame.label_kind() == LabelKind::Range)
    });
    let tells = |name: &str, is_range: bool| {
        !(is_range
            && ["[between ", "[after ", "[before ", "ProfilerStep#"]
                .iter()
                .any(|start| name.starts_with(start)))
    };
    names.filter_map(|(name, is_range)| name.filter(|name| tells(name, is_range))).next()
}

/// Whether a function belongs to the API of CUDA or HIP, for example `cudaFree`, `cuMemAlloc_v2` or `hipMalloc`.
fn is_api_call(name: &str) -> bool {
    let rest =
        name.strip_prefix("cuda").or_else(|| name.strip_prefix("cu")).or_else(|| name.strip_prefix("hip"));
    rest.is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64, end: u64, class: PathClass, what: What) -> PathPart {
        PathPart { start, end, class, what, reason: None, edge: Some(7) }
    }

    #[test]
    fn known_stacks_divide_the_time_between_two_calls() {
        let between = What::Between(0, 1);
        let parts = [
            part(0, 10, PathClass::Call, What::Call(0)),
            part(10, 100, PathClass::Host, between),
            part(100, 110, PathClass::HandOff, between),
        ];
        let stacks = [(0, 20, 5), (20, 30, 5), (40, 50, 6), (45, 60, 7), (90, 200, 5)];
        let divided = divide(&parts, &mut |before, span, add| {
            assert_eq!((before, span), (1, (10, 100)));
            for (start, end, context) in stacks {
                let class = if context == 6 { PathClass::Call } else { PathClass::Host };
                add(HostStack { span: (start, end), context: ContextId(context), class });
            }
        });
        let stack = |context| What::Stack { after: 0, before: 1, context: ContextId(context) };
        let expected = [
            parts[0],
            part(10, 30, PathClass::Host, stack(5)),
            part(30, 40, PathClass::Host, between),
            part(40, 50, PathClass::Call, stack(6)),
            part(50, 60, PathClass::Host, stack(7)),
            part(60, 90, PathClass::Host, between),
            part(90, 100, PathClass::Host, stack(5)),
            parts[2],
        ];
        assert_eq!(divided, expected);
    }

    #[test]
    fn names_of_the_interface_differ_from_those_of_operators() {
        let of_api = ["cudaFree", "cuMemAlloc_v2", "hipMalloc", "cudaMemcpyAsync"];
        assert!(of_api.iter().all(|name| is_api_call(name)));
        let others =
            ["cumsum", "aten::cudnn_convolution", "cudart", "hipify", "", "[call unknown]", "cublasSgemm"];
        assert!(!others.iter().any(|name| is_api_call(name)));
    }
}
