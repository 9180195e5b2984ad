//! Finds, for each edge of the path, the resource that limits it. HTA calls this resource the bound of the edge.

use super::events::HtaEvents;
use super::graph::{Edge, EdgeType};

/// Resource that limits an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HtaBound {
    /// The host: the edge is time that passes on the host.
    Cpu,
    /// The edge is the duration of a kernel, copy or fill.
    Compute,
    /// The edge is the duration of a collective.
    Communication,
    /// The edge is a gap between two operations on a stream.
    KernelGap,
    /// The edge is the time from a launch call to the start of its work.
    Launch,
    /// No resource limits the edge, because the weight of the edge is 0.
    None,
}

impl HtaBound {
    /// Returns the name that HTA uses for the bound.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu_bound",
            Self::Compute => "gpu_compute_bound",
            Self::Communication => "gpu_communication_bound",
            Self::KernelGap => "gpu_kernel_kernel_overhead",
            Self::Launch => "gpu_kernel_launch_overhead",
            Self::None => "",
        }
    }
}

/// Returns the resource that limits an edge.
pub(super) fn bound_by(events: &HtaEvents, edge: &Edge) -> HtaBound {
    let attributed = || edge.attributed.map(|row| &events.rows[row as usize]);
    match edge.kind {
        EdgeType::KernelDelay => HtaBound::KernelGap,
        EdgeType::LaunchDelay => HtaBound::Launch,
        EdgeType::Dependency | EdgeType::Sync => HtaBound::None,
        EdgeType::Operator => match attributed() {
            Some(row) if row.stream.is_some() => match is_communication(&short_name(events.name(row.name))) {
                true => HtaBound::Communication,
                false => HtaBound::Compute,
            },
            _ => HtaBound::Cpu,
        },
    }
}

fn is_communication(name: &str) -> bool {
    ["nccl", "hip", "hccl"].iter().any(|start| name.starts_with(start)) || name.contains("ncclKernel")
}

/// Returns a kernel's name without template arguments, parameters and return type, as HTA does.
fn short_name(name: &str) -> String {
    let is_memory =
        ["Memcpy", "Memset", "hipMemcpy", "hipMemset", "dma"].iter().any(|start| name.starts_with(start));
    if is_memory || !name.contains(['<', '(']) {
        return name.to_owned();
    }
    let mut kept = String::new();
    for letter in name.replace("->", "").chars() {
        let open = match letter {
            '>' => '<',
            ')' => '(',
            _ => {
                kept.push(letter);
                continue;
            }
        };
        kept.truncate(kept.rfind(open).unwrap_or(0));
    }
    kept.rsplit(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_arguments_and_the_return_type() {
        assert_eq!(short_name("void lib::gemm<float, (int)4>(int*)"), "lib::gemm");
        assert_eq!(short_name("ncclDevKernel_AllReduce(ncclArgs<4096ul>)"), "ncclDevKernel_AllReduce");
        assert_eq!(short_name("Memcpy HtoD (Pageable -> Device)"), "Memcpy HtoD (Pageable -> Device)");
        assert!(is_communication("ncclDevKernel_AllReduce") && !is_communication("void_nccl"));
    }
}
