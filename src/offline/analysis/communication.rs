//! Measures the communication between GPUs. The *exposed* part of the communication is the time in which a GPU
//! communicated but did not compute. If all communication overlapped with computation, the job would take less time,
//! and the exposed time would be saved.
//!
//! Communication kernels are recognised by their names or by marks in the trace, because nothing else identifies them.
//! A communication kernel also waits for its peer GPUs. The duration of a communication kernel includes both the
//! waiting and the moving of data.

use std::collections::{BTreeMap, BTreeSet};

use gpuflame_explain::communication::is_communication_kernel;
use gpuflame_explain::events::JoinedActivity;
use gpuflame_model::profile::{SampleSite, add_to, saturating_sum};
use gpuflame_model::record::{CopyKind, DeviceId, Work};

/// Criteria that identify communication kernels.
#[derive(Clone, Debug, Default)]
pub struct CommunicationFilter {
    /// Substrings of kernel names, matched case-insensitively. If `patterns` is not empty, all other criteria are
    /// ignored.
    pub patterns: Vec<String>,
    /// Names of kernels that the trace marks as collectives.
    pub collectives: BTreeSet<String>,
}

impl CommunicationFilter {
    /// Whether a kernel with this name is a communication kernel.
    pub fn is_communication_kernel(&self, name: &str) -> bool {
        if !self.patterns.is_empty() {
            let lower = name.to_ascii_lowercase();
            return self.patterns.iter().any(|pattern| lower.contains(&pattern.to_ascii_lowercase()));
        }
        self.collectives.contains(name) || is_communication_kernel(name)
    }

    /// Whether the operation `work` with this name counts as communication. A copy between GPUs counts as
    /// communication, unless the filter has `patterns`.
    pub fn is_communication(&self, work: Work, name: &str) -> bool {
        match work {
            Work::Kernel(_) => self.is_communication_kernel(name),
            Work::Copy(kind) => kind == CopyKind::PTOP && self.patterns.is_empty(),
            Work::Set | Work::Graph => false,
        }
    }

    /// Returns the class (communication, computation or memory) of the operation `work` with this name.
    pub fn class(&self, work: Work, name: &str) -> WorkClass {
        match work {
            _ if self.is_communication(work, name) => WorkClass::Communication,
            Work::Copy(_) | Work::Set => WorkClass::Memory,
            Work::Kernel(_) if AMD_COPY_KERNELS.iter().any(|start| name.starts_with(start)) => {
                WorkClass::Memory
            }
            Work::Kernel(_) | Work::Graph => WorkClass::Computation,
        }
    }
}

/// Prefixes of the names of the kernels with which AMD's runtime copies and fills memory.
const AMD_COPY_KERNELS: [&str; 2] = ["__amd_rocclr_copy", "__amd_rocclr_fill"];

/// Class of a GPU operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkClass {
    /// An operation that moves data between GPUs.
    Communication,
    /// A kernel that is neither communication nor a memory operation, or a graph.
    Computation,
    /// A copy or a fill. AMD's runtime may use kernels for copies and fills.
    Memory,
}

/// Communication and computation times of a GPU, in ns. If several operations of one class overlap, their common time
/// counts only once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Communication {
    /// Time in which at least one communication operation ran.
    pub all: u64,
    /// Time in which communication ran but no computation ran.
    pub exposed: u64,
    /// Time in which at least one computation ran.
    pub computation: u64,
}

/// Sums of the communication operations that one stack launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackShare {
    /// Total duration of the stack's communication operations, in ns.
    pub nanos: u64,
    /// Number of the stack's communication operations.
    pub count: u64,
    /// The stack's share of the exposed communication time, in ns. If several communication operations run at the same
    /// time, the exposed time is assigned to the operation that began first.
    pub exposed: u64,
}

impl StackShare {
    /// Returns the sum of `self` and `other`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            nanos: self.nanos + other.nanos,
            count: self.count + other.count,
            exposed: self.exposed + other.exposed,
        }
    }
}

/// Sums communication times for each GPU and for each stack. `activities` must be sorted by start.
pub fn sum_communication(
    activities: impl Iterator<Item = JoinedActivity>,
    classify: impl Fn(&JoinedActivity) -> WorkClass,
    place: impl Fn(&JoinedActivity) -> SampleSite,
) -> (BTreeMap<DeviceId, Communication>, BTreeMap<SampleSite, StackShare>) {
    sum_spans(activities.map(|event| {
        let activity = &event.activity;
        let end = if activity.duration().is_none() { activity.start } else { activity.end };
        (activity.device, activity.start.0, end.0, classify(&event), place(&event))
    }))
}

/// Sums communication times as [`sum_communication`] does. Each operation is given as (device, start, end, class,
/// stack).
pub(super) fn sum_spans(
    spans: impl Iterator<Item = (DeviceId, u64, u64, WorkClass, SampleSite)>,
) -> (BTreeMap<DeviceId, Communication>, BTreeMap<SampleSite, StackShare>) {
    let mut devices: BTreeMap<DeviceId, DeviceSpans> = BTreeMap::new();
    for (device, start, end, class, place) in spans {
        let device = devices.entry(device).or_default();
        if end <= start {
            continue;
        }
        match class {
            WorkClass::Communication => device.communication.push((start, end, place)),
            WorkClass::Computation => device.computation.add(start, end),
            WorkClass::Memory => {}
        }
    }
    let mut places: BTreeMap<SampleSite, StackShare> = BTreeMap::new();
    let found = devices.into_iter().map(|(id, device)| (id, device.into_sums(&mut places))).collect();
    (found, places)
}

#[derive(Debug, Default)]
struct DeviceSpans {
    communication: Vec<(u64, u64, SampleSite)>,
    computation: SpanUnion,
}

impl DeviceSpans {
    fn into_sums(self, places: &mut BTreeMap<SampleSite, StackShare>) -> Communication {
        let mut sum = Communication { computation: self.computation.nanos(), ..Communication::default() };
        let mut covered_until = 0;
        let mut first = 0;
        for (start, end, place) in self.communication {
            let share = places.entry(place).or_default();
            add_to(&mut share.nanos, end - start);
            share.count += 1;
            let from = start.max(covered_until);
            if from < end {
                let hidden = self.computation.overlap(from, end, &mut first);
                add_to(&mut share.exposed, end - from - hidden);
                add_to(&mut sum.exposed, end - from - hidden);
                add_to(&mut sum.all, end - from);
                covered_until = end;
            }
        }
        sum
    }
}

/// Union of time spans, stored as disjoint spans sorted by start.
#[derive(Debug, Default)]
struct SpanUnion(Vec<(u64, u64)>);

impl SpanUnion {
    /// Adds a span. Spans must be added in the order of their starts.
    fn add(&mut self, start: u64, end: u64) {
        match self.0.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => self.0.push((start, end)),
        }
    }

    fn nanos(&self) -> u64 {
        saturating_sum(self.0.iter().map(|(start, end)| end - start))
    }

    /// Returns the total time in ns in which the union overlaps `from..to`. The search begins at index `first`, and
    /// each call moves `first` forward. Therefore successive calls of `overlap` must pass spans in ascending order.
    fn overlap(&self, from: u64, to: u64, first: &mut usize) -> u64 {
        while self.0.get(*first).is_some_and(|(_, end)| *end <= from) {
            *first += 1;
        }
        let inside = self.0[*first..].iter().take_while(|(start, _)| *start < to);
        saturating_sum(inside.map(|(start, end)| to.min(*end) - from.max(*start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::NameId;

    #[test]
    fn communication_kernels_are_recognised_by_name() {
        let filter = CommunicationFilter::default();
        for name in [
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclKernel_ReduceScatter_RING_LL_Sum_float",
            "void nvshmemi_transfer_quiet<(threadgroup_t)0>()",
            "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)",
            "void internode::combine<true>()",
            "void mscclpp::allgather6<float>()",
            "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(RankData*)",
            "void sglang::cross_device_reduce_1stage<half, 4>()",
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
            "multimem_all_reduce_kernel",
            "void c10d::symmetric_memory::one_shot_all_reduce_kernel<8>()",
            "void allReduceTwoShot<1>()",
        ] {
            assert!(filter.is_communication_kernel(name), "{name}");
        }
        for name in [
            "void at::native::reduce_kernel<512, 1>()",
            "void BlockAllReduce<float>()",
            "oneflow::cuda::softmax::WarpAllReduceKernel",
            "sm90_xmma_gemm_bf16bf16",
            "void at::native::elementwise_kernel<128, 4, gather>()",
        ] {
            assert!(!filter.is_communication_kernel(name), "{name}");
        }
        let filter =
            CommunicationFilter { patterns: vec!["Mine".into()], collectives: ["nccl".to_owned()].into() };
        assert!(
            filter.is_communication_kernel("my_mine_kernel") && !filter.is_communication_kernel("nccl"),
            "patterns replace all other criteria"
        );
        let filter = CommunicationFilter {
            collectives: ["odd name".to_owned()].into(),
            ..CommunicationFilter::default()
        };
        assert!(
            filter.is_communication_kernel("odd name") && filter.is_communication_kernel("ncclX"),
            "marked by the trace"
        );
        assert!(filter.is_communication(Work::Copy(CopyKind::PTOP), "PtoP"));
        let class = |name| filter.class(Work::Kernel(NameId(0)), name);
        assert_eq!(class("__amd_rocclr_copyBuffer"), WorkClass::Memory);
        assert_eq!(class("__amd_rocclr_fillBufferAligned"), WorkClass::Memory);
        assert_eq!(class("my__amd_rocclr_copyBuffer"), WorkClass::Computation);
        assert_eq!(class("ncclX"), WorkClass::Communication);
        assert!(!filter.is_communication(Work::Copy(CopyKind::HTOD), "HtoD"));
    }

    #[test]
    fn the_overlap_of_ascending_spans_with_a_union_is_found_in_one_pass() {
        let mut union = SpanUnion::default();
        for (start, end) in [(10, 20), (15, 18), (20, 30), (50, 60)] {
            union.add(start, end);
        }
        assert_eq!((union.nanos(), union.0.len()), (30, 2));
        let mut first = 0;
        let asked = [(0, 5, 0), (5, 12, 2), (12, 55, 23), (29, 51, 2), (60, 90, 0)];
        for (from, to, expected) in asked {
            assert_eq!(union.overlap(from, to, &mut first), expected, "{from}..{to}");
        }
    }
}
