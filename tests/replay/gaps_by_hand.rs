//! The minimum gap between two kernels of a stream, if the recorded run does not show this gap. Times are in us.

use serde_json::Value;

use super::by_hand::{Trace, tables};

/// Kernels of 2 us, each of which begins 15 us after its launch. There is a launch every 10 us.
fn launches(count: u32) -> Trace {
    let mut trace = Trace::default();
    for id in 0..count {
        let at = 10 * id;
        trace = trace.call("cudaLaunchKernel", id + 1, 5, (at, at + 8));
        trace = trace.kernel("tiny", id + 1, 7, (at + 15, at + 17));
    }
    trace
}

/// Number of unknown gaps, and the total time in us after all launches were replaced by one graph launch.
fn as_graph(trace: Trace, name: &str) -> (Option<u64>, u64) {
    let said = tables(&["what-if", trace.write(name).to_str().unwrap(), "--graphs"]);
    let rules = said["assumptions"].as_array().unwrap();
    let gap = rules.iter().find(|row| row["rule"] == "unknown_gap");
    (gap.and_then(|row: &Value| row["uses"].as_u64()), said["total"][0]["after_ns"].as_u64().unwrap() / 1_000)
}

#[test]
fn a_gap_that_no_kernels_show_is_an_assumption() {
    // The kernels run from 15 to 23 without a gap: three of them begin right after another.
    assert_eq!(as_graph(launches(4), "gap-unknown"), (Some(3), 23));
    // `after` begins 1 us after `large`, because its launch came long before. So all gaps are of 1 us: `tiny` runs from 15 to
    // 26, `large` from 27 to 47, and `after` from 48 to 51.
    let trace = launches(4).call("cudaLaunchKernel", 5, 5, (40, 48)).kernel("large", 5, 7, (55, 75));
    let trace = trace.call("cudaLaunchKernel", 6, 5, (50, 58)).kernel("after", 6, 7, (76, 79));
    assert_eq!(as_graph(trace, "gap-known"), (None, 51));
}
