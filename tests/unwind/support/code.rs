//! Writes machine code without unwind information, at an address that the test chooses.

use std::ffi::c_void;
use std::ptr::null_mut;

const PAGE: usize = 4096;

/// A page with a function that calls its first argument.
pub(crate) struct Code {
    page: *mut c_void,
    entry: usize,
}

/// push rbx; push rbp; push rbp; mov rbx, rsp; test rsi, rsi; jz +3; mov rsp, rsi; test rdx, rdx; jz +3; mov rbp, rdx;
/// call rdi
const BEFORE: [u8; 24] = [
    0x53, 0x55, 0x55, 0x48, 0x89, 0xe3, 0x48, 0x85, 0xf6, 0x74, 3, 0x48, 0x89, 0xf4, 0x48, 0x85, 0xd2, 0x74,
    3, 0x48, 0x89, 0xd5, 0xff, 0xd7,
];
/// mov rsp, rbx; pop rbp; pop rbp; pop rbx; ret
const AFTER: [u8; 7] = [0x48, 0x89, 0xdc, 0x5d, 0x5d, 0x5b, 0xc3];

impl Code {
    /// Writes the code at such an address that its call returns to the address `place`, at which nothing may be mapped
    /// yet.
    pub(crate) fn that_calls_before(place: u64) -> Self {
        let entry = place as usize - BEFORE.len();
        let page = entry & !(PAGE - 1);
        assert!(place as usize + AFTER.len() <= page + PAGE, "the code lies on one page");
        Self::written(page as *mut c_void, entry, libc::MAP_FIXED_NOREPLACE)
    }

    /// Writes the code at an address that Linux chooses.
    pub(crate) fn new() -> Self {
        Self::written(null_mut(), 0, 0)
    }

    fn written(page: *mut c_void, entry: usize, flags: i32) -> Self {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: the mapping replaces no other mapping. If the caller passes an address, the page that is mapped there
        // contains `entry`.
        unsafe {
            let mapped = libc::mmap(page, PAGE, all, flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert!(mapped != libc::MAP_FAILED && (page.is_null() || mapped == page), "no page at {page:?}");
            let entry = if page.is_null() { mapped as usize } else { entry };
            (entry as *mut [u8; BEFORE.len()]).write_unaligned(BEFORE);
            ((entry + BEFORE.len()) as *mut [u8; AFTER.len()]).write_unaligned(AFTER);
            Self { page: mapped, entry }
        }
    }

    /// Calls `hook` from the generated code, optionally on another stack, and optionally with this value in rbp.
    pub(crate) fn run(&self, hook: extern "C-unwind" fn(), stack: Option<usize>, rbp: Option<usize>) {
        type Function = extern "C-unwind" fn(extern "C-unwind" fn(), usize, usize);
        // SAFETY: the bytes above are a function of this type.
        let function = unsafe { std::mem::transmute::<usize, Function>(self.entry) };
        function(hook, stack.unwrap_or(0), rbp.unwrap_or(0));
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the page belongs to this struct, and no thread runs its code.
        unsafe { libc::munmap(self.page, PAGE) };
    }
}
