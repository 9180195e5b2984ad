//! Which object an address belongs to, asked from inside a callback, perhaps while another thread sits in a
//! `dlopen`.
//!
//! `_dl_find_object` (glibc 2.35 and newer) may be called there; `dladdr`, `dlsym` and `dlopen` may not: they
//! wait for the loader's big lock. So it is looked up by [`prepare`], at load time, and where it is missing a
//! copy of the loader's list does its work (see `objects`).

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::loader::Object;
use super::objects::{self, Unsure};

type FindObject = unsafe extern "C" fn(*mut c_void, *mut FoundObject) -> c_int;

/// `struct dl_find_object` of glibc's `<dlfcn.h>` on 64-bit machines without extra fields.
#[repr(C)]
struct FoundObject {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *const LinkMap,
    eh_frame_hdr: *mut c_void,
    reserved: [u64; 7],
}

/// The public start of `struct link_map` of `<link.h>`.
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const c_char,
}

/// `_dl_find_object`, or null where libc has none.
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Set by a test that is to run as if it were not there.
static IS_WITHOUT: AtomicBool = AtomicBool::new(false);

/// From now on as with a glibc before 2.35.
pub(crate) fn do_without_find_object() {
    IS_WITHOUT.store(true, Ordering::Relaxed);
    FIND_OBJECT.store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// Looks up what may not be looked up inside a callback. Call it when the library is loaded.
pub(crate) fn prepare() {
    // SAFETY: the name is a C string; dlsym has no other requirement.
    let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    if !IS_WITHOUT.load(Ordering::Relaxed) {
        FIND_OBJECT.store(find, Ordering::Relaxed);
    }
}

/// The object that holds `address`, if any. Safe inside a callback.
pub(crate) fn object_at(address: u64) -> Option<Object> {
    let find = FIND_OBJECT.load(Ordering::Relaxed);
    if !find.is_null() {
        return by_call(find, address);
    }
    objects::holding(address).unwrap_or_else(|Unsure| by_visit(address))
}

fn by_call(find: *mut c_void, address: u64) -> Option<Object> {
    // SAFETY: `find` is glibc's `_dl_find_object`, which has this type.
    let find = unsafe { std::mem::transmute::<*mut c_void, FindObject>(find) };
    let mut found = std::mem::MaybeUninit::<FoundObject>::uninit();
    // SAFETY: `found` has the size and alignment of glibc's struct; any address may be asked for.
    if unsafe { find(address as *mut c_void, found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: on success the whole struct is written.
    let found = unsafe { found.assume_init() };
    // SAFETY: the link map of a loaded object stays valid until it is unloaded.
    let link_map = unsafe { &*found.link_map };
    let mapped = found.map_start as u64..found.map_end as u64;
    // SAFETY: the loader just told all of this of one object.
    unsafe { Object::mapped(mapped, link_map.bias, link_map.name) }.or_else(|| by_visit(address))
}

fn by_visit(address: u64) -> Option<Object> {
    Object::visiting(address, |object| *object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> u64 {
        here as fn() -> u64 as usize as u64
    }

    #[test]
    fn both_ways_to_find_an_object_agree() {
        prepare();
        let visited = by_visit(here()).expect("the test is loaded");
        let found = object_at(here()).expect("the test is loaded");
        assert_eq!((visited.start, visited.bias), (found.start, found.bias));
        assert!(found.contains(here()) && !found.contains(found.end));
        assert_eq!(visited.eh_frame_hdr().map(<[u8]>::as_ptr), found.eh_frame_hdr().map(<[u8]>::as_ptr));
    }
}
