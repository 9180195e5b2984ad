//! Recognizes the collective or message that a communication kernel executes. The name of the kernel, and the operators
//! that launched it, show which collective or message the kernel executes.

use gpuflame_explain::communication::is_communication_kernel;
use gpuflame_traces::execution::Values;

use super::{GpuNode, LinkedTrace};

/// Kind of communication that a GPU node executes. The codes for collectives are defined by Chakra.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Communication {
    /// A message that is sent to another rank.
    Send,
    /// A message that is received from another rank.
    Receive,
    /// A collective, with its `CollectiveCommType` if this type follows from the names.
    Collective(Option<u64>),
}

/// Substrings of the names of kernels and operators, each with the code of `CollectiveCommType` for which it stands.
/// The characters `_` and `-` are removed from names before the search.
const COLLECTIVES: [(&str, u64); 7] = [
    ("allreduce", 0),
    ("reducescatter", 7),
    ("allgather", 2),
    ("alltoall", 6),
    ("broadcast", 5),
    ("barrier", 9),
    ("reduce", 1),
];

/// Returns the kind of communication of a GPU node, its size in bytes, and its process group. Returns `None` if the
/// node does not communicate.
pub fn communication(linked: &LinkedTrace<'_>, gpu: &GpuNode) -> Option<(Communication, u64, String)> {
    let work = linked.work(gpu);
    let name = linked.kineto.name(work.name);
    if !is_communication_kernel(name) {
        return None;
    }
    // Operators that enclose the launch, innermost first, for example `nccl:all_to_all` in `record_param_comms` in
    // `c10d::alltoall_base_`.
    let callers = callers(linked, gpu.parent);
    let names: Vec<String> =
        callers.iter().map(|at| squeezed(&linked.trace.nodes[*at].name.decode())).collect();
    let kernel = squeezed(name);
    // An all-to-all, a send and a receive run the same kernel, so only the names of the operators distinguish these
    // three. For collectives other than all-to-all, the kernel's name is the best evidence.
    let is_point_to_point = kernel.contains("sendrecv");
    let all = names.iter().map(String::as_str);
    let texts: Vec<&str> =
        if is_point_to_point { all.collect() } else { std::iter::once(&*kernel).chain(all).collect() };
    let has = |word: &str| names.iter().any(|name| name.contains(word));
    let collective = texts
        .iter()
        .find_map(|text| COLLECTIVES.iter().find(|(word, _)| text.contains(word)).map(|(_, number)| *number));
    let what = match collective {
        None if is_point_to_point && has("send") => Communication::Send,
        None if is_point_to_point && has("recv") => Communication::Receive,
        None if is_point_to_point => Communication::Collective(Some(6)),
        number => Communication::Collective(number),
    };
    let group = work.process_group.map(|group| linked.kineto.name(group).to_owned());
    let group = group.or_else(|| {
        let named = callers.iter().map(|at| linked.trace.nodes[*at].pg_name);
        named.map(|name| name.decode().into_owned()).find(|name| !name.is_empty())
    });
    let bytes =
        callers.iter().map(|at| tensor_bytes(&linked.trace.nodes[*at].inputs)).find(|bytes| *bytes > 0);
    Some((what, bytes.unwrap_or(0), group.unwrap_or_default()))
}

/// Returns the names of the operator that launched the GPU work and of up to three of its callers.
fn callers(linked: &LinkedTrace<'_>, parent: usize) -> Vec<usize> {
    const MAX_CALLERS: usize = 4;
    let next = |at: &usize| linked.trace.nodes[*at].parent;
    let executed = |at: &usize| linked.trace.nodes[*at].rf_id.is_some();
    std::iter::successors(Some(parent), next).take_while(executed).take(MAX_CALLERS).collect()
}

fn squeezed(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).collect::<String>().to_lowercase()
}

/// Returns the total size in bytes of the tensors among the values. A tensor is given as a list of six fields: id,
/// storage id, offset, number of elements, bytes per element, and device.
pub fn tensor_bytes(values: &Values<'_>) -> u64 {
    let mut bytes = 0_u64;
    for list in values.values.split('[').skip(1) {
        let Some((list, _)) = list.split_once(']') else { continue };
        let fields: Vec<&str> = list.split(',').map(str::trim).collect();
        if let [_, _, _, count, size, device] = fields[..]
            && device.starts_with('"')
            && let (Ok(count), Ok(size)) = (count.parse::<u64>(), size.parse::<u64>())
        {
            bytes = bytes.saturating_add(count.saturating_mul(size));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_all_tensors_are_summed() {
        for (values, bytes) in [
            (r#"[[5,6,0,1000,4,"cuda:0"],[7,8,0,10,2,"cuda:0"],1,[1,2,3]]"#, 4020),
            (r#"[[[5, 6, 0, 8, 4, "cuda:0"]], 151, "allreduce", []]"#, 32),
            ("[]", 0),
            (r#"[[1,2,3,4,5,6], "[1,2,3,4,5,x]"]"#, 0),
        ] {
            assert_eq!(tensor_bytes(&Values { values, ..Values::default() }), bytes, "{values}");
        }
    }
}
