//! The ways that the thread's walks have taken, so that one that takes such a way again need not look for its rules.
//!
//! A rule is found by a return address, and the next return address by that rule: a chain of loads, most of which miss
//! the first cache in a program that does anything else between two captures. Yet a program launches from the same few
//! hundred stacks, again and again. So the rules of a way stand here one after another, each with the return address that it
//! is for: the next rule is at hand before the return address has been read, and that both belong together is what the
//! processor supposes and sees later. In steps of PyTorch a capture takes a quarter less by it.
//!
//! Nothing here is believed. A rule is taken only for the very address that it was stored for, in the loader state that it
//! was stored in: then it is the rule that the table has. Where a walk leaves the way it is on, it looks whether one begins
//! there; where none does, the table leads it on, and its way from there is kept if it is taken a second time. So stacks
//! that are never seen again cost one look.

use super::rule::Rule;
use crate::unwind::counts::Counts;

/// How many ways are kept: 128 KiB, of which a program touches what it uses.
const WAYS: usize = 256;
/// How many steps of one. A longer way goes on in another.
const LONGEST: usize = 30;

/// The ways of one thread. Zeroed memory holds none.
#[repr(C, align(64))]
pub(super) struct Trails([Way; WAYS]);

#[repr(C)]
struct Way {
    /// Where it begins. The stack pointer tells paths apart that share their code: it is part of the name only.
    place: u64,
    sp: u64,
    /// How many objects had been unloaded when it was kept.
    unloads: u32,
    /// How many steps are known. 0: it was taken once.
    len: u32,
    /// What 512 bytes have room for beside them.
    _unused: u64,
    steps: [Known; LONGEST],
}

const _: () = assert!(size_of::<Way>() == 512, "ways begin at cache lines");

/// A rule, and the return address that it is for.
#[derive(Clone, Copy)]
#[repr(C)]
struct Known {
    place: u64,
    rule: Rule,
}

/// What leads one walk.
pub(super) struct Lead<'a> {
    trails: Option<&'a Trails>,
    unloads: u32,
    /// The rest of the way that the walk is on.
    rest: &'a [Known],
    /// How many steps had been made where no way was known.
    lost: Option<usize>,
}

impl Trails {
    /// Keeps the way of a walk from where it was lost, a place and a stack pointer: the return addresses from there on and
    /// their rules, which are plain, if it is taken again.
    #[inline(never)]
    pub(super) fn keep(
        &mut self,
        (place, sp): (u64, u64),
        rules: impl Iterator<Item = (u64, Rule)>,
        counts: Counts,
    ) {
        let way = &mut self.0[home(place, sp)];
        if !way.begins(place, sp, counts.unloads()) {
            (way.place, way.sp, way.unloads, way.len) = (place, sp, counts.unloads(), 0);
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

/// Where the way from there is kept.
#[inline(always)]
fn home(place: u64, sp: u64) -> usize {
    let mixed = (place ^ sp.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % WAYS
}

impl<'a> Lead<'a> {
    /// What leads a walk in the loader state `counts`, if there are ways.
    #[inline(always)]
    pub(super) fn by(trails: Option<&'a Trails>, counts: Counts) -> Self {
        Self { trails, unloads: counts.unloads(), rest: &[], lost: None }
    }

    /// The rule for the place and the stack pointer to which the walk has come after `count` steps, if a way leads on from
    /// there.
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

    /// Looks for a way that begins here; once in vain, and the table leads the walk from there on.
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

    /// A rule was made just now. It may hold for this walk only, so the way is not to be kept.
    pub(super) fn forget(&mut self) {
        (self.trails, self.rest, self.lost) = (None, &[], None);
    }

    /// From which step on the way was not known.
    #[inline(always)]
    pub(super) fn lost(self) -> Option<usize> {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::counts::Counts;

    fn trails() -> Box<Trails> {
        // SAFETY: zeroes are no way at all.
        unsafe { Box::<Trails>::new_zeroed().assume_init() }
    }

    #[derive(Clone, Copy, Debug)]
    struct Step {
        place: u64,
        sp: u64,
        rule: Rule,
    }

    /// `count` frames of 16 bytes each, the first at the address `from`.
    fn way(from: u64, sp: u64, count: u64) -> Vec<Step> {
        let step =
            |at| Step { place: from + at, sp: sp + 16 * at, rule: Rule::step(false, 16 + at as i32, 1) };
        (0..count).map(step).collect()
    }

    /// How many rules at the beginning of these steps are known, each of which is the right one; and what is lost then.
    fn led(trails: &Trails, steps: &[Step], counts: Counts) -> (usize, Option<usize>) {
        let mut lead = Lead::by(Some(trails), counts);
        let mut known = 0;
        for (count, step) in steps.iter().enumerate() {
            let found = lead.rule((step.place, step.sp), count);
            assert!(found.is_none_or(|rule| rule == step.rule), "{step:?}: {found:?}");
            known += usize::from(found.is_some());
        }
        (known, lead.lost())
    }

    fn keep(trails: &mut Trails, steps: &[Step], counts: Counts) {
        trails.keep((steps[0].place, steps[0].sp), steps.iter().map(|step| (step.place, step.rule)), counts);
    }

    fn keep_twice(trails: &mut Trails, steps: &[Step], counts: Counts) {
        keep(trails, steps, counts);
        keep(trails, steps, counts);
    }

    #[test]
    fn a_way_leads_from_its_third_time_on() {
        let (mut trails, counts, steps) = (trails(), Counts::default(), way(0x1000, 0x7000, 12));
        for _ in 0..2 {
            assert_eq!(led(&trails, &steps, counts), (0, Some(0)));
            keep(&mut trails, &steps, counts);
        }
        assert_eq!(led(&trails, &steps, counts), (12, None));
        // Other code may lie there after an unload; a load takes nothing away.
        assert_eq!(led(&trails, &steps, Counts::new(0, 1)), (0, Some(0)));
        assert_eq!(led(&trails, &steps, Counts::new(1, 0)), (12, None));
        // The same code at another depth is another path as often as not.
        assert_eq!(led(&trails, &way(0x1000, 0x6000, 12), counts), (0, Some(0)));
    }

    #[test]
    fn where_a_walk_leaves_its_way_another_begins() {
        let (mut trails, counts) = (trails(), Counts::default());
        let one = way(0x1000, 0x7000, 12);
        let other: Vec<Step> = one[..5].iter().copied().chain(way(0x2000, 0x7050, 4)).collect();
        keep_twice(&mut trails, &one, counts);
        assert_eq!(led(&trails, &other, counts), (5, Some(5)));
        keep_twice(&mut trails, &other[5..], counts);
        assert_eq!(led(&trails, &other, counts), (9, None));
        assert_eq!(led(&trails, &one, counts), (12, None));
    }

    #[test]
    fn a_way_that_is_too_long_goes_on_in_another() {
        let (mut trails, counts, steps) = (trails(), Counts::default(), way(0x1000, 0x7000, 70));
        for known in [30, 60] {
            let (_, lost) = led(&trails, &steps, counts);
            keep_twice(&mut trails, &steps[lost.unwrap()..], counts);
            assert_eq!(led(&trails, &steps, counts), (known, Some(known)));
        }
    }
}
