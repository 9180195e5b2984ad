//! Identifies loaded modules. A module is code that the dynamic linker has loaded: the program, a library, or a plugin.
//! A function pointer is valid only while its module is loaded, because another module may later be loaded at the same
//! address.

use std::ffi::{CStr, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;

/// Id of a loaded module, computed from its address, its path and its layout. If a file is unloaded and loaded again at
/// the same address, it has the same id as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleId(NonZeroU64);

impl ModuleId {
    /// Returns the id of the module that contains `address`; `None` for generated code and for unmapped memory.
    pub fn containing(address: usize) -> Option<Self> {
        let mut search = ModuleSearch { address, found: None };
        // SAFETY: The linker calls `visit` with the pointer to `search`, and only until this call returns.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        search.found
    }

    /// Returns the id as a nonzero number.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

struct ModuleSearch {
    address: usize,
    found: Option<ModuleId>,
}

/// # Safety
/// The arguments must be those that `dl_iterate_phdr` passes to its callback, and `search` must point to a
/// [`ModuleSearch`].
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: `ModuleId::containing` passed this pointer, and no other code uses the search during this call.
    let search = unsafe { &mut *search.cast::<ModuleSearch>() };
    // SAFETY: the linker passes a valid description.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the pointer refers to the linker's own array of `dlpi_phnum` headers, which stays valid during the visit.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let offset = search.address.wrapping_sub(info.dlpi_addr as usize);
    let is_inside = |header: &libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD
            && offset.wrapping_sub(header.p_vaddr as usize) < header.p_memsz as usize
    };
    if !headers.iter().any(is_inside) {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    info.dlpi_addr.hash(&mut hasher);
    headers.iter().for_each(|header| (header.p_type, header.p_vaddr, header.p_memsz).hash(&mut hasher));
    if !info.dlpi_name.is_null() {
        // SAFETY: the name is not null, so it is a C string of the linker.
        unsafe { CStr::from_ptr(info.dlpi_name) }.hash(&mut hasher);
    }
    search.found = Some(ModuleId(NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN)));
    1
}

/// Whether the byte at `address` can be read. Also returns false if the kernel refuses the system call that reads the
/// byte.
pub fn is_readable(address: usize) -> bool {
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: 1 };
    // SAFETY: the kernel writes one byte to `byte`, and checks the source address itself.
    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_one_id_and_generated_code_has_none() {
        let of_libc = ModuleId::containing(libc::getpid as *const () as usize);
        let of_program = ModuleId::containing(visit as *const () as usize);
        assert!(of_libc.is_some() && of_program.is_some() && of_libc != of_program);
        assert_eq!(ModuleId::containing(libc::getppid as *const () as usize), of_libc);
        let generated = vec![0_u8; 1 << 20];
        assert_eq!(ModuleId::containing(generated.as_ptr().addr()), None);
        assert!(is_readable(generated.as_ptr().addr()));
        assert!(!is_readable(16));
    }
}
