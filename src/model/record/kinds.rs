//! Defines types for kinds (such as kinds of memory) that are stored as numbers. A newer tracer or a later version of
//! gpuflame may add kinds. So these types keep a number that this version does not know unchanged.

/// Generates a type from a list of kinds. For each kind, the type has a constant and a word that is displayed for the
/// kind. Numbers that are not in the list are displayed as the word after `else`.
macro_rules! kinds {
    (
        $(#[$about:meta])* $name:ident($number:ty) {
            $($(#[$doc:meta])* $kind:ident = $value:literal, $text:literal;)*
        } else $other:literal
        $(#[$shown:meta])* $word:ident
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $number);

        impl $name {
            $($(#[$doc])* pub const $kind: Self = Self($value);)*

            $(#[$shown])*
            pub fn $word(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => $other,
                }
            }
        }
    };
}

pub(super) use kinds;
