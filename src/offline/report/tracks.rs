//! Tracks: the ranks, GPUs, streams and threads by which the values of a view can be split.

use std::collections::{BTreeMap, HashMap};

use gpuflame_model::profile::{Profile, Sample};
use gpuflame_model::record::ThreadId;

/// Maximum number of tracks on a page. If there are more tracks than this, the threads and streams of a GPU are merged.
const MAX_TRACKS: usize = 2_000;
/// Name that is shown for threads that were merged.
const OTHER_THREADS: &str = "other threads";

/// Rank, GPU, stream and thread from which a value comes. A field of a track is `None` if the field's value is unknown.
/// The rank is also `None` if the page shows only one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Track {
    pub(super) rank: Option<String>,
    pub(super) gpu: Option<String>,
    pub(super) stream: Option<String>,
    pub(super) thread: Option<String>,
}

/// All tracks, numbered in the order in which their first values were added.
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

/// Names of a profile's threads. If several threads have the same name, the name includes the thread's id.
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

    /// Returns the name of the thread with this id.
    pub(super) fn name(&self, id: ThreadId) -> String {
        match self.0.get(&id) {
            _ if id == ThreadId::OTHERS => OTHER_THREADS.to_owned(),
            Some(name) => name.clone(),
            None => format!("thread {}", id.0),
        }
    }

    /// Returns the track that a sample belongs to.
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
