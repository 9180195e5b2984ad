//! Replaces functions of a loaded library with gpuflame's functions ("interposes on" them). The replacement applies to
//! two kinds of callers: those that look up the functions later, and those for which the dynamic linker has already
//! stored the functions' addresses.
//!
//! ```text
//! a module that is loaded later, dlsym --> symbol of the library: its value is exchanged
//! a module that is loaded already      --> its slot for the function: the address in it is exchanged
//! ```
//!
//! A caller that saved a function's address before the replacement still calls the library's function. gpuflame itself
//! uses a saved address to call the library's function.
//!
//! This module changes only words that the linker itself writes or reads. A word is written through the file
//! `/proc/self/mem`, which changes this process's private copy of the page. A write to that file succeeds even if the
//! linker has made the page read-only, and returns an error if the write is not permitted. Therefore gpuflame need not
//! make a page writable while other threads use it, and no write can fault. Tables and slots of modules are read
//! through the same file, because a program may have protected or unmapped their pages. All reads and writes happen
//! inside `dl_iterate_phdr`, because during that call the linker loads and unloads nothing.

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;

use super::descriptor::{self, FileId};
use super::host_signals;

/// A function to replace.
#[derive(Clone, Copy, Debug)]
pub struct Interposition {
    /// Name under which the library exports the function.
    pub name: &'static str,
    /// Address of the library's function.
    pub original: usize,
    /// Address of gpuflame's function, which has the same type and is never unloaded.
    pub replacement: usize,
}

/// Replaces the functions of all `places`, which must belong to one library. Returns the number of words that were
/// changed. Each changed word is a module's slot or a symbol's value. If a word cannot be written, it keeps its value,
/// and the modules that use this word still call the library's function.
///
/// # Errors
/// Fails if the file `/proc/self/mem` cannot be written, or if no loaded library contains the functions.
pub fn replace_functions(places: &[Interposition]) -> io::Result<usize> {
    // Signals are blocked because the linker's lock would stay locked if a signal handler of the program jumped out of
    // `dl_iterate_phdr`.
    host_signals::with_all_blocked(|| replace_all(places))
}

fn replace_all(places: &[Interposition]) -> io::Result<usize> {
    let Some(first) = places.first() else { return Ok(0) };
    let memory = ProcessMemory::open()?;
    let mut library = None;
    visit_modules(&memory, &mut |module| {
        if module.covers(first.original) {
            library = Some((module.base, module.own_name()));
        }
    });
    let (base, name) = library.ok_or(io::ErrorKind::NotFound)?;
    let mut written = 0;
    visit_modules(&memory, &mut |module| {
        let mut write = |at: usize, word: usize| {
            written += usize::from(memory.write(at, word).is_ok());
        };
        if module.base == base {
            for place in places {
                module.replace_export(place, &mut write);
            }
        } else if module.depends_on(&name) {
            module.exchange_slots(places, &mut write);
        }
    });
    Ok(written)
}

/// Replaces the function `name` only for the module that contains the address `inside`. After the replacement, this
/// module calls `ours`, and every other module calls the same function as before. Returns the number of slots that were
/// changed.
///
/// # Errors
/// Fails if the file `/proc/self/mem` cannot be written.
pub fn replace_in_module(inside: usize, name: &str, ours: usize) -> io::Result<usize> {
    host_signals::with_all_blocked(|| replace_slots(inside, name, ours))
}

fn replace_slots(inside: usize, name: &str, ours: usize) -> io::Result<usize> {
    let memory = ProcessMemory::open()?;
    let mut written = 0;
    visit_modules(&memory, &mut |module| {
        if module.covers(inside) {
            module.visit_slots(&[name], &mut |slot, _| {
                written += usize::from(memory.write(slot, ours).is_ok())
            });
        }
    });
    Ok(written)
}

/// The open file `/proc/self/mem`, which contains this process's memory. The file's identity is stored, because the
/// host may close any descriptor and open another file under the same number.
struct ProcessMemory {
    file: ManuallyDrop<File>,
    identity: FileId,
    /// Cache of the most recently read pages. The cache has several entries because several tables are read
    /// alternately, each from its start to its end.
    pages: RefCell<PageCache>,
}

/// Cached copies of pages. The oldest copy is evicted first.
struct PageCache {
    copies: [Option<(usize, Box<[u8; PAGE_BYTES]>)>; 8],
    next: usize,
}

const PAGE_BYTES: usize = 4096;

impl ProcessMemory {
    fn open() -> io::Result<Self> {
        descriptor::enlarge_table();
        let file =
            descriptor::move_out_of_reach(OpenOptions::new().read(true).write(true).open("/proc/self/mem")?);
        let pages = RefCell::new(PageCache { copies: [const { None }; 8], next: 0 });
        Ok(Self { identity: FileId::from_file(&file)?, file: ManuallyDrop::new(file), pages })
    }

    fn word(&self, at: usize) -> Option<usize> {
        self.bytes(at).map(usize::from_ne_bytes)
    }

    fn number(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_ne_bytes)
    }

    /// Returns the bytes at an address; `None` if the address is not mapped. Cached bytes do not contain changes that
    /// were made after the page was read.
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let offset = at % PAGE_BYTES;
        if let Some(end) = offset.checked_add(N).filter(|end| *end <= PAGE_BYTES) {
            return self.on_page(at - offset, |page| page[offset..end].try_into().ok())?;
        }
        let mut bytes = [0; N];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(at.checked_add(index)?)?;
        }
        Some(bytes)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.on_page(at / PAGE_BYTES * PAGE_BYTES, |page| page[at % PAGE_BYTES])
    }

    fn on_page<R>(&self, page: usize, look: impl FnOnce(&[u8; PAGE_BYTES]) -> R) -> Option<R> {
        let mut pages = self.pages.borrow_mut();
        let known = pages.copies.iter().flatten().find(|(of, _)| *of == page);
        if let Some((_, copy)) = known {
            return Some(look(copy));
        }
        if !self.is_ours() {
            return None;
        }
        let mut copy = Box::new([0; PAGE_BYTES]);
        let mut file = &*self.file;
        // This code seeks and reads instead of calling `pread`, because a seccomp filter may refuse `pread`.
        file.seek(SeekFrom::Start(page as u64)).and_then(|_| file.read_exact(&mut *copy)).ok()?;
        let (looked, next) = (look(&copy), pages.next);
        pages.copies[next] = Some((page, copy));
        pages.next = (next + 1) % pages.copies.len();
        Some(looked)
    }

    /// Whether the C string at an address is `text`.
    fn is_string(&self, at: usize, text: &[u8]) -> bool {
        let mut bytes = text.iter().chain(&[0]).enumerate();
        bytes.all(|(index, byte)| self.byte(at + index) == Some(*byte))
    }

    /// Returns the C string at an address, if it ends within `MAX_NAME_BYTES`.
    fn string(&self, at: usize) -> Option<Vec<u8>> {
        let bytes: Vec<u8> =
            (0..MAX_NAME_BYTES).map_while(|index| self.byte(at + index).filter(|byte| *byte != 0)).collect();
        (bytes.len() < MAX_NAME_BYTES).then_some(bytes)
    }

    fn is_ours(&self) -> bool {
        FileId::from_file(&self.file).is_ok_and(|identity| identity == self.identity)
    }

    fn write(&self, at: usize, word: usize) -> io::Result<()> {
        if !self.is_ours() {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.file.write_all_at(&word.to_ne_bytes(), at as u64)
    }
}

impl Drop for ProcessMemory {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: no other code drops the file.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// A loaded module. The module cannot be unloaded while a `LoadedModule` exists, because a `LoadedModule` exists only
/// inside `dl_iterate_phdr`.
struct LoadedModule<'a> {
    memory: &'a ProcessMemory,
    base: usize,
    /// Start address and size in bytes of each segment of the module's code and data.
    spans: Vec<(usize, usize)>,
    file: Vec<u8>,
    dynamic: Vec<(usize, usize)>,
}

/// Tags of the dynamic section, and sizes in bytes of the entries in its tables, as in `elf.h`.
const DT_NEEDED: usize = 1;
const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_SONAME: usize = 14;
const DT_JMPREL: usize = 23;
const DT_PLTRELSZ: usize = 2;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_RELACOUNT: usize = 0x6fff_fff9;
const MAX_NAME_BYTES: usize = 4096;
const SYMBOL_BYTES: usize = 24;
const RELOCATION_BYTES: usize = 24;

/// Types of relocations that write a symbol's address to a word: to a pointer, to a slot of a table, or to a slot for
/// calls.
#[cfg(target_arch = "x86_64")]
const ADDRESS_RELOCATIONS: [u32; 3] = [1, 6, 7];
#[cfg(not(target_arch = "x86_64"))]
const ADDRESS_RELOCATIONS: [u32; 3] = [257, 1025, 1026];

impl<'a> LoadedModule<'a> {
    /// Creates the module from the linker's description. Returns `None` if the module has no dynamic section.
    fn from_linker(info: &libc::dl_phdr_info, memory: &'a ProcessMemory) -> Option<Self> {
        let base = usize::try_from(info.dlpi_addr).ok()?;
        // SAFETY: the pointer refers to the linker's array of `dlpi_phnum` headers, which stays valid during the visit.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let spans = loaded.map(|header| (base + header.p_vaddr as usize, header.p_memsz as usize)).collect();
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let (start, entries) = (base + dynamic.p_vaddr as usize, dynamic.p_memsz as usize / 16);
        let pair = |index: usize| memory.word(start + 16 * index).zip(memory.word(start + 16 * index + 8));
        let dynamic = (0..entries).map_while(pair).take_while(|pair| pair.0 != 0).collect();
        // SAFETY: the name is null, or a C string that belongs to the linker.
        let file = (!info.dlpi_name.is_null()).then(|| unsafe { CStr::from_ptr(info.dlpi_name) });
        let file = file.map(|file| file.to_bytes().to_owned()).unwrap_or_default();
        Some(Self { memory, base, spans, file, dynamic })
    }

    fn covers(&self, address: usize) -> bool {
        self.spans.iter().any(|&(start, size)| (start..start + size).contains(&address))
    }

    fn value(&self, tag: usize) -> Option<usize> {
        self.dynamic.iter().find(|pair| pair.0 == tag).map(|pair| pair.1)
    }

    /// Returns the address of a table of the dynamic section. When the linker loads a module, it adds the module's base
    /// to the address in the dynamic section. If the dynamic section is read-only, the linker cannot add the base, and
    /// this function adds it instead.
    fn table(&self, tag: usize) -> Option<usize> {
        let address = self.value(tag)?;
        let address = if address < self.base { address + self.base } else { address };
        self.covers(address).then_some(address)
    }

    /// Returns the name by which other modules refer to this module as a dependency: the SONAME, or the file name if
    /// there is no SONAME.
    fn own_name(&self) -> Vec<u8> {
        let soname =
            self.value(DT_SONAME).and_then(|at| self.memory.string(self.table(DT_STRTAB)?.checked_add(at)?));
        let file = self.file.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        soname.unwrap_or_else(|| file.to_owned())
    }

    /// Whether the module's string at this offset is `text`.
    fn has_string(&self, at: usize, text: &[u8]) -> bool {
        self.table(DT_STRTAB).is_some_and(|strings| self.memory.is_string(strings + at, text))
    }

    fn depends_on(&self, name: &[u8]) -> bool {
        let mut needed = self.dynamic.iter().filter(|pair| pair.0 == DT_NEEDED);
        needed.any(|&(_, at)| self.has_string(at, name))
    }

    /// Replaces the value of the exported symbol with the address of gpuflame's function.
    fn replace_export(&self, place: &Interposition, write: &mut dyn FnMut(usize, usize)) -> Option<()> {
        let symbols = self.table(DT_SYMTAB)?;
        self.visit_hashed_symbols(place.name, &mut |symbol| {
            let at = symbols + SYMBOL_BYTES * symbol as usize + 8;
            let value = self.memory.word(at).map(|value| self.base.wrapping_add(value));
            if value == Some(place.original) {
                write(at, place.replacement.wrapping_sub(self.base));
            }
        })
    }

    /// Calls `look` with the index of each symbol named `name` in the hash table that the linker searches.
    fn visit_hashed_symbols(&self, name: &str, look: &mut dyn FnMut(u32)) -> Option<()> {
        let (hashes, symbols) = (self.table(DT_GNU_HASH)?, self.table(DT_SYMTAB)?);
        let hash =
            name.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        // The table DT_GNU_HASH has four numbers, a Bloom filter of 64-bit words, then buckets and chains of 32-bit
        // numbers.
        let number = |at: usize| self.memory.number(hashes + at);
        let (buckets, first, filter) = (number(0)?, number(4)?, number(8)?);
        let start = 16 + 8 * filter as usize;
        let mut symbol = number(start + 4 * hash.checked_rem(buckets)? as usize)?;
        while symbol >= first {
            let chained = number(start + 4 * (buckets + symbol - first) as usize)?;
            let text = self.memory.number(symbols + SYMBOL_BYTES * symbol as usize)?;
            if chained | 1 == hash | 1 && self.has_string(text as usize, name.as_bytes()) {
                look(symbol);
            }
            if chained & 1 == 1 {
                break;
            }
            symbol += 1;
        }
        Some(())
    }

    /// Returns the symbols with these names to which the module's slots may refer, as (index of the symbol, index of
    /// the name). Most imported symbols precede the symbols in the hash table. An imported function is in the hash
    /// table only if the program compares its address.
    fn referenced_symbols(&self, names: &[&str]) -> Vec<(u32, usize)> {
        let mut found = Vec::new();
        let Some(symbols) = self.table(DT_SYMTAB) else { return found };
        let Some(hashes) = self.table(DT_GNU_HASH).or_else(|| self.table(DT_HASH)) else { return found };
        // The second number of DT_GNU_HASH is the index of its first symbol. In the older kind of hash table (DT_HASH),
        // which contains all symbols, the second number is the number of symbols.
        let listed = self.memory.number(hashes + 4).unwrap_or(0);
        // GNU's linker gives a program that exports nothing an empty hash table, whose first symbol has the index 1. If
        // the hash table is empty, the strings directly follow the symbols.
        let is_empty = self.table(DT_GNU_HASH).is_some() && listed <= 1;
        let end = match self.table(DT_STRTAB).filter(|strings| is_empty && *strings > symbols) {
            Some(strings) => ((strings - symbols) / SYMBOL_BYTES) as u32,
            None => listed,
        };
        for symbol in 1..end {
            let Some(text) = self.memory.number(symbols + SYMBOL_BYTES * symbol as usize) else { break };
            let is_named = |name: &&str| self.has_string(text as usize, name.as_bytes());
            found.extend(names.iter().position(is_named).map(|at| (symbol, at)));
        }
        for (at, name) in names.iter().enumerate() {
            self.visit_hashed_symbols(name, &mut |symbol| found.push((symbol, at)));
        }
        found
    }

    /// Replaces the functions' addresses in the slots that the linker has already filled. Slots that the linker fills
    /// on the first call need no change, because the linker will store the address of gpuflame's function in these
    /// slots.
    fn exchange_slots(&self, places: &[Interposition], write: &mut dyn FnMut(usize, usize)) {
        let names: Vec<_> = places.iter().map(|place| place.name).collect();
        self.visit_slots(&names, &mut |slot, at| {
            if self.memory.word(slot) == Some(places[at].original) {
                write(slot, places[at].replacement);
            }
        });
    }

    /// Calls `look` with each slot for a function with one of these names, and with the index of the name. The linker
    /// may or may not have filled the slot yet. The slots are found by the symbols in their relocations. Therefore most
    /// of the slots of a machine-learning library (hundreds of thousands) need not be read.
    fn visit_slots(&self, names: &[&str], look: &mut dyn FnMut(usize, usize)) {
        let symbols = self.referenced_symbols(names);
        if symbols.is_empty() {
            return;
        }
        let tables =
            [(DT_JMPREL, DT_PLTRELSZ, 0), (DT_RELA, DT_RELASZ, self.value(DT_RELACOUNT).unwrap_or(0))];
        for (table, size, first) in tables {
            let (Some(table), Some(size)) = (self.table(table), self.value(size)) else { continue };
            for at in (first..size / RELOCATION_BYTES).map(|index| table + RELOCATION_BYTES * index) {
                // A relocation entry contains the slot's address, the relocation's type, and the symbol's index.
                let Some(symbol) = self.memory.number(at + 12) else { break };
                let Some((_, name)) = symbols.iter().find(|(named, _)| *named == symbol) else { continue };
                let is_address =
                    self.memory.number(at + 8).is_some_and(|kind| ADDRESS_RELOCATIONS.contains(&kind));
                let slot = self.memory.word(at).map(|offset| self.base.wrapping_add(offset));
                if let Some(slot) = slot.filter(|slot| is_address && self.covers(*slot)) {
                    look(slot, *name);
                }
            }
        }
    }
}

/// Calls `look` for each loaded module. No module is loaded or unloaded during the visit.
fn visit_modules(memory: &ProcessMemory, look: &mut dyn FnMut(&LoadedModule<'_>)) {
    type Visitor<'a> = (&'a ProcessMemory, &'a mut dyn FnMut(&LoadedModule<'_>));
    unsafe extern "C" fn step(info: *mut libc::dl_phdr_info, _size: usize, visitor: *mut c_void) -> c_int {
        // SAFETY: `visit_modules` passed this pair, and no other code uses the pair during the visit.
        let (memory, look) = unsafe { &mut *visitor.cast::<Visitor<'_>>() };
        // SAFETY: the linker passes a valid description.
        let module = LoadedModule::from_linker(unsafe { &*info }, memory);
        // A panic must not cross the linker's frames.
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| module.iter().for_each(look)));
        c_int::from(looked.is_err())
    }
    let mut visitor: Visitor<'_> = (memory, look);
    // SAFETY: `step` gets the pointer to this pair, which exists until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(step), (&raw mut visitor).cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        /// Function of the C library that the test replaces. No other code in this crate calls this function, which
        /// returns a string.
        fn gnu_get_libc_release() -> *const std::ffi::c_char;
    }

    unsafe extern "C" fn ours() -> *const std::ffi::c_char {
        c"ours".as_ptr()
    }

    /// Calls the function through the table of addresses that the linker fills.
    #[inline(never)]
    fn by_table() -> &'static CStr {
        // SAFETY: the function takes no arguments and returns a constant string.
        unsafe { CStr::from_ptr(gnu_get_libc_release()) }
    }

    /// Checks that a replacement works in this test program, whose own table is read-only at run time, as in most
    /// programs.
    #[test]
    fn interposed_calls_and_new_lookups_reach_ours_but_saved_addresses_do_not() {
        let ask = || {
            // SAFETY: the name is a C string, and the C library exports it.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gnu_get_libc_release".as_ptr()) }
        };
        let text = |function: *mut c_void| {
            // SAFETY: the address belongs to the C library's function, or to gpuflame's function of the same type.
            let function: unsafe extern "C" fn() -> *const std::ffi::c_char =
                unsafe { std::mem::transmute(function) };
            // SAFETY: the function returns a constant string.
            unsafe { CStr::from_ptr(function()) }
        };
        let theirs = ask();
        let before = text(theirs);
        assert_eq!(by_table(), before);
        let place = Interposition {
            name: "gnu_get_libc_release",
            original: theirs.addr(),
            replacement: ours as *const () as usize,
        };
        assert!(replace_functions(&[place]).unwrap() >= 2);
        assert_eq!(by_table(), c"ours");
        assert_eq!(text(ask()), c"ours");
        assert_eq!(text(theirs), before);
        assert_eq!(replace_functions(&[place]).unwrap(), 0, "all words were already changed");
    }

    /// The test changes slots of this test program. `dlsym` does not read slots, so it still finds the library's
    /// function.
    #[test]
    fn a_function_replaced_in_one_modules_slots_is_still_found_by_dlsym() {
        unsafe extern "C" {
            /// A function of the C library that no other test calls.
            fn gnu_dev_major(device: u64) -> u32;
        }
        unsafe extern "C" fn ours(_: u64) -> u32 {
            77
        }
        #[inline(never)]
        fn by_table(device: u64) -> u32 {
            // SAFETY: the function accepts any number.
            unsafe { gnu_dev_major(device) }
        }
        let before = by_table(0x801);
        let inside = by_table as *const () as usize;
        assert!(replace_in_module(inside, "gnu_dev_major", ours as *const () as usize).unwrap() >= 1);
        assert_eq!((before, by_table(0x801)), (8, 77));
        // SAFETY: the name is a C string, and the C library exports it.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gnu_dev_major".as_ptr()) };
        assert_ne!(found.addr(), ours as *const () as usize);
        assert_eq!(replace_in_module(16, "gnu_dev_major", 16).unwrap(), 0, "no module is there");
    }

    #[test]
    fn interposing_an_address_outside_all_libraries_fails() {
        let place = Interposition { name: "nothing", original: 16, replacement: 16 };
        assert_eq!(replace_functions(&[place]).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(replace_functions(&[]).unwrap(), 0);
    }
}
