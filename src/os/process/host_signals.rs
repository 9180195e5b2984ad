//! Protects gpuflame's code against the application's signal handlers. On a thread of the application, a signal handler
//! may interrupt gpuflame's code at any instruction, and may jump out of this code (`longjmp`). The application's
//! signal handlers never run on gpuflame's own threads.

/// Runs `body` with all signals blocked, so that no signal handler jumps out of `body`. A thread that `body` creates
/// inherits the blocked signals, so it never runs the application's handlers.
pub fn with_all_blocked<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero is a valid signal set; sigfillset writes to the first set, and pthread_sigmask writes to the
    // second set.
    let old = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    };
    let result = body();
    // SAFETY: `old` is the set that pthread_sigmask wrote.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
    result
}

/// Whether a thread has jumped out of gpuflame's code. The thread ran gpuflame's code at the stack address `inside`,
/// and now runs at the stack address `at`. If the thread has not jumped, it must now be in a signal handler. A handler
/// runs on the alternate signal stack, or deeper on the same stack, with the kernel's signal frame between the two
/// addresses. Returns true only if the thread has certainly jumped. Takes several microseconds.
pub fn has_jumped_out(inside: usize, at: usize) -> bool {
    // SAFETY: all-zero is a valid `stack_t`.
    let mut alternate: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: because no new stack is passed, the call only writes to `alternate`.
    if unsafe { libc::sigaltstack(std::ptr::null(), &mut alternate) } != 0 {
        return false;
    }
    let start = alternate.ss_sp.addr();
    let is_handler = alternate.ss_flags & libc::SS_ONSTACK != 0;
    let began_there = (start..start + alternate.ss_size).contains(&inside);
    if is_handler && !began_there {
        return false;
    }
    at >= inside || !has_signal_frame(inside, at)
}

/// Maximum distance in bytes from `inside` down to the kernel's signal frame: several times the stack that gpuflame
/// itself needs, plus the largest processor state (11 KiB).
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const MAX_FRAME_DISTANCE_BYTES: usize = 64 << 10;

/// Whether a signal frame of the kernel may be between the two stack addresses. A signal frame starts with the address
/// of the code that returns from the handler. The C library has registered this address with the kernel.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn has_signal_frame(inside: usize, at: usize) -> bool {
    let returns = return_addresses();
    let mut words = [0_usize; 256];
    let mut from = at.max(inside.saturating_sub(MAX_FRAME_DISTANCE_BYTES)) & !7;
    while from < inside {
        let bytes = size_of_val(&words).min(inside - from);
        let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
        let remote = libc::iovec { iov_base: from as *mut _, iov_len: bytes };
        // SAFETY: the kernel writes at most as many bytes as `words` has, and checks the source address itself.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        let is_unmapped =
            || std::io::Error::last_os_error().raw_os_error().is_some_and(|error| error == libc::EFAULT);
        let Ok(read) = usize::try_from(read) else {
            // If memory between the two addresses is unmapped, the addresses are on different stacks. After any other
            // error, assume that there may be a signal frame, because this process may not be permitted to make the
            // system call.
            return !is_unmapped();
        };
        if words[..read / 8].iter().any(|word| *word != 0 && returns.contains(word)) {
            return true;
        }
        if read < bytes {
            return false;
        }
        from += bytes;
    }
    false
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn has_signal_frame(_inside: usize, _at: usize) -> bool {
    true
}

/// Returns the address of the code that returns from the handler of each signal. Usually all handlers that were set
/// through the C library have the same return address. A language runtime that sets handlers without the C library
/// uses another address.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn return_addresses() -> [usize; 64] {
    /// The kernel's `sigaction`.
    #[repr(C)]
    #[derive(Default)]
    struct KernelAction {
        handler: usize,
        flags: usize,
        returns: usize,
        mask: u64,
    }
    std::array::from_fn(|signal| {
        let mut action = KernelAction::default();
        let none = std::ptr::null::<KernelAction>();
        // SAFETY: without an action to set, the call only writes to `action`.
        let answer = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal + 1, none, &raw mut action, size_of::<u64>())
        };
        if answer == 0 { action.returns } else { 0 }
    })
}
