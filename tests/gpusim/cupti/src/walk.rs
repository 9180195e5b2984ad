//! cuptiActivityGetNextRecord, with which a client reads the records in a delivered buffer. Only this code knows where
//! the next record begins.

use crate::activity;
use crate::link::{self, version};
use crate::replay;
use crate::result::{Code, INVALID_PARAMETER, MAX_LIMIT_REACHED, answer, parameter};
use crate::subscriber;
use gpusim_core::arg::{Handle, Out};
use gpusim_core::settings;

/// Kinds of kernel records.
const KERNELS: [u32; 2] = [3, 10];

fn next(
    subscriber: Option<Handle>,
    buffer: *const u8,
    valid: usize,
    record: Out<*const u8>,
) -> Result<(), Code> {
    link::loaded()?;
    subscriber::of_records(subscriber)?;
    let current = record.get().map_err(|_| INVALID_PARAMETER)?;
    if buffer.is_null() {
        return Err(INVALID_PARAMETER);
    }
    let offset = if current.is_null() { 0 } else { current as usize - buffer as usize + size_at(current)? };
    if offset >= valid {
        return Err(MAX_LIMIT_REACHED);
    }
    let next = buffer.wrapping_add(offset);
    size_at(next)?;
    // SAFETY: as in `size_at`, the pointer points to a record in a delivered buffer.
    let kind = unsafe { next.cast::<u32>().read_unaligned() };
    if KERNELS.contains(&kind) && settings::get().faults.read_hangs() {
        activity::hang();
    }
    parameter(record.set(next))
}

fn size_at(record: *const u8) -> Result<usize, Code> {
    // SAFETY: the caller passes a pointer to a record in a buffer that CUPTI has delivered.
    let kind = unsafe { record.cast::<u32>().read_unaligned() };
    replay::record_size(kind).or_else(|| version().record_size(kind)).ok_or_else(|| version().unknown_kind())
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetNextRecord(buffer: *const u8, valid: usize, record: Out<*const u8>) -> Code {
    answer_next(next(None, buffer, valid, record))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetNextRecord_v2(
    subscriber: Handle,
    buffer: *const u8,
    valid: usize,
    record: Out<*const u8>,
) -> Code {
    answer_next(next(Some(subscriber), buffer, valid, record))
}

/// Returns the result code of cuptiActivityGetNextRecord. The error that marks the end of a buffer is not stored as the
/// last error.
fn answer_next(result: Result<(), Code>) -> Code {
    if result == Err(MAX_LIMIT_REACHED) { MAX_LIMIT_REACHED } else { answer(result) }
}

/// Returns the size of an activity record. The struct version is ignored, because each simulated library version has
/// only one struct per activity kind.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetStructSize(kind: u32, _version: u32, size: Out<usize>) -> Code {
    let found = || {
        link::loaded()?;
        parameter(size.set(version().record_size(kind).ok_or_else(|| version().unknown_kind())?))
    };
    answer(found())
}
