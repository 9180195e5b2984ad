//! Destination of the outputs as chosen by the program itself, which overrides the settings.

use std::sync::{Mutex, PoisonError, TryLockError};

use super::Outputs;

static OUTPUTS: Mutex<Option<Outputs>> = Mutex::new(None);

/// Sets the destination of all outputs that are not written yet.
pub fn set(outputs: Outputs) {
    *OUTPUTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(outputs);
}

/// Returns the latest choice, if there is one. Never waits: a thread that is just choosing may never
/// continue. Returns `None` in that case.
pub fn outputs() -> Option<Outputs> {
    match OUTPUTS.try_lock() {
        Ok(outputs) => outputs.clone(),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
        Err(TryLockError::WouldBlock) => None,
    }
}
