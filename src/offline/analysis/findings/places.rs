//! Places in the code of the host, and what their names tell: whether the host loaded data, compiled, waited for a lock, and
//! so on.

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

/// Stacks with numbers below are found without a hash table: their list takes 8 MB at most.
const MAX_LISTED: u32 = 1 << 20;

/// Activity of the host in a place. Places with the same class and the same function are one reason for lost time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Garbage(Rc<str>),
    Compilation(Rc<str>),
    Profiler,
    Allocation(Rc<str>),
    Loader(Rc<str>),
    Lock(Rc<str>),
    Copy(Rc<str>),
    /// Launched work, or did something short between launches.
    Launching,
    Other(Rc<str>),
}

impl Class {
    /// Whether the class follows from names in the stack.
    pub(super) fn is_named(&self) -> bool {
        !matches!(self, Self::Copy(_) | Self::Launching | Self::Other(_))
    }
}

/// Number of a frame's name in [`Places`].
pub(super) type NameNumber = u32;

/// A place in the code, with its names.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// Names of all frames, root first. For a time between two calls, the frames of both calls.
    pub(super) frames: Box<[NameNumber]>,
    /// Call of an API at which the stack ends; empty for a time between two calls.
    pub(super) call: String,
    /// Innermost function of user code; empty if it is unknown.
    pub(super) function: Rc<str>,
    /// Function that called `function`; empty if it is unknown.
    pub(super) caller: String,
    /// Innermost function of any code, if it is not `function`.
    pub(super) within: String,
    /// Innermost range of the user within `function`, such as one of `record_function`; empty if there is none.
    pub(super) range: String,
    /// Executed line of user code, such as `train.py:88`; empty if it is unknown.
    pub(super) line: String,
    /// The place in words, such as `between cudaMemcpy and cudaLaunchKernel in step`.
    pub(super) words: String,
    /// What `call` tells.
    pub(super) of_call: CallTraits,
    /// What the frames tell; a wait for another thread only if it is among the innermost frames.
    of_frames: FrameTraits,
    /// Whether the name of `function` says that it loads data.
    is_called_loader: bool,
}

/// A stack, with its end.
struct Stack {
    /// Names of the frames, root first.
    frames: Box<[NameNumber]>,
    end: StackEnd,
}

/// Returns the places of sites, each of which is described once.
pub(super) struct Places<'a> {
    profile: &'a Profile,
    /// Names of ranges.
    ranges: BTreeSet<&'a str>,
    known: RefCell<IdMap<SampleSite, Rc<Place>>>,
    /// Places of the stacks with small numbers, by number. A trace needs some of these places a million times.
    of_contexts: RefCell<Vec<Option<Rc<Place>>>>,
    /// Stacks of the known places. A stack is that of several places: before a call, and after it.
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

    /// Returns the stack at a site that has one stack.
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

/// Names of frames, each with what it tells. A trace with Python frames has a million frames and a few thousand names.
#[derive(Default)]
struct FrameNames {
    numbers: HashMap<Rc<str>, NameNumber>,
    /// Numbers of the names of the profile's frames. This saves hashing the name of each frame of each stack.
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

    /// Returns what the frames of a stack tell, root first.
    fn traits(&self, frames: &[NameNumber]) -> FrameTraits {
        let join = |frames: &[NameNumber]| {
            let traits = frames.iter().map(|frame| self.all[*frame as usize].1);
            traits.fold(FrameTraits::default(), FrameTraits::or)
        };
        let innermost = frames.len().saturating_sub(MAX_LOCK_FRAMES);
        FrameTraits { waits_for_thread: join(&frames[innermost..]).waits_for_thread, ..join(frames) }
    }

    /// Returns the frame before the last frame called `function`, if it is a function too.
    fn caller(&self, frames: &[NameNumber], function: &str) -> String {
        let at = frames.iter().rposition(|frame| self.name(*frame) == function);
        let at = at.filter(|at| *at > 0 && !function.is_empty());
        let is_function = |frame: &&str| {
            !frame.starts_with('[') && !frame.starts_with("ProfilerStep") && !frame.contains("+0x")
        };
        at.map(|at| self.name(frames[at - 1])).filter(is_function).unwrap_or_default().to_owned()
    }

    /// Returns the innermost range after the last frame called `function`. Steps, and labels of time between slices, are ranges,
    /// too.
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
    /// Returns the class of the host's activity in this place, if it took `nanos` since the last launch.
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
        // A library copies the samples of a batch on the host, by operators such as `aten::copy_`.
        let is_in_loader = self.of_frames.loads_data && !call.is_launch_call;
        let may_load = !call.copies && !call.launches && nanos >= MIN_LOADING_NS;
        is_in_loader || (self.is_called_loader && may_load)
    }

    /// Returns the function that loads data; empty if a library loads it.
    fn loader(&self) -> Rc<str> {
        if self.of_frames.loads_data { Rc::default() } else { self.function.clone() }
    }
}

/// Number of innermost frames in which a lock is searched for. Further out, `threading.py` only started the thread.
const MAX_LOCK_FRAMES: usize = 4;
