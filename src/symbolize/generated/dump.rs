//! A jitdump: records one after another, those of functions with their code, in the byte order of the machine.
//!
//! ```text
//! file   := magic:u32 version:u32 size-of-head:u32 ...  record*
//! record := kind:u32 size:u32 time:u64  rest            size: of all of it
//! rest   := pid:u32 tid:u32 vma:u64 address:u64 bytes:u64 index:u64  name 0 code     where kind is 0, a function
//! ```
//!
//! `tools/perf/Documentation/jitdump-specification.txt` of Linux. Functions that move are not followed.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read as _};

use super::{Answers, LONGEST_NAME, MOST_RECORDS};

const MAGIC: u32 = 0x4A69_5444;
/// A function was generated.
const FUNCTION: u32 = 0;
/// How long the parts are that are always there.
const HEAD: u64 = 12;
const RECORD: u64 = 16;
const NUMBERS: u64 = 40;

pub(super) fn read(file: &mut BufReader<File>, answers: &mut Answers) -> io::Result<bool> {
    match records(file, answers) {
        // Whoever writes it may be in the midst of a record.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(true),
        read => read,
    }
}

fn records(file: &mut BufReader<File>, answers: &mut Answers) -> io::Result<bool> {
    let (magic, _version, size) = (u32_of(file)?, u32_of(file)?, u32_of(file)?);
    if magic != MAGIC || u64::from(size) < HEAD {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is no jitdump of this machine"));
    }
    skip(file, u64::from(size) - HEAD)?;
    for _ in 0..MOST_RECORDS {
        let (kind, size, _time) = (u32_of(file)?, u64::from(u32_of(file)?), u64_of(file)?);
        let Some(rest) = size.checked_sub(RECORD) else {
            return Err(io::Error::new(ErrorKind::InvalidData, "a record is shorter than it can be"));
        };
        match rest.checked_sub(NUMBERS) {
            Some(rest) if kind == FUNCTION => {
                if !function(file, rest, answers)? {
                    return Ok(false);
                }
            }
            _ => skip(file, rest)?,
        }
    }
    Ok(false)
}

/// A function whose name and code take `rest` bytes.
fn function(file: &mut BufReader<File>, rest: u64, answers: &mut Answers) -> io::Result<bool> {
    let (_process, _thread, _vma) = (u32_of(file)?, u32_of(file)?, u64_of(file)?);
    let (address, bytes, _index) = (u64_of(file)?, u64_of(file)?, u64_of(file)?);
    let mut name = [0; LONGEST_NAME];
    let name = &mut name[..rest.min(LONGEST_NAME as u64) as usize];
    file.read_exact(name)?;
    skip(file, rest - name.len() as u64)?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(answers.tell(address, bytes, &name[..end]))
}

fn skip(file: &mut BufReader<File>, bytes: u64) -> io::Result<()> {
    // It is the size of one record, of four bytes.
    file.seek_relative(bytes as i64)
}

fn u32_of(file: &mut BufReader<File>) -> io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

fn u64_of(file: &mut BufReader<File>) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
