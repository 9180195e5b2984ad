//! Writes reports for the launcher, which is the program that started this process. A report is a file in the folder
//! that `GPUFLAME_REPORT` names. The names of these files begin with the host name, the process id, and the time at
//! which the session began. The name also contains the time, because `exec` begins another session in the same process.
//!
//! ```text
//! STEM.called         CUDA was called: the program's name and, after a NUL, why nothing can be recorded.
//!                     Removed when STEM.json is written
//! STEM.TIME.begun     path of a file that stays if the process ends without its exit handlers
//! STEM.json           summary of the recording, and the files written
//! ```

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::capture;
use gpuflame_model::error::{Error, Result};
use gpuflame_model::record::Nanos;
use gpuflame_os::file;

use super::environment::facts;
use super::messages::print_from_own;

/// Reports that the process has called CUDA. The report is written before any other setup step, so that it exists even
/// if the setup fails.
pub(crate) fn note_call(folder: Option<&Path>) {
    write_call(folder, None);
}

/// Reports the reason why nothing is recorded.
pub(crate) fn note_refusal(folder: Option<&Path>, why: &Error) {
    write_call(folder, Some(&why.to_string()));
}

fn write_call(folder: Option<&Path>, why: Option<&str>) {
    let Some(folder) = folder else { return };
    let program = facts().program;
    // Under `ulimit -f 0`, a write to a file raises SIGXFSZ. If SIGXFSZ were raised here, it would end the program,
    // because this code runs on one of the program's threads. Therefore nothing is written to the report, and the file
    // is left empty. Even an empty file reports that CUDA was called.
    let is_writable = file::max_size() > 0;
    let written = file::write_complete(&report_path(folder, "called"), |out| {
        if !is_writable {
            return Ok(());
        }
        out.write_all(program.as_encoded_bytes())?;
        why.map_or(Ok(()), |why| Ok(write!(out, "\0{why}")?))
    });
    // If the report cannot be written, the launcher gets no report, because there is no other way to notify the
    // launcher.
    drop(written);
}

/// Reports the path of a file that remains if the process ends without its exit handlers.
pub(crate) fn note_file(folder: Option<&Path>, file: &Path, began: Nanos) {
    let Some(folder) = folder else { return };
    let path = report_path(folder, &format!("{}.begun", began.0));
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let written = file::write_complete(&path, |out| Ok(out.write_all(file.as_os_str().as_encoded_bytes())?));
    // If this report cannot be written, `gpuflame recover` finds the file without the report.
    drop(written);
}

/// Reports the results of the process.
pub(crate) fn write_results(folder: Option<&Path>, text: impl FnOnce() -> String) {
    let Some(folder) = folder else { return };
    match write(folder, &text()) {
        // Removing the earlier file may fail if the folder belongs to another user. If the earlier file stays, the
        // program that reads the folder still finds the complete report.
        Ok(()) => drop(fs::remove_file(report_path(folder, "called"))),
        Err(error) => {
            print_from_own(&format!(
                "GPUFLAME_REPORT={}: cannot write the report: {error}; name an existing folder",
                folder.display()
            ));
        }
    }
}

fn write(folder: &Path, text: &str) -> Result<()> {
    file::write_complete(&report_path(folder, "json"), |out| Ok(out.write_all(text.as_bytes())?))
}

/// Returns the path of this session's report with the name ending `ending`.
fn report_path(folder: &Path, ending: &str) -> PathBuf {
    static BEGAN: OnceLock<Nanos> = OnceLock::new();
    let began = BEGAN.get_or_init(capture::now).0;
    let facts = facts();
    folder.join(format!("{}.{}.{began}.{ending}", facts.host, facts.process))
}
