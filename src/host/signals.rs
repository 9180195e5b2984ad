//! Signals are the application's: none of our threads takes one, and its handlers may come and jump at any place of
//! ours.

/// Runs `body` with all signals blocked: a thread that it makes never runs the application's signal handlers, and no
/// handler on this one jumps out of it.
pub fn without<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero is a valid signal set, and sigfillset and pthread_sigmask write to the two.
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

/// Whether a thread that came to `at` on its stack has left what it was doing at `inside`, by a jump: a signal handler
/// stands deeper than what it interrupts, with the kernel's frame in between, or on the stack that is set aside for
/// signals. Sees only what is certain; some microseconds.
pub fn jumped_out_of(inside: usize, at: usize) -> bool {
    // SAFETY: all-zero is a valid `stack_t`.
    let mut set_aside: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: with a null stack the call only writes to `set_aside`.
    if unsafe { libc::sigaltstack(std::ptr::null(), &mut set_aside) } != 0 {
        return false;
    }
    let start = set_aside.ss_sp.addr();
    let is_handler = set_aside.ss_flags & libc::SS_ONSTACK != 0;
    let began_there = (start..start + set_aside.ss_size).contains(&inside);
    if is_handler && !began_there {
        return false;
    }
    at >= inside || !may_be_interrupted(inside, at)
}

/// How far below the place where somebody was interrupted the kernel's frame may begin: what gpuflame needs of a stack
/// itself, several times, and the largest state of a processor, 11 KiB.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const FARTHEST: usize = 64 << 10;

/// Whether the kernel's frame for a signal may lie between the two: it begins with the address of the code that
/// returns from handlers, which the C library has told the kernel.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn may_be_interrupted(inside: usize, at: usize) -> bool {
    let returns = returns_from_handlers();
    let mut words = [0_usize; 256];
    let mut from = at.max(inside.saturating_sub(FARTHEST)) & !7;
    while from < inside {
        let bytes = size_of_val(&words).min(inside - from);
        let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
        let remote = libc::iovec { iov_base: from as *mut _, iov_len: bytes };
        // SAFETY: the kernel writes no more than `words` has, and checks the other address itself.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        let is_unmapped =
            || std::io::Error::last_os_error().raw_os_error().is_some_and(|error| error == libc::EFAULT);
        let Ok(read) = usize::try_from(read) else {
            // Two stacks; or nobody may look.
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
fn may_be_interrupted(_inside: usize, _at: usize) -> bool {
    true
}

/// The addresses of the code that the kernel has return from handlers: one as a rule, another for each language that
/// sets its handlers without the C library.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn returns_from_handlers() -> [usize; 64] {
    /// As the kernel has it.
    #[repr(C)]
    #[derive(Default)]
    struct Action {
        handler: usize,
        flags: usize,
        returns: usize,
        mask: u64,
    }
    std::array::from_fn(|signal| {
        let mut action = Action::default();
        let none = std::ptr::null::<Action>();
        // SAFETY: without an action to set, the call only writes to `action`.
        let answer = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal + 1, none, &raw mut action, size_of::<u64>())
        };
        if answer == 0 { action.returns } else { 0 }
    })
}
