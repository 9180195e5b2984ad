//! Stores the names of kernels, by id.

use super::StringId;
use super::dense_id_map::DenseIdMap;

/// Names of kernels by id.
pub(super) type Kernels = DenseIdMap<KernelName>;

/// Name of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelName {
    /// Name of the kernel as the tracer reported it.
    pub(super) symbol: StringId,
    /// Displayed name of the kernel, usually demangled; `None` until it has been set.
    pub(super) shown: Option<StringId>,
}

impl KernelName {
    pub(super) fn text(&self) -> StringId {
        self.shown.unwrap_or(self.symbol)
    }
}
