//! CUPTI's result codes, their names, and the conversion of a `Result` to a result code.

use gpusim_core::arg::{Out, Text};
use std::cell::Cell;
use std::ffi::CStr;

/// A CUptiResult other than success.
pub(crate) type Code = u32;

pub(crate) const INVALID_PARAMETER: Code = 1;
pub(crate) const INVALID_CONTEXT: Code = 3;
pub(crate) const PARAMETER_SIZE_NOT_SUFFICIENT: Code = 10;
pub(crate) const MAX_LIMIT_REACHED: Code = 12;
pub(crate) const NOT_COMPATIBLE: Code = 14;
pub(crate) const QUEUE_EMPTY: Code = 18;
pub(crate) const INVALID_STREAM: Code = 20;
pub(crate) const INVALID_KIND: Code = 21;
pub(crate) const NOT_SUPPORTED: Code = 27;
pub(crate) const MULTIPLE_SUBSCRIBERS: Code = 39;

const NAMES: [(Code, &CStr); 15] = [
    (0, c"CUPTI_SUCCESS"),
    (INVALID_PARAMETER, c"CUPTI_ERROR_INVALID_PARAMETER"),
    (2, c"CUPTI_ERROR_INVALID_DEVICE"),
    (INVALID_CONTEXT, c"CUPTI_ERROR_INVALID_CONTEXT"),
    (PARAMETER_SIZE_NOT_SUFFICIENT, c"CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT"),
    (MAX_LIMIT_REACHED, c"CUPTI_ERROR_MAX_LIMIT_REACHED"),
    (NOT_COMPATIBLE, c"CUPTI_ERROR_NOT_COMPATIBLE"),
    (15, c"CUPTI_ERROR_NOT_INITIALIZED"),
    (QUEUE_EMPTY, c"CUPTI_ERROR_QUEUE_EMPTY"),
    (INVALID_STREAM, c"CUPTI_ERROR_INVALID_STREAM"),
    (INVALID_KIND, c"CUPTI_ERROR_INVALID_KIND"),
    (NOT_SUPPORTED, c"CUPTI_ERROR_NOT_SUPPORTED"),
    (35, c"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
    (MULTIPLE_SUBSCRIBERS, c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"),
    (999, c"CUPTI_ERROR_UNKNOWN"),
];

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(0) };
}

/// Returns the result code of an exported function, and stores it for cuptiGetLastError.
pub(crate) fn answer(result: Result<(), Code>) -> Code {
    let code = result.err().unwrap_or(0);
    if code != 0 {
        LAST.set(code);
    }
    code
}

/// Converts the error for an [`Out`] argument that is NULL to CUPTI's error code.
pub(crate) fn parameter(set: Result<(), u32>) -> Result<(), Code> {
    set.map_err(|_| INVALID_PARAMETER)
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetLastError() -> Code {
    LAST.take()
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetResultString(code: Code, text: Out<Text>) -> Code {
    let Some((_, name)) = NAMES.iter().find(|(c, _)| *c == code) else { return INVALID_PARAMETER };
    answer(parameter(text.set(Text(name.as_ptr()))))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetErrorMessage(code: Code, text: Out<Text>) -> Code {
    cuptiGetResultString(code, text)
}
