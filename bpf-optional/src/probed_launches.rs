//! The launches that the probes have seen. A launch takes only 48 bytes, because a job may make millions of launches.
//! Stacks and names are stored once in tables, because most launches have the same stack and names as other launches.

use std::collections::{HashMap, HashSet};

use crate::address_spaces::{FileLocation, Files};
use crate::entry_points::EntryKind;

/// A probe that is attached to a function.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    /// Name of the probed function.
    pub(crate) name: String,
    pub(crate) kind: EntryKind,
}

/// A call to a probed function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Time of the call according to `CLOCK_MONOTONIC`, in ns.
    pub(crate) time: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    /// Index of the thread's name in [`ProbedLaunches::comms`].
    pub(crate) comm: u32,
    /// Index of the probe in [`ProbedLaunches::probes`].
    pub(crate) probe: u32,
    /// Index of the stack in [`ProbedLaunches::stacks`].
    pub(crate) stack: u32,
    /// CUPTI's correlation id for the call; `None` if the library inside the process has not reported the id.
    pub(crate) correlation: Option<u32>,
    /// Whether CUDA itself made this call while it carried out another call.
    pub(crate) nested: bool,
}

const _: () = assert!(size_of::<Launch>() == 48, "Launch grew: one is kept for every launch");

/// All launches that the probes have seen, and the tables to which these launches refer.
#[derive(Debug, Default)]
pub(crate) struct ProbedLaunches {
    pub(crate) launches: Vec<Launch>,
    pub(crate) probes: Vec<Probe>,
    pub(crate) comms: InternTable<String>,
    /// Stacks, leaf first.
    pub(crate) stacks: InternTable<Vec<FileLocation>>,
    pub(crate) files: Files,
    /// Process id and correlation id of each copy and fill, if copies and fills are not probed.
    pub(crate) copies: HashSet<(u32, u32)>,
    /// Number of reported correlation ids that could not be assigned to a launch, because no probe had seen a call by
    /// that thread.
    pub(crate) unmatched_markers: u64,
}

/// A table that stores each distinct value once, and gives each value an index.
#[derive(Debug)]
pub(crate) struct InternTable<T> {
    values: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for InternTable<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> InternTable<T> {
    pub(crate) fn intern(&mut self, value: T) -> u32 {
        let next = self.values.len() as u32;
        *self.numbers.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            next
        })
    }

    pub(crate) fn get(&self, number: u32) -> &T {
        &self.values[number as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}
