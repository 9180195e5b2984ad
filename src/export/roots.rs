//! Adds the frames that users can request at the root of all stacks: process, thread, GPU or stream.

use std::collections::{BTreeMap, BTreeSet};

use super::frame::ComposedFrame;
use super::numbers;
use super::options::{NameFolding, Options, Root};
use gpuflame_model::profile::{OTHER_THREADS, Profile, Sample, SampleSite, ShownFrameKind, View};
use gpuflame_model::record::{DeviceId, GpuContextId, StreamId, ThreadId};

/// The root frames that the user requested, and the data from which their names are made.
pub(super) struct Roots<'a> {
    profile: &'a Profile,
    wanted: Vec<Root>,
    names: NameFolding,
    /// Thread names that belong to several threads.
    shared_names: BTreeSet<&'a str>,
    /// Stream ids that several streams of different CUDA contexts have.
    shared_streams: BTreeSet<StreamId>,
}

/// A stream, identified by its CUDA context and its id.
type StreamKey = (GpuContextId, StreamId);

impl<'a> Roots<'a> {
    /// Selects those requested root frames for which the samples of `view` contain data. In some views, samples have no
    /// GPU or no stream.
    pub(super) fn new(profile: &'a Profile, view: &View, options: &Options) -> Self {
        let has = |root: &Root| match root {
            Root::Process | Root::Thread => true,
            Root::Device => view.has_devices,
            Root::Stream => view.has_streams,
        };
        let wanted: Vec<_> = options.root.iter().copied().filter(has).collect();
        let (mut shared_names, mut shared_streams) = (BTreeSet::new(), BTreeSet::new());
        if wanted.contains(&Root::Thread) {
            shared_names = find_shared(profile.threads());
        }
        if wanted.contains(&Root::Stream) {
            let streams = profile.samples(view).iter().filter_map(|sample| {
                let (context, stream) = sample.stream?;
                Some(((sample.device, context), stream))
            });
            shared_streams = find_shared(streams);
        }
        Self { profile, wanted, names: options.names, shared_names, shared_streams }
    }

    /// Returns the root frames of a sample, outermost first.
    pub(super) fn frames(&self, sample: &Sample) -> Vec<ComposedFrame<'a>> {
        let name = |root: &Root| match root {
            Root::Process => self.process(),
            Root::Thread => self.thread(sample.site),
            Root::Device => {
                sample.device.map_or_else(|| "[no GPU]".to_owned(), |device| format!("[GPU {}]", device.0))
            }
            Root::Stream => self.stream(sample.device, sample.stream),
        };
        self.wanted.iter().map(|root| ComposedFrame::new(ShownFrameKind::Root, name(root))).collect()
    }

    fn process(&self) -> String {
        match self.profile.process() {
            Some((id, name)) => format!("[process {name} {id}]"),
            None => "[process unknown]".to_owned(),
        }
    }

    fn thread(&self, site: SampleSite) -> String {
        let Some(context) = site.launch().ok().and_then(|context| self.profile.context(context)) else {
            return "[no thread]".to_owned();
        };
        let id = context.thread;
        if id == ThreadId::OTHERS {
            return OTHER_THREADS.to_owned();
        }
        let name = self.profile.thread(id).filter(|name| !name.is_empty());
        if self.names != NameFolding::Kept {
            // The thread id is omitted, because a thread has a different id in every run.
            return match name {
                Some(name) => format!("[thread {}]", numbers::fold_numbers(name, 0)),
                None => "[thread N]".to_owned(),
            };
        }
        match name {
            Some(name) if self.shared_names.contains(name) => format!("[thread {name} {}]", id.0),
            Some(name) => format!("[thread {name}]"),
            None => format!("[thread {}]", id.0),
        }
    }

    fn stream(&self, device: Option<DeviceId>, stream: Option<StreamKey>) -> String {
        match (stream, device) {
            (None, _) => "[no stream]".to_owned(),
            (Some((context, stream)), Some(device)) if self.shared_streams.contains(&stream) => {
                format!("[stream {} of GPU {}, context {}]", stream.0, device.0, context.0)
            }
            (Some((_, stream)), _) => format!("[stream {}]", stream.0),
        }
    }
}

/// Returns the names that belong to several owners. `all` contains pairs of owner and name.
fn find_shared<O: PartialEq, N: Ord + Copy>(all: impl Iterator<Item = (O, N)>) -> BTreeSet<N> {
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
