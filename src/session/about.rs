//! What whoever started the process is told (`GPUFLAME_REPORT`): a few lines of JSON about what it recorded and wrote, and
//! before that where the file grows that it leaves if it ends without a word.

use std::io::Write as _;
use std::path::Path;

use crate::error::Result;
use crate::host::file;
use crate::record::Nanos;

use super::environment::facts;
use super::messages::say;

/// Tells `folder` of the file, in one of its own that holds the path: a process that calls `exec` begins another.
pub(super) fn begun(folder: Option<&Path>, file: &Path, began: Nanos) {
    let Some(folder) = folder else { return };
    let facts = facts();
    let path = folder.join(format!("{}.{}.{}.begun", facts.host, facts.process, began.0));
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let written = file::whole(&path, |out| Ok(out.write_all(file.as_os_str().as_encoded_bytes())?));
    // Who started us goes without; `gpuflame recover` finds the file all the same.
    drop(written);
}

/// Tells `folder` what the process recorded.
pub(super) fn ended(folder: Option<&Path>, text: impl FnOnce() -> String) {
    if let Some(folder) = folder
        && let Err(error) = write(folder, &text())
    {
        say(&format!("GPUFLAME_REPORT={}: {error}; name a folder that is there", folder.display()));
    }
}

fn write(folder: &Path, text: &str) -> Result<()> {
    let facts = facts();
    let path = folder.join(format!("{}.{}.json", facts.host, facts.process));
    file::whole(&path, |out| Ok(out.write_all(text.as_bytes())?))
}
