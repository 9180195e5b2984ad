//! Writes the HTML pages of `gpuflame run` next to the run's other output files.

use std::path::PathBuf;

use super::super::console::Console;
use super::super::input::Source;
use super::super::output::Target;
use super::super::report::{page_path, write_run_page};
use super::process_reports::CollectedReports;

/// Writes one page for the ranks of a job, or one page for each process. Returns the paths of the pages, the most
/// important page first. If a page cannot be written, only prints a remark, because the failure must not change the
/// exit status of the run.
pub(super) fn write(left: &CollectedReports, console: Console) -> Vec<PathBuf> {
    let ranks: Vec<PathBuf> = left.ranks().into_iter().map(|(_, file)| file).collect();
    if ranks.len() > 1 {
        let pages: Vec<PathBuf> = write_one(&ranks, console).into_iter().collect();
        if !pages.is_empty() {
            return pages;
        }
    }
    left.recordings().iter().filter_map(|file| write_one(std::slice::from_ref(file), console)).collect()
}

fn write_one(files: &[PathBuf], console: Console) -> Option<PathBuf> {
    let sources: Vec<Source> = files.iter().map(|file| Source::from(file.as_os_str().to_owned())).collect();
    let page = page_path(files.first()?);
    match write_run_page(&sources, &Target::File(page.clone()), console) {
        Ok(()) => Some(page),
        Err(error) => {
            console.remark(error.within("no page"));
            None
        }
    }
}
