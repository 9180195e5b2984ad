//! Text files, line by line, with the number of each for messages.

use std::io::BufRead;

use super::Seen;
use crate::error::{Error, ErrorKind, Result};

/// No honest line is longer.
const LONGEST: u64 = 64 << 20;

/// A line without its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) number: u64,
}

impl Line<'_> {
    /// Blank, or beginning with `#`.
    pub(super) fn is_comment(&self) -> bool {
        matches!(self.bytes.trim_ascii_start(), [] | [b'#', ..])
    }

    /// That something is wrong with it.
    pub(super) fn odd(&self, what: &str) -> Error {
        Error::new(ErrorKind::Format, format!("line {} has {what}", self.number))
    }
}

/// Calls `take` with each line.
pub(super) fn each(
    mut input: impl BufRead,
    mut take: impl FnMut(Line<'_>, &mut Seen) -> Result<()>,
) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let count = std::io::Read::take(&mut input, LONGEST).read_until(b'\n', &mut bytes)?;
        if count == 0 {
            break;
        }
        if count as u64 == LONGEST {
            return Err(Line { bytes: &bytes, number }.odd("more than 64 MiB: this is no text"));
        }
        seen.bytes += count as u64;
        take(Line { bytes: bytes.trim_ascii_end(), number }, &mut seen)?;
    }
    Ok(seen)
}
