//! What the driver API is told of a node: its structs, and the work they mean.

use crate::arg::Handle;
use crate::error::{CuError, INVALID_VALUE};
use crate::gpu::Order;
use crate::graph::What;
use crate::host_fn::HostFn;
use crate::kernel::Kernel;
use crate::memory::{self, Corner, Cuboid};
use crate::work::{Copy, Place};

/// CUDA_KERNEL_NODE_PARAMS_v2
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API's fields
pub struct KernelNode {
    pub function: Handle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub params: *mut Handle,
    pub extra: *mut Handle,
    pub kernel: Handle,
    pub context: Handle,
}

const _: () = assert!(size_of::<KernelNode>() == 72, "the driver API's size");

/// CUDA_MEMSET_NODE_PARAMS
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API's fields
pub struct MemsetNode {
    pub target: u64,
    pub pitch: usize,
    pub value: u32,
    pub element_bytes: u32,
    pub width: usize,
    pub height: usize,
}

/// CUDA_HOST_NODE_PARAMS
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API's fields
pub struct HostNode {
    pub function: Option<HostFn>,
    pub data: Handle,
}

/// CUgraphExecUpdateResultInfo
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API's fields
pub struct UpdateResult {
    /// 0 it worked, 2 the graphs do not match.
    pub result: u32,
    pub node: Handle,
    pub from_node: Handle,
}

impl KernelNode {
    /// The work.
    pub fn what(&self) -> Result<What, CuError> {
        let handle = if self.function.is_null() { self.kernel } else { self.function };
        let kernel = Kernel::of_handle(handle).ok_or(INVALID_VALUE)?;
        Ok(What::Work(Order::kernel(kernel, self.grid, self.block, self.shared_bytes)))
    }
}

impl Cuboid {
    /// `bytes` from one address to another.
    pub fn line(target: u64, source: u64, bytes: usize) -> Cuboid {
        let (source, target) = (Corner::unified(source, bytes, 1), Corner::unified(target, bytes, 1));
        Cuboid { source, target, width: bytes, height: 1, depth: 1 }
    }

    /// The work.
    pub fn what(&self) -> What {
        let (target, source) = (self.target.address(), self.source.address());
        let bytes = (self.width * self.height.max(1) * self.depth.max(1)) as u64;
        let place = |address| Place { device: memory::device_of(address).unwrap_or(0), context: 0 };
        let direction = memory::direction(target, source);
        What::Work(match direction {
            Copy::PtoP => Order::peer(place(source), place(target), bytes, true),
            Copy::HtoD | Copy::HtoA => Order::memcpy(direction, memory::kind_of(source), bytes, true),
            _ => Order::memcpy(direction, memory::kind_of(target), bytes, true),
        })
    }
}

impl MemsetNode {
    /// The work.
    pub fn what(&self) -> What {
        let bytes = self.width * self.element_bytes as usize * self.height.max(1);
        What::Work(Order::memset(bytes as u64, self.value, memory::kind_of(self.target), true))
    }
}
