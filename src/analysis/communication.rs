//! What moves data between GPUs, and how much of its time the GPU computed nothing meanwhile: *exposed* communication is
//! what a job would be faster by if all of it lay behind computation.
//!
//! Kernels are told by their names (or by what a trace says of them), since nothing else tells them. They wait for their
//! peers as well as they move data, which their times do not tell apart.

use std::collections::{BTreeMap, BTreeSet};

use crate::events::JoinedActivity;
use crate::profile::{Place, add_to, saturating_sum};
use crate::record::{CopyKind, DeviceId, Work};

/// Parts of names, in lower case, of kernels that communicate: of NCCL and RCCL, NVSHMEM, DeepEP, MSCCL++, and of what
/// frameworks have of their own (vLLM, sglang, TensorRT-LLM, PyTorch's symmetric memory, AMD's quick reduce).
const KNOWN: [&str; 22] = [
    "nccl",
    "rccl",
    "nvshmem",
    "rocshmem",
    "deep_ep",
    "internode::",
    "intranode::",
    "internode_ll::",
    "mscclpp",
    "msccl",
    "cross_device_reduce",
    "multimem_",
    "symm_mem",
    "one_shot_all",
    "two_shot_all",
    "quickreduce",
    "quick_reduce",
    "allreduce",
    "allgather",
    "reducescatter",
    "alltoall",
    "userbuffers",
];
/// The same words in names of what a block or a warp does by itself.
const NOT: [&str; 3] = ["warpallreduce", "blockallreduce", "threadallreduce"];

/// How communication is told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Parts of names of kernels, whatever their case; where there are any these are all.
    pub patterns: Vec<String>,
    /// Kernels that the trace itself calls collectives.
    pub collectives: BTreeSet<String>,
}

impl Told {
    /// Whether a kernel of this name communicates.
    pub fn is_kernel(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        if !self.patterns.is_empty() {
            return self.patterns.iter().any(|pattern| lower.contains(&pattern.to_ascii_lowercase()));
        }
        self.collectives.contains(name) || is_known(&lower)
    }

    /// Whether this work does, whose name is `name`. A copy from GPU to GPU does, unless there are patterns.
    pub fn is_communication(&self, work: Work, name: &str) -> bool {
        match work {
            Work::Kernel(_) => self.is_kernel(name),
            Work::Copy(kind) => kind == CopyKind::PTOP && self.patterns.is_empty(),
            Work::Set | Work::Graph => false,
        }
    }
}

fn is_known(lower: &str) -> bool {
    let joined: String = lower.chars().filter(|c| *c != '_').collect();
    let is = |text: &str| KNOWN.iter().any(|word| text.contains(word));
    !NOT.iter().any(|word| joined.contains(word)) && (is(lower) || is(&joined))
}

/// What a piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It moves data between GPUs.
    Communication,
    /// A kernel that does not.
    Computation,
    /// A copy or a fill.
    Memory,
}

/// How much a GPU communicated, ns. What ran side by side counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Communication {
    /// When any communication ran.
    pub all: u64,
    /// When it ran and no computation did.
    pub exposed: u64,
    /// When any computation ran.
    pub computation: u64,
}

/// What a stack had its GPUs communicate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// How long its operations took, each by itself.
    pub nanos: u64,
    /// How many those were.
    pub count: u64,
    /// Its part of the exposed time: of what runs side by side the one that began first has it.
    pub exposed: u64,
}

impl Share {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            nanos: self.nanos + other.nanos,
            count: self.count + other.count,
            exposed: self.exposed + other.exposed,
        }
    }
}

/// By GPU and by stack, over `activities`, which stand in the order of their starts.
pub fn communication<'a>(
    activities: impl Iterator<Item = &'a JoinedActivity>,
    doing: impl Fn(&JoinedActivity) -> Doing,
    place: impl Fn(&JoinedActivity) -> Place,
) -> (BTreeMap<DeviceId, Communication>, BTreeMap<Place, Share>) {
    let mut devices: BTreeMap<DeviceId, Device> = BTreeMap::new();
    for event in activities {
        let device = devices.entry(event.activity.device).or_default();
        let (start, end) = (event.activity.start.0, event.activity.end.0);
        if event.activity.duration().is_none_or(|nanos| nanos == 0) {
            continue;
        }
        match doing(event) {
            Doing::Communication => device.communicates.push((start, end, place(event))),
            Doing::Computation => device.computes.add(start, end),
            Doing::Memory => {}
        }
    }
    let mut places: BTreeMap<Place, Share> = BTreeMap::new();
    let found = devices.into_iter().map(|(id, device)| (id, device.sum(&mut places))).collect();
    (found, places)
}

#[derive(Debug, Default)]
struct Device {
    communicates: Vec<(u64, u64, Place)>,
    computes: Union,
}

impl Device {
    fn sum(self, places: &mut BTreeMap<Place, Share>) -> Communication {
        let mut sum = Communication { computation: self.computes.nanos(), ..Communication::default() };
        let mut done = 0;
        let mut first = 0;
        for (start, end, place) in self.communicates {
            let share = places.entry(place).or_default();
            add_to(&mut share.nanos, end - start);
            share.count += 1;
            let from = start.max(done);
            if from < end {
                let hidden = self.computes.within(from, end, &mut first);
                add_to(&mut share.exposed, end - from - hidden);
                add_to(&mut sum.exposed, end - from - hidden);
                add_to(&mut sum.all, end - from);
                done = end;
            }
        }
        sum
    }
}

/// When any of several things ran: apart, and in order.
#[derive(Debug, Default)]
struct Union(Vec<(u64, u64)>);

impl Union {
    /// Adds one that begins no earlier than those before.
    fn add(&mut self, start: u64, end: u64) {
        match self.0.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => self.0.push((start, end)),
        }
    }

    fn nanos(&self) -> u64 {
        saturating_sum(self.0.iter().map(|(start, end)| end - start))
    }

    /// How much of `from..to` it covers. `first` is where to look; times that are asked for only ever go up.
    fn within(&self, from: u64, to: u64, first: &mut usize) -> u64 {
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

    #[test]
    fn kernels_that_communicate_are_told_by_their_names() {
        let told = Told::default();
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
            assert!(told.is_kernel(name), "{name}");
        }
        for name in [
            "void at::native::reduce_kernel<512, 1>()",
            "void BlockAllReduce<float>()",
            "oneflow::cuda::softmax::WarpAllReduceKernel",
            "sm90_xmma_gemm_bf16bf16",
            "void at::native::elementwise_kernel<128, 4, gather>()",
        ] {
            assert!(!told.is_kernel(name), "{name}");
        }
        let told = Told { patterns: vec!["Mine".into()], collectives: ["nccl".to_owned()].into() };
        assert!(told.is_kernel("my_mine_kernel") && !told.is_kernel("nccl"), "patterns are all there is");
        let told = Told { collectives: ["odd name".to_owned()].into(), ..Told::default() };
        assert!(told.is_kernel("odd name") && told.is_kernel("ncclX"), "the trace says so");
        assert!(told.is_communication(Work::Copy(CopyKind::PTOP), "PtoP"));
        assert!(!told.is_communication(Work::Copy(CopyKind::HTOD), "HtoD"));
    }

    #[test]
    fn what_a_union_covers_of_a_stretch_is_found_in_one_pass() {
        let mut union = Union::default();
        for (start, end) in [(10, 20), (15, 18), (20, 30), (50, 60)] {
            union.add(start, end);
        }
        assert_eq!((union.nanos(), union.0.len()), (30, 2));
        let mut first = 0;
        let asked = [(0, 5, 0), (5, 12, 2), (12, 55, 23), (29, 51, 2), (60, 90, 0)];
        for (from, to, expected) in asked {
            assert_eq!(union.within(from, to, &mut first), expected, "{from}..{to}");
        }
    }
}
