//! A few lines of JSON about what a process recorded and wrote, for whoever started it (`GPUFLAME_REPORT`); and before,
//! where the file grows that it leaves if it ends without a word.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::control::Facts;
use crate::error::Result;
use crate::explain::Ledger;
use crate::host::file;
use crate::record::Nanos;

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

fn text<'a>(facts: &Facts, ledger: &Ledger, files: impl Iterator<Item = &'a PathBuf>) -> String {
    let gpus = ledger.devices.iter().filter_map(|device| {
        let time = device.time.as_ref()?;
        Some(format!(
            "{{\"gpu\":{},\"busy_ns\":{},\"idle_ns\":{}}}",
            device.work.device.0, time.busy, time.idle
        ))
    });
    let files = files
        .map(|file| quoted(&std::path::absolute(file).unwrap_or_else(|_| file.clone()).to_string_lossy()));
    format!(
        "{{\"process\":{},\"program\":{},\"host\":{},\"rank\":{},\"launches\":{},\"gpus\":[{}],\"files\":[{}]}}\n",
        facts.process,
        quoted(&facts.program),
        quoted(&facts.host),
        facts.known_rank().map_or("null".to_owned(), quoted),
        ledger.launches().total,
        gpus.collect::<Vec<_>>().join(","),
        files.collect::<Vec<_>>().join(","),
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
