//! The module map: records which file is mapped at which address, while the module is still loaded.
//!
//! A housekeeping thread owns the map and polls it for new modules, which come from two sources. The first source is
//! the permanent list of objects (see `epochs`). Captures add objects to this list, and the map adds all objects that
//! the loader lists. The second source consists of the notes that captures write about pages of code outside all
//! objects (see `outside_pages`). Function names are resolved in another crate.

use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{self, PathBuf};

use super::epochs::{self, EpochEntry};
use super::loader::{self, Visit};
use super::loader_state::LoaderState;
use super::outside_pages::{self, PAGE};
use gpuflame_model::record::{Module, ModuleEpoch};

/// All modules seen so far by the process.
#[derive(Debug, Default)]
pub struct ModuleMap {
    /// The last entry of the permanent list of objects that the map has reported.
    last_reported: Option<&'static EpochEntry>,
    /// The loader's state when the map last listed the loader's objects.
    listed: Option<LoaderState>,
    /// Modules reported for code outside all objects, and the number of notes that had been lost at the last refresh.
    outside: Vec<Module>,
    notes_lost: u64,
}

impl ModuleMap {
    /// Creates an empty map. The first [`refresh`](Self::refresh) of the map reports all modules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `new` every module that has appeared since the last call, in order of appearance. Call this function
    /// every few milliseconds: a call takes only about 12 ns if nothing has changed.
    ///
    /// A frame belongs to the module that covers the frame's address and has the frame's epoch. If the epoch is
    /// [`ModuleEpoch::OUTSIDE`], several modules may cover the address. If several modules cover the address, it is
    /// unknown which module contains the frame's code. A module of generated code has an empty path. Do not call this
    /// function inside a callback.
    pub fn refresh(&mut self, new: &mut Vec<Module>) {
        let state = loader::poll();
        if self.listed != Some(state) {
            self.register_loaded_objects();
        }
        for entry in epochs::entries_after(self.last_reported) {
            new.push(with_full_path(module_of_entry(entry)));
            self.last_reported = Some(entry);
        }
        if outside_pages::are_pending() || self.notes_lost != outside_pages::notes_lost() {
            self.read_notes(state, new);
        }
    }

    /// Adds all loaded objects to the permanent list of objects.
    fn register_loaded_objects(&mut self) {
        self.listed = loader::with_lock(|state| {
            loader::visit(|object| {
                epochs::epoch_of(object, state);
                Visit::Next
            });
            state
        });
    }

    /// Processes the captures' notes about code outside all objects. If objects were loaded or unloaded since a note
    /// was written, another file may now be mapped at the noted page. A page whose file is unknown is reported as a
    /// module without a path.
    fn read_notes(&mut self, state: LoaderState, new: &mut Vec<Module>) {
        let mut notes = Vec::new();
        outside_pages::drain(|note| notes.push(note));
        let maps = fs::read("/proc/self/maps").unwrap_or_default();
        let mappings: Vec<_> = ProcMapping::all(&maps).collect();
        let is_current = loader::poll() == state;
        for note in notes {
            let mapping = mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&note.page));
            let mapping = mapping.filter(|_| is_current && note.state == state);
            self.add_outside(
                mapping.map_or_else(|| unknown_module(note.page..note.page + PAGE), ProcMapping::module),
                new,
            );
        }
        let lost = outside_pages::notes_lost();
        if lost != self.notes_lost {
            self.notes_lost = lost;
            self.add_outside(unknown_module(0..u64::MAX), new);
        }
    }

    fn add_outside(&mut self, module: Module, new: &mut Vec<Module>) {
        let covers = |known: &&Module| known.start <= module.start && module.end <= known.end;
        if !self.outside.iter().filter(covers).any(|known| known.path == module.path) {
            new.push(module.clone());
            self.outside.push(module);
        }
    }
}

fn module_of_entry(entry: &EpochEntry) -> Module {
    Module {
        epoch: entry.epoch,
        start: entry.start,
        end: entry.end,
        bias: entry.bias,
        path: OsStr::from_bytes(entry.path()).into(),
        build_id: entry.build_id().to_vec(),
    }
}

/// Returns a module for code that is outside all objects and whose file is unknown.
fn unknown_module(range: Range<u64>) -> Module {
    let Range { start, end } = range;
    Module { epoch: ModuleEpoch::OUTSIDE, start, end, bias: 0, path: PathBuf::new(), build_id: Vec::new() }
}

/// Completes a module's path. The loader's name for the program is "", and the loader's name for the vdso is not an
/// existing file. For any other object, the loader's name is the path by which the program requested the object. This
/// path may be relative to the working directory at the time of loading.
fn with_full_path(mut module: Module) -> Module {
    let name = module.path.as_os_str().as_bytes();
    if name.is_empty() {
        module.path = program_path(module.start);
    } else if name.starts_with(b"linux-vdso") || name.starts_with(b"linux-gate") {
        module.path = "[vdso]".into();
    } else if module.path.is_relative()
        && let Ok(full) = path::absolute(&module.path)
        && full.exists()
    {
        module.path = full;
    }
    module
}

/// Returns the path of the program's file, which is mapped at `start`. `/proc/self/exe` is only the second choice,
/// because it is the path of the loader if the program was started through the loader (`ld.so program`).
fn program_path(start: u64) -> PathBuf {
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let mapping = ProcMapping::all(&maps).find(|mapping| (mapping.start..mapping.end).contains(&start));
    // In `/proc/self/maps`, the kernel escapes unusual characters with a backslash, so a path that contains a backslash
    // is not used.
    match mapping.filter(|mapping| mapping.name.starts_with(b"/") && !mapping.name.contains(&b'\\')) {
        Some(mapping) => OsStr::from_bytes(mapping.name).into(),
        None => fs::read_link("/proc/self/exe").unwrap_or_default(),
    }
}

/// One line of `/proc/self/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcMapping<'a> {
    start: u64,
    end: u64,
    offset: u64,
    name: &'a [u8],
}

impl<'a> ProcMapping<'a> {
    fn all(maps: &'a [u8]) -> impl Iterator<Item = Self> {
        maps.split(|byte| *byte == b'\n').filter_map(Self::parse)
    }

    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let text = |field| std::str::from_utf8(field).ok();
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        let (start, end) = text(fields.next()?)?.split_once('-')?;
        let offset = text(fields.nth(1)?)?;
        let name = fields.nth(2).unwrap_or_default().trim_ascii_start();
        Some(Self { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, name })
    }

    fn module(&self) -> Module {
        let path = if self.name.starts_with(b"/") { self.name } else { b"" };
        Module {
            epoch: ModuleEpoch::OUTSIDE,
            start: self.start,
            end: self.end,
            bias: self.start.wrapping_sub(self.offset),
            path: OsStr::from_bytes(path).into(),
            build_id: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_maps_is_parsed() {
        let line = b"7f00a000-7f00c000 r-xp 00001000 08:01 42                         /lib/a \xe9.so";
        let (start, end, offset) = (0x7f00_a000, 0x7f00_c000, 0x1000);
        assert_eq!(
            ProcMapping::parse(line),
            Some(ProcMapping { start, end, offset, name: b"/lib/a \xe9.so" })
        );
        assert_eq!(ProcMapping::parse(b"1-2 rwxp 0 00:00 0").map(|mapping| mapping.name), Some(&b""[..]));
    }

    #[test]
    fn the_first_refresh_lists_the_program_and_the_vdso() {
        let mut modules = Vec::new();
        ModuleMap::new().refresh(&mut modules);
        let program = std::env::current_exe().expect("a test is a program");
        assert!(modules.iter().any(|module| module.path == program));
        assert!(modules.iter().any(|module| module.path.as_os_str() == "[vdso]"));
    }
}
