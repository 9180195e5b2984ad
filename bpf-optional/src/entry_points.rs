//! Finds the functions in a file that begin GPU work, to which probes will be attached.

use object::read::elf::{ElfFile64, FileHeader as _};
use object::{Endianness, Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};

/// Effect of a function to which a probe is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum EntryKind {
    /// The function launches kernels.
    Launch,
    /// The function launches a graph.
    Graph,
    /// The function copies or fills memory.
    Copy,
    /// The function is libgpuflame's `gpuflame_launch_marker`. The library inside the process calls this function with
    /// the correlation id of each launch.
    Marker,
    /// The user has named the function with `--uprobe`, so its effect on the GPU is unknown.
    Named,
}

/// A function to which a probe is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryPoint {
    pub(crate) name: String,
    pub(crate) kind: EntryKind,
    /// Offset of the function's code in the file, in bytes.
    pub(crate) offset: u64,
}

/// The functions in a file to which probes are attached, and the code in the file that belongs to CUDA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProbeTargets {
    pub(crate) entries: Vec<EntryPoint>,
    pub(crate) api: CudaExtent,
}

/// The code in a file that belongs to CUDA. A call from CUDA's code is nested, because CUDA makes the call while it
/// carries out another call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CudaExtent {
    /// The file is not one of CUDA's libraries.
    #[default]
    None,
    /// The whole file belongs to CUDA, because the file is `libcudart.so`, `libcuda.so` or `libcupti.so`.
    WholeFile,
    /// `libcudart_static.a` was linked into the file. The value contains the ranges of file offsets that contain the
    /// functions of `libcudart_static.a`, in ascending order.
    Parts(Vec<(u64, u64)>),
}

impl CudaExtent {
    /// Whether the code at `offset` in the file belongs to CUDA.
    pub(crate) fn contains(&self, offset: u64) -> bool {
        match self {
            Self::None => false,
            Self::WholeFile => true,
            Self::Parts(ranges) => {
                let at = ranges.partition_point(|(start, _)| *start <= offset);
                at > 0 && offset < ranges[at - 1].1
            }
        }
    }
}

const MARKER_FUNCTION: &str = "gpuflame_launch_marker";

/// Searches a file for CUDA's functions that begin GPU work, and for the functions that the user has named. `bytes` is
/// the content of the file.
pub(crate) fn find_entry_points(bytes: &[u8], named: &[&str]) -> Result<ProbeTargets, object::Error> {
    let elf = ElfFile64::<Endianness>::parse(bytes)?;
    let symbols = functions(&elf);
    let is_cuda_library = soname(&elf).is_some_and(|name| is_cuda(&name));
    let is_static = symbols.iter().any(|symbol| symbol.name == "cudaLaunchKernel");
    let mut entries: Vec<EntryPoint> = Vec::new();
    for symbol in &symbols {
        let kind = match symbol.name {
            MARKER_FUNCTION => Some(EntryKind::Marker),
            name if named.contains(&name) => Some(EntryKind::Named),
            name if is_cuda_library || is_static => classify(name),
            _ => None,
        };
        let Some(kind) = kind else { continue };
        // Even if a function has several names, it needs only one probe.
        if !entries.iter().any(|entry| entry.offset == symbol.offset) {
            entries.push(EntryPoint { name: symbol.name.to_owned(), kind, offset: symbol.offset });
        }
    }
    let api = match (is_cuda_library, is_static) {
        (true, _) => CudaExtent::WholeFile,
        (_, true) => CudaExtent::Parts(static_runtime_ranges(&symbols)),
        _ => CudaExtent::None,
    };
    Ok(ProbeTargets { entries, api })
}

/// Returns the effect of a CUDA function that begins GPU work, and `None` for any other function.
pub(crate) fn classify(symbol: &str) -> Option<EntryKind> {
    let bare = symbol.trim_start_matches('_');
    let verb = bare.strip_prefix("cuda").or_else(|| bare.strip_prefix("cu"))?;
    // Functions whose names contain one of these words start no GPU work. Such functions only query or describe
    // something, or run code on the host.
    const OTHERS: [&str; 6] = ["HostFunc", "Node", "Params", "Get", "Attribute", "Occupancy"];
    if OTHERS.iter().any(|word| verb.contains(word)) {
        None
    } else if verb.starts_with("Launch") {
        Some(EntryKind::Launch)
    } else if verb.starts_with("GraphLaunch") {
        Some(EntryKind::Graph)
    } else if ["Memcpy", "Memset", "MemPrefetch", "MemcpyBatch"].iter().any(|word| verb.starts_with(word)) {
        Some(EntryKind::Copy)
    } else {
        None
    }
}

/// Whether the library with this name is the CUDA runtime, the driver or CUPTI. CUPTI is included because CUDA calls
/// the callbacks of CUPTI.
fn is_cuda(name: &str) -> bool {
    ["libcudart.so", "libcuda.so", "libcupti.so"].iter().any(|library| name.starts_with(library))
}

struct FunctionSymbol<'a> {
    name: &'a str,
    offset: u64,
    size: u64,
}

/// A mapped part of a file: its first address, the address after its last byte, and its offset in the file.
pub(crate) type Segment = (u64, u64, u64);

/// Returns the mapped parts of the file whose content is `bytes`. If the file is not an ELF file, no parts are
/// returned.
pub(crate) fn segments(bytes: &[u8]) -> Vec<Segment> {
    ElfFile64::<Endianness>::parse(bytes).map(|elf| read_segments(&elf)).unwrap_or_default()
}

/// Returns the file offset that corresponds to a virtual address in the ELF file.
pub(crate) fn file_offset(segments: &[Segment], address: u64) -> Option<u64> {
    let segment = segments.iter().find(|(start, end, _)| (*start..*end).contains(&address))?;
    Some(address - segment.0 + segment.2)
}

fn read_segments(elf: &ElfFile64<'_>) -> Vec<Segment> {
    elf.segments()
        .map(|segment| (segment.address(), segment.address() + segment.size(), segment.file_range().0))
        .collect()
}

/// Returns the functions that the file defines in `.symtab` and `.dynsym`.
fn functions<'a>(elf: &ElfFile64<'a>) -> Vec<FunctionSymbol<'a>> {
    let segments = read_segments(elf);
    elf.symbols()
        .chain(elf.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| {
            let name = symbol.name().ok()?;
            // The name of a symbol may be followed by an `@` and a version.
            let name = name.split('@').next().unwrap_or(name);
            Some(FunctionSymbol {
                name,
                offset: file_offset(&segments, symbol.address())?,
                size: symbol.size(),
            })
        })
        .collect()
}

/// Returns the ranges of file offsets at which the functions of a static CUDA runtime are. The static CUDA runtime
/// consists of API functions and of internal functions with meaningless names.
fn static_runtime_ranges(symbols: &[FunctionSymbol<'_>]) -> Vec<(u64, u64)> {
    let is_part = |name: &str| {
        name.starts_with("cuda") || name.starts_with("__cuda") || name.starts_with("libcudart_static_")
    };
    let mut parts: Vec<(u64, u64)> = symbols
        .iter()
        .filter(|symbol| is_part(symbol.name))
        .map(|symbol| (symbol.offset, symbol.offset + symbol.size))
        .collect();
    parts.sort_unstable();
    parts
}

/// Returns the name that is stored in a library as its own name (`DT_SONAME`).
fn soname(elf: &ElfFile64<'_>) -> Option<String> {
    let endian = elf.endian();
    let (header, data) = (elf.elf_header(), elf.data());
    let sections = header.sections(endian, data).ok()?;
    let (entries, link) = sections.dynamic(endian, data).ok()??;
    let strings = sections.strings(endian, data, link).ok()?;
    use object::read::elf::Dyn as _;
    let name =
        entries.iter().find(|entry| entry.tag32(endian).map(i64::from) == Some(object::elf::DT_SONAME))?;
    Some(String::from_utf8_lossy(name.string(endian, strings).ok()?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_points_are_classified_by_name() {
        for (name, kind) in [
            ("cudaLaunchKernel", Some(EntryKind::Launch)),
            ("cudaLaunchKernel_ptsz", Some(EntryKind::Launch)),
            ("__cudaLaunchKernel", Some(EntryKind::Launch)),
            ("cudaLaunchKernelExC", Some(EntryKind::Launch)),
            ("cuLaunchCooperativeKernelMultiDevice", Some(EntryKind::Launch)),
            ("cuLaunchGrid", Some(EntryKind::Launch)),
            ("cuGraphLaunch_ptsz", Some(EntryKind::Graph)),
            ("cuMemcpyHtoDAsync_v2", Some(EntryKind::Copy)),
            ("cudaLaunchHostFunc", None),
            ("cudaGraphAddMemcpyNode", None),
            ("cudaMalloc", None),
            ("cudaGraphInstantiate", None),
        ] {
            assert_eq!(classify(name), kind, "{name}");
        }
    }

    #[test]
    fn a_static_runtime_occupies_part_of_its_file() {
        let api = CudaExtent::Parts(vec![(100, 120), (200, 300)]);
        assert!(
            api.contains(100)
                && api.contains(299)
                && !api.contains(120)
                && !api.contains(99)
                && !api.contains(300)
        );
        assert!(!CudaExtent::None.contains(100) && CudaExtent::WholeFile.contains(100));
    }
}
