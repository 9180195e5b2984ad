//! Finds the `libgpuflame.so` that a command is to be recorded with, and has a look at it before anything is run:
//! the driver says nothing where it cannot load one.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

const NAME: &str = "libgpuflame.so";
/// The first bytes of a library of this machine: ELF, 64 bits, in its order of bytes.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
/// `e_type` of a shared object, and `e_machine` of the processor.
const SHARED: u16 = 3;
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// The library, as an absolute path: `wanted`, or the one beside this command: in its own folder, as in a build, or in the
/// `lib` beside that, as installed.
pub(in crate::cli) fn find(wanted: Option<&Path>) -> Result<PathBuf> {
    if let Some(wanted) = wanted {
        return look_at(wanted);
    }
    let command = std::env::current_exe()?;
    let folder = command.parent().unwrap_or(Path::new("."));
    let places = [folder.join(NAME), folder.join("../lib").join(NAME)];
    match places.iter().find(|place| place.exists()) {
        Some(place) => look_at(place),
        None => Err(Error::new(
            ErrorKind::Io,
            format!(
                "there is no {NAME} in {} nor in its ../lib; build it with `cargo build --release -p gpuflame-capi`, or \
                 name one with --library",
                folder.display()
            ),
        )),
    }
}

fn look_at(path: &Path) -> Result<PathBuf> {
    let unfit = |why: &str| {
        Error::new(ErrorKind::Io, format!("{} {why}; name another with --library", path.display()))
    };
    let path = path.canonicalize().map_err(|error| unfit(&format!("cannot be used: {error}")))?;
    let mut head = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(20).read_to_end(&mut head))
        .map_err(|error| unfit(&format!("cannot be read: {error}")))?;
    let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if head.len() < 20 || head[..6] != MAGIC || number(16) != SHARED || number(18) != MACHINE {
        return Err(unfit("is no shared library for this machine"));
    }
    // The driver's variable is read as a path, and LD_PRELOAD as a list that spaces and colons part.
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(unfit("has a space or a colon in its path, which LD_PRELOAD cannot name"));
    }
    Ok(path)
}
