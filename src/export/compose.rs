//! Composes stacks as frames, root first: the frames below a sample's stack, the stack, and the frames on top of the
//! stack. All formats use this module, so a stack is the same in each format.

use std::borrow::Cow;

use super::frame::Frame;
use super::numbers;
use super::options::{GraphStacks, Names, Options};
use super::roots::Roots;
use gpuflame_model::profile::{
    Cause, Kind, Leaf, OTHER_STACKS, Place, Profile, Sample, SharedFrames, ShownFrameId, Tip, View,
};
use gpuflame_model::record::{
    ContextId, Created, DeviceId, Frame as Captured, FrameKind, LabelId, Loss, Missing, ThreadId, Work,
};

/// Frame between the launch of a graph and the stack that created the graph's node.
const GRAPH: &str = "[graph]";

/// Composes the stacks of a view.
pub struct Composer<'a> {
    profile: &'a Profile,
    view: &'a View,
    graph: GraphStacks,
    names: Names,
    /// Whether the paths to both calls around an idle gap are shown completely.
    all_frames: bool,
    roots: Roots<'a>,
}

impl<'a> Composer<'a> {
    /// Creates a composer of the stacks of `view`.
    pub fn new(profile: &'a Profile, view: &'a View, options: &'a Options) -> Self {
        let &Options { graph, names, all_frames, .. } = options;
        Self { profile, view, graph, names, all_frames, roots: Roots::new(profile, view, options) }
    }

    /// Returns the samples of the view, followed by a sample per loss that affects the view.
    pub fn samples(&self) -> impl Iterator<Item = Cow<'a, Sample>> + use<'a> {
        let (profile, view) = (self.profile, self.view);
        let is_shown = |loss| view.lost.iter().any(|(lost, _)| *lost == loss);
        let lost = profile.lost().filter(move |(loss, _)| is_shown(*loss)).map(|(loss, count)| {
            let mut sample = Sample::new(Place::Nobody, Leaf::new(&[Tip::Lost(loss)]));
            sample.values[1] = count;
            Cow::Owned(sample)
        });
        let parts = view.parts.iter().flat_map(move |(part, tip)| {
            profile.samples(part).iter().map(move |sample| Cow::Owned(with(sample, *tip)))
        });
        profile.samples(view).iter().map(Cow::Borrowed).chain(parts).chain(lost)
    }

    /// Returns all frames of a sample.
    pub fn frames(&self, sample: &Sample) -> Vec<Frame<'a>> {
        let mut frames = self.below(sample);
        frames.extend(self.stack(sample.place));
        frames.extend(sample.leaf.tips().map(|tip| self.tip(tip, sample.device)));
        frames
    }

    /// Returns the frames below the sample's stack.
    pub(super) fn below(&self, sample: &Sample) -> Vec<Frame<'a>> {
        // The device and stream of lost samples are unknown.
        let is_lost = |tip| matches!(tip, Tip::Lost(_));
        let mut frames = match sample.leaf.tips().any(is_lost) {
            true => Vec::new(),
            false => self.roots.frames(sample),
        };
        frames.extend(sample.base.map(|base| Frame::new(Kind::Marker, base.label())));
        frames
    }

    /// Returns the frames of the stack at `place`.
    pub(super) fn stack(&self, place: Place) -> Vec<Frame<'a>> {
        match place {
            Place::Between { after, thread, before } if self.all_frames => {
                between(self.profile, (after, thread, before), self.names, usize::MAX)
            }
            _ => stack(self.profile, place, self.graph, self.names),
        }
    }

    /// Returns the frames of a stack, leaf first, if the stack consists only of frames that the profile knows;
    /// otherwise `None`.
    pub(super) fn known(&self, place: Place) -> Option<impl Iterator<Item = ShownFrameId> + use<'a>> {
        let profile = self.profile;
        let Place::Context(context) = place else { return None };
        profile.context(context)?;
        let is_whole = missing_root(profile, context).is_none();
        profile.shown(context).filter(|_| is_whole).map(|shown| profile.shown_stack(shown))
    }

    /// Returns a frame that the profile knows.
    pub(super) fn known_frame(&self, id: ShownFrameId) -> Frame<'a> {
        known_frame(self.profile, id, self.names)
    }

    /// Returns a frame on top of the stack.
    pub(super) fn tip(&self, tip: Tip, device: Option<DeviceId>) -> Frame<'a> {
        let profile = self.profile;
        match tip {
            Tip::Work(work) => {
                let mut text = String::new();
                let (kind, tag) = self.push_work(&mut text, work, device);
                Frame { tag, ..Frame::new(kind, text) }
            }
            Tip::Missing(missing) => Frame::new(Kind::Loss, missing.label()),
            Tip::Lost(loss) => Frame::new(Kind::Loss, self.lost(loss)),
            Tip::Idle(cause) => idle(profile, cause, device),
            Tip::IdleToTheEnd => Frame::new(Kind::Loss, format!("[{}_Idle]", gpu(profile, device))),
            Tip::Allocate(memory) => Frame::new(Kind::Allocation, format!("[Alloc {}]", memory.label())),
            Tip::Free(Some(memory)) => Frame::new(Kind::Free, format!("[Free {}]", memory.label())),
            Tip::Free(None) => Frame::new(Kind::Loss, "[Free of unknown size]"),
            Tip::Unified(kind) => {
                Frame::new(Kind::Unified, format!("[{}_Unified {}]", gpu(profile, device), kind.label()))
            }
            Tip::OnCpu => Frame::new(Kind::Marker, "[on CPU]"),
            Tip::OffCpu => Frame::new(Kind::Marker, "[waiting]"),
            Tip::Named(kind, name) => Frame::new(kind, profile.strings().get(name)),
        }
    }

    /// Appends the frame text of a piece of work to `text`: `[GPU_Kernel]gemm`, or `[GPU1_Kernel]gemm`. Returns the
    /// kind of the frame and the length of its tag.
    pub(super) fn push_work(&self, text: &mut String, work: Work, device: Option<DeviceId>) -> (Kind, usize) {
        let gpu = gpu(self.profile, device);
        let before = text.len();
        let mut push = |parts: &[&str]| parts.iter().for_each(|part| text.push_str(part));
        match work {
            Work::Kernel(_) => push(&["[", &gpu, "_Kernel]"]),
            Work::Copy(kind) => push(&["[", &gpu, "_Memcpy ", kind.label(), "]"]),
            Work::Set => push(&["[", &gpu, "_Memset]"]),
            Work::Graph => push(&["[", &gpu, "_Graph]"]),
        }
        let Work::Kernel(_) = work else { return (Kind::of(work), 0) };
        let tag = text.len() - before;
        text.push_str(&work_name(self.profile, work));
        (Kind::of(work), tag)
    }

    fn lost(&self, loss: Loss) -> &'static str {
        self.view.lost.iter().find(|(lost, _)| *lost == loss).map_or(loss.label(), |(_, label)| label)
    }
}

/// Returns a sample of another view, reduced to time and count, with one more frame on top.
fn with(sample: &Sample, tip: Option<Tip>) -> Sample {
    let tips: Vec<Tip> = sample.leaf.tips().chain(tip).collect();
    let [amount, count, ..] = sample.values;
    Sample { leaf: Leaf::new(&tips), stream: None, values: [amount, count, 0, 0], ..*sample }
}

/// Returns the frames of `place`, root first, by name if known, else by address. Markers for missing frames, or for a
/// missing stack, are frames too.
pub fn stack(profile: &Profile, place: Place, graph: GraphStacks, names: Names) -> Vec<Frame<'_>> {
    let launched = |launch: Result<ContextId, Missing>| match launch {
        Ok(context) => context_frames(profile, context, names),
        Err(missing) => vec![Frame::new(Kind::Loss, missing.label())],
    };
    match place {
        Place::Context(_) | Place::Missing(_) => launched(place.launch()),
        Place::Nobody => Vec::new(),
        Place::Between { after, thread, before } => between(profile, (after, thread, before), names, 1),
        Place::Node { launch, created } => match (graph, creation(profile, created, names)) {
            (GraphStacks::Launch, _) => launched(launch),
            (GraphStacks::Capture, Ok(mut made)) => {
                made.push(Frame::new(Kind::Graph, GRAPH));
                made
            }
            (GraphStacks::Capture | GraphStacks::Both, made) => {
                let mut frames = launched(launch);
                let made = made.unwrap_or_else(|why| vec![Frame::new(Kind::Loss, why)]);
                let shared = frames.iter().zip(&made).take_while(|(a, b)| a.text == b.text).count();
                frames.push(Frame::new(Kind::Graph, GRAPH));
                frames.extend(made.into_iter().skip(shared));
                frames
            }
        },
    }
}

/// Returns the frames that ran during the pause between two calls, a frame for the functions of which that is not known,
/// and the frames of each call inside these functions: at most `functions` frames, and the call itself.
fn between(
    profile: &Profile,
    (after, thread, before): (ContextId, Option<ThreadId>, ContextId),
    names: Names,
    functions: usize,
) -> Vec<Frame<'_>> {
    let (mut first, mut second) =
        (context_frames(profile, after, names), context_frames(profile, before, names));
    let is_call = |frames: &[Frame<'_>]| matches!(frames, [Frame { kind: Kind::Call, .. }]);
    if thread.is_none() && is_call(&first) && is_call(&second) {
        return vec![Frame::new(Kind::Call, format!("[between {} and {}]", first[0].text, second[0].text))];
    }
    // No invocation of a function is in the stacks of two threads.
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
    // The two calls themselves are never shared, even if they are equal.
    let inside = |frames: &mut Vec<Frame<'_>>, shared: usize| shared.min(frames.len().saturating_sub(1));
    let (at, start) = (inside(&mut first, shared.after), inside(&mut second, shared.before));
    let once = shared.once.min(at).min(start);
    let unsure = (at > once).then(|| format!("[in {}, or after it returned]", first[at - 1].text));
    let mut frames: Vec<_> = first.drain(..at).take(once).collect();
    frames.extend(unsure.map(|text| Frame::new(Kind::Marker, text)));
    second.drain(..start);
    for (mark, tail) in [(&mark[..], first), (BEFORE, second)] {
        let call = tail.len().saturating_sub(1);
        let shown = tail.into_iter().enumerate().filter(|(at, _)| *at < functions || *at == call);
        frames.extend(shown.map(|(at, frame)| if at == 0 { marked(mark, frame) } else { frame }));
    }
    frames
}

const BEFORE: &str = "[before] ";

/// Returns a frame with a mark before its name.
fn marked<'a>(mark: &str, frame: Frame<'a>) -> Frame<'a> {
    Frame { text: format!("{mark}{}", frame.text).into(), tag: mark.len(), id: None, ..frame }
}

/// Returns the stack that created a graph node, or the reason why that stack is unknown.
fn creation(profile: &Profile, created: Created, names: Names) -> Result<Vec<Frame<'_>>, &'static str> {
    match created {
        Created::Context(context) if profile.context(context).is_some() => {
            Ok(context_frames(profile, context, names))
        }
        Created::Context(_) => Err(Created::Unknown.label().unwrap_or_default()),
        other => Err(other.label().unwrap_or_default()),
    }
}

fn context_frames(profile: &Profile, context: ContextId, names: Names) -> Vec<Frame<'_>> {
    let Some(known) = profile.context(context) else {
        return vec![Frame::new(Kind::Loss, Missing::NoStack.label())];
    };
    let mut frames: Vec<_> = match profile.shown(context) {
        Some(shown) => profile.shown_stack(shown).map(|id| known_frame(profile, id, names)).collect(),
        None => {
            profile.stack(known.stack).map(|frame| raw(profile, profile.frames()[frame.index()])).collect()
        }
    };
    frames.extend(missing_root(profile, context).map(|cut| Frame::new(Kind::Loss, cut)));
    frames.reverse();
    frames
}

/// Returns the marker for frames missing below the root of a stack. A stack that was assembled from two stacks has
/// the marker inside.
fn missing_root(profile: &Profile, context: ContextId) -> Option<&'static str> {
    let label = profile.context(context)?.flags.label()?;
    let mut shown = profile.shown(context).into_iter().flat_map(|shown| profile.shown_stack(shown));
    let is_of_two = shown.any(|id| profile.shown_frame(id).kind == Kind::Marker);
    (!is_of_two).then_some(label)
}

fn known_frame(profile: &Profile, id: ShownFrameId, names: Names) -> Frame<'_> {
    let shown = profile.shown_frame(id);
    let name = numbers::fold_name(shown.kind, profile.strings().get(shown.name).into(), names);
    Frame { id: Some(id), ..Frame::new(shown.kind, name) }
}

/// Returns a frame without a name.
fn raw(profile: &Profile, frame: Captured) -> Frame<'_> {
    match frame.kind() {
        FrameKind::Native { address, .. } => Frame::new(Kind::Code, format!("0x{address:x}")),
        FrameKind::Label(LabelId::OTHER_STACKS) => Frame::new(Kind::Loss, OTHER_STACKS),
        FrameKind::Label(label) => Frame::new(Kind::Call, profile.label(label).unwrap_or("[label lost]")),
        FrameKind::Python { code, .. } => {
            Frame::new(Kind::Python, profile.code(code).map_or("[function lost]", |code| code.name))
        }
        FrameKind::Range(range) => Frame::new(Kind::Range, profile.range(range).unwrap_or("[range]")),
        FrameKind::Unknown(tag) => Frame::new(Kind::Loss, format!("[frame of unknown kind: {tag}]")),
    }
}

/// Returns the frame `[GPU_Idle host late]`, with the GPU's number if there are several GPUs.
fn idle<'a>(profile: &Profile, cause: Cause, device: Option<DeviceId>) -> Frame<'a> {
    Frame::new(Kind::Idle(cause), format!("[{}_Idle {}]", gpu(profile, device), cause.label()))
}

/// Returns `GPU`, or `GPU1` if several GPUs did work.
fn gpu(profile: &Profile, device: Option<DeviceId>) -> Cow<'static, str> {
    match device {
        Some(device) if profile.devices().len() > 1 => format!("GPU{}", device.0).into(),
        _ => "GPU".into(),
    }
}

/// Returns the name of the API call of a context, which is the context's innermost frame that is not a range.
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

/// Returns the name of a piece of work, without a stack: the kernel's name, the direction of a copy, `memset`, or
/// `graph`.
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

/// Returns the unmodified frame texts of `place`, root first. For a graph node, returns the frames of its launch and
/// of the stack that created it.
pub fn stack_names(profile: &Profile, place: Place) -> Vec<Cow<'_, str>> {
    folded_names(profile, place, Names::Kept)
}

/// As [`stack_names`], but treats numbers in names as `names` requires.
pub fn folded_names(profile: &Profile, place: Place, names: Names) -> Vec<Cow<'_, str>> {
    stack(profile, place, GraphStacks::Both, names).into_iter().map(|frame| frame.text).collect()
}

/// Returns the place to which an activity is attributed.
pub fn event_place(event: &gpuflame_explain::events::JoinedActivity) -> Place {
    let launch = event.origin.context();
    match (event.activity.created, launch) {
        (Some(created), launch) => Place::Node { launch, created },
        (None, Ok(context)) => Place::Context(context),
        (None, Err(missing)) => Place::Missing(missing),
    }
}
