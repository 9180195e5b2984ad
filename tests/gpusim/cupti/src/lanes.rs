//! Lanes: a lane is the place into which an API call writes a client's activity records. For each client, either every
//! thread has its own lane, or all threads share one lane; attribute 9 selects this. A lane contains the buffer that is
//! being filled, full buffers, and the records whose work the GPU has not completed. The number of incomplete records
//! is limited: a thread that is far ahead of the GPU waits, as with a real GPU.

use crate::buffers::{Buffer, Progress};
use crate::link::{BROKEN, version};
use crate::subscriber::{ALL, Subscriber};
use crate::{client_clock, contexts, external, worker};
use gpusim_core::api::MOST_SUBSCRIBERS;
use gpusim_core::callback_ids::DRIVER;
use gpusim_core::deps::Dependency;
use gpusim_core::layout::{self, ApiCall};
use gpusim_core::settings;
use gpusim_core::sync::lock;
use gpusim_core::unified::Move;
use gpusim_core::version::kind;
use gpusim_core::work::{Fate, Work};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Maximum number of incomplete records in a lane. A thread that reaches this limit waits.
const MOST_PENDING: usize = 8 << 10;
/// With the virtual clock, the number of new records after which a thread wakes the worker.
const BATCH: usize = 512;

/// A record in a buffer whose GPU work may not be complete yet.
pub(crate) struct Pending {
    /// Time at which the record's GPU work is complete.
    pub(crate) due: u64,
    times: (u64, u64),
    slot: *mut u8,
    /// Offset of the start and end times in the record.
    times_at: usize,
    is_kernel: bool,
    progress: &'static Progress,
    lane: &'static Lane,
}

// SAFETY: the slot is in a buffer that no other thread accesses until the worker returns the buffer.
unsafe impl Send for Pending {}

/// The activity records of one thread for one client, which are not delivered yet.
pub(crate) struct Lane {
    owner: &'static Subscriber,
    pub(crate) content: Mutex<Content>,
    pending: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Content {
    pub(crate) current: Option<Buffer>,
    pub(crate) full: Vec<Buffer>,
    pub(crate) inbox: Vec<Pending>,
}

/// All lanes.
pub(crate) static LANES: Mutex<Vec<&'static Lane>> = Mutex::new(Vec::new());
/// Lanes of threads that have ended.
static SPARE: Mutex<Vec<&'static Lane>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: [Cell<*const Lane>; MOST_SUBSCRIBERS] = const { [const { Cell::new(null()) }; MOST_SUBSCRIBERS] };
}

fn mine(owner: &'static Subscriber) -> &'static Lane {
    if !owner.per_thread().load(Relaxed) {
        static SHARED: [OnceLock<&'static Lane>; MOST_SUBSCRIBERS] =
            [const { OnceLock::new() }; MOST_SUBSCRIBERS];
        return SHARED[owner.place].get_or_init(|| new_lane(owner));
    }
    let lane = MINE.with(|mine| mine[owner.place].get());
    if !lane.is_null() {
        // SAFETY: lanes are leaked and never freed.
        return unsafe { &*lane };
    }
    let spare = || {
        let mut spare = lock(&SPARE);
        let at = spare.iter().position(|lane| lane.owner.place == owner.place)?;
        Some(spare.swap_remove(at))
    };
    let lane = spare().unwrap_or_else(|| new_lane(owner));
    MINE.with(|mine| mine[owner.place].set(lane));
    // SAFETY: the key is valid and the value is what `give_up` expects.
    unsafe { libc::pthread_setspecific(exit_key(owner), std::ptr::from_ref(lane).cast()) };
    lane
}

fn new_lane(owner: &'static Subscriber) -> &'static Lane {
    let lane = Lane { owner, content: Mutex::default(), pending: AtomicUsize::new(0) };
    let lane: &'static Lane = Box::leak(Box::new(lane));
    lock(&LANES).push(lane);
    lane
}

fn exit_key(owner: &Subscriber) -> libc::pthread_key_t {
    static KEYS: [OnceLock<libc::pthread_key_t>; MOST_SUBSCRIBERS] =
        [const { OnceLock::new() }; MOST_SUBSCRIBERS];
    *KEYS[owner.place].get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` outlives the call and `give_up` takes what is set under the key.
        if unsafe { libc::pthread_key_create(&mut key, Some(give_up)) } != 0 {
            gpusim_core::abort!("no pthread key left");
        }
        key
    })
}

/// Called when a thread ends: makes its lane, possibly with a half-filled buffer, available to another thread.
unsafe extern "C" fn give_up(lane: *mut c_void) {
    // SAFETY: `mine` set a leaked lane under the key.
    let lane: &'static Lane = unsafe { &*lane.cast::<Lane>() };
    MINE.with(|mine| mine[lane.owner.place].set(null()));
    lock(&SPARE).push(lane);
}

/// Returns the clients that have enabled an activity kind. If the record belongs to a CUDA context, the activity kind
/// must be enabled for this context.
fn wanting(record_kind: u32, context: Option<u32>) -> impl Iterator<Item = &'static Subscriber> {
    let is_over = BROKEN.load(Relaxed) || worker::has_stopped();
    let kinds = move |one: &Subscriber| match context {
        Some(context) => contexts::kinds(one, context),
        None => one.kinds.load(Relaxed),
    };
    ALL.iter().filter(move |one| !is_over && kinds(one) & (1 << record_kind) != 0)
}

/// Makes the activity records of GPU work, one for each client that has enabled its kind. Returns what happened to the
/// first client's record.
pub(crate) extern "C" fn record(work: &Work) -> Fate {
    let kind_for =
        |one: &Subscriber| layout::record_kind(work.kind, contexts::kinds(one, work.place.context));
    if BROKEN.load(Relaxed) || worker::has_stopped() || !ALL.iter().any(|one| kind_for(one).is_some()) {
        return Fate::Untraced;
    }
    if settings::get().faults.turns_fatal() {
        worker::break_down();
        return Fate::Untraced;
    }
    let mut fate = None;
    let mut wakes = false;
    for owner in &ALL {
        let Some(record_kind) = kind_for(owner) else { continue };
        let (what, wakes_it) = record_for(owner, record_kind, work, fate.is_none());
        fate = fate.or(Some(what));
        wakes |= wakes_it;
    }
    if settings::get().early {
        worker::deliver_at_once();
    } else if wakes {
        worker::wake();
    }
    fate.unwrap_or(Fate::Untraced)
}

/// Makes the activity record for one client. Returns what happened to the record, and whether the caller must wake the
/// worker. If `settles` is true, the fate of this record is counted in the truth file.
fn record_for(owner: &'static Subscriber, record_kind: u32, work: &Work, settles: bool) -> (Fate, bool) {
    let lane = mine(owner);
    lane.wait_for_room();
    let mut content = lock(&lane.content);
    // If the process has no free memory, this record is dropped and the program continues.
    if content.inbox.try_reserve(2).is_err() {
        owner.buffers.count_dropped();
        return (Fate::Dropped, false);
    }
    // If a fault adds an extra record, both records must fit into the same buffer, because the truth file counts only
    // the work that both records describe.
    let extra = layout::extra_record(record_kind, work);
    let bytes = record_size(record_kind) + extra.map_or(0, |(extra_kind, _)| record_size(extra_kind));
    let Some(buffer) = content.room_for(owner, bytes, extra.map_or(1, |_| 2)) else {
        owner.buffers.count_dropped();
        return (Fate::Dropped, false);
    };
    if settles && keeps_works() {
        buffer.works.push(*work);
    }
    content.append(lane, record_kind, work);
    if let Some((extra_kind, extra)) = extra {
        content.append(lane, extra_kind, &extra);
    }
    let (waiting, full) = (content.inbox.len(), !content.full.is_empty());
    (Fate::Pending, full || waiting >= BATCH || (settings::get().real_clock && waiting <= 2))
}

/// Appends the activity record of an API call to the lane. Unlike the record of GPU work, this record is complete when
/// it is appended.
pub(crate) extern "C" fn record_api(call: &ApiCall) {
    external::each(|external_kind, id| {
        for owner in wanting(kind::EXTERNAL_CORRELATION, None) {
            append_complete(owner, kind::EXTERNAL_CORRELATION, |bytes| {
                layout::write_external(external_kind, id, call.correlation, bytes);
            });
        }
    });
    // SAFETY: pthread_self has no precondition.
    let pthread = unsafe { libc::pthread_self() } as u32;
    let thread_id = if THREAD_IDS_ARE_SYSTEM.load(Relaxed) { call.tid } else { pthread };
    let record_kind = if call.domain == DRIVER { kind::DRIVER } else { kind::RUNTIME };
    for owner in wanting(record_kind, None) {
        append_complete(owner, kind::DRIVER, |bytes| layout::write_api(call, thread_id, bytes));
    }
}

/// Appends the activity record of a recorded CUDA event or of a wait to the lane. Such a record is complete when it is
/// appended.
pub(crate) extern "C" fn record_dependency(dependency: &Dependency) {
    let [start, end] = client_clock::converted([dependency.start, dependency.end]);
    for owner in wanting(dependency.kind, Some(dependency.context)) {
        append_complete(owner, dependency.kind, |bytes| {
            layout::write_dependency(&Dependency { start, end, ..*dependency }, bytes);
        });
    }
}

/// Appends the activity record of a migration of unified memory to the lane. Such a record is complete when it is
/// appended.
pub(crate) extern "C" fn record_move(one: &Move) {
    let [start, end] = client_clock::converted([one.start, one.end]);
    for owner in wanting(kind::UNIFIED_MEMORY_COUNTER, None) {
        append_complete(owner, kind::UNIFIED_MEMORY_COUNTER, |bytes| {
            layout::write_move(&Move { start, end, ..*one }, bytes);
        });
    }
}

fn append_complete(owner: &'static Subscriber, record_kind: u32, write: impl FnOnce(&mut [u8])) {
    let lane = mine(owner);
    let mut content = lock(&lane.content);
    let bytes = record_size(record_kind);
    let Some(buffer) = content.room_for(owner, bytes, 1) else { return owner.buffers.count_dropped() };
    write(buffer.append(bytes));
    buffer.progress().complete_one();
}

/// Whether cuptiSetThreadIdType has selected system thread ids.
pub(crate) static THREAD_IDS_ARE_SYSTEM: AtomicBool = AtomicBool::new(false);

fn record_size(record_kind: u32) -> usize {
    version()
        .record_size(record_kind)
        .unwrap_or_else(|| gpusim_core::abort!("no size for kind {record_kind}"))
}

/// Whether the truth file needs the GPU work that belongs to each record.
fn keeps_works() -> bool {
    let settings = settings::get();
    settings.truth.is_some() || settings.truth_summary.is_some()
}

impl Lane {
    fn wait_for_room(&self) {
        while self.pending.load(Relaxed) >= MOST_PENDING && !worker::has_stopped() {
            worker::wake();
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Content {
    /// Returns the buffer for the next `records` records, and requests a new buffer if necessary. If the client
    /// provides no buffer, returns `None`.
    fn room_for(&mut self, owner: &'static Subscriber, bytes: usize, records: u32) -> Option<&mut Buffer> {
        if self.current.as_ref().is_some_and(|b| !b.has_room_for(bytes, records)) {
            self.full.extend(self.current.take());
        }
        if self.current.is_none() {
            self.current = Buffer::request(owner, bytes);
        }
        self.current.as_mut()
    }

    /// Appends the record of `work` to the current buffer, which has room for it; the record's times are not set yet.
    fn append(&mut self, lane: &'static Lane, record_kind: u32, work: &Work) {
        let Some(buffer) = &mut self.current else { return };
        let progress = buffer.progress();
        let bytes = buffer.append(record_size(record_kind));
        layout::write(record_kind, work, layout::recorded_name(work), bytes);
        let slot = bytes.as_mut_ptr();
        let (start, end) = layout::recorded_times(work);
        let [start, end] = client_clock::converted([start, end]);
        let times_at = layout::times_at(record_kind);
        let is_kernel = matches!(record_kind, kind::KERNEL | kind::CONCURRENT_KERNEL);
        self.inbox.push(Pending {
            due: work.end,
            times: (start, end),
            slot,
            times_at,
            is_kernel,
            progress,
            lane,
        });
        lane.pending.fetch_add(1, Relaxed);
    }
}

impl Pending {
    /// Completes the record of finished work: writes the work's times into the record.
    pub(crate) fn complete(self) {
        let at = self.times_at;
        let fields = [(at, self.times.0), (at + 8, self.times.1), (layout::COMPLETED, self.times.1)];
        for (offset, time) in fields.into_iter().take(if self.is_kernel { 3 } else { 2 }) {
            // SAFETY: the slot is a record of at least 40 bytes, in a buffer that has not been returned.
            unsafe { self.slot.add(offset).cast::<u64>().write_unaligned(time) };
        }
        self.progress.complete_one();
        self.forget();
    }

    /// Drops a pending record that was delivered incomplete or that will never be delivered.
    pub(crate) fn forget(self) {
        self.lane.pending.fetch_sub(1, Relaxed);
    }
}
