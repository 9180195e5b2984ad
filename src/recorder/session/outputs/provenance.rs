//! Collects the provenance of a recording: facts about the host, the GPUs and the software on which it was made. The
//! arguments of the program are included only on request, because they may contain access tokens.

use std::fs;
use std::path::Path;

use gpuflame_cupti::Api;
use gpuflame_model::record::{Provenance, Row};
use gpuflame_model::sorting;
use gpuflame_os::{date, listing};

use crate::session::process::environment::facts;

/// Folder in which the driver lists the GPUs. In a container, this folder lists the GPUs that the container may use.
/// This module does not call the driver, because the call could wait for a lock that the application holds.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Passes one row per fact about the recording to `each`. The command line of the program is one of these facts only if
/// `with_command` is true.
pub(crate) fn list_facts(api: &Api, with_command: bool, mut each: impl FnMut(&Row<'_>)) {
    let facts = facts();
    let mut add = |what, text: &str| {
        if !text.is_empty() {
            each(&Row::Provenance { what, text });
        }
    };
    add(Provenance::HOST, &facts.host);
    add(Provenance::START, &date::iso_8601(facts.time));
    add(Provenance::RANK, &facts.launcher_rank().unwrap_or_default().to_string_lossy());
    add(Provenance::WORLD_SIZE, &facts.launcher_world_size().unwrap_or_default().to_string_lossy());
    gpus(Path::new(GPUS)).iter().for_each(|gpu| add(Provenance::GPU, gpu));
    if let Some((major, minor)) = api.driver() {
        add(Provenance::DRIVER, &format!("CUDA {major}.{minor}"));
    }
    add(Provenance::CUPTI, &format!("{} ({})", api.version(), api.file().display()));
    add(Provenance::GPUFLAME, env!("CARGO_PKG_VERSION"));
    if with_command {
        add(Provenance::COMMAND, &command_line());
    }
}

/// Returns the name and the bus address of each GPU, sorted by bus address.
fn gpus(folder: &Path) -> Vec<String> {
    let mut places: Vec<_> = listing::entry_names(folder).iter().map(|name| folder.join(name)).collect();
    sorting::sort(&mut places);
    let named = places.iter().map(|place| {
        let text = fs::read_to_string(place.join("information")).unwrap_or_default();
        let model = text.lines().find_map(|line| line.strip_prefix("Model:")).map_or("?", str::trim);
        format!("{model} ({})", place.file_name().unwrap_or_default().to_string_lossy())
    });
    named.collect()
}

/// Returns the program's name and arguments, separated by blanks.
fn command_line() -> String {
    let arguments = fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = arguments.strip_suffix(b"\0").unwrap_or(&arguments);
    String::from_utf8_lossy(arguments).replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_os::testing::folder;

    #[test]
    fn gpus_are_read_from_the_drivers_proc_entries() {
        let folder = folder("provenance-gpus");
        for (place, text) in [
            ("0000:65:00.0", "Model: \t\t NVIDIA H200\nIRQ:   \t\t 183\nGPU UUID: \t GPU-5\n"),
            ("0000:17:00.0", "Model: \t\t NVIDIA H200\n"),
        ] {
            fs::create_dir(folder.join(place)).unwrap();
            fs::write(folder.join(place).join("information"), text).unwrap();
        }
        assert_eq!(gpus(&folder), ["NVIDIA H200 (0000:17:00.0)", "NVIDIA H200 (0000:65:00.0)"]);
        assert_eq!(gpus(&folder.join("none")), [""; 0]);
        fs::remove_dir_all(folder).unwrap();
    }
}
