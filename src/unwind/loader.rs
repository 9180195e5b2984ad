//! Queries the dynamic loader's state: which objects are loaded, and whether any object was loaded or
//! unloaded.
//!
//! The loader is queried by `dl_iterate_phdr`, which is safe inside a callback, even while another thread is in
//! `dlopen`. If glibc's own object counters were found (see `load_counters`), [`current`] queries the loader only
//! when these counters have changed. `loader_state` stores the latest known state; `object_lookup` maps an address to
//! its object.
//!
//! While a visitor (callback) of `dl_iterate_phdr` runs, no object can be loaded or unloaded in any namespace, because
//! glibc holds a lock during the visit. The loader holds the same lock while it maps, lists, unlists and unmaps
//! objects, and while it frees their names. The contents of an object are read only inside [`with_lock`] and [`visit`].
//! Without the lock, another thread could unload the object during the read. An address on a stack does not prove that
//! the object at this address is in use, because the address may be garbage.
//!
//! No thread waits forever for the loader's lock. While the loader holds the lock, it runs no code of the program.
//! (Constructors, destructors and resolvers run without the lock.) The lock is recursive, so a signal handler may enter
//! the loader on the thread that holds the lock. Our visitors take no other lock and do not allocate. A deadlock
//! remains possible in two cases. First, a visitor that the program itself passes to `dl_iterate_phdr` may wait for a
//! launching thread. Second, an allocator may launch GPU work while it holds a lock that the loader's `free` needs.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::load_counters;
use super::loader_state::{self, LoaderCounters, LoaderState};

/// Returns the loader's present state. This function usually reads two words of memory; it queries the loader only
/// if an object was loaded or unloaded.
#[inline(always)]
pub(crate) fn current() -> LoaderState {
    if load_counters::is_unchanged() { loader_state::latest() } else { poll() }
}

/// Queries the loader for its present state, and publishes the state as the latest. A query costs about 12 ns and holds
/// a loader lock for a short time.
#[cold]
pub(crate) fn poll() -> LoaderState {
    with_lock(|state| state).unwrap_or_else(loader_state::latest)
}

/// Takes the loader's lock and calls `inside` with the loader's state, which cannot change until `inside` returns.
/// Also publishes the loader's state as the latest. Returns `None` if the lock could not be taken.
pub(crate) fn with_lock<T>(inside: impl FnOnce(LoaderState) -> T) -> Option<T> {
    let mut inside = Some(inside);
    let mut result = None;
    iterate(|info| {
        let counters = loader_counters(info);
        let numbers = load_counters::read_under_lock(counters);
        let state = loader_state::publish(counters, numbers.is_some());
        load_counters::note(numbers);
        result = inside.take().map(|inside| inside(state));
        Visit::Stop
    });
    result
}

fn loader_counters(info: &libc::dl_phdr_info) -> LoaderCounters {
    LoaderCounters::new(info.dlpi_adds, info.dlpi_subs)
}

/// Searches for the loader's counters, and queries the loader for the first time. Call this function when the library
/// is loaded, not inside a callback.
pub(crate) fn prepare() {
    if let Some((global, bytes)) = loader_data() {
        iterate(|info| {
            // SAFETY: `bytes` is the variable's size according to the loader, and the variable is aligned for the
            // pointers in it.
            unsafe { load_counters::find(global, bytes, loader_counters(info)) };
            Visit::Stop
        });
    }
    poll();
}

/// Returns the address and size of glibc's loader state, `_rtld_global`.
fn loader_data() -> Option<(*mut c_void, usize)> {
    // SAFETY: the name is a C string; dlsym has no other requirement.
    let global = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_rtld_global".as_ptr()) };
    let mut symbol: *mut c_void = std::ptr::null_mut();
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: both results are writable; `dladdr1` accepts any address.
    let is_known = unsafe { dladdr1(global, info.as_mut_ptr(), &mut symbol, RTLD_DL_SYMENT) } != 0;
    // SAFETY: with RTLD_DL_SYMENT, the loader returns null or the symbol's entry in a table that is never unloaded.
    let symbol = unsafe { symbol.cast::<libc::Elf64_Sym>().as_ref() }?;
    (is_known && !global.is_null() && global.addr().is_multiple_of(8))
        .then_some((global, symbol.st_size as usize))
}

const RTLD_DL_SYMENT: c_int = 1;

unsafe extern "C" {
    /// A function of glibc that the `libc` crate does not declare.
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// A loaded object. Use the pointers in this struct only while the loader's lock is held, because they are valid only
/// until the object is unloaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    /// First mapped address.
    pub start: u64,
    /// Address after the last mapped byte.
    pub end: u64,
    /// Address at which a byte is mapped, minus the byte's address in the file. This difference is the same for all
    /// bytes of the object.
    pub bias: u64,
    /// The loader's name for the object: a path, an empty string for the program, or a name without a file for the
    /// vdso.
    name: *const c_char,
    headers: *const libc::Elf64_Phdr,
    header_count: usize,
}

impl Object {
    /// A placeholder object, whose address range is empty.
    pub(super) const NONE: Self = Self {
        start: 0,
        end: 0,
        bias: 0,
        name: std::ptr::null(),
        headers: std::ptr::null(),
        header_count: 0,
    };

    /// Converts the object to words, so that it can be passed between threads.
    pub(super) fn to_words(self) -> [u64; 6] {
        let (name, headers) = (self.name.expose_provenance(), self.headers.expose_provenance());
        [self.start, self.end, self.bias, name as u64, headers as u64, self.header_count as u64]
    }

    /// Converts words from [`to_words`](Self::to_words) back to an object.
    pub(super) fn from_words([start, end, bias, name, headers, header_count]: [u64; 6]) -> Self {
        Self {
            start,
            end,
            bias,
            name: std::ptr::with_exposed_provenance(name as usize),
            headers: std::ptr::with_exposed_provenance(headers as usize),
            header_count: header_count as usize,
        }
    }

    /// Describes the object that has these program headers.
    ///
    /// # Safety
    /// The arguments must be the loader's description of one loaded object, and the loader's lock must be held.
    unsafe fn new(bias: u64, name: *const c_char, headers: (*const libc::Elf64_Phdr, usize)) -> Self {
        let (headers, header_count) = headers;
        let mut object = Self { start: 0, end: 0, bias, name, headers, header_count };
        let (mut start, mut end) = (u64::MAX, 0);
        for header in object.headers().iter().filter(|header| header.p_type == libc::PT_LOAD) {
            let first = bias.wrapping_add(header.p_vaddr);
            start = start.min(first & !0xfff);
            end = end.max(first.wrapping_add(header.p_memsz));
        }
        (object.start, object.end) = (start.min(end), end);
        object
    }

    /// Describes the object whose mapping begins at `start`. Returns `None` if the object's first page does not
    /// contain its program headers.
    ///
    /// # Safety
    /// The arguments must be the loader's description of one loaded object, and the loader's lock must be held.
    pub(super) unsafe fn mapped(start: u64, bias: u64, name: *const c_char) -> Option<Self> {
        // SAFETY: the caller guarantees that the arguments describe a loaded object, and that the loader's lock
        // is held.
        program_headers(start).map(|headers| unsafe { Self::new(bias, name, headers) })
    }

    /// Finds the object that contains `address` in the loader's list. Call this function while the loader's lock is
    /// held.
    pub(super) fn find_listed(address: u64) -> Option<Self> {
        let mut found = None;
        visit(|object| {
            if !object.contains(address) {
                return Visit::Next;
            }
            found = Some(*object);
            Visit::Stop
        });
        found
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.end.wrapping_sub(self.start)
    }

    /// The loader's name for the object.
    pub(crate) fn name(&self) -> &CStr {
        if self.name.is_null() {
            return c"";
        }
        // SAFETY: the loader keeps the name, a C string, until the object is unloaded.
        unsafe { CStr::from_ptr(self.name) }
    }

    /// The bytes from the start of the object's `.eh_frame_hdr` section to the end of the segment that contains this
    /// section.
    pub(crate) fn eh_frame_hdr(&self) -> Option<&'static [u8]> {
        let header = self.headers().iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
        self.rest_of_segment(self.bias.wrapping_add(header.p_vaddr))
    }

    /// The bytes from the start of the object's dynamic section to the end of the segment that contains this section.
    pub(crate) fn dynamic(&self) -> Option<&'static [u8]> {
        let header = self.headers().iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        self.rest_of_segment(self.bias.wrapping_add(header.p_vaddr))
    }

    /// The bytes from `address` to the end of the loaded segment that contains the address.
    pub(crate) fn rest_of_segment(&self, address: u64) -> Option<&'static [u8]> {
        let left =
            self.headers().iter().filter(|header| header.p_type == libc::PT_LOAD).find_map(|header| {
                let into = address.wrapping_sub(self.bias.wrapping_add(header.p_vaddr));
                (header.p_flags & libc::PF_R != 0 && into < header.p_memsz).then(|| header.p_memsz - into)
            })?;
        // SAFETY: these bytes are in a loaded, readable segment of an object, and are used only while the loader's lock
        // is held.
        Some(unsafe { std::slice::from_raw_parts(address as *const u8, left as usize) })
    }

    /// The object's GNU build id; empty if the object has none.
    pub(crate) fn build_id(&self) -> &[u8] {
        self.headers()
            .iter()
            .filter(|header| header.p_type == libc::PT_NOTE)
            .filter_map(|header| {
                let notes = self.rest_of_segment(self.bias.wrapping_add(header.p_vaddr))?;
                gnu_build_id(notes.get(..header.p_memsz as usize)?)
            })
            .next()
            .unwrap_or_default()
    }

    fn headers(&self) -> &[libc::Elf64_Phdr] {
        // SAFETY: the loader or the ELF header states that this number of program headers is mapped at this address.
        unsafe { std::slice::from_raw_parts(self.headers, self.header_count) }
    }
}

/// The program headers of the ELF file that is mapped at `start`, if the file's first page contains them.
fn program_headers(start: u64) -> Option<(*const libc::Elf64_Phdr, usize)> {
    const PAGE: u64 = 4096;
    let file = start as *const libc::Elf64_Ehdr;
    // SAFETY: `start` is the address of the first mapped page of a loaded object, and the header fits into a page.
    let header = unsafe { &*file };
    let size = u64::from(header.e_phnum) * size_of::<libc::Elf64_Phdr>() as u64;
    let is_elf = header.e_ident.starts_with(b"\x7fELF");
    let fits = usize::from(header.e_phentsize) == size_of::<libc::Elf64_Phdr>()
        && header.e_phoff < PAGE
        && header.e_phoff.is_multiple_of(8)
        && header.e_phoff + size <= PAGE;
    (is_elf && fits).then(|| ((start + header.e_phoff) as *const _, usize::from(header.e_phnum)))
}

/// The build id in `notes`, the contents of a note segment: the bytes of its `NT_GNU_BUILD_ID` note.
fn gnu_build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const BUILD_ID: u32 = 3;
    loop {
        let (sizes, rest) = notes.split_at_checked(12)?;
        let field = |at: usize| u32::from_ne_bytes([sizes[at], sizes[at + 1], sizes[at + 2], sizes[at + 3]]);
        let (name_size, text_size, kind) = (field(0) as usize, field(4) as usize, field(8));
        let name = rest.get(..name_size)?;
        let rest = rest.get(name_size.next_multiple_of(4)..)?;
        let text = rest.get(..text_size)?;
        if kind == BUILD_ID && name == b"GNU\0" {
            return Some(text);
        }
        notes = rest.get(text_size.next_multiple_of(4)..)?;
    }
}

/// Return value of a visitor: whether to visit the next object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    Next,
    Stop,
}

/// Passes every loaded object to `visitor`, the program first. Nothing can be loaded or unloaded until `visit`
/// returns, so the visitor sees one consistent state.
pub(crate) fn visit(mut visitor: impl FnMut(&Object) -> Visit) {
    iterate(|info| {
        let headers = (info.dlpi_phdr, usize::from(info.dlpi_phnum));
        // SAFETY: the loader is passing this object to its visitor, so the object is loaded and the lock is held.
        visitor(&unsafe { Object::new(info.dlpi_addr, info.dlpi_name, headers) })
    });
}

fn iterate<F: FnMut(&libc::dl_phdr_info) -> Visit>(mut visitor: F) {
    unsafe extern "C" fn step<F: FnMut(&libc::dl_phdr_info) -> Visit>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        visitor: *mut c_void,
    ) -> c_int {
        // SAFETY: `iterate` passed its closure, and no other code uses the closure during this call.
        let visitor = unsafe { &mut *visitor.cast::<F>() };
        // SAFETY: the loader passes a valid description, and glibc fills all its fields.
        let info = unsafe { &*info };
        // A panic must not unwind through the loader's frames, because that would abort the process while the loader's
        // lock is held.
        let wish = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| visitor(info)));
        c_int::from(!matches!(wish, Ok(Visit::Next)))
    }
    // SAFETY: The closure passed to `step` has the type for which `step` is instantiated.
    unsafe { libc::dl_iterate_phdr(Some(step::<F>), (&raw mut visitor).cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_is_found_unchanged_through_glibcs_counter() {
        prepare();
        // Try several times, because another test may load an object between the two calls.
        let unchanged = |_: i32| {
            poll();
            load_counters::is_unchanged()
        };
        assert!((0..10).any(unchanged));
    }

    #[test]
    fn every_listed_object_has_unwind_tables() {
        visit(|object| {
            assert!(object.start < object.end, "{object:?}");
            assert!(object.eh_frame_hdr().is_some(), "{:?}", object.name());
            Visit::Next
        });
    }

    #[test]
    fn a_build_id_is_found_after_other_notes() {
        let mut notes = Vec::new();
        for (name, kind, text) in
            [(b"abc\0", 3u32, &b"xyz"[..]), (b"GNU\0", 5, b""), (b"GNU\0", 3, b"\x01\x02")]
        {
            notes.extend(4u32.to_ne_bytes());
            notes.extend((text.len() as u32).to_ne_bytes());
            notes.extend(kind.to_ne_bytes());
            notes.extend(name);
            notes.extend(text);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        assert_eq!(gnu_build_id(&notes), Some(&b"\x01\x02"[..]));
        assert_eq!(gnu_build_id(&notes[..20]), None);
    }
}
