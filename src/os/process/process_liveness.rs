//! Lets a process that reads a file check whether the thread that writes the file is still running.

use std::fs;
use std::path::Path;

use super::threads;

/// Identity of a thread, which is unique among all threads that have ever run on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadIdentity {
    /// Process id.
    pub process: u32,
    /// Thread id.
    pub thread: u32,
    /// Start time of the thread, in clock ticks since the machine started.
    pub started: u64,
    /// PID namespace to which the process id and thread id belong. Each container has its own PID namespace.
    pub namespace: u64,
    /// Boot id of the kernel, which identifies the machine and its last start.
    pub boot: String,
}

impl ThreadIdentity {
    /// Identity of the calling thread.
    pub fn current() -> Self {
        let (process, thread) = (std::process::id(), threads::current_id() as u32);
        let started = start_time(process, thread).unwrap_or(0);
        Self { process, thread, started, namespace: pid_namespace(), boot: boot_id() }
    }

    /// Formats the identity as a line of text, which is stored in a file to identify the file's writer.
    pub fn to_line(&self) -> String {
        let Self { process, thread, started, namespace, boot } = self;
        format!("{process} {thread} {started} {namespace} {boot}\n")
    }

    /// Parses the output of [`ThreadIdentity::to_line`].
    pub fn parse_line(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        Some(Self {
            process: words.next()?.parse().ok()?,
            thread: words.next()?.parse().ok()?,
            started: words.next()?.parse().ok()?,
            namespace: words.next()?.parse().ok()?,
            boot: words.next()?.to_owned(),
        })
    }

    /// Whether the thread is still running. Returns `None` if this is unknown because the thread ran on another machine
    /// or in another container.
    pub fn is_alive(&self) -> Option<bool> {
        let is_here = !self.boot.is_empty() && self.boot == boot_id() && self.namespace == pid_namespace();
        is_here.then(|| start_time(self.process, self.thread) == Some(self.started))
    }
}

/// Returns the start time of a thread, which distinguishes the thread from an ended thread that had the same id.
fn start_time(process: u32, thread: u32) -> Option<u64> {
    // In the thread's `stat` file, the state is field 3 and the start time is field 22.
    let stat = threads::read_stat(process, thread as i32)?;
    let mut fields = stat.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Whether this process was forked and has not executed another program since the fork. Worker processes are typically
/// forked in this way, and usually end by `_exit`.
pub fn is_forked() -> bool {
    /// Flag from the kernel's `sched.h` (PF_FORKNOEXEC): the process was forked and has not executed another program.
    /// The flags of a process are field 9 of `stat`.
    const PF_FORKNOEXEC: u64 = 0x40;
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let flags = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(6)?.parse().ok());
    flags.is_some_and(|flags: u64| flags & PF_FORKNOEXEC != 0)
}

fn pid_namespace() -> u64 {
    // The target of the link has the form `pid:[4026531836]`.
    let link = fs::read_link(Path::new("/proc/self/ns/pid")).unwrap_or_default();
    let digits = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect::<String>();
    digits.parse().unwrap_or(0)
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_started_program_is_not_a_fork_but_its_child_is() {
        assert!(!is_forked());
        // SAFETY: the child makes a few system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `_exit` ends the child without running the exit handlers of this process.
            unsafe { libc::_exit(if is_forked() { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waitpid writes to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
    }

    #[test]
    fn a_thread_is_alive_until_it_exits_and_a_reused_id_is_not() {
        let own = ThreadIdentity::current();
        assert_eq!(own.is_alive(), Some(true), "{own:?}");
        assert_eq!(ThreadIdentity::parse_line(&own.to_line()), Some(own.clone()));
        assert_eq!(["", "1 2 3 4", "1 2 3 x y"].map(ThreadIdentity::parse_line), [None, None, None]);
        let elsewhere = ThreadIdentity { boot: "another machine".to_owned(), ..own.clone() };
        assert_eq!(elsewhere.is_alive(), None);
        assert_eq!(ThreadIdentity { namespace: 1, ..own.clone() }.is_alive(), None);
        assert_eq!(ThreadIdentity { started: own.started + 1, ..own }.is_alive(), Some(false));
        let gone = std::thread::spawn(ThreadIdentity::current).join().unwrap();
        // `join` may return before the kernel has removed the thread from its list.
        while gone.is_alive() != Some(false) {
            std::thread::yield_now();
        }
    }
}
