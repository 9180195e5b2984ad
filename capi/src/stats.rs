//! Defines the C layout of the statistics that a program can query while it runs. Later versions of gpuflame may add
//! fields at the end of the structure. A program that was compiled with an older header gets only the fields that fit
//! into the program's structure.

use std::mem::{offset_of, size_of};
use std::ptr::NonNull;

use gpuflame_explain::Sum;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::Cause;
use gpuflame_recorder::session::Stats;

/// Maximum number of kernels in the list of top kernels. `NAME_BYTES` is the size in bytes of a kernel's name,
/// including the terminating zero.
const MAX_KERNELS: usize = 8;
const NAME_BYTES: usize = 240;

/// The header's `struct gpuflame_kernel`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Kernel {
    count: u64,
    ns: u64,
    name: [u8; NAME_BYTES],
}

/// The header's `struct gpuflame_statistics`. All times in this structure are in ns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Statistics {
    size: u64,
    windows: u64,
    steps: u64,
    launches: u64,
    matched: u64,
    pending: u64,
    outside: u64,
    dropped: u64,
    activities: u64,
    gpus: u64,
    window_ns: u64,
    busy_ns: u64,
    idle_ns: u64,
    /// Idle time by cause, in the order of [`Cause::ALL`]. The last two values are the idle time before the first GPU
    /// work of a window, and the idle time after the last GPU work of a window.
    idle_by_cause_ns: [u64; 6],
    kernels: u64,
    top: [Kernel; MAX_KERNELS],
}

const _: () =
    assert!(size_of::<Statistics>() == 160 + MAX_KERNELS * 256, "the header's first version has this size");
const _: () = assert!(Cause::ALL.len() == 4, "the header names each cause");

/// Address and size of the structure that the caller passed.
pub(crate) struct CallerStruct {
    at: NonNull<Statistics>,
    size: usize,
}

impl CallerStruct {
    /// Reads the size of the caller's structure.
    ///
    /// # Safety
    /// `at` points to a structure whose first eight bytes contain the size of the structure.
    pub(crate) unsafe fn new(at: NonNull<Statistics>) -> Result<Self> {
        // SAFETY: the caller guarantees that `at` points to at least the size field; the read need not be aligned.
        let size = unsafe { at.cast::<u64>().read_unaligned() };
        let least = size_of::<Statistics>();
        if size < least as u64 {
            let message = format!(
                "gpuflame_stats: the structure's size is {size} bytes, below the minimum of {least}: set \
                 size to sizeof(struct gpuflame_statistics)"
            );
            return Err(Error::new(ErrorKind::Setting, message));
        }
        Ok(Self { at, size: usize::try_from(size).unwrap_or(usize::MAX) })
    }

    /// Writes `stats` to the caller's structure.
    ///
    /// # Safety
    /// The caller still fulfils the contract of [`CallerStruct::new`], and the structure may be written.
    pub(crate) unsafe fn fill(&self, stats: &Stats) {
        let mut all = Statistics::from_stats(stats);
        all.size = self.size.min(size_of::<Statistics>()) as u64;
        // SAFETY: `new` checked that the caller's structure is at least as large as `Statistics`.
        unsafe { self.at.write_unaligned(all) };
    }
}

impl Statistics {
    fn from_stats(stats: &Stats) -> Self {
        let ledger = &stats.ledger;
        let launches = ledger.launches();
        let devices = || ledger.devices.iter();
        let time = |of: fn(&gpuflame_model::profile::DeviceTime) -> u64| {
            devices().filter_map(|d| d.time.as_ref()).map(of).sum()
        };
        let timed = || devices().filter(|device| device.time.is_some());
        let mut idle_by_cause_ns = [0; 6];
        for device in timed() {
            // The structure `Statistics` has no separate fields for the idle time during start-up and shutdown.
            let (opening, closing) = (device.opening + device.start_up, device.closing + device.shutdown);
            let parts = device.between.into_iter().chain([opening, closing]);
            idle_by_cause_ns.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
        let mut top = [Kernel { count: 0, ns: 0, name: [0; NAME_BYTES] }; MAX_KERNELS];
        for (place, kernel) in top.iter_mut().zip(&stats.kernels) {
            (place.count, place.ns) = (kernel.count, kernel.nanos);
            let name = &kernel.name[..kernel.name.floor_char_boundary(NAME_BYTES - 1)];
            place.name[..name.len()].copy_from_slice(name.as_bytes());
        }
        Self {
            size: 0,
            windows: stats.windows.into(),
            steps: stats.steps,
            launches: launches.total,
            matched: part_of_sum(&launches, "matched"),
            pending: part_of_sum(&launches, "launch_pending"),
            outside: part_of_sum(&launches, "outside"),
            dropped: part_of_sum(&launches, "dropped"),
            activities: ledger.activities().total,
            gpus: devices().count() as u64,
            window_ns: time(|time| time.window),
            busy_ns: time(|time| time.busy),
            idle_ns: time(|time| time.idle),
            idle_by_cause_ns,
            kernels: stats.kernels.len() as u64,
            top,
        }
    }
}

fn part_of_sum(sum: &Sum, word: &str) -> u64 {
    sum.parts.iter().find(|(known, _)| *known == word).map_or(0, |(_, part)| *part)
}

const _: () = assert!(offset_of!(Statistics, top) == 160, "as the header has it");
