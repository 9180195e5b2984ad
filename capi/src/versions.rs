//! Declares symbol versions for the functions in the header. Because of these versions, a program that needs a function
//! that this library lacks fails when it starts, not when it first calls the function.

/// Declares in which version of the interface the functions with these names were added.
macro_rules! versioned {
    ($version:literal: $($name:ident)*) => {
        $(std::arch::global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@@", $version
        ));)*
    };
}

pub(crate) use versioned;
