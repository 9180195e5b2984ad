//! The end of an interpreter that runs a whole program, as `python train.py` does. After an interrupt that nobody
//! caught, CPython ends, gives SIGINT its default action and sends it to itself, so that the C library's exit handlers
//! never run: what CPython calls last of all (`Py_AtExit`) is the only moment that there is.
//!
//! A program that embeds CPython may end it and go on. Which of the two it is, the stack tells: only functions that run
//! a whole program, and then return its exit code, end the process by a signal; and where one of them ends the
//! interpreter, it is on the stack.
//!
//! Of CPython two functions are called: one reads a flag, and the other puts a pointer into a table of 32, since 3.12 under a
//! lock of its own that is held for that alone. Before, only the global lock keeps two threads from that at one moment, and the one
//! that makes the first CUDA call has mostly given it back: should another register something within those few
//! instructions, one of both is not called. What registers there does so when it is imported, if anything does at all.

use std::ffi::c_int;
use std::sync::OnceLock;

use super::loader::{self, Visit};
use super::symbols::{Exported, Exports};
use super::{Skip, Unwinder};
use crate::record::FrameKind;

/// What runs a whole program: the first is called by the others, and may have been made a part of them.
const PROGRAMS: [&str; 3] = ["Py_RunMain", "Py_BytesMain", "Py_Main"];

/// What is called when the interpreter ends.
struct Ending {
    programs: [Option<Exported>; PROGRAMS.len()],
    is_due: fn() -> bool,
    then: fn(),
}

static ENDING: OnceLock<Ending> = OnceLock::new();

/// What an interpreter exports.
struct Found {
    is_initialized: extern "C" fn() -> c_int,
    at_exit: extern "C" fn(extern "C" fn()) -> c_int,
    programs: [Option<Exported>; PROGRAMS.len()],
}

/// Has `then` called when the interpreter of this process ends, if there is one now and it runs the whole program, and
/// `is_due` says so. To be called once, and not inside a callback. False: it will not be, as there is none, or it has no room
/// for one more. A forked child has the call too: there `is_due` must say no, since another thread may have held the loader's
/// lock when it was forked, and will never give it back.
pub fn at_end_of_program(is_due: fn() -> bool, then: fn()) -> bool {
    let found = loader::hold(|_| {
        let mut found = None;
        loader::visit(|object| {
            found = Exports::of(object).and_then(|exports| look(&exports));
            if found.is_some() { Visit::Stop } else { Visit::Next }
        });
        found
    });
    let Some(Found { is_initialized, at_exit, programs }) = found.flatten() else { return false };
    // One that has not begun has no room yet, nor anything to end.
    is_initialized() != 0 && ENDING.set(Ending { programs, is_due, then }).is_ok() && at_exit(ends) == 0
}

/// The interpreter in the object with these exports. While the loader is held.
fn look(exports: &Exports<'_>) -> Option<Found> {
    exports.find("_PyRuntime")?;
    let address = |name| Some(exports.find(name)?.address as usize);
    let (is_initialized, at_exit) = (address("Py_IsInitialized")?, address("Py_AtExit")?);
    Some(Found {
        // SAFETY: CPython exports under this name a function that takes nothing and returns an `int`.
        is_initialized: unsafe { std::mem::transmute::<usize, extern "C" fn() -> c_int>(is_initialized) },
        // SAFETY: and under this one a function that takes such a function and returns an `int`.
        at_exit: unsafe { std::mem::transmute::<usize, extern "C" fn(extern "C" fn()) -> c_int>(at_exit) },
        programs: PROGRAMS.map(|name| exports.find(name)),
    })
}

/// Called by CPython, on the thread that ends it. The library is never unloaded (`host::loaded`).
extern "C" fn ends() {
    // A panic must not reach CPython.
    let _ = std::panic::catch_unwind(|| {
        let Some(Ending { programs, is_due, then }) = ENDING.get() else { return };
        if !is_due() {
            return;
        }
        let Some(mut unwinder) = Unwinder::new() else { return };
        unwinder.check_every_capture(true);
        let runs_all = |address: u64| programs.iter().flatten().any(|program| program.contains(address));
        let is_program = unwinder.capture(Skip::None).frames.iter().any(|frame| match frame.kind() {
            FrameKind::Native { address, .. } => runs_all(address),
            _ => false,
        });
        if is_program {
            then();
        }
    });
}
