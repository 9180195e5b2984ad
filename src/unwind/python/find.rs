//! Finding the interpreter of this process, if there is one: a program that exports `_PyRuntime`, or a library.
//!
//! It is looked for when a stack is new and the loader's state is, so whoever has no Python pays nothing on a stack that
//! is known, and embedding programs may load it as late as they like. Once it is found, or found to be one that we
//! cannot read, that stands for good.

use std::ffi::CStr;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::layout::{Layout, TABLE_BYTES, Unknown};
use crate::unwind::counts::{self, Counts};
use crate::unwind::loader::{self, Object, Visit};
use crate::unwind::memory;
use crate::unwind::symbols::{Exported, Exports};
#[cfg(target_arch = "x86_64")]
use crate::unwind::x86_64::cold::cold_part;

/// An interpreter whose frames can be read. Never freed.
#[derive(Debug)]
pub(super) struct Interpreter {
    pub(super) layout: Layout,
    /// Where `_PyRuntime` lies.
    pub(super) runtime: u64,
    /// `PyGILState_GetThisThreadState`: the state of the calling thread, or null. A look at thread-local storage, which
    /// is right whoever holds the global lock.
    pub(super) this_thread: unsafe extern "C" fn() -> *mut u8,
    /// The types of code objects, strings, bytes, and frames where those are objects.
    pub(super) types: Types,
    /// Where `_PyEval_EvalFrameDefault` lies, and what the compiler took out of it as cold: nothing in most builds, a fifth of
    /// it where a profile was used, as Debian's and conda's are made.
    pub(super) evaluator: [Range<u64>; 2],
}

/// Where types lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Types {
    pub(super) code: u64,
    pub(super) text: u64,
    pub(super) bytes: u64,
    pub(super) frame: u64,
}

/// Why Python frames are not in stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// An interpreter of a version whose layout is not known, such as `0x030e`.
    Version(u16),
    /// CPython without its global lock.
    FreeThreaded,
    /// It says of itself what its version does not.
    Table,
    /// It does not export what is needed.
    Exports,
    /// PyPy, whose frames are where only itself finds them.
    PyPy,
    /// What a thread's frames should be is something else.
    Unreadable,
    /// The first stack that was taken did not go with the native frames.
    Mismatch,
}

impl Off {
    fn to_word(self) -> u32 {
        let (kind, version) = match self {
            Self::Version(version) => (1, version),
            Self::FreeThreaded => (2, 0),
            Self::Table => (3, 0),
            Self::Exports => (4, 0),
            Self::PyPy => (5, 0),
            Self::Unreadable => (6, 0),
            Self::Mismatch => (7, 0),
        };
        kind << 16 | u32::from(version)
    }

    fn from_word(word: u32) -> Option<Self> {
        Some(match word >> 16 {
            1 => Self::Version(word as u16),
            2 => Self::FreeThreaded,
            3 => Self::Table,
            4 => Self::Exports,
            5 => Self::PyPy,
            6 => Self::Unreadable,
            7 => Self::Mismatch,
            _ => return None,
        })
    }
}

impl std::fmt::Display for Off {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(version) => {
                write!(f, "the layout of CPython {}.{} is not known", version >> 8, version & 0xff)
            }
            Self::FreeThreaded => f.write_str("the layout of CPython without its global lock is not known"),
            Self::Table => f.write_str("what CPython tells of its layout is not what its version does"),
            Self::Exports => f.write_str("this CPython does not export what is needed to find its frames"),
            Self::PyPy => f.write_str("this is PyPy, which only CPython's frames can be read of"),
            Self::Unreadable => f.write_str("what should be a thread's frames was something else"),
            Self::Mismatch => f.write_str("they did not go with the native frames"),
        }
    }
}

/// Whether anybody wants Python frames.
static IS_WANTED: AtomicBool = AtomicBool::new(false);
/// The interpreter; null: none was found.
static FOUND: AtomicPtr<Interpreter> = AtomicPtr::new(null_mut());
/// Why it is off, as a word; 0: it is not.
static OFF: AtomicU32 = AtomicU32::new(0);
/// The loader's state that it was looked for in.
static LOOKED: AtomicU64 = AtomicU64::new(u64::MAX);

/// Has Python frames taken from now on, or not.
pub(super) fn want(wanted: bool) {
    IS_WANTED.store(wanted, Ordering::Relaxed);
}

/// Why there are none, if there is a reason.
pub(super) fn off() -> Option<Off> {
    Off::from_word(OFF.load(Ordering::Relaxed))
}

/// Whether it was switched off, for whatever reason.
#[inline(always)]
pub(super) fn is_off() -> bool {
    OFF.load(Ordering::Relaxed) != 0
}

/// Has no more taken in this process.
#[cold]
pub(super) fn switch_off(why: Off) {
    let _ = OFF.compare_exchange(0, why.to_word(), Ordering::AcqRel, Ordering::Relaxed);
}

/// The interpreter of this process, if there is one that can be read. Looks for it only where objects came or went since
/// that was last done. Safe inside a callback.
#[cold]
pub(super) fn interpreter() -> Option<&'static Interpreter> {
    if !IS_WANTED.load(Ordering::Relaxed) || OFF.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let counts = counts::latest().as_word();
    if FOUND.load(Ordering::Acquire).is_null() && LOOKED.load(Ordering::Relaxed) != counts {
        look();
        LOOKED.store(counts, Ordering::Relaxed);
    }
    // SAFETY: null, or one that was written before its address was, and is never unmapped.
    unsafe { FOUND.load(Ordering::Acquire).as_ref() }
}

/// Whether an interpreter that was found is still there, now that objects came and went.
#[cold]
pub(super) fn is_there(interpreter: &Interpreter) -> bool {
    let mut is_there = false;
    loader::visit(|object| {
        is_there |= object.contains(interpreter.runtime);
        if is_there { Visit::Stop } else { Visit::Next }
    });
    if !is_there {
        switch_off(Off::Unreadable);
    }
    is_there
}

/// The state of the loader as of now, to be compared.
#[inline(always)]
pub(super) fn unloads() -> u32 {
    counts::latest().unloads()
}

fn look() {
    let found = loader::hold(|_: Counts| {
        let mut found = None;
        loader::visit(|object| {
            found = Exports::of(object).and_then(|exports| examine(object, &exports));
            if found.is_some() { Visit::Stop } else { Visit::Next }
        });
        found
    });
    match found.flatten() {
        None => {}
        Some(Err(why)) => switch_off(why),
        Some(Ok(interpreter)) => enter(interpreter),
    }
}

/// Makes an interpreter known, unless another thread was first.
fn enter(interpreter: Interpreter) {
    let Some(place) = memory::map(size_of::<Interpreter>()) else { return };
    let place = place.cast::<Interpreter>();
    // SAFETY: a fresh mapping of that size, on a page boundary.
    unsafe { place.write(interpreter) };
    let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
    if FOUND.compare_exchange(null_mut(), place.as_ptr(), order, otherwise).is_err() {
        // SAFETY: mapped above, and nobody has seen it.
        unsafe { memory::unmap(place.cast(), size_of::<Interpreter>()) };
    }
}

/// What the object with these exports is: `None`: no interpreter. While the loader is held.
fn examine(object: &Object, exports: &Exports<'_>) -> Option<Result<Interpreter, Off>> {
    if exports.find("pypy_main_startup").is_some() {
        return Some(Err(Off::PyPy));
    }
    let runtime = exports.find("_PyRuntime")?;
    Some(read(object, exports, runtime))
}

/// Apart from what looks at each object of a process: it takes stack, of which a thread may have little.
#[cold]
#[inline(never)]
fn read(object: &Object, exports: &Exports<'_>, runtime: Exported) -> Result<Interpreter, Off> {
    let layout = layout(exports, runtime)?;
    let types = || {
        let [code, text, bytes, frame] =
            ["PyCode_Type", "PyUnicode_Type", "PyBytes_Type", "PyFrame_Type"].map(first_of_all);
        Some(Types { code: code?, text: text?, bytes: bytes?, frame: frame? })
    };
    let this_thread = exports.find("PyGILState_GetThisThreadState").ok_or(Off::Exports)?.address;
    Ok(Interpreter {
        layout,
        runtime: runtime.address,
        // SAFETY: CPython exports under this name a function that takes nothing and returns a pointer.
        this_thread: unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn() -> *mut u8>(this_thread as usize)
        },
        types: types().ok_or(Off::Exports)?,
        evaluator: evaluator(object, exports).ok_or(Off::Exports)?,
    })
}

fn evaluator(object: &Object, exports: &Exports<'_>) -> Option<[Range<u64>; 2]> {
    let Exported { address, bytes } = exports.find("_PyEval_EvalFrameDefault")?;
    let hot = address..address + bytes;
    #[cfg(target_arch = "x86_64")]
    let cold = cold_part(object, &hot);
    #[cfg(not(target_arch = "x86_64"))]
    let cold = {
        let _ = object;
        None
    };
    Some([hot, cold.unwrap_or(0..0)])
}

/// Where the program and its libraries find what has this name: a program that is not position-independent has copies of
/// its libraries' variables.
fn first_of_all(name: &str) -> Option<u64> {
    let mut found = None;
    loader::visit(|object| {
        found = Exports::of(object).and_then(|exports| exports.find(name)).map(|it| it.address);
        if found.is_some() { Visit::Stop } else { Visit::Next }
    });
    found
}

fn layout(exports: &Exports<'_>, runtime: Exported) -> Result<Layout, Off> {
    let version = version(exports).ok_or(Off::Exports)?;
    let mut table = [0; TABLE_BYTES];
    let told = (runtime.bytes as usize).min(TABLE_BYTES);
    // SAFETY: the object says that its variable is so long, and the loader is held.
    unsafe { std::ptr::copy_nonoverlapping(runtime.address as *const u8, table.as_mut_ptr(), told) };
    Layout::of(version, &table).map_err(|why| match why {
        Unknown::Version => Off::Version((version >> 16) as u16),
        Unknown::FreeThreaded => Off::FreeThreaded,
        Unknown::Table => Off::Table,
    })
}

/// The version's number, as in `0x030b07f0`. A variable since 3.11; before that it is read off the text.
fn version(exports: &Exports<'_>) -> Option<u64> {
    if let Some(version) = exports.find("Py_Version").filter(|version| version.bytes == 8) {
        // SAFETY: an exported variable of eight bytes, and the loader is held.
        return Some(unsafe { memory::word(version.address) });
    }
    let text = exports.find("Py_GetVersion")?.address;
    // SAFETY: CPython exports under this name a function that takes nothing and returns a static C string; it needs no
    // lock of Python's.
    let text = unsafe {
        let text =
            std::mem::transmute::<usize, unsafe extern "C" fn() -> *const std::ffi::c_char>(text as usize)();
        CStr::from_ptr(text)
    };
    parsed(text.to_str().ok()?)
}

/// `3.9.18 (main, ...)`, as far as the minor version.
fn parsed(text: &str) -> Option<u64> {
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u64>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (major < 256 && minor < 256).then_some(major << 24 | minor << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_off_its_text() {
        assert_eq!(parsed("3.9.18 (main, Oct 11 2023) \n[GCC 12.2.0]"), Some(0x0309_0000));
        assert_eq!(parsed("3.10.0rc1+ (heads/3.10)"), Some(0x030a_0000));
        assert_eq!((parsed("three"), parsed("3"), parsed("3.999.0")), (None, None, None));
    }

    #[test]
    fn every_reason_has_a_word_and_is_read_back_from_it() {
        let all = [
            Off::Version(0x030e),
            Off::FreeThreaded,
            Off::Table,
            Off::Exports,
            Off::PyPy,
            Off::Unreadable,
            Off::Mismatch,
        ];
        for off in all {
            assert_eq!(Off::from_word(off.to_word()), Some(off));
        }
        assert_eq!(Off::from_word(0), None);
        assert_eq!(Off::Version(0x030e).to_string(), "the layout of CPython 3.14 is not known");
    }

    #[test]
    fn a_process_without_python_has_no_interpreter() {
        want(true);
        assert!(interpreter().is_none() && off().is_none());
    }
}
