//! Tests how a subscription is set up, used and ended, with a fake CUPTI.

use super::super::driver::Driver;
use super::super::fake::{self, FakeCupti, RECORD_BYTES};
use super::super::load;
use super::*;
use crate::tracer::{Buffer, Call, GraphEvent, HostCallEvent, Layer};
use cupti_sys::Status;
use gpuflame_model::record::CorrelationId;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

/// Notifications that the tracers in these tests have received.
static NOTIFICATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static FILLED: Mutex<Vec<FilledBuffer>> = Mutex::new(Vec::new());
static BUFFERS: AtomicUsize = AtomicUsize::new(0);

fn note_notification(what: String) {
    NOTIFICATIONS.lock().unwrap().push(what);
}

fn take_notifications() -> Vec<String> {
    std::mem::take(&mut *NOTIFICATIONS.lock().unwrap())
}

/// A tracer that stores each notification that it receives.
struct RecordingTracer;

impl Tracer for RecordingTracer {
    const GRAPHS: bool = true;

    fn enter(call: &Call<'_>) {
        assert_eq!((call.slot.get(), call.return_value), (0, 0));
        call.slot.set(u64::from(call.correlation.0) + 100);
        let layer = if call.layer == Layer::Driver { "driver" } else { "runtime" };
        note_notification(format!("enter {layer} {:?} #{} {}", call.kind, call.api.0, call.correlation.0));
    }

    fn exit(call: &Call<'_>) {
        note_notification(format!(
            "exit {} slot {} returned {}",
            call.correlation.0,
            call.slot.get(),
            call.return_value
        ));
    }

    fn request_buffer() -> Option<Buffer> {
        let taken = BUFFERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.ok().and_then(|_| Buffer::new(4096))
    }

    fn buffer_completed(filled: FilledBuffer) {
        FILLED.lock().unwrap().push(filled);
    }

    fn records_discarded(count: u64) {
        note_notification(format!("discarded {count}"));
    }

    fn context_created() {
        note_notification("context created".to_owned());
    }

    fn context_ending() {
        note_notification("context ending".to_owned());
    }

    fn graph(event: GraphEvent<'_>) {
        note_notification(match event {
            GraphEvent::CallBegins { call, into } => format!("graph call {:?} into {into:?}", call.kind),
            GraphEvent::CallEnds(call) => format!("graph call {:?} ends", call.kind),
            GraphEvent::NodeCreated { ids, .. } => format!("graph node {ids:?}"),
            GraphEvent::NodeCloned(ids) => format!("graph node cloned {ids:?}"),
            GraphEvent::EdgeCreated(ids) => format!("graph edge {ids:?}"),
            GraphEvent::GraphEnds(graph) => format!("graph {} ends", graph.0),
            GraphEvent::ExecCreated(exec) => format!("exec {exec} created"),
            GraphEvent::ExecEnds(exec) => format!("exec {exec} ends"),
            GraphEvent::ExecUpdated { exec, source, correlation } => {
                format!("exec {exec} updated from {} by {}", source.0, correlation.0)
            }
        });
    }

    fn host_call(event: HostCallEvent<'_>) {
        note_notification(match event {
            HostCallEvent::Begins { call, .. } => format!("begins {:?} {}", call.kind, call.correlation.0),
            HostCallEvent::Ends { call, done } => format!("ends {:?} {done:?}", call.kind),
        });
    }

    fn fatal(reason: &str) {
        note_notification(format!("fatal {reason}"));
    }

    fn panicked() {
        note_notification("panicked".to_owned());
    }
}

fn attach<T: Tracer>(driver: u32) -> Result<&'static Api, String> {
    attach_with::<T>(driver, &Options::default())
}

fn attach_with<T: Tracer>(driver: u32, options: &Options) -> Result<&'static Api, String> {
    attach_to::<T>(fake::library(), driver, options)
}

fn attach_to<T: Tracer>(
    library: cupti_sys::Library,
    driver: u32,
    options: &Options,
) -> Result<&'static Api, String> {
    take_notifications();
    FILLED.lock().unwrap().clear();
    BUFFERS.store(8, Ordering::Relaxed);
    let (functions, version) =
        load::check_library(Driver::pretended(driver), library).map_err(|reason| reason.to_string())?;
    Api::attach::<T>(functions, (version, Some(driver)), "fake".into(), options)
        .map_err(|refusal| format!("{}: {}", refusal.step, refusal.status))
}

#[test]
fn attaching_calls_cupti_in_the_required_order() {
    let fake = FakeCupti::start(130_001);
    let api = attach::<RecordingTracer>(13_000).unwrap();
    let expected = [
        "version",
        "subscribe",
        "attribute 5 = 1 (1 byte)",
        "register",
        "kind 10",
        "kind 1",
        "kind 22",
        "kind 2",
        "callback 2.3 = 1",
        "callback 2.4 = 1",
        "callback 2.5 = 1",
        "callback 2.6 = 1",
        "callback 1.3 = 1",
        "callback 1.4 = 1",
        "callback 1.5 = 1",
        "callback 1.6 = 1",
        "callback 1.7 = 1",
        "callback 3.1 = 1",
        "callback 3.2 = 1",
        "callback 3.13 = 1",
        "callback 3.20 = 1",
        "callback 3.10 = 1",
        "callback 3.18 = 1",
        "callback 3.19 = 1",
        "callback 6.1 = 1",
    ];
    assert_eq!(fake.call_log(), expected);
    assert_eq!(api.notes(), [""; 0]);
    let labels = [
        "cudaLaunchKernel",
        "cudaMemcpy",
        "cudaDeviceReset",
        "cuLaunchKernel",
        "cuGraphLaunch",
        "cuGraphInstantiateWithFlags",
        "cuGraphAddChildGraphNode",
        "cuGraphExecUpdate",
    ];
    assert_eq!(api.labels(), labels);
    assert_eq!(api.label(ApiCallId(99)), "[unknown call]");
}

#[test]
fn a_shared_subscription_passes_its_handle_in_every_record_call() {
    let fake = FakeCupti::start(130_301);
    let api = attach_to::<RecordingTracer>(fake::sharing_library(), 13_030, &Options::default()).unwrap();
    let expected = [
        "version",
        "subscribe gpuflame, 40 bytes, shares = 1",
        "77: attribute 5 = 1 (1 byte)",
        "77: register",
        "77: kind 10",
        "77: kind 1",
        "77: kind 22",
        "77: kind 2",
    ];
    assert_eq!(fake.call_log()[..8], expected);
    let buffer = fake.request();
    fake.complete(buffer, 3);
    let filled = FILLED.lock().unwrap().pop().unwrap();
    let tally = api.read(&filled, &mut KernelNames::new(), &mut |_| {});
    assert_eq!(tally, ReadTally { activities: 3, unreadable: 0 });
    fake.drop_records(12);
    assert_eq!((api.dropped(), api.timestamp()), (12, Some(Nanos(42))));
    fake.call(Domain::RUNTIME_API, 3, 1, 0);
    api.flush(false).unwrap();
    assert_eq!(fake.call_log(), ["77: dropped", "77: timestamp", "flush 0"]);
}

#[test]
fn subscriptions_are_shared_only_with_suitable_library_driver_and_options() {
    let shares = |version, driver, library, options: &Options| {
        let fake = FakeCupti::start(version);
        attach_to::<RecordingTracer>(library, driver, options).unwrap();
        fake.call_log().iter().any(|line| line.contains("shares"))
    };
    let (whole, plain) = (fake::sharing_library, Options::default());
    assert!(shares(130_300, 13_030, whole(), &plain));
    assert!(!shares(130_202, 13_030, whole(), &plain));
    assert!(!shares(130_300, 13_020, whole(), &plain));
    let lacking = cupti_sys::Library { activity_get_num_dropped_records_v2: None, ..whole() };
    assert!(!shares(130_300, 13_030, lacking, &plain));
    assert!(!shares(130_300, 13_030, whole(), &Options { events: true, ..Options::default() }));
    assert!(!shares(130_300, 13_030, whole(), &Options { unified: true, ..Options::default() }));
}

#[test]
fn a_refused_shared_subscription_is_not_retried_as_exclusive() {
    let fake = FakeCupti::start(130_301);
    fake.refuse("subscribe gpuflame, 40 bytes, shares = 1", Status::NOT_COMPATIBLE);
    let refusal =
        attach_to::<RecordingTracer>(fake::sharing_library(), 13_030, &Options::default()).err().unwrap();
    assert_eq!(refusal, "cuptiSubscribe: NOT_COMPATIBLE (14)");
    assert_eq!(fake.call_log(), ["version", "subscribe gpuflame, 40 bytes, shares = 1"]);
}

#[test]
fn yielding_records_restores_the_settings_found_at_attach() {
    for before in [0, 1] {
        let fake = FakeCupti::start(130_001);
        fake.set_attributes(before);
        let api =
            attach_with::<RecordingTracer>(13_000, &Options { events: true, ..Options::default() }).unwrap();
        fake.call_log();
        api.yield_records();
        assert_eq!(fake.call_log(), [format!("attribute 5 = {before} (1 byte)"), "all syncs = 1".to_owned()]);
        api.unsubscribe();
    }
}

#[test]
fn subscribing_again_repeats_the_initial_setup() {
    let fake = FakeCupti::start(130_001);
    let api = attach::<RecordingTracer>(13_000).unwrap();
    let at_first: Vec<_> = fake.call_log().into_iter().skip_while(|step| step != "subscribe").collect();
    api.release_subscription();
    assert!(!api.is_subscribed());
    assert_eq!(fake.call_log(), ["unsubscribe"]);
    fake.refuse("subscribe", Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
    assert_eq!(api.resubscribe().unwrap_err().kind(), ErrorKind::CuptiRefused);
    assert!(!api.is_subscribed());
    fake.call_log();
    fake.accept_all();
    api.resubscribe().unwrap();
    assert!(api.is_subscribed());
    assert_eq!(fake.call_log(), at_first);
}

#[test]
fn switching_launch_callbacks_affects_only_launch_callbacks() {
    let fake = FakeCupti::start(130_001);
    let api = attach::<RecordingTracer>(13_000).unwrap();
    fake.call_log();
    let launches = ["1.3", "1.4", "2.3", "2.4", "2.5"];
    for (on, digit) in [(false, 0), (true, 1)] {
        api.set_launch_callbacks(on).unwrap();
        let mut calls = fake.call_log();
        calls.sort_unstable();
        assert_eq!(calls, launches.map(|id| format!("callback {id} = {digit}")));
    }
    fake.refuse("callback 1.3 = 0", Status::UNKNOWN);
    assert!(api.set_launch_callbacks(false).unwrap_err().to_string().contains("cuptiEnableCallback"));
    assert_eq!(fake.call_log().len(), launches.len(), "the other callbacks are switched nevertheless");
    api.retire();
    api.set_launch_callbacks(true).unwrap();
    assert_eq!(fake.call_log(), [""; 0]);
}

#[test]
fn event_and_wait_records_are_enabled_on_request_without_unsuccessful_queries() {
    let fake = FakeCupti::start(130_001);
    attach::<RecordingTracer>(13_000).unwrap();
    let without = fake.call_log();
    attach_with::<RecordingTracer>(13_000, &Options { events: true, ..Options::default() }).unwrap();
    let with = fake.call_log();
    let more: Vec<_> = with.iter().filter(|line| !without.contains(line)).collect();
    let dependencies = "callback 3.15 = 1";
    let events =
        ["all syncs = 0", "kind 36", "kind 38", "callback 2.8 = 1", "callback 1.8 = 1", dependencies];
    assert_eq!(more, events);
    assert_eq!(with.len(), without.len() + more.len());
}

#[test]
fn unified_memory_is_enabled_on_request_and_a_refusal_is_noted() {
    let fake = FakeCupti::start(130_001);
    attach::<RecordingTracer>(13_000).unwrap();
    let without = fake.call_log();
    let wanted = Options { unified: true, ..Options::default() };
    attach_with::<RecordingTracer>(13_000, &wanted).unwrap();
    let more: Vec<_> = fake.call_log().into_iter().filter(|line| !without.contains(line)).collect();
    assert_eq!(more, ["unified [1, 2, 8, 3, 4]", "kind 25"]);
    fake.refuse("unified [1, 2, 8, 3, 4]", Status::UM_PROFILING_NOT_SUPPORTED);
    let api = attach_with::<RecordingTracer>(13_000, &wanted).unwrap();
    assert_eq!(api.notes(), ["CUPTI does not record unified memory: UM_PROFILING_NOT_SUPPORTED (28)"]);
    assert!(!fake.call_log().contains(&"kind 25".to_owned()));
}

#[test]
fn a_successful_event_call_is_reported_with_its_handles() {
    let fake = FakeCupti::start(130_001);
    attach_with::<RecordingTracer>(13_000, &Options { events: true, ..Options::default() }).unwrap();
    fake.call_with(Domain::RUNTIME_API, 8, 1, 0, &[0x1000, 7]);
    fake.call_with(Domain::DRIVER_API, 8, 2, 0, &[7, 0x1000]);
    fake.call_with(Domain::DRIVER_API, 8, 3, 400, &[7, 0]);
    let expected = [
        "begins EventRecord 1",
        "ends EventRecord Event { event: 4096, stream: 7 }",
        "begins EventWait 2",
        "ends EventWait Event { event: 4096, stream: 7 }",
        "begins EventWait 3",
        "ends EventWait Nothing",
    ];
    assert_eq!(take_notifications(), expected);
}

#[test]
fn state_callbacks_are_not_enabled_on_releases_without_them() {
    let fake = FakeCupti::start(18);
    attach::<RecordingTracer>(12_000).unwrap();
    assert!(!fake.call_log().contains(&"callback 6.1 = 1".to_owned()));
}

#[test]
fn no_cupti_call_follows_a_refused_subscription() {
    let fake = FakeCupti::start(28);
    fake.refuse("subscribe", Status::NOT_INITIALIZED);
    assert_eq!(attach::<RecordingTracer>(12_080).err().unwrap(), "cuptiSubscribe: NOT_INITIALIZED (15)");
    assert_eq!(fake.call_log(), ["version", "subscribe"]);
}

#[test]
fn a_cupti_too_old_or_newer_than_the_driver_is_not_subscribed_to() {
    for (version, driver, reason) in [
        (17, 11_070, "it is older than 11.8 (API version 17), gpuflame needs 11.8 or later"),
        (130_001, 12_040, "it is for CUDA 13.0, the driver supports 12.4"),
    ] {
        let fake = FakeCupti::start(version);
        assert_eq!(attach::<RecordingTracer>(driver).err().unwrap(), reason);
        assert_eq!(fake.call_log(), ["version"]);
    }
}

#[test]
fn a_library_that_lacks_a_required_function_is_never_called() {
    let fake = FakeCupti::start(28);
    let library = cupti_sys::Library { activity_flush_all: None, ..fake::library() };
    let reason = load::check_library(Driver::pretended(12_080), library).err().unwrap();
    assert_eq!(reason.to_string(), "it has no cuptiActivityFlushAll");
    assert_eq!(fake.call_log(), [""; 0]);
}

#[test]
fn a_refused_record_kind_is_noted_and_setup_continues() {
    let fake = FakeCupti::start(28);
    fake.refuse("kind 22", Status::NOT_SUPPORTED);
    fake.refuse("callback 2.5 = 1", Status::INVALID_PARAMETER);
    fake.refuse("attribute 5 = 1 (1 byte)", Status::INVALID_PARAMETER);
    let api = attach::<RecordingTracer>(12_080).unwrap();
    let expected = [
        "CUPTI does not record copies between GPUs: NOT_SUPPORTED (27)",
        "CUPTI refused to enable 1 callbacks; the first is cudaMemcpy_v3020: INVALID_PARAMETER (1)",
    ];
    assert_eq!(api.notes(), expected);
    assert!(fake.call_log().contains(&"kind 2".to_owned()));
}

#[test]
fn the_subscription_is_released_if_all_record_kinds_are_refused() {
    let fake = FakeCupti::start(28);
    for kind in ["kind 10", "kind 1", "kind 22", "kind 2"] {
        fake.refuse(kind, Status::INSUFFICIENT_PRIVILEGES);
    }
    let refusal = attach::<RecordingTracer>(12_080).err().unwrap();
    assert_eq!(refusal, "cuptiActivityEnable: INSUFFICIENT_PRIVILEGES (35)");
    assert_eq!(fake.call_log().last().unwrap(), "unsubscribe");
}

#[test]
fn a_call_is_reported_on_entry_and_exit_with_its_correlation_data() {
    let fake = FakeCupti::start(28);
    let api = attach::<RecordingTracer>(12_080).unwrap();
    assert_eq!(fake.call(Domain::RUNTIME_API, 4, 7, 0), 107);
    fake.call(Domain::DRIVER_API, 3, 8, 719);
    fake.call(Domain::RUNTIME_API, 5, 9, 0);
    let expected = [
        "enter runtime Launch #0 7",
        "exit 7 slot 107 returned 0",
        "enter driver Launch #3 8",
        "exit 8 slot 108 returned 719",
        "enter runtime Copy { sync: true } #1 9",
        "exit 9 slot 109 returned 0",
    ];
    assert_eq!(take_notifications(), expected);
    assert_eq!(api.label(ApiCallId(3)), "cuLaunchKernel");
}

#[test]
fn a_callback_that_was_not_enabled_is_ignored() {
    let fake = FakeCupti::start(28);
    attach::<RecordingTracer>(12_080).unwrap();
    fake.call(Domain::RUNTIME_API, 7, 1, 0);
    fake.call(Domain::DRIVER_API, 100_000, 2, 0);
    assert_eq!(take_notifications(), [""; 0]);
}

#[test]
fn context_creation_and_destruction_are_reported() {
    let fake = FakeCupti::start(28);
    attach::<RecordingTracer>(12_080).unwrap();
    fake.resource(CallbackId::CONTEXT_CREATED);
    fake.resource(CallbackId::GRAPH_NODE_CREATED);
    fake.resource(CallbackId::MODULE_LOADED);
    fake.resource(CallbackId::CONTEXT_DESTROY_STARTING);
    // If a callback about a graph lacks the details of the node, the tracer is not notified.
    assert_eq!(take_notifications(), ["context created", "context ending"]);
}

#[test]
fn graph_events_are_reported_with_the_ids_that_records_use() {
    let fake = FakeCupti::start(28);
    attach::<RecordingTracer>(12_080).unwrap();
    fake.graph(CallbackId::GRAPH_NODE_CREATED, 2, 10, 0, 0);
    fake.graph(CallbackId::GRAPH_NODE_CREATED, 2, 11, 0, 0);
    fake.graph(CallbackId::GRAPH_NODE_CLONED, 4, 20, 10, 0);
    fake.graph(CallbackId::GRAPH_NODE_CLONED, 4, 20, 0, 0);
    fake.graph(CallbackId::GRAPH_EXEC_CREATED, 2, 0, 0, 99);
    fake.graph(CallbackId::GRAPH_DESTROY_STARTING, 2, 0, 0, 0);
    fake.graph(CallbackId::GRAPH_EXEC_DESTROY_STARTING, 2, 0, 0, 99);
    let cloned = "ClonedNode { graph: GraphId(4), node: GraphNodeId(20), original: GraphNodeId(10) }";
    let expected = [
        "graph node Some((GraphId(2), GraphNodeId(10)))",
        "graph node None",
        &format!("graph node cloned Some({cloned})"),
        "graph node cloned None",
        "exec 99 created",
        "graph 2 ends",
        "exec 99 ends",
    ];
    assert_eq!(take_notifications(), expected);
}

#[test]
fn calls_that_edit_graphs_are_reported_with_their_target_graph() {
    let fake = FakeCupti::start(28);
    attach::<RecordingTracer>(12_080).unwrap();
    fake.call_with(Domain::DRIVER_API, 5, 1, 0, &[8, 2]);
    fake.call_with(Domain::DRIVER_API, 6, 2, 0, &[8, 2]);
    fake.call_with(Domain::DRIVER_API, 7, 3, 0, &[8, 2]);
    fake.call_with(Domain::DRIVER_API, 7, 4, 910, &[8, 2]);
    let expected = [
        "graph call GraphCopy into None",
        "graph call GraphCopy ends",
        "graph call GraphCopy into Some(GraphId(2))",
        "graph call GraphCopy ends",
        "exec 8 updated from 2 by 3",
    ];
    assert_eq!(take_notifications(), expected);
}

#[test]
fn records_go_from_a_lent_buffer_into_rows() {
    let fake = FakeCupti::start(28);
    let api = attach::<RecordingTracer>(12_080).unwrap();
    let buffer = fake.request();
    assert_eq!((buffer.1, api.delivery_counts().buffers_lent), (4096, 1));
    fake.complete(buffer, 3);
    let filled = FILLED.lock().unwrap().pop().unwrap();
    assert_eq!((filled.valid(), api.delivery_counts().buffers_lent), (3 * RECORD_BYTES, 0));
    let mut rows = 0;
    let tally = api.read(&filled, &mut KernelNames::new(), &mut |_| rows += 1);
    assert_eq!((rows, tally), (3, ReadTally { activities: 3, unreadable: 0 }));
}

#[test]
fn records_delivered_in_a_spare_buffer_are_counted_as_discarded() {
    let fake = FakeCupti::start(28);
    attach::<RecordingTracer>(12_080).unwrap();
    BUFFERS.store(0, Ordering::Relaxed);
    let spare = fake.request();
    assert!(!spare.0.is_null() && spare.1 >= 16 * RECORD_BYTES);
    fake.complete(spare, 5);
    assert_eq!(take_notifications(), ["discarded 5"]);
    assert!(FILLED.lock().unwrap().is_empty());
}

#[test]
fn callbacks_without_data_and_foreign_buffers_are_only_counted() {
    let fake = FakeCupti::start(28);
    let api = attach::<RecordingTracer>(12_080).unwrap();
    let before = api.delivery_counts();
    fake.call_without_data(Domain::RUNTIME_API, 4);
    fake.call_without_data(Domain::DRIVER_API, 3);
    fake.call_without_data(Domain::RESOURCE, CallbackId::CONTEXT_CREATED.0);
    fake.call_without_data(Domain::RESOURCE, CallbackId::GRAPH_NODE_CREATED.0);
    let buffer = fake.request();
    fake.complete(buffer, 3);
    let filled = FILLED.lock().unwrap().pop().unwrap();
    fake.complete(buffer, 0);
    // In this test, CUPTI returns a buffer that we have not lent to CUPTI.
    fake.complete((filled.bytes().as_ptr().cast_mut().wrapping_add(64), 64), 0);
    let traffic = api.delivery_counts();
    assert_eq!(
        (
            traffic.callbacks_without_data - before.callbacks_without_data,
            traffic.foreign_buffers - before.foreign_buffers
        ),
        (4, 2)
    );
    assert_eq!((take_notifications(), FILLED.lock().unwrap().len(), traffic.buffers_lent), (vec![], 0, 0));
}

#[test]
fn a_flush_before_the_first_cuda_call_is_skipped() {
    let fake = FakeCupti::start(28);
    let api = attach::<RecordingTracer>(12_080).unwrap();
    fake.call_log();
    api.flush(true).unwrap();
    assert_eq!(fake.call_log(), [""; 0]);
    fake.call(Domain::RUNTIME_API, 3, 1, 0);
    api.flush(false).unwrap();
    api.flush(true).unwrap();
    assert_eq!(fake.call_log(), ["flush 0", "flush 1"]);
}

#[test]
fn a_refused_flush_is_an_error_that_names_the_call() {
    let fake = FakeCupti::start(28);
    let api = attach::<RecordingTracer>(12_080).unwrap();
    fake.resource(CallbackId::CONTEXT_CREATED);
    fake.refuse("flush 1", Status::INVALID_OPERATION);
    let error = api.flush(true).unwrap_err();
    assert_eq!(error.to_string(), "cuptiActivityFlushAll: INVALID_OPERATION (7)");
}

#[test]
fn dropped_records_and_the_timestamp_are_read_from_cupti() {
    let fake = FakeCupti::start(28);
    let api = attach::<RecordingTracer>(12_080).unwrap();
    fake.drop_records(12);
    assert_eq!((api.dropped(), api.dropped()), (12, 0));
    assert_eq!(api.timestamp(), Some(Nanos(42)));
    fake.refuse("timestamp", Status::UNKNOWN);
    assert_eq!(api.timestamp(), None);
}

#[test]
fn after_a_fatal_error_cupti_is_not_called_and_callbacks_are_ignored() {
    let fake = FakeCupti::start(28);
    let api = attach::<RecordingTracer>(12_080).unwrap();
    fake.call(Domain::RUNTIME_API, 3, 1, 0);
    let buffer = fake.request();
    fake.complete(buffer, 1);
    let filled = FILLED.lock().unwrap().pop().unwrap();
    let late = fake.request();
    take_notifications();
    fake.call_log();
    fake.fatal(Status::HARDWARE, c"the GPU fell off the bus");
    fake.call(Domain::RUNTIME_API, 3, 2, 0);
    fake.resource(CallbackId::CONTEXT_CREATED);
    fake.complete(late, 1);
    assert_eq!(take_notifications(), ["fatal HARDWARE (9): the GPU fell off the bus"]);
    assert!(FILLED.lock().unwrap().is_empty());
    api.flush(true).unwrap();
    let tally = api.read(&filled, &mut KernelNames::new(), &mut |row| panic!("{row:?}"));
    assert_eq!(
        (tally, api.dropped(), api.timestamp()),
        (ReadTally { activities: 0, unreadable: 1 }, 0, None)
    );
    api.unsubscribe();
    assert_eq!(fake.call_log(), [""; 0]);
}

#[test]
fn unsubscribing_ends_callbacks_but_still_accepts_records() {
    let fake = FakeCupti::start(28);
    let api = attach::<RecordingTracer>(12_080).unwrap();
    fake.call(Domain::RUNTIME_API, 3, 1, 0);
    let buffer = fake.request();
    take_notifications();
    fake.call_log();
    api.unsubscribe();
    api.unsubscribe();
    fake.call(Domain::RUNTIME_API, 3, 2, 0);
    api.flush(true).unwrap();
    fake.complete(buffer, 2);
    assert_eq!(take_notifications(), [""; 0]);
    assert_eq!(FILLED.lock().unwrap().pop().unwrap().valid(), 2 * RECORD_BYTES);
    assert_eq!(fake.call_log(), ["attribute 5 = 0 (1 byte)", "unsubscribe", "flush 1"]);
}

/// A tracer that panics in every function.
struct Clumsy;

impl Tracer for Clumsy {
    fn enter(_: &Call<'_>) {
        panic!("enter");
    }

    fn exit(call: &Call<'_>) {
        note_notification(format!("exit {}", call.correlation.0));
    }

    fn request_buffer() -> Option<Buffer> {
        panic!("request");
    }

    fn buffer_completed(_: FilledBuffer) {
        panic!("completed");
    }

    fn records_discarded(_: u64) {
        panic!("discarded");
    }

    fn panicked() {
        note_notification("panicked".to_owned());
        panic!("even here");
    }
}

#[test]
fn a_panic_in_a_callback_is_caught_reported_once_and_ends_tracing() {
    let fake = FakeCupti::start(28);
    attach::<Clumsy>(12_080).unwrap();
    fake.call(Domain::RUNTIME_API, 3, 1, 0);
    fake.call(Domain::RUNTIME_API, 3, 2, 0);
    let buffer = fake.request();
    assert!(!buffer.0.is_null());
    fake.complete(buffer, 1);
    assert_eq!(take_notifications(), ["panicked"]);
}

#[test]
fn a_panic_during_a_buffer_request_still_gives_cupti_a_buffer() {
    let fake = FakeCupti::start(28);
    attach::<Clumsy>(12_080).unwrap();
    let buffer = fake.request();
    assert!(!buffer.0.is_null());
    fake.complete(buffer, 1);
    assert_eq!(take_notifications(), ["panicked"]);
}

#[test]
fn correlation_ids_are_passed_on_over_their_whole_range() {
    let fake = FakeCupti::start(28);
    attach::<RecordingTracer>(12_080).unwrap();
    fake.call(Domain::RUNTIME_API, 3, u32::MAX, 0);
    assert_eq!(take_notifications()[0], format!("enter runtime Launch #0 {}", CorrelationId(u32::MAX).0));
}
