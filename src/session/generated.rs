//! What code in stacks is called that the process generated while it ran, asked when files are written: whoever generates code
//! writes down where it lies, under the number that the process has in its own namespace, in its own `/tmp`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::messages::say;
use crate::host;
use crate::profile::Profile;
use crate::record::Row;
use crate::symbolize::{Generated, Sources, generated_addresses};

/// Asks for each address once.
#[derive(Debug, Default)]
pub(super) struct GeneratedCode {
    asked: BTreeSet<u64>,
    remarks: BTreeSet<String>,
}

impl GeneratedCode {
    /// The functions at those addresses of `profile` that it was not asked for yet.
    pub(super) fn names(&mut self, profile: &Profile) -> Vec<(u64, String)> {
        let new: BTreeSet<u64> = &generated_addresses(profile, 0) - &self.asked;
        if new.is_empty() {
            return Vec::new();
        }
        let Generated { names, remarks, .. } = sources().ask(&new);
        self.asked.extend(new);
        for remark in remarks {
            if self.remarks.insert(remark.clone()) {
                say(&remark);
            }
        }
        names
    }
}

/// What a checkpoint says of generated code.
#[derive(Debug, Default)]
pub(super) struct NamesSoFar {
    /// How many frames were looked at.
    frames: usize,
    addresses: BTreeSet<u64>,
    /// What was said of each; nothing: it had several functions.
    told: BTreeMap<u64, String>,
}

impl NamesSoFar {
    /// Looks at the frames that are new.
    pub(super) fn look(&mut self, profile: &Profile) {
        self.addresses.extend(generated_addresses(profile, self.frames));
        self.frames = profile.frames().len();
    }

    /// Asks for all anew, since an address may get another function meanwhile: says what is new, and takes back what is
    /// no longer so. Nothing is remarked upon before the end.
    pub(super) fn tell(&mut self, mut each: impl FnMut(&Row<'_>)) {
        if self.addresses.is_empty() {
            return;
        }
        let Generated { names, several, .. } = sources().ask(&self.addresses);
        let several = several.into_iter().map(|address| (address, String::new()));
        for (address, mut name) in names.into_iter().chain(several) {
            match self.told.get(&address) {
                Some(told) if *told == name || told.is_empty() => continue,
                Some(_) => name.clear(),
                None => {}
            }
            each(&Row::Generated { address, name: &name });
            self.told.insert(address, name);
        }
    }
}

fn sources() -> Sources {
    let process = std::process::id();
    // Whoever writes a dump maps it, for others to find; CPython unmaps its own when it ends, which is before we look.
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let dump = format!("/jit-{process}.dump");
    let lines = maps.split(|byte| *byte == b'\n').filter(|line| line.ends_with(dump.as_bytes()));
    let paths = lines.filter_map(|line| Some(&line[line.iter().position(|byte| *byte == b'/')?..]));
    let paths = paths.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let dumps = paths.chain([PathBuf::from(format!("/tmp{dump}"))]).collect::<BTreeSet<_>>();
    Sources {
        maps: vec![PathBuf::from(format!("/tmp/perf-{process}.map"))],
        dumps: dumps.into_iter().collect(),
        user: host::user(),
    }
}
