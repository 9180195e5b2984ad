//! Computes the position of each frame of a flame graph. Stacks that begin with the same frames share these frames.

use super::Line;

/// A frame of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) name: &'a str,
    /// Number of frames between this frame and the bottom of the picture. The root has depth 0.
    pub(super) depth: usize,
    /// Total weight of the stacks to the left of this frame.
    pub(super) start: u64,
    pub(super) weight: u64,
    /// Weight in the older run, if the picture shows a difference.
    pub(super) before: u64,
}

/// Name of the root frame, which all stacks share.
pub(super) const ROOT_NAME: &str = "all";

/// Returns the frames that have at least `1 / fraction` of the total weight. In the returned list, a frame comes after
/// the frames on top of it, so the last frame is the root.
pub(super) fn frames(lines: &[Line], fraction: u64) -> Vec<Frame<'_>> {
    // Until a frame is complete, `start` contains the total weight to the left of the frame in the newer run, and
    // `before` that in the older run.
    let (mut at, mut before) = (0_u64, 0_u64);
    let mut open = vec![Frame { name: ROOT_NAME, depth: 0, start: 0, weight: 0, before: 0 }];
    let mut done: Vec<Frame<'_>> = Vec::new();
    for line in lines {
        let shared =
            open[1..].iter().zip(line.stack.split(';')).take_while(|(frame, name)| frame.name == *name);
        let shared = 1 + shared.count();
        done.extend(open.drain(shared..).rev().map(|frame| frame.complete(at, before)));
        for name in line.stack.split(';').skip(shared - 1) {
            open.push(Frame { name, depth: open.len(), start: at, weight: 0, before });
        }
        at = at.saturating_add(line.weight);
        before = before.saturating_add(line.before);
    }
    done.extend(open.into_iter().rev().map(|frame| frame.complete(at, before)));
    let lightest = at / fraction;
    done.retain(|frame| frame.weight > 0 && frame.weight >= lightest);
    done
}

impl Frame<'_> {
    /// Completes the frame by computing its weights. `end` and `before` are the total weights to the left of the
    /// frame's right edge.
    fn complete(self, end: u64, before: u64) -> Self {
        Self { weight: end - self.start, before: before - self.before, ..self }
    }
}
