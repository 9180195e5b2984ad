//! Places in the host's code, and the activities that the names in a place reveal. For example, names show whether the
//! host loaded data, compiled code or waited for a lock.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::names::{CallTraits, FrameTraits, is_called_loader};
use super::thresholds::{MAX_LAUNCH_CALL_NS, MAX_LAUNCH_GAP_NS, MIN_LOADING_NS};
use gpuflame_export::compose::stack;
use gpuflame_export::frame::ComposedFrame;
use gpuflame_export::{GraphStacks, NameFolding, StackEnd, host_place};
use gpuflame_model::profile::{Profile, SampleSite, ShownFrameId, ShownFrameKind};
use gpuflame_model::record::{ContextId, IdMap};

/// Stacks with ids below this limit are stored in a list instead of a hash table. The list of stacks takes at most 8
/// MB.
const MAX_LISTED: u32 = 1 << 20;

/// Activity of the host in a place. Places with equal classes and equal functions count as one reason for lost time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Garbage(Rc<str>),
    Compilation(Rc<str>),
    Profiler,
    Allocation(Rc<str>),
    Loader(Rc<str>),
    Lock(Rc<str>),
    Copy(Rc<str>),
    /// The host launched work, or did a short activity between launches.
    Launching,
    Other(Rc<str>),
}

impl Class {
    /// Whether this class was derived from a name in the stack. Some classes apply only if no name fits, and for these
    /// classes the function returns false.
    pub(super) fn is_named(&self) -> bool {
        !matches!(self, Self::Copy(_) | Self::Launching | Self::Other(_))
    }
}

/// Index of a frame's name in [`Places`].
pub(super) type NameNumber = u32;

/// A place in the host's code, with the names that describe it.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// Indexes of the names of all frames, root first. If the place is a time between two calls, the list contains the
    /// frames of both calls.
    pub(super) frames: Box<[NameNumber]>,
    /// API call at the inner end of the stack. Empty if the place is a time between two calls.
    pub(super) call: String,
    /// Innermost function of user code in the stack, or empty if it is unknown.
    pub(super) function: Rc<str>,
    /// Function that called `function`, or empty if it is unknown.
    pub(super) caller: String,
    /// Innermost function of any code, if it differs from `function`.
    pub(super) within: String,
    /// Innermost NVTX or `record_function` range within `function`, or empty if there is none.
    pub(super) range: String,
    /// Executed line of user code, for example `train.py:88`. The text is empty if the line is unknown.
    pub(super) line: String,
    /// Description of the place, for example `between cudaMemcpy and cudaLaunchKernel in step`.
    pub(super) words: String,
    /// Properties derived from the name of `call`.
    pub(super) of_call: CallTraits,
    /// Properties derived from the names of the frames. A function that waits for another thread counts only if it is
    /// among the innermost frames.
    of_frames: FrameTraits,
    /// Whether the name of `function` suggests that the function loads data.
    is_called_loader: bool,
}

/// Frames of a stack, and the names that were found at its innermost end.
struct Stack {
    /// Indexes of the names of the frames, root first.
    frames: Box<[NameNumber]>,
    end: StackEnd,
}

/// Finds the place in the code for each sample site. Each place is described only once.
pub(super) struct Places<'a> {
    profile: &'a Profile,
    /// Names of all NVTX and `record_function` ranges in the profile.
    ranges: BTreeSet<&'a str>,
    known: RefCell<IdMap<SampleSite, Rc<Place>>>,
    /// Places for stacks with small ids, indexed by stack id. A list is used because some places of a trace may be
    /// looked up a million times.
    of_contexts: RefCell<Vec<Option<Rc<Place>>>>,
    /// Stacks of the places for which a description exists. Several places may share a stack, for example the time
    /// before a call and the time after the call.
    stacks: RefCell<IdMap<SampleSite, Rc<Stack>>>,
    names: RefCell<FrameNames>,
}

impl<'a> Places<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        let ranges = profile.shown_frames().iter().filter(|frame| frame.kind == ShownFrameKind::Range);
        let ranges = ranges.map(|frame| profile.strings().get(frame.name)).collect();
        Self {
            profile,
            ranges,
            known: RefCell::default(),
            of_contexts: RefCell::default(),
            stacks: RefCell::default(),
            names: RefCell::default(),
        }
    }

    pub(super) fn of(&self, site: SampleSite) -> Rc<Place> {
        if let SampleSite::Context(context) = site
            && context.0 < MAX_LISTED
        {
            return self.of_context(context);
        }
        if let Some(place) = self.known.borrow().get(&site) {
            return place.clone();
        }
        let place = Rc::new(self.describe(site));
        self.known.borrow_mut().insert(site, place.clone());
        place
    }

    fn of_context(&self, context: ContextId) -> Rc<Place> {
        let at = context.0 as usize;
        if let Some(Some(place)) = self.of_contexts.borrow().get(at) {
            return place.clone();
        }
        let place = Rc::new(self.describe(SampleSite::Context(context)));
        let mut places = self.of_contexts.borrow_mut();
        if places.len() <= at {
            places.resize(at + 1, None);
        }
        places[at] = Some(place.clone());
        place
    }

    /// Returns the names of all frames of a place, root first.
    pub(super) fn names(&self, place: &Place) -> Vec<Rc<str>> {
        let names = self.names.borrow();
        place.frames.iter().map(|number| names.all[*number as usize].0.clone()).collect()
    }

    /// Returns the stack at a site. The site must have only one stack.
    fn stack(&self, site: SampleSite) -> Rc<Stack> {
        let describe = || {
            let frames = stack(self.profile, site, GraphStacks::Both, NameFolding::Kept);
            let mut names = self.names.borrow_mut();
            let numbers = frames.iter().map(|frame| names.intern_frame(frame)).collect();
            Rc::new(Stack { frames: numbers, end: StackEnd::of(self.profile, &frames) })
        };
        self.stacks.borrow_mut().entry(site).or_insert_with(describe).clone()
    }

    fn describe(&self, site: SampleSite) -> Place {
        let (first, own) = match site {
            SampleSite::Between { after, before, .. } => {
                (Some(self.stack(SampleSite::Context(after))), self.stack(SampleSite::Context(before)))
            }
            site => (None, self.stack(site)),
        };
        let outer = first.as_deref().map_or(&[][..], |stack| &stack.frames);
        let frames: Box<[NameNumber]> = outer.iter().chain(&own.frames).copied().collect();
        let StackEnd { innermost, user_function, line } = own.end.clone();
        let function = user_function.filter(|name| !name.contains("0x")).unwrap_or_default();
        let within = innermost.function.filter(|name| *name != function && !name.contains("0x"));
        let call = innermost.call.filter(|_| first.is_none()).unwrap_or_default();
        let words = host_place(self.profile, site, |site| self.stack(site).end.clone());
        let known = self.names.borrow();
        Place {
            caller: known.caller(&frames, &function),
            range: known.innermost_range(&frames, &function, &self.ranges),
            of_call: CallTraits::of(&call),
            of_frames: known.traits(&frames),
            is_called_loader: is_called_loader(&function),
            frames,
            call,
            within: within.unwrap_or_default(),
            line: line.map_or_else(String::new, |line| format!("{}:{}", line.file, line.line)),
            words: words.unwrap_or_default(),
            function: function.into(),
        }
    }
}

/// Names of frames, each with the properties that are derived from the name. A trace with Python frames has a million
/// frames but only a few thousand names.
#[derive(Default)]
struct FrameNames {
    numbers: HashMap<Rc<str>, NameNumber>,
    /// Index of the name of each frame in the profile. Because of this table, the name of a frame is hashed only once,
    /// and not for each stack that contains the frame.
    of_frames: IdMap<ShownFrameId, NameNumber>,
    all: Vec<(Rc<str>, FrameTraits)>,
}

impl FrameNames {
    fn intern_frame(&mut self, frame: &ComposedFrame<'_>) -> NameNumber {
        let Some(id) = frame.id else { return self.intern(&frame.text) };
        if let Some(number) = self.of_frames.get(&id) {
            return *number;
        }
        let number = self.intern(&frame.text);
        self.of_frames.insert(id, number);
        number
    }

    fn intern(&mut self, name: &str) -> NameNumber {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let (name, number): (Rc<str>, _) = (name.into(), self.all.len() as NameNumber);
        self.all.push((name.clone(), FrameTraits::of(&name)));
        self.numbers.insert(name, number);
        number
    }

    fn name(&self, number: NameNumber) -> &str {
        &self.all[number as usize].0
    }

    /// Returns the properties derived from the frames of a stack. The frames are given root first.
    fn traits(&self, frames: &[NameNumber]) -> FrameTraits {
        let join = |frames: &[NameNumber]| {
            let traits = frames.iter().map(|frame| self.all[*frame as usize].1);
            traits.fold(FrameTraits::default(), FrameTraits::or)
        };
        let innermost = frames.len().saturating_sub(MAX_LOCK_FRAMES);
        FrameTraits { waits_for_thread: join(&frames[innermost..]).waits_for_thread, ..join(frames) }
    }

    /// Returns the name of the frame that called the last frame named `function`. If the calling frame is not a
    /// function, returns an empty name.
    fn caller(&self, frames: &[NameNumber], function: &str) -> String {
        let at = frames.iter().rposition(|frame| self.name(*frame) == function);
        let at = at.filter(|at| *at > 0 && !function.is_empty());
        let is_function = |frame: &&str| {
            !frame.starts_with('[') && !frame.starts_with("ProfilerStep") && !frame.contains("+0x")
        };
        at.map(|at| self.name(frames[at - 1])).filter(is_function).unwrap_or_default().to_owned()
    }

    /// Returns the innermost range of the user within the last frame named `function`. Ranges that are steps or labels
    /// for the time between slices are skipped.
    fn innermost_range(&self, frames: &[NameNumber], function: &str, ranges: &BTreeSet<&str>) -> String {
        let is_users = |name: &&str| {
            ranges.contains(name) && !name.starts_with('[') && !name.starts_with("ProfilerStep")
        };
        let names = frames.iter().rev().map(|frame| self.name(*frame));
        let mut inner = names.take_while(|name| *name != function && !function.is_empty());
        inner.find(is_users).unwrap_or_default().to_owned()
    }
}

impl Place {
    /// Returns the innermost function of any code within the user's function. If no function is known, returns the
    /// innermost range of the user, or an empty name.
    pub(super) fn inner(&self) -> &str {
        if self.within.is_empty() { &self.range } else { &self.within }
    }

    /// Returns the class of the host's activity in this place. `nanos` is the duration of the activity since the last
    /// launch, in ns.
    pub(super) fn class(&self, nanos: u64) -> Class {
        let (frames, call) = (&self.of_frames, &self.of_call);
        let function = || self.function.clone();
        match () {
            () if frames.collects_garbage => Class::Garbage(function()),
            () if frames.compiles => Class::Compilation(function()),
            () if frames.profiles => Class::Profiler,
            () if call.allocates => Class::Allocation(function()),
            () if self.is_loading(nanos) => Class::Loader(self.loader()),
            () if frames.waits_for_thread => Class::Lock(function()),
            () if call.copies || call.waits_for_gpu => Class::Copy(function()),
            () if nanos <= MAX_LAUNCH_GAP_NS => Class::Launching,
            () if call.launches && nanos <= MAX_LAUNCH_CALL_NS => Class::Launching,
            () if self.is_called_loader && nanos < MIN_LOADING_NS => Class::Launching,
            () => Class::Other(function()),
        }
    }

    fn is_loading(&self, nanos: u64) -> bool {
        let call = &self.of_call;
        if call.moves_memory || call.waits_for_gpu {
            return false;
        }
        // A library that loads data copies on the host too: it collects the samples of a batch with operators such as
        // `aten::copy_`.
        let is_in_loader = self.of_frames.loads_data && !call.is_launch_call;
        let may_load = !call.copies && !call.launches && nanos >= MIN_LOADING_NS;
        is_in_loader || (self.is_called_loader && may_load)
    }

    /// Returns the function that loads data, or an empty name if a library loads the data.
    fn loader(&self) -> Rc<str> {
        if self.of_frames.loads_data { Rc::default() } else { self.function.clone() }
    }
}

/// Number of innermost frames that are searched for a wait for a lock. If `threading.py` is in an outer frame, it only
/// started the thread and does not wait for a lock.
const MAX_LOCK_FRAMES: usize = 4;
