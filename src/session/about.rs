//! A few lines of JSON about what a process recorded and wrote: beside each set of files, for whoever finds it, and for
//! whoever started the process (`GPUFLAME_REPORT`); to whom is told before where the file grows that it leaves if it ends
//! without a word.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::control::Facts;
use crate::error::Result;
use crate::explain::Ledger;
use crate::host::file;
use crate::record::{Nanos, WindowEdge};

use super::messages::say;

/// Tells `folder` of the file, in one of its own that holds the path: a process that calls `exec` begins another.
pub(super) fn begun(folder: Option<&Path>, file: &Path, began: Nanos) {
    let Some(folder) = folder else { return };
    let facts = Facts::of_this_process();
    let path = folder.join(format!("{}.{}.{}.begun", facts.host, facts.process, began.0));
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let written = file::whole(&path, |out| Ok(out.write_all(file.as_os_str().as_encoded_bytes())?));
    // Who started us goes without; `gpuflame recover` finds the file all the same.
    drop(written);
}

/// Tells `folder` what the process recorded.
pub(super) fn ended<'a>(folder: Option<&Path>, ledger: &Ledger, files: impl Iterator<Item = &'a PathBuf>) {
    if let Some(folder) = folder
        && let Err(error) = write(folder, ledger, files)
    {
        say(&format!("GPUFLAME_REPORT={}: {error}; name a folder that is there", folder.display()));
    }
}

fn write<'a>(folder: &Path, ledger: &Ledger, files: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    let facts = Facts::of_this_process();
    let path = folder.join(format!("{}.{}.json", facts.host, facts.process));
    file::whole(&path, |out| Ok(out.write_all(text(&facts, ledger, files).as_bytes())?))
}

/// What a set of files is of.
pub(super) struct Set<'a> {
    /// The window that it is of alone.
    pub(super) window: Option<u64>,
    pub(super) edges: &'a [(WindowEdge, Nanos)],
    pub(super) ledger: &'a Ledger,
}

impl Set<'_> {
    /// What stands beside it: names of files are those in the same folder, which may be copied elsewhere.
    pub(super) fn text(&self, files: &[PathBuf]) -> String {
        let name = |file: &PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut windows: Vec<(u64, Option<u64>)> = Vec::new();
        for (edge, time) in self.edges {
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
        let window = self.window.map_or_else(null, |window| window.to_string());
        let more = format!(",\"window\":{window},\"windows\":[{}]", windows.collect::<Vec<_>>().join(","));
        object(&Facts::of_this_process(), self.ledger, &more, files.iter().map(name))
    }
}

fn text<'a>(facts: &Facts, ledger: &Ledger, files: impl Iterator<Item = &'a PathBuf>) -> String {
    let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
    object(facts, ledger, "", files.map(|file| absolute(file).to_string_lossy().into_owned()))
}

fn object(facts: &Facts, ledger: &Ledger, more: &str, files: impl Iterator<Item = String>) -> String {
    let gpus = ledger.devices.iter().filter_map(|device| {
        let time = device.time.as_ref()?;
        Some(format!(
            "{{\"gpu\":{},\"busy_ns\":{},\"idle_ns\":{}}}",
            device.work.device.0, time.busy, time.idle
        ))
    });
    format!(
        "{{\"process\":{},\"program\":{},\"host\":{},\"rank\":{},\"launches\":{},\"gpus\":[{}]{more},\"files\":[{}]}}\n",
        facts.process,
        quoted(&facts.program),
        quoted(&facts.host),
        facts.known_rank().map_or("null".to_owned(), quoted),
        ledger.launches().total,
        gpus.collect::<Vec<_>>().join(","),
        files.map(|file| quoted(&file)).collect::<Vec<_>>().join(","),
    )
}

/// `text` as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => drop(write!(quoted, "\\u{:04x}", letter as u32)),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
