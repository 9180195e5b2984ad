//! Imitates CUDA API calls without CUDA: builds the arguments that the tracer's callback receives.
#![allow(dead_code, unreachable_pub)] // Each test binary uses only a part of this module.

use std::cell::Cell;
use std::hint::black_box;

use gpuflame_cupti::tracer::{ApiCallId, Call, CallKind, Layer, Tracer as _};
use gpuflame_model::record::CorrelationId;
use gpuflame_recorder::capture::Capture;

/// Returns a runtime API call in the form in which the tracer passes it to the callback.
pub fn make_call(kind: CallKind, correlation: u32, slot: &Cell<u64>, return_value: u32) -> Call<'_> {
    Call {
        kind,
        api: ApiCallId(3),
        layer: Layer::Runtime,
        correlation: CorrelationId(correlation),
        slot,
        return_value,
        symbol_name: std::ptr::null(),
    }
}

/// Imitates a successful launch, from enter to exit. As in the tracer, the call's description is in a separate stack
/// frame.
#[inline(never)]
pub fn launch(id: u32) {
    let slot = Cell::new(0);
    let call = make_call(CallKind::Launch, id, &slot, 0);
    Capture::enter(&call);
    Capture::exit(&call);
    black_box(());
}
