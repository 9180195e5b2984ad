//! Reads cubins, which are ELF files whose functions are kernels. This module reads the names of the kernels, the names
//! and sizes of the variables, and the length of the cubin. A program passes an image to the driver without its length.
//! Therefore all offsets are taken from the image's headers, as the real driver does.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_void};

/// Kernels and variables in a cubin, and the cubin's length.
#[derive(Debug)]
pub(crate) struct Cubin {
    /// Mangled names of the kernels.
    pub(crate) kernels: HashSet<CString>,
    /// Size in bytes of each variable, by name.
    pub(crate) variables: HashMap<CString, usize>,
    pub(crate) bytes: usize,
}

/// Prefix of the names of code sections: the section `.text.NAME` contains the code of the function `NAME`.
const TEXT: &[u8] = b".text.";
/// Section types: a symbol table, and a section without bytes in the file.
const SYMBOLS: u32 = 2;
const NO_BITS: u32 = 8;
/// Symbol types, stored in the lower four bits of a symbol's info byte: a variable, a function.
const VARIABLE: u8 = 1;
const FUNCTION: u8 = 2;
/// NVIDIA's bit in the `other` byte of a symbol. If the bit is set, the host may launch this function; otherwise only
/// kernels call it.
const ENTRY: u8 = 0x10;

/// Address of the image that a program loads.
struct Image(*const u8);

/// A symbol that has a name.
struct Symbol {
    name: CString,
    kind: u8,
    is_entry: bool,
    bytes: usize,
}

/// An ELF section: the offset of its name, the offset of its bytes, and the index of the section to which it links.
struct Section {
    name: usize,
    kind: u32,
    start: usize,
    bytes: usize,
    link: usize,
    entry_bytes: usize,
}

impl Cubin {
    /// Reads an image. Returns `None` if the image is not a cubin; it may be PTX or a fat binary, which gpusim does not
    /// read.
    pub(crate) fn of(image: *const c_void) -> Option<Cubin> {
        let image = Image(image.cast());
        // Compare the bytes one by one: an image that is not a cubin may end before the fourth byte. A cubin is a
        // 64-bit little-endian ELF file.
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
                // This function can only be called by kernels, so the host cannot launch it. The function's code
                // section was counted as a kernel above, so its name is removed from the kernels here.
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
        // SAFETY: the C API requires a complete image; its headers contain the offsets of all parts of the image.
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
        // SAFETY: as in `bytes`, the C API requires a complete image; the strings of an ELF file end in NUL.
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

    /// Returns the named symbols in a symbol table.
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
