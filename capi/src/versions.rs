//! Versions of the symbols that the header declares. With versioned symbols, a program that needs a function which this
//! library lacks fails when the program starts, not when it first calls the function.

/// Declares that the functions of these names were added in a version of the interface.
macro_rules! versioned {
    ($version:literal: $($name:ident)*) => {
        $(std::arch::global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@@", $version
        ));)*
    };
}

pub(crate) use versioned;
