//! A fake CUPTI for tests, which consists of Rust functions. Each function logs its call, and returns the status that
//! the test has configured. A test can also use the fake to act as the driver, which makes API calls and fills buffers.
//!
//! C functions have no `self`, so only one fake CUPTI can exist at a time. [`FakeCupti::start`] waits until the
//! previous fake has ended.

use cupti_sys::callback::{
    BufferCompleteInfo, CallbackData, GraphData, ResourceData, StateData, SubscriberParams,
};
use cupti_sys::{
    ActivityAttribute, ActivityKind, BufferCompletedFn, BufferCompletedV2Fn, BufferRequestedFn,
    BufferRequestedV2Fn, CallbackFn, CallbackId, Domain, FlushFlag, Library, Site, Status, Subscriber,
    UnifiedMemoryConfig,
};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Configuration of the fake CUPTI, and a log of the calls to it.
#[derive(Default)]
struct FakeState {
    version: u32,
    refusals: Vec<(String, Status)>,
    dropped: usize,
    attribute: u8,
    call_log: Vec<String>,
    callback: Option<(CallbackFn, usize)>,
    buffers: Option<(BufferRequestedFn, BufferCompletedFn)>,
    own_buffers: Option<(BufferRequestedV2Fn, BufferCompletedV2Fn)>,
}

static STATE: Mutex<Option<FakeState>> = Mutex::new(None);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn with_state<R>(use_it: impl FnOnce(&mut FakeState) -> R) -> R {
    use_it(STATE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Adds `what` to the call log, and returns the status that the test has configured for `what`. If the test has
/// configured no status for `what`, returns success.
fn log_call(what: String) -> Status {
    with_state(|state| {
        let refusal = state.refusals.iter().find(|(refused, _)| *refused == what);
        let status = refusal.map_or(Status::SUCCESS, |(_, status)| *status);
        state.call_log.push(what);
        status
    })
}

/// API calls that the fake CUPTI knows, each with its domain, its id and its name. All other ids up to 8 have one
/// common name, on which no test depends.
const CALLS: [(Domain, u32, &CStr); 14] = [
    (Domain::RUNTIME_API, 3, c"cudaLaunchKernel_v7000"),
    (Domain::RUNTIME_API, 4, c"cudaLaunchKernel_ptsz_v7000"),
    (Domain::RUNTIME_API, 5, c"cudaMemcpy_v3020"),
    (Domain::RUNTIME_API, 6, c"cudaDeviceReset_v3020"),
    (Domain::RUNTIME_API, 7, c"cudaLaunchHostFunc_v10000"),
    (Domain::RUNTIME_API, 8, c"cudaEventRecordWithFlags_v11010"),
    (Domain::DRIVER_API, 1, c"cuInit"),
    (Domain::DRIVER_API, 2, c"cuEventQuery"),
    (Domain::DRIVER_API, 8, c"cuStreamWaitEvent_ptsz"),
    (Domain::DRIVER_API, 3, c"cuLaunchKernel"),
    (Domain::DRIVER_API, 4, c"cuGraphLaunch_ptsz"),
    (Domain::DRIVER_API, 5, c"cuGraphInstantiateWithFlags"),
    (Domain::DRIVER_API, 6, c"cuGraphAddChildGraphNode"),
    (Domain::DRIVER_API, 7, c"cuGraphExecUpdate_v2"),
];

/// Size in bytes of every activity record of the fake CUPTI.
pub(super) const RECORD_BYTES: usize = 216;

unsafe extern "C" fn get_version(version: *mut u32) -> Status {
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { version.write(with_state(|state| state.version)) };
    log_call("version".to_owned())
}

unsafe extern "C" fn get_callback_name(domain: Domain, id: CallbackId, name: *mut *const c_char) -> Status {
    if id.0 > 8 {
        return Status::INVALID_PARAMETER;
    }
    let known = CALLS.iter().find(|(of, number, _)| (*of, *number) == (domain, id.0));
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { name.write(known.map_or(c"cudaNothing".as_ptr(), |(_, _, name)| name.as_ptr())) };
    Status::SUCCESS
}

unsafe extern "C" fn subscribe(out: *mut Subscriber, callback: CallbackFn, userdata: *mut c_void) -> Status {
    let status = log_call("subscribe".to_owned());
    with_state(|state| state.callback = Some((callback, userdata.expose_provenance())));
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { out.write(Subscriber(ptr::dangling_mut())) };
    status
}

unsafe extern "C" fn subscribe_v2(
    out: *mut Subscriber,
    callback: CallbackFn,
    userdata: *mut c_void,
    about: *mut SubscriberParams,
) -> Status {
    // SAFETY: the caller has filled `struct_size` bytes of the struct.
    let (size, shares) = unsafe { ((*about).struct_size, (*about).allow_multiple_subscribers) };
    // SAFETY: the caller has filled the struct, and the name in it is a C string.
    let name = unsafe { CStr::from_ptr((*about).subscriber_name) }.to_string_lossy();
    let status = log_call(format!("subscribe {name}, {size} bytes, shares = {shares}"));
    with_state(|state| state.callback = Some((callback, userdata.expose_provenance())));
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { out.write(Subscriber(ptr::without_provenance_mut(77))) };
    status
}

unsafe extern "C" fn unsubscribe(_: Subscriber) -> Status {
    log_call("unsubscribe".to_owned())
}

unsafe extern "C" fn enable_callback(on: u32, _: Subscriber, domain: Domain, id: CallbackId) -> Status {
    log_call(format!("callback {}.{} = {on}", domain.0, id.0))
}

unsafe extern "C" fn register_callbacks(
    requested: BufferRequestedFn,
    completed: BufferCompletedFn,
) -> Status {
    with_state(|state| state.buffers = Some((requested, completed)));
    log_call("register".to_owned())
}

unsafe extern "C" fn enable(kind: ActivityKind) -> Status {
    log_call(format!("kind {}", kind.0))
}

unsafe extern "C" fn enable_all_sync_records(on: u8) -> Status {
    log_call(format!("all syncs = {on}"))
}

unsafe extern "C" fn configure_unified_memory(first: *mut UnifiedMemoryConfig, count: u32) -> Status {
    // SAFETY: the caller passes a pointer to an array of `count` values.
    let all = unsafe { std::slice::from_raw_parts(first, count as usize) };
    let kinds: Vec<_> = all.iter().filter(|one| one.enable == 1).map(|one| one.kind.0).collect();
    log_call(format!("unified {kinds:?}"))
}

unsafe extern "C" fn set_attribute(
    attribute: ActivityAttribute,
    size: *mut usize,
    value: *mut c_void,
) -> Status {
    // SAFETY: the caller's pointers are valid, and the attributes that gpuflame uses have one byte.
    let (size, value) = unsafe { (size.read(), value.cast::<u8>().read()) };
    log_call(format!("attribute {} = {value} ({size} byte)", attribute.0))
}

/// Returns the value that the test has set for all attributes, as if another client had set it.
unsafe extern "C" fn get_attribute(_: ActivityAttribute, size: *mut usize, value: *mut c_void) -> Status {
    // SAFETY: the caller's pointers are valid, and the attributes that gpuflame uses have one byte.
    unsafe { size.write(1) };
    // SAFETY: as for `size` above, the caller's pointer is valid.
    unsafe { value.cast::<u8>().write(with_state(|state| state.attribute)) };
    Status::SUCCESS
}

unsafe extern "C" fn next_record(buffer: *mut u8, valid: usize, record: *mut *mut u8) -> Status {
    // SAFETY: the pointer that the caller has passed is valid.
    let last = unsafe { record.read() };
    let next = if last.is_null() { 0 } else { last.addr() - buffer.addr() + RECORD_BYTES };
    if next >= valid {
        return Status::MAX_LIMIT_REACHED;
    }
    // SAFETY: the caller's pointer is valid for writes.
    unsafe { record.write(buffer.wrapping_add(next)) };
    Status::SUCCESS
}

unsafe extern "C" fn dropped(_: *mut c_void, _: u32, count: *mut usize) -> Status {
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { count.write(with_state(|state| std::mem::take(&mut state.dropped))) };
    log_call("dropped".to_owned())
}

unsafe extern "C" fn flush(flag: FlushFlag) -> Status {
    log_call(format!("flush {}", flag.0))
}

unsafe extern "C" fn timestamp(now: *mut u64) -> Status {
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { now.write(42) };
    log_call("timestamp".to_owned())
}

unsafe extern "C" fn register_callbacks_v2(
    subscriber: Subscriber,
    requested: BufferRequestedV2Fn,
    completed: BufferCompletedV2Fn,
) -> Status {
    with_state(|state| state.own_buffers = Some((requested, completed)));
    log_call(format!("{}: register", subscriber.0.addr()))
}

unsafe extern "C" fn enable_v2(subscriber: Subscriber, kind: ActivityKind, config: *mut c_void) -> Status {
    assert!(config.is_null());
    log_call(format!("{}: kind {}", subscriber.0.addr(), kind.0))
}

unsafe extern "C" fn set_attribute_v2(
    subscriber: Subscriber,
    attribute: ActivityAttribute,
    size: *mut usize,
    value: *mut c_void,
) -> Status {
    // SAFETY: the caller's pointers are valid, and the attributes that gpuflame uses have one byte.
    let (size, value) = unsafe { (size.read(), value.cast::<u8>().read()) };
    log_call(format!("{}: attribute {} = {value} ({size} byte)", subscriber.0.addr(), attribute.0))
}

unsafe extern "C" fn next_record_v2(
    subscriber: Subscriber,
    buffer: *mut u8,
    valid: usize,
    record: *mut *mut u8,
) -> Status {
    assert_eq!(subscriber.0.addr(), 77);
    // SAFETY: the arguments come from our caller, and the same requirements apply to them.
    unsafe { next_record(buffer, valid, record) }
}

unsafe extern "C" fn dropped_v2(subscriber: Subscriber, _: *mut c_void, _: u32, count: *mut usize) -> Status {
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { count.write(with_state(|state| std::mem::take(&mut state.dropped))) };
    log_call(format!("{}: dropped", subscriber.0.addr()))
}

unsafe extern "C" fn timestamp_v2(subscriber: Subscriber, now: *mut u64) -> Status {
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { now.write(42) };
    log_call(format!("{}: timestamp", subscriber.0.addr()))
}

/// Returns the address of a CUDA graph as its id. If the address of a CUDA graph is odd, it stands for an unknown
/// graph.
unsafe extern "C" fn graph_id(graph: *mut c_void, id: *mut u32) -> Status {
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { id.write(graph.addr() as u32) };
    if graph.addr() % 2 == 1 { Status::INVALID_PARAMETER } else { Status::SUCCESS }
}

unsafe extern "C" fn graph_node_id(node: *mut c_void, id: *mut u64) -> Status {
    // SAFETY: the caller's pointer has room for the one value that is written here.
    unsafe { id.write(node.addr() as u64) };
    if node.addr() % 2 == 1 { Status::INVALID_PARAMETER } else { Status::SUCCESS }
}

/// Returns the function table of the fake CUPTI.
pub(super) fn library() -> Library {
    Library {
        get_version: Some(get_version),
        get_callback_name: Some(get_callback_name),
        subscribe: Some(subscribe),
        unsubscribe: Some(unsubscribe),
        enable_callback: Some(enable_callback),
        activity_register_callbacks: Some(register_callbacks),
        activity_enable: Some(enable),
        activity_enable_all_sync_records: Some(enable_all_sync_records),
        activity_configure_unified_memory_counter: Some(configure_unified_memory),
        activity_get_attribute: Some(get_attribute),
        activity_set_attribute: Some(set_attribute),
        activity_get_next_record: Some(next_record),
        activity_get_num_dropped_records: Some(dropped),
        activity_flush_all: Some(flush),
        get_timestamp: Some(timestamp),
        get_graph_id: Some(graph_id),
        get_graph_node_id: Some(graph_node_id),
        ..Library::default()
    }
}

/// Returns the fake's function table, which includes the functions of API version v2, which take a subscriber. The
/// subscriber has the value 77.
pub(super) fn sharing_library() -> Library {
    Library {
        subscribe_v2: Some(subscribe_v2),
        get_timestamp_v2: Some(timestamp_v2),
        activity_register_callbacks_v2: Some(register_callbacks_v2),
        activity_enable_v2: Some(enable_v2),
        activity_set_attribute_v2: Some(set_attribute_v2),
        activity_get_next_record_v2: Some(next_record_v2),
        activity_get_num_dropped_records_v2: Some(dropped_v2),
        ..library()
    }
}

/// Gives a test exclusive use of the fake CUPTI.
pub(super) struct FakeCupti {
    _alone: MutexGuard<'static, ()>,
}

impl FakeCupti {
    /// Resets the fake CUPTI. After the reset, the fake has the version `version` and refuses no call.
    pub(super) fn start(version: u32) -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        with_state(|state| *state = FakeState { version, ..FakeState::default() });
        Self { _alone: alone }
    }

    /// Makes the fake CUPTI return `status` for the call `what`. The call is written in the same form as in the call
    /// log.
    pub(super) fn refuse(&self, what: &str, status: Status) {
        with_state(|state| state.refusals.push((what.to_owned(), status)));
    }

    /// Makes the fake CUPTI accept all calls again.
    pub(super) fn accept_all(&self) {
        with_state(|state| state.refusals.clear());
    }

    /// Sets all attributes of the fake CUPTI to `value`, as if another client had set them.
    pub(super) fn set_attributes(&self, value: u8) {
        with_state(|state| state.attribute = value);
    }

    /// Makes the next query for dropped records return `count`.
    pub(super) fn drop_records(&self, count: usize) {
        with_state(|state| state.dropped = count);
    }

    /// Returns the calls that were made to the fake CUPTI since the call log was last read.
    pub(super) fn call_log(&self) -> Vec<String> {
        with_state(|state| std::mem::take(&mut state.call_log))
    }

    /// Makes the two callbacks for an API call: at the entry, and then at the exit, with the call's result. Returns the
    /// value of the word that the two callbacks share.
    pub(super) fn call(&self, domain: Domain, id: u32, correlation: u32, result: u32) -> u64 {
        self.call_with(domain, id, correlation, result, ptr::null())
    }

    /// Makes the two callbacks for an API call like `call`, but also passes the arguments of the API call.
    pub(super) fn call_with(
        &self,
        domain: Domain,
        id: u32,
        correlation: u32,
        result: u32,
        arguments: *const [usize; 2],
    ) -> u64 {
        let mut word = 0_u64;
        let mut data = CallbackData {
            site: Site::ENTER,
            function_name: c"call".as_ptr(),
            function_params: arguments.cast(),
            function_return_value: ptr::null(),
            symbol_name: c"_Z4gemmv".as_ptr(),
            context: ptr::null_mut(),
            context_uid: 1,
            correlation_data: &raw mut word,
            correlation_id: correlation,
        };
        self.event(domain, CallbackId(id), (&raw const data).cast());
        data.site = Site::EXIT;
        data.function_return_value = (&raw const result).cast();
        self.event(domain, CallbackId(id), (&raw const data).cast());
        word
    }

    /// Makes a callback that passes no data.
    pub(super) fn call_without_data(&self, domain: Domain, id: u32) {
        self.event(domain, CallbackId(id), ptr::null());
    }

    /// Makes a callback about a resource, without a descriptor of that resource.
    pub(super) fn resource(&self, id: CallbackId) {
        self.resource_with(id, ptr::null_mut());
    }

    fn resource_with(&self, id: CallbackId, descriptor: *mut c_void) {
        let data = ResourceData { context: ptr::null_mut(), stream: ptr::null_mut(), descriptor };
        self.event(Domain::RESOURCE, id, (&raw const data).cast());
    }

    /// Makes a callback about a CUDA graph.
    pub(super) fn graph(&self, id: CallbackId, graph: usize, node: usize, original: usize, exec: usize) {
        let at = |address: usize| ptr::without_provenance_mut::<c_void>(address);
        let graph = GraphData {
            graph: at(graph),
            original_graph: ptr::null_mut(),
            node: at(node),
            original_node: at(original),
            node_type: 0,
            dependency: ptr::null_mut(),
            graph_exec: at(exec),
        };
        self.resource_with(id, (&raw const graph).cast_mut().cast());
    }

    /// Makes a callback about a fatal error.
    pub(super) fn fatal(&self, result: Status, message: &CStr) {
        let state = StateData { result, message: message.as_ptr() };
        self.event(Domain::STATE, CallbackId::FATAL_ERROR, (&raw const state).cast());
    }

    fn event(&self, domain: Domain, id: CallbackId, data: *const c_void) {
        let (callback, userdata) = with_state(|state| state.callback).expect("no client has subscribed");
        // SAFETY: the callback and its pointer have not changed since the subscription, and the data has the type that
        // belongs to the domain.
        unsafe { callback(ptr::with_exposed_provenance_mut(userdata), domain, id, data) };
    }

    /// Requests a buffer from gpuflame, as CUPTI does.
    pub(super) fn request(&self) -> (*mut u8, usize) {
        let (mut start, mut size, mut most) = (ptr::null_mut(), 0, 1);
        let places = (&raw mut start, &raw mut size, &raw mut most);
        if let Some((requested, _)) = with_state(|state| state.own_buffers) {
            // SAFETY: the first three arguments are pointers to which the function can write.
            unsafe { requested(places.0, places.1, places.2, ptr::null_mut()) };
        } else {
            let (requested, _) = with_state(|state| state.buffers).expect("no buffer functions");
            // SAFETY: as above, the arguments are pointers to which the function can write.
            unsafe { requested(places.0, places.1, places.2) };
        }
        assert_eq!(most, 0, "as many records as fit");
        (start, size)
    }

    /// Returns a buffer to gpuflame that contains `records` activity records about fills.
    pub(super) fn complete(&self, (start, size): (*mut u8, usize), records: usize) {
        for record in 0..records {
            // SAFETY: the test has requested a buffer with room for these records.
            unsafe { start.add(record * RECORD_BYTES).cast::<u32>().write(2) };
        }
        let valid = records * RECORD_BYTES;
        if let Some((_, completed)) = with_state(|state| state.own_buffers) {
            let mut about = BufferCompleteInfo { struct_size: size_of::<BufferCompleteInfo>(), thread_id: 1 };
            // SAFETY: the buffer is not accessed after this call.
            return unsafe { completed(start, size, valid, &raw mut about) };
        }
        let (_, completed) = with_state(|state| state.buffers).expect("no buffer functions");
        // SAFETY: as above, the buffer is not accessed after this call.
        unsafe { completed(ptr::null_mut(), 0, start, size, valid) };
    }
}
