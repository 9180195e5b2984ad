//! `GPUSIM_FAULTS`: deliberate faults, as a comma-separated list of `fault[:key=value]`. This module parses the list
//! and counts launches, records, callbacks and buffers to decide when each fault is due. The module `layout` implements
//! the effects of faults on an activity record.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Activity kind that no CUPTI header defines.
pub const UNKNOWN_KIND: u32 = 199;

/// A fault in one kernel, copy or fill, or in its activity record. The last two faults in the list do not affect
/// records: they affect a callback to a client, or a buffer of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// `zero_ts`: the record's start and end are 0.
    ZeroTimestamps = 1,
    /// `reversed`: the record's start and end are swapped.
    Reversed,
    /// `early_start`: the record's start is 1 ms before the API call's ENTER callback; the duration is unchanged.
    EarlyStart,
    /// `unknown_kind`: the record is followed by a record of kind 199, which has 64 bytes.
    UnknownKind,
    /// `unmatched_corr`: the record is followed by a duplicate record with a correlation id that was never assigned.
    UnmatchedCorrelation,
    /// `dup_corr`: the record is written twice.
    Duplicate,
    /// `device_graph`: a graph kernel's record is followed by a duplicate record, as if the GPU itself had launched the
    /// graph.
    DeviceGraph,
    /// `unknown_node`: a graph kernel's record is followed by a duplicate record with the id of a node that was never
    /// created.
    UnknownNode,
    /// `name_null`: the kernel's name is NULL.
    NameNull,
    /// `name_bad_utf8`: the kernel's name is not UTF-8.
    NameBadUtf8,
    /// `name_4k`: the kernel's name has 4,096 bytes.
    Name4k,
    /// `next_year`: the record's start and end are a year later.
    NextYear,
    /// `endless`: the record's end is a hundred years later.
    Endless,
    /// `epoch`: the record's start and end are in 1970; the duration is unchanged.
    Epoch,
    /// `null_data`: a callback is repeated with NULL as its data.
    NullData,
    /// `buffer_twice`: a buffer is delivered a second time.
    BufferTwice,
}

use Fault::*;

impl Fault {
    const NAMES: [(&'static str, Fault); 16] = [
        ("zero_ts", ZeroTimestamps),
        ("reversed", Reversed),
        ("early_start", EarlyStart),
        ("unknown_kind", UnknownKind),
        ("unmatched_corr", UnmatchedCorrelation),
        ("dup_corr", Duplicate),
        ("device_graph", DeviceGraph),
        ("unknown_node", UnknownNode),
        ("name_null", NameNull),
        ("name_bad_utf8", NameBadUtf8),
        ("name_4k", Name4k),
        ("next_year", NextYear),
        ("endless", Endless),
        ("epoch", Epoch),
        ("null_data", NullData),
        ("buffer_twice", BufferTwice),
    ];

    /// Name of the fault in `GPUSIM_FAULTS` and in the truth file.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize - 1].0
    }

    /// Whether the fault applies only to kernels.
    fn needs_kernel(self) -> bool {
        matches!(self, DeviceGraph | UnknownNode | NameNull | NameBadUtf8 | Name4k)
    }
}

/// The parsed list of faults, and a counter for each fault.
#[derive(Debug, Default)]
pub struct Faults {
    records: Vec<(Fault, u64, AtomicU64)>,
    launch_fail: Option<(u64, AtomicU64)>,
    fatal_after: Option<(u64, AtomicU64)>,
    flush_hangs: Option<(u64, AtomicU64)>,
    read_hangs: Option<(u64, AtomicU64)>,
    /// Interval between faulty callbacks, and the counts of API callbacks and of resource callbacks so far.
    null_data: Option<(u64, [AtomicU64; 2])>,
    buffer_twice: Option<(u64, AtomicU64)>,
    enable: Vec<(u32, u32)>,
}

impl Faults {
    /// Parses a list such as `enable:10=35,launch_fail:every=100,zero_ts`. If the list is invalid, the error is a
    /// message for the user.
    pub fn parse(text: &str) -> Result<Faults, String> {
        let mut faults = Faults::default();
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let (name, arg) = item.split_once(':').unwrap_or((item, ""));
            let number =
                |default| parse_arg(arg, default).ok_or(format!("`{item}`: want NAME or NAME:every=N"));
            match name {
                "enable" => {
                    let pair =
                        arg.split_once('=').and_then(|(k, v)| Some((k.parse().ok()?, v.parse().ok()?)));
                    faults.enable.push(pair.ok_or(format!("`{item}`: want enable:KIND=RESULT"))?);
                }
                "launch_fail" => faults.launch_fail = Some((number(50)?, AtomicU64::new(0))),
                "flush_hangs" => faults.flush_hangs = Some((number(1)?, AtomicU64::new(0))),
                "read_hangs" => faults.read_hangs = Some((number(1)?, AtomicU64::new(0))),
                "null_data" => faults.null_data = Some((number(50)?, Default::default())),
                "buffer_twice" => faults.buffer_twice = Some((number(50)?, AtomicU64::new(0))),
                "fatal" => faults.fatal_after = Some((number(1000)?, AtomicU64::new(0))),
                _ => {
                    let known = Fault::NAMES.iter().find(|(n, _)| *n == name);
                    let (_, fault) = known.ok_or(format!("`{item}`: no fault of this name"))?;
                    faults.records.push((*fault, number(50)?, AtomicU64::new(0)));
                }
            }
        }
        Ok(faults)
    }

    /// Returns the error with which `cuptiActivityEnable(kind)` must fail, if any.
    pub fn enable_result(&self, kind: u32) -> Option<u32> {
        self.enable.iter().find(|(k, _)| *k == kind).map(|(_, result)| *result)
    }

    /// Counts one kernel launch; returns true if this launch must fail.
    pub fn launch_fails(&self) -> bool {
        self.launch_fail.as_ref().is_some_and(|(every, seen)| nth(*every, seen))
    }

    /// Counts one kernel, copy or fill. Returns true exactly once, when CUPTI must report a fatal error.
    pub fn turns_fatal(&self) -> bool {
        self.fatal_after.as_ref().is_some_and(|(after, seen)| seen.fetch_add(1, Relaxed) + 1 == *after)
    }

    /// Counts one flush. Returns true for the flush that must never return, and for all later flushes.
    pub fn flush_hangs(&self) -> bool {
        self.flush_hangs.as_ref().is_some_and(|(after, seen)| seen.fetch_add(1, Relaxed) + 1 >= *after)
    }

    /// Counts one kernel record that a client reads; returns true if reading must never return, for this record and all
    /// later ones.
    pub fn read_hangs(&self) -> bool {
        self.read_hangs.as_ref().is_some_and(|(after, seen)| seen.fetch_add(1, Relaxed) + 1 >= *after)
    }

    /// Counts one CUPTI callback to a client. Returns true if the callback must be repeated without data.
    pub fn comes_without_data(&self, is_api_call: bool) -> bool {
        let seen = |seen: &[AtomicU64; 2], every| nth(every, &seen[usize::from(is_api_call)]);
        self.null_data.as_ref().is_some_and(|(every, both)| seen(both, *every))
    }

    /// Whether the fault makes CUPTI deliver any buffer twice.
    pub fn hands_over_twice(&self) -> bool {
        self.buffer_twice.is_some()
    }

    /// Counts one delivered buffer; returns true if the buffer must be delivered again.
    pub fn comes_twice(&self) -> bool {
        self.buffer_twice.as_ref().is_some_and(|(every, seen)| nth(*every, seen))
    }

    /// Counts one kernel, copy or fill, separately for every fault that affects records. If several faults are due at
    /// the same work, returns the one that comes first in the list.
    pub fn of_record(&self, is_kernel: bool) -> Option<Fault> {
        let mut due = None;
        for (fault, every, seen) in &self.records {
            if (is_kernel || !fault.needs_kernel()) && nth(*every, seen) && due.is_none() {
                due = Some(*fault);
            }
        }
        due
    }
}

fn parse_arg(arg: &str, default: u64) -> Option<u64> {
    match arg.split_once('=') {
        None if arg.is_empty() => Some(default),
        Some(("every" | "after", n)) => n.parse().ok().filter(|n| *n > 0),
        _ => None,
    }
}

fn nth(every: u64, seen: &AtomicU64) -> bool {
    (seen.fetch_add(1, Relaxed) + 1).is_multiple_of(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hundredth_launch_fails() {
        let faults = Faults::parse("launch_fail:every=100").unwrap();
        assert_eq!((0..1000).filter(|_| faults.launch_fails()).count(), 10);
    }

    #[test]
    fn enabling_a_listed_kind_returns_its_error() {
        let faults = Faults::parse("enable:10=35, enable:1=27").unwrap();
        assert_eq!([10, 1, 2].map(|k| faults.enable_result(k)), [Some(35), Some(27), None]);
    }

    #[test]
    fn name_faults_affect_kernels_only() {
        let faults = Faults::parse("name_null:every=1").unwrap();
        assert_eq!((faults.of_record(false), faults.of_record(true)), (None, Some(NameNull)));
    }

    #[test]
    fn the_fatal_fault_triggers_once() {
        let faults = Faults::parse("fatal:after=3").unwrap();
        assert_eq!([(); 5].map(|()| faults.turns_fatal()), [false, false, true, false, false]);
    }

    #[test]
    fn null_data_faults_count_calls_and_resources_separately() {
        let faults = Faults::parse("null_data:every=2").unwrap();
        let all = [true, false, true, true, false, true];
        let expected = [false, false, true, false, true, true];
        assert_eq!(all.map(|is_api_call| faults.comes_without_data(is_api_call)), expected);
        assert_eq!(faults.of_record(true), None);
    }

    #[test]
    fn every_third_buffer_is_delivered_twice() {
        let faults = Faults::parse("buffer_twice:every=3").unwrap();
        assert_eq!([(); 4].map(|()| faults.comes_twice()), [false, false, true, false]);
        assert!(faults.hands_over_twice() && !Faults::default().hands_over_twice());
    }

    #[test]
    fn a_misspelt_fault_is_rejected_by_name() {
        assert!(Faults::parse("zero_t").unwrap_err().contains("zero_t"));
        assert!(Faults::parse("zero_ts:often=3").is_err());
    }

    #[test]
    fn fault_names_and_values_agree() {
        assert!(Fault::NAMES.iter().all(|(name, fault)| fault.name() == *name));
    }
}
