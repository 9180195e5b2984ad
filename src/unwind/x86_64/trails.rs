//! A cache of the rule sequences that the thread's walks used, so that a walk along the same path needs no table
//! look-ups.
//!
//! Each rule is found by a return address, and the next return address is found by that rule. This is a chain of dependent
//! loads, most of which miss the L1 cache in a program that does anything between two captures. Yet a program launches from
//! the same few hundred stacks, again and again. So the rules of a path are stored one after another, each with its return
//! address. Then the next rule is available before the return address has been read: the processor predicts that the two
//! match and verifies the match later. In PyTorch training steps, the cached paths make a capture a quarter faster.
//!
//! The cache cannot lead a walk astray. A rule is used only for the exact address for which it was stored, in the loader
//! state in which it was stored, so the cached rule equals the rule in the table. When a walk leaves its cached path, the
//! walk looks for another cached path that starts at that point. If there is none, the walk uses the table for the rest of
//! the stack, and the path from that point on is stored if a walk takes it a second time. So stacks that never recur cost
//! one look-up.

use super::rule::Rule;
use crate::loader_state::LoaderState;

/// Number of cached paths. The cache has 128 KiB, of which a program touches only the part that it uses.
const WAYS: usize = 256;
/// Maximum number of steps per path. A longer path continues in another entry of the cache.
const LONGEST: usize = 30;

/// The cached paths of one thread. Zeroed memory is an empty cache.
#[repr(C, align(64))]
pub(super) struct Trails([Way; WAYS]);

#[repr(C)]
struct Way {
    /// Start of the path. The key also contains the stack pointer, which distinguishes paths that share code.
    place: u64,
    sp: u64,
    /// The loader's unload count when the path was stored.
    unloads: u32,
    /// Number of stored steps; 0 if the path was taken only once.
    len: u32,
    /// Padding to 512 bytes.
    _unused: u64,
    steps: [Known; LONGEST],
}

const _: () = assert!(size_of::<Way>() == 512, "ways begin at cache lines");

/// A rule and the return address for which it was stored.
#[derive(Clone, Copy)]
#[repr(C)]
struct Known {
    place: u64,
    rule: Rule,
}

/// The cached path that leads one walk.
pub(super) struct Lead<'a> {
    trails: Option<&'a Trails>,
    unloads: u32,
    /// The rest of the path that the walk is on.
    rest: &'a [Known],
    /// Number of steps after which no cached path continued.
    lost: Option<usize>,
}

impl Trails {
    /// Stores the path of a walk that lost its lead at this address and stack pointer, if a walk takes the path a second
    /// time. `rules` yields the return addresses from that point on and their rules, which are plain.
    #[inline(never)]
    pub(super) fn keep(
        &mut self,
        (place, sp): (u64, u64),
        rules: impl Iterator<Item = (u64, Rule)>,
        state: LoaderState,
    ) {
        let way = &mut self.0[home(place, sp)];
        if !way.begins(place, sp, state.unloads()) {
            (way.place, way.sp, way.unloads, way.len) = (place, sp, state.unloads(), 0);
            return;
        }
        way.len = 0;
        for (known, (place, rule)) in way.steps.iter_mut().zip(rules) {
            *known = Known { place, rule };
            way.len += 1;
        }
    }
}

impl Way {
    #[inline(always)]
    fn begins(&self, place: u64, sp: u64, unloads: u32) -> bool {
        (self.place == place) & (self.sp == sp) & (self.unloads == unloads)
    }
}

/// Slot of the path that starts at this address and stack pointer.
#[inline(always)]
fn home(place: u64, sp: u64) -> usize {
    let mixed = (place ^ sp.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % WAYS
}

impl<'a> Lead<'a> {
    /// Creates the lead of a walk in the loader state `state`. Without `trails` no cached path leads the walk.
    #[inline(always)]
    pub(super) fn by(trails: Option<&'a Trails>, state: LoaderState) -> Self {
        Self { trails, unloads: state.unloads(), rest: &[], lost: None }
    }

    /// Returns the rule for this address and stack pointer, which the walk reached after `count` steps, if a cached path
    /// continues from that point.
    #[inline(always)]
    pub(super) fn rule(&mut self, (place, sp): (u64, u64), count: usize) -> Option<Rule> {
        match self.rest {
            [known, rest @ ..] if known.place == place => {
                self.rest = rest;
                Some(known.rule)
            }
            _ => self.begin(self.trails?, (place, sp), count),
        }
    }

    /// Looks for a cached path that starts at this address and stack pointer. After one miss, the table leads the rest of
    /// the walk.
    #[inline(always)]
    fn begin(&mut self, trails: &'a Trails, (place, sp): (u64, u64), count: usize) -> Option<Rule> {
        let way = &trails.0[home(place, sp)];
        if !way.begins(place, sp, self.unloads) || way.len == 0 {
            (self.trails, self.lost) = (None, Some(count));
            return None;
        }
        let ([known, ..], rest) = (&way.steps, way.steps.get(1..way.len as usize)?);
        self.rest = rest;
        Some(known.rule)
    }

    /// Discards the path, because a rule was just compiled that may hold for this walk only.
    pub(super) fn forget(&mut self) {
        (self.trails, self.rest, self.lost) = (None, &[], None);
    }

    /// The step from which on no cached path was known.
    #[inline(always)]
    pub(super) fn lost(self) -> Option<usize> {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader_state::LoaderState;

    fn trails() -> Box<Trails> {
        // SAFETY: all-zero memory is a valid, empty cache.
        unsafe { Box::<Trails>::new_zeroed().assume_init() }
    }

    #[derive(Clone, Copy, Debug)]
    struct Step {
        place: u64,
        sp: u64,
        rule: Rule,
    }

    /// A path of `count` frames of 16 bytes each, the first at the address `from`.
    fn way(from: u64, sp: u64, count: u64) -> Vec<Step> {
        let step =
            |at| Step { place: from + at, sp: sp + 16 * at, rule: Rule::step(false, 16 + at as i32, 1) };
        (0..count).map(step).collect()
    }

    /// Number of leading steps whose rule is cached (and checked to be correct by this function), and the step at which the
    /// lead is then lost.
    fn led(trails: &Trails, steps: &[Step], state: LoaderState) -> (usize, Option<usize>) {
        let mut lead = Lead::by(Some(trails), state);
        let mut known = 0;
        for (count, step) in steps.iter().enumerate() {
            let found = lead.rule((step.place, step.sp), count);
            assert!(found.is_none_or(|rule| rule == step.rule), "{step:?}: {found:?}");
            known += usize::from(found.is_some());
        }
        (known, lead.lost())
    }

    fn keep(trails: &mut Trails, steps: &[Step], state: LoaderState) {
        trails.keep((steps[0].place, steps[0].sp), steps.iter().map(|step| (step.place, step.rule)), state);
    }

    fn keep_twice(trails: &mut Trails, steps: &[Step], state: LoaderState) {
        keep(trails, steps, state);
        keep(trails, steps, state);
    }

    #[test]
    fn a_path_is_used_from_its_third_walk_on() {
        let (mut trails, state, steps) = (trails(), LoaderState::default(), way(0x1000, 0x7000, 12));
        for _ in 0..2 {
            assert_eq!(led(&trails, &steps, state), (0, Some(0)));
            keep(&mut trails, &steps, state);
        }
        assert_eq!(led(&trails, &steps, state), (12, None));
        // After an unload the address may hold other code. A load invalidates no path.
        assert_eq!(led(&trails, &steps, LoaderState::new(0, 1)), (0, Some(0)));
        assert_eq!(led(&trails, &steps, LoaderState::new(1, 0)), (12, None));
        // The same code at another stack depth is as often as not on another path.
        assert_eq!(led(&trails, &way(0x1000, 0x6000, 12), state), (0, Some(0)));
    }

    #[test]
    fn a_walk_that_leaves_a_path_starts_another_path() {
        let (mut trails, state) = (trails(), LoaderState::default());
        let one = way(0x1000, 0x7000, 12);
        let other: Vec<Step> = one[..5].iter().copied().chain(way(0x2000, 0x7050, 4)).collect();
        keep_twice(&mut trails, &one, state);
        assert_eq!(led(&trails, &other, state), (5, Some(5)));
        keep_twice(&mut trails, &other[5..], state);
        assert_eq!(led(&trails, &other, state), (9, None));
        assert_eq!(led(&trails, &one, state), (12, None));
    }

    #[test]
    fn a_long_path_continues_in_another_path() {
        let (mut trails, state, steps) = (trails(), LoaderState::default(), way(0x1000, 0x7000, 70));
        for known in [30, 60] {
            let (_, lost) = led(&trails, &steps, state);
            keep_twice(&mut trails, &steps[lost.unwrap()..], state);
            assert_eq!(led(&trails, &steps, state), (known, Some(known)));
        }
    }
}
