//! Gives CUDA contexts of different processes different ids. CUPTI's context ids are unique only within a process, but
//! rows identify a CUDA context by its id alone.

use std::collections::BTreeSet;

use super::trace_collector::TraceCollector;
use gpuflame_model::record::IdMap;

impl TraceCollector {
    /// If two processes use the same id for their CUDA contexts, the context that comes later in the file gets a new
    /// id. All processes that made no calls are treated as one process. Within this one process, two contexts with the
    /// same id count as different only if their devices are different.
    pub(super) fn separate_contexts(&mut self) {
        let calling =
            self.calls.numbers().map(|call| self.thread_facts[self.calls.thread_of(call) as usize].0);
        let mut numbers = ContextNumbers { calling: calling.collect(), ..ContextNumbers::default() };
        let mut last = (0, 0, 0);
        for op in self.ops.shapes().iter().filter(|op| op.process != 0 && op.context != 0) {
            let place = (op.process, op.context, op.device);
            if place != last {
                numbers.add(place);
                last = place;
            }
        }
        numbers.renumber();
        if numbers.changed.is_empty() {
            return;
        }
        for op in self.ops.shapes_mut() {
            op.context = numbers.of(op.process, op.context);
        }
        for sync in &mut self.syncs {
            sync.context = numbers.of(sync.process, sync.context);
        }
        for record in &mut self.event_records {
            record.context = numbers.of(record.process, record.context);
        }
        for (process, stream) in &mut self.stream_flags {
            stream.context = numbers.of(*process, stream.context);
        }
    }
}

#[derive(Default)]
struct ContextNumbers {
    /// Processes that made API calls.
    calling: BTreeSet<u32>,
    /// Process, context id and device of each CUDA context, in file order. If operations of a context ran on several
    /// devices, only the first device is stored.
    places: Vec<(u32, u32, u32)>,
    known: IdMap<(u32, u32), ()>,
    /// New id of each changed CUDA context, keyed by its process and old id.
    changed: IdMap<(u32, u32), u32>,
}

impl ContextNumbers {
    fn add(&mut self, place: (u32, u32, u32)) {
        if self.known.insert((place.0, place.1), ()).is_none() {
            self.places.push(place);
        }
    }

    fn renumber(&mut self) {
        let mut used: BTreeSet<u32> = self.places.iter().map(|(_, context, _)| *context).collect();
        let mut owners: IdMap<u32, (u32, u32)> = IdMap::default();
        let mut by_owner: IdMap<(u32, (u32, u32)), u32> = IdMap::default();
        for &(process, context, device) in &self.places {
            let owner = (device, if self.calling.contains(&process) { process } else { 0 });
            if *owners.entry(context).or_insert(owner) == owner {
                continue;
            }
            let number = *by_owner.entry((context, owner)).or_insert_with(|| {
                let free = (1..=u32::MAX).find(|number| !used.contains(number)).unwrap_or(context);
                used.insert(free);
                free
            });
            self.changed.insert((process, context), number);
        }
    }

    fn of(&self, process: u32, context: u32) -> u32 {
        self.changed.get(&(process, context)).copied().unwrap_or(context)
    }
}
