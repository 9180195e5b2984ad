//! What the dynamic loader knows: which object an address belongs to, and whether objects came or went.
//!
//! Two of its calls are safe inside a callback, even while another thread sits in a `dlopen`:
//! `_dl_find_object` (glibc 2.35 and newer) and `dl_iterate_phdr`. `dladdr`, `dlsym` and `dlopen` are
//! not: they wait for the loader's big lock. So the first is looked up by [`prepare`], at load time, and
//! where it is missing a copy of what the second shows does its work (see `objects`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::objects::{self, Unsure};
use super::watch;
use crate::record::ModuleEpoch;

/// How many objects were ever loaded and unloaded, as `dl_iterate_phdr` reports.
///
/// Both only grow, so a later state is larger as a number, and two states are equal only if nothing
/// was loaded or unloaded between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Counts(u64);

impl Counts {
    pub(crate) fn new(loads: u64, unloads: u64) -> Self {
        Self((loads << 32) | (unloads & 0xffff_ffff))
    }

    /// Objects loaded so far, modulo 2^32.
    pub(crate) fn loads(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Objects unloaded so far, modulo 2^32.
    pub(crate) fn unloads(self) -> u32 {
        self.0 as u32
    }

    /// Both in one word.
    pub(crate) fn as_word(self) -> u64 {
        self.0
    }
}

/// The newest state that anybody has seen; 0 until [`prepare`].
static LATEST: AtomicU64 = AtomicU64::new(0);
/// The unloads at which the epoch began, its number above them, and on top whether a rule was compiled, and
/// so perhaps a frame taken, in it.
static EPOCH: AtomicU64 = AtomicU64::new(0);
const IS_USED: u64 = 1 << 63;

/// The newest state that anybody has seen: one load.
#[inline(always)]
pub(crate) fn latest() -> Counts {
    Counts(LATEST.load(Ordering::Acquire))
}

/// The epoch that frames belong to. It may be one ahead of the latest state for a moment, which does no
/// harm: what is on a stack was loaded before and stays loaded.
pub(crate) fn epoch() -> ModuleEpoch {
    let epoch = (EPOCH.load(Ordering::Acquire) & !IS_USED) >> 32;
    ModuleEpoch(epoch.min(u64::from(ModuleEpoch::MAX.0)) as u16)
}

/// Says that frames are taken in this epoch: the next unload begins another. (Epochs are few, so unloads
/// that no stack lies between count as one.)
pub(crate) fn use_epoch() {
    if EPOCH.load(Ordering::Relaxed) & IS_USED == 0 {
        EPOCH.fetch_or(IS_USED, Ordering::AcqRel);
    }
}

/// The state now: two loads and, if something came or went, a question to the loader.
#[inline(always)]
pub(crate) fn current() -> Counts {
    if watch::is_unchanged() { latest() } else { poll() }
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
    publish(seen);
    watch::note(numbers);
    seen
}

/// Makes `seen` the latest state, unless a newer one is known.
pub(crate) fn publish(seen: Counts) {
    if seen <= latest() {
        return;
    }
    let mut epoch = EPOCH.load(Ordering::Relaxed);
    while seen.unloads().wrapping_sub(epoch as u32) as i32 > 0 {
        let number = ((epoch & !IS_USED) >> 32) + (epoch >> 63);
        let next = (number << 32) | u64::from(seen.unloads());
        match EPOCH.compare_exchange_weak(epoch, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => epoch = now,
        }
    }
    LATEST.fetch_max(seen.0, Ordering::AcqRel);
}

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
        counts: Counts(0),
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

    /// The object that holds `address`, if any. Safe inside a callback.
    pub(crate) fn holding(address: u64) -> Option<Self> {
        let find = FIND_OBJECT.load(Ordering::Relaxed);
        if !find.is_null() {
            return Self::holding_by_call(find, address);
        }
        objects::holding(address).unwrap_or_else(|Unsure| Self::holding_by_visit(address))
    }

    fn holding_by_call(find: *mut c_void, address: u64) -> Option<Self> {
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
        let start = found.map_start as u64;
        let Some((headers, header_count)) = program_headers(start) else {
            return Self::holding_by_visit(address);
        };
        Some(Self {
            start,
            end: found.map_end as u64,
            bias: link_map.bias,
            name: link_map.name,
            headers,
            header_count,
            counts: Counts::default(),
        })
    }

    fn holding_by_visit(address: u64) -> Option<Self> {
        Self::visiting(address, |object| *object)
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

    fn here() -> u64 {
        here as fn() -> u64 as usize as u64
    }

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
    fn both_ways_to_find_an_object_agree() {
        prepare();
        let visited = Object::holding_by_visit(here()).expect("the test is loaded");
        let found = Object::holding(here()).expect("the test is loaded");
        assert_eq!((visited.start, visited.bias), (found.start, found.bias));
        assert!(found.contains(here()) && !found.contains(found.end));
        assert_eq!(visited.eh_frame_hdr().map(<[u8]>::as_ptr), found.eh_frame_hdr().map(<[u8]>::as_ptr));
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

    #[test]
    fn states_compare_by_time() {
        let (earlier, later) = (Counts::new(7, 2), Counts::new(7, 3));
        assert!(earlier < later && later < Counts::new(8, 3));
        assert_eq!((later.loads(), later.unloads()), (7, 3));
    }
}
