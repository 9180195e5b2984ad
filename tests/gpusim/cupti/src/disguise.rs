//! Makes one library file imitate several CUPTI versions. When this library is loaded, before any symbol can be looked
//! up, it edits its own dynamic symbol table. Functions that this CUPTI version lacks become undefined, and the
//! library's soname becomes the soname of that version. As with the real libraries, `dlsym` then returns NULL for these
//! functions, and `dlopen` finds the library under the right soname. Therefore a test needs only a copy of this file or
//! a link to it.

use crate::link::version;
use std::ffi::{CStr, c_char, c_int, c_void};

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = disguise;

extern "C" fn disguise() {
    let this = find_self();
    for name in version().lacks() {
        this.hide(name);
    }
    this.rename(version().soname());
}

/// Elf64_Sym
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Elf64_Dyn
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// The first fields of glibc's link_map, which are public.
#[repr(C)]
struct LinkMap {
    base: u64,
    path: *const c_char,
    dynamic: *mut Dynamic,
}

struct Library {
    dynamic: *mut Dynamic,
}

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_STRSZ: i64 = 10;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

fn find_self() -> Library {
    let mut info: libc::Dl_info = {
        // SAFETY: Dl_info consists of pointers, for which zero is valid.
        unsafe { std::mem::zeroed() }
    };
    let mut map: *mut c_void = std::ptr::null_mut();
    const RTLD_DL_LINKMAP: c_int = 2;
    // SAFETY: the address is in this library; `map` receives its link_map.
    let found = unsafe { dladdr1(disguise as *const c_void, &mut info, &mut map, RTLD_DL_LINKMAP) };
    if found == 0 || map.is_null() {
        gpusim_core::abort!("libcupti does not find itself");
    }
    // SAFETY: the loader's link_map begins with these fields and lives as long as this library.
    let dynamic = unsafe { (*map.cast::<LinkMap>()).dynamic };
    Library { dynamic }
}

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

impl Library {
    /// Hides a function from dlsym. The function is searched by its name, because identical functions may have the same
    /// address.
    fn hide(&self, name: &str) {
        let symbol = self.symbols().find(|&symbol| {
            // SAFETY: `symbols` returns entries of the symbol table.
            self.string(unsafe { (*symbol).name }).to_bytes() == name.as_bytes()
        });
        let Some(symbol) = symbol else { gpusim_core::abort!("libcupti has no {name} to hide") };
        writable(symbol.cast(), || {
            // SAFETY: the entry of the symbol table was made writable; the loader skips entries of value 0.
            unsafe { (*symbol).value = 0 }
        });
    }

    /// Returns the exported symbols. The number of symbols is stored only implicitly, in the hash table. The hash table
    /// consists of 4 words, the bloom filter, the buckets, and one word per symbol; the last word of a bucket's chain
    /// has its lowest bit set.
    fn symbols(&self) -> impl Iterator<Item = *mut Symbol> {
        let table = self.value(DT_GNU_HASH) as *const u32;
        // SAFETY: the dynamic section contains the hash table's address, and the table's own fields give its length.
        let word = move |i: usize| unsafe { *table.add(i) } as usize;
        let (buckets, first, bloom) = (word(0), word(1), word(2));
        let start = 4 + 2 * bloom;
        let mut last = (start..start + buckets).map(word).max().unwrap_or(first);
        while last >= first && word(start + buckets + last - first) & 1 == 0 {
            last += 1;
        }
        let symbols = self.value(DT_SYMTAB) as *mut Symbol;
        (first..=last).map(move |i| symbols.wrapping_add(i))
    }

    fn string(&self, offset: u32) -> &CStr {
        // SAFETY: offsets in this library's tables refer to C strings in its string table.
        unsafe { CStr::from_ptr((self.value(DT_STRTAB) as *const c_char).add(offset as usize)) }
    }

    /// Sets the soname. The string table already contains this string, because it is the name of a version node in
    /// `versions.map`.
    fn rename(&self, soname: &str) {
        let strings = self.value(DT_STRTAB) as *const u8;
        let length = self.value(DT_STRSZ) as usize;
        // SAFETY: the dynamic section contains the string table's address and length.
        let strings = unsafe { std::slice::from_raw_parts(strings, length) };
        let wanted = [b"\0", soname.as_bytes(), b"\0"].concat();
        let offset = strings.windows(wanted.len()).position(|w| w == wanted);
        let (Some(offset), Some(entry)) = (offset, self.entry(DT_SONAME)) else {
            gpusim_core::abort!("libcupti has no string {soname}");
        };
        writable(entry.cast(), || {
            // SAFETY: the entry of the dynamic section was made writable; the loader reads it at each dlopen.
            unsafe { (*entry).value = offset as u64 + 1 }
        });
    }

    /// Returns the value of the dynamic entry with this tag. If the value is an address, glibc has already relocated
    /// it.
    fn value(&self, tag: i64) -> u64 {
        // SAFETY: `entry` points into the dynamic section.
        self.entry(tag).map_or(0, |entry| unsafe { (*entry).value })
    }

    fn entry(&self, tag: i64) -> Option<*mut Dynamic> {
        let mut entry = self.dynamic;
        loop {
            // SAFETY: the dynamic section ends with an entry of tag 0.
            match unsafe { (*entry).tag } {
                0 => return None,
                t if t == tag => return Some(entry),
                _ => entry = entry.wrapping_add(1),
            }
        }
    }
}

/// Makes the page that contains `address` writable while `change` runs.
fn writable(address: *mut c_void, change: impl FnOnce()) {
    const PAGE: usize = 4096;
    let start = address as usize & !(PAGE - 1);
    let end = (address as usize + size_of::<Symbol>()).next_multiple_of(PAGE);
    let protect = |mode| {
        // SAFETY: the pages hold this entry, which is data of this library.
        unsafe { libc::mprotect(start as *mut c_void, end - start, mode) }
    };
    if protect(libc::PROT_READ | libc::PROT_WRITE) != 0 {
        gpusim_core::abort!("libcupti cannot change its own tables");
    }
    change();
}
