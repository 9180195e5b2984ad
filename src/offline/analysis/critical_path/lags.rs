//! Shortest times from a call to the begin of its work. A launch whose work begins later than that waited for something else.

use super::super::instructions::InstructionKind;
use super::graph::MAX_LATENCY_NS;

/// A kind with fewer launches has the shortest time over all kinds, because perhaps no launch of the kind found its stream free.
const MIN_LAUNCHES: u64 = 8;

/// Kind of submitted work, as far as its way to the GPU differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum Submitted {
    Kernel,
    Memory,
    Graph,
    HostFunction,
}

impl Submitted {
    /// Kind of an instruction; `None` if it does nothing on a stream.
    pub(in super::super) fn of(kind: InstructionKind) -> Option<Self> {
        match kind {
            InstructionKind::Kernel => Some(Self::Kernel),
            InstructionKind::Copy | InstructionKind::Fill => Some(Self::Memory),
            InstructionKind::Graph => Some(Self::Graph),
            InstructionKind::HostFunction => Some(Self::HostFunction),
            _ => None,
        }
    }

    /// Word for tables.
    pub(in super::super) fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Memory => "memory",
            Self::Graph => "graph",
            Self::HostFunction => "host_function",
        }
    }
}

/// Shortest times in ns by kind.
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

    /// Call once, after the last launch.
    pub(super) fn finish(&mut self) {
        let known = self.counts.iter().zip(&self.shortest).filter(|(count, _)| **count > 0);
        let all = known.map(|(_, shortest)| *shortest).min().unwrap_or(0);
        for (count, shortest) in self.counts.iter().zip(&mut self.shortest) {
            if *count < MIN_LAUNCHES {
                *shortest = all;
            }
        }
    }

    /// Shortest time from the start of a call to the begin of its work. If every launch of the file waited in a full queue, the
    /// shortest time says nothing about launches.
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
