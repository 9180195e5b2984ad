//! Writes short JSON descriptions of the recording and the output files of a process. One description is stored next to
//! each set of files, for programs that read the files later. A second description is passed to the parent process.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::Ledger;
use gpuflame_model::profile::{Profile, json_string};
use gpuflame_model::record::{Provenance, WindowEdge};

/// Returns the description that is written next to a set of files. The set of files covers all windows, or a single
/// window if `window` is set. Files are listed by name without folders, because the folder may be copied to a different
/// place.
pub fn describe_set(profile: &Profile, ledger: &Ledger, window: Option<u64>, files: &[PathBuf]) -> String {
    let name = |file: &PathBuf| json_path(file.file_name().unwrap_or_default());
    let mut windows: Vec<(u64, Option<u64>)> = Vec::new();
    for (edge, time) in profile.windows() {
        match (edge, windows.last_mut()) {
            (WindowEdge::Close, Some(last)) => last.1 = Some(time.0),
            (WindowEdge::Close, None) => {}
            (WindowEdge::Open, _) => windows.push((time.0, None)),
        }
    }
    let null = || "null".to_owned();
    let windows = windows.iter().map(|(opened, closed)| {
        format!("[{opened},{}]", closed.map_or_else(null, |closed| closed.to_string()))
    });
    let window = window.map_or_else(null, |window| window.to_string());
    let more = format!(",\"window\":{window},\"windows\":[{}]", windows.collect::<Vec<_>>().join(","));
    object(profile, ledger, &more, files.iter().map(name))
}

/// Returns the description for the parent process. This description contains absolute paths, and the number of launches
/// that were made outside of windows.
pub fn describe_process<'a>(
    profile: &Profile,
    ledger: &Ledger,
    files: impl Iterator<Item = &'a PathBuf>,
) -> String {
    let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
    let more = format!(",\"outside\":{}", ledger.tally.launches.outside);
    object(profile, ledger, &more, files.map(|file| json_path(absolute(file).as_os_str())))
}

fn object(profile: &Profile, ledger: &Ledger, more: &str, files: impl Iterator<Item = String>) -> String {
    let gpus = ledger.devices.iter().filter_map(|device| {
        let time = device.time.as_ref()?;
        Some(format!(
            "{{\"gpu\":{},\"busy_ns\":{},\"idle_ns\":{},\"steady_busy_ns\":{},\"steady_idle_ns\":{}}}",
            device.work.device.0,
            time.busy,
            time.idle,
            time.steady().busy,
            time.steady().idle
        ))
    });
    let fact =
        |wanted| profile.provenance().find(|(what, _)| *what == wanted).map(|(_, text)| json_string(text));
    let fact = |wanted| fact(wanted).unwrap_or_else(|| "null".to_owned());
    let (process, program) = profile.process().unwrap_or_default();
    format!(
        "{{\"process\":{process},\"program\":{},\"host\":{},\"rank\":{},\"launches\":{},\"gpus\":[{}]{more},\"files\":[{}]}}\n",
        json_string(program),
        fact(Provenance::HOST),
        fact(Provenance::RANK),
        ledger.launches().total,
        gpus.collect::<Vec<_>>().join(","),
        files.collect::<Vec<_>>().join(","),
    )
}

/// Encodes a path as JSON. A UTF-8 path becomes a string, and any other path becomes an array of bytes.
pub fn json_path(path: &OsStr) -> String {
    path.to_str().map_or_else(|| format!("{:?}", path.as_encoded_bytes()), json_string)
}
