//! Activity buffers: the client's memory, asked for on the application's thread under CUPTI's lock,
//! filled there, completed and handed back by the worker.

use crate::link::{core, version};
use crate::result::{Code, INVALID_PARAMETER};
use crate::sim_lock;
use gpusim_core::settings;
use gpusim_core::thread::Client;
use gpusim_core::work::Work;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// CUpti_BuffersCallbackRequestFunc
pub(crate) type Requested = extern "C" fn(&mut *mut u8, &mut usize, &mut usize);
/// CUpti_BuffersCallbackCompleteFunc
pub(crate) type Completed = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

static CLIENT: Mutex<Option<(Requested, Completed)>> = Mutex::new(None);
/// Buffers that the client has handed out and not got back.
static OUT: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// cuptiActivityRegisterCallbacks
pub(crate) fn register(requested: Option<Requested>, completed: Option<Completed>) -> Result<(), Code> {
    let both = requested.zip(completed).ok_or(INVALID_PARAMETER)?;
    *CLIENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(both);
    Ok(())
}

fn client() -> Option<(Requested, Completed)> {
    *CLIENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a record that found no buffer.
pub(crate) fn count_dropped() {
    DROPPED.fetch_add(1, Relaxed);
}

/// Records dropped since the last question.
pub(crate) fn take_dropped() -> u64 {
    DROPPED.swap(0, Relaxed)
}

/// How many records of a buffer are complete. Reused with the next buffer, never freed: pending records
/// point to it.
#[derive(Default)]
pub(crate) struct Progress(AtomicU32);

impl Progress {
    /// One more.
    pub(crate) fn complete_one(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

static SPARE_PROGRESS: Mutex<Vec<&'static Progress>> = Mutex::new(Vec::new());

/// One buffer of the client's.
pub(crate) struct Buffer {
    base: *mut u8,
    size: usize,
    used: usize,
    records: u32,
    limit: u32,
    progress: &'static Progress,
    /// The work behind the records, kept for the truth file only.
    pub(crate) works: Vec<Work>,
}

// SAFETY: a buffer is memory that the client gave away until it gets it back; one thread at a time has it.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Asks the client for a buffer with room for `bytes`. `None`: there is none, the record is dropped.
    pub(crate) fn request(bytes: usize) -> Option<Buffer> {
        let _lock = sim_lock::hold("bufferRequested");
        let (requested, _) = client()?;
        if settings::get().max_buffers.is_some_and(|most| OUT.load(Relaxed) >= most) {
            return None;
        }
        let (mut base, mut size, mut limit) = (null_mut(), 0, 0);
        as_client(Client::BufferRequested, || requested(&mut base, &mut size, &mut limit));
        if base.is_null() || size < bytes {
            if !version().survives_null_buffer() {
                gpusim_core::abort!(
                    "bufferRequested gave no usable buffer ({base:?}, {size} bytes): CUPTI before 12.9 crashes here"
                );
            }
            if !base.is_null() {
                complete(base, size, 0);
            }
            return None;
        }
        if !(base as usize).is_multiple_of(8) {
            gpusim_core::abort!("bufferRequested gave {base:?}, which does not lie on 8 bytes");
        }
        OUT.fetch_add(1, Relaxed);
        let spare = SPARE_PROGRESS.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let progress = spare.unwrap_or_else(|| Box::leak(Box::default()));
        progress.0.store(0, Relaxed);
        let limit = if limit == 0 { u32::MAX } else { limit as u32 };
        Some(Buffer { base, size, used: 0, records: 0, limit, progress, works: Vec::new() })
    }

    /// Whether another record fits.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.used + bytes <= self.size && self.records < self.limit
    }

    /// Appends a zeroed record; the caller checked for room.
    pub(crate) fn append(&mut self, bytes: usize) -> &mut [u8] {
        assert!(self.has_room(bytes), "gpusim: no room for a record");
        // SAFETY: `used + bytes <= size`, and the client gave `size` bytes at `base`.
        let record = unsafe {
            let start = self.base.add(self.used);
            start.write_bytes(0, bytes);
            std::slice::from_raw_parts_mut(start, bytes)
        };
        self.used += bytes;
        self.records += 1;
        record
    }

    /// Where completion of this buffer's records is counted.
    pub(crate) fn progress(&self) -> &'static Progress {
        self.progress
    }

    /// Whether every record is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.progress.0.load(Relaxed) >= self.records
    }

    /// Whether it holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The records written so far.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `used <= size` bytes at `base` are the client's buffer, written by `append`.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.used) }
    }

    /// Never hands it back.
    pub(crate) fn abandon(self) {
        OUT.fetch_sub(1, Relaxed);
    }

    /// Hands it back to the client. The caller settled its works.
    pub(crate) fn hand_back(self) {
        OUT.fetch_sub(1, Relaxed);
        SPARE_PROGRESS.lock().unwrap_or_else(PoisonError::into_inner).push(self.progress);
        complete(self.base, self.size, self.used);
    }
}

fn complete(base: *mut u8, size: usize, used: usize) {
    let size = if settings::get().odd_size { size - 8 } else { size };
    if let Some((_, completed)) = client() {
        as_client(Client::BufferCompleted, || completed(null_mut(), 0, base, size, used));
    }
}

fn as_client(what: Client, call: impl FnOnce()) {
    let Some(core) = core() else { return };
    let before = (core.swap_client)(what);
    call();
    (core.swap_client)(before);
}
