//! Which functions of a file begin GPU work: those that probes are put on.

use object::read::elf::{ElfFile64, FileHeader as _};
use object::{Endianness, Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};

/// What a probed function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Starts kernels.
    Launch,
    /// Starts a graph.
    Graph,
    /// Copies or fills.
    Copy,
    /// Tells correlation ids: `gpuflame_launch_marker`.
    Marker,
    /// What the user named.
    Named,
}

/// A function to put a probe on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Where its code lies in the file.
    pub(crate) offset: u64,
}

/// What a file is to us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) entries: Vec<Entry>,
    pub(crate) api: Api,
}

/// Whether calls that come out of the file are a part of a call that went into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Api {
    /// None of CUDA's libraries.
    #[default]
    None,
    /// All of it is CUDA's: `libcudart.so`, `libcuda.so`, `libcupti.so`.
    Whole,
    /// `libcudart_static.a` was linked into it: these ranges of the file are its functions, in order.
    Parts(Vec<(u64, u64)>),
}

impl Api {
    /// Whether code at `offset` of the file is CUDA's own.
    pub(crate) fn holds(&self, offset: u64) -> bool {
        match self {
            Self::None => false,
            Self::Whole => true,
            Self::Parts(ranges) => {
                let at = ranges.partition_point(|(start, _)| *start <= offset);
                at > 0 && offset < ranges[at - 1].1
            }
        }
    }
}

const MARKER: &str = "gpuflame_launch_marker";

/// Looks into a file that lies in `bytes`, for CUDA's functions and those that the user named.
pub(crate) fn find(bytes: &[u8], named: &[&str]) -> Result<Found, object::Error> {
    let elf = ElfFile64::<Endianness>::parse(bytes)?;
    let symbols = functions(&elf);
    let is_whole = soname(&elf).is_some_and(|name| is_cuda(&name));
    let is_static = symbols.iter().any(|symbol| symbol.name == "cudaLaunchKernel");
    let mut entries: Vec<Entry> = Vec::new();
    for symbol in &symbols {
        let kind = match symbol.name {
            MARKER => Some(Kind::Marker),
            name if named.contains(&name) => Some(Kind::Named),
            name if is_whole || is_static => kind_of(name),
            _ => None,
        };
        let Some(kind) = kind else { continue };
        // One function may have several names; one probe is enough.
        if !entries.iter().any(|entry| entry.offset == symbol.offset) {
            entries.push(Entry { name: symbol.name.to_owned(), kind, offset: symbol.offset });
        }
    }
    let api = match (is_whole, is_static) {
        (true, _) => Api::Whole,
        (_, true) => Api::Parts(parts(&symbols)),
        _ => Api::None,
    };
    Ok(Found { entries, api })
}

/// What a function of CUDA does that begins GPU work; `None` of all others.
pub(crate) fn kind_of(symbol: &str) -> Option<Kind> {
    let bare = symbol.trim_start_matches('_');
    let verb = bare.strip_prefix("cuda").or_else(|| bare.strip_prefix("cu"))?;
    // These only ask, describe, or run on the host.
    const OTHERS: [&str; 6] = ["HostFunc", "Node", "Params", "Get", "Attribute", "Occupancy"];
    if OTHERS.iter().any(|word| verb.contains(word)) {
        None
    } else if verb.starts_with("Launch") {
        Some(Kind::Launch)
    } else if verb.starts_with("GraphLaunch") {
        Some(Kind::Graph)
    } else if ["Memcpy", "Memset", "MemPrefetch", "MemcpyBatch"].iter().any(|word| verb.starts_with(word)) {
        Some(Kind::Copy)
    } else {
        None
    }
}

/// The runtime, the driver, and what calls back from them.
fn is_cuda(name: &str) -> bool {
    ["libcudart.so", "libcuda.so", "libcupti.so"].iter().any(|library| name.starts_with(library))
}

struct Function<'a> {
    name: &'a str,
    offset: u64,
    size: u64,
}

/// A part of a file that is mapped: its first address, one past its last, and where it lies in the file.
pub(crate) type Segment = (u64, u64, u64);

/// The parts of the file in `bytes`; none if it is no ELF file.
pub(crate) fn segments(bytes: &[u8]) -> Vec<Segment> {
    ElfFile64::<Endianness>::parse(bytes).map(|elf| segments_of(&elf)).unwrap_or_default()
}

/// Where in the file an address of its own lies.
pub(crate) fn offset(segments: &[Segment], address: u64) -> Option<u64> {
    let segment = segments.iter().find(|(start, end, _)| (*start..*end).contains(&address))?;
    Some(address - segment.0 + segment.2)
}

fn segments_of(elf: &ElfFile64<'_>) -> Vec<Segment> {
    elf.segments()
        .map(|segment| (segment.address(), segment.address() + segment.size(), segment.file_range().0))
        .collect()
}

/// The functions that are defined in the file, by `.symtab` and `.dynsym`.
fn functions<'a>(elf: &ElfFile64<'a>) -> Vec<Function<'a>> {
    let segments = segments_of(elf);
    elf.symbols()
        .chain(elf.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| {
            let name = symbol.name().ok()?;
            // A version may stand behind an `@`.
            let name = name.split('@').next().unwrap_or(name);
            Some(Function { name, offset: offset(&segments, symbol.address())?, size: symbol.size() })
        })
        .collect()
}

/// Where the functions of a static runtime lie: its API, and what NVIDIA gave names without a meaning.
fn parts(symbols: &[Function<'_>]) -> Vec<(u64, u64)> {
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

/// The name that a library gives itself.
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
            ("cudaLaunchKernel", Some(Kind::Launch)),
            ("cudaLaunchKernel_ptsz", Some(Kind::Launch)),
            ("__cudaLaunchKernel", Some(Kind::Launch)),
            ("cudaLaunchKernelExC", Some(Kind::Launch)),
            ("cuLaunchCooperativeKernelMultiDevice", Some(Kind::Launch)),
            ("cuLaunchGrid", Some(Kind::Launch)),
            ("cuGraphLaunch_ptsz", Some(Kind::Graph)),
            ("cuMemcpyHtoDAsync_v2", Some(Kind::Copy)),
            ("cudaLaunchHostFunc", None),
            ("cudaGraphAddMemcpyNode", None),
            ("cudaMalloc", None),
            ("cudaGraphInstantiate", None),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
    }

    #[test]
    fn a_static_runtime_occupies_part_of_its_file() {
        let api = Api::Parts(vec![(100, 120), (200, 300)]);
        assert!(api.holds(100) && api.holds(299) && !api.holds(120) && !api.holds(99) && !api.holds(300));
        assert!(!Api::None.holds(100) && Api::Whole.holds(100));
    }
}
