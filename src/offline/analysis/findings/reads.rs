//! Finds reads of values from the GPU, and computes the lead over the GPU that the host loses by each read.
//!
//! A thread that reads a value waits until the GPU has done all earlier work. So no work is queued when the read
//! returns. Until the host is ahead of the GPU again, the GPU waits for every launch by any thread. If the thread had
//! not read the value, the host would be ahead of the GPU by the time for which the read waited.

use super::super::work_spans::WorkSpan;
use super::thresholds::{MAX_READ_NS, MIN_QUEUED_NS};
use gpuflame_model::record::{ContextId, CopyKind, Work};

/// A copy to the host whose API call waited for the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    context: ContextId,
    /// Time at which the call of the read returned.
    end: u64,
    /// Time in ns for which the read waited for the GPU.
    waited: u64,
}

/// Returns the reads among the copies and fills in `others`, in the order in which they ended.
pub(super) fn reads(others: &[&WorkSpan]) -> Vec<Read> {
    let read = |span: &&WorkSpan| {
        let launched = span.launched().filter(|launched| launched.duration != u32::MAX)?;
        let nanos = span.end - span.start;
        let waited = u64::from(launched.duration).saturating_sub(nanos);
        let is_read =
            span.work == Work::Copy(CopyKind::DTOH) && nanos <= MAX_READ_NS && waited > MIN_QUEUED_NS;
        let end = launched.time.0.saturating_add(launched.duration.into());
        is_read.then_some(Read { context: launched.context, end, waited })
    };
    let mut reads: Vec<Read> = others.iter().filter_map(read).collect();
    reads.sort_unstable_by_key(|read| read.end);
    reads
}

/// Time by which the host would be ahead of the GPU if it had not made its recent reads.
#[derive(Debug)]
pub(super) struct Lead {
    reads: Vec<Read>,
    /// Index of the first read that returns after the launch of the kernel that was processed last.
    next: usize,
    /// Reads that the host made after it was last ahead of the GPU. In each of these reads, `waited` is the time that
    /// is not charged yet.
    lost: Vec<Read>,
}

impl Lead {
    pub(super) fn new(reads: Vec<Read>) -> Self {
        Self { reads, next: 0, lost: Vec::new() }
    }

    /// Processes the next kernel of the GPU. Call `advance` for each kernel, in the order of the kernels' starts. A
    /// kernel that was queued shows that the host is ahead again.
    pub(super) fn advance(&mut self, kernel: &WorkSpan) {
        let Some(launched) = kernel.launched() else { return };
        while let Some(read) = self.reads.get(self.next).filter(|read| read.end <= launched.time.0) {
            self.lost.push(*read);
            self.next += 1;
        }
        let returned = launched.time.0.saturating_add(launched.duration.into());
        if kernel.start > returned.saturating_add(MIN_QUEUED_NS) {
            self.lost.retain(|read| read.end > launched.time.0);
        }
    }

    /// Charges up to `late` ns to the read that waited longest. The charged time is limited to the total time in `lost`
    /// for which the reads waited.
    pub(super) fn take(&mut self, late: u64) -> Option<(ContextId, u64)> {
        let longest = self.lost.iter().max_by_key(|read| read.waited)?.context;
        let mut left = late;
        for read in &mut self.lost {
            let taken = read.waited.min(left);
            read.waited -= taken;
            left -= taken;
        }
        self.lost.retain(|read| read.waited > 0);
        (late > left).then_some((longest, late - left))
    }
}
