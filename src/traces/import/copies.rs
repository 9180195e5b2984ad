//! Parses the direction of a copy, and the kinds of memory that a copy or fill uses, from the spellings that different
//! tools use.
//!
//! ```text
//! Memcpy HtoD (Pageable -> Device)   Kineto          CopyDeviceToHost        HIP
//! MemcpyD2H                          JAX             CUDA_MEMCPY_KIND_HTOD   arguments
//! ```

use gpuflame_model::record::{CopyKind, MemoryKind};

/// Returns the direction of a copy. `text` is the copy's name, or an argument of its trace event. The result is 0 if
/// the text contains no direction.
pub(super) fn copy_kind(text: &str) -> CopyKind {
    const KINDS: [(CopyKind, [&str; 4]); 10] = [
        (CopyKind::HTOD, ["HTOD", "H2D", "HOSTTODEVICE", "HOST->DEVICE"]),
        (CopyKind::DTOH, ["DTOH", "D2H", "DEVICETOHOST", "DEVICE->HOST"]),
        (CopyKind::DTOD, ["DTOD", "D2D", "DEVICETODEVICE", "DEVICE->DEVICE"]),
        (CopyKind::HTOH, ["HTOH", "H2H", "HOSTTOHOST", "HOST->HOST"]),
        (CopyKind::PTOP, ["PTOP", "P2P", "PEERTOPEER", "PEER->PEER"]),
        (CopyKind::HTOA, ["HTOA", "H2A", "HOSTTOARRAY", "HOST->ARRAY"]),
        (CopyKind::ATOH, ["ATOH", "A2H", "ARRAYTOHOST", "ARRAY->HOST"]),
        (CopyKind::ATOA, ["ATOA", "A2A", "ARRAYTOARRAY", "ARRAY->ARRAY"]),
        (CopyKind::ATOD, ["ATOD", "A2D", "ARRAYTODEVICE", "ARRAY->DEVICE"]),
        (CopyKind::DTOA, ["DTOA", "D2A", "DEVICETOARRAY", "DEVICE->ARRAY"]),
    ];
    let plain = |c: &char| !matches!(c, ' ' | '_');
    let upper = text.chars().filter(plain).collect::<String>().to_ascii_uppercase();
    // Short spellings of a direction are tried first, because a name may contain the kinds of memory after the
    // direction, as in `PtoP (Device -> Device)`.
    for spelling in 0..4 {
        if let Some((kind, _)) = KINDS.iter().find(|(_, words)| upper.contains(words[spelling])) {
            return *kind;
        }
    }
    // At this point, the text contains only kinds of memory, as in `Pageable -> Device`.
    match memory_kinds(text) {
        (MemoryKind::PAGEABLE | MemoryKind::PINNED, MemoryKind::DEVICE) => CopyKind::HTOD,
        (MemoryKind::DEVICE, MemoryKind::PAGEABLE | MemoryKind::PINNED) => CopyKind::DTOH,
        (MemoryKind::DEVICE, MemoryKind::DEVICE) => CopyKind::DTOD,
        _ => CopyKind(0),
    }
}

/// Returns the kinds of memory that a copy read and wrote, from a name such as `Memcpy HtoD (Pinned -> Device)`.
pub(super) fn memory_kinds(name: &str) -> (MemoryKind, MemoryKind) {
    let Some((from, to)) = name.split_once("->") else { return (MemoryKind::UNKNOWN, MemoryKind::UNKNOWN) };
    let from = from.rsplit_once('(').map_or(from, |(_, from)| from);
    let to = to.split_once(')').map_or(to, |(to, _)| to);
    (memory_kind(from), memory_kind(to))
}

/// Returns the kind of memory that a fill wrote, from a name such as `Memset (Device)`.
pub(super) fn set_memory(name: &str) -> MemoryKind {
    let inside = name.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    inside.map_or(MemoryKind::UNKNOWN, |(kind, _)| memory_kind(kind))
}

/// Returns the kind of memory that `word` names, in the spelling of any tool.
pub(super) fn memory_kind(word: &str) -> MemoryKind {
    match word.trim().to_ascii_lowercase().replace('_', " ").as_str() {
        "pageable" => MemoryKind::PAGEABLE,
        "pinned" => MemoryKind::PINNED,
        "device" => MemoryKind::DEVICE,
        "array" => MemoryKind::ARRAY,
        "managed" | "unified" => MemoryKind::MANAGED,
        "device static" => MemoryKind::DEVICE_STATIC,
        "managed static" => MemoryKind::MANAGED_STATIC,
        _ => MemoryKind::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_direction_of_a_copy_is_found_in_every_spelling() {
        for (text, kind) in [
            ("Memcpy HtoD (Pageable -> Device)", CopyKind::HTOD),
            ("Memcpy DtoH (Device -> Pinned)", CopyKind::DTOH),
            ("Memcpy PtoP (Device -> Device)", CopyKind::PTOP),
            ("MEMCPY_DTOD", CopyKind::DTOD),
            ("MemcpyD2H", CopyKind::DTOH),
            ("CopyHostToDevice", CopyKind::HTOD),
            ("DEVICE_TO_HOST", CopyKind::DTOH),
            ("device to device", CopyKind::DTOD),
            ("Host -> Device", CopyKind::HTOD),
            ("CUDA_MEMCPY_KIND_HTOA", CopyKind::HTOA),
            ("Pageable -> Device", CopyKind::HTOD),
            ("Memcpy", CopyKind(0)),
            ("", CopyKind(0)),
        ] {
            assert_eq!(copy_kind(text), kind, "{text}");
        }
    }

    #[test]
    fn kinds_of_memory_are_read_from_names() {
        use MemoryKind as M;
        for (name, kinds) in [
            ("Memcpy HtoD (Pageable -> Device)", (M::PAGEABLE, M::DEVICE)),
            ("Memcpy DtoH (Device -> Pinned)", (M::DEVICE, M::PINNED)),
            ("Memcpy DtoD (Managed Static -> Array)", (M::MANAGED_STATIC, M::ARRAY)),
            ("Memcpy HtoD (Unknown -> Device)", (M::UNKNOWN, M::DEVICE)),
            ("Memcpy HtoD", (M::UNKNOWN, M::UNKNOWN)),
        ] {
            assert_eq!(memory_kinds(name), kinds, "{name}");
        }
        assert_eq!(set_memory("Memset (Device)"), M::DEVICE);
        assert_eq!(set_memory("Memset (Unknown)"), M::UNKNOWN);
        assert_eq!(set_memory("Memset"), M::UNKNOWN);
    }
}
