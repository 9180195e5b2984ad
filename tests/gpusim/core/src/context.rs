//! CUDA contexts, which activity records identify by small integers. A CUDA context stores the time until which its GPU
//! work runs, because synchronizing calls wait until that time.

use crate::clock;
use crate::error::{CuError, INVALID_CONTEXT, INVALID_DEVICE};
use crate::host_fn;
use crate::schedule::{self, Mark};
use crate::settings;
use crate::stream::Stream;
use crate::sync::lock;
use crate::table::{resource, with_hooks};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Object to which a CUcontext handle points. Never freed.
#[derive(Debug)]
pub struct Context {
    magic: u64,
    /// Id of the context in activity records. Ids count from 1, in order of creation.
    pub uid: u32,
    /// Ordinal of the context's device.
    pub device: u32,
    alive: AtomicBool,
    default_stream: OnceLock<&'static Stream>,
    /// All streams of the context. The list is filled only with the stepped clock.
    streams: Mutex<Vec<&'static Stream>>,
    busy_until: AtomicU64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"context\x01");
static NEXT_UID: AtomicU32 = AtomicU32::new(1);

impl Context {
    /// Creates a context and notifies the subscriber.
    pub fn create(device: u32) -> Result<&'static Context, CuError> {
        if device >= settings::get().devices {
            return Err(INVALID_DEVICE);
        }
        let context: &'static Context = Box::leak(Box::new(Context {
            magic: MAGIC,
            uid: NEXT_UID.fetch_add(1, Relaxed),
            device,
            alive: AtomicBool::new(true),
            default_stream: OnceLock::new(),
            streams: Mutex::default(),
            busy_until: AtomicU64::new(0),
        }));
        all().push(context);
        with_hooks(|h| (h.resource)(resource::CONTEXT_CREATED, context.handle(), null_mut(), null_mut()));
        Ok(context)
    }

    /// Adds a new stream to the context's list of streams. Streams are never freed, so the list would grow without
    /// limit. Therefore only the stepped clock, which needs the list, adds streams to it.
    pub fn add_stream(&self, stream: &'static Stream) {
        if settings::get().stepped || cfg!(test) {
            lock(&self.streams).push(stream);
        }
    }

    fn streams(&self) -> Vec<&'static Stream> {
        lock(&self.streams).clone()
    }

    /// Returns the streams that are ordered with the legacy default stream: they wait for it, and it waits for them.
    pub fn blocking_streams(&self) -> Vec<&'static Stream> {
        self.streams()
            .into_iter()
            .filter(|stream| stream.is_blocking && !stream.is_legacy_default())
            .collect()
    }

    /// Returns the mark (time and operation) at which all GPU work of the context is done; used with the stepped clock.
    pub fn head(&self) -> Mark {
        self.streams().into_iter().map(schedule::head).fold(Mark::default(), Mark::later)
    }

    /// Returns the context to which a handle points.
    pub fn of_handle(handle: *mut c_void) -> Result<&'static Context, CuError> {
        let context = handle.cast::<Context>();
        if context.is_null() || !context.is_aligned() {
            return Err(INVALID_CONTEXT);
        }
        // SAFETY: programs pass the result of cuCtxCreate or a similar call, and contexts are never freed.
        let context = unsafe { &*context };
        let valid = context.magic == MAGIC && context.alive.load(Relaxed);
        if valid { Ok(context) } else { Err(INVALID_CONTEXT) }
    }

    /// Returns the handle by which a program refers to this context.
    pub fn handle(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the context's default stream, whose id is 7.
    pub fn default_stream(&'static self) -> &'static Stream {
        self.default_stream.get_or_init(|| Stream::default_of(self))
    }

    /// Waits for running GPU work, then notifies the subscriber and makes the CUDA context's handle invalid.
    pub fn destroy(&'static self) {
        self.synchronize();
        with_hooks(|h| {
            (h.resource)(resource::CONTEXT_DESTROY_STARTING, self.handle(), null_mut(), null_mut())
        });
        self.alive.store(false, Relaxed);
    }

    /// Whether the CUDA context still exists, because the program has not destroyed it.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// Stores that a stream of the context is busy until `time`. Only synchronizing calls read this time.
    pub fn note_busy(&self, time: u64) {
        if settings::get().real_clock {
            self.busy_until.fetch_max(time, Relaxed);
        }
    }

    /// With the real or the stepped clock, waits until all streams are idle and all host functions have run.
    pub fn synchronize(&self) {
        let stepped = settings::get().stepped;
        clock::wait_until(if stepped { self.head().time } else { self.busy_until.load(Relaxed) });
        host_fn::wait(host_fn::none_left);
    }
}

/// All contexts, sorted by id. The first context id is 1.
fn all() -> MutexGuard<'static, Vec<&'static Context>> {
    static ALL: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());
    lock(&ALL)
}

/// Returns the streams of all CUDA contexts; the list is empty unless the stepped clock is used.
pub fn all_streams() -> Vec<&'static Stream> {
    let contexts = all().clone();
    contexts.iter().flat_map(|context| context.streams()).collect()
}

/// Returns the CUDA context with this id.
pub fn of_uid(uid: u32) -> Option<&'static Context> {
    all().iter().find(|context| context.uid == uid).copied()
}

/// Returns the device of the CUDA context with this id, or 0 if this context does not exist.
pub fn device_of(uid: u32) -> u32 {
    of_uid(uid).map_or(0, |context| context.device)
}

/// A device's primary context, created on first use and again after a reset.
#[derive(Clone, Copy, Default)]
struct Primary {
    context: Option<&'static Context>,
    users: u32,
}

fn primaries() -> std::sync::MutexGuard<'static, Vec<Primary>> {
    static PRIMARIES: Mutex<Vec<Primary>> = Mutex::new(Vec::new());
    let mut all = lock(&PRIMARIES);
    all.resize(settings::get().devices as usize, Primary::default());
    all
}

/// Adds a reference to the device's primary context, which is created if necessary.
pub fn retain_primary(device: u32) -> Result<&'static Context, CuError> {
    let mut all = primaries();
    let primary = all.get_mut(device as usize).ok_or(INVALID_DEVICE)?;
    if primary.context.is_none() {
        primary.context = Some(Context::create(device)?);
    }
    primary.users += 1;
    primary.context.ok_or(INVALID_DEVICE)
}

/// Returns the device's primary context, which the runtime keeps alive after its first use.
pub fn primary(device: u32) -> Result<&'static Context, CuError> {
    let existing = primaries().get(device as usize).ok_or(INVALID_DEVICE)?.context;
    existing.map_or_else(|| retain_primary(device), Ok)
}

/// Whether the device has a primary context now.
pub fn primary_is_active(device: u32) -> Result<bool, CuError> {
    primaries().get(device as usize).map(|p| p.context.is_some()).ok_or(INVALID_DEVICE)
}

/// Releases a reference to the device's primary context. The last release destroys the context.
pub fn release_primary(device: u32) -> Result<(), CuError> {
    let gone = {
        let mut all = primaries();
        let primary = all.get_mut(device as usize).ok_or(INVALID_DEVICE)?;
        primary.users = primary.users.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        if primary.users == 0 { primary.context.take() } else { None }
    };
    if let Some(context) = gone {
        context.destroy();
    }
    Ok(())
}

/// Destroys the primary context even if references to it exist.
pub fn reset_primary(device: u32) -> Result<(), CuError> {
    let gone = {
        let mut all = primaries();
        let primary = all.get_mut(device as usize).ok_or(INVALID_DEVICE)?;
        std::mem::take(primary).context
    };
    if let Some(context) = gone {
        context.destroy();
    }
    Ok(())
}
