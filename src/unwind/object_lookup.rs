//! Finds the loaded object that contains an address. Callbacks may use this module, even while another thread is in
//! `dlopen`.
//!
//! `_dl_find_object` (glibc 2.35 and newer) may be called inside a callback. `dladdr`, `dlsym` and `dlopen` must not be
//! called inside a callback, because they wait for the loader's main lock. Therefore [`prepare`] looks up
//! `_dl_find_object` when this library is loaded. If the C library does not have this function, a copy of the loader's
//! list replaces it (see `object_list`). `_dl_find_object` takes no lock and may return an object that is just being
//! unmapped. Therefore `_dl_find_object` is called, and its result is used, only while the loader's lock is held.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::loader::{self, Object};
use super::loader_state::LoaderState;
use super::object_list::{self, MustAskLoader};

type FindObject = unsafe extern "C" fn(*mut c_void, *mut FoundObject) -> c_int;

/// `struct dl_find_object` from glibc's `<dlfcn.h>`. On 64-bit machines, `struct dl_find_object` has no extra fields.
#[repr(C)]
struct FoundObject {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *const LinkMap,
    eh_frame_hdr: *mut c_void,
    reserved: [u64; 7],
}

/// The public fields at the start of `struct link_map` from `<link.h>`.
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const c_char,
}

/// Address of `_dl_find_object`, or null if libc does not have this function.
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Whether this process acts as if the C library did not have `_dl_find_object`. Tests set this flag to run as if the C
/// library did not have `_dl_find_object`.
static IS_DISABLED: AtomicBool = AtomicBool::new(false);

/// Makes this process behave as with a glibc before 2.35 until it ends.
pub(crate) fn disable_find_object() {
    IS_DISABLED.store(true, Ordering::Relaxed);
    FIND_OBJECT.store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// Looks up symbols that cannot be looked up inside a callback. Call this function when the library is loaded.
pub(crate) fn prepare() {
    // SAFETY: the name is a C string; dlsym has no other requirement.
    let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    if !IS_DISABLED.load(Ordering::Relaxed) {
        FIND_OBJECT.store(find, Ordering::Relaxed);
    }
}

/// Finds the loaded object that contains `address` and calls `look` with the object, which cannot be unloaded while
/// `look` runs. Returns the loader's state, and the result of `look` if an object contains `address`. Returns `None` if
/// the loader's lock could not be taken. Safe inside a callback.
pub(crate) fn with_object_at<T>(
    address: u64,
    look: impl FnOnce(&Object, LoaderState) -> T,
) -> Option<(LoaderState, Option<T>)> {
    loader::with_lock(|state| (state, object_at(address, state).map(|object| look(&object, state))))
}

/// Returns the object that contains `address` in the loader's present state, or `None` if no object contains it. Call
/// this function while the loader's lock is held.
fn object_at(address: u64, state: LoaderState) -> Option<Object> {
    let find = FIND_OBJECT.load(Ordering::Relaxed);
    let found = if find.is_null() {
        object_list::find_object(address, state)
    } else {
        call_find_object(find, address)
    };
    found.unwrap_or_else(|MustAskLoader| Object::find_listed(address))
}

/// Asks `_dl_find_object` for the object that contains `address`. If `_dl_find_object` finds no object, the loader's
/// list may still contain an object at this address. While an object is being loaded, its resolvers already run
/// although `_dl_find_object` does not find the object yet.
fn call_find_object(find: *mut c_void, address: u64) -> Result<Option<Object>, MustAskLoader> {
    // SAFETY: `find` is the address of glibc's `_dl_find_object`, which has this type.
    let find = unsafe { std::mem::transmute::<*mut c_void, FindObject>(find) };
    let mut found = std::mem::MaybeUninit::<FoundObject>::uninit();
    // SAFETY: `found` has the size and alignment of glibc's struct, and the function accepts any address.
    if unsafe { find(address as *mut c_void, found.as_mut_ptr()) } != 0 {
        return Err(MustAskLoader);
    }
    // SAFETY: on success, `_dl_find_object` has written the whole struct.
    let found = unsafe { found.assume_init() };
    // SAFETY: the link map of a loaded object is valid until the object is unloaded, and the loader's lock is held.
    let link_map = unsafe { &*found.link_map };
    // SAFETY: the loader has just returned all of these values for one object.
    let object = unsafe { Object::mapped(found.map_start as u64, link_map.bias, link_map.name) };
    object.filter(|object| object.contains(address)).map(Some).ok_or(MustAskLoader)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> u64 {
        here as fn() -> u64 as usize as u64
    }

    #[test]
    fn both_lookups_find_the_same_object() {
        prepare();
        let place = |object: &Object| {
            (object.start, object.end, object.bias, object.eh_frame_hdr().map(<[u8]>::as_ptr))
        };
        let found = with_object_at(here(), |object, _| place(object)).expect("there is a loader").1;
        let found = found.expect("the test is loaded");
        let listed =
            loader::with_lock(|_| Object::find_listed(here()).map(|object| place(&object))).flatten();
        assert_eq!(Some(found), listed);
        assert!((found.0..found.1).contains(&here()));
        assert_eq!(with_object_at(4096, |_, _| ()).expect("there is a loader").1, None);
    }
}
