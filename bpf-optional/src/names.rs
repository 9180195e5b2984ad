//! Looks up the names of functions by file and offset. Each offset in a file is looked up only once.

use std::collections::HashMap;

use blazesym::symbolize::source::{Elf, Kernel, Source};
use blazesym::symbolize::{Input, Sym, Symbolized, Symbolizer};

use crate::address_spaces::{FileLocation, Files};

/// Looks up function names, and caches the results.
#[derive(Debug)]
pub(crate) struct Symbols {
    symbolizer: Symbolizer,
    /// Function names at an offset in a file: first the function itself, and then the functions that the compiler has
    /// inlined at this offset, outermost first.
    cache: HashMap<FileLocation, Vec<String>>,
}

impl Symbols {
    pub(crate) fn new() -> Self {
        Self { symbolizer: Symbolizer::new(), cache: HashMap::new() }
    }

    /// Returns the function names in the stack `places`, root first. The stack `places` begins with the leaf.
    pub(crate) fn frames(&mut self, files: &Files, places: &[FileLocation]) -> Vec<String> {
        places.iter().rev().flat_map(|place| self.look_up(files, *place).to_owned()).collect()
    }

    fn look_up(&mut self, files: &Files, place: FileLocation) -> &[String] {
        let symbolizer = &self.symbolizer;
        self.cache.entry(place).or_insert_with(|| match place.file {
            FileLocation::KERNEL => kernel_frames(symbolizer, place.offset),
            _ => user_frames(symbolizer, files, place),
        })
    }
}

fn user_frames(symbolizer: &Symbolizer, files: &Files, place: FileLocation) -> Vec<String> {
    let Some(file) = files.get(place.file) else { return vec!["[unknown]".to_owned()] };
    let source = Source::Elf(Elf::new(&file.open));
    match symbolizer.symbolize_single(&source, Input::FileOffset(place.offset)) {
        Ok(Symbolized::Sym(symbol)) => symbol_frames(&symbol),
        _ => {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy();
            vec![clean_name(&format!("{name}+{:#x}", place.offset))]
        }
    }
}

fn kernel_frames(symbolizer: &Symbolizer, address: u64) -> Vec<String> {
    let source = Source::Kernel(Kernel { debug_syms: false, ..Kernel::default() });
    match symbolizer.symbolize_single(&source, Input::AbsAddr(address)) {
        Ok(Symbolized::Sym(symbol)) => vec![clean_name(&format!("{}_[k]", symbol.name))],
        _ => vec![format!("{address:#x}_[k]")],
    }
}

fn symbol_frames(symbol: &Sym<'_>) -> Vec<String> {
    let outer = std::iter::once(&symbol.name);
    outer.chain(symbol.inlined.iter().map(|inlined| &inlined.name)).map(|name| clean_name(name)).collect()
}

/// Returns a function name without the characters that end a frame or a line of folded stacks.
pub(crate) fn clean_name(name: &str) -> String {
    name.replace(';', ":").replace(['\n', '\r'], " ")
}
