//! Aborts the process where the real stack would crash or hang. Therefore a test that violates a rule of CUPTI fails
//! with a message instead of a timeout.

/// Prints `gpusim: MESSAGE` to stderr and aborts.
pub fn abort(message: std::fmt::Arguments<'_>) -> ! {
    eprintln!("gpusim: {message}");
    std::process::abort()
}

/// Aborts with a formatted message: `abort!("a launch while {reason}")`, see [`abort`].
#[macro_export]
macro_rules! abort {
    ($($arg:tt)*) => { $crate::fail::abort(format_args!($($arg)*)) };
}
