//! Reads our own recordings, as far as they go: a damaged row is told of and passed over, and what follows a
//! place where the file is cut short is lost, what came before it is not. One that lacks its end is told of too.

use super::{Opened, Options};
use crate::error::{Error, ErrorKind, Result};
use crate::host::alive::Identity;
use crate::record::{Mark, Reader, Row, Standing, WriterId};

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
    /// It had no more memory, and ran on without being recorded.
    Starved,
    /// It came to its end, and could not write its files.
    Unwritten,
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
        let standing = reader.standing();
        let cut_off = (!reader.is_whole()).then(|| match reader.is_starved() {
            true => CutOff::Starved,
            false if standing.is_over => CutOff::Unwritten,
            false => cut_off(reader.writer()),
        });
        if let Some(cut_off) = cut_off.filter(|_| damaged == 0 || reader.mark().is_some()) {
            let sentence = sentence(cut_off, reader.mark(), standing);
            remark(Error::new(ErrorKind::Format, sentence));
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

/// What is to be known of it. What changed nothing was not written down: the process may have ended long after. A file
/// system that takes nothing any more takes no word on that either, but the process has said so.
fn sentence(cut_off: CutOff, mark: Option<&Mark>, Standing { is_late, is_over }: Standing) -> String {
    let after = mark.map(|mark| format!("after {:.1} s", mark.time.since(mark.began) as f64 / 1e9));
    let later = after.as_ref().map(|after| format!(", {after} or later")).unwrap_or_default();
    let held = match mark {
        Some(Mark { open, .. }) => format!("{open} activities that CUPTI still held"),
        None => "activities that CUPTI had not handed over".to_owned(),
    };
    let last = match mark {
        Some(_) if is_late => {
            format!("it could not be written any more: all that it did from then on, and {held}, are missing")
        }
        Some(Mark { open: 0, .. }) if is_over => "nothing that it launched is missing".to_owned(),
        Some(_) if is_over => format!("{held} are missing"),
        Some(mark) => {
            let seconds = f64::from(mark.interval_ms) / 1e3;
            format!(
                "at most {seconds} s of what it did, and {held}, are missing, unless it said that checkpoints stop"
            )
        }
        None => format!("launches of the last second, and {held}, are missing"),
    };
    match (cut_off, after) {
        (CutOff::Alive, Some(after)) if is_late => {
            format!(
                "its process still runs; this is what it had done {after}, when it could not be written any more"
            )
        }
        (CutOff::Alive, Some(after)) => format!("its process still runs; this is what it had done {after}"),
        (CutOff::Unwritten, _) => {
            format!("its process came to its end and could not write its files{later}; {last}")
        }
        (CutOff::Gone, Some(_)) => format!("its process ended without its exit hooks{later}; {last}"),
        (CutOff::Unknown, Some(_)) => {
            format!("its process ended without its exit hooks, or still runs elsewhere{later}; {last}")
        }
        (CutOff::Gone | CutOff::Alive | CutOff::Unknown, None) => {
            format!("its process was killed, or still runs: {last}")
        }
        (CutOff::Starved, _) => format!(
            "recording ended for want of memory{later}, while its process ran on: all that it did from then on is \
             missing, and {held}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Nanos;

    #[test]
    fn what_is_missing_is_said() {
        let mark = Mark { began: Nanos(1_000), time: Nanos(12_345_000_000), interval_ms: 1500, open: 7 };
        let [on_time, late, over] = [(false, false), (true, false), (false, true)]
            .map(|(is_late, is_over)| Standing { is_late, is_over });
        let said = |cut_off, standing| sentence(cut_off, Some(&mark), standing);
        assert_eq!(
            said(CutOff::Gone, on_time),
            "its process ended without its exit hooks, after 12.3 s or later; at most 1.5 s of what it did, and 7 \
             activities that CUPTI still held, are missing, unless it said that checkpoints stop"
        );
        assert_eq!(
            said(CutOff::Gone, late),
            "its process ended without its exit hooks, after 12.3 s or later; it could not be written any more: all that it \
             did from then on, and 7 activities that CUPTI still held, are missing"
        );
        assert_eq!(
            said(CutOff::Alive, on_time),
            "its process still runs; this is what it had done after 12.3 s"
        );
        assert_eq!(
            said(CutOff::Alive, late),
            "its process still runs; this is what it had done after 12.3 s, when it could not be written any more"
        );
        assert_eq!(
            said(CutOff::Starved, on_time),
            "recording ended for want of memory, after 12.3 s or later, while its process ran on: all that it did from \
             then on is missing, and 7 activities that CUPTI still held"
        );
        assert_eq!(
            said(CutOff::Unwritten, over),
            "its process came to its end and could not write its files, after 12.3 s or later; 7 activities that CUPTI \
             still held are missing"
        );
        assert_eq!(
            sentence(CutOff::Unwritten, Some(&Mark { open: 0, ..mark }), over),
            "its process came to its end and could not write its files, after 12.3 s or later; nothing that it \
             launched is missing"
        );
        assert_eq!(
            said(CutOff::Unwritten, Standing { is_late: true, is_over: true }),
            "its process came to its end and could not write its files, after 12.3 s or later; it could not be written any \
             more: all that it did from then on, and 7 activities that CUPTI still held, are missing"
        );
        assert!(said(CutOff::Unknown, on_time).contains("or still runs elsewhere"));
    }
}
