//! Writes to standard error with a time limit. The time limit lets a command end even if stderr is a full pipe that no
//! process reads, or a stopped terminal.

use std::io::{self, ErrorKind};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use super::stderr::{leading_lines_bytes, wait_for_room};

/// Writes `text` to standard error, and waits at most `patience`. A separate thread writes the text, because the write
/// may block even after a check for room: another process may fill the pipe before the write.
///
/// # Errors
/// Fails if writing to the descriptor fails. Returns `TimedOut` if `patience` is over before the text is written.
pub fn write(text: &[u8], patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    let (done, result) = sync_channel(1);
    let owned = text.to_vec();
    if std::thread::Builder::new().spawn(move || done.send(write_until(&owned, deadline))).is_err() {
        return write_until(text, deadline);
    }
    result.recv_timeout(patience).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

fn write_until(mut text: &[u8], deadline: Instant) -> io::Result<()> {
    while !text.is_empty() {
        let chunk = &text[..leading_lines_bytes(text)];
        wait_for_room(libc::STDERR_FILENO, deadline)?;
        // SAFETY: the chunk is readable for its length.
        let written = unsafe { libc::write(libc::STDERR_FILENO, chunk.as_ptr().cast(), chunk.len()) };
        match usize::try_from(written) {
            Ok(written) => text = &text[written..],
            Err(_) => match io::Error::last_os_error() {
                error if [ErrorKind::Interrupted, ErrorKind::WouldBlock].contains(&error.kind()) => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}
