//! Tests the minimum gap between two kernels on a stream that a replay assumes if the recorded run does not show this
//! gap. Times are in us.

use serde_json::Value;

use super::by_hand::{Trace, tables};

/// Returns a trace with a launch every 10 us. Each launch runs a kernel of 2 us, which begins 15 us after the launch.
fn launches(count: u32) -> Trace {
    let mut trace = Trace::default();
    for id in 0..count {
        let at = 10 * id;
        trace = trace.call("cudaLaunchKernel", id + 1, 5, (at, at + 8));
        trace = trace.kernel("tiny", id + 1, 7, (at + 15, at + 17));
    }
    trace
}

/// Returns the number of unknown gaps, and the total time in us if all launches are replaced by one graph launch.
fn as_graph(trace: Trace, name: &str) -> (Option<u64>, u64) {
    let said = tables(&["what-if", trace.write(name).to_str().unwrap(), "--graphs"]);
    let rules = said["assumptions"].as_array().unwrap();
    let gap = rules.iter().find(|row| row["rule"] == "unknown_gap");
    (gap.and_then(|row: &Value| row["uses"].as_u64()), said["total"][0]["after_ns"].as_u64().unwrap() / 1_000)
}

#[test]
fn a_gap_that_no_kernels_show_is_an_assumption() {
    // The kernels run from 15 to 23 us without gaps, because three gaps between kernels are unknown and count as 0.
    assert_eq!(as_graph(launches(4), "gap-unknown"), (Some(3), 23));
    // `after` begins 1 us after the end of `large`, because its launch was made long before. Therefore all gaps are 1
    // us long. The tiny kernels run from 15 to 26 us, `large` from 27 to 47 us, and `after` from 48 to 51 us.
    let trace = launches(4).call("cudaLaunchKernel", 5, 5, (40, 48)).kernel("large", 5, 7, (55, 75));
    let trace = trace.call("cudaLaunchKernel", 6, 5, (50, 58)).kernel("after", 6, 7, (76, 79));
    assert_eq!(as_graph(trace, "gap-known"), (None, 51));
}
