//! Converts CUDA handles to the small integers with which activity records identify objects.

use crate::link;
use crate::replay;
use crate::result::{Code, INVALID_CONTEXT, INVALID_PARAMETER, INVALID_STREAM, answer, parameter};
use gpusim_core::arg::{Handle, Out};

/// Returns the id and the device of a CUDA context.
pub(crate) fn context_ids(context: Handle) -> Result<(u32, u32), Code> {
    let core = link::ready()?;
    let (mut uid, mut device) = (0, 0);
    if (core.context_ids)(context, &mut uid, &mut device) == 0 {
        Ok((uid, device))
    } else {
        Err(INVALID_CONTEXT)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetContextId(context: Handle, id: Out<u32>) -> Code {
    answer(context_ids(context).and_then(|(uid, _)| parameter(id.set(uid))))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetDeviceId(context: Handle, id: Out<u32>) -> Code {
    answer(context_ids(context).and_then(|(_, device)| parameter(id.set(device))))
}

fn stream_id(context: Handle, stream: Handle, per_thread: bool, id: Out<u32>) -> Result<(), Code> {
    let core = link::ready()?;
    let mut found = 0;
    match (core.stream_id)(context, stream, per_thread, &mut found) {
        0 => parameter(id.set(found)),
        _ => Err(INVALID_STREAM),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetStreamIdEx(context: Handle, stream: Handle, per_thread: u8, id: Out<u32>) -> Code {
    answer(stream_id(context, stream, per_thread != 0, id))
}

/// Returns the id of a stream; the handle 0 is the context's default stream.
#[unsafe(no_mangle)]
extern "C" fn cuptiGetStreamId(context: Handle, stream: Handle, id: Out<u32>) -> Code {
    answer(stream_id(context, stream, false, id))
}

macro_rules! graph_ids {
    ($($name:ident, $what:literal, $ty:ty;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(graph: Handle, id: Out<$ty>) -> Code {
            let find = || {
                let core = link::ready()?;
                if let Some(recorded) = replay::recorded_id(graph) {
                    return parameter(id.set(recorded as $ty));
                }
                let mut found = 0;
                match (core.graph_id)($what, graph, &mut found) {
                    0 => parameter(id.set(found as $ty)),
                    _ => Err(INVALID_PARAMETER),
                }
            };
            answer(find())
        }
    )*};
}

graph_ids! {
    cuptiGetGraphId, 0, u32;
    cuptiGetGraphNodeId, 1, u64;
    cuptiGetGraphExecId, 2, u32;
}
