//! Reads a text file line by line, and numbers the lines for messages.

use std::io::BufRead;

use super::ReadCounts;
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Maximum length of a line in bytes. The lines of real traces are far shorter than this limit.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// A line without its line break.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) number: u64,
}

impl Line<'_> {
    /// Whether the line is blank or begins with `#`.
    pub(super) fn is_comment(&self) -> bool {
        matches!(self.bytes.trim_ascii_start(), [] | [b'#', ..])
    }

    /// Creates an error about this line. The message consists of "line N has" and the text `what`.
    pub(super) fn error(&self, what: &str) -> Error {
        Error::new(ErrorKind::Format, format!("line {} has {what}", self.number))
    }
}

/// Calls `take` with each line. A last line without a line break may be truncated. If `accept_cut` is true, such a line
/// is skipped.
pub(super) fn for_each_line(
    mut input: impl BufRead,
    accept_cut: bool,
    mut take: impl FnMut(Line<'_>, &mut ReadCounts) -> Result<()>,
) -> Result<ReadCounts> {
    let mut counts = ReadCounts::default();
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let count = std::io::Read::take(&mut input, MAX_LINE_BYTES).read_until(b'\n', &mut bytes)?;
        if count == 0 {
            break;
        }
        if count as u64 == MAX_LINE_BYTES {
            return Err(Line { bytes: &bytes, number }.error("more than 64 MiB: not a text file"));
        }
        let is_whole = bytes.last() == Some(&b'\n');
        if accept_cut && !is_whole {
            counts.truncated_at = Some(counts.bytes);
            break;
        }
        counts.bytes += count as u64;
        let taken = take(Line { bytes: bytes.trim_ascii_end(), number }, &mut counts);
        taken.map_err(|error| match is_whole || number == 1 {
            true => error,
            false => Error::new(
                error.kind(),
                format!("{error}; if the file is truncated there, `--accept-cut` leaves that line out"),
            ),
        })?;
    }
    Ok(counts)
}
