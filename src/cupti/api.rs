//! An [`Api`] is an active subscription to CUPTI. An [`Api`] makes the calls that set CUPTI up, in the only order that
//! CUPTI accepts. After the set-up, an [`Api`] reads, flushes and queries activity records.
//!
//! This module hides two kinds of differences from its callers: those between CUPTI versions, and those between the two
//! API versions of CUPTI's functions.

use super::activity::{self, ReadTally};
use super::api_version::CuptiFunctions;
use super::callback::on_event;
use super::callback_state::{CallbackState, LENT_BUFFERS};
use super::calls::{MAX_CALLBACK_ID, NamedCall, classify, classify_host_call};
use super::clients::{self, ClientActivity};
use super::delivery_counts::DeliveryCounts;
use super::names::KernelNames;
use super::records::{self, SetupRefusal};
use super::version::Version;
use super::{Deference, Options};
use crate::tracer::{ApiCallId, CallKind, FilledBuffer, Tracer};
use cupti_sys::{CallbackId, Domain, FlushFlag, Subscriber};
use gpuflame_model::error::{Error, ErrorKind};
use gpuflame_model::record::{Nanos, Row};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering;

/// A subscription to CUPTI, which lasts until the process ends. Any thread may call the functions of an [`Api`], but
/// must not hold a lock that the [`Tracer`] takes.
pub struct Api {
    shared: &'static CallbackState,
    version: Version,
    file: PathBuf,
    /// Newest CUDA version that the driver supports, in the driver's encoding (1000 * major + 10 * minor).
    driver: Option<u32>,
    notes: Vec<String>,
    /// Callbacks for the API calls that create GPU work.
    launches: Vec<CallbackKey>,
    options: Options,
    resubscribe_steps: ResubscribeSteps,
}

/// Domain and id of a callback that is enabled.
type CallbackKey = (Domain, CallbackId);

/// Function that registers our buffer functions with CUPTI, so that we get the activity records. This function is
/// called during the set-up, and after another client has released the records.
type TakeRecords =
    fn(&'static CallbackState, &Options, Option<&ClientActivity>) -> Result<Vec<String>, SetupRefusal>;

/// Set-up steps that are repeated after another client has owned the activity records or the subscription.
struct ResubscribeSteps {
    subscribe: fn(&'static CallbackState) -> Result<(), SetupRefusal>,
    take_records: TakeRecords,
    /// All callbacks that we have enabled.
    callbacks: Vec<CallbackKey>,
}

/// If this number of consecutive ids have no name, the domain is assumed to have no higher ids. In all CUPTI versions
/// up to now, the ids of a domain have no gaps.
const MAX_ID_GAP: u32 = 8;

impl Api {
    /// Subscribes to CUPTI. After subscribing, sets up attributes, buffers, activity kinds and callbacks, in this
    /// order.
    ///
    /// If CUPTI refuses the subscription, makes no further call to the library, because no call is allowed after a
    /// refusal.
    pub(super) fn attach<T: Tracer>(
        functions: CuptiFunctions,
        (version, driver): (Version, Option<u32>),
        file: PathBuf,
        options: &Options,
    ) -> Result<&'static Self, SetupRefusal> {
        // Three options need the old API version, in which CUPTI has only one subscriber. Only with the old API version
        // can we record unified-memory counters, or choose which waits are recorded. A client that uses the old
        // interface can take over a subscription that we release (`Deference::Subscription`), but only if we use the
        // old API version too.
        let asks_for_more = options.events || options.unified || options.deference == Deference::Subscription;
        let shares = driver.is_some_and(|driver| version.can_share(driver)) && !asks_for_more;
        let functions = if shares { functions.shared() } else { functions };
        let shared: &'static CallbackState =
            Box::leak(Box::new(CallbackState::new(functions, version, options.events)));
        subscribe::<T>(shared)?;
        records::reset();

        let mut notes = take_records::<T>(shared, options, None).inspect_err(|_| {
            let _ = functions.unsubscribe(shared.subscriber());
            functions.forget_error();
        })?;
        let (launches, callbacks) = enable_callbacks::<T>(shared, (version, options), &mut notes);
        // Clears the last error that CUPTI has stored for this thread. `named_calls` has also queried ids that have no
        // name, and each such query leaves an error.
        functions.forget_error();
        detect_other_clients::<T>(&functions, options.deference, &mut notes);
        let resubscribe_steps =
            ResubscribeSteps { subscribe: subscribe::<T>, take_records: take_records::<T>, callbacks };
        let options = options.clone();
        Ok(Box::leak(Box::new(Self {
            shared,
            version,
            file,
            driver,
            notes,
            launches,
            options,
            resubscribe_steps,
        })))
    }

    /// Returns the version of the CUPTI library.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the newest CUDA release that the driver supports, as a pair (major, minor).
    pub fn driver(&self) -> Option<(u32, u32)> {
        self.driver.map(|version| (version / 1000, version % 1000 / 10))
    }

    /// Returns the path of the CUPTI library.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns a list with one sentence for each feature that could not be set up. The list is empty if everything was
    /// set up.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the names of the enabled API calls in the form that programmers use, indexed by [`ApiCallId`].
    pub fn labels(&self) -> &'static [String] {
        self.shared.calls.labels()
    }

    /// Returns the name of an enabled API call in the form that programmers use.
    pub fn label(&self, call: ApiCallId) -> &'static str {
        self.labels().get(usize::from(call.0)).map_or("[unknown call]", String::as_str)
    }

    /// Passes the activity records in `filled` to `sink`, in no particular order. Each activity record is passed as a
    /// `Row::Activity`. If the kernel name of a record is new, a `Row::Name` is passed before it. Converting records to
    /// rows costs about 50 ns per record, so this function must not be called on the application's threads.
    pub fn read(
        &self,
        filled: &FilledBuffer,
        names: &mut KernelNames,
        sink: &mut impl FnMut(Row<'_>),
    ) -> ReadTally {
        let step = self.shared.stepper();
        // SAFETY: a `FilledBuffer` is a buffer that CUPTI has completed, and the names in it stay valid while CUPTI is
        // loaded.
        unsafe { activity::read_records(filled.bytes(), &step, names, sink) }
    }

    /// Makes CUPTI deliver buffers of activity records before this function returns. If `forced` is true, CUPTI
    /// delivers all buffers. If `forced` is false, CUPTI delivers only the buffers whose records are all complete. A
    /// forced flush permanently loses the records of GPU work that is still running. A flush does not wait for GPU work
    /// to end. Before the first API call or CUDA context was seen, this function does nothing, because the flush might
    /// make CUPTI hang. While another client's functions are registered, this function also does nothing, because that
    /// client may have been unloaded.
    ///
    /// Call this function on one of our own threads or in the callback of an API call, but not in another callback.
    ///
    /// Errors: CUPTI has refused the flush.
    pub fn flush(&self, forced: bool) -> Result<(), Error> {
        if !self.shared.has_seen_work.load(Ordering::Relaxed) {
            return Ok(());
        }
        let flag = if forced { FlushFlag::FORCED } else { FlushFlag::NONE };
        self.query_records(|functions| functions.flush(flag))
            .unwrap_or(Ok(()))
            .map_err(|status| Error::new(ErrorKind::CuptiRefused, format!("cuptiActivityFlushAll: {status}")))
    }

    /// Returns the number of activity records that CUPTI has dropped since the last query. Call this function after a
    /// flush. While calling it, hold no lock.
    pub fn dropped(&self) -> u64 {
        self.query_records(|functions| functions.dropped(self.shared.subscriber()).unwrap_or(0)).unwrap_or(0)
    }

    /// Returns the current time according to the clock of the activity records. Returns `None` if CUPTI does not
    /// provide the time.
    pub fn timestamp(&self) -> Option<Nanos> {
        self.query_records(|functions| functions.timestamp(self.shared.subscriber()).ok())
            .flatten()
            .map(Nanos)
    }

    /// Runs a query about activity records if we own the records, and returns `None` if we do not own them. If another
    /// client owned the records, the query would make CUPTI call that client's functions, and would return how many
    /// records that client has lost.
    fn query_records<R>(&self, question: impl FnOnce(&CuptiFunctions) -> R) -> Option<R> {
        let is_ours = || self.shares_records() || !clients::has_client_functions();
        self.shared.call(|| is_ours().then(|| question(&self.shared.functions))).flatten()
    }

    /// Whether each client has activity records of its own, so that no client can take ours.
    pub fn shares_records(&self) -> bool {
        self.shared.functions.shares()
    }

    /// Returns how many buffers and callbacks were exchanged with CUPTI so far.
    pub fn delivery_counts(&self) -> DeliveryCounts {
        DeliveryCounts::read(LENT_BUFFERS.count())
    }

    /// Returns the state of the other CUPTI clients that were detected.
    pub fn other_clients(&self) -> ClientActivity {
        clients::other_clients()
    }

    /// Whether we take the activity records back as soon as the client that took them has finished, even without
    /// opening a window.
    pub fn reclaims_records(&self) -> bool {
        self.options.deference != Deference::None
    }

    /// Restores the settings of CUPTI that we have changed. Called if another client has taken the activity records,
    /// but the client's calls were not detected. Leaves all activity kinds enabled, because the other client may have
    /// enabled any of these kinds too.
    pub fn yield_records(&self) {
        self.shared.call(|| records::release(self.shared, u64::MAX));
    }

    /// Makes CUPTI deliver activity records to us again, after another client has released them. `decided` is the state
    /// of the other clients at the time of the caller's decision to take the records. If another client has made a
    /// CUPTI call since `decided` was read, this function does nothing.
    ///
    /// Call this function on one of our own threads or on a thread of the program, but not in a callback.
    ///
    /// Errors: CUPTI has refused to register our buffer functions.
    pub fn reclaim_records(&self, decided: &ClientActivity) -> Result<(), Error> {
        let take = || (self.resubscribe_steps.take_records)(self.shared, &self.options, Some(decided));
        self.shared.call(take).map_or(Ok(()), |taken| taken.map(drop).map_err(refusal_error))
    }

    /// Whether gpuflame owns the CUPTI subscription.
    pub fn is_subscribed(&self) -> bool {
        !self.shared.subscriber().0.is_null()
    }

    /// Releases our CUPTI subscription, so that another client can subscribe. After the release, CUPTI still delivers
    /// activity records to us, and a callback may still run.
    ///
    /// Call this function on one of our own threads.
    pub fn release_subscription(&self) {
        let subscriber = Subscriber(self.shared.subscriber.swap(ptr::null_mut(), Ordering::AcqRel));
        if !subscriber.0.is_null() {
            self.shared.call(|| self.shared.functions.unsubscribe(subscriber));
        }
    }

    /// Subscribes to CUPTI again, and enables the same callbacks as before. Takes the activity records, unless another
    /// client owns them.
    ///
    /// Call this function on one of our own threads.
    ///
    /// Errors: CUPTI has refused the subscription, because another client owns it or for another
    /// reason.
    pub fn resubscribe(&self) -> Result<(), Error> {
        self.shared.call_even_if_finalized(|| self.resubscribe_unless_subscribed()).unwrap_or(Ok(()))
    }

    fn resubscribe_unless_subscribed(&self) -> Result<(), Error> {
        if self.is_subscribed() {
            return Ok(());
        }
        (self.resubscribe_steps.subscribe)(self.shared).map_err(refusal_error)?;
        let others = self.other_clients();
        if !others.own_records {
            self.reclaim_records(&others).inspect_err(|_| self.release_subscription())?;
        }
        let (functions, subscriber) = (&self.shared.functions, self.shared.subscriber());
        for (domain, id) in &self.resubscribe_steps.callbacks {
            let _ = functions.enable_callback(subscriber, *domain, *id, true);
        }
        functions.forget_error();
        Ok(())
    }

    /// Enables or disables the callbacks for the API calls that create GPU work. At first, these callbacks are enabled.
    /// While the callback for an API call is disabled, the API call takes no longer than without gpuflame. All
    /// callbacks that are not about GPU work stay enabled, including those that report graph nodes and modules. If a
    /// callback is enabled or disabled while an API call is in flight, CUPTI may report only the entry or only the exit
    /// of that call.
    ///
    /// Call this function on one of our own threads, but not in a callback.
    ///
    /// Errors: CUPTI has refused to enable or disable a callback. In this case, all other
    /// callbacks were still enabled or disabled.
    pub fn set_launch_callbacks(&self, on: bool) -> Result<(), Error> {
        self.shared.call(|| self.set_launch_callbacks_now(on)).unwrap_or(Ok(()))
    }

    fn set_launch_callbacks_now(&self, on: bool) -> Result<(), Error> {
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

    /// Ends the callbacks of this CUPTI subscription. After unsubscribing, a last flush is possible, because CUPTI
    /// still delivers activity records unless the subscription is shared.
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

    /// Permanently stops all CUPTI calls, and ignores all later callbacks. Used in a forked child, in which the
    /// driver's state is not valid. This function takes no lock.
    pub fn retire(&self) {
        self.shared.retire();
    }

    /// Whether this subscription was retired, either by [`Self::retire`] or by a fatal error in CUPTI. Once a
    /// subscription is retired, we make no CUPTI calls, and CUPTI delivers nothing.
    pub fn is_retired(&self) -> bool {
        self.shared.is_retired()
    }
}

fn refusal_error(SetupRefusal { step, status }: SetupRefusal) -> Error {
    Error::new(ErrorKind::CuptiRefused, format!("{step}: {status}"))
}

fn subscribe<T: Tracer>(shared: &'static CallbackState) -> Result<(), SetupRefusal> {
    let userdata = ptr::from_ref(shared).cast_mut().cast();
    // SAFETY: `on_event` requires a pointer to a `CallbackState` that is never freed, and `shared` is leaked, so it is
    // never freed.
    let subscriber = unsafe { shared.functions.subscribe(on_event::<T>, userdata) }
        .map_err(|status| SetupRefusal { step: "cuptiSubscribe", status })?;
    shared.subscriber.store(subscriber.0, Ordering::Release);
    shared.is_finalized.store(false, Ordering::Release);
    Ok(())
}

fn take_records<T: Tracer>(
    shared: &'static CallbackState,
    options: &Options,
    decided: Option<&ClientActivity>,
) -> Result<Vec<String>, SetupRefusal> {
    clients::register_unless_called(shared, decided, |is_flushed| {
        records::register::<T>(shared, options, is_flushed)
    })
}

/// Starts to detect other CUPTI clients. Does nothing if the subscription is shared, because then each client has
/// activity records of its own.
fn detect_other_clients<T: Tracer>(
    functions: &CuptiFunctions,
    deference: Deference,
    notes: &mut Vec<String>,
) {
    if functions.shares() {
        return;
    }
    let (yields, reclaims) = (deference == Deference::Subscription, deference != Deference::None);
    if let Err(error) = clients::interpose_on_clients::<T>(functions.library(), yields, reclaims)
        && yields
    {
        notes.push(format!("GPUFLAME_YIELD=1 has no effect: cannot intercept other CUPTI clients: {error}"));
    }
}

/// Enables all callbacks. Returns two lists of callbacks: the callbacks for API calls that create GPU work, and all
/// callbacks.
fn enable_callbacks<T: Tracer>(
    shared: &'static CallbackState,
    (version, options): (Version, &Options),
    notes: &mut Vec<String>,
) -> (Vec<CallbackKey>, Vec<CallbackKey>) {
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
    if T::GRAPHS && options.events {
        events.push((Domain::RESOURCE, CallbackId::GRAPH_DEPENDENCY_CREATED, "graph dependency created"));
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
        notes.push(format!("CUPTI refused to enable {count} callbacks; the first is {what}: {status}"));
    }
    if calls.is_empty() {
        notes.push("CUPTI lists no API call that launches work; stacks will be missing".to_owned());
    }
    let launches = calls.iter().filter(|call| call.kind.makes_work());
    let launches = launches.map(|call| (call.domain, CallbackId(call.id))).collect();
    (launches, all.iter().map(|(domain, id, _)| (*domain, *id)).collect())
}

/// Returns the API calls that matter to gpuflame, from both API domains. Finds these calls by querying the names of all
/// API calls.
fn named_calls(functions: &CuptiFunctions, options: &Options) -> Vec<NamedCall> {
    let is_wanted = |kind: &CallKind| match kind {
        CallKind::EventRecord | CallKind::EventWait => options.events,
        _ => true,
    };
    let mut calls = Vec::new();
    for domain in [Domain::RUNTIME_API, Domain::DRIVER_API] {
        let mut last_named = 0;
        for id in 1..MAX_CALLBACK_ID {
            if id > last_named + MAX_ID_GAP {
                break;
            }
            let Some(name) = functions.callback_name(domain, CallbackId(id)) else { continue };
            last_named = id;
            if let Some(kind) = classify(name).or_else(|| classify_host_call(name).filter(is_wanted)) {
                let has_attributes = kind == CallKind::Launch && name.contains("LaunchKernelEx");
                let kind =
                    if has_attributes && options.events { CallKind::LaunchWithAttributes } else { kind };
                calls.push(NamedCall { domain, id, name: name.to_owned(), kind });
            }
        }
    }
    calls
}

#[cfg(test)]
#[path = "api_test.rs"]
mod tests;
