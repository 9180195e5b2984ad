//! Finds the `libgpuflame.so` that records a command. The library is checked before the command is run, because the
//! driver does not report a library that it cannot load.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_os as host;

const LIBRARY_NAME: &str = "libgpuflame.so";
/// File name of the small library for LD_PRELOAD. The small library makes the driver load [`LIBRARY_NAME`] from the
/// folder that contains the small library.
const PRELOAD_NAME: &str = "libgpuflame-preload.so";
/// First bytes of a library for this machine: the ELF magic number, then the codes for 64-bit and little-endian.
const ELF_MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
/// Value of the ELF header's field `e_type` for a shared object. `ELF_MACHINE` is the value of the field `e_machine`
/// for this processor.
const ELF_SHARED_OBJECT: u16 = 3;
const ELF_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// Size in bytes of an ELF header. `SECTION_HEADER_BYTES` is the size of a section header.
const ELF_HEADER_BYTES: usize = 64;
const SECTION_HEADER_BYTES: usize = 64;
/// Name of the function in an injected library that the driver calls. In an ELF string table, there is a zero byte
/// before and after the name.
const ENTRY_POINT: &[u8] = b"\0InitializeInjection\0";

/// Returns the absolute path of the library to use. The library is `wanted` if that path is given, and otherwise the
/// library that belongs to this command. The command's own library is in the same folder as the command (in a build) or
/// in the folder `../lib` (if installed).
pub(crate) fn find(wanted: Option<&Path>) -> Result<PathBuf> {
    if let Some(wanted) = wanted {
        return check_library(wanted);
    }
    let folder = &command_folder();
    let places = [folder.join(LIBRARY_NAME), folder.join("../lib").join(LIBRARY_NAME)];
    match places.iter().find(|place| place.exists()) {
        Some(place) => check_library(place),
        None => Err(Error::new(
            ErrorKind::Io,
            format!(
                "there is no {LIBRARY_NAME} in {} or its ../lib, where the wheel and the archive have it; in a clone, \
                 `cargo build --release` makes it; --library names another",
                folder.display()
            ),
        )),
    }
}

/// Returns the folder that contains this command's executable file.
pub(crate) fn command_folder() -> PathBuf {
    // If /proc is not mounted, the path of this program is known only from the data that the Linux kernel passed to the
    // program at its start.
    let command = std::env::current_exe().ok().or_else(host::program_path).unwrap_or_default();
    command.parent().unwrap_or(Path::new(".")).to_owned()
}

/// Returns the string table with the names of the symbols that `file` exports and imports. The string table is the
/// section to which the dynamic symbol table (section type 11) is linked. `head` is the ELF header, which has 64 bytes.
/// Bytes 40 to 47 of the ELF header contain the file offset of the section headers.
fn read_symbol_names(file: &File, head: &[u8]) -> std::io::Result<Vec<u8>> {
    let number = |of: &[u8], at: usize, bytes: usize| {
        of[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let sections = read_part(file, number(head, 40, 8), SECTION_HEADER_BYTES as u64 * number(head, 60, 2))?;
    let mut all = sections.chunks_exact(SECTION_HEADER_BYTES);
    let symbols = all.clone().find(|section| number(section, 4, 4) == 11);
    let strings = symbols.and_then(|symbols| all.nth(number(symbols, 40, 4) as usize));
    strings.map_or_else(
        || Ok(Vec::new()),
        |strings| read_part(file, number(strings, 24, 8), number(strings, 32, 8)),
    )
}

/// Returns up to `bytes` bytes of `file`, starting at `from`.
fn read_part(file: &File, from: u64, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut file = file;
    file.seek(SeekFrom::Start(from))?;
    let mut part = Vec::new();
    file.take(bytes).read_to_end(&mut part)?;
    Ok(part)
}

/// Whether the file name in a path is the name of `libgpuflame.so`, with or without a version at its end.
pub(crate) fn is_ours(path: &OsStr) -> bool {
    let name = Path::new(path).file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(LIBRARY_NAME.as_bytes())
}

/// Returns the path of the library to preload. The small library is preloaded if a file with its name is next to
/// `library`. The small library does not depend on a C library, so programs with a C library other than glibc start
/// normally. `library` itself would abort programs with a C library other than glibc.
pub(super) fn library_to_preload(library: &Path) -> PathBuf {
    let small = library.with_file_name(PRELOAD_NAME);
    // The small library loads `LIBRARY_NAME` from its own folder. Therefore the small library can be used only if
    // `library` is the file `LIBRARY_NAME` in that folder.
    let is_beside = library.with_file_name(LIBRARY_NAME).canonicalize().is_ok_and(|named| named == library);
    if is_beside && small.is_file() { small } else { library.to_owned() }
}

fn check_library(path: &Path) -> Result<PathBuf> {
    let unfit = |why: &str| {
        Error::new(ErrorKind::Io, format!("{} {why}; name another with --library", path.display()))
    };
    let path = path.canonicalize().map_err(|error| unfit(&format!("cannot be used: {error}")))?;
    let file = File::open(&path).map_err(|error| unfit(&format!("cannot be read: {error}")))?;
    let head = read_part(&file, 0, ELF_HEADER_BYTES as u64)
        .map_err(|error| unfit(&format!("cannot be read: {error}")))?;
    let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if head.len() < ELF_HEADER_BYTES
        || head[..6] != ELF_MAGIC
        || short(16) != ELF_SHARED_OBJECT
        || short(18) != ELF_MACHINE
    {
        return Err(unfit("is not a shared library for this machine"));
    }
    let names = read_symbol_names(&file, &head).unwrap_or_default();
    if names.is_empty() {
        return Err(unfit("is truncated or damaged"));
    }
    if !names.windows(ENTRY_POINT.len()).any(|name| name == ENTRY_POINT) {
        return Err(unfit(
            "is another library, or a program: it lacks the function that the driver calls \
             (InitializeInjection)",
        ));
    }
    // The driver reads CUDA_INJECTION64_PATH as one path, but the dynamic loader splits LD_PRELOAD at spaces and
    // colons.
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(unfit("has a space or a colon in its path, which LD_PRELOAD does not support"));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_os::testing::folder;

    #[test]
    fn foreign_libraries_programs_and_damaged_files_are_refused() {
        let own = std::env::current_exe().unwrap();
        let refused = |path: &Path| check_library(path).unwrap_err().to_string();
        assert!(refused(&own).contains("another library, or a program"), "{}", refused(&own));
        let folder = folder("library");
        let whole = std::fs::read(own).unwrap();
        for (name, bytes) in [("short", &whole[..30]), ("cut", &whole[..5000]), ("empty", &[])] {
            std::fs::write(folder.join(name), bytes).unwrap();
            let why = refused(&folder.join(name));
            assert!(why.contains(if name == "cut" { "truncated" } else { "not a shared library" }), "{why}");
        }
        // In this truncated file, the ELF header contains an offset of the section headers that is past the end of the
        // file.
        let mut astray = whole[..5000].to_vec();
        astray[40..48].fill(0xff);
        std::fs::write(folder.join("astray"), astray).unwrap();
        assert!(refused(&folder.join("astray")).contains("damaged"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
