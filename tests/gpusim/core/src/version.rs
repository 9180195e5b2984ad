//! Differences between the CUPTI versions that the simulation can imitate. Only this module compares CUPTI versions:
//! all other modules call its functions.

/// A CUPTI release that `GPUSIM_CUPTI_VERSION` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CuptiVersion {
    /// Version 11.8: kernel records have no cluster fields, and CUPTI calls before initialization return error 15.
    V11_8,
    /// Version 12.0.
    V12_0,
    /// Version 12.9, the last version in which calls before initialization return error 15.
    V12_9,
    /// Version 13.0: calls before initialization return error 999 instead of 15, and `cuptiSubscribe_v2` exists.
    V13_0,
    /// Version 13.2: activity kinds up to 59, and `cuptiActivityGetStructSize` exists.
    V13_2,
    /// Version 13.4: every call needs a driver, activity records contain the source graph node, and several clients can
    /// record at the same time.
    V13_4,
}

use CuptiVersion::*;

/// Kinds of the activity records that the simulation writes.
pub mod kind {
    #![allow(missing_docs)] // these are CUPTI's names
    pub const MEMCPY: u32 = 1;
    pub const MEMSET: u32 = 2;
    pub const KERNEL: u32 = 3;
    pub const DRIVER: u32 = 4;
    pub const RUNTIME: u32 = 5;
    pub const DEVICE: u32 = 8;
    pub const CONTEXT: u32 = 9;
    pub const CONCURRENT_KERNEL: u32 = 10;
    pub const OVERHEAD: u32 = 17;
    pub const MEMCPY2: u32 = 22;
    pub const UNIFIED_MEMORY_COUNTER: u32 = 25;
    pub const CUDA_EVENT: u32 = 36;
    pub const STREAM: u32 = 37;
    pub const SYNCHRONIZATION: u32 = 38;
    pub const EXTERNAL_CORRELATION: u32 = 39;
    pub const GRAPH_TRACE: u32 = 51;
}

impl CuptiVersion {
    /// All versions, oldest first.
    pub const ALL: [CuptiVersion; 6] = [V11_8, V12_0, V12_9, V13_0, V13_2, V13_4];

    /// Parses a version such as `13.0`.
    pub fn parse(text: &str) -> Option<CuptiVersion> {
        Self::ALL.into_iter().find(|v| v.name() == text)
    }

    /// Returns the name of the version, such as `13.0`.
    pub fn name(self) -> &'static str {
        match self {
            V11_8 => "11.8",
            V12_0 => "12.0",
            V12_9 => "12.9",
            V13_0 => "13.0",
            V13_2 => "13.2",
            V13_4 => "13.4",
        }
    }

    /// Version number that `cuptiGetVersion` returns.
    pub fn api_version(self) -> u32 {
        match self {
            V11_8 | V12_0 => 18,
            V12_9 => 28,
            V13_0 => 130001,
            V13_2 => 130201,
            V13_4 => 130401,
        }
    }

    /// Soname of the real CUPTI library of this version.
    pub fn soname(self) -> &'static str {
        match self {
            V11_8 => "libcupti.so.11.8",
            V12_0 | V12_9 => "libcupti.so.12",
            V13_0 | V13_2 | V13_4 => "libcupti.so.13",
        }
    }

    /// Oldest driver with which this CUPTI version works, as `cuDriverGetVersion` returns it.
    pub fn oldest_driver(self) -> u32 {
        match self {
            V11_8 => 11000,
            V12_0 | V12_9 => 12000,
            V13_0 | V13_2 | V13_4 => 13000,
        }
    }

    /// Whether several clients may record at the same time, given the version that `cuDriverGetVersion` returns.
    pub fn shares(self, driver: u32) -> bool {
        self >= V13_4 && driver >= 13030
    }

    /// Last callback id in the driver's or the runtime's callback domain.
    pub fn last_callback(self, domain: u32) -> u32 {
        match (self, domain) {
            (V11_8, 1) => 676,
            (V12_0, 1) => 700,
            (V12_9, 1) => 783,
            (V13_0, 1) => 806,
            (V13_2, 1) => 845,
            (V13_4, 1) => 867,
            (V11_8, 2) => 433,
            (V12_0, 2) => 444,
            (V12_9, 2) => 486,
            (V13_0, 2) => 522,
            (V13_2, 2) => 558,
            (V13_4, 2) => 565,
            _ => 0,
        }
    }

    /// Whether the runtime reports a `<<<>>>` launch with the callback id 505 instead of the id of `cudaLaunchKernel`.
    /// CUPTI 13.0 has this id but does not use it (measured on an H100). The simulation assumes that later CUPTI
    /// releases use this id, so that tests cover both cases.
    pub fn has_own_stub_launch_id(self) -> bool {
        self > V13_0
    }

    /// Whether the runtime waits for a CUDA context with `cuCtxSynchronize_v2`, which is new in CUDA 13.0.
    pub fn synchronizes_by_context(self) -> bool {
        self >= V13_0
    }

    /// Error that a CUPTI call returns if it needs an initialised CUPTI and CUPTI is not initialised: 15 up to version
    /// 12.9, and 999 since 13.0.
    pub fn not_initialized(self) -> u32 {
        if self >= V13_0 { 999 } else { 15 }
    }

    /// Whether CUPTI calls that need no device also work without libcuda. In CUPTI versions before 13.3, such calls
    /// work.
    pub fn works_without_driver(self) -> bool {
        self < V13_4
    }

    /// Whether the library drops records instead of crashing if the client provides a NULL buffer.
    pub fn survives_null_buffer(self) -> bool {
        self.api_version() >= 27
    }

    /// Whether each thread has its own buffers by default. Attribute 9, which is new in CUPTI 12.3, overrides this
    /// default.
    pub fn has_thread_buffers(self) -> bool {
        self >= V12_9
    }

    /// Error that `cuptiActivityEnable` and `cuptiActivityGetNextRecord` return for an unknown activity kind.
    pub fn unknown_kind(self) -> u32 {
        if self >= V12_9 { 21 } else { 999 }
    }

    /// Last activity kind that `cuptiActivityEnable` knows. The values were measured for version 12.9 and later.
    pub fn last_kind(self) -> u32 {
        if self >= V13_2 { 59 } else { 54 }
    }

    /// Whether a query of an event or stream has an activity record of kind 38, which is the case since CUPTI 12.8.
    pub fn records_queries(self) -> bool {
        self >= V12_9
    }

    /// Number of bytes per activity record of this kind: the size of the newest struct in this version's header.
    pub fn record_size(self, record: u32) -> Option<usize> {
        Some(match record {
            kind::MEMCPY => [88, 88, 96, 96, 96, 112][self as usize],
            kind::MEMSET => [88, 88, 88, 88, 88, 104][self as usize],
            kind::KERNEL | kind::CONCURRENT_KERNEL => [200, 208, 208, 216, 224, 248][self as usize],
            kind::DRIVER | kind::RUNTIME | 48 => 40,
            kind::DEVICE => [176, 176, 184, 184, 192, 192][self as usize],
            kind::CONTEXT => [16, 16, 32, 32, 40, 40][self as usize],
            11 => 32,
            12 => 56,
            kind::OVERHEAD => [40, 40, 56, 56, 56, 56][self as usize],
            kind::MEMCPY2 => 96,
            kind::STREAM | kind::EXTERNAL_CORRELATION => 24,
            kind::UNIFIED_MEMORY_COUNTER => [64, 64, 104, 104, 104, 104][self as usize],
            kind::CUDA_EVENT => [24, 24, 56, 56, 56, 56][self as usize],
            kind::SYNCHRONIZATION => [40, 40, 56, 56, 56, 56][self as usize],
            kind::GRAPH_TRACE => [48, 48, 56, 56, 56, 56][self as usize],
            // The kind UNKNOWN_KIND represents the activity kinds of later CUPTI versions, which a reader of records
            // must skip.
            super::faults::UNKNOWN_KIND => 64,
            _ => return None,
        })
    }

    /// Functions that the real library of this version does not export, and that the simulated library therefore hides.
    pub fn lacks(self) -> impl Iterator<Item = &'static str> {
        const SINCE: [(CuptiVersion, &str); 18] = [
            (V12_9, "cuptiActivityEnableAllSyncRecords"),
            (V12_9, "cuptiGetErrorMessage"),
            (V12_9, "cuptiGetGraphExecId"),
            (V12_9, "cuptiActivityEnableRuntimeApi"),
            (V12_9, "cuptiActivityEnableDriverApi"),
            (V12_9, "cuptiActivityEnableHWTrace"),
            (V12_9, "cuptiActivityEnableDeviceGraph"),
            (V13_0, "cuptiSubscribe_v2"),
            (V13_0, "cuptiActivityEnableCudaEventDeviceTimestamps"),
            (V13_2, "cuptiActivityGetStructSize"),
            (V13_2, "cuptiActivityRegisterCallbacks_v2"),
            (V13_2, "cuptiActivityEnable_v2"),
            (V13_2, "cuptiActivityDisable_v2"),
            (V13_2, "cuptiActivityGetAttribute_v2"),
            (V13_2, "cuptiActivitySetAttribute_v2"),
            (V13_4, "cuptiActivityGetNextRecord_v2"),
            (V13_4, "cuptiActivityGetNumDroppedRecords_v2"),
            (V13_4, "cuptiGetTimestamp_v2"),
        ];
        SINCE.into_iter().filter(move |(since, _)| self < *since).map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_records_have_the_measured_sizes() {
        let sizes = CuptiVersion::ALL.map(|v| v.record_size(kind::CONCURRENT_KERNEL).unwrap());
        assert_eq!(sizes, [200, 208, 208, 216, 224, 248]);
    }

    #[test]
    fn every_version_is_found_by_its_name() {
        assert!(CuptiVersion::ALL.into_iter().all(|v| CuptiVersion::parse(v.name()) == Some(v)));
        assert_eq!(CuptiVersion::parse("13"), None);
    }

    #[test]
    fn subscribe_v2_is_missing_before_13_0() {
        assert!(V12_9.lacks().any(|n| n == "cuptiSubscribe_v2"));
        assert!(!V13_0.lacks().any(|n| n == "cuptiSubscribe_v2"));
    }
}
