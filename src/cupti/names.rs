//! Interns kernel names, which means that it maps the name pointers in activity records to [`NameId`]s.
//!
//! CUPTI uses the same pointer in all records of a kernel, so a name is first looked up by its pointer. The pointer
//! alone does not identify a name, because after the kernel's module was unloaded, another name may be at the same
//! address. Therefore the bytes of the name are compared each time as well, which costs a `memcmp` on the collector's
//! thread.

use gpuflame_model::record::{IdMap, NameId, map_bytes};
use std::collections::HashMap;
use std::ffi::c_char;

/// Maximum length of a kernel name in bytes. A longer name is truncated. Without this limit, a bad pointer could make
/// us read arbitrarily far.
const MAX_NAME_BYTES: usize = 64 * 1024;

/// Text that is shown for a kernel without a name.
const UNNAMED_KERNEL: &str = "[unnamed kernel]";

/// Table of the kernel names seen so far and their ids, without the names that [`KernelNames::forget`] has removed.
#[derive(Debug, Default)]
pub struct KernelNames {
    /// Indices into `names`, keyed by the address of the name's text.
    by_pointer: IdMap<usize, u32>,
    by_bytes: HashMap<Box<[u8]>, u32>,
    names: Vec<KernelName>,
    /// Indices of entries in `names` that were removed and can be reused. An id is not used again, because a record
    /// with the old id may still be in flight.
    free: Vec<u32>,
    next: u32,
    text_bytes: usize,
}

#[derive(Debug)]
struct KernelName {
    id: NameId,
    bytes: Box<[u8]>,
}

/// Result of interning a kernel name: its id, and its text if the name is new.
pub(super) struct InternedName<'a> {
    pub(super) id: NameId,
    pub(super) new_text: Option<std::borrow::Cow<'a, str>>,
}

impl KernelNames {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of names in the table.
    pub fn len(&self) -> usize {
        self.by_bytes.len()
    }

    /// Whether the table contains no names.
    pub fn is_empty(&self) -> bool {
        self.by_bytes.is_empty()
    }

    /// Removes all names for which `keep` returns false. A removed name that occurs again gets a new id.
    pub fn forget(&mut self, keep: impl Fn(NameId) -> bool) {
        let names = &mut self.names;
        self.by_pointer.retain(|_, at| keep(names[*at as usize].id));
        self.by_bytes.retain(|bytes, at| {
            let kept = keep(names[*at as usize].id);
            if !kept {
                names[*at as usize].bytes = Box::default();
                self.text_bytes -= bytes.len();
                self.free.push(*at);
            }
            kept
        });
        self.by_pointer.shrink_to_fit();
        self.by_bytes.shrink_to_fit();
    }

    /// Returns the size in bytes of the heap memory that the table uses.
    pub fn heap_bytes(&self) -> usize {
        let buckets = (self.by_bytes.capacity() * 8 / 7).next_power_of_two();
        map_bytes(&self.by_pointer)
            + buckets * (size_of::<(Box<[u8]>, u32)>() + 1)
            + self.names.capacity() * size_of::<KernelName>()
            + 2 * self.text_bytes
    }

    /// Interns the C string at `name`. A null pointer or an empty string stands for a kernel without a name.
    ///
    /// # Safety
    /// `name` must be null, or its bytes must be readable up to a NUL byte or for 64 KiB.
    pub(super) unsafe fn intern(&mut self, name: *const c_char) -> InternedName<'_> {
        let bytes = if name.is_null() {
            &[]
        } else {
            // SAFETY: strnlen reads up to the first NUL or up to the limit, and the caller guarantees that these bytes
            // are readable.
            let length = unsafe { libc::strnlen(name, MAX_NAME_BYTES) };
            // SAFETY: strnlen has just read these bytes.
            unsafe { std::slice::from_raw_parts(name.cast::<u8>(), length) }
        };
        self.intern_bytes(name.addr(), bytes)
    }

    fn intern_bytes(&mut self, pointer: usize, bytes: &[u8]) -> InternedName<'_> {
        if let Some(&at) = self.by_pointer.get(&pointer)
            && *self.names[at as usize].bytes == *bytes
        {
            return InternedName { id: self.names[at as usize].id, new_text: None };
        }
        if let Some(&at) = self.by_bytes.get(bytes) {
            self.by_pointer.insert(pointer, at);
            return InternedName { id: self.names[at as usize].id, new_text: None };
        }
        let name = KernelName { id: NameId(self.next), bytes: bytes.into() };
        let id = name.id;
        self.next += 1;
        self.text_bytes += bytes.len();
        let at = match self.free.pop() {
            Some(at) => {
                self.names[at as usize] = name;
                at
            }
            None => {
                self.names.push(name);
                (self.names.len() - 1) as u32
            }
        };
        self.by_pointer.insert(pointer, at);
        self.by_bytes.insert(bytes.into(), at);
        InternedName { id, new_text: Some(decode_name(&self.names[at as usize].bytes)) }
    }
}

fn decode_name(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    if bytes.is_empty() { UNNAMED_KERNEL.into() } else { String::from_utf8_lossy(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn intern(names: &mut KernelNames, name: *const c_char) -> (u32, Option<String>) {
        // SAFETY: the tests pass only null or C strings.
        let interned = unsafe { names.intern(name) };
        (interned.id.0, interned.new_text.map(|text| text.into_owned()))
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_name_is_interned_once_by_pointer_and_by_content() {
        let mut names = KernelNames::new();
        let (one, same) = (c"_Z4gemmv".to_owned(), c"_Z4gemmv".to_owned());
        assert_eq!(intern(&mut names, one.as_ptr()), (0, some("_Z4gemmv")));
        assert_eq!(intern(&mut names, one.as_ptr()), (0, None));
        assert_eq!(intern(&mut names, same.as_ptr()), (0, None));
        assert_eq!(intern(&mut names, c"relu".as_ptr()), (1, some("relu")));
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn a_reused_pointer_with_another_name_gets_another_id() {
        let mut names = KernelNames::new();
        let mut place = *b"one\0";
        assert_eq!(intern(&mut names, place.as_ptr().cast()), (0, some("one")));
        place = *b"two\0";
        assert_eq!(intern(&mut names, place.as_ptr().cast()), (1, some("two")));
        place = *b"one\0";
        assert_eq!(intern(&mut names, place.as_ptr().cast()), (0, None));
    }

    #[test]
    fn a_forgotten_name_gets_a_new_id_and_ids_are_never_reused() {
        let mut names = KernelNames::new();
        let (one, two) = (c"one".to_owned(), c"two".to_owned());
        assert_eq!(intern(&mut names, one.as_ptr()), (0, some("one")));
        assert_eq!(intern(&mut names, two.as_ptr()), (1, some("two")));
        names.forget(|id| id == NameId(1));
        assert_eq!(names.len(), 1);
        assert_eq!(intern(&mut names, two.as_ptr()), (1, None));
        assert_eq!(intern(&mut names, one.as_ptr()), (2, some("one")));
        assert_eq!(intern(&mut names, one.as_ptr()), (2, None));
        assert_eq!(intern(&mut names, c"three".as_ptr()), (3, some("three")));
    }

    #[test]
    fn forgotten_names_use_no_memory() {
        let mut names = KernelNames::new();
        let text: Vec<_> =
            (0..10_000).map(|n| std::ffi::CString::new(format!("kernel_{n}")).unwrap()).collect();
        let mut held = Vec::new();
        for name in &text {
            intern(&mut names, name.as_ptr());
            if names.len() == 1000 {
                held.push(names.heap_bytes());
                names.forget(|_| false);
            }
        }
        assert!(held.len() == 10 && held[9] <= held[0] + held[0] / 10, "{held:?}");
    }

    #[test]
    fn null_and_empty_names_are_one_unnamed_kernel() {
        let mut names = KernelNames::new();
        assert_eq!(intern(&mut names, std::ptr::null()), (0, some("[unnamed kernel]")));
        assert_eq!(intern(&mut names, c"".as_ptr()), (0, None));
    }

    #[test]
    fn non_utf_8_names_are_converted_and_stay_distinct() {
        let mut names = KernelNames::new();
        assert_eq!(intern(&mut names, c"bad\xff".as_ptr()), (0, some("bad\u{fffd}")));
        assert_eq!(intern(&mut names, c"bad\xfe".as_ptr()), (1, some("bad\u{fffd}")));
    }

    #[test]
    fn long_names_are_complete_and_names_over_the_limit_are_truncated() {
        let mut names = KernelNames::new();
        let long = [vec![b'k'; 4096], vec![0]].concat();
        let (_, text) = intern(&mut names, CStr::from_bytes_with_nul(&long).unwrap().as_ptr());
        assert_eq!(text.unwrap().len(), 4096);
        let endless = vec![b'k'; MAX_NAME_BYTES + 10];
        assert_eq!(intern(&mut names, endless.as_ptr().cast()).1.unwrap().len(), MAX_NAME_BYTES);
    }
}
