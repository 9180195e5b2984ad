//! Parses the records that the eBPF programs write to the buffer. `bpf/probe.h` defines the layout of these records, so
//! a change of one of these two files requires a change of the other.

/// Header with which every record begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    /// Process id in the PID namespace of `gpuflame-bpf`; 0 if the process has no id there.
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    /// Time according to `CLOCK_MONOTONIC`, in nanoseconds.
    pub(crate) time: u64,
    /// Id of the address space of the process.
    pub(crate) space: u64,
    pub(crate) comm: [u8; 16],
}

/// Content of a record, which depends on the kind of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelRecord<'a> {
    /// A call to a probed function has begun.
    Hit(ProbeHit<'a>),
    /// The library inside the process has reported the correlation id for the call that the thread is making.
    Marker { correlation: u32, is_copy: bool },
    /// Executable code from a file was mapped.
    Mapping(Mapping),
    /// A process was created by a fork. The new process has the same mappings as its parent.
    Fork { child: u32, space: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeHit<'a> {
    /// Id of the probe that was hit.
    pub(crate) probe: u64,
    /// Return address of the call, which points into the calling function.
    pub(crate) caller: u64,
    /// Addresses in the user stack, with eight bytes each: first the probed function, and then the return addresses,
    /// innermost first.
    pub(crate) user: &'a [u8],
    /// Addresses in the kernel stack, in the same form as in `user`.
    pub(crate) kernel: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Offset in the file at which the mapping begins, in bytes.
    pub(crate) offset: u64,
    pub(crate) file: FileId,
    /// Whether the process is stopped until `gpuflame-bpf` resumes it.
    pub(crate) stopped: bool,
}

/// Identity of a file in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    pub(crate) inode: u64,
    pub(crate) device: u32,
}

impl FileId {
    /// Returns the key with which the eBPF map `KNOWN` identifies the file.
    pub(crate) fn key(self) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.inode.to_ne_bytes());
        key[8..12].copy_from_slice(&self.device.to_ne_bytes());
        key
    }
}

const HEADER_BYTES: usize = 48;
const MAX_FRAMES: usize = 127;
const FRAMES_OFFSET: usize = HEADER_BYTES + 32;
const KERNEL_FRAMES_OFFSET: usize = FRAMES_OFFSET + 8 * MAX_FRAMES;

/// Parses one record. Returns `None` if the record does not come from one of our eBPF programs.
pub(crate) fn parse(bytes: &[u8]) -> Option<(RecordHeader, KernelRecord<'_>)> {
    let head = RecordHeader {
        pid: u32_at(bytes, 4)?,
        tid: u32_at(bytes, 8)?,
        cpu: u32_at(bytes, 12)?,
        time: u64_at(bytes, 16)?,
        space: u64_at(bytes, 24)?,
        comm: bytes.get(32..HEADER_BYTES)?.try_into().ok()?,
    };
    let record = match u32_at(bytes, 0)? {
        1 => KernelRecord::Hit(parse_hit(bytes)?),
        2 => KernelRecord::Marker {
            correlation: u32_at(bytes, HEADER_BYTES)?,
            is_copy: u32_at(bytes, HEADER_BYTES + 4)? == 2,
        },
        3 => KernelRecord::Mapping(Mapping {
            start: u64_at(bytes, HEADER_BYTES)?,
            end: u64_at(bytes, HEADER_BYTES + 8)?,
            offset: u64_at(bytes, HEADER_BYTES + 16)?,
            file: FileId {
                inode: u64_at(bytes, HEADER_BYTES + 24)?,
                device: u32_at(bytes, HEADER_BYTES + 32)?,
            },
            stopped: u32_at(bytes, HEADER_BYTES + 36)? != 0,
        }),
        4 => KernelRecord::Fork {
            space: u64_at(bytes, HEADER_BYTES)?,
            child: u32_at(bytes, HEADER_BYTES + 8)?,
        },
        _ => return None,
    };
    Some((head, record))
}

fn parse_hit(bytes: &[u8]) -> Option<ProbeHit<'_>> {
    // A negative value is not a size but an error code, which means that the kernel could not read the stack.
    let taken = |at: usize| u32_at(bytes, at).map(|bytes| usize::try_from(bytes as i32).unwrap_or(0));
    let (user, kernel) = (taken(HEADER_BYTES + 24)?, taken(HEADER_BYTES + 28)?);
    Some(ProbeHit {
        probe: u64_at(bytes, HEADER_BYTES)?,
        caller: u64_at(bytes, HEADER_BYTES + 16)?,
        user: bytes.get(FRAMES_OFFSET..FRAMES_OFFSET + user)?,
        kernel: if kernel == 0 {
            &[]
        } else {
            bytes.get(KERNEL_FRAMES_OFFSET..KERNEL_FRAMES_OFFSET + kernel)?
        },
    })
}

/// Returns the addresses in `bytes`. Each address takes eight bytes.
pub(crate) fn addresses(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|eight| u64::from_ne_bytes(*eight))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_record_is_rejected() {
        let mut bytes = vec![0; HEADER_BYTES + 16];
        bytes[0] = 2;
        bytes[4] = 7;
        bytes[HEADER_BYTES] = 9;
        let (head, record) = parse(&bytes).unwrap();
        assert_eq!((head.pid, record), (7, KernelRecord::Marker { correlation: 9, is_copy: false }));
        for length in 0..HEADER_BYTES + 8 {
            assert_eq!(parse(&bytes[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn a_failed_stack_capture_is_empty() {
        let mut bytes = vec![0; KERNEL_FRAMES_OFFSET];
        bytes[0] = 1;
        bytes[HEADER_BYTES + 24..HEADER_BYTES + 28].copy_from_slice(&(-14_i32).to_ne_bytes());
        let Some((_, KernelRecord::Hit(hit))) = parse(&bytes) else { panic!("not a hit") };
        assert!(hit.user.is_empty());
    }
}
