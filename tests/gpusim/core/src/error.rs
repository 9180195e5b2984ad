//! Error codes of the driver API. Runtime errors and driver errors have the same codes. Each error has a driver name, a
//! runtime name, and a description.

use std::ffi::CStr;

/// A CUresult other than success.
pub type CuError = u32;

macro_rules! errors {
    ($($name:ident = $code:literal, $driver:literal, $runtime:literal, $text:literal;)*) => {
        $(#[allow(missing_docs)] pub const $name: CuError = $code;)*

        const TABLE: &[(CuError, &CStr, &CStr, &CStr)] = &[$(($code, $driver, $runtime, $text)),*];
    };
}

errors! {
    SUCCESS = 0, c"CUDA_SUCCESS", c"cudaSuccess", c"it worked";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"cudaErrorInvalidValue", c"an argument is wrong";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"cudaErrorMemoryAllocation", c"no device memory left";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"cudaErrorInitializationError", c"cuInit was not called";
    DEINITIALIZED = 4, c"CUDA_ERROR_DEINITIALIZED", c"cudaErrorCudartUnloading", c"the driver has shut down";
    INVALID_CONFIGURATION = 9, c"CUDA_ERROR_UNKNOWN", c"cudaErrorInvalidConfiguration", c"impossible grid or block";
    INSUFFICIENT_DRIVER = 35, c"CUDA_ERROR_UNKNOWN", c"cudaErrorInsufficientDriver", c"the driver is older than the runtime";
    INVALID_DEVICE_FUNCTION = 98, c"CUDA_ERROR_UNKNOWN", c"cudaErrorInvalidDeviceFunction", c"no kernel registered for this function";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"cudaErrorNoDevice", c"there is no device";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"cudaErrorInvalidDevice", c"no device of this number";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"cudaErrorDeviceUninitialized", c"no current context, or a destroyed one";
    OPERATING_SYSTEM = 304, c"CUDA_ERROR_OPERATING_SYSTEM", c"cudaErrorOperatingSystem", c"the operating system refused";
    FILE_NOT_FOUND = 301, c"CUDA_ERROR_FILE_NOT_FOUND", c"cudaErrorFileNotFound", c"no such file";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"cudaErrorInvalidResourceHandle", c"not a handle of this kind";
    ILLEGAL_STATE = 401, c"CUDA_ERROR_ILLEGAL_STATE", c"cudaErrorIllegalState", c"not in this state";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"cudaErrorSymbolNotFound", c"no such symbol";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"cudaErrorNotReady", c"work is still running";
    LAUNCH_OUT_OF_RESOURCES = 701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"cudaErrorLaunchOutOfResources", c"the launch asks for too much";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"cudaErrorNotSupported", c"not simulated";
    CAPTURE_UNSUPPORTED = 900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"cudaErrorStreamCaptureUnsupported", c"not while capturing";
    CAPTURE_UNMATCHED = 903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"cudaErrorStreamCaptureUnmatched", c"this stream did not begin the capture";
    UPDATE_FAILURE = 910, c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", c"cudaErrorGraphExecUpdateFailure", c"the graphs do not match";
    UNKNOWN = 999, c"CUDA_ERROR_UNKNOWN", c"cudaErrorUnknown", c"something else";
}

/// Returns the driver's name for an error, such as `CUDA_ERROR_NO_DEVICE`, and the error's description.
pub fn driver_name(code: CuError) -> Option<(&'static CStr, &'static CStr)> {
    TABLE.iter().find(|row| row.0 == code).map(|row| (row.1, row.3))
}

/// Returns the runtime's name for an error, such as `cudaErrorNoDevice`, and the error's description.
pub fn runtime_name(code: CuError) -> Option<(&'static CStr, &'static CStr)> {
    TABLE.iter().find(|row| row.0 == code).map(|row| (row.2, row.3))
}

/// Converts a result to the code that the C API returns.
pub fn code(result: Result<(), CuError>) -> u32 {
    result.err().unwrap_or(SUCCESS)
}
