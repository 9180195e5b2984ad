//! Reads the calls in which threads wait for each other, from exports of Nsight Systems (`nsys profile --trace=osrt`).
//!
//! Other functions of the operating system are skipped, because most of these functions do not affect the order of CUDA
//! calls. Waits inside a CUDA call are skipped, because CUDA takes locks internally. Waits on threads that make no CUDA
//! calls are skipped, too. By default, Nsight Systems does not record calls of less than 1 us, such as the release of a
//! lock.

use super::Text;
use super::model::*;
use super::nsys::NsysReader;
use super::nsys_columns::{process_of, thread_of};
use super::sqlite::{integer, text};
use gpuflame_model::error::Result;

/// Functions in which threads wait for each other.
const THREAD_WAITS: [&str; 4] =
    ["pthread_barrier_wait", "pthread_join", "pthread_mutex_lock", "pthread_mutex_unlock"];

impl<S: Sink> NsysReader<'_, S> {
    /// Reads the calls in which threads wait for other threads. Call this function after the calls to CUDA were read.
    pub(super) fn read_thread_waits(&mut self) -> Result<()> {
        let table = "OSRT_API";
        self.cuda_calls.sort();
        let name = self.name_of(table, &["nameId"]);
        self.for_each_row(table, &name, &["start", "end", "globalTid"], |reader, row| {
            let is_wait = |name: &&&str| text(row, 0) == Some(name.as_bytes());
            let Some(name) = THREAD_WAITS.iter().find(is_wait) else { return true };
            let (Some(start), Some(end)) = (integer(row, 1), integer(row, 2)) else { return false };
            let Some(thread) = integer(row, 3).filter(|id| reader.cuda_calls.is_between(*id, start)) else {
                return true;
            };
            reader.sink.event(&Event::Call(Call {
                name: Text::from(*name),
                start,
                end,
                process: process_of(Some(thread)),
                thread: thread_of(Some(thread)),
                ..Call::default()
            }));
            true
        })
    }
}
