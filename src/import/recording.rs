//! Reads our own recordings, as far as they go: a damaged row is told of and passed over, and what follows a
//! place where the file is cut short is lost, what came before it is not. One that lacks its end is told of too.

use super::{Opened, Options};
use crate::error::{Error, ErrorKind, Result};
use crate::record::{Reader, Row};

/// What was found in a recording beside its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Rows that could not be read.
    pub damaged: u64,
    /// Rows of a kind that only later versions know.
    pub skipped: u64,
}

/// What is to be known of a recording that its process has not ended.
const CUT_OFF: &str = "its process was killed, or still runs: launches of the last second, and activities that CUPTI had \
                       not handed over, are missing";

/// Calls `each` with every row of a recording, and `remark` with what is wrong with those that cannot be read.
///
/// # Errors
/// `Io`, and `Format` where there is nothing to be had.
pub fn recording(
    opened: Opened,
    options: &Options,
    remark: &mut dyn FnMut(Error),
    each: &mut dyn FnMut(&Row<'_>),
) -> Result<Recorded> {
    // The reading may be on another thread, the rows stay on this one.
    opened.bytes(options, |input| {
        let mut reader = Reader::new(input)?;
        let mut damaged = 0;
        loop {
            match reader.next_row() {
                Ok(Some(row)) => each(&row),
                Ok(None) => {
                    if !reader.is_whole() && damaged == 0 {
                        remark(Error::new(ErrorKind::Format, CUT_OFF));
                    }
                    return Ok(Recorded { damaged, skipped: reader.skipped() });
                }
                Err(error) if error.kind() == ErrorKind::Format => {
                    damaged += 1;
                    remark(error);
                }
                Err(error) => return Err(error),
            }
        }
    })
}
