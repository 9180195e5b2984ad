//! The unwinding engine for machines other than x86-64. This engine wraps the crate framehop, and has the same
//! interface as the engine for x86-64.
//!
//! With this engine, gpuflame can be built for machines other than x86-64, and can capture stacks on aarch64. The
//! portable engine is slower than the x86-64 engine (see the performance page). The portable engine allocates
//! inside the callback that notices a load or unload of an object. The crate framehop has an unwinder for aarch64
//! only. On other machines, a capture is empty and flagged as cut.

use std::fmt;
use std::ops::Range;

use framehop::aarch64::{CacheAarch64, PtrAuthMask, UnwindRegsAarch64, UnwinderAarch64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, MustNotAllocateDuringUnwind, Unwinder as _};

use super::bounds::StackBounds;
use super::copy::StackCopy;
use super::loader::{self, Object, Visit};
use super::loader_state::{self, LoaderState};
use super::{CachedCapture, Captured, MAX_FRAMES, Skip, epochs, memory, outside_pages};

/// Maximum number of cached stacks. The maximum has no effect, because this engine caches no stacks.
pub(super) const STACKS: usize = 1;
use gpuflame_model::record::{ContextFlags, Frame, ModuleEpoch};

/// Mask of the lower 48 bits of a return address, which contain the address of the code. The upper 16 bits of a return
/// address may contain a pointer signature.
const ADDRESS: u64 = (1 << 48) - 1;

/// The unwinding state of one thread.
pub(super) struct ThreadEngine {
    /// The loader state for which `unwinder` was built.
    listed_state: Option<LoaderState>,
    checks_every_capture: bool,
    unwinder: UnwinderAarch64<&'static [u8], MustNotAllocateDuringUnwind>,
    cache: CacheAarch64<MustNotAllocateDuringUnwind>,
    bounds: StackBounds,
    copy: StackCopy,
    /// Address ranges and epochs of the objects that `unwinder` knows.
    epochs: Vec<(Range<u64>, ModuleEpoch)>,
    frames: Vec<Frame>,
    /// Stack pointers of the frames in `frames`.
    positions: Vec<u64>,
    is_busy: bool,
}

/// The walker of copied stacks. No value of this type exists, because this engine does not support copied stacks.
#[derive(Debug)]
pub(super) enum CopyWalker {}

impl CopyWalker {
    pub(super) fn new() -> Option<Self> {
        None
    }

    pub(super) fn check_loaded_objects(&mut self) {
        match *self {}
    }

    pub(super) fn walk(&mut self, _registers: &[u64; super::REGISTERS], _stack: &[u8]) -> Captured<'_> {
        match *self {}
    }

    pub(super) fn last_walk(&self) -> (Captured<'_>, Vec<u64>) {
        match *self {}
    }
}

/// Stack positions of the frames of the last capture.
#[derive(Clone, Copy, Debug)]
pub struct StackPositions<'a>(&'a [u64]);

impl StackPositions<'_> {
    pub(super) const NONE: Self = Self(&[]);

    /// The stack pointers of the last `count` frames, leaf first.
    pub(super) fn last_frames(&self, count: usize) -> impl Iterator<Item = u64> {
        self.0[self.0.len().saturating_sub(count)..].iter().copied()
    }
}

impl fmt::Debug for ThreadEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadEngine").field("listed_state", &self.listed_state).finish_non_exhaustive()
    }
}

/// The values of registers with which a walk starts.
struct Registers {
    pc: u64,
    lr: u64,
    sp: u64,
    fp: u64,
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn registers() -> Option<Registers> {
    let (pc, lr, sp, fp);
    // SAFETY: this assembly only reads registers.
    unsafe {
        std::arch::asm!(
            "adr {pc}, .",
            "mov {lr}, x30",
            "mov {sp}, sp",
            "mov {fp}, x29",
            pc = out(reg) pc,
            lr = out(reg) lr,
            sp = out(reg) sp,
            fp = out(reg) fp,
            options(nomem, nostack, preserves_flags),
        );
    }
    Some(Registers { pc, lr, sp, fp })
}

#[cfg(not(target_arch = "aarch64"))]
fn registers() -> Option<Registers> {
    None
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        self.copy.release();
    }
}

impl ThreadEngine {
    pub(super) fn new() -> Option<Self> {
        let mut engine = Self {
            listed_state: None,
            checks_every_capture: false,
            unwinder: UnwinderAarch64::new(),
            cache: CacheAarch64::new_in(),
            bounds: StackBounds::of_this_thread(),
            copy: StackCopy::default(),
            epochs: Vec::new(),
            frames: Vec::with_capacity(MAX_FRAMES),
            positions: Vec::with_capacity(MAX_FRAMES),
            is_busy: false,
        };
        engine.list_modules();
        Some(engine)
    }

    pub(super) fn check_every_capture(&mut self, check: bool) {
        self.checks_every_capture = check;
    }

    /// Has no effect, because this engine caches no stacks.
    pub(super) fn use_caches(&mut self, _enabled: bool) {}

    #[inline(always)]
    pub(super) fn capture(&mut self, skip: Skip) -> Captured<'_> {
        match registers() {
            Some(registers) if !self.is_busy => self.capture_from(&registers, &skip),
            _ => Captured::EMPTY,
        }
    }

    /// Always walks the stack, because this engine caches no stacks.
    #[inline(always)]
    pub(super) fn capture_with_cache(&mut self, skip: Skip, _hint: u64) -> CachedCapture<'_> {
        CachedCapture::Miss(self.capture(skip))
    }

    pub(super) fn cache_last(&mut self) -> Option<usize> {
        None
    }

    fn capture_from(&mut self, registers: &Registers, skip: &Skip) -> Captured<'_> {
        self.is_busy = true;
        let state = if self.checks_every_capture { loader::current() } else { loader_state::latest() };
        if self.listed_state != Some(state) {
            self.list_modules();
        }
        self.frames.clear();
        self.positions.clear();
        let flags = self.walk(registers, skip, state);
        self.is_busy = false;
        Captured {
            frames: &self.frames,
            unchanged: 0,
            flags: ContextFlags(flags),
            positions: StackPositions(&self.positions),
        }
    }

    /// Passes every loaded object to framehop.
    fn list_modules(&mut self) {
        let mut unwinder = UnwinderAarch64::new();
        let mut epochs = Vec::new();
        self.listed_state = loader::with_lock(|state| {
            loader::visit(|object| {
                let epoch = epochs::epoch_of(object, state).unwrap_or(ModuleEpoch::UNKNOWN);
                epochs.push((object.start..object.end, epoch));
                if let Some(module) = module(object) {
                    unwinder.add_module(module);
                }
                Visit::Next
            });
            state
        });
        (self.unwinder, self.epochs) = (unwinder, epochs);
    }

    fn epoch(&self, address: u64) -> ModuleEpoch {
        let holder = self.epochs.iter().find(|(place, _)| place.contains(&address));
        holder.map_or(ModuleEpoch::OUTSIDE, |(_, epoch)| *epoch)
    }

    fn walk(&mut self, registers: &Registers, skip: &Skip, state: LoaderState) -> u32 {
        let (bounds, copy) = (self.bounds, &mut self.copy);
        let is_own = bounds.contains(registers.sp);
        copy.clear();
        if !is_own && !copy.enter(registers.sp) {
            return ContextFlags::CUT;
        }
        let mut read = |address| {
            let word = if is_own { read(bounds, registers.sp, address) } else { copy.word(address) };
            word.ok_or(())
        };
        let mut walker = UnwindRegsAarch64::new_with_ptr_auth_mask(
            PtrAuthMask(ADDRESS),
            registers.lr,
            registers.sp,
            registers.fp,
        );
        let mut address = FrameAddress::from_instruction_pointer(registers.pc);
        let mut skipping = true;
        let mut skipped = 0;
        while self.frames.len() < MAX_FRAMES {
            let pc = address.address();
            skipping = skipping && skips(skip, skipped, pc, walker.sp());
            if skipping {
                skipped += 1;
            } else {
                self.frames.push(match address.is_return_address() {
                    true => Frame::native(pc, self.epoch(pc - 1)),
                    false => Frame::native_exact(pc, self.epoch(pc)),
                });
                self.positions.push(walker.sp());
            }
            let caller = self.unwinder.unwind_frame(address, &mut walker, &mut self.cache, &mut read);
            match caller.map(|caller| caller.and_then(FrameAddress::from_return_address)) {
                Ok(Some(caller)) => address = caller,
                Ok(None) => return 0,
                Err(_) => {
                    outside_pages::note(address.address_for_lookup(), state);
                    return ContextFlags::CUT;
                }
            }
        }
        ContextFlags::TRUNCATED
    }
}

fn skips(skip: &Skip, skipped: usize, pc: u64, sp: u64) -> bool {
    match skip {
        Skip::None => false,
        Skip::Count(count) => skipped < *count,
        Skip::Inside(range) => range.contains(&pc),
        Skip::UpTo(address) => sp <= *address,
    }
}

fn read(stack: StackBounds, sp: u64, address: u64) -> Option<u64> {
    let is_above = address >= sp && address <= stack.hi.wrapping_sub(8);
    // SAFETY: the word is on the thread's own stack, above its stack pointer.
    (is_above && stack.contains(address)).then(|| unsafe { memory::word(address) })
}

fn module(object: &Object) -> Option<Module<&'static [u8]>> {
    let header = object.eh_frame_hdr()?;
    let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(header.as_ptr() as u64);
    let parsed = gimli::EhFrameHdr::new(header, gimli::LittleEndian).parse(&bases, 8).ok()?;
    let start = parsed.eh_frame_ptr().direct().ok()?;
    let eh_frame = object.rest_of_segment(start)?;
    let in_file = |section: &[u8]| {
        let first = (section.as_ptr() as u64).wrapping_sub(object.bias);
        first..first + section.len() as u64
    };
    let sections = ExplicitModuleSectionInfo {
        base_svma: 0,
        eh_frame_svma: Some(in_file(eh_frame)),
        eh_frame: Some(eh_frame),
        eh_frame_hdr_svma: Some(in_file(header)),
        eh_frame_hdr: Some(header),
        ..Default::default()
    };
    let name = object.name().to_string_lossy().into_owned();
    Some(Module::new(name, object.start..object.end, object.bias, sections))
}
