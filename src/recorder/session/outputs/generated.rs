//! Looks up the names of code that the process has generated at run time (JIT code). The names are looked up when
//! outputs are written. Code generators write addresses and names to files in `/tmp`, as the process itself sees that
//! folder. Each of these file names contains the process's id, in the process's own namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use crate::session::process::messages::print_from_own;
use gpuflame_explain::symbolize::{GeneratedCodeSources, GeneratedNames, generated_addresses};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::Row;
use gpuflame_model::sorting;
use gpuflame_os as host;

/// Looks up the names of generated code, and looks each address up only once.
#[derive(Debug, Default)]
pub(crate) struct GeneratedCode {
    looked_up: BTreeSet<u64>,
    remarks: BTreeSet<String>,
}

impl GeneratedCode {
    /// Returns a name for each address of generated code in `profile`, but skips the addresses that were looked up
    /// before.
    pub(crate) fn names(&mut self, profile: &Profile) -> Vec<(u64, String)> {
        let new: BTreeSet<u64> = &generated_addresses(profile, 0) - &self.looked_up;
        if new.is_empty() {
            return Vec::new();
        }
        let GeneratedNames { names, remarks, .. } = sources().find_names(&new);
        self.looked_up.extend(new);
        for remark in remarks {
            if self.remarks.insert(remark.clone()) {
                print_from_own(&remark);
            }
        }
        names
    }
}

/// The names of generated code that were written to the checkpoint.
#[derive(Debug, Default)]
pub(crate) struct CheckpointedNames {
    /// Number of frames in the profile whose addresses were already added to `addresses`.
    frames: usize,
    addresses: BTreeSet<u64>,
    /// Name that was written for each address; the name is empty if several functions have used the address.
    written: BTreeMap<u64, String>,
}

impl CheckpointedNames {
    /// Adds the addresses in the frames that were added to the profile since the last call.
    pub(crate) fn add_new_frames(&mut self, profile: &Profile) {
        self.addresses.extend(generated_addresses(profile, self.frames));
        self.frames = profile.frames().len();
    }

    /// Looks all addresses up again, because an address may be reused for another function. Passes a row to `each` for
    /// each new name. If the name of an address has changed, passes a row with an empty name. Messages about problems
    /// with looking up names are printed only at the end of the run.
    pub(crate) fn write_changes(&mut self, mut each: impl FnMut(&Row<'_>)) {
        if self.addresses.is_empty() {
            return;
        }
        let GeneratedNames { names, several, .. } = sources().find_names(&self.addresses);
        let several = several.into_iter().map(|address| (address, String::new()));
        for (address, mut name) in names.into_iter().chain(several) {
            match self.written.get(&address) {
                Some(written) if *written == name || written.is_empty() => continue,
                Some(_) => name.clear(),
                None => {}
            }
            each(&Row::Generated { address, name: &name });
            self.written.insert(address, name);
        }
    }
}

fn sources() -> GeneratedCodeSources {
    let process = std::process::id();
    // A code generator maps its dump file into memory, so that other programs can find the path of the file. When
    // gpuflame looks for this mapping, CPython has already removed it, so gpuflame also tries the usual path in `/tmp`.
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let dump = format!("/jit-{process}.dump");
    let lines = maps.split(|byte| *byte == b'\n').filter(|line| line.ends_with(dump.as_bytes()));
    let paths = lines.filter_map(|line| Some(&line[line.iter().position(|byte| *byte == b'/')?..]));
    let paths = paths.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let dumps = sorting::into_set(paths.chain([PathBuf::from(format!("/tmp{dump}"))]));
    GeneratedCodeSources {
        maps: vec![PathBuf::from(format!("/tmp/perf-{process}.map"))],
        dumps: dumps.into_iter().collect(),
        user: host::user(),
    }
}
