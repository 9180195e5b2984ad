//! Tests that the one simulated libcupti behaves like each CUPTI version from 11.8 to 13.4.

use gpusim_selftest::{Outcome, Run};

fn basic(version: &str) -> Outcome {
    let run = Run::new("basic", &[]).client("10,1,2", "2:211").env("GPUSIM_CUPTI_VERSION", version);
    run.outcome().expect_success()
}

#[test]
fn version_numbers_equal_those_of_the_real_cupti() {
    let number = |v| basic(v).lines("version")[0].number("n");
    assert_eq!(["11.8", "12.0", "12.9", "13.0", "13.4"].map(number), [18, 18, 28, 130001, 130401]);
}

#[test]
fn records_have_the_sizes_of_each_version() {
    // The buffer contains records of two kernels, three copies and a memset. The test computes the size of a record as
    // the distance to the next record, so the size of the last record is unknown.
    for (version, kernel, copy) in [
        ("11.8", 200, 88),
        ("12.0", 208, 88),
        ("12.9", 208, 96),
        ("13.0", 216, 96),
        ("13.2", 224, 96),
        ("13.4", 248, 112),
    ] {
        let outcome = basic(version);
        let strides: Vec<String> = outcome.lines("stride").iter().map(|l| l.text.clone()).collect();
        let expected = [kernel, kernel, copy, copy, copy].map(|n| format!("stride {n}"));
        assert_eq!(strides, expected, "{version}");
        assert_eq!(outcome.records(10).len(), 2);
    }
}

#[test]
fn functions_missing_from_a_version_are_not_exported() {
    let missing = |version| -> Vec<String> {
        let outcome = basic(version);
        let lines = outcome.lines("symbol").into_iter().filter(|l| l.text.ends_with("missing"));
        lines.map(|l| l.text.split(' ').nth(1).unwrap().to_owned()).collect()
    };
    let since_13_4 = "cuptiActivityGetStructSize";
    assert_eq!(missing("11.8"), ["cuptiSubscribe_v2", "cuptiGetErrorMessage", since_13_4]);
    assert_eq!(missing("12.9"), ["cuptiSubscribe_v2", since_13_4]);
    assert_eq!(missing("13.0"), [since_13_4]);
    assert!(missing("13.4").is_empty());
    for version in ["11.8", "12.0", "13.0", "13.4"] {
        let outcome = basic(version);
        for old in ["cuptiGetStreamId", "cuptiActivityEnableContext", "cuptiActivityDisableContext"] {
            assert!(
                outcome.lines("symbol").iter().any(|l| l.text == format!("symbol {old} present")),
                "{version}"
            );
        }
    }
}

#[test]
fn the_soname_matches_the_version() {
    for (version, soname) in
        [("11.8", "libcupti.so.11.8"), ("12.9", "libcupti.so.12"), ("13.4", "libcupti.so.13")]
    {
        let run = Run::new("init", &[]).client("", "").env("GPUSIM_CUPTI_VERSION", version);
        let outcome = run.env("CLIENT_SONAME", soname).outcome().expect_success();
        assert_eq!(outcome.lines("soname")[0].text, "soname same", "{version}");
    }
}

#[test]
fn a_stub_launch_has_the_versions_callback_id() {
    for (version, id) in [("12.9", "211"), ("13.0", "211"), ("13.2", "505")] {
        let run = Run::new("stub", &[]).client("10", "2:211,2:505").env("GPUSIM_CUPTI_VERSION", version);
        let outcome = run.outcome().expect_success();
        let seen: Vec<&str> = outcome.lines("callback").iter().map(|l| l.str("id")).collect();
        let expected: &[&str] = &[id, id];
        assert_eq!(seen, expected, "{version}");
    }
}

#[test]
fn a_kind_unknown_to_a_version_is_rejected_with_that_versions_code() {
    for (version, answers) in [("12.0", ["0", "999"]), ("13.0", ["0", "21"]), ("13.2", ["0", "0"])] {
        let run = Run::new("basic", &[]).client("10,59", "").env("GPUSIM_CUPTI_VERSION", version);
        let outcome = run.outcome().expect_success();
        let said: Vec<&str> = outcome.lines("ActivityEnable").iter().map(|l| l.text.as_str()).collect();
        assert_eq!(said, answers.map(|answer| format!("ActivityEnable {answer}")), "{version}");
    }
}
