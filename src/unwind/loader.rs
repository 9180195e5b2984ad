//! What the dynamic loader tells: which objects are loaded, and whether any came or went.
//!
//! It is asked by `dl_iterate_phdr`, which is safe inside a callback, even while another thread sits in a
//! `dlopen`, but takes a short lock. Where glibc's own count of objects was found (see `watch`), [`current`]
//! asks only when that changed. What was heard last stands in `counts`; which object an address belongs to is
//! the business of `find`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;

use super::counts::{self, Counts};
use super::watch;

/// The state now: two loads and, if something came or went, a question to the loader.
#[inline(always)]
pub(crate) fn current() -> Counts {
    if watch::is_unchanged() { counts::latest() } else { poll() }
}

/// Asks the loader for the state now, and makes it the latest. About 12 ns; takes a short loader lock.
#[cold]
pub(crate) fn poll() -> Counts {
    let (mut seen, mut numbers) = (Counts::default(), None);
    visit(|object| {
        seen = object.counts;
        numbers = watch::read_locked(seen);
        Visit::Stop
    });
    counts::publish(seen);
    watch::note(numbers);
    seen
}

/// Looks for what tells changes without asking, and asks for the first time. Call it when the library is loaded,
/// not inside a callback.
pub(crate) fn prepare() {
    if let Some((global, bytes)) = loader_data() {
        visit(|object| {
            // SAFETY: the loader says that its variable is so long; it is aligned for the pointers in it.
            unsafe { watch::find(global, bytes, object.counts) };
            Visit::Stop
        });
    }
    poll();
}

/// Where glibc's loader keeps its state, and how long that is.
fn loader_data() -> Option<(*mut c_void, usize)> {
    // SAFETY: the name is a C string; dlsym has no other requirement.
    let global = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_rtld_global".as_ptr()) };
    let mut symbol: *mut c_void = std::ptr::null_mut();
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: both results are valid places to write to; any address may be asked for.
    let is_known = unsafe { dladdr1(global, info.as_mut_ptr(), &mut symbol, RTLD_DL_SYMENT) } != 0;
    // SAFETY: with this flag the loader gives null or the symbol's entry in a table that stays loaded.
    let symbol = unsafe { symbol.cast::<libc::Elf64_Sym>().as_ref() }?;
    (is_known && !global.is_null() && global.addr().is_multiple_of(8))
        .then_some((global, symbol.st_size as usize))
}

const RTLD_DL_SYMENT: c_int = 1;

unsafe extern "C" {
    /// glibc's, not declared by the `libc` crate.
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// A loaded object. Its pointers hold as long as it is not unloaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    /// First mapped address.
    pub(crate) start: u64,
    /// One past the last mapped address.
    pub(crate) end: u64,
    /// What was added to the file's addresses.
    pub(crate) bias: u64,
    /// The loader's name for it: a path; empty for the program; a made-up name for the vdso.
    name: *const c_char,
    headers: *const libc::Elf64_Phdr,
    header_count: usize,
    /// What the loader had loaded and unloaded, where the caller of [`visit`] was told.
    pub(crate) counts: Counts,
}

impl Object {
    /// No object: it holds no address.
    pub(super) const NONE: Self = Self {
        start: 0,
        end: 0,
        bias: 0,
        name: std::ptr::null(),
        headers: std::ptr::null(),
        header_count: 0,
        counts: Counts::NONE,
    };

    /// All but the loader's counts, as words that threads can hand each other.
    pub(super) fn to_words(self) -> [u64; 6] {
        let (name, headers) = (self.name.expose_provenance(), self.headers.expose_provenance());
        [self.start, self.end, self.bias, name as u64, headers as u64, self.header_count as u64]
    }

    /// The object of which [`to_words`](Self::to_words) made these.
    pub(super) fn from_words([start, end, bias, name, headers, header_count]: [u64; 6]) -> Self {
        Self {
            start,
            end,
            bias,
            name: std::ptr::with_exposed_provenance(name as usize),
            headers: std::ptr::with_exposed_provenance(headers as usize),
            header_count: header_count as usize,
            counts: Counts::default(),
        }
    }

    /// The object that is mapped at `range`, if its first page shows its program headers.
    ///
    /// # Safety
    /// So the loader says, of one object that is loaded, and it tells `bias` and `name` as well.
    pub(super) unsafe fn mapped(range: Range<u64>, bias: u64, name: *const c_char) -> Option<Self> {
        let (headers, header_count) = program_headers(range.start)?;
        let (start, end) = (range.start, range.end);
        Some(Self { start, end, bias, name, headers, header_count, counts: Counts::default() })
    }

    /// What `look` says about the object that holds `address`. It cannot be unloaded meanwhile, which
    /// matters where the address may be no return address at all.
    pub(crate) fn visiting<T>(address: u64, look: impl FnOnce(&Self) -> T) -> Option<T> {
        let mut look = Some(look);
        let mut result = None;
        visit(|object| {
            if !object.contains(address) {
                return Visit::Next;
            }
            result = look.take().map(|look| look(object));
            Visit::Stop
        });
        result
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.end.wrapping_sub(self.start)
    }

    /// The loader's name for it.
    pub(crate) fn name(&self) -> &CStr {
        if self.name.is_null() {
            return c"";
        }
        // SAFETY: the loader keeps the name, a C string, until the object is unloaded.
        unsafe { CStr::from_ptr(self.name) }
    }

    /// Its `.eh_frame_hdr`, with whatever follows in the same segment.
    pub(crate) fn eh_frame_hdr(&self) -> Option<&'static [u8]> {
        let header = self.headers().iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
        self.rest_of_segment(self.bias.wrapping_add(header.p_vaddr))
    }

    /// The bytes from `address` to the end of the loaded segment that it lies in.
    pub(crate) fn rest_of_segment(&self, address: u64) -> Option<&'static [u8]> {
        let left =
            self.headers().iter().filter(|header| header.p_type == libc::PT_LOAD).find_map(|header| {
                let into = address.wrapping_sub(self.bias.wrapping_add(header.p_vaddr));
                (header.p_flags & libc::PF_R != 0 && into < header.p_memsz).then(|| header.p_memsz - into)
            })?;
        // SAFETY: a loaded, readable segment; callers use it while code of this object is on their stack
        // or under the loader's lock, either of which keeps it loaded.
        Some(unsafe { std::slice::from_raw_parts(address as *const u8, left as usize) })
    }

    /// Its GNU build id; empty where it has none.
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
        // SAFETY: the loader or the ELF header said so many program headers lie there, mapped.
        unsafe { std::slice::from_raw_parts(self.headers, self.header_count) }
    }
}

/// The program headers of the ELF file mapped at `start`, if its first page shows them.
fn program_headers(start: u64) -> Option<(*const libc::Elf64_Phdr, usize)> {
    const PAGE: u64 = 4096;
    let file = start as *const libc::Elf64_Ehdr;
    // SAFETY: `start` is the first mapped page of a loaded object, and the header fits a page.
    let header = unsafe { &*file };
    let size = u64::from(header.e_phnum) * size_of::<libc::Elf64_Phdr>() as u64;
    let is_elf = header.e_ident.starts_with(b"\x7fELF");
    let fits = usize::from(header.e_phentsize) == size_of::<libc::Elf64_Phdr>()
        && header.e_phoff < PAGE
        && header.e_phoff.is_multiple_of(8)
        && header.e_phoff + size <= PAGE;
    (is_elf && fits).then(|| ((start + header.e_phoff) as *const _, usize::from(header.e_phnum)))
}

/// The description of an `NT_GNU_BUILD_ID` note among `notes`.
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

/// What a visitor wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    Next,
    Stop,
}

/// Shows every loaded object to `visitor`, the program first. Nothing can be loaded or unloaded until
/// it returns, so what it is shown is one consistent state.
pub(crate) fn visit<F: FnMut(&Object) -> Visit>(mut visitor: F) {
    unsafe extern "C" fn step<F: FnMut(&Object) -> Visit>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        visitor: *mut c_void,
    ) -> c_int {
        // SAFETY: `visit` passed its closure, which nothing else uses meanwhile.
        let visitor = unsafe { &mut *visitor.cast::<F>() };
        // SAFETY: the loader passes a valid description; glibc fills all its fields.
        let object = unsafe { describe(&*info) };
        // A panic must not cross the loader's frames: it would abort the process, with its lock held.
        let wish = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| visitor(&object)));
        c_int::from(!matches!(wish, Ok(Visit::Next)))
    }
    // SAFETY: `step` is instantiated for the type behind the pointer that it is given.
    unsafe { libc::dl_iterate_phdr(Some(step::<F>), (&raw mut visitor).cast()) };
}

/// # Safety
/// `info` is a description that `dl_iterate_phdr` is showing right now.
unsafe fn describe(info: &libc::dl_phdr_info) -> Object {
    let mut object = Object {
        start: u64::MAX,
        end: 0,
        bias: info.dlpi_addr,
        name: info.dlpi_name,
        headers: info.dlpi_phdr,
        header_count: usize::from(info.dlpi_phnum),
        counts: Counts::new(info.dlpi_adds, info.dlpi_subs),
    };
    let (mut start, mut end) = (u64::MAX, 0);
    for header in object.headers().iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let first = object.bias.wrapping_add(header.p_vaddr);
        start = start.min(first & !0xfff);
        end = end.max(first.wrapping_add(header.p_memsz));
    }
    object.start = start.min(end);
    object.end = end;
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_is_watched_without_asking_where_glibc_keeps_count() {
        prepare();
        // Another test may load something in between, but not every time.
        let unchanged = |_: i32| {
            poll();
            watch::is_unchanged()
        };
        assert!((0..10).any(unchanged));
    }

    #[test]
    fn every_object_with_a_name_of_its_own_has_unwind_tables() {
        visit(|object| {
            assert!(object.start < object.end, "{object:?}");
            assert!(object.eh_frame_hdr().is_some(), "{:?}", object.name());
            Visit::Next
        });
    }

    #[test]
    fn a_build_id_is_found_behind_other_notes() {
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
