//! Symbol versions of the functions that the header declares. If a program needs a function that this library lacks,
//! the versions make the program fail when it starts, not when it first calls the function.

/// Declares the version of the interface in which the functions with these names were added.
macro_rules! versioned {
    ($version:literal: $($name:ident)*) => {
        $(std::arch::global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@@", $version
        ));)*
    };
}

pub(crate) use versioned;
