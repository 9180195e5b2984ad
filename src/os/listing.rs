//! Lists the contents of folders. `opendir` is not used, because it allocates from the application's heap.

use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, RawDir};

/// Returns the names of a folder's entries, in the order in which the kernel lists them. Returns an empty list if the
/// folder cannot be read.
pub fn entry_names(folder: &Path) -> Vec<OsString> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(open) = rustix::fs::open(folder, flags, Mode::empty()) else { return Vec::new() };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let (mut entries, mut names) = (RawDir::new(open, &mut buffer), Vec::new());
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name.to_vec()));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing;

    #[test]
    fn a_folder_with_thousands_of_files_is_listed_completely() {
        let folder = testing::folder("listing");
        let mut wanted: Vec<OsString> = (0..2000).map(|number| format!("{number:0100}").into()).collect();
        for name in &wanted {
            fs::write(folder.join(name), "").unwrap();
        }
        let mut found = entry_names(&folder);
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
        assert!(entry_names(&folder.join("nothing")).is_empty());
    }
}
