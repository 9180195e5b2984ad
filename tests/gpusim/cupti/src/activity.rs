//! CUPTI's activity functions for kinds, buffers, flushing, attributes and clocks. The module `walk` reads the records
//! in a buffer.

use crate::buffers::{Completed, CompletedV2, Functions, Requested, RequestedV2};
use crate::callbacks::HOOKS;
use crate::ids::context_ids;
use crate::lanes::THREAD_IDS_ARE_SYSTEM;
use crate::link::{self, version};
use crate::result::{Code, INVALID_KIND, INVALID_PARAMETER, NOT_COMPATIBLE, NOT_SUPPORTED};
use crate::result::{PARAMETER_SIZE_NOT_SUFFICIENT, QUEUE_EMPTY, answer, parameter};
use crate::subscriber::{self, ALL, Subscriber};
use crate::{client_clock, contexts, external, sim_lock, worker};
use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::layout::WORK_KINDS;
use gpusim_core::table::ClientClock;
use gpusim_core::thread::Client;
use gpusim_core::version::kind;
use gpusim_core::{clock, settings};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Activity kinds for CUPTI events and metrics, which CUPTI versions after 13.0 reject.
const GONE: [u32; 15] = [6, 7, 14, 15, 16, 21, 23, 24, 29, 30, 31, 32, 41, 42, 43];

/// Activity kinds that cannot be enabled for a single CUDA context. The records of these kinds contain no CUDA context,
/// except the records of the kind for whole graphs.
const OF_NO_CONTEXT: [u32; 5] = [
    kind::DRIVER,
    kind::RUNTIME,
    kind::UNIFIED_MEMORY_COUNTER,
    kind::EXTERNAL_CORRELATION,
    kind::GRAPH_TRACE,
];

/// Whether one client records whole graphs while the other client records graph nodes.
fn mixes_graph_levels(one: &Subscriber, kinds: u64) -> bool {
    let whole = |kinds: u64| kinds & (1 << kind::GRAPH_TRACE) != 0;
    let others = ALL.iter().filter(|other| other.place != one.place).map(|other| other.kinds.load(Relaxed));
    kinds & WORK_KINDS != 0
        && others.filter(|kinds| kinds & WORK_KINDS != 0).any(|other| whole(other) != whole(kinds))
}

/// Checks that the activity kind exists and that no fault of GPUSIM_FAULTS makes the call fail.
fn check_kind(kind: u32, on: bool) -> Result<(), Code> {
    if kind == 0
        || kind > version().last_kind()
        || (version().has_own_stub_launch_id() && GONE.contains(&kind))
    {
        return Err(version().unknown_kind());
    }
    settings::get().faults.enable_result(kind).filter(|_| on).map_or(Ok(()), Err)
}

fn set_kind(subscriber: Option<Handle>, kind: u32, on: bool) -> Result<(), Code> {
    let core = link::ready()?;
    let _lock = sim_lock::hold("cuptiActivityEnable");
    let one = subscriber::of_records(subscriber)?;
    check_kind(kind, on)?;
    if on {
        if mixes_graph_levels(one, one.kinds.load(Relaxed) | 1 << kind) {
            return Err(NOT_COMPATIBLE);
        }
        (core.attach)(&HOOKS);
        worker::start();
        one.kinds.fetch_or(1 << kind, Relaxed);
    } else {
        one.kinds.fetch_and(!(1 << kind), Relaxed);
    }
    subscriber::renew_kinds();
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnable(kind: u32) -> Code {
    answer(set_kind(None, kind, true))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityDisable(kind: u32) -> Code {
    answer(set_kind(None, kind, false))
}

/// Enables an activity kind. The configuration is ignored, because the simulation does not interpret it.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnable_v2(subscriber: Handle, kind: u32, _configuration: Handle) -> Code {
    answer(set_kind(Some(subscriber), kind, true))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityDisable_v2(subscriber: Handle, kind: u32, _configuration: Handle) -> Code {
    answer(set_kind(Some(subscriber), kind, false))
}

fn set_kind_of_context(context: Handle, kind: u32, on: bool) -> Result<(), Code> {
    let core = link::ready()?;
    let (context, _) = context_ids(context)?;
    let _lock = sim_lock::hold("cuptiActivityEnableContext");
    subscriber::of_records(None)?;
    check_kind(kind, on)?;
    if OF_NO_CONTEXT.contains(&kind) {
        return Err(INVALID_KIND);
    }
    if on {
        (core.attach)(&HOOKS);
        worker::start();
    }
    contexts::say(context, kind, on);
    subscriber::renew_kinds();
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableContext(context: Handle, kind: u32) -> Code {
    answer(set_kind_of_context(context, kind, true))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityDisableContext(context: Handle, kind: u32) -> Code {
    answer(set_kind_of_context(context, kind, false))
}

fn register(subscriber: Option<Handle>, functions: Option<Functions>) -> Result<(), Code> {
    link::loaded()?;
    let _lock = sim_lock::hold("cuptiActivityRegisterCallbacks");
    let functions = functions.ok_or(INVALID_PARAMETER)?;
    subscriber::of_records(subscriber)?.buffers.register(functions);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityRegisterCallbacks(
    requested: Option<Requested>,
    completed: Option<Completed>,
) -> Code {
    let both = requested.zip(completed);
    answer(register(None, both.map(|(requested, completed)| Functions::Global(requested, completed))))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityRegisterCallbacks_v2(
    subscriber: Handle,
    requested: Option<RequestedV2>,
    completed: Option<CompletedV2>,
) -> Code {
    let both = requested.zip(completed);
    answer(register(
        Some(subscriber),
        both.map(|(requested, completed)| Functions::Own(requested, completed)),
    ))
}

const FORCED: u32 = 1;

fn flush_all(flag: u32) -> Result<(), Code> {
    let core = link::ready()?;
    let client = (core.client)();
    if !matches!(client, Client::None | Client::ApiCallback) {
        gpusim_core::abort!(
            "cuptiActivityFlushAll inside the client's {client:?}: the real one deadlocks here"
        );
    }
    if !core.switches.api_seen.load(Relaxed) {
        eprintln!(
            "gpusim: cuptiActivityFlushAll before any CUDA call: it hangs for ever, as the real one was seen to"
        );
        hang();
    }
    if settings::get().faults.flush_hangs() {
        hang();
    }
    drop(sim_lock::hold("cuptiActivityFlushAll"));
    FLUSHES.fetch_add(1, SeqCst);
    std::thread::sleep(Duration::from_nanos(settings::get().flush_ns));
    worker::flush(flag & FORCED != 0);
    FLUSHES.fetch_sub(1, SeqCst);
    Ok(())
}

/// Number of cuptiActivityFlushAll calls in progress.
static FLUSHES: AtomicUsize = AtomicUsize::new(0);

/// Aborts if a cuptiActivityFlushAll call is in progress, because cuptiFinalize frees buffers that this call reads.
pub(crate) fn check_no_flush() {
    if FLUSHES.load(SeqCst) > 0 {
        gpusim_core::abort!("cuptiFinalize while another thread is in cuptiActivityFlushAll");
    }
}

pub(crate) fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityFlushAll(flag: u32) -> Code {
    answer(flush_all(flag))
}

/// The flush period has no effect, because the worker immediately delivers buffers that are full and complete.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivityFlushPeriod(_ms: u32) -> Code {
    answer(link::ready().map(drop))
}

fn dropped(subscriber: Option<Handle>, dropped: Out<usize>) -> Result<(), Code> {
    link::ready()?;
    let _lock = sim_lock::hold("cuptiActivityGetNumDroppedRecords");
    parameter(dropped.set(subscriber::of_records(subscriber)?.buffers.take_dropped() as usize))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetNumDroppedRecords(_context: Handle, _stream: u32, number: Out<usize>) -> Code {
    answer(dropped(None, number))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetNumDroppedRecords_v2(
    subscriber: Handle,
    _context: Handle,
    _stream: u32,
    number: Out<usize>,
) -> Code {
    answer(dropped(Some(subscriber), number))
}

/// Attributes with a 1-byte value; all other attributes have a size_t value. The only attribute with an effect in the
/// simulation is [`PER_THREAD`].
const BYTE_ATTRIBUTES: [u32; 3] = [5, 8, 9];
const PER_THREAD: u32 = 9;
const LAST_ATTRIBUTE: u32 = 9;

/// Returns the size of an attribute's value in bytes; returns an error if the client's buffer is smaller.
fn attribute_size(attribute: u32, size: Out<usize>) -> Result<usize, Code> {
    link::ready()?;
    let unknown = attribute > LAST_ATTRIBUTE || (attribute == PER_THREAD && !version().has_thread_buffers());
    let given = size.get().map_err(|_| INVALID_PARAMETER)?;
    let needed = if BYTE_ATTRIBUTES.contains(&attribute) { 1 } else { size_of::<usize>() };
    match unknown {
        true => Err(INVALID_PARAMETER),
        false if given < needed => Err(PARAMETER_SIZE_NOT_SUFFICIENT),
        false => Ok(needed),
    }
}

fn set_attribute(
    subscriber: Option<Handle>,
    attribute: u32,
    size: Out<usize>,
    value: Handle,
) -> Result<(), Code> {
    let bytes = attribute_size(attribute, size)?;
    let one = subscriber::of_records(subscriber)?;
    let read = if bytes == 1 {
        In(value.cast::<u8>()).get().map(usize::from)
    } else {
        In(value.cast::<usize>()).get()
    };
    let value = read.map_err(|_| INVALID_PARAMETER)?;
    if attribute == PER_THREAD {
        one.per_thread().store(value != 0, Relaxed);
    }
    one.attributes[attribute as usize].store(value, Relaxed);
    Ok(())
}

fn get_attribute(
    subscriber: Option<Handle>,
    attribute: u32,
    size: Out<usize>,
    value: Handle,
) -> Result<(), Code> {
    let bytes = attribute_size(attribute, size)?;
    let one = subscriber::of_records(subscriber)?;
    parameter(size.set(bytes))?;
    let stored = match attribute {
        PER_THREAD => usize::from(one.per_thread().load(Relaxed)),
        _ => one.attributes[attribute as usize].load(Relaxed),
    };
    parameter(if bytes == 1 {
        Out(value.cast::<u8>()).set(stored as u8)
    } else {
        Out(value.cast()).set(stored)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivitySetAttribute(attribute: u32, size: Out<usize>, value: Handle) -> Code {
    answer(set_attribute(None, attribute, size, value))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetAttribute(attribute: u32, size: Out<usize>, value: Handle) -> Code {
    answer(get_attribute(None, attribute, size, value))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivitySetAttribute_v2(
    subscriber: Handle,
    attribute: u32,
    size: Out<usize>,
    value: Handle,
) -> Code {
    answer(set_attribute(Some(subscriber), attribute, size, value))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetAttribute_v2(
    subscriber: Handle,
    attribute: u32,
    size: Out<usize>,
    value: Handle,
) -> Code {
    answer(get_attribute(Some(subscriber), attribute, size, value))
}

/// Sets the client's clock for records that are made later. The times of records that are already in a buffer stay on
/// the earlier clock.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivityRegisterTimestampCallback(clock: Option<ClientClock>) -> Code {
    answer(link::ready().and_then(|_| clock.ok_or(INVALID_PARAMETER)).map(client_clock::register))
}

fn timestamp(time: Out<u64>) -> Result<(), Code> {
    link::loaded()?;
    let now = link::core().map_or_else(clock::realtime, |core| core.switches.client_time(clock::realtime));
    parameter(time.set(now))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetTimestamp(time: Out<u64>) -> Code {
    answer(timestamp(time))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetTimestamp_v2(subscriber: Handle, time: Out<u64>) -> Code {
    answer(subscriber::of_records(Some(subscriber)).and_then(|_| timestamp(time)))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetVersion(number: Out<u32>) -> Code {
    answer(link::loaded().and_then(|()| parameter(number.set(version().api_version()))))
}

const SYSTEM: u32 = 1;

#[unsafe(no_mangle)]
extern "C" fn cuptiSetThreadIdType(what: u32) -> Code {
    answer(link::ready().map(|_| THREAD_IDS_ARE_SYSTEM.store(what == SYSTEM, Relaxed)))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetThreadIdType(what: Out<u32>) -> Code {
    let system = u32::from(THREAD_IDS_ARE_SYSTEM.load(Relaxed));
    answer(link::ready().and_then(|_| parameter(what.set(system))))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityPushExternalCorrelationId(kind: u32, id: u64) -> Code {
    answer(link::on_thread().map(|()| external::push(kind, id)))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityPopExternalCorrelationId(kind: u32, last: Out<u64>) -> Code {
    let pop = || {
        link::on_thread()?;
        last.set_if_wanted(external::pop(kind).ok_or(QUEUE_EMPTY)?);
        Ok(())
    };
    answer(pop())
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableCudaEventDeviceTimestamps(_on: u8) -> Code {
    answer(link::ready().map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableLatencyTimestamps(_on: u8) -> Code {
    answer(link::ready().map(drop))
}

/// This call succeeds but has no effect, because the simulation makes activity records for all API calls or for none.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableRuntimeApi(_id: u32, _on: u8) -> Code {
    answer(link::ready().map(drop))
}

/// This call succeeds but has no effect, because the simulation makes activity records for all API calls or for none.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableDriverApi(_id: u32, _on: u8) -> Code {
    answer(link::ready().map(drop))
}

/// CUpti_ActivityUnifiedMemoryCounterConfig
#[repr(C)]
#[derive(Clone, Copy)]
struct UnifiedConfig {
    scope: u32,
    kind: u32,
    device: u32,
    enable: u32,
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityConfigureUnifiedMemoryCounter(configs: In<UnifiedConfig>, count: u32) -> Code {
    let configure = || {
        let core = link::ready()?;
        for at in 0..count as usize {
            let config = In(configs.0.wrapping_add(at)).get().map_err(|_| INVALID_PARAMETER)?;
            if config.scope == 0 || config.kind == 0 || config.kind > 8 {
                return Err(INVALID_PARAMETER);
            }
            let counted = &core.switches.counted;
            counted.fetch_and(!(1 << config.kind), Relaxed);
            counted.fetch_or(u32::from(config.enable != 0) << config.kind, Relaxed);
        }
        Ok(())
    };
    answer(configure())
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableAllSyncRecords(on: u8) -> Code {
    answer(link::ready().map(|core| core.switches.all_syncs.store(on != 0, Relaxed)))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableHWTrace(_on: u8) -> Code {
    answer(link::ready().and(Err(NOT_SUPPORTED)))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableDeviceGraph(_on: u8) -> Code {
    answer(link::ready().and(Err(NOT_SUPPORTED)))
}
