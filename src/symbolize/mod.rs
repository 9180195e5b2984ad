//! Gives names to the frames and kernels of a profile, late and once for each.
//!
//! A frame becomes the functions at its address (several where calls were inlined), from the symbols and
//! debug information of the file that was mapped there at the time. What has no name is shown as
//! `lib.so+0x1234`, an address in the file, or as `[unknown]+0x…` where there was no file: a miss is a
//! fact about the data and never an error. Stacks are then folded to what a person wants to see.
//!
//! Reads files, and nothing of the process: profiles of another process, or of yesterday, work as well.

mod demangle;
mod files;
mod fold;
mod modules;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

pub use demangle::kernel_name;

use crate::profile::{FrameId, Profile, StringId};
use crate::record::{Frame, FrameKind, LabelId, Module, hash_one};
use files::{Files, Symbols};
use fold::{Name, Origin};
use modules::ModuleMap;

/// How to show stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymbolizeOptions {
    /// Whether to show the frames inside CUDA's libraries, of compiler stubs and of the start code below
    /// `main`. Default: false.
    pub internal_frames: bool,
}

/// Names profiles. It remembers the frames it has named, so that naming the same profile again as it grows
/// costs what is new. One for each profile.
#[derive(Debug, Default)]
pub struct Symbolizer {
    options: SymbolizeOptions,
    /// What each frame of the profile is called, at [`FrameId::index`].
    frames: Vec<Named>,
    /// The hashes of the symbols of all kernels.
    kernels: HashSet<u64>,
    misses: u64,
}

/// A frame's names, outermost first: code of its own, then what is inlined there.
#[derive(Clone, Debug)]
struct Named {
    names: Vec<Called>,
    origin: Origin,
    is_label: bool,
}

#[derive(Clone, Copy, Debug)]
struct Called {
    text: StringId,
    /// The hash of the symbol as it stands in the file, mangled: enough to tell whether it is a kernel's,
    /// without keeping every symbol twice.
    symbol: u64,
}

impl Symbolizer {
    /// A symbolizer that knows nothing yet.
    pub fn new(options: SymbolizeOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Names all frames, kernels and stacks of `profile` that have no name yet.
    pub fn name(&mut self, profile: &mut Profile) {
        self.name_kernels(profile);
        self.name_frames(profile);
        self.name_stacks(profile);
    }

    /// How many frames of code have no symbol.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    fn name_kernels(&mut self, profile: &mut Profile) {
        let known = self.kernels.len();
        for (id, symbol) in profile.kernels() {
            if profile.has_shown_kernel(id) {
                continue;
            }
            let symbol = profile.strings().get(symbol);
            self.kernels.insert(hash_one(symbol));
            let name = kernel_name(symbol);
            let name = profile.intern(&name);
            profile.set_shown_kernel(id, name);
        }
        if self.kernels.len() > known {
            // A frame that was taken for the user's may turn out to be such a kernel's host side.
            profile.forget_shown();
        }
    }

    fn name_frames(&mut self, profile: &mut Profile) {
        let known = self.frames.len();
        let frames = profile.frames()[known..].to_vec();
        let found = find_symbols(&frames, profile.modules());
        self.frames.extend(found.into_iter().map(|found| {
            self.misses += u64::from(matches!(&found, Found::Code { symbols, .. } if symbols.is_empty()));
            name_frame(profile, found)
        }));
    }

    fn name_stacks(&mut self, profile: &mut Profile) {
        for context in profile.contexts() {
            if profile.shown(context).is_none() {
                let stack = profile.context(context).expect("it was listed").stack;
                let frames: Vec<FrameId> = profile.stack(stack).collect();
                let shown = self.shown(profile, frames.into_iter().rev());
                profile.set_shown(context, shown);
            }
        }
    }

    /// The names to show for a stack, root first.
    fn shown(&self, profile: &Profile, root_first: impl Iterator<Item = FrameId>) -> Vec<StringId> {
        let mut names = Vec::new();
        for frame in root_first {
            let named = &self.frames[frame.index()];
            names.extend(named.names.iter().map(|&called| (called, named.origin, named.is_label)));
        }
        if self.options.internal_frames {
            return names.into_iter().map(|(called, ..)| called.text).collect();
        }
        let strings = profile.strings();
        let to_fold = |&(called, origin, is_label): &(Called, Origin, bool)| Name {
            text: strings.get(called.text),
            origin,
            is_label,
            is_kernel: !is_label && self.kernels.contains(&called.symbol),
        };
        let shown = fold::fold(&names.iter().map(to_fold).collect::<Vec<_>>());
        names
            .into_iter()
            .zip(shown)
            .filter(|(_, shown)| *shown)
            .map(|((called, ..), _)| called.text)
            .collect()
    }
}

/// What is known of a frame before it has a name.
enum Found {
    Label(LabelId),
    Code {
        symbols: Symbols,
        /// The position of the module and the address in its file.
        module: Option<(usize, u64)>,
        address: u64,
    },
    Unknown(u8),
}

/// Asks each file once, for all of its addresses.
fn find_symbols(frames: &[Frame], modules: &[Module]) -> Vec<Found> {
    let map = ModuleMap::new(modules);
    let mut by_module: BTreeMap<usize, Vec<(usize, u64)>> = BTreeMap::new();
    let mut found: Vec<Found> = Vec::with_capacity(frames.len());
    for (at, frame) in frames.iter().enumerate() {
        found.push(match frame.kind() {
            FrameKind::Label(label) => Found::Label(label),
            FrameKind::Unknown(tag) => Found::Unknown(tag),
            FrameKind::Native { address, epoch } => {
                let module = map.find(address, epoch).map(|m| (m, address.wrapping_sub(modules[m].bias)));
                if let Some((module, in_file)) = module {
                    by_module.entry(module).or_default().push((at, in_file));
                }
                Found::Code { symbols: Symbols::new(), module, address }
            }
        });
    }
    let files = Files::new();
    for (module, asked) in by_module {
        let addresses: Vec<u64> = asked.iter().map(|&(_, address)| address).collect();
        for ((at, _), answer) in asked.iter().zip(files.symbols(&modules[module], &addresses)) {
            if let Found::Code { symbols, .. } = &mut found[*at] {
                *symbols = answer;
            }
        }
    }
    found
}

fn name_frame(profile: &mut Profile, found: Found) -> Named {
    match found {
        Found::Label(label) => {
            let text = profile.label(label).unwrap_or("[label lost]").to_owned();
            Named { is_label: true, ..one_name(profile, &text, Origin::Code) }
        }
        Found::Unknown(tag) => {
            let text = format!("[frame of unknown kind: {tag}]");
            Named { is_label: true, ..one_name(profile, &text, Origin::Code) }
        }
        Found::Code { module: None, address, .. } => {
            one_name(profile, &format!("[unknown]+0x{address:x}"), Origin::Code)
        }
        Found::Code { module: Some((at, in_file)), symbols, .. } => {
            let path = &profile.modules()[at].path;
            let origin = Origin::of(path);
            if symbols.is_empty() {
                let file = path.rsplit('/').next().filter(|file| !file.is_empty()).unwrap_or("[unknown]");
                let file = file.strip_suffix(" (deleted)").unwrap_or(file);
                return one_name(profile, &format!("{file}+0x{in_file:x}"), origin);
            }
            let mut call = |symbol: &String| Called {
                text: profile.intern(&demangle::function_name(symbol)),
                symbol: hash_one(symbol.as_str()),
            };
            Named { names: symbols.iter().map(&mut call).collect(), origin, is_label: false }
        }
    }
}

fn one_name(profile: &mut Profile, text: &str, origin: Origin) -> Named {
    let called = Called { text: profile.intern(text), symbol: hash_one(text) };
    Named { names: vec![called], origin, is_label: false }
}
