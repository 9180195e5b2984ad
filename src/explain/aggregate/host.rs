//! Sums up the host's activity other than launches. Waits, CPU samples, allocations and frees are summed by stack.
//! Unified memory events are counted per GPU. Calls that use CUDA events, and the tracer's synchronization records, are
//! only counted.

use std::collections::BTreeMap;

use gpuflame_model::profile::views::{CPU, MEMORY, OFF_CPU, UNIFIED, View, WAITS};
use gpuflame_model::profile::{
    Dependencies, Leaf, LeafFrame, MAX_SAMPLE_VALUES, Profile, Sample, SampleSite, Values, add_values,
};
use gpuflame_model::record::{
    Allocation, ContextId, DeviceId, EventUse, IdMap, MemoryCall, MemoryKind, Row, Unified, UnifiedKind,
    map_bytes,
};

/// Sums of the host's activity in all rows so far.
#[derive(Debug, Default)]
pub struct HostSums {
    /// For each launch context and kind of activity: the number of calls, and their total in ns (for times) or in bytes
    /// (for memory).
    sums: IdMap<(ContextId, HostActivity), (u64, u64)>,
    /// Allocations that were not freed yet, keyed by address.
    live: IdMap<u64, Allocation>,
    live_bytes: u64,
    max_live_bytes: u64,
    dependencies: Dependencies,
    unified: BTreeMap<(UnifiedKind, Option<DeviceId>), Values>,
}

/// Kind of activity on the host. The kind determines whether a sum is in nanoseconds or in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HostActivity {
    /// API calls that waited, with their total time in nanoseconds.
    Wait,
    /// Time on a CPU, measured by sampling, with the total CPU time in nanoseconds.
    Sampled,
    /// Off-CPU time of threads, for any reason, with the total time in nanoseconds.
    Blocked,
    /// Allocations of this kind of memory, with their total size in bytes.
    Allocate(MemoryKind),
    /// Frees of this kind of memory, with the total number of freed bytes. The kind of memory is `None` if it is
    /// unknown, because the allocation was not recorded.
    Free(Option<MemoryKind>),
}

impl HostSums {
    /// Processes a row about the host's activity, and ignores all other rows.
    pub fn row(&mut self, row: &Row<'_>) {
        match row {
            Row::Wait(wait) => self.add(wait.context, HostActivity::Wait, wait.duration),
            Row::Sampled(sampled) => {
                self.add(sampled.context, HostActivity::Sampled, u64::from(sampled.period));
            }
            Row::Blocked(blocked) => self.add(blocked.context, HostActivity::Blocked, blocked.duration),
            Row::Memory(call) => self.memory(call),
            Row::EventRecord(_) => self.dependencies.event_records += 1,
            Row::Sync(sync) => *self.dependencies.syncs.entry(sync.kind).or_default() += 1,
            Row::Unified(row) => self.unified(row),
            Row::EventCall(call) => match call.event_use {
                EventUse::Record => self.dependencies.record_calls += 1,
                EventUse::Wait => self.dependencies.wait_calls += 1,
            },
            _ => {}
        }
    }

    fn memory(&mut self, call: &MemoryCall) {
        match call.allocated {
            Some(allocated) => {
                // If the map already contains an allocation at this address, the call that freed that allocation was
                // not recorded.
                if let Some(before) = self.live.insert(call.address, allocated) {
                    self.live_bytes -= before.bytes;
                }
                self.live_bytes = self.live_bytes.saturating_add(allocated.bytes);
                self.max_live_bytes = self.max_live_bytes.max(self.live_bytes);
                self.add(call.context, HostActivity::Allocate(allocated.memory), allocated.bytes);
            }
            None => {
                let known = self.live.remove(&call.address);
                let bytes = known.map_or(0, |known| known.bytes);
                self.live_bytes = self.live_bytes.saturating_sub(bytes);
                self.add(call.context, HostActivity::Free(known.map(|known| known.memory)), bytes);
            }
        }
    }

    fn unified(&mut self, row: &Unified) {
        let sums = self.unified.entry((row.kind, row.device())).or_default();
        let more = match row.kind.is_move() {
            true => [row.value, 1, row.duration().unwrap_or(0), 0],
            // An event of any other kind counts as one record, and its value counts as a number of faults.
            false => [0, 1, 0, row.value],
        };
        add_values(sums, more);
    }

    fn add(&mut self, context: ContextId, call: HostActivity, amount: u64) {
        let (count, sum) = self.sums.entry((context, call)).or_default();
        *count += 1;
        *sum = sum.saturating_add(amount);
    }

    /// Replaces each context by the context that the function `context` returns for it, and recomputes the sums.
    pub fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        for ((id, call), (count, amount)) in std::mem::take(&mut self.sums) {
            // Ids below `FIRST` have no context row, so they stay the same.
            let id = if id < ContextId::FIRST { id } else { context(id) };
            let (counts, sum) = self.sums.entry((id, call)).or_default();
            *counts += count;
            *sum = sum.saturating_add(amount);
        }
    }

    /// Returns the count and the total time in nanoseconds of the waits, CPU samples and off-CPU waits in each context.
    pub fn waits(&self) -> impl Iterator<Item = (ContextId, u64, u64)> {
        let takes_time = |call: &HostActivity| {
            matches!(call, HostActivity::Wait | HostActivity::Sampled | HostActivity::Blocked)
        };
        let waits = self.sums.iter().filter(move |((_, call), _)| takes_time(call));
        waits.map(|(&(id, _), &(count, nanos))| (id, count, nanos))
    }

    /// Returns the heap size in bytes of the sums per context.
    pub fn context_bytes(&self) -> usize {
        map_bytes(&self.sums)
    }

    /// Replaces the sums in `profile` by the current sums.
    pub fn fill(&self, profile: &mut Profile) {
        profile.set_samples(&WAITS, self.samples(&WAITS));
        profile.set_samples(&MEMORY, self.samples(&MEMORY));
        profile.set_samples(&CPU, self.samples(&CPU));
        profile.set_samples(&OFF_CPU, self.samples(&OFF_CPU));
        let unified = self.unified.iter().map(|(&(kind, device), &values)| Sample {
            device,
            values,
            ..Sample::new(SampleSite::NoStack, Leaf::new(&[LeafFrame::Unified(kind)]))
        });
        profile.set_samples(&UNIFIED, unified.collect());
        profile.set_dependencies(self.dependencies.clone());
    }

    /// Returns the sums that the view `view` shows, as samples of the profile. The leaf of a wait's stack is the API
    /// call that waited, so a sample of a wait has no further leaf frame.
    fn samples(&self, view: &View) -> Vec<Sample> {
        let sample = |(&(context, call), &(count, amount)): (&(ContextId, HostActivity), &(u64, u64))| {
            let (of, leaf) = match call {
                HostActivity::Wait => (&WAITS, Leaf::NONE),
                HostActivity::Sampled => (&CPU, Leaf::NONE),
                HostActivity::Blocked => (&OFF_CPU, Leaf::NONE),
                HostActivity::Allocate(memory) => (&MEMORY, Leaf::new(&[LeafFrame::Allocate(memory)])),
                HostActivity::Free(memory) => (&MEMORY, Leaf::new(&[LeafFrame::Free(memory)])),
            };
            let mut values = [0; MAX_SAMPLE_VALUES];
            values[..2].copy_from_slice(&[amount, count]);
            (of == view).then(|| Sample { values, ..Sample::new(SampleSite::Context(context), leaf) })
        };
        self.sums.iter().filter_map(sample).collect()
    }

    /// Returns the number of bytes that are allocated and not freed, and the maximum of this number so far.
    pub fn held(&self) -> (u64, u64) {
        (self.live_bytes, self.max_live_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::{CorrelationId, MemoryKind, Nanos};

    fn call(context: u32, address: u64, bytes: Option<u64>) -> Row<'static> {
        let allocated = bytes.map(|bytes| Allocation { memory: MemoryKind::DEVICE, bytes });
        let (time, correlation) = (Nanos(0), CorrelationId(0));
        Row::Memory(MemoryCall { time, correlation, context: ContextId(context), address, allocated })
    }

    #[test]
    fn a_free_counts_the_bytes_of_the_allocation_it_releases() {
        let mut sums = HostSums::default();
        let rows = [
            call(2, 100, Some(10)),
            call(2, 200, Some(20)),
            call(3, 100, None),
            call(4, 100, Some(40)),
            call(3, 100, None),
            call(3, 900, None),
        ];
        rows.iter().for_each(|row| sums.row(row));
        assert_eq!(sums.held(), (20, 60));
        let mut profile = Profile::default();
        sums.fill(&mut profile);
        let allocate = Leaf::new(&[LeafFrame::Allocate(MemoryKind::DEVICE)]);
        let free = |known: bool| Leaf::new(&[LeafFrame::Free(known.then_some(MemoryKind::DEVICE))]);
        let site = |context| SampleSite::Context(ContextId(context));
        let samples = profile.samples(&MEMORY).iter();
        let found: Vec<_> = samples.map(|s| (s.site, s.leaf, s.count(), s.amount())).collect();
        let expected = [
            (site(2), allocate, 2, 30),
            (site(3), free(false), 1, 0),
            (site(3), free(true), 2, 50),
            (site(4), allocate, 1, 40),
        ];
        assert_eq!(found, expected);
    }
}
