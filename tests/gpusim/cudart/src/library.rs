//! Kernel libraries that a program loads with cudaLibraryLoadData: only their kernels are supported.

use crate::runtime_api::check;
use gpusim_core::arg::{Handle, In, Out, Text};

runtime_api! {
    cudaLibraryLoadData @ 470 |driver, _own| (
        library: Out<Handle>, code: Handle, jit_options: In<u32>, jit_values: In<Handle>, jit_count: u32,
        options: In<u32>, values: In<Handle>, count: u32,
    ) {
        driver.context()?;
        check((driver.cuLibraryLoadData)(
            library, code, jit_options, jit_values, jit_count, options, values, count,
        ))
    }

    cudaLibraryUnload @ 472 |driver, _own| (library: Handle) { check((driver.cuLibraryUnload)(library)) }

    cudaLibraryGetKernel @ 473 |driver, _own| (kernel: Out<Handle>, library: Handle, name: Text) {
        check((driver.cuLibraryGetKernel)(kernel, library, name))
    }
}

gpusim_core::not_simulated! {
    cudaLibraryLoadFromFile
    cudaLibraryGetGlobal
    cudaLibraryGetManaged
    cudaLibraryGetUnifiedFunction
    cudaLibraryGetKernelCount
}
