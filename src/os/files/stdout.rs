//! Writes text records to the application's standard output, if a setting requests this. If stdout accepts no more
//! data, for example because no process reads the pipe, records are queued. When the queue is full, further records are
//! dropped and counted. Writing never blocks a thread. `O_NONBLOCK` is never set, for the same reason as for stderr.

use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

use super::stderr::{MAX_WRITE_BYTES, leading_lines_bytes, wait_for_room};
use crate::process::descriptor::FileId;
use crate::process::host_signals;

/// Maximum number of queued bytes.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// Writer of text records. The caller passes each record in one call, and each record ends with a line feed.
#[derive(Debug)]
pub struct Stdout {
    /// Identity of the file that was stdout when the writer was created; `None` if stdout was closed. If stdout refers
    /// to another file later, that file belongs to the application, and no records are written to it.
    expected: Option<FileId>,
    queued: Vec<u8>,
    dropped: u64,
}

impl Stdout {
    /// Creates a writer to the file that is currently stdout.
    #[expect(clippy::new_without_default, reason = "the current stdout is not a default value")]
    pub fn new() -> Self {
        let expected = FileId::from_descriptor(libc::STDOUT_FILENO).ok();
        Self { expected, queued: Vec::new(), dropped: 0 }
    }

    /// Tries for at most `patience` to write the queued records. Returns the number of records that were dropped or
    /// could not be written.
    pub fn finish(mut self, patience: Duration) -> u64 {
        self.write_queued(Instant::now() + patience, 1);
        let left = self.queued.iter().filter(|&&byte| byte == b'\n').count();
        self.dropped + left as u64
    }

    /// Writes queued records until fewer than `least` bytes remain in the queue, stdout accepts no more bytes, or
    /// `deadline` has passed.
    fn write_queued(&mut self, deadline: Instant, least: usize) {
        let mut done = 0;
        while self.queued.len() - done >= least {
            match host_signals::with_all_blocked(|| self.write_some(done, deadline)) {
                Ok(written) => done += written,
                Err(error) if [ErrorKind::Interrupted, ErrorKind::WouldBlock].contains(&error.kind()) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => break,
                Err(_) => {
                    self.expected = None;
                    break;
                }
            }
        }
        self.queued.drain(..done);
    }

    fn write_some(&self, from: usize, deadline: Instant) -> io::Result<usize> {
        wait_for_room(libc::STDOUT_FILENO, deadline)?;
        if FileId::from_descriptor(libc::STDOUT_FILENO).ok() != self.expected || self.expected.is_none() {
            return Err(ErrorKind::NotFound.into());
        }
        let chunk = &self.queued[from..];
        let chunk = &chunk[..leading_lines_bytes(chunk)];
        // SAFETY: the chunk is readable for its length.
        let written = unsafe { libc::write(libc::STDOUT_FILENO, chunk.as_ptr().cast(), chunk.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }
}

impl Write for Stdout {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        if self.expected.is_none() || self.queued.len() + record.len() > MAX_QUEUED_BYTES {
            self.dropped += 1;
        } else {
            self.queued.extend_from_slice(record);
        }
        self.write_queued(Instant::now(), MAX_WRITE_BYTES);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_queued(Instant::now(), 1);
        Ok(())
    }
}
