//! Composes the frames of a sample, root first. The frames are the root frames that the options request, the sample's
//! stack, and the leaf frames on top of the stack. A sample has the same frames in each format, because all formats use
//! this module.

use std::borrow::Cow;

use super::frame::ComposedFrame;
use super::numbers;
use super::options::{GraphStacks, NameFolding, Options};
use super::roots::Roots;
use gpuflame_model::profile::{
    Cause, Leaf, LeafFrame, OTHER_STACKS, PYTHON_NOT_READ, Profile, Sample, SampleSite, SharedFrames,
    ShownFrameId, ShownFrameKind, View,
};
use gpuflame_model::record::{
    ContextId, Created, DeviceId, Frame, FrameKind, LabelId, Loss, Missing, ThreadId, Work,
};

/// Frame shown between the stack that launched a CUDA graph and the stack that created the graph's node.
const GRAPH_FRAME: &str = "[graph]";

/// Composes the frames of a view's samples.
pub struct Composer<'a> {
    profile: &'a Profile,
    view: &'a View,
    graph: GraphStacks,
    names: NameFolding,
    /// Whether to show the complete stacks of both calls around an idle gap.
    all_frames: bool,
    roots: Roots<'a>,
}

impl<'a> Composer<'a> {
    /// Creates a composer for the samples of `view`.
    pub fn new(profile: &'a Profile, view: &'a View, options: &'a Options) -> Self {
        let &Options { graph, names, all_frames, .. } = options;
        Self { profile, view, graph, names, all_frames, roots: Roots::new(profile, view, options) }
    }

    /// Returns the samples of the view, followed by one sample for each kind of lost data that the view shows.
    pub fn samples(&self) -> impl Iterator<Item = Cow<'a, Sample>> + use<'a> {
        let (profile, view) = (self.profile, self.view);
        let is_shown = |loss| view.lost.iter().any(|(lost, _)| *lost == loss);
        let lost = profile.lost().filter(move |(loss, _)| is_shown(*loss)).map(|(loss, count)| {
            let mut sample = Sample::new(SampleSite::NoStack, Leaf::new(&[LeafFrame::Lost(loss)]));
            sample.values[1] = count;
            Cow::Owned(sample)
        });
        let parts = view.parts.iter().flat_map(move |(part, leaf_frame)| {
            profile
                .shown_samples(part)
                .iter()
                .map(move |sample| Cow::Owned(with_leaf_frame(sample, *leaf_frame)))
        });
        profile.shown_samples(view).iter().map(Cow::Borrowed).chain(parts).chain(lost)
    }

    /// Returns all frames of a sample, root first.
    pub fn frames(&self, sample: &Sample) -> Vec<ComposedFrame<'a>> {
        let mut frames = self.root_frames(sample);
        frames.extend(self.stack(sample.site));
        frames.extend(sample.leaf.frames().map(|leaf_frame| self.leaf_frame(leaf_frame, sample.device)));
        frames
    }

    /// Returns the frames on the root side of the sample's stack: the root frames that the options request, and the
    /// root mark of the sample.
    pub(super) fn root_frames(&self, sample: &Sample) -> Vec<ComposedFrame<'a>> {
        // For lost work, the device and the stream are unknown.
        let is_lost = |leaf_frame| matches!(leaf_frame, LeafFrame::Lost(_));
        let mut frames = match sample.leaf.frames().any(is_lost) {
            true => Vec::new(),
            false => self.roots.frames(sample),
        };
        frames.extend(sample.root_mark.map(|mark| ComposedFrame::new(ShownFrameKind::Marker, mark.label())));
        frames
    }

    /// Returns the frames of the stack that `site` refers to.
    pub(super) fn stack(&self, site: SampleSite) -> Vec<ComposedFrame<'a>> {
        match site {
            SampleSite::Between { after, thread, before } if self.all_frames => {
                between(self.profile, (after, thread, before), self.names, usize::MAX)
            }
            _ => stack(self.profile, site, self.graph, self.names),
        }
    }

    /// Returns the ids of the frames of a stack, leaf first. Returns `None` if a frame has no id in the profile.
    pub(super) fn profile_frames(
        &self,
        site: SampleSite,
    ) -> Option<impl Iterator<Item = ShownFrameId> + use<'a>> {
        let profile = self.profile;
        let SampleSite::Context(context) = site else { return None };
        profile.context(context)?;
        let is_whole = missing_root(profile, context).is_none();
        profile.shown(context).filter(|_| is_whole).map(|shown| profile.shown_stack(shown))
    }

    /// Returns the frame that has this id in the profile.
    pub(super) fn profile_frame(&self, id: ShownFrameId) -> ComposedFrame<'a> {
        profile_frame(self.profile, id, self.names)
    }

    /// Returns one of the frames (leaf frames) on top of a sample's stack.
    pub(super) fn leaf_frame(&self, leaf_frame: LeafFrame, device: Option<DeviceId>) -> ComposedFrame<'a> {
        let profile = self.profile;
        match leaf_frame {
            LeafFrame::Work(work) => {
                let mut text = String::new();
                let (kind, tag) = self.push_work(&mut text, work, device);
                ComposedFrame { tag, ..ComposedFrame::new(kind, text) }
            }
            LeafFrame::Missing(missing) => ComposedFrame::new(ShownFrameKind::Loss, missing.label()),
            LeafFrame::Lost(loss) => ComposedFrame::new(ShownFrameKind::Loss, self.lost(loss)),
            LeafFrame::Idle(cause) => idle(profile, cause, device),
            LeafFrame::IdleUntilClose => {
                ComposedFrame::new(ShownFrameKind::Loss, format!("[{}_Idle]", gpu(profile, device)))
            }
            LeafFrame::Allocate(memory) => {
                ComposedFrame::new(ShownFrameKind::Allocation, format!("[Alloc {}]", memory.label()))
            }
            LeafFrame::Free(Some(memory)) => {
                ComposedFrame::new(ShownFrameKind::Free, format!("[Free {}]", memory.label()))
            }
            LeafFrame::Free(None) => ComposedFrame::new(ShownFrameKind::Loss, "[Free of unknown size]"),
            LeafFrame::Unified(kind) => ComposedFrame::new(
                ShownFrameKind::Unified,
                format!("[{}_Unified {}]", gpu(profile, device), kind.label()),
            ),
            LeafFrame::OnCpu => ComposedFrame::new(ShownFrameKind::Marker, "[on CPU]"),
            LeafFrame::OffCpu => ComposedFrame::new(ShownFrameKind::Marker, "[waiting]"),
            LeafFrame::Named(kind, name) => ComposedFrame::new(kind, profile.strings().get(name)),
        }
    }

    /// Appends to `text` the frame text of a GPU operation: `[GPU_Kernel]gemm`, or `[GPU1_Kernel]gemm` if there are
    /// several GPUs. Returns the kind of the frame, and the length of the tag in brackets.
    pub(super) fn push_work(
        &self,
        text: &mut String,
        work: Work,
        device: Option<DeviceId>,
    ) -> (ShownFrameKind, usize) {
        let gpu = gpu(self.profile, device);
        let before = text.len();
        let mut push = |parts: &[&str]| parts.iter().for_each(|part| text.push_str(part));
        match work {
            Work::Kernel(_) => push(&["[", &gpu, "_Kernel]"]),
            Work::Copy(kind) => push(&["[", &gpu, "_Memcpy ", kind.label(), "]"]),
            Work::Set => push(&["[", &gpu, "_Memset]"]),
            Work::Graph => push(&["[", &gpu, "_Graph]"]),
        }
        let Work::Kernel(_) = work else { return (ShownFrameKind::for_work(work), 0) };
        let tag = text.len() - before;
        text.push_str(&work_name(self.profile, work));
        (ShownFrameKind::for_work(work), tag)
    }

    fn lost(&self, loss: Loss) -> &'static str {
        self.view.lost.iter().find(|(lost, _)| *lost == loss).map_or(loss.label(), |(_, label)| label)
    }
}

/// Returns a copy of another view's sample, with `leaf_frame` on top. The copy has only two of the original sample's
/// values: the time and the count.
fn with_leaf_frame(sample: &Sample, leaf_frame: Option<LeafFrame>) -> Sample {
    let leaf_frames: Vec<LeafFrame> = sample.leaf.frames().chain(leaf_frame).collect();
    let [amount, count, ..] = sample.values;
    Sample { leaf: Leaf::new(&leaf_frames), stream: None, values: [amount, count, 0, 0], ..*sample }
}

/// Returns the frames of `site`, root first. If a frame has no name, its address is shown instead. If frames or the
/// whole stack are missing, the result contains a frame with the reason.
pub fn stack(
    profile: &Profile,
    site: SampleSite,
    graph: GraphStacks,
    names: NameFolding,
) -> Vec<ComposedFrame<'_>> {
    let launched = |launch: Result<ContextId, Missing>| match launch {
        Ok(context) => context_frames(profile, context, names),
        Err(missing) => vec![ComposedFrame::new(ShownFrameKind::Loss, missing.label())],
    };
    match site {
        SampleSite::Context(_) | SampleSite::Missing(_) => launched(site.launch()),
        SampleSite::NoStack => Vec::new(),
        SampleSite::Between { after, thread, before } => between(profile, (after, thread, before), names, 1),
        SampleSite::Node { launch, created } => match (graph, creation(profile, created, names)) {
            (GraphStacks::Launch, _) => launched(launch),
            (GraphStacks::Capture, Ok(mut made)) => {
                made.push(ComposedFrame::new(ShownFrameKind::Graph, GRAPH_FRAME));
                made
            }
            (GraphStacks::Capture | GraphStacks::Both, made) => {
                let mut frames = launched(launch);
                let made = made.unwrap_or_else(|why| vec![ComposedFrame::new(ShownFrameKind::Loss, why)]);
                let shared = frames.iter().zip(&made).take_while(|(a, b)| a.text == b.text).count();
                frames.push(ComposedFrame::new(ShownFrameKind::Graph, GRAPH_FRAME));
                frames.extend(made.into_iter().skip(shared));
                frames
            }
        },
    }
}

/// Returns the frames for a pause between two API calls, in this order:
/// 1. the frames of functions that ran during the whole pause;
/// 2. one frame for all functions that may have returned during the pause;
/// 3. for each of the two calls, its other frames (at most `functions`) and the call itself;
/// 4. the NVTX ranges that were open at the second call.
fn between(
    profile: &Profile,
    (after, thread, before): (ContextId, Option<ThreadId>, ContextId),
    names: NameFolding,
    functions: usize,
) -> Vec<ComposedFrame<'_>> {
    let (mut first, mut second) =
        (context_frames(profile, after, names), context_frames(profile, before, names));
    // At the end of a stack, NVTX ranges follow the API call. The NVTX ranges of the first call are omitted, because
    // they may have ended before the second call.
    split_ranges(&mut first);
    let ranges = split_ranges(&mut second);
    let is_call =
        |frames: &[ComposedFrame<'_>]| matches!(frames, [ComposedFrame { kind: ShownFrameKind::Call, .. }]);
    if thread.is_none() && is_call(&first) && is_call(&second) {
        let text = format!("[between {} and {}]", first[0].text, second[0].text);
        return [ComposedFrame::new(ShownFrameKind::Call, text)].into_iter().chain(ranges).collect();
    }
    // The stacks of two different threads share no frames, because each function call runs on only one thread.
    let shared = match thread {
        None => profile.pause(after, before).unwrap_or_default(),
        Some(_) => SharedFrames::default(),
    };
    let mark = match thread {
        None => "[after] ".to_owned(),
        Some(ThreadId::OTHERS) => "[after, another thread] ".to_owned(),
        Some(id) => match profile.thread(id).filter(|name| !name.is_empty()) {
            Some(name) => format!("[after, thread {name}] "),
            None => format!("[after, thread {}] ", id.0),
        },
    };
    // The last frame of each stack is the API call. The frame of the API call is never shared, even if both calls have
    // the same name.
    let inside =
        |frames: &mut Vec<ComposedFrame<'_>>, shared: usize| shared.min(frames.len().saturating_sub(1));
    let (at, start) = (inside(&mut first, shared.after), inside(&mut second, shared.before));
    let once = shared.once.min(at).min(start);
    let unsure = (at > once).then(|| format!("[in {}, or after it returned]", first[at - 1].text));
    let mut frames: Vec<_> = first.drain(..at).take(once).collect();
    frames.extend(unsure.map(|text| ComposedFrame::new(ShownFrameKind::Marker, text)));
    second.drain(..start);
    for (mark, tail) in [(&mark[..], first), (CALL_BEFORE_MARK, second)] {
        let call = tail.len().saturating_sub(1);
        let shown = tail.into_iter().enumerate().filter(|(at, _)| *at < functions || *at == call);
        frames.extend(shown.map(|(at, frame)| if at == 0 { with_mark(mark, frame) } else { frame }));
    }
    frames.extend(ranges);
    frames
}

/// Removes the frames of NVTX ranges from the end of a stack, and returns these frames.
fn split_ranges<'a>(frames: &mut Vec<ComposedFrame<'a>>) -> Vec<ComposedFrame<'a>> {
    let last = frames.iter().rposition(|frame| frame.kind != ShownFrameKind::Range);
    frames.split_off(last.map_or(0, |last| last + 1))
}

const CALL_BEFORE_MARK: &str = "[before] ";

/// Returns the frame with `mark` in front of the frame's name.
fn with_mark<'a>(mark: &str, frame: ComposedFrame<'a>) -> ComposedFrame<'a> {
    ComposedFrame { text: format!("{mark}{}", frame.text).into(), tag: mark.len(), id: None, ..frame }
}

/// Returns the stack that created a node of a CUDA graph, or the reason why that stack is unknown.
fn creation(
    profile: &Profile,
    created: Created,
    names: NameFolding,
) -> Result<Vec<ComposedFrame<'_>>, &'static str> {
    match created {
        Created::Context(context) if profile.context(context).is_some() => {
            Ok(context_frames(profile, context, names))
        }
        Created::Context(_) => Err(Created::Unknown.label().unwrap_or_default()),
        other => Err(other.label().unwrap_or_default()),
    }
}

fn context_frames(profile: &Profile, context: ContextId, names: NameFolding) -> Vec<ComposedFrame<'_>> {
    let Some(known) = profile.context(context) else {
        return vec![ComposedFrame::new(ShownFrameKind::Loss, Missing::NoStack.label())];
    };
    let mut frames: Vec<_> = match profile.shown(context) {
        Some(shown) => profile.shown_stack(shown).map(|id| profile_frame(profile, id, names)).collect(),
        None => {
            profile.stack(known.stack).map(|frame| raw(profile, profile.frames()[frame.index()])).collect()
        }
    };
    frames.extend(missing_root(profile, context).map(|cut| ComposedFrame::new(ShownFrameKind::Loss, cut)));
    frames.reverse();
    frames
}

/// Returns the frame that marks missing frames at the root of a stack. Returns `None` if the stack was assembled from
/// two stacks, because in such a stack the missing frames are not at the root.
fn missing_root(profile: &Profile, context: ContextId) -> Option<&'static str> {
    let label = profile.context(context)?.flags.label()?;
    let mut shown = profile.shown(context).into_iter().flat_map(|shown| profile.shown_stack(shown));
    let is_of_two = shown.any(|id| profile.shown_frame(id).kind == ShownFrameKind::Marker);
    (!is_of_two).then_some(label)
}

fn profile_frame(profile: &Profile, id: ShownFrameId, names: NameFolding) -> ComposedFrame<'_> {
    let shown = profile.shown_frame(id);
    let name = numbers::fold_name(shown.kind, profile.strings().get(shown.name).into(), names);
    ComposedFrame { id: Some(id), ..ComposedFrame::new(shown.kind, name) }
}

/// Returns the frame to show for a captured frame whose name is unknown.
fn raw(profile: &Profile, frame: Frame) -> ComposedFrame<'_> {
    match frame.kind() {
        FrameKind::Native { address, .. } => {
            ComposedFrame::new(ShownFrameKind::Code, format!("0x{address:x}"))
        }
        FrameKind::Label(LabelId::OTHER_STACKS) => ComposedFrame::new(ShownFrameKind::Loss, OTHER_STACKS),
        FrameKind::Label(LabelId::PYTHON_NOT_READ) => {
            ComposedFrame::new(ShownFrameKind::Loss, PYTHON_NOT_READ)
        }
        FrameKind::Label(label) => {
            ComposedFrame::new(ShownFrameKind::Call, profile.label(label).unwrap_or("[label lost]"))
        }
        FrameKind::Python { code, .. } => ComposedFrame::new(
            ShownFrameKind::Python,
            profile.code(code).map_or("[function lost]", |code| code.name),
        ),
        FrameKind::Range(range) => {
            ComposedFrame::new(ShownFrameKind::Range, profile.range(range).unwrap_or("[range]"))
        }
        FrameKind::Unknown(tag) => {
            ComposedFrame::new(ShownFrameKind::Loss, format!("[frame of unknown kind: {tag}]"))
        }
    }
}

/// Returns the frame `[GPU_Idle host late]`, with the GPU's index if there are several GPUs.
fn idle<'a>(profile: &Profile, cause: Cause, device: Option<DeviceId>) -> ComposedFrame<'a> {
    ComposedFrame::new(
        ShownFrameKind::Idle(cause),
        format!("[{}_Idle {}]", gpu(profile, device), cause.label()),
    )
}

/// Returns `GPU`, or for example `GPU1` if several GPUs did work.
fn gpu(profile: &Profile, device: Option<DeviceId>) -> Cow<'static, str> {
    match device {
        Some(device) if profile.devices().len() > 1 => format!("GPU{}", device.0).into(),
        _ => "GPU".into(),
    }
}

/// Returns the name of the API call of a launch context. The frame of the API call is the innermost frame that is not
/// an NVTX range.
pub fn call(profile: &Profile, context: ContextId) -> &str {
    let label = || {
        let frames = profile.stack(profile.context(context)?.stack);
        let mut kinds = frames.map(|frame| profile.frames()[frame.index()].kind());
        match kinds.find(|frame| !matches!(frame, FrameKind::Range(_)))? {
            FrameKind::Label(label) => profile.label(label),
            _ => None,
        }
    };
    label().unwrap_or("[call unknown]")
}

/// Returns the name of a GPU operation: the kernel's name, the direction of a copy, `memset`, or `graph`.
pub fn work_name(profile: &Profile, work: Work) -> Cow<'_, str> {
    match work {
        Work::Kernel(name) => match profile.kernel(name) {
            Some(text) => text.into(),
            None => format!("[kernel without a name: {}]", name.0).into(),
        },
        Work::Copy(kind) => kind.label().into(),
        Work::Set => "memset".into(),
        Work::Graph => "graph".into(),
    }
}

/// Returns the texts of the frames of `site`, root first, without folding numbers. For a graph node, the frames of the
/// launch come first, then the frames of the stack that created the node.
pub fn stack_names(profile: &Profile, site: SampleSite) -> Vec<Cow<'_, str>> {
    folded_names(profile, site, NameFolding::Kept)
}

/// Like [`stack_names`], but with numbers in names folded as `names` specifies.
pub fn folded_names(profile: &Profile, site: SampleSite, names: NameFolding) -> Vec<Cow<'_, str>> {
    stack(profile, site, GraphStacks::Both, names).into_iter().map(|frame| frame.text).collect()
}

/// Returns the site (stack) to which an activity is attributed.
pub fn event_site(event: &gpuflame_explain::events::JoinedActivity) -> SampleSite {
    let launch = event.origin.context();
    match (event.activity.created, launch) {
        (Some(created), launch) => SampleSite::Node { launch, created },
        (None, Ok(context)) => SampleSite::Context(context),
        (None, Err(missing)) => SampleSite::Missing(missing),
    }
}
