//! Symbols of one file for many addresses at a time, through the `blazesym` crate.
//!
//! A file that is gone, was replaced since it was loaded, or cannot be read gives no symbols: that is no
//! error, the frames then show the module and the offset.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};

use crate::record::Module;

/// The functions that an address is in, still mangled: the one with code of its own first, then those
/// inlined at the address, outermost first. Empty where there is no symbol.
pub(super) type Symbols = Vec<String>;

/// Reads files. Made anew for each round, so that no file stays mapped into the host between rounds.
pub(super) struct Files {
    blazesym: Symbolizer,
}

impl Files {
    pub(super) fn new() -> Self {
        Self { blazesym: Symbolizer::builder().enable_demangling(false).enable_auto_reload(false).build() }
    }

    /// The symbols of `module` at `addresses` (of the file, not of the process).
    pub(super) fn symbols(&self, module: &Module, addresses: &[u64]) -> Vec<Symbols> {
        let path = Path::new(&module.path);
        // Only what is a plain file now: opening a pipe or a device could block the host for good.
        if !path.is_file() {
            return vec![Symbols::new(); addresses.len()];
        }
        // The file is somebody else's and may be broken in ways that the parsers did not foresee. In the
        // host's process that must not cost more than its names.
        let symbols = catch_unwind(AssertUnwindSafe(|| {
            if !is_same(path, &module.build_id) {
                return None;
            }
            self.ask_both(path, addresses)
        }));
        symbols.ok().flatten().unwrap_or_else(|| vec![Symbols::new(); addresses.len()])
    }

    /// The debug information knows what was inlined, but with line tables only (as Rust's release builds
    /// have them, or `-g1`) its names lack their namespaces. The symbol table knows the rest.
    fn ask_both(&self, path: &Path, addresses: &[u64]) -> Option<Vec<Symbols>> {
        let Some(mut found) = self.ask(path, addresses, true) else {
            return self.ask(path, addresses, false);
        };
        let (plain, asked): (Vec<usize>, Vec<u64>) = (0..found.len())
            .filter(|&at| found[at].first().is_some_and(|name| !is_mangled(name)))
            .map(|at| (at, addresses[at]))
            .unzip();
        for (at, symbols) in plain.into_iter().zip(self.ask(path, &asked, false).unwrap_or_default()) {
            if let Some(symbol) = symbols.into_iter().next().filter(|symbol| is_mangled(symbol)) {
                found[at][0] = symbol;
            }
        }
        Some(found)
    }

    fn ask(&self, path: &Path, addresses: &[u64], debug_syms: bool) -> Option<Vec<Symbols>> {
        let mut elf = Elf::new(path);
        elf.debug_syms = debug_syms;
        let found = self.blazesym.symbolize(&Source::Elf(elf), Input::VirtOffset(addresses)).ok()?;
        Some(found.into_iter().map(names).collect())
    }
}

fn names(found: Symbolized<'_>) -> Symbols {
    match found {
        Symbolized::Sym(symbol) => {
            let inlined = symbol.inlined.iter().map(|inlined| inlined.name.to_string());
            std::iter::once(symbol.name.to_string()).chain(inlined).collect()
        }
        Symbolized::Unknown(_) => Symbols::new(),
    }
}

fn is_mangled(symbol: &str) -> bool {
    symbol.starts_with("_Z") || symbol.starts_with("_R")
}

/// Whether the file is still the one that was loaded. Without a build id it is taken to be.
fn is_same(path: &Path, build_id: &[u8]) -> bool {
    build_id.is_empty() || read_elf_build_id(path).ok().flatten().is_some_and(|now| now.as_ref() == build_id)
}
