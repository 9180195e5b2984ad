//! Tests programs with many launches: exact counts, bounded memory use, and the CPU cost of a launch.

use gpusim_selftest::{Outcome, Run};

fn launches(threads: &str, count: &str) -> Run {
    Run::new("launches", &[threads, count]).env("CLIENT_BUFFER", "1048576")
}

fn row(outcome: &Outcome, site: &str) -> [u64; 4] {
    let row = outcome.summary.iter().find(|row| row["site"] == site).unwrap();
    ["count", "total_ns", "delivered", "delivered_ns"].map(|key| row[key].as_u64().unwrap())
}

#[test]
fn every_launch_of_eight_threads_is_accounted_for() {
    let summary_only = std::env::temp_dir().join(format!("gpusim-load-{}", std::process::id()));
    let run = launches("8", "20000").client("10", "3:1").env("CLIENT_LOG", "/dev/null");
    let truth = format!("summary:{}", summary_only.display());
    run.env("GPUSIM_TRUTH", truth).outcome().expect_success();
    let text = std::fs::read_to_string(&summary_only).unwrap();
    let _ = std::fs::remove_file(&summary_only);
    let mut outcome = Run::new("init", &["version"]).outcome();
    outcome.summary = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(row(&outcome, "work;even"), [80_000, 8_000_000, 80_000, 8_000_000]);
    assert_eq!(row(&outcome, "work;odd"), [80_000, 20_000_000, 80_000, 20_000_000]);
    assert_eq!((outcome.total("launch_calls"), outcome.total("corr_ids")), (160_000, 160_002));
}

#[test]
fn memory_does_not_grow_with_the_number_of_launches() {
    let resident = |count| {
        let run =
            launches("2", count).client("10", "3:1").env("CLIENT_LOG", "/dev/null").env("GPUSIM_TRUTH", "");
        let stdout = run.outcome().expect_success().stdout;
        stdout.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let (few, many) = (resident("50000"), resident("250000"));
    assert!(many < few + 40_000, "{few} kB after 100,000 launches, {many} kB after 500,000");
}
