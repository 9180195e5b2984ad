//! CUPTI once it is subscribed to: set up in the one order that works, then asked and told through
//! [`Api`].
//!
//! What a version or a family of calls can and cannot do is settled here, and not seen outside.

use super::activity::{self, ReadTally};
use super::callback::on_event;
use super::calls::{MAX_CALLBACK_ID, NamedCall, classify, classify_host_call};
use super::clients::{self, Others};
use super::family::Functions;
use super::names::KernelNames;
use super::records::{self, Refusal};
use super::shared::{LENT, Shared};
use super::traffic::Traffic;
use super::version::Version;
use super::{Deference, Options};
use crate::error::{Error, ErrorKind};
use crate::record::{Nanos, Row};
use crate::tracer::{ApiCall, CallKind, Filled, Tracer};
use cupti_sys::{CallbackId, Domain, FlushFlag, Subscriber};
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
    launches: Vec<Callback>,
    options: Options,
    again: Again,
}

/// One that is told.
type Callback = (Domain, CallbackId);

/// Asks for the records, or takes what others are decided to have left.
type TakeRecords = fn(&'static Shared, &Options, Option<&Others>) -> Result<Vec<String>, Refusal>;

/// The steps of the set-up that are made again after another client had what they ask for.
struct Again {
    subscribe: fn(&'static Shared) -> Result<(), Refusal>,
    take_records: TakeRecords,
    /// All that is told.
    callbacks: Vec<Callback>,
}

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
        // What is counted of unified memory, and which waits, can only be said in the family that does not share; and only there
        // a client of the old interface can have what we let go of.
        let asks_for_more = options.events || options.unified || options.others == Deference::Subscription;
        let shares = driver.is_some_and(|driver| version.can_share(driver)) && !asks_for_more;
        let functions = if shares { functions.shared() } else { functions };
        let shared: &'static Shared = Box::leak(Box::new(Shared::new(functions, options.events)));
        subscribe::<T>(shared)?;
        records::begin();

        let mut notes = take_records::<T>(shared, options, None).inspect_err(|_| {
            let _ = functions.unsubscribe(shared.subscriber());
            functions.forget_error();
        })?;
        let (launches, callbacks) = enable_callbacks::<T>(shared, (version, options), &mut notes);
        // At least of the names asked for beyond the last one that there is.
        functions.forget_error();
        see_others::<T>(&functions, options.others, &mut notes);
        let again = Again { subscribe: subscribe::<T>, take_records: take_records::<T>, callbacks };
        let options = options.clone();
        Ok(Box::leak(Box::new(Self { shared, version, file, driver, notes, launches, options, again })))
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
    /// before the first API call or context was seen, where it might hang, nor while functions of another client are
    /// registered, which may be gone.
    ///
    /// To be called from a thread of ours or from an API callback, never from another callback.
    ///
    /// Errors: CUPTI refused.
    pub fn flush(&self, forced: bool) -> Result<(), Error> {
        if !self.shared.seen_work.load(Ordering::Relaxed) {
            return Ok(());
        }
        let flag = if forced { FlushFlag::FORCED } else { FlushFlag::NONE };
        self.ask(|functions| functions.flush(flag))
            .unwrap_or(Ok(()))
            .map_err(|status| Error::new(ErrorKind::CuptiRefused, format!("cuptiActivityFlushAll: {status}")))
    }

    /// How many records CUPTI dropped since this was last asked. Ask after a flush, outside all locks.
    pub fn dropped(&self) -> u64 {
        self.ask(|functions| functions.dropped(self.shared.subscriber()).unwrap_or(0)).unwrap_or(0)
    }

    /// Now, on the clock of the records; `None` if CUPTI does not say.
    pub fn timestamp(&self) -> Option<Nanos> {
        self.ask(|functions| functions.timestamp(self.shared.subscriber()).ok()).flatten().map(Nanos)
    }

    /// Asks about records, if they are ours. CUPTI would call the functions of another client that has them, and a count of dropped
    /// records is that client's.
    fn ask<R>(&self, question: impl FnOnce(&Functions) -> R) -> Option<R> {
        let is_ours = || self.shares_records() || !clients::may_be_called();
        self.shared.call(|| is_ours().then(|| question(&self.shared.functions))).flatten()
    }

    /// Whether other clients have records of their own, and none takes ours.
    pub fn shares_records(&self) -> bool {
        self.shared.functions.shares()
    }

    /// What has passed between CUPTI and us so far.
    pub fn traffic(&self) -> Traffic {
        Traffic::with_lent(LENT.count())
    }

    /// What other clients have, where they are seen.
    pub fn others(&self) -> Others {
        clients::others()
    }

    /// Whether records are taken back as soon as the client that took them is done.
    pub fn reclaims_records(&self) -> bool {
        self.options.others != Deference::None
    }

    /// Another client has the records, and was not seen to take them. Restores our settings. All kinds stay enabled, as the client may
    /// have enabled each of them.
    pub fn yield_records(&self) {
        self.shared.call(|| records::leave(self.shared, u64::MAX));
    }

    /// Has CUPTI hand the records to us again, where another client has left them, as `decided` says; not if one has called since.
    ///
    /// To be called from a thread of ours or of the program's, not from a callback.
    ///
    /// Errors: CUPTI refused.
    pub fn take_records_back(&self, decided: &Others) -> Result<(), Error> {
        let take = || (self.again.take_records)(self.shared, &self.options, Some(decided));
        self.shared.call(take).map_or(Ok(()), |taken| taken.map(drop).map_err(refused))
    }

    /// Whether the subscription is ours.
    pub fn is_subscribed(&self) -> bool {
        !self.shared.subscriber().0.is_null()
    }

    /// Leaves the subscription to another client. Records go on coming. A callback may still be under way.
    ///
    /// To be called from a thread of ours.
    pub fn let_go(&self) {
        let subscriber = Subscriber(self.shared.subscriber.swap(ptr::null_mut(), Ordering::AcqRel));
        if !subscriber.0.is_null() {
            self.shared.call(|| self.shared.functions.unsubscribe(subscriber));
        }
    }

    /// Subscribes again: all is told, and recorded where no other client has the records, as at the beginning.
    ///
    /// To be called from a thread of ours.
    ///
    /// Errors: CUPTI refused; another client has the subscription.
    pub fn subscribe_again(&self) -> Result<(), Error> {
        self.shared.call_even_if_ended(|| self.subscribe_if_not_yet()).unwrap_or(Ok(()))
    }

    fn subscribe_if_not_yet(&self) -> Result<(), Error> {
        if self.is_subscribed() {
            return Ok(());
        }
        (self.again.subscribe)(self.shared).map_err(refused)?;
        let others = self.others();
        if !others.have_records {
            self.take_records_back(&others).inspect_err(|_| self.let_go())?;
        }
        let (functions, subscriber) = (&self.shared.functions, self.shared.subscriber());
        for (domain, id) in &self.again.callbacks {
            let _ = functions.enable_callback(subscriber, *domain, *id, true);
        }
        functions.forget_error();
        Ok(())
    }

    /// Has calls that make work told, as they are from the beginning, or not: one that is not told costs what it
    /// costs without us. All else goes on, above all what tells who makes graph nodes and which code there is. A
    /// call that is under way may have one of its two ends told.
    ///
    /// To be called from a thread of ours, not from a callback.
    ///
    /// Errors: CUPTI refused; what it did not refuse is switched.
    pub fn tell_launches(&self, on: bool) -> Result<(), Error> {
        self.shared.call(|| self.switch_launches(on)).unwrap_or(Ok(()))
    }

    fn switch_launches(&self, on: bool) -> Result<(), Error> {
        let subscriber = self.shared.subscriber();
        if subscriber.0.is_null() {
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
        if !subscriber.is_null() {
            self.shared.call(|| self.shared.functions.unsubscribe(Subscriber(subscriber)));
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
        self.shared.is_retired()
    }
}

fn refused(Refusal { step, status }: Refusal) -> Error {
    Error::new(ErrorKind::CuptiRefused, format!("{step}: {status}"))
}

fn subscribe<T: Tracer>(shared: &'static Shared) -> Result<(), Refusal> {
    let userdata = ptr::from_ref(shared).cast_mut().cast();
    // SAFETY: `on_event` wants a `Shared` that is never freed, which this is.
    let subscriber = unsafe { shared.functions.subscribe(on_event::<T>, userdata) }
        .map_err(|status| Refusal { step: "cuptiSubscribe", status })?;
    shared.subscriber.store(subscriber.0, Ordering::Release);
    shared.is_ended.store(false, Ordering::Release);
    Ok(())
}

fn take_records<T: Tracer>(
    shared: &'static Shared,
    options: &Options,
    decided: Option<&Others>,
) -> Result<Vec<String>, Refusal> {
    clients::taking(shared, decided, |is_flushed| records::take::<T>(shared, options, is_flushed))
}

/// Where each client has records of its own there is nothing to see.
fn see_others<T: Tracer>(functions: &Functions, deference: Deference, notes: &mut Vec<String>) {
    if functions.shares() {
        return;
    }
    let (yields, reclaims) = (deference == Deference::Subscription, deference != Deference::None);
    if let Err(error) = clients::see::<T>(functions.library(), yields, reclaims)
        && yields
    {
        notes.push(format!("other clients of CUPTI are not seen, and are given nothing: {error}"));
    }
}

/// The calls that make work, and all that is told.
fn enable_callbacks<T: Tracer>(
    shared: &'static Shared,
    (version, options): (Version, &Options),
    notes: &mut Vec<String>,
) -> (Vec<Callback>, Vec<Callback>) {
    let (functions, subscriber) = (&shared.functions, shared.subscriber());
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
    let all: Vec<_> = api.chain(events).collect();
    let refusal = |&(domain, id, what): &(Domain, CallbackId, _)| {
        functions.enable_callback(subscriber, domain, id, true).err().map(|status| (what, status))
    };
    let refused: Vec<_> = all.iter().filter_map(refusal).collect();
    if let Some((what, status)) = refused.first() {
        let count = refused.len();
        notes.push(format!("CUPTI does not report {count} callbacks; the first, {what}: {status}"));
    }
    if calls.is_empty() {
        notes.push("CUPTI names no API call that launches work: there will be no stacks".to_owned());
    }
    let launches = calls.iter().filter(|call| call.kind.makes_work());
    let launches = launches.map(|call| (call.domain, CallbackId(call.id))).collect();
    (launches, all.iter().map(|(domain, id, _)| (*domain, *id)).collect())
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
