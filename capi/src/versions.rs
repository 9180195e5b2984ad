//! Versions of the header's symbols: a program that was linked against a symbol that this library lacks fails when it
//! starts, not when it first calls the function.

/// Declares that the functions of these names were added in a version of the interface.
macro_rules! versioned {
    ($version:literal: $($name:ident)*) => {
        $(std::arch::global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@@", $version
        ));)*
    };
}

pub(crate) use versioned;
