//! Captures the calling thread's own stack with framehop, in the way in which a program would use framehop.

use std::ffi::{CStr, c_int, c_void};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use gimli::EhFrameHdr;

pub(crate) struct Framehop {
    unwinder: UnwinderX86_64<&'static [u8]>,
    cache: CacheX86_64,
    top: u64,
}

impl Framehop {
    /// Creates an unwinder for the calling thread; the unwinder reads the thread's stack up to `top`.
    pub(crate) fn new(top: u64) -> Self {
        let mut unwinder = UnwinderX86_64::new();
        // SAFETY: SAFETY: `add` gets the arguments that it expects.
        unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut unwinder).cast()) };
        Self { unwinder, cache: CacheX86_64::new(), top }
    }

    /// Captures the caller's stack.
    #[inline(always)]
    pub(crate) fn capture(&mut self, room: &mut [*mut c_void]) -> usize {
        let (pc, sp, bp): (u64, u64, u64);
        // SAFETY: the assembly code only reads registers.
        unsafe {
            std::arch::asm!("lea {pc}, [rip]", "mov {sp}, rsp", "mov {bp}, rbp", pc = out(reg) pc, sp = out(reg) sp,
                bp = out(reg) bp, options(nomem, nostack, preserves_flags));
        }
        let top = self.top;
        let mut registers = UnwindRegsX86_64::new(pc, sp, bp);
        let mut read = |address: u64| {
            // SAFETY: the address is between the stack pointer and the thread's first frames, so it is a mapped word on
            // the stack.
            (address >= sp && address < top).then(|| unsafe { (address as *const u64).read() }).ok_or(())
        };
        let mut address = FrameAddress::from_instruction_pointer(pc);
        for (count, place) in room.iter_mut().enumerate() {
            *place = address.address() as *mut c_void;
            let caller = self.unwinder.unwind_frame(address, &mut registers, &mut self.cache, &mut read);
            match caller.ok().flatten().and_then(FrameAddress::from_return_address) {
                Some(caller) => address = caller,
                None => return count + 1,
            }
        }
        room.len()
    }
}

/// Adds one loaded object (a library or the program) to framehop.
unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, unwinder: *mut c_void) -> c_int {
    // SAFETY: the loader describes an object in `info`. SAFETY: the other pointer is the unwinder that `new` passed.
    let (info, unwinder) = unsafe { (&*info, &mut *unwinder.cast::<UnwinderX86_64<&'static [u8]>>()) };
    // SAFETY: the loader's list of program headers has this length.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let rest = |address: u64| {
        let load = loads().find(|load| address.wrapping_sub(load.p_vaddr) < load.p_memsz)?;
        let length = load.p_vaddr + load.p_memsz - address;
        // SAFETY: this is a loaded segment of an object that stays loaded.
        Some(unsafe { std::slice::from_raw_parts((info.dlpi_addr + address) as *const u8, length as usize) })
    };
    let module = || {
        let header = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
        let eh_frame_hdr = rest(header.p_vaddr)?;
        let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(header.p_vaddr);
        let parsed = EhFrameHdr::new(eh_frame_hdr, gimli::LittleEndian).parse(&bases, 8).ok()?;
        let start = parsed.eh_frame_ptr().direct().ok()?;
        let eh_frame = rest(start)?;
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_svma: Some(start..start + eh_frame.len() as u64),
            eh_frame: Some(eh_frame),
            eh_frame_hdr_svma: Some(header.p_vaddr..header.p_vaddr + eh_frame_hdr.len() as u64),
            eh_frame_hdr: Some(eh_frame_hdr),
            ..Default::default()
        };
        // SAFETY: the name that the loader gives is a C string.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned();
        let first = loads().map(|load| load.p_vaddr & !0xfff).min()?;
        let last = loads().map(|load| load.p_vaddr + load.p_memsz).max()?;
        Some(Module::new(name, info.dlpi_addr + first..info.dlpi_addr + last, info.dlpi_addr, sections))
    };
    if let Some(module) = module() {
        unwinder.add_module(module);
    }
    0
}
