//! Finds the Python interpreter of this process, if a program or library exports `_PyRuntime`.
//!
//! The search runs when a thread captures a stack that is not in its cache, and objects were loaded since the last
//! search. Therefore the search costs nothing for cached stacks, and a program that embeds Python may load Python at
//! any time. Once an interpreter is found, the search never runs again, even if the interpreter's frames cannot be
//! read.
//!
//! While another thread is in `dlopen`, the loader may list a library that is not relocated yet. A call to a function
//! of a library that is not relocated yet could jump to any address. The search therefore skips an interpreter that is
//! not initialized yet. CPython can initialize itself only after its library was relocated, so the search runs again
//! after the initialization.

use std::ffi::CStr;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::layout::{Layout, TABLE_BYTES, ThreadList, UnknownLayout};
use crate::loader::{self, Object, Visit};
use crate::loader_state::{self, LoaderState};
use crate::memory;
use crate::symbols::{ExportedSymbol, Exports};
#[cfg(target_arch = "x86_64")]
use crate::x86_64::cold::cold_part;

/// An interpreter whose frames can be read. A published value of this type is never freed.
#[derive(Debug)]
pub(super) struct Interpreter {
    pub(super) layout: Layout,
    /// Address of `_PyRuntime`.
    pub(super) runtime: u64,
    /// Size of `_PyRuntime` in bytes.
    pub(super) runtime_bytes: u64,
    /// Offsets for finding the states of other threads. `None` if these offsets are not known for this version of
    /// CPython.
    pub(super) thread_list: Option<ThreadList>,
    /// `PyGILState_GetThisThreadState`, which returns the state of the calling thread, or null. The function reads
    /// thread-local storage, so its result is correct no matter which thread holds the GIL.
    pub(super) this_thread: unsafe extern "C" fn() -> *mut u8,
    /// Addresses of the type objects of code objects, strings and bytes. For CPython versions in which frames are
    /// objects, this field also contains the address of the type object of frames.
    pub(super) types: Types,
    /// Address ranges of `_PyEval_EvalFrameDefault` (the evaluator) and of its cold part. The cold part is empty in
    /// most builds. In profile-guided builds, such as Debian's and conda's, the cold part makes up a fifth of the
    /// function.
    pub(super) evaluator: [Range<u64>; 2],
}

/// Addresses of type objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Types {
    pub(super) code: u64,
    pub(super) text: u64,
    pub(super) bytes: u64,
    pub(super) frame: u64,
}

/// The reason why stacks have no Python frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffReason {
    /// A CPython version whose layout this module does not know, such as `0x0310`.
    Version(u16),
    /// CPython without its global lock (GIL).
    FreeThreaded,
    /// The table in which the interpreter publishes its layout does not match its version.
    Table,
    /// The interpreter does not export the symbols that this module requires.
    Exports,
    /// PyPy, whose frames only PyPy itself can find.
    PyPy,
    /// The memory that should contain a thread's frames did not contain valid frames.
    Unreadable,
    /// The Python frames of the first captured stack did not match its native frames.
    Mismatch,
}

impl OffReason {
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

impl std::fmt::Display for OffReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(version) => {
                write!(f, "CPython {}.{} is not supported (unknown layout)", version >> 8, version & 0xff)
            }
            Self::FreeThreaded => f.write_str("CPython without the GIL is not supported (unknown layout)"),
            Self::Table => f.write_str("CPython's table of its own layout does not match its version"),
            Self::Exports => {
                f.write_str("this CPython does not export the symbols needed to find its frames")
            }
            Self::PyPy => f.write_str("PyPy is not supported; only CPython's frames can be read"),
            Self::Unreadable => f.write_str("a thread's memory did not contain valid Python frames"),
            Self::Mismatch => f.write_str("the Python frames did not match the native frames"),
        }
    }
}

/// Whether Python frames are requested.
static IS_ENABLED: AtomicBool = AtomicBool::new(false);
/// The interpreter of this process; null if none was found yet.
static INTERPRETER: AtomicPtr<Interpreter> = AtomicPtr::new(null_mut());
/// Reason why Python frames are off, encoded by `to_word`, or 0 if Python frames are on.
static OFF_REASON: AtomicU32 = AtomicU32::new(0);
/// The loader's state at the last search for an interpreter, as a word.
static LAST_SEARCH: AtomicU64 = AtomicU64::new(u64::MAX);
/// Address of the flags of a type object. The type belongs to the interpreter that the last search skipped because that
/// interpreter was not initialized. The address is 0 if no interpreter was skipped. This variable is read and written
/// only while the loader's lock is held.
static UNINITIALIZED: AtomicU64 = AtomicU64::new(0);

/// Offsets of `tp_basicsize` and `tp_flags` in a type object. In builds with the GIL, these offsets have not changed
/// since CPython 3.0. In builds without the GIL, each object begins with 16 more bytes, and the word at offset
/// `TYPE_SIZE` is 0.
const TYPE_SIZE: u64 = 32;
const TYPE_FLAGS: u64 = 168;
/// The flag `Py_TPFLAGS_READY`, which CPython sets in its own types when it initializes itself.
const TYPE_IS_READY: u64 = 1 << 12;

/// Sets whether walks record Python frames after this call.
pub(super) fn set_enabled(enabled: bool) {
    IS_ENABLED.store(enabled, Ordering::Relaxed);
}

/// Returns the reason why Python frames are off, or `None` if Python frames are on.
pub(super) fn off_reason() -> Option<OffReason> {
    OffReason::from_word(OFF_REASON.load(Ordering::Relaxed))
}

/// Whether Python frames are off, for any reason.
#[inline(always)]
pub(super) fn is_off() -> bool {
    OFF_REASON.load(Ordering::Relaxed) != 0
}

/// Stops recording Python frames in this process, permanently. `why` is the reason.
#[cold]
pub(super) fn turn_off(why: OffReason) {
    let _ = OFF_REASON.compare_exchange(0, why.to_word(), Ordering::AcqRel, Ordering::Relaxed);
}

/// Returns the interpreter of this process, if there is an interpreter and its frames can be read. Searches for an
/// interpreter only if, since the last search, objects were loaded or unloaded, or an interpreter was initialized. Safe
/// inside a callback.
#[cold]
pub(super) fn interpreter() -> Option<&'static Interpreter> {
    if !IS_ENABLED.load(Ordering::Relaxed) || OFF_REASON.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let state = loader_state::latest().as_word();
    if INTERPRETER.load(Ordering::Acquire).is_null()
        && (LAST_SEARCH.load(Ordering::Relaxed) != state || was_initialized_since())
    {
        search();
        LAST_SEARCH.store(state, Ordering::Relaxed);
    }
    // SAFETY: the pointer is null, or points to an interpreter that was written before its address was published, and
    // that is never unmapped.
    unsafe { INTERPRETER.load(Ordering::Acquire).as_ref() }
}

/// Whether the interpreter that the last search skipped may have been initialized since that search.
fn was_initialized_since() -> bool {
    UNINITIALIZED.load(Ordering::Relaxed) != 0
        && loader::with_lock(|state| {
            // The stored address is valid as long as the loader is in the state of the last search.
            let flags = UNINITIALIZED.load(Ordering::Relaxed);
            state.as_word() != LAST_SEARCH.load(Ordering::Relaxed) || (flags != 0 && is_ready(flags))
        })
        .unwrap_or(false)
}

/// Whether the type whose flags are at the address `flags` is ready. Call this function while the loader's lock is
/// held.
fn is_ready(flags: u64) -> bool {
    // SAFETY: the flags are in an exported variable of an object. The object stays loaded while the loader's lock is
    // held.
    let flags = unsafe { memory::word(flags) };
    flags & TYPE_IS_READY != 0
}

/// Whether the interpreter in this process was initialized, so that its functions can be called. Call this function
/// while the loader's lock is held.
pub(crate) fn is_initialized() -> bool {
    resolve_symbol("PyCode_Type").and_then(type_flags).is_some_and(is_ready)
}

/// Returns the address of the type's flags. Call this function while the loader's lock is held.
fn type_flags(type_object: ExportedSymbol) -> Option<u64> {
    let ExportedSymbol { address, bytes } = type_object;
    if bytes < TYPE_FLAGS + 24 {
        return None;
    }
    // SAFETY: this address is in an exported variable of an object. The object stays loaded while the loader's lock is
    // held.
    let size = unsafe { memory::word(address + TYPE_SIZE) };
    Some(address + TYPE_FLAGS + if size == 0 { 16 } else { 0 })
}

/// Whether the interpreter is still loaded. Turns Python frames off if the interpreter is not loaded any more. Call
/// this function after objects were unloaded.
#[cold]
pub(super) fn is_loaded(interpreter: &Interpreter) -> bool {
    let mut is_loaded = false;
    loader::visit(|object| {
        is_loaded |= object.contains(interpreter.runtime);
        if is_loaded { Visit::Stop } else { Visit::Next }
    });
    if !is_loaded {
        turn_off(OffReason::Unreadable);
    }
    is_loaded
}

/// Returns the loader's present unload count.
#[inline(always)]
pub(super) fn unloads() -> u32 {
    loader_state::latest().unloads()
}

fn search() {
    let found = loader::with_lock(|_: LoaderState| {
        UNINITIALIZED.store(0, Ordering::Relaxed);
        let mut found = None;
        loader::visit(|object| {
            found = Exports::read(object).and_then(|exports| examine(object, &exports));
            if found.is_some() { Visit::Stop } else { Visit::Next }
        });
        found
    });
    match found.flatten() {
        None | Some(Ok(None)) => {}
        Some(Err(why)) => turn_off(why),
        Some(Ok(Some(interpreter))) => publish(interpreter),
    }
}

/// Publishes an interpreter, unless another thread has already published one.
fn publish(interpreter: Interpreter) {
    let Some(place) = memory::map(size_of::<Interpreter>()) else { return };
    let place = place.cast::<Interpreter>();
    // SAFETY: `place` is a fresh, page-aligned mapping with room for an interpreter.
    unsafe { place.write(interpreter) };
    let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
    if INTERPRETER.compare_exchange(null_mut(), place.as_ptr(), order, otherwise).is_err() {
        // SAFETY: the memory was mapped above, and its address was not published.
        unsafe { memory::unmap(place.cast(), size_of::<Interpreter>()) };
    }
}

/// Looks for an interpreter in the object with these exports. Returns `None` if the object contains no interpreter,
/// `Ok(None)` if its interpreter is not initialized yet, and an error if the interpreter's frames cannot be read. Call
/// this function while the loader's lock is held.
fn examine(object: &Object, exports: &Exports<'_>) -> Option<Result<Option<Interpreter>, OffReason>> {
    if exports.find("pypy_main_startup").is_some() {
        return Some(Err(OffReason::PyPy));
    }
    let runtime = exports.find("_PyRuntime")?;
    Some(read_interpreter(object, exports, runtime))
}

/// Reads the layout and the addresses of an interpreter. This function is not inlined into the loop over all objects,
/// because it needs much stack space, and a thread's stack may be small.
#[cold]
#[inline(never)]
fn read_interpreter(
    object: &Object,
    exports: &Exports<'_>,
    runtime: ExportedSymbol,
) -> Result<Option<Interpreter>, OffReason> {
    let address = |name| resolve_symbol(name).map(|symbol| symbol.address).ok_or(OffReason::Exports);
    let types = Types {
        code: address("PyCode_Type")?,
        text: address("PyUnicode_Type")?,
        bytes: address("PyBytes_Type")?,
        frame: address("PyFrame_Type")?,
    };
    let flags = resolve_symbol("PyCode_Type").and_then(type_flags).ok_or(OffReason::Exports)?;
    if !is_ready(flags) {
        UNINITIALIZED.store(flags, Ordering::Relaxed);
        return Ok(None);
    }
    let (layout, thread_list) = layout(version(exports).ok_or(OffReason::Exports)?, runtime)?;
    let this_thread = exports.find("PyGILState_GetThisThreadState").ok_or(OffReason::Exports)?.address;
    Ok(Some(Interpreter {
        layout,
        runtime: runtime.address,
        runtime_bytes: runtime.bytes,
        thread_list,
        // SAFETY: the function that CPython exports under this name takes no argument and returns a pointer.
        this_thread: unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn() -> *mut u8>(this_thread as usize)
        },
        types,
        evaluator: evaluator(object, exports).ok_or(OffReason::Exports)?,
    }))
}

fn evaluator(object: &Object, exports: &Exports<'_>) -> Option<[Range<u64>; 2]> {
    let ExportedSymbol { address, bytes } = exports.find("_PyEval_EvalFrameDefault")?;
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

/// Returns the symbol to which the program and its libraries resolve the name. The symbol's address may differ from its
/// address in the library that defines it. The reason is that a program that is not position-independent has its own
/// copies of libraries' variables.
fn resolve_symbol(name: &str) -> Option<ExportedSymbol> {
    let mut found = None;
    loader::visit(|object| {
        found = Exports::read(object).and_then(|exports| exports.find(name));
        if found.is_some() { Visit::Stop } else { Visit::Next }
    });
    found
}

fn layout(version: u64, runtime: ExportedSymbol) -> Result<(Layout, Option<ThreadList>), OffReason> {
    let mut table = [0; TABLE_BYTES];
    let told = (runtime.bytes as usize).min(TABLE_BYTES);
    // SAFETY: according to the object's symbol table, the variable has at least `told` bytes, and the loader's lock is
    // held.
    unsafe { std::ptr::copy_nonoverlapping(runtime.address as *const u8, table.as_mut_ptr(), told) };
    let layout = Layout::for_version(version, &table).map_err(|why| match why {
        UnknownLayout::Version => OffReason::Version((version >> 16) as u16),
        UnknownLayout::FreeThreaded => OffReason::FreeThreaded,
        UnknownLayout::Table => OffReason::Table,
    })?;
    Ok((layout, ThreadList::for_version(version, &table)))
}

/// Returns CPython's version number, such as `0x030b07f0`. Since 3.11, CPython exports its version number as a
/// variable. Before 3.11, the version number is parsed from the version string. The interpreter must be initialized.
fn version(exports: &Exports<'_>) -> Option<u64> {
    if let Some(version) = exports.find("Py_Version").filter(|version| version.bytes == 8) {
        // SAFETY: this is an exported variable of eight bytes, and the loader's lock is held.
        return Some(unsafe { memory::word(version.address) });
    }
    let text = exports.find("Py_GetVersion")?.address;
    // SAFETY: the function that CPython exports under this name takes no argument, returns a static C string, and
    // needs none of Python's locks. The function's library was relocated, because the interpreter is initialized.
    let text = unsafe {
        let text =
            std::mem::transmute::<usize, unsafe extern "C" fn() -> *const std::ffi::c_char>(text as usize)();
        CStr::from_ptr(text)
    };
    parsed(text.to_str().ok()?)
}

/// Parses the major and minor version from a version string like `3.9.18 (main, ...)`.
fn parsed(text: &str) -> Option<u64> {
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u64>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (major < 256 && minor < 256).then_some(major << 24 | minor << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_version_is_parsed() {
        assert_eq!(parsed("3.9.18 (main, Oct 11 2023) \n[GCC 12.2.0]"), Some(0x0309_0000));
        assert_eq!(parsed("3.10.0rc1+ (heads/3.10)"), Some(0x030a_0000));
        assert_eq!((parsed("three"), parsed("3"), parsed("3.999.0")), (None, None, None));
    }

    #[test]
    fn every_off_reason_survives_packing_into_a_word() {
        let all = [
            OffReason::Version(0x030e),
            OffReason::FreeThreaded,
            OffReason::Table,
            OffReason::Exports,
            OffReason::PyPy,
            OffReason::Unreadable,
            OffReason::Mismatch,
        ];
        for off in all {
            assert_eq!(OffReason::from_word(off.to_word()), Some(off));
        }
        assert_eq!(OffReason::from_word(0), None);
        assert_eq!(OffReason::Version(0x030e).to_string(), "CPython 3.14 is not supported (unknown layout)");
    }

    #[test]
    fn a_process_without_python_has_no_interpreter() {
        set_enabled(true);
        assert!(interpreter().is_none() && off_reason().is_none());
    }
}
