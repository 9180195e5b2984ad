//! Moves GPU work of PyTorch's backward pass under the stacks of the forward pass, both in live processes and for
//! recordings.
//!
//! PyTorch's autograd computes gradients on its own threads, and the stacks of these threads have no Python frames. If
//! the program runs under `torch.autograd.profiler.emit_nvtx()`, NVTX ranges link the two passes by a sequence number.
//! For example, an operator in the forward pass runs inside the range `aten::addmm, seq = 12`. The *node* that computes
//! the operator's gradient runs inside the range `AddmmBackward0, seq = 12`. On request, the node's launches are shown
//! under the Python functions that called the operator, below a frame `[backward]`:
//!
//! ```text
//! <module>;step;Block.forward;Linear.forward;[backward];AddmmBackward0;aten::mm;cudaLaunchKernel
//! ```
//!
//! The sequence number in an operator's range is the number of the next node that is created, even if a different
//! operator creates that node. So the ranges of several operators can contain the same number. The operators with the
//! same number are the operator that creates the node, the operators that enclose this operator, and earlier operators
//! that create no node. A node is therefore linked to an operator only if the sequence numbers are equal and the names
//! match (`aten::addmm` creates `AddmmBackward0`).
//!
//! Launches of nodes are not moved if no operator can be found for the node. The reasons are:
//! - Each thread counts sequence numbers separately. If two threads gave the same number to operators with the same
//!   name, a node with this number is linked to neither operator. The threads of autograd's engine assign numbers as
//!   well, when they differentiate the backward pass itself or recompute the forward pass.
//! - If an operator launched nothing, the operator's stack was not recorded, so the launches of its node are not moved.
//! - `emit_nvtx` creates a new range name for each call of an operator. If there are too many range names, further
//!   names are dropped (counted as `ranges_dropped`).

use std::collections::HashMap;

use gpuflame_model::profile::views::GPU;
use gpuflame_model::profile::{Profile, SampleSite, ShownFrame, ShownFrameId, ShownFrameKind, add_to};
use gpuflame_model::record::{ContextId, FrameKind, ThreadId};

/// Frame that is shown between the frames of the forward pass and the frames of the backward node.
const BACKWARD_MARK: &str = "[backward]";
/// Prefixes of the names of functions in autograd's engine. Every stack inside a node contains a function with the
/// second prefix, unless the frames at the root of the stack are missing.
const ENGINE_PREFIXES: [&str; 2] =
    ["torch::autograd::Engine::thread_main", "torch::autograd::Engine::evaluate_function"];
/// Suffix of the names of backward nodes. Digits may follow the suffix.
const NODE_SUFFIX: &str = "Backward";
/// Text that comes before the sequence number in the name of an NVTX range.
const SEQUENCE_INFIX: &str = ", seq = ";

/// GPU time in ns of the work that the backward pass launched, and the part of this GPU time that was moved under the
/// forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardTime {
    /// GPU time of the whole backward pass.
    pub all: u64,
    /// The part of `all` that was moved under the forward pass.
    pub moved: u64,
}

/// Key that links an operator to its node: the sequence number in the ranges of both, and the common part of their
/// names.
type RangeKey = (u64, String);

/// Context of the last launch inside each operator, by thread. The context is `None` if the thread belongs to
/// autograd's engine.
type OperatorContexts = HashMap<RangeKey, HashMap<ThreadId, Option<ContextId>>>;

/// Whether this function belongs to autograd's engine and calls backward nodes.
pub(super) fn is_engine(function: &str) -> bool {
    ENGINE_PREFIXES.iter().any(|begin| function.starts_with(begin))
}

/// Moves launches of backward nodes under the forward pass. The frames of the profile must already have names. Launches
/// that were moved by an earlier call of this function are not moved again. `engine` contains true for each frame of
/// the profile that belongs to autograd's engine, even if the frame is hidden. `of_node` returns the shown frames
/// between the engine's innermost frame and the leaf of a stack, root first.
pub(super) fn attach_backward_to_forward(
    profile: &mut Profile,
    engine: &[bool],
    of_node: &dyn Fn(&Profile, ContextId) -> Vec<ShownFrameId>,
) -> BackwardTime {
    let mut operators = OperatorContexts::new();
    let mut backward = HashMap::new();
    for context in profile.contexts() {
        let is_done = shown(profile, context).any(|id| name(profile, id) == BACKWARD_MARK);
        let mut is_backward = is_in(profile, context, engine);
        let mut numbered = numbered(profile, context);
        // The range of a node is the outermost range on its thread. The ranges inside the node's range belong to
        // operators that the node calls.
        let node = numbered.pop_if(|(_, text)| is_backward || is_done || is_node(text));
        is_backward |= node.is_some();
        let thread = profile.context(context).map(|known| known.thread).unwrap_or_default();
        for (number, text) in numbered {
            let by_thread = operators.entry((number, common_name(text))).or_default();
            by_thread.insert(thread, (!is_backward).then_some(context));
        }
        if is_backward || is_done {
            let node = node.map(|(number, text)| (number, common_name(text)));
            backward.insert(context, node.filter(|_| !is_done).ok_or(is_done));
        }
    }
    let mark = profile.intern(BACKWARD_MARK);
    let mark = profile.intern_shown(ShownFrame::new(ShownFrameKind::Marker, mark));
    let mut is_tied: HashMap<ContextId, bool> = HashMap::new();
    for (context, node) in backward {
        let is_done = node == Err(true);
        let by_thread = node.ok().and_then(|node| operators.get(&node)).filter(|found| found.len() == 1);
        let found = by_thread.and_then(|found| found.values().copied().next().flatten());
        if let Some(found) = found {
            let mut stack = Vec::new();
            push_missing_root(profile, found, &mut stack);
            stack.append(&mut forward_stack(profile, found));
            stack.push(mark);
            // If the stack contains a frame of the engine, all frames between that frame and the leaf are present.
            if !is_in(profile, context, engine) {
                push_missing_root(profile, context, &mut stack);
            }
            stack.append(&mut of_node(profile, context));
            profile.set_shown(context, stack);
        }
        is_tied.insert(context, found.is_some() || is_done);
    }
    let mut sums = BackwardTime::default();
    for sample in profile.samples(&GPU) {
        if let SampleSite::Context(context) = sample.site
            && let Some(is_tied) = is_tied.get(&context)
        {
            add_to(&mut sums.all, sample.amount());
            add_to(&mut sums.moved, if *is_tied { sample.amount() } else { 0 });
        }
    }
    sums
}

/// Whether the stack of `context` contains a frame of autograd's engine.
fn is_in(profile: &Profile, context: ContextId, engine: &[bool]) -> bool {
    let Some(known) = profile.context(context) else { return false };
    profile.stack(known.stack).any(|frame| engine[frame.index()])
}

/// If the stack lacks frames at its root, appends the placeholder for missing frames.
fn push_missing_root(profile: &mut Profile, context: ContextId, stack: &mut Vec<ShownFrameId>) {
    if let Some(label) = profile.context(context).and_then(|known| known.flags.label()) {
        let name = profile.intern(label);
        stack.push(profile.intern_shown(ShownFrame::new(ShownFrameKind::Loss, name)));
    }
}

/// Returns the stack of the operator in the forward pass, root first. The stack ends with the innermost Python
/// function. A stack without a Python function ends just before the API call.
fn forward_stack(profile: &Profile, forward: ContextId) -> Vec<ShownFrameId> {
    let mut stack = root_first(profile, forward);
    let is = |id: &ShownFrameId, kind| profile.shown_frame(*id).kind == kind;
    let line = stack.iter().rposition(|id| is(id, ShownFrameKind::Python)).map(|at| at + 1);
    stack.truncate(line.or_else(|| stack.iter().position(|id| is(id, ShownFrameKind::Call))).unwrap_or(0));
    stack
}

/// Returns the shown frames of a context, leaf first.
fn shown(profile: &Profile, context: ContextId) -> impl Iterator<Item = ShownFrameId> {
    profile.shown(context).into_iter().flat_map(|shown| profile.shown_stack(shown))
}

fn root_first(profile: &Profile, context: ContextId) -> Vec<ShownFrameId> {
    let mut frames: Vec<_> = shown(profile, context).collect();
    frames.reverse();
    frames
}

fn name(profile: &Profile, id: ShownFrameId) -> &str {
    profile.strings().get(profile.shown_frame(id).name)
}

/// Returns the ranges around a launch that have a sequence number, innermost first. Each item consists of the sequence
/// number and of the range's text before this number.
fn numbered(profile: &Profile, context: ContextId) -> Vec<(u64, &str)> {
    let Some(known) = profile.context(context) else { return Vec::new() };
    let kinds = profile.stack(known.stack).map(|frame| profile.frames()[frame.index()].kind());
    kinds
        .filter_map(|kind| match kind {
            FrameKind::Range(range) => number(profile.range(range)?),
            _ => None,
        })
        .collect()
}

/// Parses the name of a range: returns `(12, "aten::addmm")` for `aten::addmm, seq = 12, op_id = 40`.
fn number(text: &str) -> Option<(u64, &str)> {
    let (before, behind) = text.split_once(SEQUENCE_INFIX)?;
    let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
    Some((behind[..digits].parse().ok()?, before))
}

/// Removes the digits at the end of a name: returns `AddmmBackward` for `AddmmBackward0`.
fn without_digits(text: &str) -> &str {
    text.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// Whether a range with this text belongs to a node of the backward pass.
fn is_node(text: &str) -> bool {
    without_digits(text).ends_with(NODE_SUFFIX)
}

/// Returns the part of the name that an operator and its node have in common: `addmm` for `[range]aten::addmm` and for
/// `AddmmBackward0`, `tocopy` for `aten::_to_copy` and for `ToCopyBackward0`.
fn common_name(text: &str) -> String {
    let last = text.rsplit([':', ' ', ']']).next().unwrap_or(text);
    let own = without_digits(last).strip_suffix(NODE_SUFFIX).unwrap_or(last);
    own.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbolize::{SymbolizeOptions, Symbolizer};
    use gpuflame_model::profile::{Leaf, LeafFrame, Sample};
    use gpuflame_model::record::{ContextFlags, Frame, LabelId, LabelKind, RangeId, Row, Work};

    /// Returns a profile that contains the given contexts. Each context has a thread, frames (root first), and a GPU
    /// time. In the text of a stack, a frame has the prefix `p` for a Python function, `r` for a range, and `c` for any
    /// other function. A stack that begins with `t;` lacks frames at its root.
    fn profile(contexts: &[(u32, &str, u64)]) -> Profile {
        let (mut profile, mut texts) = (Profile::default(), Vec::new());
        let mut samples = Vec::new();
        for (id, &(thread, stack, nanos)) in (1..).zip(contexts) {
            let whole = stack.strip_prefix("t;");
            let flags = ContextFlags(if whole.is_some() { ContextFlags::TRUNCATED } else { 0 });
            let frames: Vec<Frame> = whole
                .unwrap_or(stack)
                .split(';')
                .rev()
                .map(|frame| {
                    let at = texts.iter().position(|known| known == &frame).unwrap_or_else(|| {
                        texts.push(frame);
                        texts.len() - 1
                    }) as u32;
                    let text = &frame[2..];
                    if frame.starts_with('r') {
                        profile.push(&Row::Range { id: RangeId(at), domain: "", text });
                        return Frame::range(RangeId(at));
                    }
                    let label = LabelId(100 + at);
                    profile.push(&Row::Label { id: label, text });
                    let kind = if frame.starts_with('p') { LabelKind::Python } else { LabelKind::Call };
                    Frame::label_of(kind, label)
                })
                .collect();
            profile.push(&Row::Context {
                id: ContextId(id),
                thread: ThreadId(thread),
                flags,
                frames: &frames,
            });
            let mut sample =
                Sample::new(SampleSite::Context(ContextId(id)), Leaf::new(&[LeafFrame::Work(Work::Set)]));
            sample.values[0] = nanos;
            samples.push(sample);
        }
        profile.set_samples(&GPU, samples);
        Symbolizer::new(SymbolizeOptions::default()).name(&mut profile);
        profile
    }

    fn attach(profile: &mut Profile) -> BackwardTime {
        let options = SymbolizeOptions { backward_under_forward: true, ..SymbolizeOptions::default() };
        let mut symbolizer = Symbolizer::new(options);
        symbolizer.name(profile);
        symbolizer.backward_time()
    }

    fn stack(profile: &Profile, id: u32) -> String {
        let names = root_first(profile, ContextId(id)).into_iter().map(|id| name(profile, id));
        names.collect::<Vec<_>>().join(";")
    }

    const ENGINE_ROOT: &str = "c torch::autograd::Engine::thread_main";

    #[test]
    fn a_backward_node_is_attached_to_the_stack_that_called_its_operator() {
        let node = |number: u32| {
            format!("{ENGINE_ROOT};c MmBackward0;c aten::mm;c call;r MmBackward0, seq = {number};r aten::mm")
        };
        let forward =
            |function: &str, ranges: &str| format!("p step;p {function};c aten::mm;c call;{ranges}");
        let contexts = [
            (1, forward("first", "r aten::linear, seq = 3;r aten::mm, seq = 4, op_id = 9"), 10),
            (1, forward("second", "r aten::mm, seq = 5"), 10),
            // In this test case, two threads assigned the same sequence number.
            (1, forward("third", "r aten::mm, seq = 7"), 10),
            (2, forward("third", "r aten::mm, seq = 7"), 10),
            (3, node(4), 100),
            (3, node(5), 20),
            (3, node(7), 3),
            (3, node(99), 4),
            // An operator that contains another operator has the same sequence number, but creates no node.
            (3, node(3), 1000),
            (3, format!("{ENGINE_ROOT};c AccumulateGrad;c call"), 2),
        ];
        let contexts: Vec<_> =
            contexts.iter().map(|(thread, stack, ns)| (*thread, stack.as_str(), *ns)).collect();
        let mut profile = profile(&contexts);
        let before: Vec<_> = (1..=10).map(|id| stack(&profile, id)).collect();
        let sums = BackwardTime { all: 1129, moved: 120 };
        // A second call of the function, as in a live process, moves no more launches.
        for _ in 0..2 {
            assert_eq!(attach(&mut profile), sums);
            let tail = |number| {
                format!("MmBackward0;aten::mm;call;[range]MmBackward0, seq = {number};[range]aten::mm")
            };
            assert_eq!(stack(&profile, 5), format!("step;first;[backward];{}", tail(4)));
            assert_eq!(stack(&profile, 6), format!("step;second;[backward];{}", tail(5)));
            for id in [1, 2, 3, 4, 7, 8, 9, 10] {
                assert_eq!(stack(&profile, id), before[id as usize - 1], "{id}");
            }
        }
    }

    #[test]
    fn a_backward_node_is_attached_only_to_the_operator_that_created_it() {
        let node = |ranges: &str| format!("{ENGINE_ROOT};c X;c call;{ranges}");
        let forward = |function: &str, ranges: &str| format!("p step;p {function};c call;{ranges}");
        let contexts = [
            // A comparison creates no backward node, so the operator after the comparison gets the same sequence
            // number. The operator after the comparison launches no GPU work.
            (1, forward("mask", "r aten::gt, seq = 1"), 1),
            (3, node("r ExpandBackward0, seq = 1;r aten::sum"), 1),
            // The ranges of operators that a node calls have sequence numbers of the engine's thread. The sequence
            // numbers of these operators do not hide the node's own number.
            (1, forward("layer", "r aten::_to_copy, seq = 4"), 1),
            (3, node("r ToCopyBackward0, seq = 4;r aten::linear, seq = 0"), 1),
            // The backward pass computes this operator again, so two threads assigned the same sequence number.
            (1, forward("again", "r aten::mm, seq = 5"), 1),
            (3, node("r CheckpointFunctionBackward, seq = 9;r aten::mm, seq = 5"), 1),
            (3, node("r MmBackward0, seq = 5;r aten::mm"), 1),
            // Only a thread of autograd's engine assigned this sequence number.
            (3, node("r CheckpointFunctionBackward, seq = 9;r aten::tanh, seq = 6"), 1),
            (3, node("r TanhBackward0, seq = 6;r aten::mul"), 1),
            // If native frames are hidden, a backward node is recognized by its NVTX ranges.
            (1, forward("relu", "r aten::relu, seq = 7"), 1),
            (3, "p hook;c call;r ReluBackward0, seq = 7;r aten::mul".to_owned(), 1),
        ];
        let contexts: Vec<_> =
            contexts.iter().map(|(thread, stack, ns)| (*thread, stack.as_str(), *ns)).collect();
        let mut profile = profile(&contexts);
        assert_eq!(attach(&mut profile), BackwardTime { all: 7, moved: 2 });
        let hung = |id: u32| stack(&profile, id).split_once(";[backward];").map(|(line, _)| line.to_owned());
        let tied: Vec<_> = (1..=11).filter_map(|id| Some((id, hung(id)?))).collect();
        assert_eq!(tied, [(4, "step;layer".to_owned()), (11, "step;relu".to_owned())]);
    }

    #[test]
    fn a_truncated_root_is_marked_at_its_position() {
        let node = "c X;c call;r MmBackward0, seq = 1;r aten::mm";
        for (forward, backward, hung) in [
            ("", format!("{ENGINE_ROOT};"), "step;[backward];"),
            ("t;", format!("{ENGINE_ROOT};"), "[stack truncated];step;[backward];"),
            // All frames between the engine's frame and the leaf of the node's stack are present.
            ("", format!("t;{ENGINE_ROOT};"), "step;[backward];"),
            ("", "t;".to_owned(), "step;[backward];[stack truncated];"),
            ("t;", "t;".to_owned(), "[stack truncated];step;[backward];[stack truncated];"),
        ] {
            let forward = format!("{forward}p step;c call;r aten::mm, seq = 1");
            let mut profile = profile(&[(1, &forward, 1), (2, &format!("{backward}{node}"), 5)]);
            assert_eq!(attach(&mut profile), BackwardTime { all: 5, moved: 5 }, "{forward} {backward}");
            let of_node = "X;call;[range]MmBackward0, seq = 1;[range]aten::mm";
            assert_eq!(stack(&profile, 2), format!("{hung}{of_node}"));
        }
    }

    #[test]
    fn an_operator_and_its_backward_node_share_a_common_name() {
        for (operator, node) in [
            ("aten::addmm", "AddmmBackward0"),
            ("aten::add_", "AddBackward0"),
            ("aten::_to_copy", "ToCopyBackward0"),
            ("aten::_scaled_dot_product_flash_attention", "ScaledDotProductFlashAttentionBackward0"),
            ("Loss", "LossBackward"),
            ("aten::nll_loss", "autograd::engine::evaluate_function: NllLossBackward0"),
        ] {
            assert_eq!(common_name(operator), common_name(node), "{operator}");
            assert!(is_node(node) && !is_node(operator));
        }
    }

    #[test]
    fn a_sequence_number_is_parsed_after_seq() {
        assert_eq!(number("aten::addmm, seq = 12, op_id = 40"), Some((12, "aten::addmm")));
        assert_eq!(number("aten::addmm, seq = 12"), Some((12, "aten::addmm")));
        for other in ["[range]aten::addmm", "[range]x, seq = ", "[range]x, seq = -1", "[range]step 4"] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
