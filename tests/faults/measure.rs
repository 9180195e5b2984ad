//! Reads a written trace line by line, independently of the simulation, and adds up the times in the trace.

use std::collections::BTreeMap;

/// A complete trace event (`"ph":"X"`). Times are in nanoseconds.
pub(crate) struct Slice {
    pub(crate) category: String,
    pub(crate) name: String,
    /// Process id and thread id. Device and stream of GPU work.
    pub(crate) place: (u64, u64),
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) correlation: Option<u64>,
}

/// Returns all complete trace events of a trace that has one event per line.
pub(crate) fn slices(text: &str) -> Vec<Slice> {
    text.lines().filter(|line| line.starts_with(r#"{"ph":"X""#)).map(slice).collect()
}

fn slice(line: &str) -> Slice {
    let start = nanos(field(line, r#""ts":"#).unwrap());
    Slice {
        category: field(line, r#""cat":"#).unwrap().to_owned(),
        name: field(line, r#""name":"#).unwrap().to_owned(),
        place: (integer(line, r#""pid":"#).unwrap_or(0), integer(line, r#""tid":"#).unwrap_or(0)),
        start,
        end: start + nanos(field(line, r#""dur":"#).unwrap()),
        correlation: integer(line, r#""correlation":"#),
    }
}

/// Returns the value of a field in a line of the trace, without quotes. `key` includes the quotes of the key, and the
/// colon.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = line.split_once(key)?.1;
    match rest.strip_prefix('"') {
        Some(text) => text.split('"').next(),
        None => rest.split([',', '}']).next(),
    }
}

fn integer(line: &str, key: &str) -> Option<u64> {
    field(line, key)?.parse().ok()
}

/// Converts microseconds with three decimals to nanoseconds.
fn nanos(micros: &str) -> i64 {
    micros.replace('.', "").parse().unwrap()
}

/// Returns the duration of the run in ns.
pub(crate) fn length(slices: &[Slice]) -> i64 {
    let span = slices.iter().find(|slice| slice.category == "Trace").unwrap();
    span.end - span.start
}

/// Returns the total time, in ns, during which at least one kernel of the model runs on the device. The returned time
/// is the length of the union of the kernels' intervals. Collectives do not count, and neither do kernels with the text
/// `except` in their names.
pub(crate) fn busy(slices: &[Slice], device: u64, except: Option<&str>) -> i64 {
    let is_model = |slice: &&Slice| {
        let is_except =
            except.is_some_and(|name| slice.name.contains(name)) || slice.name.starts_with("nccl");
        slice.category == "kernel" && slice.place.0 == device && !is_except
    };
    union_ns(slices, |slice| is_model(&slice))
}

/// Returns the total time, in ns, during which at least one counted slice of GPU work runs on any device.
pub(crate) fn union_ns(slices: &[Slice], is_counted: impl Fn(&Slice) -> bool) -> i64 {
    let counted = slices.iter().filter(|slice| is_gpu_work(slice) && is_counted(slice));
    let mut intervals: Vec<_> = counted.map(|slice| (slice.start, slice.end)).collect();
    intervals.sort_unstable();
    let (mut sum, mut until) = (0, i64::MIN);
    for (start, end) in intervals {
        sum += (end - start.max(until)).max(0);
        until = until.max(end);
    }
    sum
}

/// Returns whether the slice is GPU work, not host work.
pub(crate) fn is_gpu_work(slice: &Slice) -> bool {
    ["kernel", "gpu_memcpy", "gpu_memset"].contains(&&*slice.category)
}

/// Returns the name, start and end of each CUDA call in a trace, keyed by correlation id.
pub(crate) fn calls(slices: &[Slice]) -> BTreeMap<u64, (&str, i64, i64)> {
    let calls = slices.iter().filter(|slice| slice.category.starts_with("cuda_"));
    calls.filter_map(|call| Some((call.correlation?, (&*call.name, call.start, call.end)))).collect()
}

/// Describes the trace events that are impossible on a GPU. If the trace is possible, the list is empty.
pub(crate) fn impossible(slices: &[Slice]) -> Vec<String> {
    let mut wrong = Vec::new();
    let calls = calls(slices);
    let mut places: BTreeMap<(bool, u64, u64), Vec<&Slice>> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| slice.category != "Trace") {
        places.entry((is_gpu_work(slice), slice.place.0, slice.place.1)).or_default().push(slice);
        if is_gpu_work(slice) {
            match slice.correlation.and_then(|id| calls.get(&id)) {
                Some((_, start, _)) if *start <= slice.start => {}
                _ => wrong.push(format!("{} starts before its launch", slice.name)),
            }
        }
    }
    for ((is_gpu, _, _), mut slices) in places {
        slices.sort_by_key(|slice| (slice.start, -slice.end));
        let mut open: Vec<&Slice> = Vec::new();
        for slice in slices {
            open.retain(|outer| outer.end > slice.start);
            let is_allowed = open.last().is_none_or(|outer| !is_gpu && outer.end >= slice.end);
            if !is_allowed || slice.end < slice.start {
                wrong.push(format!("{} overlaps {:?}", slice.name, open.last().map(|open| &open.name)));
            }
            open.push(slice);
        }
    }
    wrong.extend(early_returns(slices));
    wrong
}

/// Describes the calls that wait for GPU work but return before this GPU work ends. The check is valid only for traces
/// of one GPU, because a call does not name its GPU.
fn early_returns(slices: &[Slice]) -> Vec<String> {
    let calls = calls(slices);
    let work: Vec<_> = slices
        .iter()
        .filter(|slice| is_gpu_work(slice))
        .map(|slice| (slice, calls[&slice.correlation.unwrap()]))
        .collect();
    if work.iter().any(|(slice, _)| slice.place.0 != 0) {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for (slice, (call, _, returns)) in &work {
        if (slice.name.contains("Pageable") || *call == "cudaMemcpy") && *returns < slice.end {
            wrong.push(format!("{call} returns before its copy ends"));
        }
    }
    for (name, start, returns) in calls.values() {
        let waits_for = |slice: &Slice| match *name {
            "cudaDeviceSynchronize" | "cudaFree" => true,
            "cudaStreamSynchronize" => slice.place.1 == 7,
            _ => false,
        };
        let is_late = |(slice, (_, launched, _)): &(&Slice, (&str, i64, i64))| {
            waits_for(slice) && launched < start && slice.end > *returns
        };
        if work.iter().any(is_late) {
            wrong.push(format!("{name} returns too early"));
        }
    }
    wrong
}
