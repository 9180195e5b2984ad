//! Finds the API calls with which a thread waited for all work of its GPU, such as `cudaDeviceSynchronize`.
//!
//! The host measures how long each wait takes. So a wait that lasts longer than all recorded GPU work shows that rows
//! about GPU work are missing. When a wait for all work of a GPU returns, all GPU work that the thread launched earlier
//! has ended.

use gpuflame_export::compose::call;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextId, Row, ThreadId, Wait};

/// Maximum number of waits to store. This many waits take 24 MB of memory.
const MAX_WAITS: usize = 1 << 20;
/// Substrings of the names of API calls that wait for all work of a GPU, in CUDA and in HIP.
const DEVICE_WAITS: [&str; 3] = ["DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize"];

/// Whether the API call with this name waits for all work of a GPU.
fn is_device_wait(call: &str) -> bool {
    DEVICE_WAITS.iter().any(|wait| call.contains(wait))
}

/// All API calls that waited, as (start, end, launch context), in the order in which their rows were read.
#[derive(Debug, Default)]
pub(super) struct WaitCalls(Vec<(u64, u64, ContextId)>);

impl WaitCalls {
    /// Stores the row if it describes a call that waited. Rows that do not describe a waiting call are ignored.
    pub(super) fn add(&mut self, row: &Row<'_>) {
        if let Row::Wait(Wait { time, duration, context, .. }) = *row
            && self.0.len() < MAX_WAITS
        {
            self.0.push((time.0, time.0.saturating_add(duration), context));
        }
    }

    /// Returns the calls that waited for all work of a GPU. Calls that waited for only a part of the work of a GPU are
    /// omitted.
    pub(super) fn of_devices(&self, profile: &Profile) -> DeviceWaits {
        let wait = |&(start, end, context): &(u64, u64, ContextId)| {
            let thread = profile.context(context)?.thread;
            is_device_wait(call(profile, context)).then_some((thread, start, end))
        };
        let mut waits: Vec<_> = self.0.iter().filter_map(wait).collect();
        waits.sort_unstable();
        DeviceWaits(waits)
    }
}

/// Calls that waited for all work of a GPU, as (thread, start, end), sorted by thread, start and end.
#[derive(Debug, Default)]
pub(super) struct DeviceWaits(Vec<(ThreadId, u64, u64)>);

impl DeviceWaits {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the end of the first wait that `thread` began at `time` or later.
    pub(super) fn end_after(&self, thread: ThreadId, time: u64) -> Option<u64> {
        let at = self.0.partition_point(|&(of, start, _)| (of, start) < (thread, time));
        self.0.get(at).filter(|(of, ..)| *of == thread).map(|(.., end)| *end)
    }

    /// Returns the starts and ends of the waits of all threads, sorted by start.
    pub(super) fn by_start(&self) -> Vec<(u64, u64)> {
        let mut waits: Vec<_> = self.0.iter().map(|&(_, start, end)| (start, end)).collect();
        waits.sort_unstable();
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_wait_for_a_whole_gpu_count() {
        for call in ["cudaDeviceSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize"] {
            assert!(is_device_wait(call), "{call}");
        }
        for call in ["cudaStreamSynchronize", "cudaEventSynchronize", "hipStreamSynchronize", "pthread_join"]
        {
            assert!(!is_device_wait(call), "{call}");
        }
    }

    #[test]
    fn the_first_wait_of_the_thread_after_a_launch_is_found() {
        let [first, second] = [ThreadId(1), ThreadId(2)];
        let waits = DeviceWaits(vec![(first, 10, 20), (first, 30, 40), (second, 15, 25)]);
        assert_eq!(waits.end_after(first, 10), Some(20));
        assert_eq!(waits.end_after(first, 11), Some(40));
        assert_eq!(waits.end_after(first, 31), None);
        assert_eq!(waits.end_after(second, 0), Some(25));
        assert_eq!(waits.by_start(), [(10, 20), (15, 25), (30, 40)]);
    }
}
