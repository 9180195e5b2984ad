//! Kernel names: from the pointers in activity records to [`NameId`]s.
//!
//! CUPTI gives every record of a kernel the same pointer, so a name is found by its pointer first. The
//! pointer alone is not enough: after a module is unloaded its address may come back with another
//! name. So the bytes are compared each time, which costs a `memcmp` off the application's threads.

use crate::record::{IdMap, NameId};
use std::collections::HashMap;
use std::ffi::c_char;

/// Names longer than this are cut: a pointer to anything but a name must not make us read for ever.
const LONGEST: usize = 64 * 1024;

/// What a kernel without a name is called.
const UNNAMED: &str = "[unnamed kernel]";

/// All kernel names seen so far, each with an id. Never forgets.
#[derive(Debug, Default)]
pub struct Names {
    by_pointer: IdMap<usize, NameId>,
    by_bytes: HashMap<Box<[u8]>, NameId>,
    bytes: Vec<Box<[u8]>>,
}

/// A name looked up: its id, and its text if this is the first time.
pub(super) struct Interned<'a> {
    pub(super) id: NameId,
    pub(super) new_text: Option<std::borrow::Cow<'a, str>>,
}

impl Names {
    /// A table without names.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many names there are; their ids are `0..len`.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no name has been seen.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The id of the C string at `name`; null and the empty string are one unnamed kernel.
    ///
    /// # Safety
    /// `name` is null, or its bytes up to a NUL, or else 64 KiB of them, can be read now.
    pub(super) unsafe fn intern(&mut self, name: *const c_char) -> Interned<'_> {
        let bytes = if name.is_null() {
            &[]
        } else {
            // SAFETY: strnlen reads up to the first NUL or the limit, which the caller promises.
            let length = unsafe { libc::strnlen(name, LONGEST) };
            // SAFETY: strnlen has just read these bytes.
            unsafe { std::slice::from_raw_parts(name.cast::<u8>(), length) }
        };
        self.intern_bytes(name.addr(), bytes)
    }

    fn intern_bytes(&mut self, pointer: usize, bytes: &[u8]) -> Interned<'_> {
        if let Some(&id) = self.by_pointer.get(&pointer)
            && *self.bytes[id.0 as usize] == *bytes
        {
            return Interned { id, new_text: None };
        }
        if let Some(&id) = self.by_bytes.get(bytes) {
            self.by_pointer.insert(pointer, id);
            return Interned { id, new_text: None };
        }
        let id = NameId(self.bytes.len() as u32);
        self.by_pointer.insert(pointer, id);
        self.by_bytes.insert(bytes.into(), id);
        self.bytes.push(bytes.into());
        Interned { id, new_text: Some(text(&self.bytes[id.0 as usize])) }
    }
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    if bytes.is_empty() { UNNAMED.into() } else { String::from_utf8_lossy(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn intern(names: &mut Names, name: *const c_char) -> (u32, Option<String>) {
        // SAFETY: the tests pass null and C strings only.
        let interned = unsafe { names.intern(name) };
        (interned.id.0, interned.new_text.map(|text| text.into_owned()))
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_name_is_new_once_by_pointer_and_by_content() {
        let mut names = Names::new();
        let (one, same) = (c"_Z4gemmv".to_owned(), c"_Z4gemmv".to_owned());
        assert_eq!(intern(&mut names, one.as_ptr()), (0, some("_Z4gemmv")));
        assert_eq!(intern(&mut names, one.as_ptr()), (0, None));
        assert_eq!(intern(&mut names, same.as_ptr()), (0, None));
        assert_eq!(intern(&mut names, c"relu".as_ptr()), (1, some("relu")));
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn a_pointer_that_comes_back_with_another_name_is_another_name() {
        let mut names = Names::new();
        let mut place = *b"one\0";
        assert_eq!(intern(&mut names, place.as_ptr().cast()), (0, some("one")));
        place = *b"two\0";
        assert_eq!(intern(&mut names, place.as_ptr().cast()), (1, some("two")));
        place = *b"one\0";
        assert_eq!(intern(&mut names, place.as_ptr().cast()), (0, None));
    }

    #[test]
    fn null_and_empty_names_are_one_unnamed_kernel() {
        let mut names = Names::new();
        assert_eq!(intern(&mut names, std::ptr::null()), (0, some("[unnamed kernel]")));
        assert_eq!(intern(&mut names, c"".as_ptr()), (0, None));
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_made_so_and_stay_distinct() {
        let mut names = Names::new();
        assert_eq!(intern(&mut names, c"bad\xff".as_ptr()), (0, some("bad\u{fffd}")));
        assert_eq!(intern(&mut names, c"bad\xfe".as_ptr()), (1, some("bad\u{fffd}")));
    }

    #[test]
    fn long_names_are_whole_and_endless_ones_are_cut() {
        let mut names = Names::new();
        let long = [vec![b'k'; 4096], vec![0]].concat();
        let (_, text) = intern(&mut names, CStr::from_bytes_with_nul(&long).unwrap().as_ptr());
        assert_eq!(text.unwrap().len(), 4096);
        let endless = vec![b'k'; LONGEST + 10];
        assert_eq!(intern(&mut names, endless.as_ptr().cast()).1.unwrap().len(), LONGEST);
    }
}
