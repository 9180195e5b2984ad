//! Reads our own recordings, as far as they go: a damaged row is told of and passed over, and what follows a
//! place where the file is cut short is lost, what came before it is not. One that lacks its end is told of too.

use super::{Opened, Options};
use crate::error::{Error, ErrorKind, Result};
use crate::host::alive::Identity;
use crate::record::{Mark, Reader, Row, WriterId};

/// What was found in a recording beside its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Rows that could not be read.
    pub damaged: u64,
    /// Rows of a kind that only later versions know.
    pub skipped: u64,
    /// Whether there are sums in the place of single activities.
    pub is_of_sums: bool,
    /// What became of the process that wrote it, if it did not come to its end.
    pub cut_off: Option<CutOff>,
}

/// A process that has not come to the end of its recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    /// It is gone.
    Gone,
    /// It still runs.
    Alive,
    /// Nobody here can tell.
    Unknown,
}

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
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::Format => {
                    damaged += 1;
                    remark(error);
                }
                Err(error) => return Err(error),
            }
        }
        let cut_off = (!reader.is_whole()).then(|| cut_off(reader.writer()));
        if let Some(cut_off) = cut_off.filter(|_| damaged == 0 || reader.mark().is_some()) {
            remark(Error::new(ErrorKind::Format, sentence(cut_off, reader.mark())));
        }
        Ok(Recorded { damaged, skipped: reader.skipped(), is_of_sums: reader.has_sums(), cut_off })
    })
}

fn cut_off(writer: Option<&WriterId>) -> CutOff {
    let Some(WriterId { process, thread, started, namespace, boot }) = writer.cloned() else {
        return CutOff::Unknown;
    };
    match (Identity { process, thread, started, namespace, boot }).is_alive() {
        Some(true) => CutOff::Alive,
        Some(false) => CutOff::Gone,
        None => CutOff::Unknown,
    }
}

/// What is to be known of it. What changed nothing was not written down: the process may have ended long after.
fn sentence(cut_off: CutOff, mark: Option<&Mark>) -> String {
    let Some(&Mark { began, time, interval_ms, open }) = mark else {
        return "its process was killed, or still runs: launches of the last second, and activities that CUPTI had not \
                handed over, are missing"
            .to_owned();
    };
    let seconds = time.since(began) as f64 / 1e9;
    let interval = f64::from(interval_ms) / 1e3;
    let missing = format!(
        "after {seconds:.1} s or later; at most {interval} s of what it did, and {open} activities that CUPTI still \
         held, are missing"
    );
    match cut_off {
        CutOff::Alive => {
            format!("its process still runs; this is what it had done after {seconds:.1} s")
        }
        CutOff::Gone => format!("its process ended without its exit hooks, {missing}"),
        CutOff::Unknown => {
            format!("its process ended without its exit hooks, or still runs elsewhere, {missing}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Nanos;

    #[test]
    fn what_is_missing_is_said() {
        let mark = Mark { began: Nanos(1_000), time: Nanos(12_345_000_000), interval_ms: 1500, open: 7 };
        assert_eq!(
            sentence(CutOff::Gone, Some(&mark)),
            "its process ended without its exit hooks, after 12.3 s or later; at most 1.5 s of what it did, and 7 \
             activities that CUPTI still held, are missing"
        );
        assert_eq!(
            sentence(CutOff::Alive, Some(&mark)),
            "its process still runs; this is what it had done after 12.3 s"
        );
        assert!(sentence(CutOff::Unknown, Some(&mark)).contains("or still runs elsewhere"));
    }
}
