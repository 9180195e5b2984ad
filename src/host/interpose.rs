//! Functions of ours in the place of a loaded library's: who asks the dynamic linker for one of those from now on is given ours,
//! and who has asked already, and calls through the table that the linker filled for him, comes to ours too.
//!
//! ```text
//! a module that is loaded later, dlsym --> symbol of the library: its value is exchanged
//! a module that is there               --> its slot for the function: the address in it is exchanged
//! ```
//!
//! Who keeps an address that he was given before goes on calling the library, and so do we.
//!
//! Written are words that the linker itself wrote or reads, in this process's own copy of the page, through `/proc/self/mem`: that
//! writes where the linker has made pages read-only behind it, and where it may not it answers with an error. So no page changes
//! its protection under those who use it, and no write can fault. Modules' tables and slots are read through it too: a program may
//! have protected or unmapped their pages. All of it happens in a visit of the linker's, which loads and unloads nothing meanwhile.

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;

use super::descriptor::{self, Identity};

/// One function.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// As the library exports it.
    pub name: &'static str,
    /// Where the library has it.
    pub theirs: usize,
    /// What is called instead: a function of the same type that stays for ever.
    pub ours: usize,
}

/// Puts ours in all `places`, which are of one library; says how many words that took. What cannot be written stays as it was,
/// and is called as before.
///
/// # Errors
/// The memory of this process cannot be written as a file, or the library is not found.
pub fn take(places: &[Place]) -> io::Result<usize> {
    let Some(first) = places.first() else { return Ok(0) };
    let memory = Memory::open()?;
    let mut library = None;
    visit(&memory, |module| {
        if module.covers(first.theirs) {
            library = Some((module.base, module.own_name()));
        }
    });
    let (base, name) = library.ok_or(io::ErrorKind::NotFound)?;
    let mut written = 0;
    visit(&memory, |module| {
        let mut write = |at: usize, word: usize| {
            written += usize::from(memory.write(at, word).is_ok());
        };
        if module.base == base {
            for place in places {
                module.export(place, &mut write);
            }
        } else if module.needs(&name) {
            module.exchange_slots(places, &mut write);
        }
    });
    Ok(written)
}

/// Replaces the function `name` in the slots of one module, the one that contains the address `inside`: that module calls
/// `ours` from now on, and every other module calls the same function as before. Returns the number of slots.
///
/// # Errors
/// The memory of this process cannot be written as a file.
pub fn take_in(inside: usize, name: &str, ours: usize) -> io::Result<usize> {
    let memory = Memory::open()?;
    let mut written = 0;
    visit(&memory, |module| {
        if module.covers(inside) {
            module.slots(&[name], |slot, _| written += usize::from(memory.write(slot, ours).is_ok()));
        }
    });
    Ok(written)
}

/// This process's memory as a file. The host may close any descriptor, and open a file of its own under the number.
struct Memory {
    file: ManuallyDrop<File>,
    identity: Identity,
    /// The pages that were read last. Tables are read in order, several at a time.
    pages: RefCell<Pages>,
}

/// Copies of pages, which replace each other in turn.
struct Pages {
    copies: [Option<(usize, Box<[u8; PAGE]>)>; 8],
    next: usize,
}

const PAGE: usize = 4096;

impl Memory {
    fn open() -> io::Result<Self> {
        descriptor::make_room();
        let file = descriptor::raise(OpenOptions::new().read(true).write(true).open("/proc/self/mem")?);
        let pages = RefCell::new(Pages { copies: [const { None }; 8], next: 0 });
        Ok(Self { identity: Identity::of(&file)?, file: ManuallyDrop::new(file), pages })
    }

    fn word(&self, at: usize) -> Option<usize> {
        self.bytes(at).map(usize::from_ne_bytes)
    }

    fn number(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_ne_bytes)
    }

    /// The bytes at an address; `None` if there is no memory. Writes since the page was read may be missing.
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let offset = at % PAGE;
        if let Some(end) = offset.checked_add(N).filter(|end| *end <= PAGE) {
            return self.on_page(at - offset, |page| page[offset..end].try_into().ok())?;
        }
        let mut bytes = [0; N];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(at.checked_add(index)?)?;
        }
        Some(bytes)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.on_page(at / PAGE * PAGE, |page| page[at % PAGE])
    }

    fn on_page<R>(&self, page: usize, look: impl FnOnce(&[u8; PAGE]) -> R) -> Option<R> {
        let mut pages = self.pages.borrow_mut();
        let known = pages.copies.iter().flatten().find(|(of, _)| *of == page);
        if let Some((_, copy)) = known {
            return Some(look(copy));
        }
        if !self.is_ours() {
            return None;
        }
        let mut copy = Box::new([0; PAGE]);
        let mut file = &*self.file;
        // Not `pread`: a filter of system calls may not allow it.
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

    /// The C string at an address, if it ends within `MAX_NAME_BYTES`.
    fn string(&self, at: usize) -> Option<Vec<u8>> {
        let bytes: Vec<u8> =
            (0..MAX_NAME_BYTES).map_while(|index| self.byte(at + index).filter(|byte| *byte != 0)).collect();
        (bytes.len() < MAX_NAME_BYTES).then_some(bytes)
    }

    fn is_ours(&self) -> bool {
        Identity::of(&self.file).is_ok_and(|identity| identity == self.identity)
    }

    fn write(&self, at: usize, word: usize) -> io::Result<()> {
        if !self.is_ours() {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.file.write_all_at(&word.to_ne_bytes(), at as u64)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped here, and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// A module while the linker is visited, which keeps it loaded.
struct Module<'a> {
    memory: &'a Memory,
    base: usize,
    /// Address and size of its code and data.
    spans: Vec<(usize, usize)>,
    file: Vec<u8>,
    dynamic: Vec<(usize, usize)>,
}

/// Tags of the dynamic section, and sizes of what it points to, in bytes (`elf.h`).
const NEEDED: usize = 1;
const OLD_HASH: usize = 4;
const STRINGS: usize = 5;
const SYMBOLS: usize = 6;
const RELOCATIONS: usize = 7;
const RELOCATIONS_SIZE: usize = 8;
const SONAME: usize = 14;
const CALLS: usize = 23;
const CALLS_SIZE: usize = 2;
const HASH: usize = 0x6fff_fef5;
const RELATIVE_COUNT: usize = 0x6fff_fff9;
const MAX_NAME_BYTES: usize = 4096;
const SYMBOL: usize = 24;
const RELOCATION: usize = 24;

/// Relocations by which a word is to be a symbol's address: of a pointer, of a table's slot, and of one for calls.
#[cfg(target_arch = "x86_64")]
const ADDRESSES: [u32; 3] = [1, 6, 7];
#[cfg(not(target_arch = "x86_64"))]
const ADDRESSES: [u32; 3] = [257, 1025, 1026];

impl<'a> Module<'a> {
    /// The one that the linker describes; `None` for the kernel's, which has no tables that the linker fills.
    fn of(info: &libc::dl_phdr_info, memory: &'a Memory) -> Option<Self> {
        let base = usize::try_from(info.dlpi_addr).ok()?;
        // SAFETY: the linker's list of so many headers, which stays during the visit.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let spans = loaded.map(|header| (base + header.p_vaddr as usize, header.p_memsz as usize)).collect();
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let (start, entries) = (base + dynamic.p_vaddr as usize, dynamic.p_memsz as usize / 16);
        let pair = |index: usize| memory.word(start + 16 * index).zip(memory.word(start + 16 * index + 8));
        let dynamic = (0..entries).map_while(pair).take_while(|pair| pair.0 != 0).collect();
        // SAFETY: null, or a C string of the linker's.
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

    /// The address of a table. The linker adds the base when it loads a module, but to those whose section is read-only.
    fn table(&self, tag: usize) -> Option<usize> {
        let address = self.value(tag)?;
        let address = if address < self.base { address + self.base } else { address };
        self.covers(address).then_some(address)
    }

    /// What others call it by: its own word for that, or its file's name.
    fn own_name(&self) -> Vec<u8> {
        let soname =
            self.value(SONAME).and_then(|at| self.memory.string(self.table(STRINGS)?.checked_add(at)?));
        let file = self.file.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        soname.unwrap_or_else(|| file.to_owned())
    }

    /// Whether its string at this offset is `text`.
    fn has_string(&self, at: usize, text: &[u8]) -> bool {
        self.table(STRINGS).is_some_and(|strings| self.memory.is_string(strings + at, text))
    }

    fn needs(&self, name: &[u8]) -> bool {
        let mut needed = self.dynamic.iter().filter(|pair| pair.0 == NEEDED);
        needed.any(|&(_, at)| self.has_string(at, name))
    }

    /// Exchanges the value of the symbol.
    fn export(&self, place: &Place, write: &mut impl FnMut(usize, usize)) -> Option<()> {
        let symbols = self.table(SYMBOLS)?;
        self.hashed(place.name, |symbol| {
            let at = symbols + SYMBOL * symbol as usize + 8;
            let value = self.memory.word(at).map(|value| self.base.wrapping_add(value));
            if value == Some(place.theirs) {
                write(at, place.ours.wrapping_sub(self.base));
            }
        })
    }

    /// Hands `look` the number of each symbol of this name in the table of hashes that the linker finds it by.
    fn hashed(&self, name: &str, mut look: impl FnMut(u32)) -> Option<()> {
        let (hashes, symbols) = (self.table(HASH)?, self.table(SYMBOLS)?);
        let hash =
            name.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        // Four numbers, a filter of words, then buckets and chains of numbers.
        let number = |at: usize| self.memory.number(hashes + at);
        let (buckets, first, filter) = (number(0)?, number(4)?, number(8)?);
        let start = 16 + 8 * filter as usize;
        let mut symbol = number(start + 4 * hash.checked_rem(buckets)? as usize)?;
        while symbol >= first {
            let chained = number(start + 4 * (buckets + symbol - first) as usize)?;
            let text = self.memory.number(symbols + SYMBOL * symbol as usize)?;
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

    /// Numbers of the symbols of these names that the module's slots may refer to. Imported symbols come before those in the
    /// table of hashes, but for functions whose address a program compares.
    fn symbols(&self, names: &[&str]) -> Vec<(u32, usize)> {
        let mut found = Vec::new();
        let Some(symbols) = self.table(SYMBOLS) else { return found };
        let Some(hashes) = self.table(HASH).or_else(|| self.table(OLD_HASH)) else { return found };
        // The second number of the table is that of the first symbol in it; in the older kind of table, which has all symbols,
        // it is how many there are.
        for symbol in 1..self.memory.number(hashes + 4).unwrap_or(0) {
            let Some(text) = self.memory.number(symbols + SYMBOL * symbol as usize) else { break };
            let is_named = |name: &&str| self.has_string(text as usize, name.as_bytes());
            found.extend(names.iter().position(is_named).map(|at| (symbol, at)));
        }
        for (at, name) in names.iter().enumerate() {
            self.hashed(name, |symbol| found.push((symbol, at)));
        }
        found
    }

    /// Exchanges what the linker has written already. Slots that it fills at the first call are still without an address, and
    /// it will fill them with ours.
    fn exchange_slots(&self, places: &[Place], write: &mut impl FnMut(usize, usize)) {
        let names: Vec<_> = places.iter().map(|place| place.name).collect();
        self.slots(&names, |slot, at| {
            if self.memory.word(slot) == Some(places[at].theirs) {
                write(slot, places[at].ours);
            }
        });
    }

    /// Hands `look` the slots for functions of these names, filled or not, and which name it is. Found by the relocations'
    /// symbols: libraries of machine learning have hundreds of thousands of slots, of which most need not be read.
    fn slots(&self, names: &[&str], mut look: impl FnMut(usize, usize)) {
        let symbols = self.symbols(names);
        if symbols.is_empty() {
            return;
        }
        let tables = [
            (CALLS, CALLS_SIZE, 0),
            (RELOCATIONS, RELOCATIONS_SIZE, self.value(RELATIVE_COUNT).unwrap_or(0)),
        ];
        for (table, size, first) in tables {
            let (Some(table), Some(size)) = (self.table(table), self.value(size)) else { continue };
            for at in (first..size / RELOCATION).map(|index| table + RELOCATION * index) {
                // An entry: the place, the type, and the number of the symbol.
                let Some(symbol) = self.memory.number(at + 12) else { break };
                let Some((_, name)) = symbols.iter().find(|(named, _)| *named == symbol) else { continue };
                let is_address = self.memory.number(at + 8).is_some_and(|kind| ADDRESSES.contains(&kind));
                let slot = self.memory.word(at).map(|offset| self.base.wrapping_add(offset));
                if let Some(slot) = slot.filter(|slot| is_address && self.covers(*slot)) {
                    look(slot, *name);
                }
            }
        }
    }
}

/// Shows `look` all modules; none is loaded or unloaded meanwhile.
fn visit(memory: &Memory, look: impl FnMut(&Module<'_>)) {
    unsafe extern "C" fn step<F: FnMut(&Module<'_>)>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        visitor: *mut c_void,
    ) -> c_int {
        // SAFETY: `visit` passed this pair, which nothing else uses meanwhile.
        let (memory, look) = unsafe { &mut *visitor.cast::<(&Memory, F)>() };
        // SAFETY: the linker passes a valid description.
        let module = Module::of(unsafe { &*info }, memory);
        // A panic must not cross the linker's frames.
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| module.iter().for_each(look)));
        c_int::from(looked.is_err())
    }
    let callback = step_of(&look);
    let mut visitor = (memory, look);
    // SAFETY: `step` is instantiated for the type behind the pointer that it is given.
    unsafe { libc::dl_iterate_phdr(Some(callback), (&raw mut visitor).cast()) };

    type Step = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
    fn step_of<F: FnMut(&Module<'_>)>(_: &F) -> Step {
        step::<F>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        /// Of the C library: a string that nobody here needs.
        fn gnu_get_libc_release() -> *const std::ffi::c_char;
    }

    unsafe extern "C" fn ours() -> *const std::ffi::c_char {
        c"ours".as_ptr()
    }

    /// Loads the address at each call.
    #[inline(never)]
    fn by_table() -> &'static CStr {
        // SAFETY: takes nothing, gives a constant string.
        unsafe { CStr::from_ptr(gnu_get_libc_release()) }
    }

    /// This program's own table is read-only once it runs, as most are.
    #[test]
    fn who_calls_by_a_table_and_who_asks_anew_come_to_ours_and_a_kept_address_does_not() {
        let ask = || {
            // SAFETY: a name of the C library's.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gnu_get_libc_release".as_ptr()) }
        };
        let text = |function: *mut c_void| {
            // SAFETY: the C library's function, or ours of its type.
            let function: unsafe extern "C" fn() -> *const std::ffi::c_char =
                unsafe { std::mem::transmute(function) };
            // SAFETY: it gives a constant string.
            unsafe { CStr::from_ptr(function()) }
        };
        let theirs = ask();
        let before = text(theirs);
        assert_eq!(by_table(), before);
        let place =
            Place { name: "gnu_get_libc_release", theirs: theirs.addr(), ours: ours as *const () as usize };
        assert!(take(&[place]).unwrap() >= 2);
        assert_eq!(by_table(), c"ours");
        assert_eq!(text(ask()), c"ours");
        assert_eq!(text(theirs), before);
        assert_eq!(take(&[place]).unwrap(), 0, "all done");
    }

    /// The module is this program. `dlsym` does not look at slots.
    #[test]
    fn a_function_replaced_in_the_slots_of_one_module_is_still_found_by_its_name() {
        unsafe extern "C" {
            /// A function of the C library that no other test calls.
            fn gnu_dev_major(device: u64) -> u32;
        }
        unsafe extern "C" fn ours(_: u64) -> u32 {
            77
        }
        #[inline(never)]
        fn by_table(device: u64) -> u32 {
            // SAFETY: takes any number.
            unsafe { gnu_dev_major(device) }
        }
        let before = by_table(0x801);
        let inside = by_table as *const () as usize;
        assert!(take_in(inside, "gnu_dev_major", ours as *const () as usize).unwrap() >= 1);
        assert_eq!((before, by_table(0x801)), (8, 77));
        // SAFETY: a name of the C library's.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gnu_dev_major".as_ptr()) };
        assert_ne!(found.addr(), ours as *const () as usize);
        assert_eq!(take_in(16, "gnu_dev_major", 16).unwrap(), 0, "no module is there");
    }

    #[test]
    fn what_lies_in_no_library_is_in_no_place() {
        let place = Place { name: "nothing", theirs: 16, ours: 16 };
        assert_eq!(take(&[place]).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(take(&[]).unwrap(), 0);
    }
}
