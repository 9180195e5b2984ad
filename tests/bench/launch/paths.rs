//! The stacks that are measured. A stack consists of nested calls of generated functions, and the innermost function
//! runs an action.

use crate::generate::{Function, Program, Random};
use crate::methods;

/// Number of different stacks in a situation in which stacks differ.
pub(crate) const STACKS: usize = 256;

/// How similar two stacks are if one is captured after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// The same stack is captured repeatedly.
    Hot,
    /// The stacks share their outer half.
    Half,
    /// The stacks share only the outermost frames of the thread.
    Fresh,
}

impl Situation {
    pub(crate) const ALL: [Self; 3] = [Self::Hot, Self::Half, Self::Fresh];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Half => "half",
            Self::Fresh => "fresh",
        }
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Hot => "The same stack again and again",
            Self::Half => "256 stacks that share their outer half, at random",
            Self::Fresh => "256 stacks that share nothing but the thread's bottom, at random",
        }
    }
}

/// Returns the stacks that are measured in a situation. Each stack is the list of functions to call, outermost first.
pub(crate) fn stacks(situation: Situation, depth: usize, functions: &[Function]) -> Vec<Vec<Function>> {
    let mut random = Random::new(depth as u64);
    let mut pick = || functions[random.below(functions.len())];
    let trunk: Vec<_> = (0..depth).map(|_| pick()).collect();
    let (shared, count) = match situation {
        Situation::Hot => (depth, 1),
        Situation::Half => (depth / 2, STACKS),
        Situation::Fresh => (0, STACKS),
    };
    (0..count).map(|_| (0..depth).map(|at| if at < shared { trunk[at] } else { pick() }).collect()).collect()
}

/// State while nested calls build a stack.
struct Path<'a> {
    calls: &'a [Function],
    at: usize,
    leaf: &'a mut dyn FnMut(),
}

extern "C-unwind" fn next(program: &mut Program) -> Option<Function> {
    // SAFETY: SAFETY: `build` stored a pointer to its own state in `program`, and waits until the calls return.
    let path = unsafe { &mut *program.state.cast::<Path<'_>>() };
    let call = path.calls.get(path.at).copied();
    match call {
        Some(_) => path.at += 1,
        None if path.at == path.calls.len() => {
            methods::FRAME.set(program.frame);
            (path.leaf)();
            path.at = usize::MAX;
        }
        None => {}
    }
    call
}

/// Calls the functions in `calls`, each inside the previous one, and `leaf` inside the last.
#[inline(never)]
pub(crate) fn build(calls: &[Function], leaf: &mut dyn FnMut()) {
    let mut path = Path { calls, at: 1, leaf };
    let state = (&raw mut path).cast();
    calls[0](&mut Program { next, growth: 1, frame: std::ptr::null(), state }, 1, 2);
}
