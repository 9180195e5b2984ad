//! Runs a closure inside a given number of nested calls.

use std::hint::black_box;

#[inline(never)]
pub(crate) fn deep(calls: usize, at_the_end: &mut dyn FnMut()) -> usize {
    if calls == 0 {
        at_the_end();
        return 0;
    }
    black_box(deep(black_box(calls - 1), at_the_end)) + 1
}
