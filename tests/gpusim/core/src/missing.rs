//! What is not simulated: named once on stderr with GPUSIM_LOG=missing, so that who brings a new program sees what it
//! lacks.

use crate::settings;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// A program asked for, or called, a function of this name.
pub fn note(name: &str) {
    static NAMED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    if !settings::get().log_missing {
        return;
    }
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if named.get_or_insert_default().insert(name.to_owned()) {
        eprintln!("gpusim: {name} is not simulated");
    }
}

/// Functions that are exported and fail with `cudaErrorNotSupported`, whatever they are given.
#[macro_export]
macro_rules! not_simulated {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)] // the C API's
        extern "C" fn $name() -> u32 {
            $crate::missing::note(stringify!($name));
            $crate::error::NOT_SUPPORTED
        }
    )*};
}
