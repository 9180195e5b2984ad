//! A writer to the application's standard output, for the only setting that asks for it. If stdout is full, for example
//! because no process reads it, records are queued up to a limit, then dropped and counted. No thread is blocked. As
//! for stderr, `O_NONBLOCK` is never set.

use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

use super::descriptor::Identity;
use super::signals;
use super::stderr::{AT_ONCE, first_lines, wait_for_room};

/// Maximum number of queued bytes.
const MOST_WAITING: usize = 1 << 20;

/// Writes records. The caller passes each record in one call, and each record ends with a line feed.
#[derive(Debug)]
pub struct Stdout {
    /// Identity of stdout at the start; `None` if stdout was closed. A data file that gets the number of stdout later
    /// is not stdout.
    expected: Option<Identity>,
    waiting: Vec<u8>,
    dropped: u64,
}

impl Stdout {
    /// Creates a writer to the file that is stdout now.
    #[expect(clippy::new_without_default, reason = "the current stdout is not a default value")]
    pub fn new() -> Self {
        let expected = Identity::of_number(libc::STDOUT_FILENO).ok();
        Self { expected, waiting: Vec::new(), dropped: 0 }
    }

    /// Writes the queued records until `patience` is over. Returns the number of records that were dropped.
    pub fn end(mut self, patience: Duration) -> u64 {
        self.pass_on(Instant::now() + patience, 1);
        let left = self.waiting.iter().filter(|&&byte| byte == b'\n').count();
        self.dropped + left as u64
    }

    /// Writes queued records while at least `least` bytes are queued, until stdout takes no more bytes.
    fn pass_on(&mut self, deadline: Instant, least: usize) {
        let mut done = 0;
        while self.waiting.len() - done >= least {
            match signals::without(|| self.write_some(done, deadline)) {
                Ok(written) => done += written,
                Err(error) if [ErrorKind::Interrupted, ErrorKind::WouldBlock].contains(&error.kind()) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => break,
                Err(_) => {
                    self.expected = None;
                    break;
                }
            }
        }
        self.waiting.drain(..done);
    }

    fn write_some(&self, from: usize, deadline: Instant) -> io::Result<usize> {
        wait_for_room(libc::STDOUT_FILENO, deadline)?;
        if Identity::of_number(libc::STDOUT_FILENO).ok() != self.expected || self.expected.is_none() {
            return Err(ErrorKind::NotFound.into());
        }
        let chunk = &self.waiting[from..];
        let chunk = &chunk[..first_lines(chunk)];
        // SAFETY: the chunk is readable for its length.
        let written = unsafe { libc::write(libc::STDOUT_FILENO, chunk.as_ptr().cast(), chunk.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }
}

impl Write for Stdout {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        if self.expected.is_none() || self.waiting.len() + record.len() > MOST_WAITING {
            self.dropped += 1;
        } else {
            self.waiting.extend_from_slice(record);
        }
        self.pass_on(Instant::now(), AT_ONCE);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass_on(Instant::now(), 1);
        Ok(())
    }
}
