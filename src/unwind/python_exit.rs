//! Calls a function when a Python interpreter that runs a whole program ends, as in `python train.py`. After an
//! uncaught KeyboardInterrupt, CPython finalizes itself, resets SIGINT to its default action and sends SIGINT to its
//! own process. Therefore the C library's exit handlers do not run after an uncaught KeyboardInterrupt. Only CPython's
//! own exit callbacks (`Py_AtExit`), which run at the end of the finalization, can act before the process dies.
//!
//! A program that embeds CPython may finalize the interpreter and continue to run. The stack shows whether the program
//! ends together with the interpreter. If the program ends with the interpreter, the stack contains one of the few
//! functions of CPython that run a whole program and may end the process by a signal.
//!
//! This module calls two functions of CPython: `Py_IsInitialized` reads a flag, and `Py_AtExit` stores a pointer in a
//! table with 32 entries. Since CPython 3.12, `Py_AtExit` takes a lock, which is held only while the pointer is stored.
//! Before 3.12, only the GIL serializes these stores, and the thread that makes the first CUDA call has usually
//! released the GIL. Therefore, if another thread registers a callback at nearly the same time (within a few
//! instructions), one of the two callbacks is lost. Such a loss is unlikely, because few modules register an exit
//! callback, and they register it when they are imported.

use std::ffi::c_int;
use std::sync::OnceLock;

use super::loader::{self, Visit};
use super::symbols::{ExportedSymbol, Exports};
use super::{Skip, Unwinder, python};
use gpuflame_model::record::FrameKind;

/// Functions of CPython that run a whole program. `Py_BytesMain` and `Py_Main` call `Py_RunMain`, or contain its
/// inlined code.
const PROGRAMS: [&str; 3] = ["Py_RunMain", "Py_BytesMain", "Py_Main"];

/// The callback to run when the interpreter ends, and the conditions for running it.
struct ExitCallback {
    programs: [Option<ExportedSymbol>; PROGRAMS.len()],
    is_due: fn() -> bool,
    callback: fn(),
}

static EXIT_CALLBACK: OnceLock<ExitCallback> = OnceLock::new();

/// The exported functions of an interpreter that this module needs.
struct InterpreterExports {
    is_initialized: extern "C" fn() -> c_int,
    at_exit: extern "C" fn(extern "C" fn()) -> c_int,
    programs: [Option<ExportedSymbol>; PROGRAMS.len()],
}

/// Registers `callback` to be called when this process's interpreter ends. `callback` is called only if the interpreter
/// runs the whole program, and if `is_due` returns true at that time. Call this function once, after the interpreter
/// was initialized, and not inside a callback. Returns false if there is no interpreter, or if the interpreter's table
/// of exit callbacks is full.
///
/// A forked child inherits the registration, but `is_due` must return false in the child. If `is_due` returned true in
/// the child, a stack would be captured before `callback` is called, and the capture takes the loader's lock. If
/// another thread held this lock at the time of the fork, the lock is never released in the child.
pub fn call_at_program_exit(is_due: fn() -> bool, callback: fn()) -> bool {
    let found = loader::with_lock(|_| {
        let mut found = None;
        loader::visit(|object| {
            found = Exports::read(object).and_then(|exports| find_interpreter(&exports));
            if found.is_some() { Visit::Stop } else { Visit::Next }
        });
        found
    });
    let Some(InterpreterExports { is_initialized, at_exit, programs }) = found.flatten() else {
        return false;
    };
    is_initialized() != 0
        && EXIT_CALLBACK.set(ExitCallback { programs, is_due, callback }).is_ok()
        && at_exit(on_finalize) == 0
}

/// Returns the needed functions of an interpreter, if the object with these exports contains CPython. Call this
/// function while the loader's lock is held.
fn find_interpreter(exports: &Exports<'_>) -> Option<InterpreterExports> {
    exports.find("_PyRuntime")?;
    // An interpreter that is not initialized has no table of exit callbacks yet, and nothing to finalize. The
    // functions of such an interpreter cannot even be called, because its library may not be relocated yet.
    if !python::is_initialized() {
        return None;
    }
    let address = |name| Some(exports.find(name)?.address as usize);
    let (is_initialized, at_exit) = (address("Py_IsInitialized")?, address("Py_AtExit")?);
    Some(InterpreterExports {
        // SAFETY: the function that CPython exports under this name takes no argument and returns an `int`.
        is_initialized: unsafe { std::mem::transmute::<usize, extern "C" fn() -> c_int>(is_initialized) },
        // SAFETY: the function that CPython exports under this name takes a function pointer of this type and returns
        // an `int`.
        at_exit: unsafe { std::mem::transmute::<usize, extern "C" fn(extern "C" fn()) -> c_int>(at_exit) },
        programs: PROGRAMS.map(|name| exports.find(name)),
    })
}

/// Called by CPython on the thread that finalizes the interpreter. The function stays callable, because this library is
/// never unloaded (`gpuflame_os::pinning`).
extern "C" fn on_finalize() {
    // A panic must not unwind into CPython.
    let _ = std::panic::catch_unwind(|| {
        let Some(ExitCallback { programs, is_due, callback }) = EXIT_CALLBACK.get() else { return };
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
            callback();
        }
    });
}
