//! Finds the shortest times from a launch call to the begin of the launched GPU work. If work begins later after its
//! launch call than this shortest time, it must have waited for something else than its launch.

use super::super::instructions::InstructionKind;
use super::graph::MAX_LATENCY_NS;

/// A kind of work gets its own shortest time only if it has at least this number of launches. A kind of work with few
/// launches uses the shortest time over all kinds, because perhaps none of its launches found the stream idle.
const MIN_LAUNCHES: u64 = 8;

/// Kind of submitted work. Kinds of work are distinguished because they reach the GPU in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum Submitted {
    Kernel,
    Memory,
    Graph,
    HostFunction,
}

impl Submitted {
    /// Returns the kind of work that an instruction submits, or `None` if the instruction does nothing on a stream.
    pub(in super::super) fn of(kind: InstructionKind) -> Option<Self> {
        match kind {
            InstructionKind::Kernel => Some(Self::Kernel),
            InstructionKind::Copy | InstructionKind::Fill => Some(Self::Memory),
            InstructionKind::Graph => Some(Self::Graph),
            InstructionKind::HostFunction => Some(Self::HostFunction),
            _ => None,
        }
    }

    /// Returns the kind as a word for tables.
    pub(in super::super) fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Memory => "memory",
            Self::Graph => "graph",
            Self::HostFunction => "host_function",
        }
    }
}

/// Shortest times in ns from a launch call to the begin of its work, for each kind of submitted work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lags {
    counts: [u64; 4],
    shortest: [u64; 4],
}

impl Lags {
    pub(super) fn note(&mut self, kind: Submitted, lag: u64) {
        let (count, shortest) = (&mut self.counts[kind as usize], &mut self.shortest[kind as usize]);
        *shortest = if *count == 0 { lag } else { lag.min(*shortest) };
        *count += 1;
    }

    /// Computes the final shortest times. Call `finish` once, after the last launch was added.
    pub(super) fn finish(&mut self) {
        let known = self.counts.iter().zip(&self.shortest).filter(|(count, _)| **count > 0);
        let all = known.map(|(_, shortest)| *shortest).min().unwrap_or(0);
        for (count, shortest) in self.counts.iter().zip(&mut self.shortest) {
            if *count < MIN_LAUNCHES {
                *shortest = all;
            }
        }
    }

    /// Returns the shortest time in ns from the start of a call to the begin of its GPU work. Returns at most
    /// [`MAX_LATENCY_NS`], because all launches in a file may have waited in a full queue.
    pub(super) fn launch(&self, kind: Submitted) -> u64 {
        self.shortest[kind as usize].min(MAX_LATENCY_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_with_few_launches_has_the_shortest_time_of_all() {
        let mut lags = Lags::default();
        (0..8).for_each(|at| lags.note(Submitted::Kernel, 5_000 + at));
        (0..7).for_each(|_| lags.note(Submitted::Memory, 9_000));
        (0..8).for_each(|_| lags.note(Submitted::Graph, 7_000));
        lags.finish();
        let all = [Submitted::Kernel, Submitted::Memory, Submitted::Graph].map(|kind| lags.launch(kind));
        assert_eq!(all, [5_000, 5_000, 7_000]);
    }

    #[test]
    fn launches_that_all_waited_in_a_queue_have_no_shortest_time() {
        let mut lags = Lags::default();
        (0..8).for_each(|_| lags.note(Submitted::Kernel, 146_000_000));
        lags.finish();
        assert_eq!(lags.launch(Submitted::Kernel), MAX_LATENCY_NS);
    }
}
