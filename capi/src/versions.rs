//! The version of each symbol of the header: a program that was linked against one that this library does not have is told
//! so when it starts, and not when it first calls it.

/// Says that functions of this name came with a version of the interface.
macro_rules! versioned {
    ($version:literal: $($name:ident)*) => {
        $(std::arch::global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@@", $version
        ));)*
    };
}

pub(crate) use versioned;
