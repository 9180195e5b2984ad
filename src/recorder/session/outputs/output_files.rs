//! Writes the outputs to files whose names are free. If one output fails, the other outputs are still written. Failures
//! with the same cause are reported once.

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use gpuflame_config::settings::{LEDGER_SUFFIX, Output, SET_SUFFIX};
use gpuflame_config::{Outputs, RenamedOutput};
use gpuflame_model::error::Result;
use gpuflame_os::file::{self, Claim, Draft};

/// Result of writing the outputs.
#[derive(Debug, Default)]
pub(crate) struct WriteReport {
    /// Paths of the files that were written.
    pub(crate) written: Vec<PathBuf>,
    /// Files that were written under another name, because the intended name was taken.
    pub(crate) renamed: Vec<RenamedOutput>,
    /// Messages about files that could not be written, with one message per cause.
    pub(crate) failures: Vec<String>,
    /// Messages about files that were removed or moved while they were written.
    pub(crate) notes: Vec<String>,
    /// Path of the recording of the sums, if it was written.
    pub(crate) sums: Option<PathBuf>,
    /// Path of the file that describes the set of outputs, if it was written.
    pub(crate) about: Option<PathBuf>,
}

/// A file that was written.
pub(crate) struct WrittenFile {
    pub(crate) path: PathBuf,
    /// Message that explains why the path differs from the intended path, if the file was removed or moved while it was
    /// written.
    pub(crate) note: Option<String>,
}

impl From<PathBuf> for WrittenFile {
    fn from(path: PathBuf) -> Self {
        Self { path, note: None }
    }
}

/// Writes the outputs that `wanted` lists. Chooses names that are free or belong to `ours`, and then calls `write` for
/// each output. `write` returns the path that it has actually used, because another process may take the chosen name
/// before `write` does. Also writes a file that describes the set of outputs; `about` returns its text. This function
/// does not wait for other processes.
pub(super) fn write_all(
    wanted: &[Output],
    outputs: &Outputs,
    ours: Option<&Path>,
    mut write: impl FnMut(Output, &Path) -> Result<WrittenFile>,
    about: impl FnOnce(&[PathBuf]) -> String,
) -> WriteReport {
    let suffixes: Vec<_> = wanted.iter().map(|output| output.suffix()).collect();
    // The name that a recording would get must be free too, even if no recording is written. If another process has
    // left a recording with that name, the conversion of that recording would produce files with the names that are
    // chosen here.
    let has_recording = wanted.contains(&Output::Recording) || wanted.contains(&Output::Sums);
    let left = (!has_recording).then(|| Output::Recording.suffix());
    let suffixes = suffixes.iter().map(String::as_str).chain([SET_SUFFIX]).chain(left.as_deref());
    let suffixes: Vec<_> = suffixes.collect();
    if wanted.is_empty() {
        return WriteReport::default();
    }
    let is_foreign = |path: &Path| Some(path) != ours && is_name_taken(path);
    // All ranks of a distributed job end at the same time, and would choose the same names. Therefore each rank tries
    // to claim the name of the file that describes its set of outputs. The rank that gets the claim owns all names in
    // its set of outputs.
    let mut claimed = None;
    let (paths, renamed) = outputs.choose_names(&suffixes, is_foreign, |paths| {
        let Some(about) = paths.get(wanted.len()) else { return true };
        // If the folders cannot be created, creating the outputs will fail too, and that failure will be reported.
        let _ = make_folders(about);
        match Claim::acquire(about) {
            Ok(claim) => {
                // Another process may have created files with these names after the names were checked and before they
                // were claimed.
                let is_free = !paths.iter().any(|path| is_foreign(path));
                claimed = is_free.then_some(claim);
                is_free
            }
            Err(error) => error.kind() != ErrorKind::AlreadyExists,
        }
    });
    let mut report = WriteReport { renamed, ..WriteReport::default() };
    let mut failed: Vec<(String, Vec<String>)> = Vec::new();
    let mut paths = paths.into_iter().take(wanted.len() + 1);
    for (output, path) in wanted.iter().zip(&mut paths) {
        let error = match write(*output, &path) {
            Ok(WrittenFile { path: used, note }) => {
                if used != path && note.is_none() {
                    report.renamed.push(RenamedOutput { intended: path, actual: used.clone() });
                }
                report.notes.extend(note);
                if *output == Output::Sums {
                    report.sums = Some(used.clone());
                }
                report.written.push(used);
                continue;
            }
            Err(error) => error,
        };
        let (error, name) = (error.to_string(), path.display().to_string());
        match failed.iter_mut().find(|(known, _)| *known == error) {
            Some((_, names)) => names.push(name),
            None => failed.push((error, vec![name])),
        }
    }
    if let Some(path) = paths.next().filter(|_| !report.written.is_empty()) {
        match write_file(&path, |out| Ok(out.write_all(about(&report.written).as_bytes())?)) {
            Ok(used) => report.about = Some(used),
            Err(error) => failed.push((error.to_string(), vec![path.display().to_string()])),
        }
    }
    drop(claimed);
    report.failures = failed.iter().map(|(error, names)| failure_message(error, names)).collect();
    report.renamed.retain(|rename| report.written.contains(&rename.actual));
    report
}

/// Whether a file, folder or symbolic link with this name exists. A symbolic link counts even if its target does not
/// exist.
pub(crate) fn is_name_taken(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn failure_message(error: &str, names: &[String]) -> String {
    format!(
        "cannot write {}: {error}; set GPUFLAME_OUTPUT to a writable place with free space",
        names.join(", ")
    )
}

/// Writes either a complete file or no file. Returns the path of the file, which differs from `path` if `path` is
/// taken.
pub(super) fn write_file(
    path: &Path,
    content: impl FnOnce(&mut file::DraftWriter) -> Result<()>,
) -> Result<PathBuf> {
    Ok(write_draft(path, content)?.publish_new()?)
}

/// Like `write_file`, but replaces the file at `path` if that file is `ours`.
pub(super) fn write_replacing(
    path: &Path,
    ours: Option<&Path>,
    content: impl FnOnce(&mut file::DraftWriter) -> Result<()>,
) -> Result<PathBuf> {
    let draft = write_draft(path, content)?;
    if ours != Some(path) {
        return Ok(draft.publish_new()?);
    }
    draft.publish()?;
    Ok(path.to_owned())
}

/// Writes a complete file that has a temporary name. The parent folders are created only if the file cannot be created
/// at first. Trying to create the file first saves time, because there may be a thousand windows with files of their
/// own.
fn write_draft(path: &Path, content: impl FnOnce(&mut file::DraftWriter) -> Result<()>) -> Result<Draft> {
    let draft = match Draft::create(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_folders(path)?;
            Draft::create(path)
        }
        draft => draft,
    };
    let mut draft = draft?;
    draft.fill(content)?;
    Ok(draft)
}

/// Writes text that could not be printed to stderr to a file, next to the outputs in `report`. If `report` contains no
/// outputs, chooses a new name. Returns the path of the file.
pub(crate) fn write_ledger(text: &str, outputs: &Outputs, report: &WriteReport) -> Result<PathBuf> {
    let beside = report.about.as_deref().and_then(|about| {
        let prefix = about.as_os_str().as_bytes().strip_suffix(SET_SUFFIX.as_bytes())?;
        Some(PathBuf::from(OsString::from_vec([prefix, LEDGER_SUFFIX.as_bytes()].concat())))
    });
    let path = beside
        .or_else(|| outputs.choose_names(&[LEDGER_SUFFIX], is_name_taken, |_| true).0.into_iter().next());
    write_file(&path.unwrap_or_default(), |out| Ok(out.write_all(text.as_bytes())?))
}

/// Creates the parent folders of `path`.
pub(super) fn make_folders(path: &Path) -> Result<()> {
    Ok(path.parent().map_or(Ok(()), fs::create_dir_all)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_config::PrefixMacros;
    use gpuflame_model::error::{Error, ErrorKind};
    use gpuflame_model::profile::views::GPU;
    use gpuflame_os::process_liveness;
    use gpuflame_os::testing::{folder, names};

    const FOLDED: Output = Output::View(&GPU, "folded");
    const SVG: Output = Output::View(&GPU, "svg");

    fn write(
        outputs: &Outputs,
        wanted: &[Output],
        content: fn(Output) -> Result<&'static str>,
    ) -> WriteReport {
        write_all(
            wanted,
            outputs,
            None,
            |output, path| {
                let written = write_file(path, |out| {
                    out.write_all(b"begun ")?;
                    Ok(out.write_all(content(output)?.as_bytes())?)
                });
                written.map(WrittenFile::from)
            },
            |files| format!("{} files", files.len()),
        )
    }

    #[test]
    fn missing_folders_are_created_and_no_temporary_files_remain() {
        let folder = folder("write-made");
        let outputs = Outputs::new(format!("{}/a/b/x", folder.display()), &PrefixMacros::default());
        let report = write(&outputs, &[FOLDED, Output::Table], |output| Ok(output.word()));
        assert_eq!(report.failures, Vec::<String>::new());
        assert_eq!(names(&folder.join("a/b")), ["x.csv", "x.folded", "x.set.json"]);
        assert_eq!(fs::read_to_string(folder.join("a/b/x.set.json")).unwrap(), "2 files");
        assert_eq!(fs::read_to_string(folder.join("a/b/x.csv")).unwrap(), "begun csv");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_failed_output_leaves_no_file_and_does_not_affect_other_outputs() {
        let folder = folder("write-half");
        let outputs = Outputs::new(format!("{}/x", folder.display()), &PrefixMacros::default());
        let report = write(&outputs, &[FOLDED, Output::Table], |output| match output {
            Output::View(..) => Err(Error::new(ErrorKind::Io, "no room")),
            _ => Ok("done"),
        });
        assert_eq!(names(&folder), ["x.csv", "x.set.json"]);
        let expected = format!(
            "cannot write {}/x.folded: no room; set GPUFLAME_OUTPUT to a writable place with free space",
            folder.display()
        );
        assert_eq!(report.failures, [expected]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_failure_cause_is_reported_once_for_all_its_files() {
        let folder = folder("write-cause");
        let outputs = Outputs::new(format!("{}/x", folder.display()), &PrefixMacros::default());
        let report = write(&outputs, &[FOLDED, SVG, Output::Table], |output| {
            Err(Error::new(ErrorKind::Io, if output == SVG { "no room" } else { "no leave" }))
        });
        let folder = folder.display();
        let next = "set GPUFLAME_OUTPUT to a writable place with free space";
        let expected = [
            format!("cannot write {folder}/x.folded, {folder}/x.csv: no leave; {next}"),
            format!("cannot write {folder}/x.svg: no room; {next}"),
        ];
        assert_eq!(report.failures, expected);
        fs::remove_dir_all(folder.to_string()).unwrap();
    }

    #[test]
    fn a_file_created_during_the_write_is_kept_and_the_rename_is_reported() {
        let folder = folder("write-meanwhile");
        let outputs = Outputs::new(folder.join("x"), &PrefixMacros::default());
        let report = write_all(
            &[Output::Table],
            &outputs,
            None,
            |_, path| {
                let written = write_file(path, |out| {
                    fs::write(path, "theirs")?;
                    Ok(out.write_all(b"ours")?)
                });
                written.map(WrittenFile::from)
            },
            |files| format!("{files:?}"),
        );
        assert_eq!(fs::read_to_string(folder.join("x.csv")).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(folder.join("x.1.csv")).unwrap(), "ours");
        assert_eq!(
            report.renamed,
            [RenamedOutput { intended: folder.join("x.csv"), actual: folder.join("x.1.csv") }]
        );
        assert!(fs::read_to_string(folder.join("x.set.json")).unwrap().contains("x.1.csv"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_name_of_a_leftover_recording_counts_as_taken() {
        let folder = folder("write-left");
        fs::write(folder.join("x.gfr"), "left").unwrap();
        let outputs = Outputs::new(format!("{}/x", folder.display()), &PrefixMacros::default());
        assert_eq!(write(&outputs, &[Output::Table], |_| Ok("new")).failures, [""; 0]);
        assert_eq!(names(&folder), ["x.1.csv", "x.1.set.json", "x.gfr"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn names_claimed_by_another_process_are_avoided_and_the_rename_is_reported() {
        let folder = folder("write-claimed");
        let outputs = Outputs::new(folder.join("x"), &PrefixMacros::default());
        let theirs = Claim::acquire(&folder.join("x.set.json")).unwrap();
        let report = write(&outputs, &[FOLDED, Output::Table], |output| Ok(output.word()));
        assert_eq!(
            names(&folder),
            ["x.1.csv", "x.1.folded", "x.1.set.json", "x.set.json.part"],
            "{:?}",
            report.failures
        );
        assert_eq!(report.renamed.len(), 2);
        drop(theirs);
        let report = write(&outputs, &[FOLDED, Output::Table], |output| Ok(output.word()));
        assert_eq!((report.renamed.len(), names(&folder).len()), (0, 6));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn names_claimed_by_a_killed_process_are_free() {
        let folder = folder("write-killed");
        let outputs = Outputs::new(folder.join("x"), &PrefixMacros::default());
        let about = folder.join("x.set.json");
        let claim = move || {
            std::mem::forget(Claim::acquire(&about).unwrap());
            process_liveness::ThreadIdentity::current()
        };
        let killed = std::thread::spawn(claim).join().unwrap();
        while killed.is_alive() != Some(false) {
            std::thread::yield_now();
        }
        assert_eq!(names(&folder), ["x.set.json.part"]);
        let report = write(&outputs, &[Output::Table], |output| Ok(output.word()));
        assert_eq!(
            (report.renamed, names(&folder)),
            (Vec::new(), vec!["x.csv".to_owned(), "x.set.json".to_owned()])
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_existing_file_keeps_its_content() {
        let folder = folder("write-there");
        fs::write(folder.join("x.csv"), "old").unwrap();
        let outputs = Outputs::new(format!("{}/x", folder.display()), &PrefixMacros::default());
        let report = write(&outputs, &[Output::Table], |_| Ok("new"));
        assert_eq!(fs::read_to_string(folder.join("x.csv")).unwrap(), "old");
        assert_eq!(fs::read_to_string(folder.join("x.1.csv")).unwrap(), "begun new");
        assert_eq!(
            report.renamed,
            [RenamedOutput { intended: folder.join("x.csv"), actual: folder.join("x.1.csv") }]
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
