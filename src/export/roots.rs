//! Frames below all stacks: which process, thread, GPU or stream it was.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use crate::error::{Error, ErrorKind};
use crate::profile::{Place, Profile};
use crate::record::{DeviceId, GpuContextId, StreamId};

/// What a frame at the root of a stack says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// `[process app 4711]`.
    Process,
    /// `[thread loader]`, the one that launched; with its number where several have the name.
    Thread,
    /// `[GPU 0]`.
    Device,
    /// `[stream 7]`, with its GPU where several have that number. Not of idle time, which is a whole GPU's.
    Stream,
}

impl Root {
    /// All of them, and their words.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Process, "process"),
        (Self::Thread, "thread"),
        (Self::Device, "device"),
        (Self::Stream, "stream"),
    ];
}

impl FromStr for Root {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|(_, known)| *known == word).map(|(root, _)| root).ok_or_else(|| {
            let message = format!("`{word}` is no root; use process, thread, device or stream");
            Error::new(ErrorKind::Setting, message)
        })
    }
}

/// The roots that were asked for, and what their names need.
pub(super) struct Roots<'a> {
    profile: &'a Profile,
    wanted: &'a [Root],
    /// Names that several threads have.
    shared_names: BTreeSet<&'a str>,
    /// Numbers that several streams have.
    shared_streams: BTreeSet<StreamId>,
}

/// A stream of a GPU context.
type Stream = (GpuContextId, StreamId);

impl<'a> Roots<'a> {
    pub(super) fn new(profile: &'a Profile, wanted: &'a [Root]) -> Self {
        let mut roots =
            Self { profile, wanted, shared_names: BTreeSet::new(), shared_streams: BTreeSet::new() };
        if wanted.contains(&Root::Thread) {
            roots.shared_names = shared(profile.threads());
        }
        if wanted.contains(&Root::Stream) {
            let streams = profile.samples().iter().filter_map(|sample| {
                let (context, stream) = sample.stream?;
                Some(((sample.device, context), stream))
            });
            roots.shared_streams = shared(streams);
        }
        roots
    }

    /// The names of the frames, outermost first.
    pub(super) fn frames(
        &self,
        place: Option<Place>,
        device: Option<DeviceId>,
        stream: Option<Stream>,
    ) -> Vec<String> {
        let name = |root: &Root| match root {
            Root::Process => self.process(),
            Root::Thread => self.thread(place),
            Root::Device => {
                device.map_or_else(|| "[no GPU]".to_owned(), |device| format!("[GPU {}]", device.0))
            }
            Root::Stream => self.stream(device, stream),
        };
        self.wanted.iter().map(name).collect()
    }

    fn process(&self) -> String {
        match self.profile.process() {
            Some((id, name)) => format!("[process {name} {id}]"),
            None => "[process unknown]".to_owned(),
        }
    }

    fn thread(&self, place: Option<Place>) -> String {
        let context = place.and_then(|place| place.launch().ok());
        let Some(context) = context.and_then(|context| self.profile.context(context)) else {
            return "[no thread]".to_owned();
        };
        let id = context.thread;
        match self.profile.thread(id).filter(|name| !name.is_empty()) {
            Some(name) if self.shared_names.contains(name) => format!("[thread {name} {}]", id.0),
            Some(name) => format!("[thread {name}]"),
            None => format!("[thread {}]", id.0),
        }
    }

    fn stream(&self, device: Option<DeviceId>, stream: Option<Stream>) -> String {
        match (stream, device) {
            (None, _) => "[no stream]".to_owned(),
            (Some((context, stream)), Some(device)) if self.shared_streams.contains(&stream) => {
                format!("[stream {} of GPU {}, context {}]", stream.0, device.0, context.0)
            }
            (Some((_, stream)), _) => format!("[stream {}]", stream.0),
        }
    }
}

/// The names that several have.
fn shared<O: PartialEq, N: Ord + Copy>(all: impl Iterator<Item = (O, N)>) -> BTreeSet<N> {
    let mut owners: BTreeMap<N, O> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    for (owner, name) in all {
        match owners.get(&name) {
            Some(known) if *known != owner => drop(shared.insert(name)),
            Some(_) => {}
            None => drop(owners.insert(name, owner)),
        }
    }
    shared
}
