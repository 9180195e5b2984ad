//! What kernels are called.

use super::StringId;
use super::numbered::Numbered;

/// What kernels are called, by their numbers.
pub(super) type Kernels = Numbered<KernelName>;

/// What a kernel is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelName {
    /// As the tracer gave it.
    pub(super) symbol: StringId,
    /// As it is shown: demangled, once somebody has said how.
    pub(super) shown: Option<StringId>,
}

impl KernelName {
    pub(super) fn text(&self) -> StringId {
        self.shown.unwrap_or(self.symbol)
    }
}
