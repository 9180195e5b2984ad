//! Reads a jitdump: a file in which a JIT compiler describes the functions that it generated. A jitdump is a sequence
//! of records in the byte order of the machine. The record about a function includes the function's machine code.
//!
//! ```text
//! file   := magic:u32 version:u32 header-size:u32 ...  record*
//! record := kind:u32 size:u32 time:u64  rest             size: of the whole record
//! rest   := pid:u32 tid:u32 vma:u64 address:u64 bytes:u64 index:u64  name 0 code     if kind is 0: a function
//!         | pid:u32 tid:u32 vma:u64 from:u64 to:u64 bytes:u64 index:u64              if kind is 1: it has moved
//! ```
//!
//! The Linux source describes the format in `tools/perf/Documentation/jitdump-specification.txt`. The record about the
//! move of a function contains the function's index, but not its name. So if a function was moved to a requested
//! address, the jitdump is read a second time to find the function's name.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read as _, Seek as _};

use super::{Answers, MAX_DUMP_RECORDS, MAX_NAME_BYTES};
use gpuflame_model::sorting;

const MAGIC: u32 = 0x4A69_5444;
/// Record kind for a generated function.
const FUNCTION_RECORD: u32 = 0;
/// Record kind for the move of a function to another address.
const MOVED_RECORD: u32 = 1;
/// Sizes in bytes of the file header, of the header of each record, and of the fixed fields in each of the two kinds of
/// records.
const HEADER_BYTES: u64 = 12;
const RECORD_HEADER_BYTES: u64 = 16;
const FUNCTION_FIELDS_BYTES: u64 = 40;
const MOVED_FIELDS_BYTES: u64 = 48;

/// A record about the move of a function to a new address. The function's index identifies the function.
struct MovedRecord {
    index: u64,
    to: u64,
    bytes: u64,
}

pub(super) fn read(file: &mut BufReader<File>, answers: &mut Answers) -> io::Result<bool> {
    let mut moved = Vec::new();
    let is_all = stop_at_truncation(records(file, |file, kind, rest| match kind {
        FUNCTION_RECORD if rest >= FUNCTION_FIELDS_BYTES => {
            let FunctionRecord { address, bytes, name, .. } = function(file, rest)?;
            Ok(answers.add_function(address, bytes, &name))
        }
        MOVED_RECORD if rest == MOVED_FIELDS_BYTES => {
            let (_process, _thread, _vma) = (u32_of(file)?, u32_of(file)?, u64_of(file)?);
            let (_from, to, bytes, index) = (u64_of(file)?, u64_of(file)?, u64_of(file)?, u64_of(file)?);
            if answers.is_requested(to, bytes) {
                moved.push(MovedRecord { index, to, bytes });
            }
            Ok(true)
        }
        _ => skip(file, rest).map(|()| true),
    }))?;
    if moved.is_empty() || !is_all {
        return Ok(is_all);
    }
    sorting::sort_by_key(&mut moved, |moved| moved.index);
    file.rewind()?;
    stop_at_truncation(records(file, |file, kind, rest| {
        if kind != FUNCTION_RECORD || rest < FUNCTION_FIELDS_BYTES {
            return skip(file, rest).map(|()| true);
        }
        let FunctionRecord { index, name, .. } = function(file, rest)?;
        let first = moved.partition_point(|moved| moved.index < index);
        let mut all = moved[first..].iter().take_while(|moved| moved.index == index);
        Ok(all.all(|moved| answers.add_function(moved.to, moved.bytes, &name)))
    }))
}

fn stop_at_truncation(read: io::Result<bool>) -> io::Result<bool> {
    match read {
        // The file may end in the middle of a record, because the process may still be writing the record.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(true),
        read => read,
    }
}

/// Calls `each` for each record of the file, with the kind of the record and the number of bytes after the record's
/// header. Returns false if a limit was reached before the end of the file.
fn records(
    file: &mut BufReader<File>,
    mut each: impl FnMut(&mut BufReader<File>, u32, u64) -> io::Result<bool>,
) -> io::Result<bool> {
    let (magic, _version, size) = (u32_of(file)?, u32_of(file)?, u32_of(file)?);
    if magic != MAGIC || u64::from(size) < HEADER_BYTES {
        return Err(io::Error::new(ErrorKind::InvalidData, "not a jitdump of this machine"));
    }
    skip(file, u64::from(size) - HEADER_BYTES)?;
    for _ in 0..MAX_DUMP_RECORDS {
        let (kind, size, _time) = (u32_of(file)?, u64::from(u32_of(file)?), u64_of(file)?);
        let Some(rest) = size.checked_sub(RECORD_HEADER_BYTES) else {
            return Err(io::Error::new(ErrorKind::InvalidData, "a record is too short"));
        };
        if !each(file, kind, rest)? {
            return Ok(false);
        }
    }
    Ok(false)
}

struct FunctionRecord {
    address: u64,
    bytes: u64,
    index: u64,
    name: Vec<u8>,
}

/// Reads the part of a record about a generated function that follows the record's header. This part has `rest` bytes.
fn function(file: &mut BufReader<File>, rest: u64) -> io::Result<FunctionRecord> {
    let (_process, _thread, _vma) = (u32_of(file)?, u32_of(file)?, u64_of(file)?);
    let (address, bytes, index) = (u64_of(file)?, u64_of(file)?, u64_of(file)?);
    let rest = rest - FUNCTION_FIELDS_BYTES;
    let mut name = vec![0; rest.min(MAX_NAME_BYTES as u64) as usize];
    file.read_exact(&mut name)?;
    skip(file, rest - name.len() as u64)?;
    name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
    Ok(FunctionRecord { address, bytes, index, name })
}

fn skip(file: &mut BufReader<File>, bytes: u64) -> io::Result<()> {
    // The cast cannot overflow, because the value is at most the size of a record, and this size is a u32.
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
