//! The NVTX injection interface, through which gpuflame replaces functions of the application's NVTX with its own
//! functions.
//!
//! NVTX is a header-only library, so every library that uses NVTX contains its own copy of NVTX, with its own table of
//! function pointers. On the first call to a copy of NVTX, this copy loads the library that `NVTX_INJECTION64_PATH`
//! names. This copy of NVTX then gives the loaded library access to its table. In this table, gpuflame replaces the
//! pointers to functions that open, close and name ranges. NVTX marks, categories, payloads and colours are ignored.
//!
//! The struct layouts come from NVTX 3's `nvtxTypes.h` and `nvToolsExt.h`. The layouts of these NVTX structs are the
//! same in all versions since 3.0.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use super::push_pop::{PopResult, create_domain, end_range, pop_range, push_range, register, start_range};
use crate::capture::ids::range_names::{RangeDomain, RangeName};
use gpuflame_cupti::tracer::errno;
use gpuflame_model::record::RangeId;

/// Type of the NVTX function that returns one of NVTX's tables. The argument is the index of the table.
type GetExportTable = extern "C" fn(u32) -> *const c_void;

/// Access to the function table of one copy of NVTX. The application and each of its libraries may contain a copy of
/// NVTX.
#[derive(Clone, Copy, Debug)]
pub struct NvtxTable(GetExportTable);

/// NVTX's struct `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    module_table: Option<extern "C" fn(u32, *mut *mut *mut NvtxFunction, *mut u32) -> c_int>,
}

/// Pointer to an NVTX function. The type of the function depends on the function's index in the table.
type NvtxFunction = *const c_void;

/// Index of the table [`Callbacks`].
const CALLBACKS: u32 = 1;
/// Ids of two NVTX modules: the functions without a domain (`CORE`) and the functions with a domain (`CORE2`).
const CORE: u32 = 1;
const CORE2: u32 = 5;
/// Return value that NVTX defines for a push or pop if the tool does not count the open ranges.
const NO_TRACKING: c_int = -2;

/// The first fields of NVTX's `nvtxEventAttributes_t`, up to the last field that gpuflame reads.
#[repr(C)]
struct NvtxAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

const _: () = assert!(size_of::<NvtxAttributes>() == 48 && offset_of!(NvtxAttributes, message) == 40);

/// Types of messages that NVTX defines.
const ASCII: i32 = 1;
const UNICODE: i32 = 2;
const REGISTERED: i32 = 3;

impl NvtxTable {
    /// Wraps the function that NVTX passes to an injection library and that returns NVTX's tables.
    ///
    /// # Safety
    /// `table` must be the argument of `InitializeInjectionNvtx2`.
    pub unsafe fn new(table: extern "C" fn(u32) -> *const c_void) -> Self {
        Self(table)
    }

    /// Installs gpuflame's functions in NVTX's table. NVTX waits for this function to return. Returns `false` if NVTX
    /// does not have the tables that gpuflame expects, for example because the version of NVTX is unknown.
    pub fn attach(self) -> bool {
        replace(self.0)
    }
}

fn replace(table: GetExportTable) -> bool {
    // SAFETY: for this index, NVTX returns null or a `Callbacks` that lives as long as the library with this copy of
    // NVTX.
    let Some(callbacks) = (unsafe { table(CALLBACKS).cast::<Callbacks>().as_ref() }) else { return false };
    let Some(module_table) = callbacks.module_table else { return false };
    if callbacks.struct_size < size_of::<Callbacks>() {
        return false;
    }
    let core = [
        (4, start_ex as *const c_void),
        (5, start_text::<Narrow> as *const c_void),
        (6, start_text::<Wide> as *const c_void),
        (7, end as *const c_void),
        (8, push_ex as *const c_void),
        (9, push_text::<Narrow> as *const c_void),
        (10, push_text::<Wide> as *const c_void),
        (11, pop as *const c_void),
    ];
    let domains = [
        (2, domain_start_ex as *const c_void),
        (3, domain_end as *const c_void),
        (4, domain_push_ex as *const c_void),
        (5, domain_pop as *const c_void),
        (10, register_text::<Narrow> as *const c_void),
        (11, register_text::<Wide> as *const c_void),
        (12, domain_create::<Narrow> as *const c_void),
        (13, domain_create::<Wide> as *const c_void),
    ];
    let mut replaced = true;
    for (module, functions) in [(CORE, core), (CORE2, domains)] {
        let (mut slots, mut count) = (std::ptr::null_mut(), 0);
        if module_table(module, &mut slots, &mut count) == 0 || slots.is_null() {
            replaced = false;
            continue;
        }
        for (number, function) in functions.into_iter().filter(|(number, _)| *number < count as usize) {
            // SAFETY: the table has `count` entries, and each entry is null or the address of a function pointer.
            if let Some(slot) = unsafe { (*slots.add(number)).as_mut() } {
                *slot = function;
            }
        }
    }
    replaced
}

/// Returns the range name that is in NVTX's attributes.
///
/// # Safety
/// The message in the attributes must have the type that `message_type` states.
unsafe fn name_of<'a>(attributes: Option<&'a NvtxAttributes>) -> RangeName<'a> {
    let Some(attributes) = attributes.filter(|known| usize::from(known.size) >= size_of::<NvtxAttributes>())
    else {
        return RangeName::Text(b"");
    };
    // SAFETY: the caller guarantees that the message has the type in `message_type`.
    unsafe {
        match attributes.message_type {
            ASCII => attributes.message.cast::<c_char>().name(),
            UNICODE => attributes.message.cast::<u32>().name(),
            REGISTERED => RangeName::Registered(RangeId(attributes.message.addr() as u32)),
            _ => RangeName::Text(b""),
        }
    }
}

/// Maximum length of a range name in characters. A longer range name is truncated.
const MAX_NAME_CHARS: usize = 512;

/// A string in one of the types in which NVTX passes strings.
trait NvtxText {
    /// Converts the string to a range name.
    ///
    /// # Safety
    /// The string must be null or end in a 0, and must live for `'a`.
    unsafe fn name<'a>(self) -> RangeName<'a>;
}

/// A C string of bytes.
type Narrow = *const c_char;
/// A string of `wchar_t`, which has 32 bits on Linux.
type Wide = *const u32;

impl NvtxText for Narrow {
    unsafe fn name<'a>(self) -> RangeName<'a> {
        if self.is_null() {
            return RangeName::Text(b"");
        }
        // SAFETY: the slice ends at the string's terminating NUL or before it.
        RangeName::Text(unsafe {
            std::slice::from_raw_parts(self.cast(), libc::strnlen(self, MAX_NAME_CHARS))
        })
    }
}

impl NvtxText for Wide {
    unsafe fn name<'a>(self) -> RangeName<'a> {
        if self.is_null() {
            return RangeName::Text(b"");
        }
        // SAFETY: the loop reads no word after the terminating 0.
        let length = (0..MAX_NAME_CHARS).take_while(|at| unsafe { *self.add(*at) } != 0).count();
        // SAFETY: the loop above has already read these `length` characters.
        RangeName::Wide(unsafe { std::slice::from_raw_parts(self, length) })
    }
}

/// Runs `body` for a call from NVTX, and preserves errno. A panic in `body` is a bug in gpuflame and must not reach the
/// application. After such a panic, gpuflame is switched off, and this function returns `otherwise`.
fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    errno::preserve(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))).unwrap_or_else(|_| {
        crate::control::lifecycle::end();
        otherwise
    })
}

fn push(domain: RangeDomain, name: RangeName<'_>) -> c_int {
    guarded(NO_TRACKING, || push_range(domain, name).map_or(NO_TRACKING, |around| around as c_int))
}

fn pop_from(domain: RangeDomain) -> c_int {
    guarded(NO_TRACKING, || match pop_range(domain) {
        PopResult::Closed(left) => left as c_int,
        PopResult::NoneOpen | PopResult::InHandler => NO_TRACKING,
    })
}

fn start(domain: RangeDomain, name: RangeName<'_>) -> u64 {
    guarded(0, || start_range(domain, name))
}

/// Returns the domain that an NVTX handle identifies. The handle contains the domain's id, so a null handle identifies
/// the default domain.
fn domain_of_handle(handle: *const c_void) -> RangeDomain {
    RangeDomain::from_number(handle.addr() as u32)
}

fn handle_of(number: u32) -> *const c_void {
    std::ptr::without_provenance(number as usize)
}

extern "C" fn start_ex(attributes: *const NvtxAttributes) -> u64 {
    domain_start_ex(handle_of(0), attributes)
}

extern "C" fn start_text<T: NvtxText>(message: T) -> u64 {
    // SAFETY: NVTX passes the application's string, which is null or ends in a 0.
    start(RangeDomain::DEFAULT, unsafe { message.name() })
}

extern "C" fn end(id: u64) {
    guarded((), || end_range(id));
}

extern "C" fn push_ex(attributes: *const NvtxAttributes) -> c_int {
    domain_push_ex(handle_of(0), attributes)
}

extern "C" fn push_text<T: NvtxText>(message: T) -> c_int {
    // SAFETY: as in `start_text`, the string is null or ends in a 0.
    push(RangeDomain::DEFAULT, unsafe { message.name() })
}

extern "C" fn pop() -> c_int {
    pop_from(RangeDomain::DEFAULT)
}

extern "C" fn domain_start_ex(domain: *const c_void, attributes: *const NvtxAttributes) -> u64 {
    // SAFETY: NVTX passes the application's attributes, or null.
    start(domain_of_handle(domain), unsafe { name_of(attributes.as_ref()) })
}

extern "C" fn domain_end(_domain: *const c_void, id: u64) {
    end(id);
}

extern "C" fn domain_push_ex(domain: *const c_void, attributes: *const NvtxAttributes) -> c_int {
    // SAFETY: as in `domain_start_ex`, the attributes are the application's, or null.
    push(domain_of_handle(domain), unsafe { name_of(attributes.as_ref()) })
}

extern "C" fn domain_pop(domain: *const c_void) -> c_int {
    pop_from(domain_of_handle(domain))
}

/// Registers a string. The returned handle contains the id of the string as a range name.
extern "C" fn register_text<T: NvtxText>(domain: *const c_void, message: T) -> *const c_void {
    // SAFETY: as in `start_text`, the string is null or ends in a 0.
    let name = unsafe { message.name() };
    let id = guarded(None, || register(domain_of_handle(domain), name));
    handle_of(id.map_or(0, |id| id.0))
}

extern "C" fn domain_create<T: NvtxText>(message: T) -> *const c_void {
    // SAFETY: as in `start_text`, the string is null or ends in a 0.
    let name = unsafe { message.name() };
    handle_of(guarded(RangeDomain::IGNORED, || create_domain(name)).number())
}
