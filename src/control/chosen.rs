//! Where the outputs go, if the program itself says so: that counts for more than the settings.

use std::sync::{Mutex, PoisonError, TryLockError};

use super::Outputs;

static OUTPUTS: Mutex<Option<Outputs>> = Mutex::new(None);

/// Has all outputs that are not written yet go there.
pub fn set(outputs: Outputs) {
    *OUTPUTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(outputs);
}

/// What was chosen last, if anything. Waits for nobody: a thread that is just choosing may never go on.
pub fn outputs() -> Option<Outputs> {
    match OUTPUTS.try_lock() {
        Ok(outputs) => outputs.clone(),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
        Err(TryLockError::WouldBlock) => None,
    }
}
