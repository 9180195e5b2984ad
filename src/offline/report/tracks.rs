//! Tracks: what the values of a view can be split by.

use std::collections::{BTreeMap, HashMap};

use gpuflame_model::profile::{Profile, Sample};
use gpuflame_model::record::ThreadId;

/// Maximum number of tracks of a page. Beyond it, threads and streams are merged by GPU.
const MAX_TRACKS: usize = 2_000;
/// Name of the track of merged threads.
const OTHER_THREADS: &str = "other threads";

/// Origin of a value. Each part is `None` if it is unknown, or if the page has only one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Track {
    pub(super) rank: Option<String>,
    pub(super) gpu: Option<String>,
    pub(super) stream: Option<String>,
    pub(super) thread: Option<String>,
}

/// All tracks, numbered in the order of their first value.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    list: Vec<Track>,
    numbers: HashMap<Track, u32>,
}

impl Tracks {
    pub(super) fn list(&self) -> &[Track] {
        &self.list
    }

    pub(super) fn number(&mut self, track: Track) -> u32 {
        if let Some(known) = self.numbers.get(&track) {
            return *known;
        }
        let is_merged = track.thread.as_deref() == Some(OTHER_THREADS);
        if self.list.len() >= MAX_TRACKS && !is_merged {
            return self.number(Track { stream: None, thread: Some(OTHER_THREADS.to_owned()), ..track });
        }
        let number = self.list.len() as u32;
        self.list.push(track.clone());
        self.numbers.insert(track, number);
        number
    }
}

/// Names of a profile's threads. Threads with the same name also have their ids.
pub(super) struct ThreadNames(HashMap<ThreadId, String>);

impl ThreadNames {
    pub(super) fn new(profile: &Profile) -> Self {
        let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
        profile.threads().for_each(|(_, name)| *owners.entry(name).or_default() += 1);
        let name = |(id, name): (ThreadId, &str)| {
            let text = match name {
                "" => format!("thread {}", id.0),
                name if owners[name] > 1 => format!("{name} ({})", id.0),
                name => name.to_owned(),
            };
            (id, text)
        };
        Self(profile.threads().map(name).collect())
    }

    /// Returns the name of a thread.
    pub(super) fn name(&self, id: ThreadId) -> String {
        match self.0.get(&id) {
            _ if id == ThreadId::OTHERS => OTHER_THREADS.to_owned(),
            Some(name) => name.clone(),
            None => format!("thread {}", id.0),
        }
    }

    /// Returns the track of a sample.
    pub(super) fn track(&self, profile: &Profile, sample: &Sample, rank: Option<u32>) -> Track {
        let thread = sample.site.launch().ok().and_then(|context| profile.context(context));
        let thread = thread.map(|context| self.name(context.thread));
        Track {
            rank: rank.map(|rank| format!("rank {rank}")),
            gpu: sample.device.map(|device| format!("GPU {}", device.0)),
            stream: sample.stream.map(|(_, stream)| format!("stream {}", stream.0)),
            thread,
        }
    }
}
