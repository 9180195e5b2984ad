//! Stores the output path prefix that the program itself has chosen, which overrides the prefix from the settings.

use std::sync::{Mutex, PoisonError, TryLockError};

use gpuflame_config::Outputs;

static OUTPUTS: Mutex<Option<Outputs>> = Mutex::new(None);

/// Sets the path prefix of all outputs that have not been written yet.
pub fn set(outputs: Outputs) {
    *OUTPUTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(outputs);
}

/// Returns the output path prefix that the program chose last. Returns `None` if the program has chosen no prefix, or
/// if another thread is currently inside [`set`]. This function does not wait for the thread inside [`set`], because
/// that thread may never run again.
pub fn get() -> Option<Outputs> {
    match OUTPUTS.try_lock() {
        Ok(outputs) => outputs.clone(),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
        Err(TryLockError::WouldBlock) => None,
    }
}
