//! Signals belong to the application. None of our threads handles a signal, and the application's signal handlers may
//! interrupt our code anywhere, or leave our code by a jump.

/// Runs `body` with all signals blocked. A thread that `body` creates therefore never runs the application's signal
/// handlers, and no handler on the calling thread jumps out of `body`.
pub fn with_all_blocked<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero is a valid signal set; sigfillset writes to the first, pthread_sigmask to the second.
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

/// Whether a thread that is now at stack address `at` has jumped out of the code that it ran at stack address `inside`.
/// If it has not jumped, it is in a signal handler, which runs deeper than the interrupted code, with the kernel's
/// frame in between, or on the alternate signal stack. Returns true only if the jump is certain. Takes several
/// microseconds.
pub fn has_jumped_out(inside: usize, at: usize) -> bool {
    // SAFETY: all-zero is a valid `stack_t`.
    let mut alternate: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: with a null stack the call only writes to `alternate`.
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

/// Maximum distance of the kernel's frame below the interrupted code, in bytes: several times the stack that gpuflame
/// itself needs, and the largest processor state, 11 KiB.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const MAX_FRAME_DISTANCE_BYTES: usize = 64 << 10;

/// Whether the kernel's frame for a signal may be between the two addresses. The frame starts with the address of the
/// code that returns from handlers, which the C library has registered with the kernel.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn has_signal_frame(inside: usize, at: usize) -> bool {
    let returns = return_addresses();
    let mut words = [0_usize; 256];
    let mut from = at.max(inside.saturating_sub(MAX_FRAME_DISTANCE_BYTES)) & !7;
    while from < inside {
        let bytes = size_of_val(&words).min(inside - from);
        let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
        let remote = libc::iovec { iov_base: from as *mut _, iov_len: bytes };
        // SAFETY: the kernel writes at most the length of `words`, and checks the other address itself.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        let is_unmapped =
            || std::io::Error::last_os_error().raw_os_error().is_some_and(|error| error == libc::EFAULT);
        let Ok(read) = usize::try_from(read) else {
            // If there is unmapped memory in between, the two addresses are on different stacks. On any other error,
            // reading may not be permitted.
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

/// Addresses of the code by which handlers return, by signal. There is usually only one such address, plus one for each
/// language runtime that sets handlers without the C library.
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
