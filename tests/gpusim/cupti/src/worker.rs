//! The thread "cupti-worker", which completes activity records in the order in which their GPU work ends, and delivers
//! buffers to the client. With the virtual clock, the worker treats all submitted work as done.

use crate::buffers::Buffer;
use crate::lanes::{Content, LANES, Pending};
use crate::link::{BROKEN, core};
use crate::{callbacks, contexts, subscriber};
use gpusim_core::sync::{Errno, lock};
use gpusim_core::work::Fate;
use gpusim_core::{clock, layout, settings};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Requests to the worker, which answers each request when it has carried out the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    /// Flushes the buffers, for cuptiActivityFlushAll; a forced flush includes incomplete records.
    Flush { forced: bool },
    /// Completes the records of all submitted work, and then flushes the buffers, for GPUSIM_EARLY.
    DeliverAtOnce,
    /// Makes the STATE callback for a fatal error, and then ends all callbacks and recording.
    BreakDown,
    /// Drops all buffers, as cuptiFinalize does.
    Detach,
    /// Ends the worker, because the driver shuts down.
    Stop,
}

#[derive(Default)]
struct Mailbox {
    requests: VecDeque<Request>,
    woken: bool,
    asked: u64,
    answered: u64,
}

static MAILBOX: Mutex<Mailbox> =
    Mutex::new(Mailbox { requests: VecDeque::new(), woken: false, asked: 0, answered: 0 });
static ASKED: Condvar = Condvar::new();
static ANSWERED: Condvar = Condvar::new();

static RUNNING: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);
static TID: AtomicU32 = AtomicU32::new(0);
/// Id of the process that owns the worker thread. A child process that was forked without fork handlers inherits this
/// module's variables but not the worker thread.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Number of times that the client's bufferCompleted has returned; the watchdog reads this number to detect progress.
static DELIVERIES: AtomicU64 = AtomicU64::new(0);

/// Starts the worker thread on the first call.
pub(crate) fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        RUNNING.store(true, Relaxed);
        PROCESS.store(std::process::id(), Relaxed);
        let thread = std::thread::Builder::new().name("cupti-worker".into());
        if let Err(e) = thread.spawn(|| Worker::default().run()) {
            gpusim_core::abort!("no thread for cupti-worker: {e}");
        }
    });
}

/// Whether recording and delivery have ended.
pub(crate) fn has_stopped() -> bool {
    STOPPED.load(Relaxed)
}

/// Wakes the worker thread, which then checks the lanes for new records.
pub(crate) fn wake() {
    lock(&MAILBOX).woken = true;
    ASKED.notify_one();
}

/// Makes the worker deliver all buffers that may be delivered, and waits until the client has received them.
pub(crate) fn flush(forced: bool) {
    ask(Request::Flush { forced });
}

/// Makes the worker deliver all buffers as if their GPU work were done, and waits until the client has received them.
pub(crate) fn deliver_at_once() {
    ask(Request::DeliverAtOnce);
}

/// Makes the worker report a fatal error to the client and end all recording.
pub(crate) fn break_down() {
    ask(Request::BreakDown);
}

/// Makes the worker drop all buffers.
pub(crate) fn detach() {
    forget_kinds();
    ask(Request::Detach);
}

/// Stops the worker when the driver shuts down; after this call, CUPTI makes no callbacks.
pub(crate) extern "C" fn stop() {
    subscriber::forget();
    forget_kinds();
    if PROCESS.load(Relaxed) == std::process::id() {
        ask(Request::Stop);
    }
    STOPPED.store(true, Relaxed); // set even if no worker ever ran
}

/// Disables all activity kinds for all clients.
fn forget_kinds() {
    subscriber::ALL.iter().for_each(|one| one.kinds.store(0, Relaxed));
    contexts::forget();
    subscriber::renew_kinds();
}

/// Sends a request to the worker and waits for its answer; aborts if a buffer callback does not return.
fn ask(request: Request) {
    // SAFETY: gettid has no precondition.
    let on_worker = TID.load(Relaxed) == unsafe { libc::gettid() } as u32;
    let limit = Duration::from_millis(settings::get().watchdog_ms);
    let _errno = Errno::kept();
    let mut mailbox = lock(&MAILBOX);
    if !RUNNING.load(Relaxed) || has_stopped() || on_worker {
        return;
    }
    mailbox.requests.push_back(request);
    mailbox.asked += 1;
    let ticket = mailbox.asked;
    ASKED.notify_one();
    let mut seen = (DELIVERIES.load(Relaxed), Instant::now());
    while mailbox.answered < ticket {
        mailbox = ANSWERED.wait_timeout(mailbox, limit).unwrap_or_else(PoisonError::into_inner).0;
        let deliveries = DELIVERIES.load(Relaxed);
        if deliveries != seen.0 {
            seen = (deliveries, Instant::now());
        } else if mailbox.answered < ticket && seen.1.elapsed() >= limit {
            gpusim_core::abort!(
                "deadlock: a flush waits for bufferCompleted, which has not returned for {limit:?}"
            );
        }
    }
}

#[derive(Default)]
struct Worker {
    /// Incomplete records, sorted so that the record with the latest end is first.
    pending: Vec<Pending>,
    /// Full buffers that still contain incomplete records.
    full: Vec<Buffer>,
    /// Buffers whose delivery is delayed, so that buffers are delivered in a random order.
    held: Vec<Buffer>,
    /// State of the random number generator; 0 if buffers keep their order.
    random: u64,
    /// Time until which GPU work counts as done: work that ends later is not complete.
    now: u64,
}

impl Worker {
    fn run(mut self) {
        // SAFETY: gettid has no precondition.
        TID.store(unsafe { libc::gettid() } as u32, Relaxed);
        self.random = settings::get().shuffle.map_or(0, |seed| seed.wrapping_mul(2) | 1);
        loop {
            let request = self.wait();
            self.collect();
            self.complete(request == Some(Request::DeliverAtOnce));
            self.deliver_full();
            match request {
                Some(Request::Flush { forced }) => self.flush(forced),
                Some(Request::DeliverAtOnce) => self.flush(false),
                Some(Request::BreakDown) => self.break_down(),
                Some(Request::Detach) => self.forget_all(),
                Some(Request::Stop) => self.forget_all(),
                None => continue,
            }
            let mut mailbox = lock(&MAILBOX);
            mailbox.answered += 1;
            if request == Some(Request::Stop) {
                // The worker thread is about to end. Therefore a thread that sends a request now must not wait, and a
                // thread that has already sent a request must stop waiting.
                STOPPED.store(true, Relaxed);
                mailbox.answered = mailbox.asked;
            }
            ANSWERED.notify_all();
            if has_stopped() {
                return;
            }
        }
    }

    /// Sleeps until a request or a record arrives. Returns the next request, or `None` if there are only records to
    /// complete.
    fn wait(&self) -> Option<Request> {
        const POLL: Duration = Duration::from_millis(1);
        let mut mailbox = lock(&MAILBOX);
        loop {
            if let Some(request) = mailbox.requests.pop_front() {
                return Some(request);
            }
            if std::mem::take(&mut mailbox.woken) {
                return None;
            }
            if self.pending.is_empty() {
                mailbox = ASKED.wait(mailbox).unwrap_or_else(PoisonError::into_inner);
            } else {
                let (guard, timeout) =
                    ASKED.wait_timeout(mailbox, POLL).unwrap_or_else(PoisonError::into_inner);
                mailbox = guard;
                mailbox.woken |= timeout.timed_out();
            }
        }
    }

    /// Moves new records and full buffers from all lanes to the worker.
    fn collect(&mut self) {
        let lanes = lock(&LANES).clone();
        for lane in lanes {
            let mut content = lock(&lane.content);
            // If the process has no free memory, the records and buffers stay in the lane.
            if self.pending.try_reserve(content.inbox.len()).is_ok() {
                self.pending.append(&mut content.inbox);
            }
            self.full.append(&mut content.full);
        }
        self.pending.sort_unstable_by_key(|p| Reverse(p.due));
    }

    /// Completes the records of all work that is done by now, in the order in which the work ended.
    fn complete(&mut self, all: bool) {
        self.now = if all || !settings::get().real_clock { u64::MAX } else { clock::now() };
        while let Some(pending) = self.pending.pop_if(|p| p.due <= self.now) {
            pending.complete();
        }
    }

    fn deliver_full(&mut self) {
        for buffer in self.full.extract_if(.., |b| b.is_complete()).collect::<Vec<_>>() {
            self.deliver(buffer);
        }
    }

    fn flush(&mut self, forced: bool) {
        if forced {
            self.pending.drain(..).for_each(Pending::forget);
        }
        let lanes = lock(&LANES).clone();
        for lane in lanes {
            self.take_lane(&mut lock(&lane.content), forced);
        }
        for buffer in std::mem::take(&mut self.full) {
            if forced || buffer.is_complete() { self.deliver(buffer) } else { self.full.push(buffer) }
        }
        while !self.held.is_empty() {
            self.deliver_one_held();
        }
        if settings::get().empty_buffers {
            let buffers = subscriber::ALL.iter().filter_map(|one| Buffer::request(one, 1));
            buffers.for_each(|buffer| self.hand_back(buffer));
        }
    }

    /// Moves all buffers that a flush may deliver from a lane to the worker; also moves the records that arrived after
    /// [`Worker::complete`] ran.
    fn take_lane(&mut self, content: &mut Content, forced: bool) {
        for pending in content.inbox.drain(..) {
            match (pending.due <= self.now, forced) {
                (true, _) => pending.complete(),
                (false, true) => pending.forget(),
                (false, false) => self.pending.push(pending),
            }
        }
        self.full.append(&mut content.full);
        self.full.extend(content.current.take_if(|b| forced || (b.is_complete() && !b.is_empty())));
    }

    /// Delivers a buffer to the client. If GPUSIM_SHUFFLE is set, the delivery may be delayed until after the delivery
    /// of other buffers.
    fn deliver(&mut self, mut buffer: Buffer) {
        const MOST_HELD: usize = 4;
        if self.random == 0 {
            return self.hand_back(buffer);
        }
        self.shuffle_records(&mut buffer);
        self.held.push(buffer);
        if self.held.len() >= MOST_HELD {
            self.deliver_one_held();
        }
    }

    fn deliver_one_held(&mut self) {
        let index = self.random_below(self.held.len());
        let buffer = self.held.swap_remove(index);
        self.hand_back(buffer);
    }

    fn hand_back(&mut self, mut buffer: Buffer) {
        let works = std::mem::take(&mut buffer.works);
        if let Some(core) = core() {
            // The loop runs more than once only if a forced flush delivers records of unfinished work.
            let done = |end: u64| if end <= self.now { Fate::Delivered } else { Fate::Pending };
            for run in works.chunk_by(|a, b| done(a.end) == done(b.end)) {
                (core.settle)(run.as_ptr(), run.len(), done(run[0].end));
            }
        }
        buffer.hand_back();
        DELIVERIES.fetch_add(1, Relaxed);
    }

    fn shuffle_records(&mut self, buffer: &mut Buffer) {
        let version = settings::get().cupti;
        let bytes = buffer.bytes();
        let mut records = Vec::new();
        let mut rest: &[u8] = bytes;
        while let Some(kind) = rest.first_chunk::<4>() {
            let Some(size) = layout::size_at(version, *kind) else { return };
            let (record, after) = rest.split_at(size);
            records.push(record.to_vec());
            rest = after;
        }
        for i in (1..records.len()).rev() {
            records.swap(i, self.random_below(i + 1));
        }
        bytes.copy_from_slice(&records.concat());
    }

    /// xorshift64
    fn random_below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % n as u64) as usize
    }

    fn break_down(&mut self) {
        BROKEN.store(true, Relaxed);
        callbacks::fatal_error();
        subscriber::forget();
        forget_kinds();
        self.forget_all();
    }

    /// Drops every buffer. In the truth file, the records in these buffers stay pending.
    fn forget_all(&mut self) {
        self.collect();
        self.pending.drain(..).for_each(Pending::forget);
        let mut buffers: Vec<Buffer> = self.full.drain(..).chain(self.held.drain(..)).collect();
        for lane in lock(&LANES).iter() {
            buffers.extend(lock(&lane.content).current.take());
        }
        for buffer in buffers {
            if let Some(core) = core() {
                (core.settle)(buffer.works.as_ptr(), buffer.works.len(), Fate::Pending);
            }
            buffer.abandon();
        }
    }
}
