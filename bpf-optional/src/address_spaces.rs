//! Address spaces, which state which files a process had mapped at which addresses. An address space converts an
//! address to a file and an offset in that file. Changes to the mappings are stored when they happen, because the
//! process may have ended before names are looked up.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use crate::entry_points::CudaExtent;
use crate::wire::FileId;

/// Index of a file in [`Files`].
pub(crate) type FileNumber = u32;

/// A file and an offset in it. If `file` is [`UNKNOWN`](Self::UNKNOWN) or [`KERNEL`](Self::KERNEL), the offset is an
/// address and not an offset in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileLocation {
    pub(crate) file: FileNumber,
    pub(crate) offset: u64,
}

impl FileLocation {
    /// Marks an address at which no file is mapped. Such an address is in code that was generated at run time, or comes
    /// from an invalid stack.
    pub(crate) const UNKNOWN: FileNumber = u32::MAX;
    /// Marks an address in the kernel.
    pub(crate) const KERNEL: FileNumber = u32::MAX - 1;
}

/// All files that a watched process has had mapped.
#[derive(Debug, Default)]
pub(crate) struct Files {
    files: Vec<File>,
    ids: HashMap<FileId, FileNumber>,
}

#[derive(Debug)]
pub(crate) struct File {
    /// Path of the file as the watched process sees it.
    pub(crate) path: PathBuf,
    /// Path with which `gpuflame-bpf` can open the file. In the process of `gpuflame-bpf`, `path` may lead to another
    /// file, because `path` is the path that the watched process sees.
    pub(crate) open: PathBuf,
    pub(crate) api: CudaExtent,
    /// Open descriptor of the file. The descriptor is kept open if the path in `open` leads to the file through this
    /// descriptor.
    _descriptor: Option<std::fs::File>,
}

impl Files {
    pub(crate) fn number(&self, id: FileId) -> Option<FileNumber> {
        self.ids.get(&id).copied()
    }

    pub(crate) fn get(&self, number: FileNumber) -> Option<&File> {
        self.files.get(number as usize)
    }

    /// Returns the index of the file that has this path.
    pub(crate) fn find_by_path(&self, path: &Path) -> Option<FileNumber> {
        self.files.iter().position(|file| file.path == path).map(|at| at as FileNumber)
    }

    /// Adds a file to the table, and returns its index. `opened` is the file, which is already open.
    pub(crate) fn add(
        &mut self,
        id: FileId,
        path: PathBuf,
        opened: std::fs::File,
        api: CudaExtent,
    ) -> FileNumber {
        let is_same = match (std::fs::metadata(&path), opened.metadata()) {
            (Ok(there), Ok(here)) => is_same_file(&there, &here),
            _ => false,
        };
        let (open, held) = match is_same {
            true => (path.clone(), None),
            false => {
                use std::os::fd::AsRawFd as _;
                (PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd())), Some(opened))
            }
        };
        let number = self.files.len() as FileNumber;
        self.files.push(File { path, open, api, _descriptor: held });
        self.ids.insert(id, number);
        number
    }
}

#[cfg(test)]
impl Files {
    /// Returns a table that contains only the file `path`. This function does not open the file.
    pub(crate) fn with_unopened(path: &str) -> Self {
        let mut files = Self::default();
        files.add_unopened(path);
        files
    }

    pub(crate) fn add_unopened(&mut self, path: &str) {
        self.files.push(File {
            path: path.into(),
            open: path.into(),
            api: CudaExtent::None,
            _descriptor: None,
        });
    }
}

fn is_same_file(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Mappings of files in one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressSpace {
    /// Mappings, keyed by their first address. Each value contains the address after the mapping's last byte, the
    /// mapping's offset in the file, and the index of the file.
    mappings: BTreeMap<u64, (u64, u64, FileNumber)>,
    /// Number of times that these mappings have changed.
    pub(crate) version: u32,
}

impl AddressSpace {
    /// Adds a mapping of a file. The new mapping replaces all older mappings at the same addresses.
    pub(crate) fn map(&mut self, start: u64, end: u64, offset: u64, file: FileNumber) {
        let over: Vec<u64> = self
            .mappings
            .range(..end)
            .rev()
            .take_while(|(_, (old_end, ..))| *old_end > start)
            .map(|(at, _)| *at)
            .collect();
        for at in over {
            self.mappings.remove(&at);
        }
        self.mappings.insert(start, (end, offset, file));
        self.version += 1;
    }

    /// Returns the file that is mapped at `address`, and the offset to which `address` corresponds in that file.
    pub(crate) fn locate(&self, address: u64) -> FileLocation {
        match self.mappings.range(..=address).next_back() {
            Some((start, (end, offset, file))) if address < *end => {
                FileLocation { file: *file, offset: address - start + offset }
            }
            _ => FileLocation { file: FileLocation::UNKNOWN, offset: address },
        }
    }
}

/// A line of `/proc/PID/maps` that describes code in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapsLine {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) file: FileId,
    pub(crate) path: PathBuf,
}

/// Returns the mappings through which a process can currently execute code in files.
pub(crate) fn read_maps(pid: u32) -> std::io::Result<Vec<MapsLine>> {
    let text = std::fs::read(Path::new("/proc").join(pid.to_string()).join("maps"))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(parse_maps_line).collect())
}

fn parse_maps_line(line: &str) -> Option<MapsLine> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let is_code = words.next()?.as_bytes().get(2) == Some(&b'x');
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    let path = words.next()?.trim_start();
    // The kernel's internal encoding of a device number has 12 bits for the major number and 20 bits for the minor
    // number.
    let device = (hex(major)? << 20 | hex(minor)?) as u32;
    (is_code && path.starts_with('/')).then(|| MapsLine {
        start: hex(start).unwrap_or(0),
        end: hex(end).unwrap_or(0),
        offset,
        file: FileId { inode, device },
        path: PathBuf::from(path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_mapping_replaces_earlier_ones() {
        let mut space = AddressSpace::default();
        space.map(0x1000, 0x3000, 0, 1);
        space.map(0x3000, 0x4000, 0x500, 2);
        assert_eq!(space.locate(0x2fff), FileLocation { file: 1, offset: 0x1fff });
        assert_eq!(space.locate(0x3001), FileLocation { file: 2, offset: 0x501 });
        assert_eq!(space.locate(0x4000).file, FileLocation::UNKNOWN);
        space.map(0x2000, 0x5000, 0, 3);
        assert_eq!(space.locate(0x1000).file, FileLocation::UNKNOWN);
        assert_eq!(space.locate(0x3001), FileLocation { file: 3, offset: 0x1001 });
    }

    #[test]
    fn executable_file_mappings_are_parsed() {
        let read =
            parse_maps_line("7f00-7f10 r-xp 00001000 fd:02 1234                       /usr/lib/a b.so")
                .unwrap();
        let file = FileId { inode: 1234, device: 0xfd << 20 | 2 };
        let path = PathBuf::from("/usr/lib/a b.so");
        assert_eq!(read, MapsLine { start: 0x7f00, end: 0x7f10, offset: 0x1000, file, path });
        assert_eq!(parse_maps_line("7f00-7f10 rw-p 00001000 fd:02 1234 /usr/lib/a.so"), None);
        assert_eq!(parse_maps_line("7f00-7f10 r-xp 00000000 00:00 0 [vdso]"), None);
    }
}
