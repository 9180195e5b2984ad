//! Tests captures on the main thread; therefore the program does not use the test harness, which runs each test on
//! another thread. The unwinder finds the bounds of the main thread's stack in a special way, and most programs launch
//! from the main thread.

fn main() {
    #[cfg(target_arch = "x86_64")]
    main_thread::test();
}

#[cfg(target_arch = "x86_64")]
#[path = "support/code.rs"]
#[allow(dead_code)]
mod code;
#[cfg(target_arch = "x86_64")]
#[path = "support/deep.rs"]
mod deep;
#[cfg(target_arch = "x86_64")]
#[path = "support/oracle.rs"]
mod oracle;

#[cfg(target_arch = "x86_64")]
mod main_thread {
    use std::cell::Cell;
    use std::fs;
    use std::hint::black_box;

    use gpuflame_model::record::ContextFlags;
    use gpuflame_unwind::Skip;

    use super::code::Code;
    use super::deep::deep;
    use super::oracle::{Addresses, capture_both, unwinder};

    pub(crate) fn test() {
        the_stack_is_walked_to_its_root_without_a_look_at_proc();
        what_stood_in_the_capture_before_is_not_walked_again();
        the_stack_ends_where_the_kernel_put_its_end();
    }

    /// The test forbids the process to open files during the capture. Therefore the C library cannot find the bounds of
    /// the main thread's stack.
    fn the_stack_is_walked_to_its_root_without_a_look_at_proc() {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: getrlimit writes to `limit`.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
        let set = |rlim_cur| {
            let limit = libc::rlimit { rlim_cur, ..limit };
            // SAFETY: setrlimit only reads the limit to which its argument points.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        };
        set(0);
        assert!(fs::File::open("/proc/self/maps").is_err());
        deep(30, &mut || {
            let (mut ours, mut theirs) = (Addresses::new(), Addresses::new());
            assert_eq!(capture_both(&mut ours, &mut theirs).0, 0);
            assert_eq!(ours.as_slice()[1..], theirs.as_slice()[1..]);
            assert!(ours.count > 30);
        });
        set(limit.rlim_cur);
    }

    fn what_stood_in_the_capture_before_is_not_walked_again() {
        deep(30, &mut || {
            let mut kept = 0;
            for _ in 0..black_box(3) {
                kept = unwinder().capture(Skip::None).unchanged;
            }
            assert!(kept > 30, "{kept}");
        });
    }

    /// In code without unwind information, the unwinder follows a frame pointer only if it points into the stack.
    fn the_stack_ends_where_the_kernel_put_its_end() {
        let end = stack_end();
        assert_ne!(flags_with_frame_pointer(end - 16) & ContextFlags::GUESSED, 0, "its last two words");
        assert_eq!(flags_with_frame_pointer(end - 8), ContextFlags::CUT, "one word beyond");
    }

    /// Returns the address of argc, which is the end of the program's own stack: `startstack` in proc(5).
    fn stack_end() -> u64 {
        let stat = fs::read_to_string("/proc/self/stat").expect("proc is mounted");
        let (_, from_the_third) = stat.rsplit_once(") ").expect("a name in parentheses");
        from_the_third.split(' ').nth(28 - 3).and_then(|end| end.parse().ok()).expect("a number")
    }

    thread_local! {
        static FLAGS: Cell<u32> = const { Cell::new(0) };
    }

    extern "C-unwind" fn look() {
        FLAGS.set(unwinder().capture(Skip::None).flags.0);
    }

    /// Calls code without unwind information with this value in rbp, captures below it, and returns the capture's
    /// flags.
    fn flags_with_frame_pointer(rbp: u64) -> u32 {
        Code::new().run(look, None, Some(rbp as usize));
        FLAGS.get()
    }
}
