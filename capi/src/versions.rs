//! Declares symbol versions for the functions in the header. If a program needs a function that this library does not
//! have, the symbol versions make the program fail when it starts. Without symbol versions, the program would fail when
//! it first calls the function.

/// Declares, for each listed function, the version of the interface in which the function was added.
macro_rules! versioned {
    ($version:literal: $($name:ident)*) => {
        $(std::arch::global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@@", $version
        ));)*
    };
}

pub(crate) use versioned;
