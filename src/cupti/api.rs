//! CUPTI once it is subscribed to: set up in the one order that works, then asked and told through
//! [`Api`].
//!
//! What a version or a family of calls can and cannot do is settled here, and not seen outside.

use super::Options;
use super::activity::{self, ReadTally};
use super::callback::{buffer_functions, on_event};
use super::calls::{MAX_CALLBACK_ID, NamedCall, classify, classify_host_call};
use super::family::Functions;
use super::names::KernelNames;
use super::shared::{LENT, Shared};
use super::traffic::Traffic;
use super::version::Version;
use crate::error::{Error, ErrorKind};
use crate::record::{Nanos, Row};
use crate::tracer::{ApiCall, CallKind, Filled, Tracer};
use cupti_sys::{ActivityAttribute, ActivityKind, CallbackId, Domain, FlushFlag, Status, Subscriber};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering;

/// CUPTI, subscribed to. Lives as long as the process; all its functions may be called on any thread, and
/// none with a lock held that the [`Tracer`] takes.
pub struct Api {
    shared: &'static Shared,
    version: Version,
    file: PathBuf,
    /// In the driver's own numbers.
    driver: Option<u32>,
    notes: Vec<String>,
    /// The calls that make work by themselves.
    launches: Vec<(Domain, CallbackId)>,
    /// Whether events and waits are recorded.
    events: bool,
    /// Asks for the records again.
    take_records: Box<dyn Fn(&'static Shared) -> Result<(), Refusal> + Send + Sync>,
}

/// A step of the set-up that CUPTI refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The step that failed.
    pub(super) step: &'static str,
    /// CUPTI's answer to it.
    pub(super) status: Status,
}

/// What is recorded. Kernels by the kind that leaves them concurrent.
const KINDS: [(ActivityKind, &str); 4] = [
    (ActivityKind::CONCURRENT_KERNEL, "kernels"),
    (ActivityKind::MEMCPY, "copies"),
    (ActivityKind::MEMCPY2, "copies between GPUs"),
    (ActivityKind::MEMSET, "fills"),
];

/// What is recorded besides, where it is asked for.
const DEPENDENCIES: [(ActivityKind, &str); 2] =
    [(ActivityKind::CUDA_EVENT, "events"), (ActivityKind::SYNCHRONIZATION, "waits")];

/// Kinds asked for where `Options::unified` is set, and what they are called when CUPTI refuses them.
const UNIFIED: [(ActivityKind, &str); 1] = [(ActivityKind::UNIFIED_MEMORY_COUNTER, "unified memory")];

/// Ids without a name after which a domain is taken to have ended. No version leaves gaps so far.
const GAP: u32 = 8;

impl Api {
    /// Subscribes, and sets up: attributes, buffers, kinds, then callbacks.
    ///
    /// After a refusal of the subscription no call may be made to the library, and none is.
    pub(super) fn attach<T: Tracer>(
        functions: Functions,
        (version, driver): (Version, Option<u32>),
        file: PathBuf,
        options: &Options,
    ) -> Result<&'static Self, Refusal> {
        // What is counted of unified memory, and which waits, can only be said in the family that does not share.
        let shares =
            driver.is_some_and(|driver| version.can_share(driver)) && !options.events && !options.unified;
        let functions = if shares { functions.shared() } else { functions };
        let shared: &'static Shared = Box::leak(Box::new(Shared::new(functions)));
        let userdata = ptr::from_ref(shared).cast_mut().cast();
        // SAFETY: `on_event` wants a `Shared` that is never freed, which this is.
        let subscriber = unsafe { functions.subscribe(on_event::<T>, userdata) }
            .map_err(|status| Refusal { step: "cuptiSubscribe", status })?;
        shared.subscriber.store(subscriber.0, Ordering::Release);

        let mut notes = Vec::new();
        if let Err(refusal) = set_up_records::<T>(shared, options, &mut notes) {
            let _ = functions.unsubscribe(subscriber);
            functions.forget_error();
            return Err(refusal);
        }
        let launches = enable_callbacks::<T>(shared, subscriber, (version, options), &mut notes);
        // At least of the names asked for beyond the last one that there is.
        functions.forget_error();
        let (events, options) = (options.events, options.clone());
        let take_records = Box::new(move |shared| set_up_records::<T>(shared, &options, &mut Vec::new()));
        Ok(Box::leak(Box::new(Self { shared, version, file, driver, notes, launches, events, take_records })))
    }

    /// Which CUPTI it is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The newest CUDA release that the driver is for, as (major, minor).
    pub fn driver(&self) -> Option<(u32, u32)> {
        self.driver.map(|version| (version / 1000, version % 1000 / 10))
    }

    /// Where it was found.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What could not be set up, one sentence each; empty if all is well.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The names of the enabled calls as programmers write them, by [`ApiCall`].
    pub fn labels(&self) -> &'static [String] {
        self.shared.calls.labels()
    }

    /// The name of one enabled call.
    pub fn label(&self, call: ApiCall) -> &'static str {
        self.labels().get(usize::from(call.0)).map_or("[unknown call]", String::as_str)
    }

    /// Hands the records of `filled` to `sink`, in no order: a `Row::Activity` each, and before the first
    /// that has a new kernel name, its `Row::Name`. Costs some 50 ns a record; not for the
    /// application's threads.
    pub fn read(
        &self,
        filled: &Filled,
        names: &mut KernelNames,
        sink: &mut impl FnMut(Row<'_>),
    ) -> ReadTally {
        let step = self.shared.stepper();
        // SAFETY: only a buffer that CUPTI has completed is `Filled`; names stay while CUPTI is loaded.
        unsafe { activity::read(filled.bytes(), &step, names, sink) }
    }

    /// Has CUPTI hand over its buffers before it returns: those whose records are all complete or, if
    /// `forced`, all, with what still runs cut off for good. Waits for no GPU work. Does nothing
    /// before the first API call or context was seen, where it might hang.
    ///
    /// To be called from a thread of ours or from an API callback, never from another callback.
    ///
    /// Errors: CUPTI refused.
    pub fn flush(&self, forced: bool) -> Result<(), Error> {
        if self.is_retired() || !self.shared.seen_work.load(Ordering::Relaxed) {
            return Ok(());
        }
        let flag = if forced { FlushFlag::FORCED } else { FlushFlag::NONE };
        self.shared
            .functions
            .flush(flag)
            .map_err(|status| Error::new(ErrorKind::CuptiRefused, format!("cuptiActivityFlushAll: {status}")))
    }

    /// How many records CUPTI dropped since this was last asked. Ask after a flush, outside all locks.
    pub fn dropped(&self) -> u64 {
        if self.is_retired() {
            0
        } else {
            self.shared.functions.dropped(self.shared.subscriber()).unwrap_or(0)
        }
    }

    /// Now, on the clock of the records; `None` if CUPTI does not say.
    pub fn timestamp(&self) -> Option<Nanos> {
        if self.is_retired() {
            return None;
        }
        self.shared.functions.timestamp(self.shared.subscriber()).ok().map(Nanos)
    }

    /// Whether other clients have records of their own, and none takes ours.
    pub fn shares_records(&self) -> bool {
        self.shared.functions.shares()
    }

    /// What has passed between CUPTI and us so far.
    pub fn traffic(&self) -> Traffic {
        Traffic::with_lent(LENT.count())
    }

    /// Another client has the records: it gets what CUPTI has from nobody else, not what we have set for ourselves.
    pub fn yield_records(&self) {
        if self.is_retired() {
            return;
        }
        let functions = &self.shared.functions;
        let zeroed = ActivityAttribute::ZEROED_OUT_ACTIVITY_BUFFER;
        let _ = functions.set_attribute(self.shared.subscriber(), zeroed, 0);
        if self.events {
            let _ = functions.record_unfinished_queries(true);
        }
    }

    /// Has CUPTI hand the records to us again, where another client has them.
    ///
    /// To be called from a thread of ours or of the program's, not from a callback.
    ///
    /// Errors: CUPTI refused.
    pub fn take_records_back(&self) -> Result<(), Error> {
        if self.is_retired() {
            return Ok(());
        }
        (self.take_records)(self.shared).map_err(|Refusal { step, status }| {
            Error::new(ErrorKind::CuptiRefused, format!("{step}: {status}"))
        })
    }

    /// Has calls that make work told, as they are from the beginning, or not: one that is not told costs what it
    /// costs without us. All else goes on, above all what tells who makes graph nodes and which code there is. A
    /// call that is under way may have one of its two ends told.
    ///
    /// To be called from a thread of ours, not from a callback.
    ///
    /// Errors: CUPTI refused; what it did not refuse is switched.
    pub fn tell_launches(&self, on: bool) -> Result<(), Error> {
        let subscriber = self.shared.subscriber();
        if self.is_retired() || subscriber.0.is_null() {
            return Ok(());
        }
        let switch = |&(domain, id)| self.shared.functions.enable_callback(subscriber, domain, id, on);
        let refused = self.launches.iter().map(switch).filter_map(Result::err).last();
        refused.map_or(Ok(()), |status| {
            Err(Error::new(ErrorKind::CuptiRefused, format!("cuptiEnableCallback: {status}")))
        })
    }

    /// Ends the callbacks. Where the subscription is not shared, records go on coming until a last flush, which may follow.
    pub fn unsubscribe(&self) {
        self.shared.calls.clear();
        if !self.shared.subscriber().0.is_null() {
            self.yield_records();
        }
        let subscriber = self.shared.subscriber.swap(ptr::null_mut(), Ordering::AcqRel);
        if !subscriber.is_null() && !self.is_retired() {
            let _ = self.shared.functions.unsubscribe(Subscriber(subscriber));
        }
        super::release();
    }

    /// From now on makes no CUPTI call and ignores all callbacks, for ever: for the child of a fork,
    /// where the driver's state is not valid. Takes no lock.
    pub fn retire(&self) {
        self.shared.retire();
    }

    /// Whether it has given up, or was given up: it is not called any more, and hands nothing over.
    pub fn is_retired(&self) -> bool {
        self.shared.retired.load(Ordering::Acquire)
    }
}

fn set_up_records<T: Tracer>(
    shared: &'static Shared,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<(), Refusal> {
    let (functions, subscriber) = (&shared.functions, shared.subscriber());
    // Spares CUPTI a memset of every buffer on the application's thread: ours are zero. Old releases do
    // not know it, and then only take longer.
    let _ = functions.set_attribute(subscriber, ActivityAttribute::ZEROED_OUT_ACTIVITY_BUFFER, 1);

    shared.make_current();
    // SAFETY: all find their `Shared` in what was just made current, and that is never freed.
    unsafe { functions.register_buffers(subscriber, &buffer_functions::<T>()) }
        .map_err(|status| Refusal { step: "cuptiActivityRegisterCallbacks", status })?;

    let enable = |kinds: &[(ActivityKind, &'static str)]| -> Vec<_> {
        let refusal = |(kind, what): &(_, _)| {
            functions.enable_kind(subscriber, *kind).err().map(|status| (*what, status))
        };
        kinds.iter().filter_map(refusal).collect()
    };
    // First of all: who shares is refused nodes where another has graphs as a whole, and the other way round.
    if options.whole_graphs
        && let Err(status) = functions.enable_kind(subscriber, ActivityKind::GRAPH_TRACE)
    {
        notes.push(format!("CUPTI does not record graphs as a whole ({status}); it records their nodes"));
    }
    let mut refused = enable(&KINDS);
    if refused.len() == KINDS.len() {
        return Err(Refusal { step: "cuptiActivityEnable", status: refused[0].1 });
    }
    if options.events {
        // From 12.8 on there would be a record of each query of an event that has not happened yet, and programs
        // ask in loops.
        let _ = functions.record_unfinished_queries(false);
        refused.extend(enable(&DEPENDENCIES));
    }
    if options.unified {
        match functions.count_unified_memory() {
            Ok(()) => refused.extend(enable(&UNIFIED)),
            Err(status) => refused.push((UNIFIED[0].1, status)),
        }
    }
    notes.extend(refused.iter().map(|(what, status)| format!("CUPTI does not record {what}: {status}")));
    Ok(())
}

fn enable_callbacks<T: Tracer>(
    shared: &'static Shared,
    subscriber: Subscriber,
    (version, options): (Version, &Options),
    notes: &mut Vec<String>,
) -> Vec<(Domain, CallbackId)> {
    let functions = &shared.functions;
    let mut calls = named_calls(functions, options);
    calls.retain(|call| T::GRAPHS || !call.kind.edits_graph());
    shared.calls.fill(&calls);
    let api = calls.iter().map(|call| (call.domain, CallbackId(call.id), call.name.as_str()));
    let mut events = vec![
        (Domain::RESOURCE, CallbackId::CONTEXT_CREATED, "context created"),
        (Domain::RESOURCE, CallbackId::CONTEXT_DESTROY_STARTING, "context destroyed"),
    ];
    if T::GRAPHS {
        events.extend([
            (Domain::RESOURCE, CallbackId::GRAPH_NODE_CREATED, "graph node created"),
            (Domain::RESOURCE, CallbackId::GRAPH_NODE_CLONED, "graph node copied"),
            (Domain::RESOURCE, CallbackId::GRAPH_DESTROY_STARTING, "graph destroyed"),
            (Domain::RESOURCE, CallbackId::GRAPH_EXEC_CREATED, "graph instantiated"),
            (Domain::RESOURCE, CallbackId::GRAPH_EXEC_DESTROY_STARTING, "graph instantiation destroyed"),
        ]);
    }
    if version.has_state_callbacks() {
        events.push((Domain::STATE, CallbackId::FATAL_ERROR, "fatal error"));
    }
    let refused: Vec<_> = api
        .chain(events)
        .filter_map(|(domain, id, what)| {
            functions.enable_callback(subscriber, domain, id, true).err().map(|status| (what, status))
        })
        .collect();
    if let Some((what, status)) = refused.first() {
        let count = refused.len();
        notes.push(format!("CUPTI does not report {count} callbacks; the first, {what}: {status}"));
    }
    if calls.is_empty() {
        notes.push("CUPTI names no API call that launches work: there will be no stacks".to_owned());
    }
    let launches = calls.iter().filter(|call| call.kind.makes_work());
    launches.map(|call| (call.domain, CallbackId(call.id))).collect()
}

/// Every call of both API domains that matters, by walking all their names.
fn named_calls(functions: &Functions, options: &Options) -> Vec<NamedCall> {
    let is_wanted = |kind: &CallKind| match kind {
        CallKind::EventRecord | CallKind::EventWait => options.events,
        _ => true,
    };
    let mut calls = Vec::new();
    for domain in [Domain::RUNTIME_API, Domain::DRIVER_API] {
        let mut last_named = 0;
        for id in 1..MAX_CALLBACK_ID {
            if id > last_named + GAP {
                break;
            }
            let Some(name) = functions.callback_name(domain, CallbackId(id)) else { continue };
            last_named = id;
            if let Some(kind) = classify(name).or_else(|| classify_host_call(name).filter(is_wanted)) {
                calls.push(NamedCall { domain, id, name: name.to_owned(), kind });
            }
        }
    }
    calls
}

#[cfg(test)]
#[path = "api_test.rs"]
mod tests;
