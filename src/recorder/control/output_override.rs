//! Destination of the outputs as chosen by the program itself, which overrides the settings.

use std::sync::{Mutex, PoisonError, TryLockError};

use gpuflame_config::Outputs;

static OUTPUTS: Mutex<Option<Outputs>> = Mutex::new(None);

/// Sets the destination of all outputs that are not written yet.
pub fn set(outputs: Outputs) {
    *OUTPUTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(outputs);
}

/// Returns the latest destination that the program chose; `None` if the program has not chosen. Never waits, because a
/// thread that is just calling [`set`] may never continue. Returns `None` while a thread is calling [`set`].
pub fn get() -> Option<Outputs> {
    match OUTPUTS.try_lock() {
        Ok(outputs) => outputs.clone(),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
        Err(TryLockError::WouldBlock) => None,
    }
}
