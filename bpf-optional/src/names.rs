//! Names of places in files; each place is looked up once.

use std::collections::HashMap;

use blazesym::symbolize::source::{Elf, Kernel, Source};
use blazesym::symbolize::{Input, Sym, Symbolized, Symbolizer};

use crate::spaces::{Files, Place};

/// Looks up the names of places.
#[derive(Debug)]
pub(crate) struct Names {
    symbolizer: Symbolizer,
    /// Frames of a place, outermost first. Inlined functions have separate frames.
    known: HashMap<Place, Vec<String>>,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self { symbolizer: Symbolizer::new(), known: HashMap::new() }
    }

    /// Returns the frames of `places`, root first. The `places` themselves are leaf first.
    pub(crate) fn frames(&mut self, files: &Files, places: &[Place]) -> Vec<String> {
        places.iter().rev().flat_map(|place| self.of(files, *place).to_owned()).collect()
    }

    fn of(&mut self, files: &Files, place: Place) -> &[String] {
        let symbolizer = &self.symbolizer;
        self.known.entry(place).or_insert_with(|| match place.file {
            Place::KERNEL => kernel(symbolizer, place.offset),
            _ => user(symbolizer, files, place),
        })
    }
}

fn user(symbolizer: &Symbolizer, files: &Files, place: Place) -> Vec<String> {
    let Some(file) = files.get(place.file) else { return vec!["[unknown]".to_owned()] };
    let source = Source::Elf(Elf::new(&file.open));
    match symbolizer.symbolize_single(&source, Input::FileOffset(place.offset)) {
        Ok(Symbolized::Sym(symbol)) => frames(&symbol),
        _ => {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy();
            vec![clean(&format!("{name}+{:#x}", place.offset))]
        }
    }
}

fn kernel(symbolizer: &Symbolizer, address: u64) -> Vec<String> {
    let source = Source::Kernel(Kernel { debug_syms: false, ..Kernel::default() });
    match symbolizer.symbolize_single(&source, Input::AbsAddr(address)) {
        Ok(Symbolized::Sym(symbol)) => vec![clean(&format!("{}_[k]", symbol.name))],
        _ => vec![format!("{address:#x}_[k]")],
    }
}

fn frames(symbol: &Sym<'_>) -> Vec<String> {
    let outer = std::iter::once(&symbol.name);
    outer.chain(symbol.inlined.iter().map(|inlined| &inlined.name)).map(|name| clean(name)).collect()
}

/// Returns a name without characters that would end the frame or the line that contains the name.
pub(crate) fn clean(name: &str) -> String {
    name.replace(';', ":").replace(['\n', '\r'], " ")
}
