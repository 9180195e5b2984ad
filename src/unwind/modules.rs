//! Which file lay where, and when: taken while the modules were loaded.
//!
//! The map belongs to a housekeeping thread, which asks it now and then what is new. It compares the
//! loader's list with what it knows, and reads the notes that captures left about objects that came and
//! went in between (see `notes`). Names of functions are somebody else's work.

use std::fs;
use std::path::Path;

use super::counts::{self, Counts};
use super::loader::{self, Object, Visit};
use super::notes::{self, Note};
use crate::record::{Module, ModuleEpoch};

/// Every module that was seen, and when it was seen first.
#[derive(Debug, Default)]
pub struct ModuleMap {
    /// Those that are loaded as far as we know, in no order.
    loaded: Vec<Module>,
    /// The loader's state when they were last listed.
    listed: Option<Counts>,
}

impl ModuleMap {
    /// A map that knows nothing yet: the first [`refresh`](Self::refresh) tells it everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `new` every module that was not known before, in the order in which they were there.
    /// Cheap (about 12 ns) when nothing changed: call it every few milliseconds.
    ///
    /// A module's epoch is the first in which it was seen, and it holds until a later module covers its
    /// addresses. Generated code that was met on a stack gets a module with an empty path. Not for use
    /// inside a callback.
    pub fn refresh(&mut self, new: &mut Vec<Module>) {
        let counts = loader::poll();
        if notes::are_waiting() {
            self.read_notes(new);
        }
        if self.listed != Some(counts) {
            self.list(new);
        }
    }

    /// How many notes about modules were lost, because the map was not refreshed often enough.
    pub fn notes_lost(&self) -> u64 {
        notes::lost()
    }

    /// Takes in what captures noted: only what came and went since the last look is news.
    fn read_notes(&mut self, new: &mut Vec<Module>) {
        let mut addresses = Vec::new();
        notes::drain(|note| match note.end {
            0 => addresses.push((note.start, note.epoch)),
            _ => self.learn(module_of_note(note), new),
        });
        if !addresses.is_empty() {
            self.explain(&addresses, new);
        }
    }

    /// Takes in the loader's list.
    fn list(&mut self, new: &mut Vec<Module>) {
        let mut found = Vec::with_capacity(self.loaded.len() + 32);
        let mut counts = Counts::default();
        loader::visit(|object| {
            counts = object.counts;
            found.push(module_of_object(object));
            Visit::Next
        });
        counts::publish(counts);
        self.listed = Some(counts);
        let found: Vec<_> = found.into_iter().map(with_full_path).collect();
        self.loaded.retain(|known| is_generated(known) || found.iter().any(|module| is_same(known, module)));
        for module in found {
            self.learn(module, new);
        }
    }

    fn learn(&mut self, module: Module, new: &mut Vec<Module>) {
        if self.loaded.iter().any(|known| is_same(known, &module)) {
            return;
        }
        self.loaded.retain(|known| known.end <= module.start || module.end <= known.start);
        new.push(module.clone());
        self.loaded.push(module);
    }

    /// Finds the mappings of addresses that no object holds.
    fn explain(&mut self, addresses: &[(u64, ModuleEpoch)], new: &mut Vec<Module>) {
        let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
        for mapping in maps.lines().filter_map(Mapping::parse) {
            let inside = |(address, _): &&(u64, ModuleEpoch)| (mapping.start..mapping.end).contains(address);
            let Some((_, epoch)) = addresses.iter().find(inside) else { continue };
            let known = |known: &Module| known.start <= mapping.start && mapping.end <= known.end;
            if !self.loaded.iter().any(known) {
                self.learn(mapping.module(*epoch), new);
            }
        }
    }
}

/// Whether two descriptions are of one file at one place.
fn is_same(one: &Module, other: &Module) -> bool {
    one.start == other.start
        && one.bias == other.bias
        && one.build_id == other.build_id
        && (!one.build_id.is_empty() || one.path == other.path)
}

fn is_generated(module: &Module) -> bool {
    module.path.is_empty()
}

fn module_of_object(object: &Object) -> Module {
    Module {
        epoch: counts::epoch(),
        start: object.start,
        end: object.end,
        bias: object.bias,
        path: String::from_utf8_lossy(object.name().to_bytes()).into_owned(),
        build_id: object.build_id().to_vec(),
    }
}

fn module_of_note(note: &Note) -> Module {
    with_full_path(Module {
        epoch: note.epoch,
        start: note.start,
        end: note.end,
        bias: note.bias,
        path: String::from_utf8_lossy(note.path()).into_owned(),
        build_id: note.build_id().to_vec(),
    })
}

/// The loader names the program "", the vdso by a file that is not there, and others as they were
/// asked for, perhaps relative to where the process was at that time.
fn with_full_path(mut module: Module) -> Module {
    if module.path.is_empty() {
        let program = fs::read_link("/proc/self/exe").unwrap_or_default();
        module.path = program.to_string_lossy().into_owned();
    } else if module.path.starts_with("linux-vdso") || module.path.starts_with("linux-gate") {
        module.path = "[vdso]".to_owned();
    } else if Path::new(&module.path).is_relative()
        && let Ok(full) = fs::canonicalize(&module.path)
    {
        module.path = full.to_string_lossy().into_owned();
    }
    module
}

/// A line of `/proc/self/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping<'a> {
    start: u64,
    end: u64,
    offset: u64,
    name: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = fields.nth(1)?;
        let name = fields.nth(2).unwrap_or_default().trim_start();
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        Some(Self { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, name })
    }

    fn module(&self, epoch: ModuleEpoch) -> Module {
        let path = if self.name.starts_with('/') { self.name } else { "" };
        Module {
            epoch,
            start: self.start,
            end: self.end,
            bias: self.start.wrapping_sub(self.offset),
            path: path.to_owned(),
            build_id: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_maps_is_taken_apart() {
        let line = "7f00a000-7f00c000 r-xp 00001000 08:01 42                         /lib/a b.so";
        let expected = Mapping { start: 0x7f00_a000, end: 0x7f00_c000, offset: 0x1000, name: "/lib/a b.so" };
        assert_eq!(Mapping::parse(line), Some(expected));
        assert_eq!(Mapping::parse("1-2 rwxp 0 00:00 0").map(|mapping| mapping.name), Some(""));
    }

    #[test]
    fn the_first_refresh_lists_the_program_and_the_vdso() {
        let mut modules = Vec::new();
        ModuleMap::new().refresh(&mut modules);
        let program = std::env::current_exe().expect("a test is a program");
        assert!(modules.iter().any(|module| Path::new(&module.path) == program));
        assert!(modules.iter().any(|module| module.path == "[vdso]"));
    }
}
