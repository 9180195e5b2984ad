//! A cache of the sequences of rules that the thread's walks used, so that a later walk through the same frames needs
//! no look-ups in the rule table.
//!
//! Without this cache, a walk has to look up a rule by a return address, and needs that rule to find the next return
//! address. Therefore each load has to wait for the result of the previous load. In a real program, most of these loads
//! miss the L1 cache, because the program runs other code between two captures. But programs launch from the same few
//! hundred stacks again and again. Therefore the rules of a path are stored one after another, each with its return
//! address. The processor then predicts that the next return address matches the next rule, and uses the rule
//! immediately. The processor verifies the prediction when the return address has been read. In PyTorch training steps,
//! the cached paths make a capture a quarter faster.
//!
//! The cache never changes the result of a walk. A cached rule is used only for the address and the loader state for
//! which it was stored, so it equals the rule in the table. When a walk leaves its cached path at a frame, it looks for
//! another cached path that starts at this frame. If the cache contains no such path, the walk uses the table for the
//! rest of the stack. The path from this frame to the root is stored when it is walked for the second time. Therefore a
//! stack that never recurs costs only one look-up in this cache.

use super::rule::Rule;
use crate::loader_state::LoaderState;

/// Number of cached paths per thread. The cache takes 128 KiB, but a thread touches only the paths that it uses.
const PATHS: usize = 256;
/// Maximum number of steps per path. A longer path continues in another entry of the cache.
const MAX_STEPS: usize = 30;

/// The cached paths of one thread. Zeroed memory is an empty cache.
#[repr(C, align(64))]
pub(super) struct PathCache([CachedPath; PATHS]);

#[repr(C)]
struct CachedPath {
    /// Start of the path: the pc to look up and the stack pointer. The stack pointer distinguishes paths that start at
    /// the same code.
    lookup_pc: u64,
    sp: u64,
    /// The loader's unload count when the path was stored.
    unloads: u32,
    /// Number of stored steps; 0 if the path was walked only once.
    len: u32,
    /// Padding to 512 bytes.
    _unused: u64,
    steps: [CachedRule; MAX_STEPS],
}

const _: () = assert!(size_of::<CachedPath>() == 512, "paths begin at cache lines");

/// A rule and the return address for which it was stored.
#[derive(Clone, Copy)]
#[repr(C)]
struct CachedRule {
    lookup_pc: u64,
    rule: Rule,
}

/// Provides a single walk with rules from cached paths.
pub(super) struct PathFollower<'a> {
    path_cache: Option<&'a PathCache>,
    unloads: u32,
    /// The rest of the path that the walk is following.
    rest: &'a [CachedRule],
    /// Number of steps after which the walk had left its cached path and found no other cached path. `None` if the walk
    /// has always found a cached path.
    lost_at: Option<usize>,
}

impl PathCache {
    /// Stores the path that starts at this code address and stack pointer, where a walk found no cached path. The
    /// first walk along a path only reserves a slot; the second walk stores the rules. `rules` yields the path's
    /// return addresses, each with its rule. All rules must be plain.
    #[inline(never)]
    pub(super) fn insert(
        &mut self,
        (lookup_pc, sp): (u64, u64),
        rules: impl Iterator<Item = (u64, Rule)>,
        state: LoaderState,
    ) {
        let path = &mut self.0[slot_of(lookup_pc, sp)];
        if !path.starts_at(lookup_pc, sp, state.unloads()) {
            (path.lookup_pc, path.sp, path.unloads, path.len) = (lookup_pc, sp, state.unloads(), 0);
            return;
        }
        path.len = 0;
        for (cached, (lookup_pc, rule)) in path.steps.iter_mut().zip(rules) {
            *cached = CachedRule { lookup_pc, rule };
            path.len += 1;
        }
    }
}

impl CachedPath {
    #[inline(always)]
    fn starts_at(&self, lookup_pc: u64, sp: u64, unloads: u32) -> bool {
        (self.lookup_pc == lookup_pc) & (self.sp == sp) & (self.unloads == unloads)
    }
}

/// Returns the slot of the path that starts at this code address and stack pointer.
#[inline(always)]
fn slot_of(lookup_pc: u64, sp: u64) -> usize {
    let mixed = (lookup_pc ^ sp.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % PATHS
}

impl<'a> PathFollower<'a> {
    /// Creates the follower for one walk in the loader state `state`. If `path_cache` is `None`, the walk finds no
    /// cached path.
    #[inline(always)]
    pub(super) fn new(path_cache: Option<&'a PathCache>, state: LoaderState) -> Self {
        Self { path_cache, unloads: state.unloads(), rest: &[], lost_at: None }
    }

    /// Returns the rule for the frame with this code address and stack pointer, which the walk reached after `count`
    /// steps. Returns `None` if no cached path contains the rule.
    #[inline(always)]
    pub(super) fn rule(&mut self, (lookup_pc, sp): (u64, u64), count: usize) -> Option<Rule> {
        match self.rest {
            [cached, rest @ ..] if cached.lookup_pc == lookup_pc => {
                self.rest = rest;
                Some(cached.rule)
            }
            _ => self.enter_path(self.path_cache?, (lookup_pc, sp), count),
        }
    }

    /// Looks for a cached path that starts at this code address and stack pointer. If the cache contains no such path,
    /// the rest of the walk looks up every rule in the table and does not use this cache again.
    #[inline(always)]
    fn enter_path(
        &mut self,
        path_cache: &'a PathCache,
        (lookup_pc, sp): (u64, u64),
        count: usize,
    ) -> Option<Rule> {
        let path = &path_cache.0[slot_of(lookup_pc, sp)];
        if !path.starts_at(lookup_pc, sp, self.unloads) || path.len == 0 {
            (self.path_cache, self.lost_at) = (None, Some(count));
            return None;
        }
        let ([cached, ..], rest) = (&path.steps, path.steps.get(1..path.len as usize)?);
        self.rest = rest;
        Some(cached.rule)
    }

    /// Stops following cached paths, and prevents this walk's path from being stored. Call this function after
    /// compiling a rule, because the new rule may be valid for this walk only.
    pub(super) fn discard_path(&mut self) {
        (self.path_cache, self.rest, self.lost_at) = (None, &[], None);
    }

    /// Number of steps after which the walk found no cached path. `None` if the walk has always found a cached path.
    #[inline(always)]
    pub(super) fn lost_at(self) -> Option<usize> {
        self.lost_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader_state::LoaderState;

    fn path_cache() -> Box<PathCache> {
        // SAFETY: all-zero memory is a valid, empty cache.
        unsafe { Box::<PathCache>::new_zeroed().assume_init() }
    }

    #[derive(Clone, Copy, Debug)]
    struct Step {
        lookup_pc: u64,
        sp: u64,
        rule: Rule,
    }

    /// Returns a path of `count` frames of 16 bytes each. The code address of the first frame is `from`.
    fn path(from: u64, sp: u64, count: u64) -> Vec<Step> {
        let step =
            |at| Step { lookup_pc: from + at, sp: sp + 16 * at, rule: Rule::step(false, 16 + at as i32, 1) };
        (0..count).map(step).collect()
    }

    /// Returns the number of steps whose rule is cached, and the number of steps after which no cached path was found.
    /// Also asserts that the rules found in the cache are correct.
    fn follow(path_cache: &PathCache, steps: &[Step], state: LoaderState) -> (usize, Option<usize>) {
        let mut follower = PathFollower::new(Some(path_cache), state);
        let mut cached = 0;
        for (count, step) in steps.iter().enumerate() {
            let found = follower.rule((step.lookup_pc, step.sp), count);
            assert!(found.is_none_or(|rule| rule == step.rule), "{step:?}: {found:?}");
            cached += usize::from(found.is_some());
        }
        (cached, follower.lost_at())
    }

    fn insert(path_cache: &mut PathCache, steps: &[Step], state: LoaderState) {
        path_cache.insert(
            (steps[0].lookup_pc, steps[0].sp),
            steps.iter().map(|step| (step.lookup_pc, step.rule)),
            state,
        );
    }

    fn insert_twice(path_cache: &mut PathCache, steps: &[Step], state: LoaderState) {
        insert(path_cache, steps, state);
        insert(path_cache, steps, state);
    }

    #[test]
    fn a_path_is_used_from_its_third_walk_on() {
        let (mut path_cache, state, steps) = (path_cache(), LoaderState::default(), path(0x1000, 0x7000, 12));
        for _ in 0..2 {
            assert_eq!(follow(&path_cache, &steps, state), (0, Some(0)));
            insert(&mut path_cache, &steps, state);
        }
        assert_eq!(follow(&path_cache, &steps, state), (12, None));
        // After an unload, other code may be at the path's code addresses. After a load, the cached paths remain valid.
        assert_eq!(follow(&path_cache, &steps, LoaderState::new(0, 1)), (0, Some(0)));
        assert_eq!(follow(&path_cache, &steps, LoaderState::new(1, 0)), (12, None));
        // A path that starts at the same code with a different stack pointer counts as a different path, because it
        // often continues differently.
        assert_eq!(follow(&path_cache, &path(0x1000, 0x6000, 12), state), (0, Some(0)));
    }

    #[test]
    fn a_walk_that_leaves_a_path_starts_another_path() {
        let (mut path_cache, state) = (path_cache(), LoaderState::default());
        let one = path(0x1000, 0x7000, 12);
        let other: Vec<Step> = one[..5].iter().copied().chain(path(0x2000, 0x7050, 4)).collect();
        insert_twice(&mut path_cache, &one, state);
        assert_eq!(follow(&path_cache, &other, state), (5, Some(5)));
        insert_twice(&mut path_cache, &other[5..], state);
        assert_eq!(follow(&path_cache, &other, state), (9, None));
        assert_eq!(follow(&path_cache, &one, state), (12, None));
    }

    #[test]
    fn a_long_path_continues_in_another_path() {
        let (mut path_cache, state, steps) = (path_cache(), LoaderState::default(), path(0x1000, 0x7000, 70));
        for cached in [30, 60] {
            let (_, lost_at) = follow(&path_cache, &steps, state);
            insert_twice(&mut path_cache, &steps[lost_at.unwrap()..], state);
            assert_eq!(follow(&path_cache, &steps, state), (cached, Some(cached)));
        }
    }
}
