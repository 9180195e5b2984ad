//! With GPUSIM_LOG=missing, prints the name of each function that the simulation lacks once to stderr, if a program
//! looks up or calls the function. This output helps the author of a new test program.

use crate::settings;
use crate::sync::lock;
use std::collections::HashSet;
use std::io::Write as _;
use std::sync::Mutex;

/// Prints the name of a missing function that a program looked up or called.
pub fn note(name: &str) {
    static NAMED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    if !settings::get().log_missing {
        return;
    }
    let mut named = lock(&NAMED);
    if named.get_or_insert_default().insert(name.to_owned()) {
        // Each name is written in a single write, because several processes may share stderr. `eprintln!` would write
        // one line with several writes.
        let line = format!("gpusim: {name} is not simulated\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Declares functions that are exported and fail with `cudaErrorNotSupported` for any arguments.
#[macro_export]
macro_rules! not_simulated {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)] // the C API requires this signature
        extern "C" fn $name() -> u32 {
            $crate::missing::note(stringify!($name));
            $crate::error::NOT_SUPPORTED
        }
    )*};
}
