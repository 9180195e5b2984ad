//! Activity buffers, whose memory the client provides. The application's thread requests a buffer while it holds
//! CUPTI's lock, and writes records into the buffer. The worker thread completes the records and returns the buffer to
//! the client.

use crate::link::{core, version};
use crate::sim_lock;
use crate::subscriber::Subscriber;
use gpusim_core::faults::Fault;
use gpusim_core::settings;
use gpusim_core::sync::lock;
use gpusim_core::thread::Client;
use gpusim_core::work::Work;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// CUpti_BuffersCallbackRequestFunc
pub(crate) type Requested = extern "C" fn(&mut *mut u8, &mut usize, &mut usize);
/// CUpti_BuffersCallbackCompleteFunc
pub(crate) type Completed = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// Buffer request callback of the new interface, which receives a struct that describes the request.
pub(crate) type RequestedV2 = extern "C" fn(&mut *mut u8, &mut usize, &mut usize, *mut c_void);
/// Buffer completion callback of the new interface, which does not receive the context and the stream.
pub(crate) type CompletedV2 = extern "C" fn(*mut u8, usize, usize, *mut CompleteInfo);

/// CUpti_BufferCallbackCompleteInfo
#[repr(C)]
pub(crate) struct CompleteInfo {
    size: usize,
    thread: u64,
}

/// Lock that a thread holds while it requests a buffer, or while it delivers a buffer twice. Without the lock, the
/// client could provide the same memory for a new buffer between the two deliveries. Then the second delivery would
/// make the client treat this memory as free while records are written into it.
static LENDING: Mutex<()> = Mutex::new(());

fn lending() -> Option<MutexGuard<'static, ()>> {
    settings::get().faults.hands_over_twice().then(|| lock(&LENDING))
}

/// A client's request and completion callbacks for buffers.
#[derive(Clone, Copy)]
pub(crate) enum Functions {
    /// The client registered functions of CUPTI's old buffer interface.
    Global(Requested, Completed),
    /// The client registered functions of CUPTI's new buffer interface.
    Own(RequestedV2, CompletedV2),
}

/// A client's buffer registration.
pub(crate) struct Registration {
    functions: Mutex<Option<Functions>>,
    /// Number of the client's buffers that CUPTI has not returned yet.
    out: AtomicUsize,
    dropped: AtomicU64,
}

impl Registration {
    pub(crate) const fn new() -> Registration {
        Registration { functions: Mutex::new(None), out: AtomicUsize::new(0), dropped: AtomicU64::new(0) }
    }

    /// Registers the client's functions, as cuptiActivityRegisterCallbacks does.
    pub(crate) fn register(&self, functions: Functions) {
        *lock(&self.functions) = Some(functions);
    }

    /// Removes the client's functions, so that CUPTI no longer requests and delivers buffers.
    pub(crate) fn forget(&self) {
        *lock(&self.functions) = None;
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.client().is_some()
    }

    fn client(&self) -> Option<Functions> {
        *lock(&self.functions)
    }

    /// Counts an activity record that was dropped because no buffer was available.
    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    /// Returns the number of records dropped since the last call of this function.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Relaxed)
    }

    fn complete(&self, base: *mut u8, size: usize, used: usize) {
        let size = if settings::get().odd_size { size - 8 } else { size };
        as_client(Client::BufferCompleted, || match self.client() {
            Some(Functions::Global(_, completed)) => completed(null_mut(), 0, base, size, used),
            Some(Functions::Own(_, completed)) => {
                let mut info = CompleteInfo { size: size_of::<CompleteInfo>(), thread: 0 };
                completed(base, size, used, &raw mut info);
            }
            None => {}
        });
    }
}

/// Number of complete records in a buffer. The counter is never freed, because pending records point to it; a later
/// buffer can reuse the counter.
#[derive(Default)]
pub(crate) struct Progress(AtomicU32);

impl Progress {
    /// Counts one more complete record.
    pub(crate) fn complete_one(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

static SPARE_PROGRESS: Mutex<Vec<&'static Progress>> = Mutex::new(Vec::new());

/// A client's buffer, into which records are written.
pub(crate) struct Buffer {
    owner: &'static Subscriber,
    base: *mut u8,
    size: usize,
    used: usize,
    records: u32,
    limit: u32,
    progress: &'static Progress,
    /// GPU work that the records in the buffer describe. The buffer stores this work only for the truth file.
    pub(crate) works: Vec<Work>,
}

// SAFETY: the memory belongs to CUPTI until the buffer is returned to the client, and two threads never use it at the
// same time.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Requests a buffer with room for `bytes` from the client. Returns `None` if the client provides no buffer; the
    /// record is then dropped.
    pub(crate) fn request(owner: &'static Subscriber, bytes: usize) -> Option<Buffer> {
        let _lending = lending();
        let _lock = sim_lock::hold("bufferRequested");
        let functions = owner.buffers.client()?;
        if settings::get().max_buffers.is_some_and(|most| owner.buffers.out.load(Relaxed) >= most) {
            return None;
        }
        let (mut base, mut size, mut limit) = (null_mut(), 0, 0);
        as_client(Client::BufferRequested, || match functions {
            Functions::Global(requested, _) => requested(&mut base, &mut size, &mut limit),
            Functions::Own(requested, _) => requested(&mut base, &mut size, &mut limit, null_mut()),
        });
        if base.is_null() || size < bytes {
            if !version().survives_null_buffer() {
                gpusim_core::abort!(
                    "bufferRequested gave no usable buffer ({base:?}, {size} bytes): CUPTI before 12.9 crashes here"
                );
            }
            if !base.is_null() {
                owner.buffers.complete(base, size, 0);
            }
            return None;
        }
        if !(base as usize).is_multiple_of(8) {
            gpusim_core::abort!("bufferRequested gave {base:?}, which does not lie on 8 bytes");
        }
        owner.buffers.out.fetch_add(1, Relaxed);
        let spare = lock(&SPARE_PROGRESS).pop();
        let progress = spare.unwrap_or_else(|| Box::leak(Box::default()));
        progress.0.store(0, Relaxed);
        let limit = if limit == 0 { u32::MAX } else { limit as u32 };
        Some(Buffer { owner, base, size, used: 0, records: 0, limit, progress, works: Vec::new() })
    }

    /// Whether `records` more records of `bytes` in total fit into the buffer.
    pub(crate) fn has_room_for(&self, bytes: usize, records: u32) -> bool {
        self.used + bytes <= self.size && records <= self.limit - self.records
    }

    /// Appends a zeroed record to the buffer; the caller has checked that there is room.
    pub(crate) fn append(&mut self, bytes: usize) -> &mut [u8] {
        assert!(self.has_room_for(bytes, 1), "gpusim: no room for a record");
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

    /// Returns the counter of this buffer's complete records.
    pub(crate) fn progress(&self) -> &'static Progress {
        self.progress
    }

    /// Whether every record in the buffer is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.progress.0.load(Relaxed) >= self.records
    }

    /// Whether the buffer holds no record.
    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Returns the bytes of the records written so far.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `used <= size` bytes at `base` are the client's buffer, written by `append`.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.used) }
    }

    /// Drops the buffer without returning it to the client.
    pub(crate) fn abandon(self) {
        self.owner.buffers.out.fetch_sub(1, Relaxed);
    }

    /// Returns the buffer to the client. The caller has already counted the fate of the buffer's records in the truth
    /// file.
    pub(crate) fn hand_back(self) {
        self.owner.buffers.out.fetch_sub(1, Relaxed);
        lock(&SPARE_PROGRESS).push(self.progress);
        let _lending = lending();
        self.owner.buffers.complete(self.base, self.size, self.used);
        if let Some(core) = core().filter(|_| settings::get().faults.comes_twice()) {
            (core.count_fault)(Fault::BufferTwice);
            self.owner.buffers.complete(self.base, self.size, self.used);
        }
    }
}

fn as_client(what: Client, call: impl FnOnce()) {
    let Some(core) = core() else { return };
    let before = (core.swap_client)(what);
    call();
    (core.swap_client)(before);
}
