//! Looks up the symbols for all requested addresses of a file in a single query, with the `blazesym` crate.
//!
//! If the file was removed, cannot be read, or was replaced after it was loaded, the query returns the reason instead
//! of symbols. A missing symbol is not an error: for frames without symbols, the module and the offset are shown.

use std::fs::File;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use blazesym::helper::read_elf_build_id;
use blazesym::inspect::{self, Inspector};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};

use gpuflame_model::profile::Unnamed;
use gpuflame_model::record::Module;

/// Name and source line of a function whose code contains an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionSymbol {
    /// Mangled name of the function.
    pub(super) name: String,
    /// Address in the file at which the function begins. The field is `None` for inlined functions and for generated
    /// code.
    pub(super) start: Option<u64>,
    /// Source file and line, if the debug information of the executable or library contains them. The line is 0 if only
    /// the source file is known.
    pub(super) source: Option<(String, u32)>,
}

/// Functions at an address: first the function that was compiled on its own, then the functions that were inlined into
/// it, outermost first. The list always has at least one function. If no function is found, the `Err` contains the
/// reason.
pub(super) type Symbols = Result<Vec<FunctionSymbol>, Unnamed>;

/// Reads symbols from executables and libraries. A new instance is created each time frames are named, so that no file
/// stays mapped into the profiled process between two calls.
pub(super) struct SymbolFiles {
    blazesym: Symbolizer,
}

impl SymbolFiles {
    pub(super) fn new() -> Self {
        Self { blazesym: Symbolizer::builder().enable_demangling(false).enable_auto_reload(false).build() }
    }

    /// Returns the symbols of `module` at `addresses`, which are addresses in the file and not in the process.
    pub(super) fn symbols(&self, module: &Module, addresses: &[u64]) -> Vec<Symbols> {
        // The parsers may panic if the file is damaged. A panic must not affect the profiled process. Its only effect
        // is that the frames in the file have no names.
        let symbols = catch_unwind(AssertUnwindSafe(|| {
            let path = require_regular_file(&module.path)?;
            check_build_id(path, &module.build_id)?;
            self.query_both(path, addresses).ok_or(Unnamed::FileUnreadable)
        }));
        let symbols = symbols.unwrap_or(Err(Unnamed::FileUnreadable));
        symbols.unwrap_or_else(|why| vec![Err(why); addresses.len()])
    }

    /// Combines the results from the debug information and from the symbol table. Only the debug information contains
    /// inlined functions. But if the debug information consists of line tables alone (Rust's release builds, `-g1`),
    /// its function names have no namespaces. The symbol table contains the complete names.
    fn query_both(&self, path: &Path, addresses: &[u64]) -> Option<Vec<Symbols>> {
        let Some(mut found) = self.query(path, addresses, true) else {
            return self.query(path, addresses, false);
        };
        let (plain, asked): (Vec<usize>, Vec<u64>) = (0..found.len())
            .filter(|&at| found[at].as_ref().is_ok_and(|functions| !is_mangled(&functions[0].name)))
            .map(|at| (at, addresses[at]))
            .unzip();
        for (at, symbols) in plain.into_iter().zip(self.query(path, &asked, false).unwrap_or_default()) {
            let whole = symbols.ok().and_then(|functions| functions.into_iter().next());
            if let (Ok(functions), Some(whole)) = (&mut found[at], whole.filter(|it| is_mangled(&it.name))) {
                functions[0].name = whole.name;
            }
        }
        Some(found)
    }

    fn query(&self, path: &Path, addresses: &[u64], debug_syms: bool) -> Option<Vec<Symbols>> {
        let mut elf = Elf::new(path);
        elf.debug_syms = debug_syms;
        let found = self.blazesym.symbolize(&Source::Elf(elf), Input::VirtOffset(addresses)).ok()?;
        let publicly = public_names(path, &found);
        let mut symbols: Vec<Symbols> = found.into_iter().map(names).collect();
        for (at, name) in publicly {
            if let Ok(functions) = &mut symbols[at] {
                functions[0].name = name;
            }
        }
        Some(symbols)
    }
}

/// Finds names of C library functions that must be replaced by the names that programs use. The C library has several
/// names for one address, such as `read`, `__read`, `__libc_read` and `__GI___read`, and a symbol table may return any
/// of them. Programs use the name without leading underscores, so this name is preferred if the file has it for the
/// same address. Returns the positions in `found` of the names that must be replaced, each with the replacement.
fn public_names(path: &Path, found: &[Symbolized<'_>]) -> Vec<(usize, String)> {
    let is_internal = |symbol: &&Sym<'_>| symbol.name.starts_with("__") && is_c_library(path);
    let internal = found.iter().enumerate().filter_map(|(at, found)| Some((at, found.as_sym()?)));
    let internal: Vec<(usize, &Sym<'_>)> = internal.filter(|(_, symbol)| is_internal(symbol)).collect();
    let bare: Vec<&str> = internal.iter().map(|(_, symbol)| public_name(&symbol.name)).collect();
    let mut elf = inspect::source::Elf::new(path);
    elf.debug_syms = false;
    let inspector = Inspector::new();
    let there = match bare[..] {
        [] => Vec::new(),
        _ => inspector.lookup(&inspect::source::Source::Elf(elf), &bare).unwrap_or_default(),
    };
    let named = internal.iter().zip(&bare).enumerate().map(|(nth, ((at, symbol), bare))| {
        let is_at = there.get(nth).is_some_and(|all| all.iter().any(|one| one.addr == symbol.addr));
        let name = if is_at { *bare } else { without_internal_prefix(&symbol.name) };
        (*at, name.to_owned())
    });
    named.collect()
}

/// Removes the prefix that marks a symbol as internal to glibc.
fn without_internal_prefix(symbol: &str) -> &str {
    symbol.strip_prefix("__GI_").unwrap_or(symbol)
}

/// Returns the name by which programs call a function of the C library, such as `read` for `__libc_read`.
fn public_name(symbol: &str) -> &str {
    let bare = without_internal_prefix(symbol).trim_start_matches('_');
    bare.strip_prefix("libc_").unwrap_or(bare)
}

/// Whether the file is `libc.so.6` or `libpthread.so.0`, or has a name such as `libc-2.31.so`, which was used before
/// glibc 2.34. Only these files are searched for internal names of public functions. No other library has internal
/// names of this kind, and a large library has a million symbols.
fn is_c_library(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ["libc.so", "libc-2", "libpthread.so", "libpthread-2"].iter().any(|prefix| name.starts_with(prefix))
}

fn names(found: Symbolized<'_>) -> Symbols {
    match found {
        Symbolized::Sym(symbol) => {
            let function = |name: &str, start: Option<u64>, code: Option<&CodeInfo<'_>>| {
                let source = code.map(|code| (code.to_path().display().to_string(), code.line.unwrap_or(0)));
                FunctionSymbol { name: name.to_owned(), start, source }
            };
            let outer = function(&symbol.name, Some(symbol.addr), symbol.code_info.as_deref());
            let inlined = symbol.inlined.iter().map(|one| function(&one.name, None, one.code_info.as_ref()));
            Ok(std::iter::once(outer).chain(inlined).collect())
        }
        Symbolized::Unknown(_) => Err(Unnamed::NoSymbol),
    }
}

fn is_mangled(symbol: &str) -> bool {
    symbol.starts_with("_Z") || symbol.starts_with("_R")
}

/// Whether `path`, the path of a module, shows that the module's code is not in a file. Such code was generated at run
/// time (without a file, or in an unnamed file), or belongs to the Linux kernel.
pub(super) fn is_generated(path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    path.is_empty() || [&b"["[..], b"/memfd:", b"//anon"].iter().any(|begin| path.starts_with(begin))
}

/// Returns an error if the path is not a regular ELF file, because opening a pipe or a device could block the profiled
/// process forever.
fn require_regular_file(path: &Path) -> Result<&Path, Unnamed> {
    if is_generated(path) {
        return Err(Unnamed::Generated);
    }
    match path.metadata() {
        Ok(metadata) if metadata.is_file() && is_elf(path) => Ok(path),
        Ok(_) => Err(Unnamed::FileUnreadable),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Unnamed::FileGone),
        Err(_) => Err(Unnamed::FileUnreadable),
    }
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
}

/// Checks that the file has the build id of the module that was loaded. A module without a build id is accepted.
fn check_build_id(path: &Path, build_id: &[u8]) -> Result<(), Unnamed> {
    if build_id.is_empty() {
        return Ok(());
    }
    match read_elf_build_id(path) {
        Ok(Some(now)) if now.as_ref() == build_id => Ok(()),
        Ok(_) => Err(Unnamed::FileReplaced),
        Err(_) => Err(Unnamed::FileUnreadable),
    }
}
