//! Compares the stacks of two API calls of one thread, to find out which functions certainly ran during the pause
//! between the two calls.
//!
//! ```text
//! call before:  main > train > update > cudaLaunchKernel        main, train: the same call sites
//! call after:   main > train > load   > cudaMemcpyAsync         train: another call site
//! ```
//!
//! The frames of the two stacks are compared from the root. Frames are compared by code and call site, never by name.
//! In the following, P is the first function in which the call sites of the two stacks differ (`train` in the example
//! above). If the call sites are equal in all frames, P is the function that made both API calls. A function that P
//! called either returned before the pause or was called after the pause. P itself may have run during the whole pause.
//! But P may also have returned during the pause and been called again. The stacks do not show which of the two
//! happened, because a loop inside P and a loop around P result in the same stacks. Likewise, the stacks do not show
//! whether a function that called P ran during the whole pause. So it is certain that a function ran during the whole
//! pause only if a thread enters this function only once. Examples of such functions are the program's `main` or
//! `<module>`, and the start function of a thread. The start function of a coroutine or greenlet is not such a
//! function, because many coroutines on one thread can start with the same function.

use std::collections::BTreeMap;

use gpuflame_model::profile::{FrameId, Profile, SampleSite, SharedFrames, ShownFrame, ShownFrameKind};
use gpuflame_model::record::{ContextFlags, ContextId, FrameKind, LabelKind};

use super::{Displayed, Symbolizer};

/// A captured stack and its displayed frames, both sorted from root to leaf.
struct Stack {
    frames: Vec<FrameId>,
    /// Number of captured frames from the root up to the function that made the API call.
    callers: usize,
    displayed: Vec<Displayed>,
    /// Number of displayed frames at the root whose functions a thread enters only once.
    once: usize,
}

impl Symbolizer {
    /// For each pause in the profile, finds the frames that the stacks before and after the pause have in common.
    pub(super) fn name_pauses(&self, profile: &mut Profile) {
        let mut pauses = BTreeMap::new();
        for site in profile.sites() {
            if let SampleSite::Between { after, thread: None, before } = site {
                pauses.entry((after, before)).or_insert_with(|| self.shared(profile, after, before));
            }
        }
        profile.set_pauses(pauses);
    }

    fn shared(&self, profile: &Profile, after: ContextId, before: ContextId) -> SharedFrames {
        let stacks = (self.stack_of(profile, after), self.stack_of(profile, before));
        let (Some(first), Some(second)) = stacks else {
            return SharedFrames::default();
        };
        let callers = first.callers.min(second.callers);
        let pairs = || first.frames.iter().zip(&second.frames).take(callers);
        let same = pairs().take_while(|(a, b)| a == b).count();
        // Each inlined function counts as a separate function.
        let inside = pairs().nth(same).map_or(0, |(a, b)| self.same_functions(profile, *a, *b));
        let is_shared =
            |shown: &&Displayed| shown.depth < same || shown.depth == same && shown.inlined < inside;
        let count = |stack: &Stack| stack.displayed.iter().filter(is_shared).count();
        let (after, before) = (count(&first), count(&second));
        let once = first.once.min(second.once).min(after).min(before);
        SharedFrames { once, after, before }
    }

    /// Returns the captured stack of a context. Returns `None` if the context is unknown, or if its stack is displayed
    /// as a part of another stack (as for a moved launch of a backward pass).
    fn stack_of(&self, profile: &Profile, context: ContextId) -> Option<Stack> {
        let known = profile.context(context)?;
        let mut frames: Vec<FrameId> = profile.stack(known.stack).collect();
        frames.reverse();
        let displayed = self.display(profile, &frames);
        let mut shown: Vec<_> = profile.shown_stack(profile.shown(context)?).collect();
        shown.reverse();
        if !shown.iter().eq(displayed.iter().map(|one| &one.frame)) {
            return None;
        }
        let kinds = || frames.iter().map(|frame| profile.frames()[frame.index()]);
        let is_call = |frame: gpuflame_model::record::Frame| {
            matches!(frame.kind(), FrameKind::Label(_)) && frame.label_kind() == LabelKind::Call
        };
        let is_range = |frame: &gpuflame_model::record::Frame| matches!(frame.kind(), FrameKind::Range(_));
        let tip = kinds().rev().take_while(is_range).count();
        let has_call = kinds().rev().nth(tip).is_some_and(is_call);
        let callers = frames.len() - tip - usize::from(has_call);
        let is_whole =
            ![ContextFlags::TRUNCATED, ContextFlags::CUT].iter().any(|flag| known.flags.has(*flag));
        let once = if is_whole { entered_once(profile, &displayed, self.entry(profile, &frames)) } else { 0 };
        Some(Stack { frames, callers, displayed, once })
    }

    /// Returns how many functions two frames with different call sites have in common. A frame has several functions if
    /// the compiler inlined calls.
    fn same_functions(&self, profile: &Profile, a: FrameId, b: FrameId) -> usize {
        let (first, second) = (&self.frames[a.index()], &self.frames[b.index()]);
        let code = |frame: FrameId| match profile.frames()[frame.index()].kind() {
            FrameKind::Python { code, .. } => Some(code),
            _ => None,
        };
        let is_same_python = code(a).is_some() && code(a) == code(b);
        let is_same_native = first.start.is_some() && first.start == second.start;
        if !is_same_python && !is_same_native {
            return 0;
        }
        let frames = first.names.iter().zip(&second.names);
        let is_same =
            |(a, b): (&ShownFrame, &ShownFrame)| (a.kind, a.name, a.module) == (b.kind, b.name, b.module);
        let inlined = frames
            .skip(1)
            .take_while(|(a, b)| is_same((profile.shown_frame(a.frame), profile.shown_frame(b.frame))));
        1 + inlined.count()
    }
}

/// Returns the number of displayed frames at the root whose functions a thread enters only once. `entry` is the depth
/// of the first frame after the start code.
fn entered_once(profile: &Profile, displayed: &[Displayed], entry: usize) -> usize {
    let text = |one: &Displayed| profile.strings().get(profile.shown_frame(one.frame).name);
    // The start code of a program or of a thread has at least two frames, such as `clone` and `start_thread`. The stack
    // of a coroutine has no start code, or one frame of the C library's function `makecontext`.
    let start = displayed.iter().take_while(|one| one.depth < entry).count();
    let Some(first) = displayed.get(start).filter(|one| entry > 1 && (one.depth, one.inlined) == (entry, 0))
    else {
        return 0;
    };
    // The stack of a greenlet begins with the start code of its thread, but the first Python function in it can be any
    // function.
    let is_python = profile.shown_frame(first.frame).kind == ShownFrameKind::Python;
    if is_python && !is_launcher(profile, first) && !text(first).starts_with("<module>") {
        return 0;
    }
    // Start code that is written in Python calls the next function in the stack only once.
    let launchers = displayed[start..].iter().take_while(|one| is_launcher(profile, one)).count();
    let once = start + launchers + 1;
    let is_unique = |one: &Displayed| displayed.iter().filter(|other| text(other) == text(one)).count() == 1;
    displayed[..once.min(displayed.len())].iter().take_while(|one| is_unique(one)).count()
}

/// Whether a frame is start code that is written in Python: of a program (`python -m`) or of a thread.
fn is_launcher(profile: &Profile, one: &Displayed) -> bool {
    let frame = profile.shown_frame(one.frame);
    let file = frame.source.map_or("", |source| profile.strings().get(source.file));
    let name = profile.strings().get(frame.name).split(" (").next().unwrap_or_default();
    frame.kind == ShownFrameKind::Python
        && match file.rsplit('/').next() {
            Some("<frozen runpy>" | "runpy.py") => ["_run_module_as_main", "_run_code"].contains(&name),
            Some("threading.py") => ["_bootstrap", "_bootstrap_inner", "run"].contains(&name),
            _ => false,
        }
}
