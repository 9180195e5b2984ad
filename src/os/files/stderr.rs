//! Writes gpuflame's messages and the ledger to the application's stderr (descriptor 2).
//!
//! Descriptor 2 may be closed, a full pipe that no process reads, or a data file of the application. Therefore a
//! separate thread writes the messages, and the caller waits for this thread only for a limited time. Each write has at
//! most `PIPE_BUF` bytes, which a pipe accepts as a whole. `O_NONBLOCK` is never set, because this flag belongs to the
//! open file, which other processes, such as the user's shell, share. Messages may be written if descriptor 2 is one of
//! these files:
//!
//! ```text
//! any file                 open for appending, or descriptor 2 when the process or `gpuflame run` started
//! pipe, socket, device     also if it was descriptor 2 when CUDA started, is a terminal, or is the same as stdout
//! ```
//!
//! Any other file might contain the application's data, because if an application closes descriptor 2, the next file
//! that it opens gets the number 2.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use libc::c_int;

use crate::is_privileged;
use crate::process::descriptor::{self, FileId};
use crate::process::{host_signals, threads};

/// Identity of the file that was descriptor 2 when CUDA started; `None` if descriptor 2 was closed.
static FILE_AT_START: OnceLock<Option<FileId>> = OnceLock::new();
/// Identity of the file that was descriptor 2 when the process or `gpuflame run` started; `None` if it is unknown.
static FILE_AT_EXEC: OnceLock<Option<FileId>> = OnceLock::new();

/// Environment variable in which `gpuflame run` and the preloaded library pass the identity of descriptor 2 to child
/// processes.
pub const AT_EXEC_VARIABLE: &str = "_GPUFLAME_STDERR";

/// Maximum number of bytes per write. A pipe accepts a write of this size as a whole or not at all, and the write does
/// not block if `poll` has reported room.
pub(super) const MAX_WRITE_BYTES: usize = libc::PIPE_BUF;
/// Maximum time for which the writing thread tries to write a text.
const MAX_WRITE_TIME: Duration = Duration::from_secs(5);
/// Interval between checks whether a pipe has room, if `poll` cannot be used.
const PIPE_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Rule that determines how a text starts if it is unknown whether the last line on descriptor 2 is finished. (If the
/// last line is known to be unfinished, a line feed is always written before the text.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineStart {
    /// No line feed is written before the text if the state of the last line is unknown.
    Message,
    /// A line feed is written before the text if the state of the last line is unknown and descriptor 2 is a terminal.
    OwnLine,
}

/// State of the last line on descriptor 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastLine {
    Finished,
    Unfinished,
    Unknown,
}

/// Stores which file is currently open as descriptor 2. Therefore a data file that later gets the descriptor number 2
/// is not mistaken for stderr. Call this function before any other function of this module.
pub fn remember_file() {
    FILE_AT_START.get_or_init(|| current_file().ok());
    FILE_AT_EXEC.get_or_init(|| {
        let passed_on = std::env::var(AT_EXEC_VARIABLE).ok().filter(|_| !is_privileged());
        passed_on.and_then(|text| FileId::parse(&text))
    });
}

/// Stores which file is open as descriptor 2 when the process starts. Call this function before `main`.
pub fn remember_file_at_exec() {
    FILE_AT_EXEC.get_or_init(|| current_file().ok());
}

/// Returns the value of [`AT_EXEC_VARIABLE`] for a program that will inherit descriptor 2; `None` if descriptor 2 is
/// closed.
pub fn file_id_to_pass_on() -> Option<String> {
    current_file().ok().map(|identity| identity.to_string())
}

/// Whether messages may be written to the file that is currently open as descriptor 2.
pub fn takes_messages() -> bool {
    descriptor::stat_descriptor(libc::STDERR_FILENO).is_ok_and(|facts| is_for_messages(&facts))
}

/// Whether descriptor 2 is a pipe or socket, whose last line cannot be read and may be unfinished. If the last line is
/// hidden in this way, the caller must write a heading line before a text that must start on its own line. At most the
/// heading is then appended to an unfinished line.
pub fn hides_last_line() -> bool {
    descriptor::stat_descriptor(libc::STDERR_FILENO)
        .is_ok_and(|facts| last_line(&facts) == LastLine::Unknown && !is_terminal())
}

/// Writes `text` on another thread, and waits until the text is written or `patience` is over. When `patience` is over,
/// this function returns, but the writing thread still tries for several seconds. Returns false if messages may not be
/// written to descriptor 2.
pub fn write(text: &[u8], patience: Duration) -> bool {
    remember_file();
    if !takes_messages() {
        return false;
    }
    let (done, waits) = sync_channel(1);
    let owned = text.to_vec();
    let spawned = threads::spawn(c"gpuflame", threads::DEFAULT_STACK_BYTES, move || {
        let _ = done.send(write_chunks(&owned, LineStart::Message, MAX_WRITE_TIME).is_ok());
    });
    match spawned {
        Ok(()) => waits.recv_timeout(patience).unwrap_or(true),
        // If no thread can be created, the calling thread writes the text, for at most `MAX_WRITE_TIME`.
        Err(_) => write_here(text, patience.min(MAX_WRITE_TIME)),
    }
}

/// Writes `text` on the calling thread, without heap memory and without a lock. Stops when `patience` is over. If
/// descriptor 2 is a pipe, first checks whether it has a reader, so that no SIGPIPE is raised. Returns false if the
/// text was not written completely.
pub fn write_here(text: &[u8], patience: Duration) -> bool {
    host_signals::with_all_blocked(|| write_chunks(text, LineStart::Message, patience)).is_ok()
}

/// Like [`write_here`], but starts `text` on its own line if possible. A new line cannot be guaranteed on a pipe or
/// socket, whose last line cannot be read (see [`hides_last_line`]).
pub fn write_on_own_line(text: &[u8], patience: Duration) -> bool {
    host_signals::with_all_blocked(|| write_chunks(text, LineStart::OwnLine, patience)).is_ok()
}

fn write_chunks(mut text: &[u8], start: LineStart, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    let mut is_first = true;
    while !text.is_empty() {
        wait_for_room(libc::STDERR_FILENO, deadline)?;
        let facts = descriptor::stat_descriptor(libc::STDERR_FILENO)?;
        if !is_for_messages(&facts) {
            return Err(ErrorKind::NotFound.into());
        }
        let needs_line_feed = is_first && starts_in_a_line(&facts, start);
        match write_chunk(text, needs_line_feed) {
            Ok(written) => {
                is_first = false;
                text = &text[written..];
            }
            Err(error) if [ErrorKind::Interrupted, ErrorKind::WouldBlock].contains(&error.kind()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes as many of the first lines of `text` as fit into one write, preceded by a line feed if needed. Returns the
/// number of bytes of `text` that were written. This function is not inlined, because otherwise its buffer would take
/// stack space in the caller even if nothing is written.
#[inline(never)]
fn write_chunk(text: &[u8], needs_line_feed: bool) -> io::Result<usize> {
    let mut buffer = [b'\n'; MAX_WRITE_BYTES];
    let extra = usize::from(needs_line_feed);
    let chunk = match needs_line_feed {
        true => {
            let chunk = &text[..leading_lines_bytes(&text[..text.len().min(MAX_WRITE_BYTES - 1)])];
            buffer[1..=chunk.len()].copy_from_slice(chunk);
            &buffer[..=chunk.len()]
        }
        false => &text[..leading_lines_bytes(text)],
    };
    // SAFETY: the chunk is readable for its length.
    let written = unsafe { libc::write(libc::STDERR_FILENO, chunk.as_ptr().cast(), chunk.len()) };
    usize::try_from(written)
        .map(|written| written.saturating_sub(extra))
        .map_err(|_| io::Error::last_os_error())
}

/// Returns the length in bytes of the complete lines at the start of `text` that fit into one write. Because one write
/// contains only complete lines, another writer's text does not split a line. If even the first line does not fit,
/// returns the number of its bytes that fit.
pub(super) fn leading_lines_bytes(text: &[u8]) -> usize {
    let most = &text[..text.len().min(MAX_WRITE_BYTES)];
    if most.len() == text.len() {
        return most.len();
    }
    most.iter().rposition(|&byte| byte == b'\n').map_or(most.len(), |at| at + 1)
}

/// Whether a line feed must be written before a text. `start` is the rule that applies if the state of the last line is
/// unknown.
fn starts_in_a_line(facts: &libc::stat, start: LineStart) -> bool {
    match last_line(facts) {
        LastLine::Finished => false,
        LastLine::Unfinished => true,
        // An extra line feed is harmless on a terminal, but programs that read a pipe do not expect empty lines.
        LastLine::Unknown => start == LineStart::OwnLine && is_terminal(),
    }
}

fn last_line(facts: &libc::stat) -> LastLine {
    match facts.st_mode & libc::S_IFMT {
        libc::S_IFREG => match last_byte(facts) {
            Ok(None | Some(b'\n')) => LastLine::Finished,
            Ok(Some(_)) => LastLine::Unfinished,
            Err(_) => LastLine::Unknown,
        },
        // A device that is not a terminal, such as /dev/null, has no unfinished line.
        libc::S_IFCHR if !is_terminal() => LastLine::Finished,
        _ => LastLine::Unknown,
    }
}

/// Returns the byte before the position of the next write to a regular file; `None` if that position is the start of
/// the file.
fn last_byte(facts: &libc::stat) -> io::Result<Option<u8>> {
    let position = match is_appended() {
        true => facts.st_size,
        // SAFETY: lseek accepts any number, and an offset of 0 from the current position does not move the position.
        false => unsafe { libc::lseek(libc::STDERR_FILENO, 0, libc::SEEK_CUR) },
    };
    let Some(before) = u64::try_from(position).map_err(io::Error::other)?.checked_sub(1) else {
        return Ok(None);
    };
    // Open the file again for reading. Descriptor 2 is rarely readable, and reading through it would move its position,
    // which other processes share.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/proc/self/fd/2")?;
    if FileId::from_file(&file)? != FileId::from_stat(facts) {
        return Err(ErrorKind::NotFound.into());
    }
    file.seek(SeekFrom::Start(before))?;
    let mut byte = [0];
    file.read_exact(&mut byte)?;
    Ok(Some(byte[0]))
}

/// Waits until the descriptor accepts [`MAX_WRITE_BYTES`] bytes without blocking.
pub(super) fn wait_for_room(number: c_int, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut asked = libc::pollfd { fd: number, events: libc::POLLOUT, revents: 0 };
        match poll(&mut asked, left.as_millis().min(60_000) as i32) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            // The pipe has no reader any more, or the descriptor is closed.
            Ok(_) if asked.revents & (libc::POLLERR | libc::POLLNVAL) != 0 => {
                return Err(ErrorKind::BrokenPipe.into());
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // `poll` failed because a seccomp filter refuses it. (The only other possible error is a lack of memory.)
            Err(_) => return wait_without_poll(number, deadline),
        }
    }
}

/// Calls `poll`, or `ppoll` if a seccomp filter refuses `poll`.
fn poll(asked: &mut libc::pollfd, milliseconds: i32) -> io::Result<i32> {
    // SAFETY: `asked` is one pollfd, and exists until the call returns.
    let found = unsafe { libc::poll(asked, 1, milliseconds) };
    if found >= 0 {
        return Ok(found);
    }
    let error = io::Error::last_os_error();
    if error.kind() == ErrorKind::Interrupted {
        return Err(error);
    }
    let patience = libc::timespec {
        tv_sec: libc::time_t::from(milliseconds / 1000),
        tv_nsec: libc::c_long::from(milliseconds % 1000) * 1_000_000,
    };
    // SAFETY: `asked` is one pollfd; `asked` and `patience` exist until the call returns, and no signal mask is passed.
    match unsafe { libc::ppoll(asked, 1, &patience, std::ptr::null()) } {
        found @ 0.. => Ok(found),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for room without `poll`, by checking the number of bytes in a pipe. All files except pipes are assumed to have
/// room, because a regular file always has room, and a terminal is rarely stopped.
fn wait_without_poll(number: c_int, deadline: Instant) -> io::Result<()> {
    let is_pipe = descriptor::stat_descriptor(number)?.st_mode & libc::S_IFMT == libc::S_IFIFO;
    while is_pipe && !pipe_has_room(number) {
        if Instant::now() >= deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        std::thread::sleep(PIPE_POLL_INTERVAL);
    }
    Ok(())
}

/// Whether at most half of the pipe's capacity is used. If more than half of the capacity is used, the pipe may already
/// be full, because its pages may be only partly filled.
fn pipe_has_room(number: c_int) -> bool {
    let mut held: c_int = 0;
    // SAFETY: FIONREAD writes one int to a variable of this type, and F_GETPIPE_SZ takes no pointer.
    let (result, size) = unsafe {
        (libc::ioctl(number, libc::FIONREAD, &raw mut held), libc::fcntl(number, libc::F_GETPIPE_SZ))
    };
    // If a seccomp filter refuses one of the two calls, assume that there is room, so that messages are printed.
    result != 0 || size < 0 || held <= size / 2
}

/// Whether messages may be written to the file. The table in this module's documentation lists the permitted kinds of
/// files.
fn is_for_messages(facts: &libc::stat) -> bool {
    let identity = Some(FileId::from_stat(facts));
    let known = |place: &OnceLock<Option<FileId>>| place.get().copied().flatten();
    if is_appended() || known(&FILE_AT_EXEC) == identity {
        return true;
    }
    let is_stream = matches!(facts.st_mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFIFO | libc::S_IFSOCK);
    let is_stdout = || identity == FileId::from_descriptor(libc::STDOUT_FILENO).ok();
    is_stream && (known(&FILE_AT_START) == identity || is_terminal() || is_stdout())
}

fn is_appended() -> bool {
    // SAFETY: F_GETFL accepts any number and takes no pointer.
    let flags = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_GETFL) };
    flags != -1 && flags & libc::O_APPEND != 0
}

fn is_terminal() -> bool {
    // SAFETY: isatty accepts any number.
    unsafe { libc::isatty(libc::STDERR_FILENO) == 1 }
}

/// Returns the identity of the file that is currently open as descriptor 2.
fn current_file() -> io::Result<FileId> {
    FileId::from_descriptor(libc::STDERR_FILENO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stderr_writes_fit_a_pipe_and_do_not_split_short_lines() {
        let line = [&[b'x'; 99][..], b"\n"].concat();
        let lines = line.repeat(100);
        assert_eq!(leading_lines_bytes(&lines), MAX_WRITE_BYTES / 100 * 100);
        assert_eq!(
            leading_lines_bytes(&lines[..MAX_WRITE_BYTES]),
            MAX_WRITE_BYTES,
            "a text that fits is written completely"
        );
        assert_eq!(
            leading_lines_bytes(&[b'x'; 2 * MAX_WRITE_BYTES]),
            MAX_WRITE_BYTES,
            "a line that is too long goes in parts"
        );
        assert_eq!(leading_lines_bytes(b"a\nb"), 3);
    }
}
