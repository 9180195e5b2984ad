//! The application's stderr, on which we say what went wrong and print the ledger.
//!
//! It may be full and nobody reads it, closed, or by now a data file. So a thread of ours writes, as much as the
//! pipe takes at once, and who has something to say waits for it only so long. Whether writing blocks is never
//! set: that belongs to all who share the open file, the user's shell among them.

use std::io::{self, ErrorKind};
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use libc::c_int;

use super::descriptor::Identity;
use super::{signals, threads};

/// What stderr was when we came; `None`: closed.
static AT_START: OnceLock<Option<Identity>> = OnceLock::new();

/// A pipe takes so much whole or not at all, and does not block for it once it says that there is room.
pub(super) const AT_ONCE: usize = libc::PIPE_BUF;
/// How long a thread tries.
const LONGEST: Duration = Duration::from_secs(5);

/// Remembers what stderr is. To be called first: a data file that has the number 2 later is not stderr.
pub fn remember() {
    AT_START.get_or_init(|| identity().ok());
}

/// Writes `text`, and waits until that is done or `patience` is over. What was not written by then still is, if
/// there is room within seconds and the process lives.
pub fn write(text: &[u8], patience: Duration) {
    remember();
    let Some(Some(expected)) = AT_START.get().copied() else { return };
    let (done, waits) = sync_channel(1);
    let owned = text.to_vec();
    let spawned = threads::spawn(c"gpuflame", threads::STACK, move || {
        let _ = write_chunks(&owned, expected, LONGEST);
        let _ = done.send(());
    });
    match spawned {
        Ok(()) => drop(waits.recv_timeout(patience)),
        // No thread is to be had: here then, with less patience.
        Err(_) => write_here(text, patience.min(LONGEST)),
    }
}

/// Writes `text` on the calling thread, without memory of the heap and without a lock, and gives up when `patience` is
/// over. The signal for a pipe without a reader is not sent where none is found by looking first.
pub fn write_here(text: &[u8], patience: Duration) {
    if let Some(Some(expected)) = AT_START.get().copied() {
        let _ = signals::without(|| write_chunks(text, expected, patience));
    }
}

fn write_chunks(mut text: &[u8], expected: Identity, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    while !text.is_empty() {
        let chunk = &text[..first_lines(text)];
        wait_for_room(libc::STDERR_FILENO, deadline)?;
        if identity()? != expected && !takes_messages() {
            return Err(ErrorKind::NotFound.into());
        }
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

/// As many whole lines as go at once, so that no other writer comes between; or a part of one that is too long.
pub(super) fn first_lines(text: &[u8]) -> usize {
    let most = &text[..text.len().min(AT_ONCE)];
    if most.len() == text.len() {
        return most.len();
    }
    most.iter().rposition(|&byte| byte == b'\n').map_or(most.len(), |at| at + 1)
}

/// Waits until the descriptor with this number takes [`AT_ONCE`] bytes without blocking.
pub(super) fn wait_for_room(number: c_int, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut asked = libc::pollfd { fd: number, events: libc::POLLOUT, revents: 0 };
        // SAFETY: `asked` is one pollfd, and lives through the call.
        let found = unsafe { libc::poll(&mut asked, 1, left.as_millis().min(60_000) as i32) };
        match found {
            0 => return Err(ErrorKind::TimedOut.into()),
            // Nobody reads any more, or it is closed.
            1.. if asked.revents & (libc::POLLERR | libc::POLLNVAL) != 0 => {
                return Err(ErrorKind::BrokenPipe.into());
            }
            1.. => return Ok(()),
            _ if io::Error::last_os_error().kind() == ErrorKind::Interrupted => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

/// Whether what has the number 2 now was put there for messages: a terminal, a log that is appended to, or where stdout
/// goes as well. A data file, a pipe or a socket that merely got the lowest number that was free is none of these.
fn takes_messages() -> bool {
    // SAFETY: both take any number; F_GETFL takes no pointer.
    let (flags, is_terminal) =
        unsafe { (libc::fcntl(libc::STDERR_FILENO, libc::F_GETFL), libc::isatty(libc::STDERR_FILENO) == 1) };
    let is_appended = flags != -1 && flags & libc::O_APPEND != 0;
    is_terminal || is_appended || identity().ok() == Identity::of_number(libc::STDOUT_FILENO).ok()
}

/// What stderr is now.
fn identity() -> io::Result<Identity> {
    Identity::of_number(libc::STDERR_FILENO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_goes_at_once_than_a_pipe_takes_whole_and_lines_stay_whole_where_they_can() {
        let line = [&[b'x'; 99][..], b"\n"].concat();
        let lines = line.repeat(100);
        assert_eq!(first_lines(&lines), AT_ONCE / 100 * 100);
        assert_eq!(first_lines(&lines[..AT_ONCE]), AT_ONCE, "what is all there is goes");
        assert_eq!(first_lines(&[b'x'; 2 * AT_ONCE]), AT_ONCE, "a line that is too long goes in parts");
        assert_eq!(first_lines(b"a\nb"), 3);
    }
}
