//! Stores the path prefix of the outputs that the program itself has chosen, which overrides the prefix from the
//! settings.

use std::sync::{Mutex, PoisonError, TryLockError};

use gpuflame_config::Outputs;

static OUTPUTS: Mutex<Option<Outputs>> = Mutex::new(None);

/// Sets the path prefix of all outputs that are not written yet.
pub fn set(outputs: Outputs) {
    *OUTPUTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(outputs);
}

/// Returns the path prefix that the program chose last. Returns `None` if the program has chosen no prefix, or if a
/// thread is inside [`set`] at this moment. This function does not wait for that thread, because the thread may never
/// continue.
pub fn get() -> Option<Outputs> {
    match OUTPUTS.try_lock() {
        Ok(outputs) => outputs.clone(),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
        Err(TryLockError::WouldBlock) => None,
    }
}
