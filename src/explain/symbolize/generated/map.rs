//! Reads a map of generated functions in `perf`'s format. The map has one line per function: `START SIZE NAME`. START
//! and SIZE are hexadecimal numbers, and NAME may contain blanks.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};

use super::{Answers, MAX_MAP_BYTES, MAX_NAME_BYTES};

/// Maximum length of a line in bytes, which is enough for two numbers and a name. If a line is longer, its name is
/// truncated.
const MAX_LINE_BYTES: u64 = MAX_NAME_BYTES as u64 + 64;

pub(super) fn read(file: &mut BufReader<File>, answers: &mut Answers) -> io::Result<bool> {
    let mut file = file.take(MAX_MAP_BYTES);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut file).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        if line.last() != Some(&b'\n') {
            file.skip_until(b'\n')?;
        }
        if let Some((start, size, name)) = parse(&line)
            && !answers.add_function(start, size, name)
        {
            return Ok(false);
        }
    }
    Ok(file.limit() > 0)
}

fn parse(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let (start, size) = (number(parts.next()?)?, number(parts.next()?)?);
    Some((start, size, parts.next()?.trim_ascii()))
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    // Check that the text consists of hexadecimal digits, because `from_str_radix` would also accept a sign.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}
