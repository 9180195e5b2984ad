//! A few lines of JSON about what a process recorded and wrote, for whoever started it (`GPUFLAME_REPORT`).

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::control::Facts;
use crate::error::Result;
use crate::explain::Ledger;
use crate::host::file;

/// Puts them into `folder`, which is there.
///
/// # Errors
/// The file's.
pub(super) fn write(folder: &Path, ledger: &Ledger, files: &[PathBuf]) -> Result<()> {
    let facts = Facts::of_this_process();
    let path = folder.join(format!("{}.{}.json", facts.host, facts.process));
    file::whole(&path, |out| Ok(out.write_all(text(&facts, ledger, files).as_bytes())?))
}

fn text(facts: &Facts, ledger: &Ledger, files: &[PathBuf]) -> String {
    let gpus = ledger.devices.iter().filter_map(|device| {
        let time = device.time.as_ref()?;
        Some(format!(
            "{{\"gpu\":{},\"busy_ns\":{},\"idle_ns\":{}}}",
            device.work.device.0, time.busy, time.idle
        ))
    });
    let files = files
        .iter()
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
