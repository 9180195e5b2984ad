//! Computes the data of the page's bars, which show the busy time of each GPU and its idle time per cause.

use std::collections::BTreeMap;

use gpuflame_export::cause_words;
use gpuflame_model::profile::views::{IDLE, idle_word};
use gpuflame_model::profile::{Cause, Profile, RootMark, add_to};
use gpuflame_model::record::DeviceId;
use serde_json::{Value, json};

/// Times in ns of a GPU within the steady part of a run.
pub(super) struct DeviceBar {
    pub(super) device: u32,
    pub(super) window: u64,
    pub(super) busy: u64,
    /// Idle time in ns for each cause, which is given by its word. The causes are in the order of the page. `None` if
    /// idle time is unknown.
    idle: Option<Vec<(&'static str, u64)>>,
}

/// Order of the causes of idle time in a bar.
const ORDER: [&str; 6] =
    ["host_late", "launch_latency", "dependency", "before_the_first", "after_the_last", "unknown"];

/// Returns the busy and idle times of a run's GPUs.
pub(super) fn device_bars(profile: &Profile) -> Vec<DeviceBar> {
    debug_assert!(Cause::ALL.iter().all(|cause| ORDER.contains(&cause.word())));
    let is_known = profile.idle_doubt().is_none();
    let mut causes: BTreeMap<(Option<DeviceId>, &str), u64> = BTreeMap::new();
    for sample in profile.samples(&IDLE) {
        if !matches!(sample.root_mark, Some(RootMark::StartUp | RootMark::Shutdown)) {
            add_to(causes.entry((sample.device, idle_word(sample))).or_default(), sample.amount());
        }
    }
    let bar = |time: &gpuflame_model::profile::DeviceTime| {
        let steady = time.steady();
        let of_cause =
            |word: &'static str| (word, causes.get(&(Some(time.device), word)).copied().unwrap_or(0));
        let mut idle: Vec<_> = ORDER.into_iter().map(of_cause).collect();
        // If the samples do not cover all idle time, for example in sums that earlier versions wrote, the cause of the
        // idle time without samples is unknown.
        let explained = idle.iter().map(|(_, nanos)| *nanos).sum::<u64>();
        if let Some((_, unknown)) = idle.last_mut() {
            add_to(unknown, steady.idle.saturating_sub(explained));
        }
        idle.retain(|(_, nanos)| *nanos > 0);
        let (device, window, busy) = (time.device.0, steady.window(), steady.busy);
        DeviceBar { device, window, busy, idle: is_known.then_some(idle) }
    };
    profile.times().iter().map(bar).collect()
}

impl DeviceBar {
    /// Returns the bar of a GPU as JSON. `rank` is the rank of the run, if there are several runs.
    pub(super) fn json(&self, rank: Option<u32>) -> Value {
        let label = match rank {
            Some(rank) => format!("rank {rank}, GPU {}", self.device),
            None => format!("GPU {}", self.device),
        };
        let part = |kind: &str, label: &str, nanos: u64| json!({"kind": kind, "label": label, "ns": nanos});
        let mut parts = vec![part("busy", "busy", self.busy)];
        match &self.idle {
            Some(idle) => parts.extend(
                idle.iter().map(|(word, nanos)| part(word, &format!("idle: {}", cause_words(word)), *nanos)),
            ),
            None => parts.push(part("unknown", "unknown", self.window.saturating_sub(self.busy))),
        }
        json!({"label": label, "ns": self.window, "parts": parts})
    }
}
