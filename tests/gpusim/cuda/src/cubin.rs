//! Cubins: ELF files whose functions are kernels. Of an image that is one, the names of its kernels, its variables and its length
//! are read, and nothing else. Loading tells no length, so that every place in the image is taken from its headers, as the driver takes it.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_void};

/// What a cubin holds.
#[derive(Debug)]
pub(crate) struct Cubin {
    /// Mangled.
    pub(crate) kernels: HashSet<CString>,
    /// How many bytes each has.
    pub(crate) variables: HashMap<CString, usize>,
    pub(crate) bytes: usize,
}

/// `.text.NAME` is the code of a function, whatever else is said of it.
const TEXT: &[u8] = b".text.";
/// Types of sections: symbols; one that has no bytes in the file.
const SYMBOLS: u32 = 2;
const NO_BITS: u32 = 8;
/// A symbol's type in the lower half of its byte: a variable, a function.
const VARIABLE: u8 = 1;
const FUNCTION: u8 = 2;
/// Among a symbol's other bits, NVIDIA's: the host may launch this function, and it is not one that kernels call.
const ENTRY: u8 = 0x10;

/// The image that a program loads.
struct Image(*const u8);

/// A symbol that has a name.
struct Symbol {
    name: CString,
    kind: u8,
    is_entry: bool,
    bytes: usize,
}

/// A section: where its name, its bytes and the section that belongs to it are.
struct Section {
    name: usize,
    kind: u32,
    start: usize,
    bytes: usize,
    link: usize,
    entry_bytes: usize,
}

impl Cubin {
    /// `None`: the image is something else, of which nothing is known, as PTX or a fat binary.
    pub(crate) fn of(image: *const c_void) -> Option<Cubin> {
        let image = Image(image.cast());
        // One byte after another: another image may end before the fourth. And 64 bits, with the lower byte first.
        if !b"\x7fELF\x02\x01".iter().enumerate().all(|(at, byte)| image.u8(at) == *byte) {
            return None;
        }
        let [headers, programs] = [40, 32].map(|at| image.u64(at));
        let [program_bytes, program_count, header_bytes, count, names] =
            [54, 56, 58, 60, 62].map(|at| image.u16(at));
        let sections: Vec<Section> =
            (0..count).map(|at| image.section(headers + at * header_bytes)).collect();
        let kept = sections.iter().filter(|section| section.kind != NO_BITS);
        let ends = kept.map(|section| section.start + section.bytes);
        let tables = [64, headers + count * header_bytes, programs + program_count * program_bytes];
        let bytes = ends.chain(tables).max().unwrap_or_default();
        let mut kernels = HashSet::new();
        if let Some(names) = sections.get(names) {
            let names = sections.iter().map(|section| image.text(names.start + section.name));
            let of_code = names.filter_map(|name| name.to_bytes().strip_prefix(TEXT));
            kernels.extend(of_code.filter_map(|name| CString::new(name).ok()));
        }
        let mut variables = HashMap::new();
        let tables = sections.iter().filter(|section| section.kind == SYMBOLS);
        for symbol in tables.flat_map(|symbols| image.symbols(symbols, sections.get(symbols.link))) {
            match symbol.kind {
                FUNCTION if symbol.is_entry => drop(kernels.insert(symbol.name)),
                // One that kernels call has code of its own as well.
                FUNCTION => drop(kernels.remove(&symbol.name)),
                VARIABLE if symbol.bytes > 0 => drop(variables.insert(symbol.name, symbol.bytes)),
                _ => {}
            }
        }
        Some(Cubin { kernels, variables, bytes })
    }
}

impl Image {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        // SAFETY: the C API's contract: a whole image, whose headers tell where what it has lies.
        unsafe { self.0.add(at).cast::<[u8; N]>().read_unaligned() }
    }

    fn u8(&self, at: usize) -> u8 {
        self.bytes::<1>(at)[0]
    }

    fn u16(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes(self.bytes(at)))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> usize {
        u64::from_le_bytes(self.bytes(at)) as usize
    }

    fn text(&self, at: usize) -> &CStr {
        // SAFETY: as above; the strings of an ELF file end in NUL.
        unsafe { CStr::from_ptr(self.0.add(at).cast()) }
    }

    fn section(&self, at: usize) -> Section {
        Section {
            name: self.u32(at) as usize,
            kind: self.u32(at + 4),
            start: self.u64(at + 24),
            bytes: self.u64(at + 32),
            link: self.u32(at + 40) as usize,
            entry_bytes: self.u64(at + 56),
        }
    }

    /// What a table of symbols has.
    fn symbols(&self, symbols: &Section, names: Option<&Section>) -> Vec<Symbol> {
        let Some(names) = names else { return Vec::new() };
        let count = symbols.bytes.checked_div(symbols.entry_bytes).unwrap_or(0);
        let places = (0..count).map(|at| symbols.start + at * symbols.entry_bytes);
        let one = |at: usize| Symbol {
            name: self.text(names.start + self.u32(at) as usize).to_owned(),
            kind: self.u8(at + 4) & 0xf,
            is_entry: self.u8(at + 5) & ENTRY != 0,
            bytes: self.u64(at + 16),
        };
        places.map(one).collect()
    }
}
