//! Stores pieces of lost time. A piece is the total time for which one cause and one place in the code are responsible.

use super::marks::MAX_LISTED;
use gpuflame_model::profile::{Cause, SampleSite, add_to};
use gpuflame_model::record::{ContextId, IdMap};

/// Lost time for which one cause and one place in the code are responsible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) site: SampleSite,
    pub(super) cause: Cause,
    /// API call that the host was executing when the GPU ran out of work. If this call waited for the GPU, the wait is
    /// the reason for the lost time.
    pub(super) waited_at: Option<ContextId>,
    /// Whether the host launched work during the lost time, or did a short activity between launches.
    pub(super) is_launching: bool,
    pub(super) nanos: u64,
    /// Number of gaps in which this piece takes at least half of the time.
    pub(super) gaps: u64,
    /// Sum of the squares of the piece's durations in single gaps. [`usual_count`] uses this sum of squares.
    pub(super) squares: f64,
    /// Part of `nanos` (in ns) that consists of an unknown number of gaps.
    pub(super) uncounted: u64,
}

/// Returns an effective number of parts, which ignores parts that are too small to matter. If the returned number is n,
/// then n parts of equal duration would have the same sum and the same sum of squares. For example, the function
/// returns 2 for two parts of 1 s and a thousand parts of 1 us.
pub(super) fn usual_count(nanos: u64, squares: f64) -> u64 {
    if squares > 0.0 { ((nanos as f64) * (nanos as f64) / squares).round().max(1.0) as u64 } else { 1 }
}

/// Fields of a [`Key`] in a form that can be a key of a hash table.
type KeyParts = (SampleSite, u8, Option<ContextId>, bool);

/// Site, cause and wait that identify a piece. All lost time with an equal key is added to one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) site: SampleSite,
    pub(super) cause: Cause,
    pub(super) waited_at: Option<ContextId>,
    pub(super) is_launching: bool,
}

impl Key {
    pub(super) fn new(site: SampleSite, cause: Cause) -> Self {
        Self { site, cause, waited_at: None, is_launching: false }
    }

    fn parts(self) -> KeyParts {
        (self.site, self.cause as u8, self.waited_at, self.is_launching)
    }
}

#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// For each launch context and each value of [`Key::is_launching`], the index plus 1 of the piece that a late
    /// launch caused, or 0 if no such piece exists. The values are in a list because some pieces of a trace may be
    /// looked up a million times.
    late: Vec<[u32; 2]>,
    /// Index of each piece that is not in `late`.
    index: IdMap<KeyParts, usize>,
    pub(super) pieces: Vec<Piece>,
}

impl Pieces {
    /// Returns the index of the piece with this key. The piece is created if it does not exist.
    pub(super) fn number(&mut self, key: Key) -> usize {
        let next = self.pieces.len();
        let Key { site, cause, waited_at, is_launching } = key;
        let at = match site {
            SampleSite::Context(context)
                if (cause, waited_at) == (Cause::HostLate, None) && context.0 < MAX_LISTED =>
            {
                let listed = context.0 as usize;
                if self.late.len() <= listed {
                    self.late.resize(listed + 1, [0; 2]);
                }
                let number = &mut self.late[listed][usize::from(is_launching)];
                if *number == 0 {
                    *number = next as u32 + 1;
                }
                *number as usize - 1
            }
            _ => *self.index.entry(key.parts()).or_insert(next),
        };
        if at == next {
            self.pieces.push(Piece {
                site,
                cause,
                waited_at,
                is_launching,
                nanos: 0,
                gaps: 0,
                squares: 0.0,
                uncounted: 0,
            });
        }
        at
    }

    /// Adds `nanos` ns of lost time, which consists of `gaps` gaps of equal duration. `gaps` is 0 if the added time is
    /// less than half of the gap that contains it.
    pub(super) fn add(&mut self, at: usize, nanos: u64, gaps: u64) {
        add_to(&mut self.pieces[at].nanos, nanos);
        self.pieces[at].gaps += gaps;
        self.pieces[at].squares += nanos as f64 * nanos as f64 / gaps.max(1) as f64;
    }
}
