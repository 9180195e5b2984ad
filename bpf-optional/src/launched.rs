//! What the probes saw, kept small: a job may make millions of launches, from few places. 48 bytes a launch.

use std::collections::{HashMap, HashSet};

use crate::entries::Kind;
use crate::spaces::{Files, Place};

/// A probe that is attached.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    /// The function.
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// A call that a probe saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// `CLOCK_MONOTONIC`, ns.
    pub(crate) time: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    /// Into [`Seen::comms`].
    pub(crate) comm: u32,
    /// Into [`Seen::probes`].
    pub(crate) probe: u32,
    /// Into [`Seen::stacks`].
    pub(crate) stack: u32,
    /// What CUPTI calls it, where the library inside said so.
    pub(crate) correlation: Option<u32>,
    /// Whether CUDA itself made the call, as a part of another.
    pub(crate) nested: bool,
}

const _: () = assert!(size_of::<Launch>() == 48, "Launch grew: one is kept for every launch");

/// All that was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) launches: Vec<Launch>,
    pub(crate) probes: Vec<Probe>,
    pub(crate) comms: Table<String>,
    /// Leaf first.
    pub(crate) stacks: Table<Vec<Place>>,
    pub(crate) files: Files,
    /// Ids of copies and fills, where those are not probed.
    pub(crate) copies: HashSet<(u32, u32)>,
    /// Ids that were told of a thread whose call no probe had seen.
    pub(crate) markers_alone: u64,
}

/// Values, each once, by number.
#[derive(Debug)]
pub(crate) struct Table<T> {
    values: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Table<T> {
    pub(crate) fn number(&mut self, value: T) -> u32 {
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
